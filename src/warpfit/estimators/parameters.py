"""The parameters of both estimators: their allowed values, and values derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar, cast

import numpy as np
from sklearn import config_context, get_config
from sklearn.utils._param_validation import Interval, Options, StrOptions

from warpfit.callers import warn
from warpfit.checks import as_tuple
from warpfit.errors import ConfigWarning
from warpfit.estimators.recipes import ACTIVATIONS, POLICIES, SCHEDULES
from warpfit.optim import Schedule

Method = TypeVar("Method", bound=Callable[..., Any])

LBFGS, STOCHASTIC_SOLVERS = "lbfgs", ("sgd", "adam", "adamw")
LARGEST_AUTO_BATCH = 200

# In the form of `BaseEstimator._parameter_constraints`.
CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "solver": [StrOptions({LBFGS, *STOCHASTIC_SOLVERS})],
    "alpha": [Interval(Real, 0, None, closed="left")],
    "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "learning_rate": [StrOptions({*POLICIES, *SCHEDULES}), Schedule],
    "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
    "power_t": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "shuffle": ["boolean"],
    "random_state": ["random_state"],
    "tol": [Interval(Real, 0, None, closed="left")],
    "verbose": ["verbose"],
    "warm_start": ["boolean"],
    "momentum": [Interval(Real, 0, 1, closed="both")],
    "nesterovs_momentum": ["boolean"],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "beta_1": [Interval(Real, 0, 1, closed="left")],
    "beta_2": [Interval(Real, 0, 1, closed="left")],
    "epsilon": [Interval(Real, 0, None, closed="neither")],
    "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})],
    "max_fun": [Interval(Integral, 1, None, closed="left")],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "dropout": [Interval(Real, 0, 1, closed="left")],
    "n_ensemble": [Interval(Integral, 1, None, closed="left")],
    "callbacks": ["array-like", None],
    "device": [str, list, tuple],
    "precision": [str],
    "engine": [str],
}


def hold(estimator: Any, given: Mapping[str, Any]) -> None:
    """Set an estimator's parameters, which are the local names of its `__init__`, as they are."""
    vars(estimator).update({name: value for name, value in given.items() if name != "self"})


def validating_parameters(method: Method) -> Method:
    """Let parameters be validated before a fit, not again within it, nor before partial fits.

    scikit-learn's `_fit_context` does so, too; for callbacks, which these estimators do not have,
    it imports progress bars.
    """
    is_partial = method.__name__ == "partial_fit"

    @wraps(method)
    def fit(estimator: Any, *arguments: Any, **named: Any) -> Any:
        are_known = is_partial and hasattr(estimator, "coefs_")
        if not are_known and not get_config()["skip_parameter_validation"]:
            estimator._validate_params()
        with config_context(skip_parameter_validation=True):
            return method(estimator, *arguments, **named)

    return cast(Method, fit)


def hidden_sizes(value: Any) -> list[int]:
    """Return the units of each hidden layer, for `hidden_layer_sizes`, or raise ValueError."""
    sizes = list(value) if hasattr(value, "__iter__") else [value]
    if as_tuple(sizes, Integral) is None or any(size <= 0 for size in sizes):
        raise ValueError(f"hidden_layer_sizes must be > 0, got {sizes}.")
    return sizes


def batch_rows(batch_size: int | str, num_rows: int) -> int:
    """Return the rows of a batch, for `batch_size`, of which there are no more than rows."""
    if isinstance(batch_size, str):
        return min(LARGEST_AUTO_BATCH, num_rows)
    if batch_size > num_rows:
        warn(
            "Got `batch_size` less than 1 or larger than sample size. It is going to be clipped",
            ConfigWarning,
        )
    return int(min(batch_size, num_rows))
