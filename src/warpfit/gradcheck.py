"""Gradient check: derivatives compared with central differences in float64.

The check multiplies a function's output by fixed, uneven weights, so that one backward pass gives the gradient
of one number with respect to every input; and moves each entry of each input up and down to see how that number
changes. The differences are computed in float64, from the same values, whatever the dtype under test.

The relative error of an entry is ``|a - n| / max(SMALLEST_SCALE, |a| + |n|)`` with a the analytic and n the
numeric derivative; it is infinite where either is not finite. A function that has no derivative at the inputs
or within `eps` of them (a relu at 0, a tie in a maximum) cannot be checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, losses, nn, random
from warpfit.autograd import Tensor, concatenate, formulas, maximum, minimum, no_grad, stack, where
from warpfit.backends import Activation
from warpfit.backends.base import ACTIVATIONS, FLOAT_DTYPES
from warpfit.backends.transfer import moved
from warpfit.errors import ConfigError, DTypeError
from warpfit.losses import Loss
from warpfit.nn import Layer, Module, activations
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import LayerSpec, Shape

__all__ = [
    "EPS",
    "SMALLEST_SCALE",
    "TOLERANCE",
    "GradcheckResult",
    "InputCheck",
    "distinct_values",
    "gradcheck",
    "gradcheck_model",
    "standard_checks",
    "unchecked",
]

Numbers = npt.NDArray[Any]
Evaluate = Callable[[Sequence[Numbers]], Numbers]
Function = Callable[..., Tensor]

TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
EPS = 1e-5
SMALLEST_SCALE = 1e-3


@dataclass(frozen=True)
class InputCheck:
    """How one input's gradient compares.

    Attributes
    ----------
    name : str
    worst_error : float
        Largest relative error over the input's entries; 0 for an input without entries.
    worst_entry : tuple of int
        Index of the entry that has it.
    analytic, numeric : float
        Both derivatives there.
    """

    name: str
    worst_error: float
    worst_entry: tuple[int, ...]
    analytic: float
    numeric: float


@dataclass(frozen=True)
class GradcheckResult:
    """How a function's gradients compare, input by input.

    Attributes
    ----------
    inputs : tuple of InputCheck
    tolerance : float
    """

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
        Takes one tensor for each input, in whose dtype it computes, and returns a tensor of any shape.
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
    tensors = [_tensor_of(value, device) for value in inputs]

    def evaluate(values: Sequence[Numbers]) -> Numbers:
        moved_there = (Tensor(value).to(own.device) for value, own in zip(values, tensors, strict=True))
        return function(*moved_there).numpy()

    names = [f"input {idx}" for idx in range(len(tensors))]
    return _check(dict(zip(names, tensors, strict=True)), function(*tensors), evaluate, eps, tolerance)


def gradcheck_model(
    model: Module,
    x: Any,
    y: Any,
    loss: str | Loss,
    *,
    eps: float | None = None,
    tolerance: float | None = None,
) -> GradcheckResult:
    """Return how the derivatives of a model's loss compare, for the input ``x`` and every parameter.

    The model is left as it is. Every entry takes two forward passes, so the model should be small.

    Parameters
    ----------
    model : Module
        Checked in its own dtype and in the mode it is in.
    x : array_like, (M, ...)
        A batch; uint8 is divided by 255.
    y : array_like
        Targets as `loss` takes them.
    loss : str or Loss
    eps, tolerance : float, optional
        As for `gradcheck`.
    """
    loss = losses.resolve(loss)
    dtype = model.dtype if model.parameters() else None
    batch = _tensor_of(moved(x, model.backend, dtype))
    return _check_module(model, batch, lambda outputs: loss(outputs, y), eps, tolerance)


def _tensor_of(value: Any, device: str | None = None) -> Tensor:
    data = value.data if isinstance(value, Tensor) else value
    tensor = Tensor(data if device is None else moved(data, backends.get(device)), requires_grad=True)
    if str(tensor.dtype) not in FLOAT_DTYPES:
        raise DTypeError(f"gradcheck: expected inputs of float32 or float64, got {tensor.dtype}")
    return tensor


def _check_module(
    module: Module, x: Tensor, head: Function, eps: float | None = None, tolerance: float | None = None
) -> GradcheckResult:
    """Check ``head(module(x))`` with respect to x and the module's parameters, on copies of the module."""
    own, reference = deepcopy(module), deepcopy(module).to(dtype="float64")
    own.zero_grad()

    def evaluate(values: Sequence[Numbers]) -> Numbers:
        batch, *parameters = (backends.get(x.device).asarray(value) for value in values)
        for parameter, value in zip(reference.parameters(), parameters, strict=True):
            reference.backend.assign(parameter.data, value)
        return head(_run(reference, Tensor(batch))).numpy()

    return _check({"x": x, **dict(own.named_parameters())}, head(_run(own, x)), evaluate, eps, tolerance)


