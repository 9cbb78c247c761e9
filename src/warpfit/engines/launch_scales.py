"""By what powers of two a launch scales numbers that are sums of several in 16 bits.

Two terms of float16 have 22 bits from 2**-3 on, and end at 2**16. So each layer has a power of two
for its inputs, one for its weights, and one for its gradients, for a whole run. They follow from
the largest numbers of a few rows, which are gone through once at the beginning. These are put where
they may grow by a factor of 2,000 before they are infinite, and shrink to a hundredth with all
bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import frexp, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends.launch_structs import SCALES_FIELDS
from warpfit.engines.base import Plan, TrainingData, TrainState
from warpfit.engines.launch_network import Layer, layers_of

__all__ = ["ROOM", "Exponents", "exponents_of", "find_exponents", "layer_scales"]

Floats = npt.NDArray[np.float64]
# Of the inputs of a layer, its weights, and its gradients: they are divided by these powers of two.
Exponents = tuple[int, int, int]

# Rows that are looked at; and below which power of two the largest numbers lie then.
ROWS = 16
OF_X, OF_OTHERS = 10, 5
LEAST, MOST = -126, 127
# How many times as large as the data's x may be what is only looked at.
ROOM = 2.0 ** (15 - OF_X)


def exponents_of(plan: Plan, state: TrainState, data: TrainingData) -> list[Exponents]:
    """Return the exponents of each layer, which a state keeps once they are found."""
    if len(state.exponents) != len(layers_of(plan)):
        state.exponents = find_exponents(plan, state, data)
    return state.exponents


def find_exponents(plan: Plan, state: TrainState, data: TrainingData) -> list[Exponents]:
    """Return the exponents of each layer for a run that begins with a state."""
    with np.errstate(all="ignore"):
        inputs, weights, gradients = _largest_numbers(plan, state, data)
    of_inputs = [_exponent(inputs[0], OF_X), *map(_exponent, inputs[1:])]
    return list(zip(of_inputs, map(_exponent, weights), map(_exponent, gradients), strict=True))


def layer_scales(exponents: Sequence[Exponents]) -> npt.NDArray[Any]:
    """Return ``LayerScales`` (layers,) of the exponents of each layer."""
    inputs, weights, gradients = np.array(exponents).T
    found = np.zeros(len(exponents), SCALES_FIELDS)
    exponents_of = {
        "weights": -weights,
        "sums": inputs + weights,
        "units": -np.append(inputs[1:], 0),
        "gradients": np.append((gradients + weights)[1:] - gradients[:-1], 0),
        "of_weights": gradients + inputs,
        "of_biases": gradients,
    }
    with np.errstate(over="ignore", under="ignore"):
        for name, values in exponents_of.items():
            found[name] = np.exp2(values.astype(np.float64))
    return found


def _exponent(largest: float, target: int = OF_OTHERS) -> int:
    """Return by which power of two numbers are divided so that the largest is below another."""
    return max(LEAST, min(MOST, frexp(largest)[1] - target)) if largest < inf else MOST


def _largest_numbers(
    plan: Plan, state: TrainState, data: TrainingData
) -> tuple[list[float], list[float], list[float]]:
    """Return the largest magnitude of each layer's inputs, weights, and gradients; where all that
    is seen are 0, that of what they are made of.
    """
    ops = backends.get(plan.device)
    layers = layers_of(plan)
    parameters = [
        tuple(
            _on_host(ops, state.parameters[f"{layer.name}.{part}"]) for part in ("weight", "bias")
        )
        for layer in layers
    ]
    x, y = (_on_host(ops, array[:ROWS]) for array in (data.x, data.y))
    found = [x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)]
    zs: list[Floats] = []
    for layer, (weight, bias) in zip(layers, parameters, strict=True):
        zs.append(found[-1] @ weight.astype(np.float64) + bias)
        activation = layer.linear.activation
        found.append(activation.formula.forward(zs[-1], activation.slope, np.empty_like(zs[-1])))
    weights = [_largest(weight, 1.0) for weight, _ in parameters]
    inputs = [data.largest_x or 1.0]
    for units in found[1:-1]:
        inputs.append(_largest(units, inputs[-1]))
    gradients = [0.0] * len(layers)
    for idx, dz in _gradients(plan, layers, [own for own, _ in parameters], found, zs, data, y):
        gradients[idx] = _largest(dz, gradients[idx + 1] if idx + 1 < len(layers) else 1.0)
    return inputs, weights, gradients


def _gradients(
    plan: Plan,
    layers: Sequence[Layer],
    weights: Sequence[Any],
    found: Sequence[Floats],
    zs: Sequence[Floats],
    data: TrainingData,
    y: Any,
) -> Iterator[tuple[int, Floats]]:
    """Yield each layer's number and its gradients before the activation, from the last on."""
    dz = _gradients_of_outputs(plan, found[-1], data, y)
    for idx in range(len(layers) - 1, -1, -1):
        if idx + 1 < len(layers):
            dy = dz @ weights[idx + 1].astype(np.float64).T
            activation = layers[idx].linear.activation
            dz = activation.formula.backward(
                dy, found[idx + 1], zs[idx], activation.slope, np.empty_like(dy)
            )
        yield idx, dz


def _gradients_of_outputs(plan: Plan, outputs: Floats, data: TrainingData, y: Any) -> Floats:
    """Return the gradients of outputs, as large as they may be of any row: of a row that is looked
    at, a trained network's may be small.
    """
    loss = plan.loss
    targets = y if y.dtype.kind in "iu" else y.astype(np.float64)
    own = len(y) * loss.vjp(backends.get("cpu"), outputs, targets)[2]()
    reach = 1.0
    if loss.largest_derivative(inf) > 1:
        distance = max(data.largest_y, _largest(outputs, 0.0))
        reach = min(distance, loss.largest_derivative(distance))
    largest = _largest(own, 0.0)
    least = len(data) % plan.batch_size or plan.batch_size
    of_row = loss.terms(outputs.shape[1]).of_derivative * reach / (least * plan.batch_size) ** 0.5
    return own * (of_row / largest) if largest else np.full_like(outputs, of_row)


def _on_host(ops: Any, array: Any) -> Any:
    return ops.to_numpy(array) if backends.is_device_array(array) else np.asarray(array)


def _largest(array: Any, otherwise: float) -> float:
    return float(np.abs(array).max(initial=0)) or otherwise
