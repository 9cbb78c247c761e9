"""Gradient check: derivatives compared with central differences in float64.

The check multiplies a function's output by fixed, uneven weights, so that one backward pass gives
the gradient of one number with respect to every input; and moves each entry of each input up and
down to see how that number changes. The differences are computed in float64, from the same values,
whatever the dtype under test.

The relative error of an entry is ``|a - n| / max(SMALLEST_SCALE, |a| + |n|)`` with a the analytic
and n the numeric derivative; it is infinite where either is not finite. A function that has no
derivative at the inputs or within `eps` of them (a relu at 0, a tie in a maximum) cannot be checked
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, losses, random
from warpfit.autograd import Tensor, no_grad
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.backends.transfer import moved
from warpfit.errors import ConfigError, DTypeError
from warpfit.losses.base import LossLike
from warpfit.nn import Module
from warpfit.nn.layer import RandomLayer
from warpfit.nn.spec import Shape

Numbers = npt.NDArray[Any]
Evaluate = Callable[[Sequence[Numbers]], Numbers]
Function = Callable[..., Tensor]

TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
EPS = 1e-5
SMALLEST_SCALE = 1e-3
_SPAN = 1.3


@dataclass(frozen=True)
class InputCheck:
    """How one input's gradient compares."""

    name: str
    # Largest relative error over the input's entries; 0 for an input without entries.
    worst_error: float
    worst_entry: tuple[int, ...]  # index of the entry that has it
    # analytic and numeric: both derivatives there.
    analytic: float
    numeric: float


@dataclass(frozen=True)
class GradcheckResult:
    """How a function's gradients compare, input by input."""

    inputs: tuple[InputCheck, ...]
    tolerance: float

    @property
    def worst(self) -> InputCheck:
        """The input with the largest relative error."""
        return max(self.inputs, key=lambda check: check.worst_error)

    @property
    def worst_error(self) -> float:
        """Largest relative error of all."""
        return self.worst.worst_error

    @property
    def worst_entry(self) -> str:
        """Where it is, as ``name[index]``."""
        return f"{self.worst.name}[{', '.join(map(str, self.worst.worst_entry))}]"

    @property
    def passed(self) -> bool:
        """Whether the largest relative error is below the tolerance."""
        return self.worst_error < self.tolerance


def gradcheck(
    function: Function,
    inputs: Sequence[Any],
    *,
    eps: float | None = None,
    tolerance: float | None = None,
    device: str | None = None,
) -> GradcheckResult:
    """Return how the derivatives of a function of tensors compare with central differences.

    Parameters
    ----------
    function : callable
        Takes one tensor for each input, in whose dtype it computes, and returns a tensor of any
        shape.
    inputs : sequence of arrays or tensors, float32 or float64
    eps : float, optional
        How far an entry x is moved, times max(1, \\|x\\|); ``EPS`` if None.
    tolerance : float, optional
        What counts as passed; ``TOLERANCE`` of the inputs' dtype if None.
    device : str, optional
        Where the function runs, for the differences too; where each input lives if None.

    Raises
    ------
    ConfigError
        If there are no inputs, or the output does not depend on any of them.
    DTypeError
        If an input is not of a float dtype, or the function returns no tensor.
    """
    tensors = [tensor_of(value, device) for value in inputs]

    def evaluate(values: Sequence[Numbers]) -> Numbers:
        moved_there = (
            Tensor(value).to(own.device) for value, own in zip(values, tensors, strict=True)
        )
        return function(*moved_there).numpy()

    names = [f"input {idx}" for idx in range(len(tensors))]
    return _check(
        dict(zip(names, tensors, strict=True)), function(*tensors), evaluate, eps, tolerance
    )


def gradcheck_model(
    model: Module,
    x: Any,
    y: Any,
    loss: LossLike,
    *,
    eps: float | None = None,
    tolerance: float | None = None,
) -> GradcheckResult:
    """Return how the derivatives of a model's loss compare, for the input ``x`` and every
    parameter.

    The model is left as it is. Every entry takes two forward passes, so the model should be small.

    Parameters
    ----------
    model : Module
        Checked in its own dtype and in the mode it is in.
    x : array_like, (M, ...)
        A batch; uint8 is divided by 255.
    y : array_like
        Targets as `loss` takes them.
    loss : str, Loss or function
    eps, tolerance : float, optional
        As for `gradcheck`.
    """
    loss = losses.resolve(loss)
    dtype = model.dtype if model.parameters() else None
    batch = tensor_of(moved(x, model.backend, dtype))
    return check_module(model, batch, lambda outputs: loss(outputs, y), eps, tolerance)


