"""From scikit-learn's names to this package's objects: layers, losses, optimizers, schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from warpfit import backends, losses, nn, optim
from warpfit.backends import Activation, first_device, is_device_array, resolve_device
from warpfit.backends.activations import ACTIVATIONS as FORMULAS
from warpfit.backends.transfer import to_host
from warpfit.checks import Array
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.schedules import Schedule

Weights = tuple[list[Array], list[Array]]

# By the names of estimators: scikit-learn's where it has one, else the table's own.
ACTIVATIONS = {formula.sklearn or name: name for name, formula in FORMULAS.items()}

# From what the network gives to what an estimator predicts, by `out_activation_`.
OUTPUT_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda outputs: outputs,
    "exp": np.exp,
    "logistic": expit,
    "softmax": lambda outputs: softmax(outputs, axis=1),
}

REGRESSION_LOSSES: dict[str, Loss] = {
    "squared_error": losses.MeanSquaredError(half=True),
    "poisson": losses.Poisson(),
    "absolute_error": losses.AbsoluteError(),
    "huber": losses.Huber(),
}

# Policies of scikit-learn, for its solver 'sgd' alone, and schedules by name, for every stochastic
# solver.
POLICIES = ("constant", "invscaling", "adaptive")
SCHEDULES: dict[str, type[Schedule]] = {"cosine": optim.Cosine, "one_cycle": optim.OneCycle}


def hidden_activation(name: str) -> Activation:
    """Return the activation of an estimator's hidden layers, or raise ConfigError."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"expected an activation among {', '.join(ACTIVATIONS)}, got {name!r}")
    return Activation(ACTIVATIONS[name])


@lru_cache(maxsize=1024)
def network_of_widths(widths: tuple[int, ...], activation: str) -> NetworkSpec:
    """Return the network of these layers, without dropout."""
    kinds = [hidden_activation(activation)] * (len(widths) - 2) + [Activation()]
    specs = (
        LinearSpec(*fans, activation=kind)
        for fans, kind in zip(pairwise(widths), kinds, strict=True)
    )
    return NetworkSpec(tuple((str(idx), spec) for idx, spec in enumerate(specs)), widths[:1])


def named_weights(weights: Weights, dtype: str) -> dict[str, Array]:
    """Return weights and biases by their names in a network, on the host in this dtype."""
    host = backends.get("cpu")
    return {
        f"{idx}.{name}": array if is_device_array(array) else host.asarray(array, dtype)
        for name, arrays in zip(("weight", "bias"), weights, strict=True)
        for idx, array in enumerate(arrays)
    }


def dtype_on(device: str, estimator: Any, weights: Weights) -> str:
    """Return the dtype of a network on a device or several: float32 where an engine chooses."""
    if estimator.precision != "auto" or resolve_device(first_device(device)) == "cpu":
        return str(weights[0][0].dtype)
    return "float32"


def make_model(
    estimator: Any, weights: Weights, dropout: float = 0.0, device: str | None = None
) -> nn.Sequential:
    """Return the network of an estimator's parameters, with dropout after each hidden layer.

    The device is the estimator's, or another that was chosen for a run. Weights and biases are only
    copied to another dtype: `dtype_on` says which.
    """
    network = network_of_widths(layer_widths(weights), estimator.activation)
    arrays = named_weights(weights, dtype_on(device or estimator.device, estimator, weights))
    layers: list[nn.Module] = []
    for name, spec in network.layers:
        if layers and dropout:
            layers.append(nn.Dropout(dropout, seed=0))
        own = {part: arrays[f"{name}.{part}"] for part in ("weight", "bias")}
        layers.append(nn.Linear.holding(spec, own))
    return nn.Sequential(*layers)


def layer_widths(weights: Weights) -> tuple[int, ...]:
    """Return the sizes of input, hidden layers and output."""
    coefs, _ = weights
    return (len(coefs[0]), *(coef.shape[1] for coef in coefs))


def weights_of(arrays: Mapping[str, Any], dtype: Any) -> Weights:
    """Return copies of a network's weights and biases, which are arrays by name, on the host."""
    owned = {name: np.array(to_host(array), dtype) for name, array in arrays.items()}
    return (
        [array for name, array in owned.items() if name.endswith("weight")],
        [array for name, array in owned.items() if name.endswith("bias")],
    )


def make_schedule(
    policy: str | Schedule, lr: float, *, power: float, num_rows: int, seen: int
) -> Schedule:
    """Return the schedule of a run over `num_rows` rows, before which `seen` rows were trained on.

    ``'adaptive'`` is constant here; a callback lowers the rate.
    """
    if isinstance(policy, Schedule):
        return policy
    if policy in SCHEDULES:
        return SCHEDULES[policy](lr)
    if policy == "invscaling":
        return optim.InverseScaling(lr, power, num_rows, seen)
    if policy not in POLICIES:
        raise ConfigError(
            f"expected a learning rate among {', '.join((*POLICIES, *SCHEDULES))}, got {policy!r}"
        )
    return optim.Constant(lr)


def make_optimizer(estimator: Any, model: nn.Sequential, schedule: Schedule) -> optim.Optimizer:
    """Return the optimizer of an estimator's solver, in scikit-learn's form, for a model."""
    parameters = model.parameters()
    if estimator.solver == "sgd":
        return optim.SGD(
            parameters,
            schedule,
            momentum=estimator.momentum,
            nesterov=bool(estimator.nesterovs_momentum and estimator.momentum > 0),
            l2=estimator.alpha,
            l2_by_weight=True,
            lr_in_velocity=True,
        )
    betas = (estimator.beta_1, estimator.beta_2)
    if estimator.solver == "adamw":
        return optim.AdamW(parameters, schedule, betas, estimator.epsilon, estimator.weight_decay)
    if estimator.solver != "adam":
        raise ConfigError(f"expected the solver sgd, adam or adamw, got {estimator.solver!r}")
    return optim.Adam(
        parameters,
        schedule,
        betas,
        estimator.epsilon,
        l2=estimator.alpha,
        l2_by_weight=True,
        eps_before_correction=True,
    )


def optimizer_of(
    holder: Any, model: nn.Sequential, num_rows: int, *, incremental: bool
) -> optim.Optimizer:
    """Return the optimizer of a run: one that goes on where the last one was, if incremental."""
    goes_on = incremental and hasattr(holder, "_optimizer_state")
    if not goes_on:
        holder._rate_scale = 1.0
    policy = holder.learning_rate
    if holder.solver != "sgd" and not isinstance(policy, Schedule) and policy not in SCHEDULES:
        policy = "constant"
    schedule = make_schedule(
        policy, holder.learning_rate_init, power=holder.power_t, num_rows=num_rows, seen=holder.t_
    )
    if goes_on and policy == "invscaling":
        schedule = optim.Constant(holder.learning_rate_init / (holder.t_ + 1) ** holder.power_t)
    optimizer = make_optimizer(holder, model, schedule)
    if goes_on and holder._optimizer_state["slots"].keys() == optimizer.make_slots().keys():
        optimizer.load_state_dict(holder._optimizer_state)
    return optimizer
