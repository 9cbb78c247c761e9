"""scikit-learn's fitted perceptrons as ours, and ours as scikit-learn's: weights, curves, and optimizer states.

Attributes of the two have the same names and meanings, but for the optimizer, the best weights of early stopping, and
the curve of validation losses, which scikit-learn has not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.neural_network as theirs
from sklearn.neural_network._base import ACTIVATIONS
from sklearn.neural_network._stochastic_optimizers import AdamOptimizer, SGDOptimizer
from sklearn.utils._param_validation import InvalidParameterError, validate_parameter_constraints
from sklearn.utils.validation import check_is_fitted

from warpfit.callers import warn
from warpfit.errors import ConfigError, ConfigWarning
from warpfit.estimators.classifier import MLPClassifier
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.regressor import MLPRegressor

__all__ = ["from_sklearn", "to_sklearn"]

Array = npt.NDArray[Any]

KINDS: dict[type, type[BaseMLP]] = {
    theirs.MLPClassifier: MLPClassifier,
    theirs.MLPRegressor: MLPRegressor,
}

# Of the same name and meaning in both.
SHARED = (
    "n_features_in_",
    "feature_names_in_",
    "classes_",
    "_label_binarizer",
    "n_outputs_",
    "n_layers_",
    "out_activation_",
    "coefs_",
    "intercepts_",
    "n_iter_",
    "t_",
    "loss_",
    "loss_curve_",
    "best_loss_",
    "best_validation_score_",
    "validation_scores_",
    "_no_improvement_count",
)

# Parameters of ours that change nothing that is learned or predicted, but for rounding.
INDIFFERENT = ("device", "precision", "engine", "callbacks")


def from_sklearn(fitted: Any) -> Any:
    """Return our estimator for one that scikit-learn has fitted: it predicts the same, and goes on from there.

    All parameters and fitted attributes are taken over, those that ours has besides have their defaults. Partial fits
    go on with the state of scikit-learn's optimizer, and warm starts with the counts and bests of early stopping.
    Arrays are copied.

    Parameters
    ----------
    fitted : sklearn.neural_network.MLPClassifier or sklearn.neural_network.MLPRegressor

    Returns
    -------
    MLPClassifier or MLPRegressor

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If it is not fitted.
    ConfigError
        If it is of another class.

    Examples
    --------
    >>> import sklearn.neural_network
    >>> import warpfit as wf
    >>> X, y = [[0.0], [1.0]], [0.0, 1.0]
    >>> theirs = sklearn.neural_network.MLPRegressor(solver="lbfgs", random_state=0).fit(X, y)
    >>> ours = wf.from_sklearn(theirs).set_params(device="cpu")
    >>> float(abs(ours.predict(X) - theirs.predict(X)).max()) < 1e-12
    True
    """
    kind = KINDS.get(type(fitted))
    if kind is None:
        raise ConfigError(
            f"from_sklearn: expected scikit-learn's MLPClassifier or MLPRegressor, got {type(fitted).__name__}"
        )
    check_is_fitted(fitted)
    ours = kind(**fitted.get_params(deep=False))
    _copy_shared(fitted, ours)
    if ours.solver == "lbfgs":
        return ours
    ours._rate_scale = 1.0
    best = (fitted._best_coefs, fitted._best_intercepts) if ours.early_stopping else None
    ours._best_weights = copy.deepcopy(best)
    scores = fitted.validation_scores_
    ours.validation_loss_curve_ = None if scores is None else [np.nan] * len(scores)
    _take_optimizer(ours, fitted._optimizer)
    return ours


def to_sklearn(ours: Any) -> Any:
    """Return scikit-learn's estimator for one of ours; see `BaseMLP.to_sklearn`."""
    kind = next(theirs for theirs, own in KINDS.items() if isinstance(ours, own))
    parameters = ours.get_params(deep=False)
    if ours.n_ensemble > 1:
        raise ConfigError(
            f"to_sklearn: expected n_ensemble=1, as scikit-learn has one network in each, got {ours.n_ensemble}; "
            "each of estimators_ can be had"
        )
    for activation in (ours.activation, ours.out_activation_):
        if activation not in ACTIVATIONS:
            raise ConfigError(
                f"to_sklearn: expected an activation that scikit-learn has, {', '.join(ACTIVATIONS)}, "
                f"got {activation!r}"
            )
    lacking = [
        name
        for name, value in parameters.items()
        if name not in INDIFFERENT and not _takes(kind, name, value) and not _is_default(ours, name)
    ]
    if lacking:
        warn(
            "to_sklearn: scikit-learn's estimator predicts the same, "
            "but would train differently, as it has no "
            + ", ".join(f"{name}={parameters[name]!r}" for name in lacking),
            ConfigWarning,
        )
    fitted = kind(**{name: parameters[name] for name in kind().get_params() if name not in lacking})
    _copy_shared(ours, fitted)
    best = getattr(ours, "_best_weights", None) or (ours.coefs_, ours.intercepts_)
    fitted._best_coefs, fitted._best_intercepts = copy.deepcopy(best)
    if ours.solver in ("sgd", "adam"):
        fitted._optimizer = _make_optimizer(ours, fitted)
    return fitted


