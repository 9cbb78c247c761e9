"""How inputs are fed and what comes of them is counted."""

from __future__ import annotations

import signal
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warpfit.errors import WarpfitError

__all__ = [
    "FAMILIES",
    "Counts",
    "Family",
    "Feed",
    "Rng",
    "failure_of",
    "family",
    "feed_inputs",
    "must_work",
    "run_family",
]

Rng = np.random.Generator
Feed = Callable[[Rng], object]

SECONDS = 10.0  # more than this is a hang


class Hang(BaseException):
    """An input took too long."""


@dataclass(frozen=True)
class Family:
    """Inputs of a kind.

    Parameters
    ----------
    name : str
    prepare : function
        From a folder that is empty to the function that feeds one input.
    refusals : tuple of exception types
        With which an input may be refused.
    """

    name: str
    prepare: Callable[[Path], Feed]
    refusals: tuple[type[Exception], ...]


FAMILIES: dict[str, Family] = {}


def family(name: str, *others: type[Exception]) -> Callable[[Any], Any]:
    """Register the function below as a family, whose inputs may be refused with WarpfitError, or
    with others.
    """

    def register(prepare: Callable[[Path], Feed]) -> Callable[[Path], Feed]:
        FAMILIES[name] = Family(name, prepare, (WarpfitError, *others))
        return prepare

    return register


@dataclass(frozen=True)
class Counts:
    """What came of inputs: how many were accepted and refused; raw errors and hangs in words, by
    the input's number.
    """

    accepted: int = 0
    refused: int = 0
    raw: dict[int, str] = field(default_factory=dict)
    hangs: dict[int, str] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        return self.accepted + self.refused + len(self.raw) + len(self.hangs)

    def __add__(self, other: Counts) -> Counts:
        """Return the sums; failures, whose numbers are those of different families, get new
        ones.
        """
        raw = dict(enumerate([*self.raw.values(), *other.raw.values()]))
        hangs = dict(enumerate([*self.hangs.values(), *other.hangs.values()]))
        return Counts(self.accepted + other.accepted, self.refused + other.refused, raw, hangs)


def run_family(family: Family, folder: Path, numbers: Iterable[int]) -> Counts:
    """Prepare a family, feed it the inputs of these numbers, and count what comes of them."""
    return feed_inputs(family, family.prepare(folder), numbers)


def feed_inputs(family: Family, feed: Feed, numbers: Iterable[int]) -> Counts:
    """Feed the inputs of these numbers to what a family has prepared; count what comes of them."""
    accepted, refused = 0, 0
    raw: dict[int, str] = {}
    hangs: dict[int, str] = {}
    for number in numbers:
        error = failure_of(family, feed, number)
        if error is None:
            accepted += 1
        elif isinstance(error, family.refusals):
            refused += 1
        elif isinstance(error, Hang):
            hangs[number] = f"takes more than {SECONDS:g} s"
        else:
            raw[number] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return Counts(accepted, refused, raw, hangs)


def failure_of(family: Family, feed: Feed, number: int) -> BaseException | None:
    """Feed the input of a number; return the exception that it ends with, if any."""
    rng = np.random.default_rng([zlib.crc32(family.name.encode()), number])
    try:
        # What is not finite runs, too; NumPy warns of it.
        with warnings.catch_warnings(), np.errstate(all="ignore"), _limit():
            warnings.simplefilter("ignore")
            feed(rng)
    except (Exception, Hang) as error:
        return error
    return None


@contextmanager
def must_work() -> Iterator[None]:
    """Around the use of what was accepted: that no refusal comes any more."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"was accepted, and then: {type(error).__name__}: {error}") from error


@contextmanager
def _limit() -> Iterator[None]:
    """Raise Hang in the block when its time is over, where signals can do that."""
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
