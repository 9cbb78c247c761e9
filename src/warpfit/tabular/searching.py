"""What a search is told of fits: which train together, and what they cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import ceil
from typing import Any

from sklearn.base import clone

from warpfit import backends
from warpfit.backends import first_device
from warpfit.sweep.joint import FitCosts
from warpfit.tabular.members import AUTO, shape_of
from warpfit.tabular.methods import METHODS
from warpfit.tabular.network import Columns
from warpfit.tabular.parameters import settings_of
from warpfit.tabular.place import CPU_FACTOR
from warpfit.training.place import RunCosts, run_costs


def kind_of(estimator: Any) -> tuple[Hashable, int] | None:
    """Return what is equal of estimators whose fits one kernel trains, as far as their rows allow,
    and how many networks each has; None if it trains alone.
    """
    method, device = METHODS[estimator.method], first_device(estimator.device)
    are_apart = method.trained_at_once == 1 or estimator.time_limit is not None
    if are_apart or device == AUTO or backends.target_of(device) is None:
        return None
    shares = estimator.n_folds, estimator.validation_fraction  # by which batches are as many
    kind = estimator.method, device, shares, str(sorted(settings_of(estimator).items()))
    return kind, _num_networks(estimator)


def fit_costs(estimator: Any, X: Any, y: Any) -> FitCosts:
    """Return what fits to parts of a table cost."""
    base = clone(estimator)
    table = base._table(X, y, None, reset=True)
    base._learn_targets(table.y)
    targets, columns = base._targets_of(table.y), dict[str, Columns]()

    def runs(parameters: Mapping[str, Any], num_rows: int) -> list[RunCosts]:
        own = clone(base).set_params(**parameters)
        method, settings = METHODS[own.method], settings_of(own)
        if own.method not in columns:
            columns[own.method] = method.preprocessor(table.frames[0]).columns
        shape = shape_of(columns[own.method], targets, settings)
        share = 1 / own.n_folds if own.n_folds else own.validation_fraction
        num_validated = ceil(num_rows * share)
        num_trained = num_rows - num_validated
        batch_size = min(settings["batch_size"], num_trained)
        epochs = min(settings["n_epochs"], method.likely_epochs or settings["n_epochs"])
        costs = run_costs(method.widths(shape), num_trained, batch_size, epochs, num_validated)
        kernel = shape, batch_size, settings["label_smoothing"]
        return [RunCosts(costs, kernel)] * _num_networks(own)

    return FitCosts(runs, CPU_FACTOR, METHODS[estimator.method].trained_at_once)


def _num_networks(estimator: Any) -> int:
    return int((estimator.n_folds or 1) * estimator.n_ensemble)
