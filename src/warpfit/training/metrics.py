"""Metrics of `fit`: functions of targets and predictions, computed on the host between epochs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.backends.transfer import to_host
from warpfit.checks import brief
from warpfit.engines.base import Plan, TrainingData
from warpfit.errors import ConfigError
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.nn.module import Module
from warpfit.other_packages import instead_of
from warpfit.training.evaluate import loss_of, predict, predict_network
from warpfit.training.history import COLUMNS

ROWS_AT_A_TIME = 1024
# How scikit-learn names functions of which less, or more, is better.
LESS_IS_BETTER, MORE_IS_BETTER = ("_loss", "_error", "_deviance"), ("_score",)

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """A number of targets and predictions."""

    name: str  # its column without `val_`
    of: Callable[[Numbers, Predictions], Any]  # from targets and `Predictions` to the number
    more_is_better: bool | None  # None where neither a scorer nor the name says


@dataclass(frozen=True)
class Predictions:
    """What a network's outputs (N, ...) predict, in the forms that metrics take."""

    loss: Loss
    outputs: Numbers

    @cached_property
    def labels_or_values(self) -> Numbers:
        """Labels if the loss counts right rows, else values; (N,) for one output."""
        if self.loss.counts_correct:
            return self.loss.labels(self.outputs)
        return flat(np.asarray(self.loss.values(backends.get("cpu"), self.outputs)))

    @cached_property
    def probabilities(self) -> Numbers:
        """Those of each class (N, C), or of each of several answers."""
        found = np.asarray(self.loss.probabilities(backends.get("cpu"), self.outputs))
        return np.hstack([1 - found, found]) if found.shape[1:] == (1,) else found

    @property
    def classes(self) -> Any:
        """The labels, as scikit-learn's classifiers have them: a list of several answers'."""
        several = self.labels_or_values.ndim > 1
        answers = [np.arange(2)] * self.outputs.shape[1]
        return answers if several else np.arange(self.probabilities.shape[1])


def flat(rows: Numbers) -> Numbers:
    """Return rows (N, 1) as (N,), others as they are."""
    return rows[:, 0] if rows.shape[1:] == (1,) else rows


class Metrics:
    """The metrics of a run, of rows that are validated on, or of all training rows without any."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        plan: Plan,
        data: TrainingData,
        validation: TrainingData | None,
    ) -> None:
        self.plan, self.rows = plan, data if validation is None else validation
        self._targets = flat(to_host(self.rows.y))
        prefix = "" if validation is None else "val_"
        self._by_column = {prefix + metric.name: metric for metric in metrics}

    @property
    def directions(self) -> Mapping[str, bool | None]:
        """Whether more is better, by column; None where that is not known."""
        return {name: metric.more_is_better for name, metric in self._by_column.items()}

    def try_on(self, ops: Backend, arrays: Mapping[str, Array]) -> None:
        """Compute them once for the errors that they may raise."""
        with warnings.catch_warnings():  # of a network that has not learnt anything
            warnings.simplefilter("ignore")
            self.of(ops, arrays)

    def of(self, ops: Backend, arrays: Mapping[str, Array]) -> dict[str, float | None]:
        """Return the metrics of the network with these arrays, by column; None for what is not
        finite.

        Raises
        ------
        ConfigError
            If a scorer does not take such targets or predictions, or a function returns no number.
        """
        outputs = predict_network(
            ops,
            self.plan.network,
            arrays,
            self.rows.x,
            batch_size=ROWS_AT_A_TIME,
            dtype=self.plan.dtype,
        )
        predictions = Predictions(self.plan.loss, outputs)
        return {
            column: _number(metric.name, metric.of(self._targets, predictions))
            for column, metric in self._by_column.items()
        }


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(value) if np.ndim(value) == 0 else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise ConfigError(f"expected the metric {name} to return a number, got {brief(value)}")
    return number if isfinite(number) else None


def as_metrics(asked: Any, loss: Loss) -> tuple[Metric, ...]:
    """Return what is to be computed beyond what reports have: the accuracy, if the loss has one.

    Raises
    ------
    ConfigError
        If `asked` is no list of scorers' names and functions, or two would have one column.
    """
    if not isinstance(asked, Sequence) or isinstance(asked, str):
        raise ConfigError(f"expected metrics as a list, got {brief(asked)}")
    found = tuple(
        _metric(each) for each in asked if not (loss.counts_correct and each == "accuracy")
    )
    names = [metric.name for metric in found]
    if {*names} & {*COLUMNS} or len({*names}) < len(names):
        raise ConfigError(
            "expected metrics of different names, and none of a report's columns, got "
            f"{', '.join(names)}"
        )
    return found


def _metric(asked: Any) -> Metric:
    """Return a metric by its scorer's name or of a function, or raise ConfigError."""
    if isinstance(asked, str):
        return Metric(asked, _of_scorer(asked), more_is_better=True)
    name = getattr(asked, "__name__", "")
    if not callable(asked) or not name.isidentifier():
        raise ConfigError(
            "expected a metric as a scorer's name or a function with a name of its own, got "
            f"{brief(asked)}"
        )
    says = name.endswith(LESS_IS_BETTER + MORE_IS_BETTER)
    return Metric(
        name,
        lambda targets, predictions: asked(targets, predictions.labels_or_values),
        name.endswith(MORE_IS_BETTER) if says else None,
    )


@dataclass(frozen=True)
class Scorer:
    """A scorer of scikit-learn, by its name, as a function of a model and rows."""

    name: str

    def __post_init__(self) -> None:
        _of_scorer(self.name)

    def __call__(self, model: Module, x: Any, y: Any) -> Any:
        predictions = Predictions(loss_of(model) or SoftmaxCrossEntropy(), predict(model, x))
        return _of_scorer(self.name)(flat(to_host(y)), predictions)


def hint_of_metric(name: str) -> str:
    """Return the end of a message that no metric has this name: which one is meant, or ""."""
    from sklearn.metrics import get_scorer_names

    close = get_close_matches(name, get_scorer_names(), n=3)
    return instead_of("metric", name) or (f"; close are {', '.join(close)}" if close else "")


def _of_scorer(name: str) -> Callable[[Numbers, Predictions], Any]:
    """Return scikit-learn's scorer of a name as a function of targets and predictions."""
    from sklearn.metrics import get_scorer, get_scorer_names

    if name not in get_scorer_names():
        raise ConfigError(
            f"expected a metric among sklearn.metrics.get_scorer_names(), got {name!r}"
            + hint_of_metric(name)
        )
    scorer = get_scorer(name)

    def of(targets: Numbers, predictions: Predictions) -> Any:
        estimator = _estimators()[predictions.loss.counts_correct](predictions)
        try:
            return scorer(estimator, predictions.outputs, targets)
        except (AttributeError, TypeError, ValueError) as error:
            told = " ".join(str(error).split())
            raise ConfigError(f"the metric {name!r} cannot be computed here: {told}") from error

    return of


@cache
def _estimators() -> tuple[type, type]:
    """Return a regressor and a classifier that have predicted already, for scorers."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Predicted(BaseEstimator):
        def __init__(self, predictions: Predictions) -> None:
            self.predictions = predictions

        def predict(self, x: Any) -> Numbers:
            return self.predictions.labels_or_values

    class Regressor(RegressorMixin, Predicted):
        pass

    class Classifier(ClassifierMixin, Predicted):
        def predict_proba(self, x: Any) -> Numbers:
            return self.predictions.probabilities

        @property
        def classes_(self) -> Any:
            return self.predictions.classes

    return Regressor, Classifier
