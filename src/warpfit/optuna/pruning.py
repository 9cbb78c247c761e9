"""Which rule of a sweep stands for a study's pruner, and how a pruner decides between epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warpfit.optuna.trials import AskedTrial, needs_optuna
from warpfit.sweep.halving import Halving, Rule, have_results
from warpfit.sweep.metric import SCORE, Metric
from warpfit.sweep.tasks import Outcome
from warpfit.training.history import History

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


def rule_of(pruner: BasePruner, batch: Sequence[AskedTrial], sign: int) -> Rule | None:
    """Return the rule by which a batch of trials is pruned; None if no trial is.

    Successive halving is that of a sweep, among the trials of the batch, which are in the order of
    the candidates; any other pruner is asked. The sign is -1 if a function's scores stand for
    values with the other one.
    """
    pruners = needs_optuna().pruners
    if type(pruner) is pruners.NopPruner:
        return None
    if type(pruner) is pruners.SuccessiveHalvingPruner:
        halving = _halving_of(pruner)
        if halving is not None:
            return halving
    return Pruning(type(pruner).__name__, batch, sign)


def _halving_of(pruner: Any) -> Halving | None:
    """Return the synchronous rule that Optuna's pruner approximates; None for other settings."""
    names = ("_reduction_factor", "_min_resource", "_min_early_stopping_rate", "_bootstrap_count")
    if not all(hasattr(pruner, name) for name in names):
        return None
    factor, resource, rate, bootstrap = (getattr(pruner, name) for name in names)
    if bootstrap:
        return None
    # Without a number, Optuna takes a hundredth of the steps of the trials before, at least 1.
    return Halving(factor, (resource or 1) * factor**rate)


class Pruning(Rule):
    """Asks a study's pruner after every reported epoch; arguments are as `rule_of` has them."""

    def __init__(self, name: str, batch: Sequence[AskedTrial], sign: int) -> None:
        self._name, self.batch, self.sign = name, batch, sign

    @property
    def name(self) -> str:
        return self._name

    def rungs(self, epochs: int, report_every: int = 1) -> list[int]:
        return list(range(report_every, epochs, report_every))

    def stopped(
        self,
        until: int,
        paused: Mapping[int, Outcome],
        ended: Mapping[int, Outcome],
        metric: Metric,
        num_folds: int,
    ) -> dict[int, str]:
        after = f"after {until} epoch{'' if until == 1 else 's'}"
        found: dict[int, str] = {}
        for idx in sorted({number // num_folds for number in paused}):
            asked, numbers = self.batch[idx], range(idx * num_folds, (idx + 1) * num_folds)
            members = [paused.get(number) or ended[number] for number in numbers]
            asked.report(self._values(members, metric, until))
            if not have_results(members):
                why = f"{self.name}: a fold has no result {after}"
            elif asked.trial.should_prune():
                why = f"{self.name}: {after}"
            else:
                continue
            found |= {number: why for number in numbers if number in paused}
        return found

    def _values(
        self, members: Sequence[Outcome], metric: Metric, until: int
    ) -> Mapping[int, float]:
        if metric.name != SCORE:
            return values_of_epochs([each.history for each in members], metric)
        scores = [each.score for each in members if each.score is not None]
        have_all = len(scores) == len(members)
        return {until: self.sign * sum(scores) / len(scores)} if have_all else {}


def values_of_epochs(histories: Sequence[History], metric: Metric) -> dict[int, float]:
    """Return the mean over folds of a report's number, by the epochs that all folds have."""
    by_fold: list[dict[int, float]] = [
        {
            report.epoch: value
            for report in history.reports
            if (value := getattr(report, metric.name)) is not None
        }
        for history in histories
    ]
    first, *others = by_fold
    return {
        epoch: sum(values[epoch] for values in by_fold) / len(by_fold)
        for epoch in first
        if all(epoch in values for values in others)
    }