def _copy_shared(source: Any, target: Any) -> None:
    attributes = {name: vars(source)[name] for name in SHARED if name in vars(source)}
    target.__dict__.update(copy.deepcopy(attributes))


def _takes(kind: Any, name: str, value: Any) -> bool:
    """Return whether scikit-learn's estimator has a parameter, and takes this value of it."""
    if name not in kind._parameter_constraints:
        return False
    try:
        validate_parameter_constraints(kind._parameter_constraints, {name: value}, kind.__name__)
    except InvalidParameterError:
        return False
    return True


def _is_default(ours: Any, name: str) -> bool:
    return bool(vars(ours)[name] == vars(type(ours)())[name])


# -- optimizers ----------------------------------------------------------------------------------------------

# The optimizer state of each parameter: our slots, and their attributes.
REMEMBERED: dict[type, dict[str, str]] = {
    SGDOptimizer: {"velocity": "velocities"},
    AdamOptimizer: {"first_moment": "ms", "second_moment": "vs"},
}


def _take_optimizer(ours: Any, optimizer: Any) -> None:
    """Let ours go on with the state of scikit-learn's optimizer."""
    if type(optimizer) not in REMEMBERED:
        known = ", ".join(kind.__name__ for kind in REMEMBERED)
        raise ConfigError(
            f"from_sklearn: expected an optimizer among {known}, got {type(optimizer).__name__}"
        )
    slots = {
        slot: _by_layer(copy.deepcopy(getattr(optimizer, name)))
        for slot, name in REMEMBERED[type(optimizer)].items()
    }
    ours._optimizer_state = {"step_count": getattr(optimizer, "t", 0), "slots": slots}
    if isinstance(optimizer, SGDOptimizer) and optimizer.lr_schedule == "adaptive":
        ours._rate_scale = optimizer.learning_rate / optimizer.learning_rate_init


def _make_optimizer(ours: Any, fitted: Any) -> Any:
    """Return scikit-learn's optimizer with the state of ours, for scikit-learn's estimator."""
    parameters = fitted.coefs_ + fitted.intercepts_
    optimizer: Any
    if ours.solver == "sgd":
        optimizer = SGDOptimizer(
            parameters,
            fitted.learning_rate_init,
            fitted.learning_rate,
            fitted.momentum,
            fitted.nesterovs_momentum,
            fitted.power_t,
        )
        optimizer.learning_rate *= ours._rate_scale
        optimizer.iteration_ends(ours.t_)
    else:
        optimizer = AdamOptimizer(
            parameters, fitted.learning_rate_init, fitted.beta_1, fitted.beta_2, fitted.epsilon
        )
    state = getattr(ours, "_optimizer_state", {"step_count": 0, "slots": {}})
    for slot, name in REMEMBERED[type(optimizer)].items():
        if slot in state["slots"]:
            arrays = [np.array(array, parameters[0].dtype) for array in state["slots"][slot]]
            setattr(optimizer, name, arrays[::2] + arrays[1::2])
            optimizer.t = state["step_count"]
    return optimizer


def _by_layer(arrays: Sequence[Array]) -> list[Array]:
    """Return the state of all weights, then of all biases, in our order: weights and biases by layer."""
    half = len(arrays) // 2
    return list(chain.from_iterable(zip(arrays[:half], arrays[half:], strict=True)))
