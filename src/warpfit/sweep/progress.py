"""How far a sweep is: a line that moves on a terminal and in a notebook, elsewhere a line now and
then.
"""

from __future__ import annotations

import sys
from collections import Counter
from time import monotonic
from typing import Any

from warpfit.display import LiveLine, is_notebook
from warpfit.sweep.metric import Metric
from warpfit.sweep.records import Collector
from warpfit.sweep.tasks import DONE, Outcome

SECONDS_BETWEEN_LINES = 10.0


def tell_no_validation(metric: Metric) -> None:
    """Print to standard error that candidates are ranked by their training rows."""
    print(
        "fit_many: neither folds nor validation_data are given: candidates are ranked by "
        f"{metric}, which does not tell how they do on new rows",
        file=sys.stderr,
    )


class SweepProgress:
    """Says how many networks are done, running and stopped, and which candidate is the best so far.

    Parameters
    ----------
    total : int
        Networks.
    at_once : int
        Networks that are trained at the same time.
    collector : Collector
        Which knows the best.
    is_shown : bool
    """

    def __init__(self, total: int, at_once: int, collector: Collector, *, is_shown: bool) -> None:
        self.total, self.at_once, self.collector = total, at_once, collector
        self.is_shown = is_shown
        self.ended: Counter[str] = Counter()
        self._bar: Any = None
        self._task: Any = None
        self._live: LiveLine | None = None
        self._last_line = monotonic()

    def __enter__(self) -> SweepProgress:
        if self.is_shown and sys.stderr.isatty():
            self._start_bar()
        elif self.is_shown and is_notebook():
            self._live = LiveLine()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.flush()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.table import Column

        one_line = Column(no_wrap=True, overflow="ellipsis")
        self._bar = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, table_column=one_line),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self.line, total=self.total)
        self._bar.start()

    def tell(self, outcome: Outcome) -> None:
        """Record that a network has finished, and show it."""
        self.ended[outcome.status] += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=self.line)
        elif self._live is not None:
            self._live.show(self.num_ended / self.total, self._words)
        elif self.is_shown and monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = monotonic()
            print(self._words, file=sys.stderr, flush=True)

    @property
    def _words(self) -> str:
        return f"{self.num_ended}/{self.total} networks: {self.line}"

    @property
    def num_ended(self) -> int:
        return sum(self.ended.values())

    @property
    def line(self) -> str:
        """How far the sweep is, in words."""
        running = min(self.at_once, self.total - self.num_ended)
        others = [f"{number} {status}" for status, number in self.ended.items() if status != DONE]
        best = self.collector.best_words
        parts = [f"{self.ended[DONE]} done", f"{running} running", *others]
        return ", ".join(parts) + (f"; best {best}" if best else "")
