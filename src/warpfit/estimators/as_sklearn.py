"""Ours as scikit-learn's fitted perceptrons: weights, curves, and optimizer states.

Attributes of the two have the same names and meanings, but for the optimizer, the best weights of
early stopping, and the curve of validation losses, which scikit-learn has not.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import sklearn.neural_network as theirs
from sklearn.base import is_classifier
from sklearn.neural_network._base import ACTIVATIONS
from sklearn.neural_network._stochastic_optimizers import AdamOptimizer, SGDOptimizer
from sklearn.utils._param_validation import InvalidParameterError, validate_parameter_constraints

from warpfit.callers import warn
from warpfit.errors import ConfigError, ConfigWarning
from warpfit.estimators.binarizer import as_label_binarizer
from warpfit.estimators.fitted import NETWORK
from warpfit.estimators.rows import SEEN

# Attributes that only ours has, or has otherwise.
OURS = ("validation_loss_curve_", "_best_weights", "_optimizer_state", "_rate_scale")

# Parameters of ours that change nothing that is learned or predicted, but for rounding.
INDIFFERENT = ("device", "precision", "engine", "callbacks")


# The optimizer state of each parameter: our slots, and their attributes.
SLOTS: dict[type, dict[str, str]] = {
    SGDOptimizer: {"velocity": "velocities"},
    AdamOptimizer: {"first_moment": "ms", "second_moment": "vs"},
}


def to_sklearn(ours: Any) -> Any:
    """Return scikit-learn's estimator for one of ours; see `BaseMLP.to_sklearn`."""
    kind = theirs.MLPClassifier if is_classifier(ours) else theirs.MLPRegressor
    parameters = ours.get_params(deep=False)
    if ours.n_ensemble > 1:
        raise ConfigError(
            "to_sklearn: expected n_ensemble=1, as scikit-learn has one network in each, got "
            f"{ours.n_ensemble}; each of estimators_ can be had"
        )
    for activation in (ours.activation, ours.out_activation_):
        if activation not in ACTIVATIONS:
            raise ConfigError(
                "to_sklearn: expected an activation that scikit-learn has, "
                f"{', '.join(ACTIVATIONS)}, got {activation!r}"
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
    fill(fitted, ours)
    return fitted


def fill(fitted: Any, ours: Any, *, copies: bool = True) -> None:
    """Give scikit-learn's the fitted attributes of ours; copies, unless ours is needed no more."""
    share(ours, fitted, copies=copies)
    if hasattr(fitted, "_label_binarizer"):
        fitted._label_binarizer = as_label_binarizer(fitted._label_binarizer)
    best = getattr(ours, "_best_weights", None) or (ours.coefs_, ours.intercepts_)
    fitted._best_coefs, fitted._best_intercepts = copy.deepcopy(best) if copies else best
    if ours.solver in ("sgd", "adam"):
        fitted._optimizer = _make_optimizer(ours, fitted)


def share(source: Any, target: Any, *, copies: bool = True) -> None:
    """Give the fitted attributes that both have from one to the other, or copies of them."""
    names = (name for name in (*SEEN, *NETWORK) if name in vars(source) and name not in OURS)
    attributes = {name: vars(source)[name] for name in names}
    target.__dict__.update(copy.deepcopy(attributes) if copies else attributes)


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


def _make_optimizer(ours: Any, fitted: Any) -> Any:
    """Return scikit-learn's optimizer with the state of ours, for scikit-learn's estimator."""
    parameters, rate = fitted.coefs_ + fitted.intercepts_, fitted.learning_rate_init
    optimizer: Any
    if ours.solver == "sgd":
        momentum = fitted.momentum, fitted.nesterovs_momentum
        optimizer = SGDOptimizer(parameters, rate, fitted.learning_rate, *momentum, fitted.power_t)
        optimizer.learning_rate *= ours._rate_scale
        optimizer.iteration_ends(ours.t_)
    else:
        optimizer = AdamOptimizer(parameters, rate, fitted.beta_1, fitted.beta_2, fitted.epsilon)
    state = getattr(ours, "_optimizer_state", {"step_count": 0, "slots": {}})
    for slot, name in SLOTS[type(optimizer)].items():
        if slot in state["slots"]:
            arrays = [np.array(array, parameters[0].dtype) for array in state["slots"][slot]]
            setattr(optimizer, name, arrays[::2] + arrays[1::2])
            optimizer.t = state["step_count"]
    return optimizer
