"""History: the reports of a run, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.display import html_picture, html_table
from warpfit.engines.base import EpochReport
from warpfit.other_packages import WithHints

# Those of every run; metrics follow.
COLUMNS = (
    *(field.name for field in fields(EpochReport) if field.name not in ("step_losses", "metrics")),
    "samples_per_second",
)
SHOWN_EPOCHS = 10


class History(WithHints):
    """The reports of a run.

    Attributes
    ----------
    reports : list of EpochReport
    stopped_by : str
        Why the run ended: ``'epochs'`` (all were done), ``'interrupt'``, or what a callback said.
    plan : Plan or None
        How it was computed, as it began.
    precisions : dict of int to str
        By the first epoch of each, counted from 1: more than one if the engine's own choice did not
        have the range (see docs/design.md).

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=3, validation_data=(x, y))
    >>> len(history["loss"]), history["loss"][-1] < history["loss"][0]
    (3, True)
    """

    def __init__(self, reports: list[EpochReport] | None = None) -> None:
        self.reports = reports or []
        self.stopped_by = "epochs"
        self.plan: Any = None
        self.later_precisions: dict[int, str] = {}

    @property
    def precisions(self) -> dict[int, str]:
        """In which precision it was computed, by the first epoch of each, counted from 1."""
        first = {} if self.plan is None else {1: self.plan.precision}
        found: dict[int, str] = {}
        for epoch, precision in (first | self.later_precisions).items():
            if precision not in found.values():  # another engine may go on in the same
                found[epoch] = precision
        return found

    @property
    def last_epoch(self) -> int:
        """The last epoch that was reported, counted from 1; 0 if none was."""
        return self.reports[-1].epoch if self.reports else 0

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[EpochReport]:
        return iter(self.reports)

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.columns:
            raise KeyError(f"expected a column among {', '.join(self.columns)}, got {column!r}")
        return [report.value(column) for report in self.reports]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what the reports have, those of metrics last."""
        metrics = dict.fromkeys(name for report in self.reports for name in report.metrics)
        return (*COLUMNS, *metrics)

    @property
    def step_losses(self) -> npt.NDArray[np.float64]:
        """The loss of every step of the reported epochs, (steps,) float64."""
        return np.concatenate([report.step_losses for report in self.reports] or [np.empty(0)])

    def to_dict(self) -> dict[str, list[Any]]:
        """Return one list per column, JSON-ready; columns that hold nothing are left out.

        ``pandas.DataFrame(history.to_dict())`` is a table with a row an epoch.
        """
        table = {column: self[column] for column in self.columns}
        return {
            column: values for column, values in table.items() if any(v is not None for v in values)
        }

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Any:
        """Draw loss and accuracy over the epochs; write the picture to `path` if given, and return
        the figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed, or the picture cannot be written.
        """
        from warpfit.plots import plot_history, save_figure

        figure = plot_history(self.to_dict(), title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the last epochs as a table, and the curves."""
        from warpfit.plots import has_matplotlib

        table = self.to_dict()
        columns = [[_text(value) for value in table[name][-SHOWN_EPOCHS:]] for name in table]
        head = f"{len(self)} epochs, stopped by {self.stopped_by}"
        more = len(self) - SHOWN_EPOCHS
        foot = f"and {more:,} before these" if more > 0 else ""
        shown = html_table(head, list(table), zip(*columns, strict=True), foot)
        if not self.reports or not has_matplotlib():
            return shown
        return shown + html_picture(self.plot(), "loss and accuracy over the epochs")

    def __repr__(self) -> str:
        last = f", last: {self.reports[-1]}" if self.reports else ""
        return f"History({len(self)} epochs, stopped by {self.stopped_by}{last})"


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "" if value is None else str(value)
