"""The results of a sweep: a record of every network, its history, its model, and the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from warpfit.display import html_picture, html_table
from warpfit.errors import ConfigError
from warpfit.extras import needs
from warpfit.nn.module import Module
from warpfit.sweep.candidates import Candidate, candidate_name, value_text
from warpfit.sweep.metric import Metric
from warpfit.sweep.planning import SweepPlan
from warpfit.sweep.tasks import DONE, FAILED, INTERRUPTED, NOT_STARTED, STOPPED, Outcome
from warpfit.training.history import History

Record = dict[str, Any]

MEASURED = ("loss", "accuracy", "val_loss", "val_accuracy")
SHOWN_ROWS = 10


@dataclass
class Sweep:
    """The results of `fit_many`. Printed, it is a table of the best candidates.

    Attributes
    ----------
    records : list of dict
        One for each network, by candidate, then by fold: ``candidate`` (a dict), ``fold`` (None
        without folds), ``status`` (``'done'``, ``'stopped'`` by a callback or by halving,
        ``'diverged'``, ``'failed'``, ``'interrupted'``, ``'not started'``), ``message`` (why),
        ``epochs`` (whole epochs done), ``seconds``, ``loss``, ``accuracy``, ``val_loss``,
        ``val_accuracy`` (of the epoch whose weights the model has; None where there is no such
        number), ``score`` (the metric), ``scored_on`` (the rows that the metric is measured on:
        ``'training'`` or ``'validation'``), ``rank`` (the candidate's, from 1; None without a
        score).
    candidates : list of dict
        One for each candidate: ``candidate``, ``score`` (the mean over folds), ``std`` (over
        folds), ``rank``.
    models : list of Module or None
        As `records`; None for networks that failed or were not started, and for those that were not
        to be kept.
    histories : list of History
        As `records`.
    metric : Metric
    plan : SweepPlan
        How it was computed; print it.
    seconds : float
    interrupted : bool
        Whether Ctrl-C ended it.

    Examples
    --------
    >>> def build(candidate):
    ...     model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    ...     return model, optim.SGD(model.parameters(), lr=candidate["lr"])
    >>> rates = {"lr": [0.1, 0.5]}
    >>> sweep = wf.fit_many(build, x, y, grid=rates, epochs=2, validation_data=(x, y), n_jobs=1)
    >>> sweep.best_candidate, len(sweep.histories)
    ({'lr': 0.5}, 2)
    """

    records: list[Record]
    candidates: list[Record]
    histories: list[History]
    metric: Metric
    plan: SweepPlan
    seconds: float = 0.0
    interrupted: bool = False
    # Of a network by its number.
    _model_of: Callable[[int], Any] = field(init=False, repr=False, compare=False)

    @cached_property
    def models(self) -> list[Module | None]:
        return [self._model_of(number) for number in range(len(self))]

    def __getstate__(self) -> dict[str, Any]:
        self.models  # noqa: B018  (made: what makes them stays here)
        return {name: value for name, value in vars(self).items() if name != "_model_of"}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def best(self) -> Record:
        """The record of the best candidate's network; with folds, of its best fold.

        Raises
        ------
        ConfigError
            If no candidate has a score.
        """
        return self.records[self._best_idx]

    @property
    def best_candidate(self) -> Candidate:
        """The best candidate."""
        return self.best["candidate"]

    @property
    def best_model(self) -> Module:
        """The model of `best`."""
        has_models = "models" in vars(self)
        model = (self.models.__getitem__ if has_models else self._model_of)(self._best_idx)
        if model is None:
            raise ConfigError("expected the best network's model, which was not kept")
        return model

    @property
    def best_history(self) -> History:
        """The history of `best`."""
        return self.histories[self._best_idx]

    @property
    def _best_idx(self) -> int:
        first = [idx for idx, record in enumerate(self.records) if record["rank"] == 1]
        if not first:
            reasons = {record["message"] for record in self.records if record["message"]}
            why = "; ".join(sorted(reasons)[:3]) or f"{self.metric.name} is no finite number of any"
            raise ConfigError(f"expected a network with a score, got none: {why}")
        sign = -1 if self.metric.is_greater_better else 1
        return min(first, key=lambda idx: (sign * self.records[idx]["score"], idx))

    def to_pandas(self) -> Any:
        """Return the records as a pandas DataFrame, with a column for each value of the candidates.

        A value that is called like a column of the records is ``candidate.<name>``.
        """
        with needs("data", "tables need"):
            from pandas import DataFrame

        return DataFrame(self.rows())

    def rows(self) -> list[Record]:
        """Return the records as flat dicts, a key for each value of the candidates, as `to_pandas`
        has them.
        """
        taken = [name for name in self.records[0] if name != "candidate"]
        names = list(dict.fromkeys(name for record in self.records for name in record["candidate"]))
        keys = {name: f"candidate.{name}" if name in taken else name for name in names}
        return [
            {
                **{keys[name]: record["candidate"].get(name) for name in names},
                **{name: record[name] for name in taken},
            }
            for record in self.records
        ]

    def counts(self) -> dict[str, int]:
        """Return how many networks ended in which status."""
        found: dict[str, int] = {}
        for record in self.records:
            found[record["status"]] = found.get(record["status"], 0) + 1
        return found

    def table(self, num_rows: int = SHOWN_ROWS) -> tuple[list[str], list[list[str]]]:
        """Return header and rows, as text, of the best candidates."""
        ranked = sorted(
            range(len(self.candidates)),
            key=lambda idx: (self.candidates[idx]["rank"] or len(self), idx),
        )
        names = list(
            dict.fromkeys(name for summary in self.candidates for name in summary["candidate"])
        )
        has_folds = self.plan.num_folds > 0
        header = [
            "rank",
            *names,
            self.metric.name,
            *(["±"] if has_folds else []),
            "epochs",
            "s",
            "status",
        ]
        return header, [self._row(idx, names, has_folds) for idx in ranked[:num_rows]]

    def _row(self, candidate: int, names: Sequence[str], has_folds: bool) -> list[str]:
        summary = self.candidates[candidate]
        folds = max(1, self.plan.num_folds)
        members = self.records[candidate * folds : (candidate + 1) * folds]
        statuses = list(dict.fromkeys(record["status"] for record in members))
        return [
            value_text(summary["rank"]),
            *(value_text(summary["candidate"].get(name)) for name in names),
            value_text(summary["score"]),
            *([value_text(summary["std"])] if has_folds else []),
            value_text(max(record["epochs"] for record in members)),
            f"{sum(record['seconds'] for record in members):.2f}",
            ", ".join(statuses),
        ]

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Any:
        """Draw candidates by their values and score; write the picture to `path` if given, and
        return the figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed, or the picture cannot be written.
        """
        from warpfit.plots import save_figure
        from warpfit.sweep.plots import plot_sweep

        figure = plot_sweep(self.candidates, self.metric, title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the best candidates, and their picture."""
        from warpfit.plots import has_matplotlib

        header, rows = self.table()
        shown = html_table(self._head, header, rows, self._foot(rows))
        if len(self.candidates) < 2 or not has_matplotlib():
            return shown
        return shown + html_picture(self.plot(), "candidates by their values and score")

    @property
    def _head(self) -> str:
        counts = ", ".join(f"{number:,} {status}" for status, number in self.counts().items())
        return f"{len(self):,} networks: {counts}; {self.seconds:.1f} s; ranked by {self.metric}"

    def _foot(self, rows: list[list[str]]) -> str:
        more = len(self.candidates) - len(rows)
        return f"... and {more:,} more" if more else ""

    def __str__(self) -> str:
        header, rows = self.table()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
            for row in (header, *rows)
        ]
        return "\n".join(filter(None, (self._head, *lines, self._foot(rows))))

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {status}" for status, number in self.counts().items())
        return f"Sweep({len(self)} networks: {counts})"


