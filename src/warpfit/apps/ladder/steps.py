"""What is said of a rung, and of a peer beside the ladder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A program that trains the task.

    Attributes
    ----------
    name, title : str
        As it is chosen, and as tables have it.
    changes : str
        What it changes in the one before.
    saves : str
        What that should save.
    if_little : str
        Why it may save little.
    """

    name: str
    title: str
    changes: str
    saves: str
    if_little: str