def _run(module: Module, x: Tensor) -> Tensor:
    """Return the module's output, with the same units dropped at every call."""
    for _, layer in module.named_modules():
        if isinstance(layer, nn.Dropout):
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
    """Compare the gradients that flow from `output` to `inputs` with differences of `evaluate` in float64."""
    if not inputs:
        raise ConfigError("gradcheck: expected at least one input, got none")
    if not isinstance(output, Tensor):
        raise DTypeError(f"gradcheck: expected the function to return a tensor, got {type(output).__name__}")
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
    """Return the derivative of the weighted sum of the outputs by every entry of one of the values."""
    derivative = np.empty(values[idx].shape)
    for entry in np.ndindex(derivative.shape):
        step = eps * max(1.0, abs(float(values[idx][entry])))
        with no_grad():
            ahead, behind = (evaluate(_moved(values, idx, entry, by)) for by in (step, -step))
        # Subtracted before they are summed, so that outputs which do not move leave no rounding error.
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
    return InputCheck(name, float(errors[entry]), entry, float(analytic[entry]), float(numeric[entry]))


# -- the standard checks: every op, layer and loss of the package ----------------------------------------------

Check = Callable[[], GradcheckResult]
# Takes a dtype and a device.
CheckOn = Callable[[str, str], GradcheckResult]
OpCases = list[tuple[Function, tuple[Numbers, ...]]]

_SPAN = 1.3


def distinct_values(*shapes: Shape, seed: int = 0) -> list[Numbers]:
    """Return arrays of which no two entries are equal and none is 0, evenly spaced over [-1.3, 1.3].

    So no maximum has a tie, no relu and no absolute error stands at its kink, and none is nearer to it than a
    quarter of the spacing, on every machine.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    num_values = sum(sizes)
    grid = (np.arange(num_values) + 0.25) * (2 * _SPAN / max(1, num_values)) - _SPAN
    mixed = grid[np.argsort(random.random_words(grid.shape, random.stream_key(seed, random.INIT)))]
    parts = np.split(mixed, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def standard_checks(device: str = "cpu") -> Iterator[tuple[str, Check]]:
    """Yield (name, check) for every operator, layer and loss, in float64 and in float32, on a device.

    A check returns its `GradcheckResult` when called.
    """
    for name, check in (*_op_checks(), *_layer_checks(), *_loss_checks()):
        for dtype in reversed(FLOAT_DTYPES):
            yield f"{name} {dtype}", partial(check, dtype, device)


def unchecked() -> list[str]:
    """Return the names of the package's operators, layers and losses that `standard_checks` leaves out."""
    layers = [layer for layer, _ in _layer_cases().values()]
    exported = {value for value in vars(nn).values() if isinstance(value, type) and issubclass(value, Layer)}
    return sorted(
        [
            *(set(formulas.__all__) - _op_cases().keys()),
            *_names_beyond(exported, {Layer, *map(type, layers)}),
            *_names_beyond(LayerSpec.by_kind.values(), {type(layer.spec) for layer in layers}),
            *_names_beyond(Loss.by_name.values(), set(map(type, _loss_cases()))),
        ]
    )


def _names_beyond(kinds: Iterable[type], known: set[type]) -> list[str]:
    """Return the names of the classes that are not known, those of users' own left out."""
    return [kind.__name__ for kind in set(kinds) - known if kind.__module__.startswith("warpfit.")]


def _merged(results: Sequence[GradcheckResult]) -> GradcheckResult:
    return GradcheckResult(tuple(check for one in results for check in one.inputs), results[0].tolerance)


def _op_checks() -> Iterator[tuple[str, CheckOn]]:
    for name, cases in _op_cases().items():
        yield name, partial(_check_op, cases)


def _check_op(cases: OpCases, dtype: str, device: str) -> GradcheckResult:
    return _merged(
        [gradcheck(function, [x.astype(dtype) for x in inputs], device=device) for function, inputs in cases]
    )


