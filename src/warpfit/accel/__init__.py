"""scikit-learn's perceptrons in programs that exist, trained by this package.

``python -m warpfit.accel script.py`` runs a script so, ``%load_ext warpfit.accel`` a notebook, and
`install` the program that calls it. scikit-learn's classes stay what they are: `replacements`
exchanges how they train (`perceptrons`), and where several are fitted in a loop, the loop
(`loops`: `together` for searches and cross-validation, `ensembles` for fits that nothing follows).
What this package cannot do goes on to scikit-learn's own code, and `records` has what ran where.

Nothing here is imported before it is needed: a program without perceptrons starts as before.
"""

from __future__ import annotations

from typing import Any

from warpfit.accel.records import Report, forget, report
from warpfit.accel.replacements import install, uninstall

__all__ = ["Report", "forget", "install", "report", "uninstall"]


def load_ipython_extension(shell: Any) -> None:
    """Install it in a notebook: ``%load_ext warpfit.accel``."""
    install()


def unload_ipython_extension(shell: Any) -> None:
    """Undo that: ``%unload_ext warpfit.accel``."""
    uninstall()
