"""The fitted state of an estimator: the attributes of its network, and the networks of an ensemble.

All are NumPy's arrays and Python's numbers, so that an estimator pickles without its device. They
live in the estimator itself, where scikit-learn has them, and warm starts and partial fits go on
from them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from warpfit.errors import ConfigError
from warpfit.estimators.parameters import STOCHASTIC_SOLVERS
from warpfit.estimators.recipes import Weights, weights_of
from warpfit.estimators.rows import SEEN
from warpfit.nn.init import memory_for

# Attributes of a network, beside those of the rows that it has `SEEN`, by what they are.
COUNTS = ("n_outputs_", "n_layers_", "n_iter_", "t_", "_no_improvement_count")
NUMBERS = ("loss_", "best_loss_", "best_validation_score_", "_rate_scale")
CURVES = ("loss_curve_", "validation_scores_", "validation_loss_curve_")
WEIGHTS = ("coefs_", "intercepts_")
OTHERS = ("out_activation_", "_best_weights", "_optimizer_state")
# Initial values by all that decides them, with the state in which they leave the random numbers.
Drawn = dict[tuple[Any, ...], tuple[Weights, Any]]
NETWORK = (*COUNTS, *NUMBERS, *CURVES, *WEIGHTS, *OTHERS)


def initial_values(
    rng: np.random.RandomState, sizes: Sequence[int], activation: str, dtype: Any
) -> Weights:
    """Return all layers' weights (fan_in, fan_out) and their biases (fan_out,), drawn in float64.

    As scikit-learn's, they are uniform within √(6 / (fan_in + fan_out)); for ``'logistic'`` the 6
    is a 2. Sizes are those of features, hidden layers and outputs. A layer's weights come before
    its biases.

    References
    ----------
    Glorot, Bengio: Understanding the difficulty of training deep feedforward neural networks
    (2010).
    """
    weights, biases = [], []
    for fan_in, fan_out in pairwise(sizes):
        with memory_for("hidden_layer_sizes", "weight", (fan_in, fan_out)):
            bound = sqrt((2.0 if activation == "logistic" else 6.0) / (fan_in + fan_out))
            weights.append(rng.uniform(-bound, bound, (fan_in, fan_out)).astype(dtype, copy=False))
            biases.append(rng.uniform(-bound, bound, fan_out).astype(dtype, copy=False))
    return weights, biases


def _drawn_once(
    holder: Any, sizes: Sequence[int], rng: np.random.RandomState, dtype: Any, drawn: Drawn
) -> Weights:
    """Return initial values, those of an earlier network where the same numbers decide them.

    Nobody may write to them: stochastic solvers train copies.
    """
    key = holder.random_state, *sizes, holder.activation == "logistic", str(dtype)
    if key not in drawn:
        drawn[key] = initial_values(rng, sizes, holder.activation, dtype), rng.get_state()
    weights, state = drawn[key]
    rng.set_state(state)
    coefs, intercepts = weights
    return list(coefs), list(intercepts)


def begin(
    holder: Any,
    sizes: Sequence[int],
    rng: np.random.RandomState,
    dtype: Any,
    drawn: Drawn | None = None,
) -> None:
    """Set the attributes of a network of these sizes before its first epoch.

    Values that were `drawn` from an equal seed serve again.
    """
    holder.n_iter_ = holder.t_ = 0
    holder.n_layers_ = len(sizes)
    holder.out_activation_ = holder._targets.out_activation
    is_seeded = isinstance(holder.random_state, int) and holder.solver in STOCHASTIC_SOLVERS
    holder.coefs_, holder.intercepts_ = (
        initial_values(rng, sizes, holder.activation, dtype)
        if drawn is None or not is_seeded
        else _drawn_once(holder, sizes, rng, dtype, drawn)
    )
    if holder.solver in STOCHASTIC_SOLVERS:
        is_scored = holder.early_stopping
        holder._no_improvement_count, holder._best_weights = 0, None
        holder.loss_curve_ = []
        holder.best_loss_ = None if is_scored else np.inf
        holder.best_validation_score_ = -np.inf if is_scored else None
        holder.validation_scores_ = [] if is_scored else None
        holder.validation_loss_curve_ = [] if is_scored else None


def begin_validation(holder: Any) -> None:
    """Set the attributes about validation rows, unless they exist."""
    if holder.validation_scores_ is None:
        holder.validation_scores_, holder.validation_loss_curve_ = [], []
        holder.best_validation_score_ = -np.inf


def hold(holder: Any, model: Any, optimizer: Any = None) -> None:
    """Keep a run's result on the host: the best weights with early stopping, else the last."""
    arrays = {name: array.data for name, array in model.named_arrays().items()}
    last = weights_of(arrays, holder.coefs_[0].dtype)
    if optimizer is not None:
        last = (holder.early_stopping and holder._best_weights) or last
        holder._optimizer_state = optimizer.state_dict()
    holder.coefs_, holder.intercepts_ = last


def hold_on_device(holder: Any, parameters: Mapping[str, Any]) -> None:
    """Keep a run's parameters where they are, for predictions there and nothing else."""
    holder.coefs_, holder.intercepts_ = (
        [array for name, array in parameters.items() if name.endswith(part)]
        for part in ("weight", "bias")
    )


def keep_best(holder: Any, parameters: Mapping[str, Any]) -> None:
    """Keep the weights of the epoch that early stopping found best so far."""
    holder._best_weights = weights_of(parameters, holder.coefs_[0].dtype)


# -- ensembles


def networks_of(estimator: Any) -> list[Any]:
    """Return the fitted estimators of one network each: itself, or those of its ensemble."""
    return getattr(estimator, "estimators_", [estimator])


def holders_of(estimator: Any, *, goes_on: bool) -> Iterator[tuple[Any, np.random.RandomState]]:
    """Yield what is to hold each network, with the random numbers that it draws.

    A member's seed is drawn when the one before is ready: the first is then what ``n_ensemble=1``
    would be.
    """
    rng = check_random_state(estimator.random_state)
    if estimator.n_ensemble == 1:
        yield estimator, rng
        return
    for idx in range(estimator.n_ensemble):
        member = estimator.estimators_[idx] if goes_on else copy.copy(estimator)
        member.__dict__.pop("estimators_", None)
        seed = member.random_state if idx else estimator.random_state
        if idx and not goes_on:
            seed = int(rng.randint(np.iinfo(np.int32).max))
        own = {**estimator.get_params(deep=False), "n_ensemble": 1, "random_state": seed}
        yield member.set_params(**own), check_random_state(seed) if idx else rng


def check_members(estimator: Any) -> None:
    """Raise ConfigError unless there are as many networks to go on with as there are to be."""
    if (fitted := len(networks_of(estimator))) != estimator.n_ensemble:
        raise ConfigError(
            f"expected n_ensemble={fitted}, the networks that were fitted and that warm_start and "
            f"partial_fit go on with, got n_ensemble={estimator.n_ensemble}"
        )


def show_members(estimator: Any, members: list[Any]) -> None:
    """Keep the members of an ensemble, and show the first one's attributes as the estimator's."""
    if estimator.n_ensemble == 1:
        estimator.__dict__.pop("estimators_", None)
        return
    first = vars(members[0])
    estimator.__dict__.update({name: first[name] for name in (*SEEN, *NETWORK) if name in first})
    estimator.estimators_ = members
