"""What ran where, for how long, and why something fell back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from warpfit.callers import user_line

SKLEARN, UNTOLD = "scikit-learn", ""  # places; what is nowhere yet is recorded later
HEADER = ("call", "line", "where", "calls", "seconds", "why")
NUMBERS = (3, 4)  # columns that are aligned to the right


class Call(NamedTuple):
    """Calls of one method from one line that ran alike."""

    name: str  # such as 'MLPClassifier.fit'
    line: str  # the user's, as 'script.py:12'
    where: str  # a device and how it was computed there, or 'scikit-learn'
    why: str  # it ran there
    calls: int
    seconds: float  # of all of them

    @property
    def fell_back(self) -> bool:
        """Whether scikit-learn's own code did it."""
        return self.where == SKLEARN


class Report(NamedTuple):
    """What ran where; printed, it is a table.

    Examples
    --------
    >>> wf.accel.forget()
    >>> [call.name for call in wf.accel.report().calls if call.fell_back]
    []
    """

    calls: tuple[Call, ...]

    def __str__(self) -> str:
        if not self.calls:
            return "warpfit.accel: no perceptron was trained"
        back = sum(call.calls for call in self.calls if call.fell_back)
        rows = [
            (call.name, call.line, call.where, str(call.calls), f"{call.seconds:.3f}", call.why)
            for call in self.calls
        ]
        calls = "call" if back == 1 else "calls"
        head = f"warpfit.accel: {back} {calls} fell back to scikit-learn"
        return "\n".join((head, *_table([HEADER, *rows])))

    def __repr__(self) -> str:
        return str(self)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(_padded(row, widths)).rstrip()


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
    for idx, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.rjust(width) if idx in NUMBERS else text.ljust(width)


# Counts and seconds by name, line, where and why; threads may add at the same time.
_SUMS: dict[tuple[str, str, str, str], tuple[int, float]] = {}
_LOCK = Lock()


class Where:
    """Where a call runs, and why: known by the end of it."""

    def __init__(self) -> None:
        self.place, self.why = SKLEARN, ""


@contextmanager
def recorded(name: str) -> Iterator[Where]:
    """Record a call, wherever the `Where` says by the end of it; also one that raises."""
    where, line, start = Where(), user_line(), perf_counter()
    try:
        yield where
    finally:
        if where.place != UNTOLD:
            seconds, key = perf_counter() - start, (name, line, where.place, where.why)
            with _LOCK:
                calls, before = _SUMS.get(key, (0, 0.0))
                _SUMS[key] = calls + 1, before + seconds


def report() -> Report:
    """Return what ran where in this process since it began, or since `forget`.

    Returns
    -------
    Report
        Its ``calls`` in the order in which they came first; printed, it is a table.

    Examples
    --------
    >>> wf.accel.forget()
    >>> print(wf.accel.report())
    warpfit.accel: no perceptron was trained
    """
    with _LOCK:
        return Report(tuple(Call(*key, *sums) for key, sums in _SUMS.items()))


def forget() -> None:
    """Clear the report.

    Examples
    --------
    >>> wf.accel.forget()
    >>> wf.accel.report().calls
    ()
    """
    with _LOCK:
        _SUMS.clear()