def distinct_values(*shapes: Shape, seed: int = 0) -> list[Numbers]:
    """Return arrays of which no two entries are equal and none is 0, evenly spaced over [-1.3,
    1.3].

    So no maximum has a tie, no relu and no absolute error stands at its kink, and none is nearer to
    it than a quarter of the spacing, on every machine.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    num_values = sum(sizes)
    grid = (np.arange(num_values) + 0.25) * (2 * _SPAN / max(1, num_values)) - _SPAN
    mixed = grid[np.argsort(random.random_words(grid.shape, random.stream_key(seed, random.INIT)))]
    parts = np.split(mixed, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def tensor_of(value: Any, device: str | None = None) -> Tensor:
    """Return an array as a tensor whose gradient is asked for, on a device if one is named."""
    data = value.data if isinstance(value, Tensor) else value
    tensor = Tensor(
        data if device is None else moved(data, backends.get(device)), requires_grad=True
    )
    if str(tensor.dtype) not in FLOAT_DTYPES:
        raise DTypeError(f"gradcheck: expected inputs of float32 or float64, got {tensor.dtype}")
    return tensor


def check_module(
    module: Module,
    x: Tensor,
    head: Function,
    eps: float | None = None,
    tolerance: float | None = None,
) -> GradcheckResult:
    """Check ``head(module(x))`` with respect to x and parameters, on copies of the module."""
    own, reference = deepcopy(module), deepcopy(module).to(dtype="float64")
    own.zero_grad()
    home, ops, parameters = backends.get(x.device), reference.backend, reference.parameters()

    def evaluate(values: Sequence[Numbers]) -> Numbers:
        batch, *others = (home.asarray(value) for value in values)
        for parameter, value in zip(parameters, others, strict=True):
            ops.assign(parameter.data, value)
        return head(_run(reference, Tensor(batch))).numpy()

    return _check(
        {"x": x, **dict(own.named_parameters())}, head(_run(own, x)), evaluate, eps, tolerance
    )


def _run(module: Module, x: Tensor) -> Tensor:
    """Return the module's output, with the same random numbers at every call."""
    for _, layer in module.named_modules():
        if isinstance(layer, RandomLayer):
            layer.num_calls = 0
    output: Tensor = module(x)
    return output


def _check(
    inputs: Mapping[str, Tensor],
    output: Tensor,
    evaluate: Evaluate,
    eps: float | None,
    tolerance: float | None,
) -> GradcheckResult:
    """Compare gradients from `output` to `inputs` with differences of `evaluate` in float64."""
    if not inputs:
        raise ConfigError("gradcheck: expected at least one input, got none")
    if not isinstance(output, Tensor):
        raise DTypeError(
            f"gradcheck: expected the function to return a tensor, got {type(output).__name__}"
        )
    weights = np.cos(np.arange(output.size)).reshape(output.shape)
    output.backward(weights)
    values = [tensor.numpy().astype("float64") for tensor in inputs.values()]
    checks = []
    for idx, (name, tensor) in enumerate(inputs.items()):
        numeric = _central_differences(evaluate, values, idx, weights, EPS if eps is None else eps)
        checks.append(_compare(name, _gradient_of(tensor), numeric))
    if tolerance is None:
        tolerance = max(TOLERANCE[str(tensor.dtype)] for tensor in inputs.values())
    return GradcheckResult(tuple(checks), tolerance)


def _gradient_of(tensor: Tensor) -> Numbers:
    if tensor.grad is None:
        return np.zeros(tensor.shape)
    return Tensor(tensor.grad).numpy().astype("float64")


def _central_differences(
    evaluate: Evaluate, values: Sequence[Numbers], idx: int, weights: Numbers, eps: float
) -> Numbers:
    """Return the derivative of the outputs' weighted sum by each entry of one of the values."""
    derivative = np.empty(values[idx].shape)
    for entry in np.ndindex(derivative.shape):
        step = eps * max(1.0, abs(float(values[idx][entry])))
        with no_grad():
            ahead, behind = (evaluate(_moved(values, idx, entry, by)) for by in (step, -step))
        # Subtracted before they are summed, so that outputs which do not move leave no rounding
        # error.
        derivative[entry] = np.sum(weights * (ahead - behind)) / (2 * step)
    return derivative


def _moved(values: Sequence[Numbers], idx: int, entry: tuple[int, ...], by: float) -> list[Numbers]:
    moved = values[idx].copy()
    moved[entry] += by
    return [*values[:idx], moved, *values[idx + 1 :]]


def _compare(name: str, analytic: Numbers, numeric: Numbers) -> InputCheck:
    if not analytic.size:
        return InputCheck(name, 0.0, (), 0.0, 0.0)
    with np.errstate(invalid="ignore"):
        scale = np.maximum(SMALLEST_SCALE, np.abs(analytic) + np.abs(numeric))
        errors = np.abs(analytic - numeric) / scale
    errors = np.where(np.isfinite(errors), errors, np.inf)
    entry = tuple(int(place) for place in np.unravel_index(np.argmax(errors), errors.shape))
    return InputCheck(
        name, float(errors[entry]), entry, float(analytic[entry]), float(numeric[entry])
    )
