"""The metric that ranks networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any

from warpfit.checks import brief
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.sweep.tasks import Outcome
from warpfit.training.metrics import Scorer, hint_of_metric

COLUMNS = ("val_accuracy", "val_loss", "accuracy", "loss")
TRAINING = ("accuracy", "loss")
SCORE = "score"


@dataclass(frozen=True)
class Metric:
    """A number of every network, by which candidates are ranked."""

    name: str  # a column of a report, or 'score', which a function of the user's gives

    @property
    def is_greater_better(self) -> bool:
        return not self.name.endswith("loss")

    @property
    def rows(self) -> str:
        """Which rows it is measured on: ``'training'`` or ``'validation'``."""
        return "training" if self.name in TRAINING else "validation"

    def __str__(self) -> str:
        return f"{self.rows} {self.name.removeprefix('val_')}"

    def value(self, outcome: Outcome) -> float | None:
        """Return the number of a network, None if it has none or it is not finite."""
        value = outcome.score if self.name == SCORE else getattr(outcome.report, self.name, None)
        return value if value is not None and isfinite(value) else None

    def key(self, outcomes: Iterable[Outcome]) -> tuple[float, float] | None:
        """Return what sorts a candidate by its networks, the best first: the mean over folds, then
        the loss.

        None if one of them has no number.
        """
        outcomes = list(outcomes)
        values = [self.value(outcome) for outcome in outcomes]
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return None
        mean = _mean(known)
        return -mean if self.is_greater_better else mean, _mean(
            [_loss(outcome) for outcome in outcomes]
        )


def _mean(values: list[float]) -> float:
    """Return the mean, added up in order, as kernels that halve do."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def _loss(outcome: Outcome) -> float:
    report = outcome.report
    if report is None:
        return 0.0
    loss = report.loss if report.val_loss is None else report.val_loss
    return inf if isnan(loss) else loss


def as_scoring(metric: Any) -> Any:
    """Return a metric as `as_metric` takes it: of the name of a scikit-learn scorer its function.

    Raises
    ------
    ConfigError
        If it is the name of none.
    """
    if not isinstance(metric, str) or metric in COLUMNS:
        return metric
    try:
        return Scorer(metric)
    except ConfigError:
        raise _no_metric(metric) from None


def _no_metric(metric: Any) -> ConfigError:
    return ConfigError(
        f"expected metric among {', '.join(COLUMNS)}, the name of a scorer of scikit-learn, or a "
        f"function of model, x and y, got {brief(metric)}"
        + (hint_of_metric(metric) if isinstance(metric, str) else "")
    )


def as_metric(metric: Any, losses: Iterable[Loss], *, has_validation: bool) -> Metric:
    """Return the metric that is asked for; None is the accuracy, where all losses count right rows,
    else the loss.

    Raises
    ------
    ConfigError
        If it is neither a column nor a function, needs validation rows or accuracies that are not
        there, or compares different losses.
    """
    kinds = set(losses)
    counts = all(loss.counts_correct for loss in kinds)
    if metric is None:
        metric = ("val_" if has_validation else "") + ("accuracy" if counts else "loss")
    if callable(metric):
        if not has_validation:
            raise ConfigError(
                "expected validation_data or folds for a metric that is a function, got neither"
            )
        return Metric(SCORE)
    if not isinstance(metric, str) or metric not in COLUMNS:
        raise _no_metric(metric)
    if metric.startswith("val_") and not has_validation:
        raise ConfigError(
            f"expected validation_data or folds for the metric {metric!r}, got neither"
        )
    if metric.endswith("accuracy") and not counts:
        raise ConfigError(
            f"expected losses that count right rows for the metric {metric!r}, got one that does "
            "not"
        )
    if metric.endswith("loss") and len(kinds) > 1:
        names = ", ".join(sorted({loss.name for loss in kinds}))
        raise ConfigError(
            "expected a metric that is a function, or accuracies, for candidates whose losses "
            f"({names}) differ, got {metric!r}"
        )
    return Metric(metric)