@dataclass
class Collector:
    """Collects outcomes as they arrive, and builds a `Sweep`."""

    candidates: list[Candidate]
    folds: Sequence[int | None]  # `[None]` without folds
    metric: Metric
    keeps_models: bool = True  # whether all models are kept, or those of the best candidate only
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    best: int | None = None
    _keys: dict[int, Any] = field(default_factory=dict)
    _last_rung: int = 0

    def collect(self, outcome: Outcome) -> None:
        """Record a network's outcome once: a repeated one is the same."""
        if outcome.number in self.outcomes:
            return
        # Free their memory.
        outcome.optimizer, outcome.callbacks, outcome.on_device = None, (), None
        self.outcomes[outcome.number] = outcome
        self._last_rung = max(self._last_rung, outcome.halved_after or 0)
        candidate = outcome.number // len(self.folds)
        if len(self._members(candidate)) < len(self.folds):
            return
        key, loser = self._key(candidate), candidate
        if key is not None:
            self._keys[candidate] = key
            if self.best is None or key < self._keys[self.best]:
                loser, self.best = candidate if self.best is None else self.best, candidate
        if not self.keeps_models and loser != self.best:
            self._forget_models(loser)

    @property
    def best_words(self) -> str:
        """The best candidate so far with its score, in words; empty before the first."""
        if self.best is None:
            return ""
        score, _ = self._score(self.best)
        return f"{self.metric} {score:.4g} ({candidate_name(self.candidates[self.best])})"

    def sweep(self, plan: SweepPlan, seconds: float, interrupted: bool) -> Sweep:
        """Return the results, with records of networks that were not started, too."""
        ranked = sorted(self._keys, key=lambda candidate: (self._keys[candidate], candidate))
        ranks = {candidate: idx + 1 for idx, candidate in enumerate(ranked)}
        numbers = range(len(self.candidates) * len(self.folds))
        if not self.keeps_models:
            self._take_models()
        found = Sweep(
            records=[self._record(number, ranks) for number in numbers],
            candidates=[self._summary(idx, ranks) for idx in range(len(self.candidates))],
            histories=[self._history(number) for number in numbers],
            metric=self.metric,
            plan=plan,
            seconds=seconds,
            interrupted=interrupted,
        )
        found._model_of = self._model
        return found

    def _take_models(self) -> None:
        """Have the models that are left, and so nothing more on a device."""
        for number in self.outcomes:
            model = self._model(number)
            for parameter in () if model is None else model.parameters():
                parameter.data  # noqa: B018  (made)

    def _members(self, candidate: int) -> list[Outcome]:
        first = candidate * len(self.folds)
        numbers = range(first, first + len(self.folds))
        return [self.outcomes[number] for number in numbers if number in self.outcomes]

    def _key(self, candidate: int) -> Any:
        """Return what sorts a candidate, less is better; None if not all its networks got through.

        One that halving stopped comes after all that went on, and after those that were to when
        Ctrl-C came.
        """
        members = self._members(candidate)
        key = self.metric.key(members) if all(map(self._got_through, members)) else None
        if key is None:
            return None
        halved = [outcome.halved_after for outcome in members if outcome.halved_after is not None]
        return (-min(halved) if halved else float("-inf"), key)

    def _got_through(self, outcome: Outcome) -> bool:
        """Return whether a network trained to its end, or was still in play after the last rung."""
        if outcome.status != INTERRUPTED or not outcome.epochs:
            return outcome.status in (DONE, STOPPED)
        return 0 < self._last_rung <= outcome.epochs

    def _score(self, candidate: int) -> tuple[float, float]:
        """Return the mean over a candidate's networks, and their standard deviation."""
        found = [self.metric.value(outcome) for outcome in self._members(candidate)]
        values = [value for value in found if value is not None]
        if len(values) == 1:  # as NumPy has it, who takes longer
            return float(values[0]), 0.0
        return float(np.mean(values)), float(np.std(values))

    def _summary(self, candidate: int, ranks: dict[int, int]) -> Record:
        score, std = self._score(candidate) if candidate in ranks else (None, None)
        return {
            "candidate": self.candidates[candidate],
            "score": score,
            "std": std,
            "rank": ranks.get(candidate),
        }

    def _record(self, number: int, ranks: dict[int, int]) -> Record:
        candidate, fold = divmod(number, len(self.folds))
        outcome = self.outcomes.get(number)
        return {
            "candidate": self.candidates[candidate],
            "fold": self.folds[fold],
            "status": NOT_STARTED if outcome is None else outcome.status,
            "message": "" if outcome is None else outcome.message,
            "epochs": 0 if outcome is None else outcome.epochs,
            "seconds": 0.0 if outcome is None else outcome.seconds,
            **{name: getattr(outcome and outcome.report, name, None) for name in MEASURED},
            "score": None if outcome is None else self.metric.value(outcome),
            "scored_on": self.metric.rows,
            "rank": ranks.get(candidate),
        }

    def _history(self, number: int) -> History:
        outcome = self.outcomes.get(number)
        return History() if outcome is None else outcome.history

    def _model(self, number: int) -> Any:
        outcome = self.outcomes.get(number)
        return None if outcome is None or outcome.status == FAILED else outcome.model

    def _forget_models(self, candidate: int) -> None:
        for outcome in self._members(candidate):
            outcome.model = None
            outcome.void_promises()
