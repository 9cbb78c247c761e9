"""Where the fits of a search are trained that leave the device to us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import _num_samples

from warpfit.backends import resolve_device
from warpfit.engines.scaling import AUTO
from warpfit.estimators.parameters import LBFGS, batch_rows, hidden_sizes
from warpfit.estimators.splits import Fits
from warpfit.sweep.joint import FitCosts, FittedJointly
from warpfit.training.place import (
    TRAINED_AT_ONCE,
    PlaceOfMany,
    RunCosts,
    is_for_both,
    place_of_many,
    run_costs,
)

# Parameters by which a GPU has one more kernel to compile.
OF_KERNELS = ("hidden_layer_sizes", "activation", "solver", "batch_size", "loss", "early_stopping")


def place_of_fits(fits: Fits, num_processes: int) -> PlaceOfMany:
    """Return where all fits are trained, `num_processes` at once if that is the CPU.

    What a GPU is expected to take has one compilation for each architecture. Parameters that fits
    will refuse cost nothing, and such rows leave the device as it is.
    """
    asked = fits.estimator.get_params(deep=False)
    if asked["device"] != AUTO or any("device" in parameters for parameters, _ in fits.pairs):
        return PlaceOfMany(asked["device"])
    with suppress(Exception):  # which the fits will raise
        costs = _costs(fits)
        all_rows = np.arange(_num_samples(fits.X))
        num_rows = {id(split): len(all_rows[split[0]]) for split in _different(fits, 1)}
        runs_of = {
            (id(parameters), rows): _runs(costs, parameters, rows)
            for parameters in _different(fits, 0)
            for rows in set(num_rows.values())
        }
        runs = [runs_of[id(parameters), num_rows[id(split)]] for parameters, split in fits.pairs]
        place = place_of_many(
            asked["device"],
            list(chain(*runs)),
            num_processes,
            cpu_factor=costs.cpu_factor,
            at_once=costs.at_once,
        )
        if isinstance(fits.estimator, FittedJointly) and place.device == AUTO:
            return PlaceOfMany(resolve_device(AUTO))  # a fit would choose for itself alone
        return place
    return PlaceOfMany(asked["device"])


def _runs(
    costs: FitCosts, parameters: Mapping[str, Any], num_rows: int
) -> Sequence[RunCosts | None]:
    with suppress(Exception):  # which the fit will raise
        return costs.runs(parameters, num_rows)
    return []


def _costs(fits: Fits) -> FitCosts:
    if isinstance(fits.estimator, FittedJointly):
        return fits.estimator._fit_costs(fits.X, fits.y)
    asked, ends = fits.estimator.get_params(deep=False), (_num_features(fits.X), _num_outputs(fits))
    return FitCosts(
        lambda parameters, num_rows: _runs_of({**asked, **parameters}, ends, num_rows),
        cpu_factor=1.0,
        at_once=TRAINED_AT_ONCE,
    )


def _different(fits: Fits, part: int) -> list[Any]:
    """Return the parameters, or the splits, of all fits, each once."""
    return list({id(pair[part]): pair[part] for pair in fits.pairs}.values())


def _num_features(X: Any) -> int:
    return int(X.shape[1] if hasattr(X, "shape") else np.shape(X)[1])


def _num_outputs(fits: Fits) -> int:
    """Return how many outputs a network has that is fitted to all rows."""
    y = np.asarray(fits.y)
    if y.ndim == 2 and y.shape[1] > 1:
        return int(y.shape[1])
    num_classes = len(np.unique(y)) if is_classifier(fits.estimator) else 1
    return num_classes if num_classes > 2 else 1


def _runs_of(
    asked: Mapping[str, Any], ends: tuple[int, int], num_rows: int
) -> list[RunCosts | None]:
    """Return the runs of a fit with these parameters; one of None if nobody can tell its length."""
    is_open = is_for_both(asked["engine"], asked["precision"])
    if not is_open or asked["solver"] == LBFGS or asked["callbacks"]:
        return [None]
    set_aside = int(num_rows * asked["validation_fraction"]) if asked["early_stopping"] else 0
    trained = num_rows - set_aside
    batch = min(
        batch_rows("auto", trained) if asked["batch_size"] == AUTO else int(asked["batch_size"]),
        trained,
    )
    widths = ends[0], *hidden_sizes(asked["hidden_layer_sizes"]), ends[1]
    costs = run_costs(widths, trained, batch, int(asked["max_iter"]), set_aside)
    kernel = widths, batch, *(str(asked.get(name)) for name in OF_KERNELS)
    return [RunCosts(costs, kernel)] * int(asked["n_ensemble"])
