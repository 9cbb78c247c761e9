"""The gradient checks of every operator, layer and loss of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import losses, nn
from warpfit.autograd import (
    Tensor,
    activate,
    concatenate,
    log_softmax,
    maximum,
    minimum,
    softmax,
    stack,
    where,
)
from warpfit.backends import Activation
from warpfit.backends.base import ACTIVATIONS, FLOAT_DTYPES
from warpfit.gradcheck import GradcheckResult, check_module, distinct_values, gradcheck, tensor_of
from warpfit.losses import Loss
from warpfit.nn import Layer, Module, activations
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.conv1d import Conv1dSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import Shape

Numbers = npt.NDArray[Any]
Function = Callable[..., Tensor]
Check = Callable[[], GradcheckResult]
# Takes a dtype and a device.
CheckOn = Callable[[str, str], GradcheckResult]
OpCases = list[tuple[Function, tuple[Numbers, ...]]]


def standard_checks(device: str = "cpu") -> Iterator[tuple[str, Check]]:
    """Yield (name, check) for every operator, layer and loss, in float64 and in float32, on a
    device.

    A check returns its `GradcheckResult` when called.
    """
    for name, check in (*_op_checks(), *_layer_checks(), *_loss_checks()):
        for dtype in reversed(FLOAT_DTYPES):
            yield f"{name} {dtype}", partial(check, dtype, device)


def _merged(results: Sequence[GradcheckResult]) -> GradcheckResult:
    return GradcheckResult(
        tuple(check for one in results for check in one.inputs), results[0].tolerance
    )


def _op_checks() -> Iterator[tuple[str, CheckOn]]:
    for name, cases in _op_cases().items():
        yield name, partial(_check_op, cases)


def _check_op(cases: OpCases, dtype: str, device: str) -> GradcheckResult:
    return _merged(
        [
            gradcheck(function, [x.astype(dtype) for x in inputs], device=device)
            for function, inputs in cases
        ]
    )


def _op_cases() -> dict[str, OpCases]:
    return {**_arithmetic_cases(), **_elementwise_cases(), **_reduction_cases(), **_moving_cases()}


def _over(function: Function, inputs: Sequence[tuple[Numbers, ...]]) -> OpCases:
    return [(function, operands) for operands in inputs]


def _arithmetic_cases() -> dict[str, OpCases]:
    matrix, other, row, column, scalar = distinct_values((3, 4), (3, 4), (4,), (3, 1), ())
    pairs: list[tuple[Numbers, ...]] = [
        (matrix, other),
        (matrix, row),
        (column, row),
        (scalar, matrix),
    ]
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
        "matmul": _over(
            lambda a, b: a @ b, [tuple(distinct_values(*shapes)) for shapes in products]
        ),
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
        "activate": [(partial(activate, name=name), (x,)) for name in ACTIVATIONS],
        "softmax": [(partial(softmax, axis=axis), (x,)) for axis in (-1, 0)],
        "log_softmax": [(partial(log_softmax, axis=axis), (x,)) for axis in (-1, 0)],
    }


def _reduction_cases() -> dict[str, OpCases]:
    (x,) = distinct_values((2, 3, 4))
    settings: list[dict[str, Any]] = [
        {},
        {"axis": 0},
        {"axis": (0, -1)},
        {"axis": 1, "keepdims": True},
    ]
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
    takes_indices = layer.spec.num_indices is not None
    module = _AtIndices(layer, shape) if takes_indices else layer
    shape = layer.spec.output_shape(shape) if takes_indices else shape
    x, *values = distinct_values(shape, *(parameter.shape for parameter in parameters))
    for parameter, value in zip(parameters, values, strict=True):
        layer.backend.assign(parameter.data, layer.backend.asarray(value))
    return check_module(module, tensor_of(x.astype(dtype), device), lambda y: y)


class _AtIndices(Module):
    """A layer that takes indices, at some that stay, times x: the derivative by indices is none."""

    def __init__(self, inner: Layer, shape: Shape) -> None:
        self.inner = inner
        self.indices = np.arange(prod(shape)).reshape(shape) % inner.spec.num_indices

    def forward(self, x: Tensor) -> Tensor:
        looked_up: Tensor = self.inner(Tensor(self.indices).to(x.device))
        return looked_up * x


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
        yield (
            f" + {name}",
            Layer.from_spec(LinearSpec(4, 3, activation=Activation(name)), seed=0),
            (5, 4),
        )


def _image_cases() -> Iterator[tuple[str, Layer, Shape]]:
    images = (2, 5, 4, 2)
    yield "", nn.Conv2d(2, 3, 3, seed=0), images
    yield "", nn.Conv2d(2, 3, (3, 2), stride=2, padding=1, bias=False, seed=0), images
    yield "", nn.Conv2d(2, 3, 2, padding=(0, 1), dilation=2, seed=0), images
    yield "", nn.Conv2d(2, 2, 3, padding=1, groups=2, seed=0), images
    yield "", nn.Conv2d(2, 4, 2, stride=2, groups=2, seed=0), images
    for name in ("relu", "gelu"):
        yield (
            f" + {name}",
            Layer.from_spec(Conv2dSpec(2, 3, (3, 3), activation=Activation(name)), seed=0),
            images,
        )
    sequences = (2, 7, 2)
    yield "", nn.Conv1d(2, 3, 3, padding="same", seed=0), sequences
    yield "", nn.Conv1d(2, 3, 2, stride=2, padding=1, dilation=2, bias=False, seed=0), sequences
    of_tanh = Conv1dSpec(2, 3, (1, 3), activation=Activation("tanh"))
    yield " + tanh", Layer.from_spec(of_tanh, seed=0), sequences
    for pooling in (nn.MaxPool2d, nn.AvgPool2d):
        yield "", pooling(2), images
        yield "", pooling(3, stride=(2, 1), padding=1), images
    yield "", nn.GlobalAvgPool2d(), images
    yield "", nn.GlobalMaxPool2d(), images
    for pixels in (0, 1, (3, 2)):
        yield f", {pixels} pixels", nn.RandomShift(pixels, seed=0), images
    reflecting = nn.RandomShift((3, 2), padding_mode="reflect", seed=0)
    yield ", reflecting", reflecting, images
    for size in (2, (5, 1)):
        yield f", {size} pixels", nn.RandomCrop(size, seed=0), images
    yield ", eval", nn.RandomCrop((3, 2), seed=0).eval(), images
    yield "", nn.RandomCutout((2, 3), seed=0), images
    yield "", nn.RandomFlip(seed=1), images
    yield ", eval", nn.RandomFlip(seed=1).eval(), images


def _other_cases() -> Iterator[tuple[str, Layer, Shape]]:
    rows, images = (5, 3), (2, 3, 2, 3)
    for kind, shape in ((nn.BatchNorm1d, rows), (nn.BatchNorm2d, images)):
        yield "", kind(3), shape
        yield ", eval", _evaluating(kind(3), shape), shape
    yield "", nn.BatchNorm1d(3, affine=False), rows
    yield "", nn.LayerNorm(3), rows
    yield "", nn.LayerNorm((2, 3), bias=False), images
    yield "", nn.LayerNorm(3, elementwise_affine=False), rows
    yield "", nn.GroupNorm(2, 4), (5, 4)
    yield "", nn.GroupNorm(2, 4), (2, 3, 2, 4)
    yield "", nn.GroupNorm(3, 3, affine=False), images
    yield "", nn.Dropout(0.4, seed=0), (5, 4)
    yield ", eval", nn.Dropout(0.4, seed=0).eval(), (5, 4)
    yield "", nn.Flatten(), images
    yield "", nn.Embedding(4, 3, seed=0), (3, 2)


def _evaluating(layer: Layer, shape: Shape) -> Layer:
    """Return the layer in evaluation, after a batch has moved its running statistics."""
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