def _op_cases() -> dict[str, OpCases]:
    return {**_arithmetic_cases(), **_elementwise_cases(), **_reduction_cases(), **_moving_cases()}


def _over(function: Function, inputs: Sequence[tuple[Numbers, ...]]) -> OpCases:
    return [(function, operands) for operands in inputs]


def _arithmetic_cases() -> dict[str, OpCases]:
    matrix, other, row, column, scalar = distinct_values((3, 4), (3, 4), (4,), (3, 1), ())
    pairs: list[tuple[Numbers, ...]] = [(matrix, other), (matrix, row), (column, row), (scalar, matrix)]
    mask = matrix > other
    products = [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 2))]
    return {
        "add": _over(lambda a, b: a + b, pairs),
        "sub": _over(lambda a, b: a - b, pairs),
        "mul": _over(lambda a, b: a * b, pairs),
        "div": _over(lambda a, b: a / b, [(a, b + 2) for a, b in pairs]),
        "pow": [
            *_over(lambda a, b: a**b, [(np.abs(a) + 0.5, b) for a, b in pairs]),
            (lambda a: a**3, (matrix,)),
            (lambda b: 2.0**b, (matrix,)),
        ],
        "neg": [(lambda x: -x, (matrix,))],
        "maximum": _over(maximum, pairs),
        "minimum": _over(minimum, pairs),
        "where": _over(lambda a, b: where(mask, a, b), pairs),
        "matmul": _over(lambda a, b: a @ b, [tuple(distinct_values(*shapes)) for shapes in products]),
    }


def _elementwise_cases() -> dict[str, OpCases]:
    (x,) = distinct_values((3, 4))
    positive = np.abs(x) + 0.5
    return {
        "exp": [(lambda x: x.exp(), (x,))],
        "log": [(lambda x: x.log(), (positive,))],
        "sqrt": [(lambda x: x.sqrt(), (positive,))],
        "square": [(lambda x: x.square(), (x,))],
        "abs": [(abs, (x,))],
        "sin": [(lambda x: x.sin(), (x,))],
        "cos": [(lambda x: x.cos(), (x,))],
    }


def _reduction_cases() -> dict[str, OpCases]:
    (x,) = distinct_values((2, 3, 4))
    settings: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": (0, -1)}, {"axis": 1, "keepdims": True}]
    return {
        name: [(partial(_reduced, name, **keywords), (x,)) for keywords in settings]
        for name in ("sum", "mean", "max", "min")
    }


def _reduced(name: str, x: Tensor, **keywords: Any) -> Tensor:
    reduced: Tensor = getattr(x, name)(**keywords)
    return reduced


def _moving_cases() -> dict[str, OpCases]:
    x, other, row = distinct_values((2, 3, 4), (2, 3, 4), (4,))
    indices: list[Any] = [1, (slice(None), [0, 2, 0]), (..., slice(None, None, -2)), x > 0]
    return {
        "reshape": [(lambda x: x.reshape(4, -1), (x,))],
        "transpose": [(lambda x: x.T, (x,)), (lambda x: x.transpose(1, -1, 0), (x,))],
        "broadcast_to": [(lambda x: x.expand(2, 3, 4), (row,))],
        "index": [(lambda x, index=index: x[index], (x,)) for index in indices],
        "concatenate": [(lambda a, b: concatenate([a, b, a], axis=-1), (x, other))],
        "stack": [(lambda a, b, axis=axis: stack([a, b, a], axis), (x, other)) for axis in (0, -1)],
    }


def _layer_checks() -> Iterator[tuple[str, CheckOn]]:
    for name, (layer, shape) in _layer_cases().items():
        yield name, partial(_check_layer, layer, shape)


def _check_layer(layer: Layer, shape: Shape, dtype: str, device: str) -> GradcheckResult:
    layer.to(device, dtype=dtype)
    parameters = layer.parameters()
    x, *values = distinct_values(shape, *(parameter.shape for parameter in parameters))
    for parameter, value in zip(parameters, values, strict=True):
        layer.backend.assign(parameter.data, layer.backend.asarray(value))
    return _check_module(layer, _tensor_of(x.astype(dtype), device), lambda y: y)


def _layer_cases() -> dict[str, tuple[Layer, Shape]]:
    """Return layers, each with the shape of a batch for it, by what the table calls them."""
    cases = [*_activation_cases(), *_linear_cases(), *_image_cases(), *_other_cases()]
    return {
        f"{type(layer).__name__}({layer.extra_repr()}){remark}": (layer, shape)
        for remark, layer, shape in cases
    }


