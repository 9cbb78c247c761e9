"""Who called: warnings name the line of the user's code, whatever lies between."""

from __future__ import annotations

import sys
import warnings
from os.path import basename
from types import FrameType

# What lies between a user's line and the code that warns: scikit-learn calls its estimators'
# methods, joblib and executors call scikit-learn.
BETWEEN = frozenset({"warpfit", "sklearn", "joblib", "concurrent", "threading", "contextlib"})


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside of this package and what carries its calls."""
    warnings.warn(message, category, stacklevel=1 + _level_of_user())


def user_line() -> str:
    """Return the line of the nearest such caller, as ``'script.py:12'``."""
    frame = sys._getframe(_level_of_user())
    return f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _level_of_user() -> int:
    """Return how many frames above the asking function the user's lies; if none, the outermost."""
    frame, level = sys._getframe(1), 0
    while frame.f_back is not None and module_of(frame).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    return level


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))
