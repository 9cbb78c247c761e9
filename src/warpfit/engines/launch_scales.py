"""By what powers of two a launch scales numbers that are sums of several in 16 bits.

Two terms of float16 have 22 bits from 2**-3 on, count down to 2**-25, and end at 2**16. So each
layer has a power of two for its inputs, one for its weights, and one for its gradients, for a whole
run. They follow from the largest numbers of a few rows, which are gone through once at the
beginning. Numbers then may grow by a factor of 4,000 before they are infinite, and shrink to a
sixtieth with all bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import frexp, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends.launch_structs import SCALES_FIELDS
from warpfit.engines.base import Plan, TrainingData, TrainState
from warpfit.engines.launch_network import layers_of
from warpfit.errors import Obstacle

Floats = npt.NDArray[np.float64]
# Of the inputs of a layer, its weights, and its gradients: they are divided by these powers of two.
Exponents = tuple[int, int, int]

# Rows that are looked at; and below which power of two the largest numbers lie then.
ROWS = 16
OF_X, OF_OTHERS = 10, 4
LEAST, MOST = -126, 127
# How many times as large as the data's x may be what is only looked at.
ROOM = 2.0 ** (15 - OF_X)
# How far below the largest number of x, or of the targets, that of a typical row may be.
REACH_OF_X, REACH_OF_Y = 2.0**20, 2.0**10


def exponents_of(plan: Plan, state: TrainState, data: TrainingData) -> list[Exponents]:
    """Return the exponents of each layer, which a state keeps once they are found."""
    if len(state.exponents) != len(layers_of(plan)):
        state.exponents = find_exponents(plan, state, data)
    return state.exponents


def too_far_apart(data: TrainingData) -> Obstacle | None:
    """Return what is in the way if a power of two that suits the largest number of x, or of the
    targets, leaves too few bits to those of typical rows.
    """
    looked_at = [("x", data.x, data.largest_x, 2.0**OF_X, REACH_OF_X)]
    if data.y.dtype.kind == "f":
        looked_at.append(("y", data.y, data.largest_y, 2.0**OF_OTHERS, REACH_OF_Y))
    for name, array, largest, unscaled, reach in looked_at:
        if largest <= unscaled:
            continue
        rows = np.abs(_on_host(array[:ROWS]).astype(np.float64)).reshape(-1, array.shape[-1])
        typical = min((float(np.median(of[of > 0])) for of in rows.T if of.any()), default=largest)
        if typical * reach < largest:
            return Obstacle(
                f"expected numbers of {name} within a factor of {reach:,.0f} for float32, got "
                f"{largest:.3g} beside {typical:.3g}; standardise them"
            )
    return None


def find_exponents(plan: Plan, state: TrainState, data: TrainingData) -> list[Exponents]:
    """Return the exponents of each layer for a run that begins with a state."""
    x, y = (_on_host(array[:ROWS]) for array in (data.x, data.y))
    units, zs = [x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)], []
    layers = [
        (
            _on_host(state.parameters[f"{layer.name}.weight"]).astype(np.float64),
            _on_host(state.parameters[f"{layer.name}.bias"]),
            layer.linear.activation,
        )
        for layer in layers_of(plan)
    ]
    with np.errstate(all="ignore"):
        for weight, bias, activation in layers:
            zs.append(units[-1] @ weight + bias)
            units.append(activation.formula.forward(zs[-1], activation.slope, zs[-1].copy()))
        gradients = [_gradients_of_outputs(plan, units[-1], data, y)]
        for idx in range(len(layers) - 1, 0, -1):
            dy, activation = gradients[-1] @ layers[idx][0].T, layers[idx - 1][2]
            gradients.append(
                activation.formula.backward(
                    dy, units[idx], zs[idx - 1], activation.slope, dy.copy()
                )
            )
    of_x = data.largest_x or 1.0
    of_units = [_exponent(of_x, OF_X), *_exponents_of(units[1:-1], of_x)]
    of_weights = _exponents_of([weight for weight, *_ in layers])
    return list(zip(of_units, of_weights, _exponents_of(gradients)[::-1], strict=True))


def _exponents_of(arrays: Iterable[Floats], largest: float = 1.0) -> list[int]:
    """Return the exponent of each array; of one that is 0, that of the one before."""
    found = []
    for array in arrays:
        largest = _largest(array) or largest
        found.append(_exponent(largest))
    return found


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


def _gradients_of_outputs(plan: Plan, outputs: Floats, data: TrainingData, y: Any) -> Floats:
    """Return the gradients of outputs, as large as they may be of any row: of a row that is looked
    at, a trained network's may be small.
    """
    loss = plan.loss
    targets = y if y.dtype.kind in "iu" else y.astype(np.float64)
    own = len(y) * loss.vjp(backends.get("cpu"), outputs, targets)[2]()
    reach = 1.0
    if loss.largest_derivative(inf) > 1:
        distance = max(data.largest_y, _largest(outputs))
        reach = min(distance, loss.largest_derivative(distance))
    largest = _largest(own)
    least = len(data) % plan.batch_size or plan.batch_size  # rows of the smallest batch
    of_row = loss.terms(outputs.shape[1]).of_derivative * reach / (least * plan.batch_size) ** 0.5
    return own * (of_row / largest) if largest else np.full_like(outputs, of_row)


def _on_host(array: Any) -> Any:
    is_there = backends.is_device_array(array)
    return backends.of(array).to_numpy(array) if is_there else np.asarray(array)


def _largest(array: Any) -> float:
    return float(np.abs(array).max(initial=0))