def _activation_cases() -> Iterator[tuple[str, Layer, Shape]]:
    for name in activations.__all__:
        yield "", getattr(activations, name)(), (3, 4)
    for layer in (nn.LeakyReLU(0.2), nn.GELU("tanh")):
        yield "", layer, (3, 4)


def _linear_cases() -> Iterator[tuple[str, Layer, Shape]]:
    yield "", nn.Linear(4, 3, seed=0), (5, 4)
    yield "", nn.Linear(4, 3, bias=False, seed=0), (5, 4)
    for name in ACTIVATIONS:
        yield f" + {name}", Layer.from_spec(LinearSpec(4, 3, activation=Activation(name)), seed=0), (5, 4)


def _image_cases() -> Iterator[tuple[str, Layer, Shape]]:
    images = (2, 5, 4, 2)
    yield "", nn.Conv2d(2, 3, 3, seed=0), images
    yield "", nn.Conv2d(2, 3, (3, 2), stride=2, padding=1, bias=False, seed=0), images
    yield "", nn.Conv2d(2, 3, 2, padding=(0, 1), dilation=2, seed=0), images
    for name in ("relu", "gelu"):
        yield (
            f" + {name}",
            Layer.from_spec(Conv2dSpec(2, 3, (3, 3), activation=Activation(name)), seed=0),
            images,
        )
    for pooling in (nn.MaxPool2d, nn.AvgPool2d):
        yield "", pooling(2), images
        yield "", pooling(3, stride=(2, 1), padding=1), images


def _other_cases() -> Iterator[tuple[str, Layer, Shape]]:
    rows, images = (5, 3), (2, 3, 2, 3)
    for kind, shape in ((nn.BatchNorm1d, rows), (nn.BatchNorm2d, images)):
        yield "", kind(3), shape
        yield ", eval", _evaluating(kind(3), shape), shape
    yield "", nn.BatchNorm1d(3, affine=False), rows
    yield "", nn.LayerNorm(3), rows
    yield "", nn.LayerNorm((2, 3), bias=False), images
    yield "", nn.LayerNorm(3, elementwise_affine=False), rows
    yield "", nn.Dropout(0.4, seed=0), (5, 4)
    yield ", eval", nn.Dropout(0.4, seed=0).eval(), (5, 4)
    yield "", nn.Flatten(), images


def _evaluating(layer: Layer, shape: Shape) -> Layer:
    """Return the layer in evaluation, after a batch in training that has moved its running statistics."""
    layer(distinct_values(shape, seed=1)[0])
    return layer.eval()


def _loss_checks() -> Iterator[tuple[str, CheckOn]]:
    for loss in _loss_cases():
        yield repr(loss), partial(_check_loss, loss)


def _loss_cases() -> list[Loss]:
    return [
        losses.SoftmaxCrossEntropy(),
        losses.SoftmaxCrossEntropy(label_smoothing=0.1, class_weight=(0.5, 1.0, 2.0)),
        losses.MeanSquaredError(),
        losses.MeanSquaredError(half=True),
        losses.AbsoluteError(),
        losses.Huber(),
        losses.Huber(delta=0.35),
        losses.BinaryCrossEntropy(),
        losses.BinaryCrossEntropy(sum_outputs=True),
        losses.Poisson(),
    ]


def _check_loss(loss: Loss, dtype: str, device: str) -> GradcheckResult:
    """Check a loss of outputs (4, 3), without and with sample weights."""
    # scikit-learn's half of the mean square has the gradient it claims for one output only.
    num_outputs = 1 if loss == losses.MeanSquaredError(half=True) else 3
    outputs, targets = distinct_values((4, num_outputs), (4, num_outputs))
    if isinstance(loss, losses.SoftmaxCrossEntropy):
        targets = np.arange(4) % 3
    elif isinstance(loss, losses.BinaryCrossEntropy):
        targets = np.clip(targets + 0.5, 0, 1)
    elif isinstance(loss, losses.Poisson):
        targets = np.abs(targets)
    weightings = (None, [0.5, 1.0, 0.0, 2.0])
    return _merged(
        [
            gradcheck(
                lambda outputs, s=s: loss(outputs, targets, sample_weight=s),
                [outputs.astype(dtype)],
                device=device,
            )
            for s in weightings
        ]
    )
