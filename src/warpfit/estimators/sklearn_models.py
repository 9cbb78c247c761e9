"""scikit-learn's fitted perceptrons as ours; `as_sklearn` converts back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import sklearn.neural_network as theirs
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer
from sklearn.utils.validation import check_is_fitted

from warpfit.checks import Array
from warpfit.errors import ConfigError
from warpfit.estimators.as_sklearn import SLOTS, share
from warpfit.estimators.classifier import MLPClassifier
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.regressor import MLPRegressor

KINDS: dict[type, type[BaseMLP]] = {
    theirs.MLPClassifier: MLPClassifier,
    theirs.MLPRegressor: MLPRegressor,
}


def from_sklearn(fitted: Any) -> Any:
    """Return our estimator for a fitted one of scikit-learn: it predicts the same, and can train
    on.

    All parameters and fitted attributes are taken over, those that ours has besides have their
    defaults. Partial fits go on with the state of scikit-learn's optimizer, and warm starts with
    the counts and bests of early stopping. Arrays are copied.

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
            "from_sklearn: expected scikit-learn's MLPClassifier or MLPRegressor, got "
            f"{type(fitted).__name__}"
        )
    check_is_fitted(fitted)
    ours = kind(**fitted.get_params(deep=False))
    take(ours, fitted)
    return ours


def take(ours: Any, fitted: Any, *, copies: bool = True) -> None:
    """Give ours the fitted attributes of scikit-learn's; copies, unless they come back to it."""
    share(fitted, ours, copies=copies)
    if ours.solver == "lbfgs":
        return
    ours._rate_scale = 1.0
    best = (fitted._best_coefs, fitted._best_intercepts) if ours.early_stopping else None
    ours._best_weights = copy.deepcopy(best) if copies else best
    scores = fitted.validation_scores_
    ours.validation_loss_curve_ = None if scores is None else [np.nan] * len(scores)
    _take_optimizer(ours, fitted._optimizer, copies=copies)


def _take_optimizer(ours: Any, optimizer: Any, *, copies: bool = True) -> None:
    """Continue with the state of scikit-learn's optimizer."""
    if type(optimizer) not in SLOTS:
        known = ", ".join(kind.__name__ for kind in SLOTS)
        raise ConfigError(
            f"from_sklearn: expected an optimizer among {known}, got {type(optimizer).__name__}"
        )
    slots = {
        slot: _by_layer(copy.deepcopy(kept) if copies else kept)
        for slot, kept in (
            (slot, getattr(optimizer, name)) for slot, name in SLOTS[type(optimizer)].items()
        )
    }
    ours._optimizer_state = {"step_count": getattr(optimizer, "t", 0), "slots": slots}
    if isinstance(optimizer, SGDOptimizer) and optimizer.lr_schedule == "adaptive":
        ours._rate_scale = optimizer.learning_rate / optimizer.learning_rate_init


def _by_layer(arrays: Sequence[Array]) -> list[Array]:
    """Return the state of all weights, then all biases, in our order: both by layer."""
    half = len(arrays) // 2
    return list(chain.from_iterable(zip(arrays[:half], arrays[half:], strict=True)))
