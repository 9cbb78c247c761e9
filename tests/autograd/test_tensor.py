"""What a tensor is, and what its operators take and give."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from warpfit import nn
from warpfit.autograd import (
    Tensor,
    activate,
    concatenate,
    log_softmax,
    maximum,
    minimum,
    relu,
    softmax,
    stack,
    tensor,
    where,
)
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.nn.activations import ActivationLayer

A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]
OPERANDS: dict[str, Any] = {
    "int": 2,
    "float": 2.5,
    "bool": True,
    "NumPy scalar": np.float64(2.5),
    "float64 array": np.array([0.5, 1.5, 2.5]),
    "float16 array": np.array([0.5, 1.5, 2.5], np.float16),
    "integer array": np.array([[3], [1]]),
    "uint8 array": np.array([1, 2, 25], np.uint8),
    "list": [1, 2, 3],
}


@pytest.mark.parametrize("operand", OPERANDS.values(), ids=OPERANDS.keys())
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operators_with_numbers_and_arrays_keep_the_dtype(
    op: Callable[..., Any], operand: Any, dtype: str
) -> None:
    x = tensor(A, dtype=dtype)
    numbers = np.asarray(operand).astype(dtype)
    for result, expected in (
        (op(x, operand), op(x.data, numbers)),
        (op(operand, x), op(numbers, x.data)),
    ):
        assert isinstance(result, Tensor)
        assert result.dtype == dtype
        np.testing.assert_allclose(result.data, expected, rtol=1e-6)


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons_give_arrays_of_bool(op: Callable[..., Any]) -> None:
    x = tensor(A)
    for result, expected in (
        (op(x, 3), op(A, 3)),
        (op(3, x), op(3, A)),
        (op(x, tensor(A[0])), op(A, A[0])),
        (op(A[1], x), op(A[1], A)),
    ):
        assert isinstance(result, np.ndarray)
        assert result.dtype == bool
        np.testing.assert_array_equal(result, expected)


def test_equality_is_identity() -> None:
    a, b = tensor(A), tensor(A)
    assert a == a
    assert a != b
    assert len({a, b, a}) == 2


def test_matmul_with_arrays_on_either_side() -> None:
    x, w = tensor(A), np.arange(3.0)
    np.testing.assert_array_equal((x @ w).data, A @ w)
    np.testing.assert_array_equal((np.ones(2) @ x).data, np.ones(2) @ A)
    assert (np.ones(2) @ x).dtype == "float32"


def test_negative_and_absolute() -> None:
    np.testing.assert_array_equal((-tensor(A)).data, -A)
    np.testing.assert_array_equal(abs(tensor(-A)).data, A)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "square", "sin", "cos", "abs"])
def test_functions(name: str) -> None:
    np.testing.assert_allclose(getattr(Tensor(A), name)().data, getattr(np, name)(A), rtol=1e-12)


def test_functions_of_several_tensors_take_arrays_and_numbers() -> None:
    x = tensor(A)
    np.testing.assert_array_equal(maximum(x, 3).data, np.maximum(A, 3))
    np.testing.assert_array_equal(minimum(3.0, x).data, np.minimum(A, 3))
    np.testing.assert_array_equal(where(x > 3, x, 0).data, np.where(A > 3, A, 0))
    np.testing.assert_array_equal(
        where([True, False, True], 0, x).data, np.where([True, False, True], 0, A)
    )
    np.testing.assert_array_equal(concatenate([x, A], axis=1).data, np.concatenate([A, A], axis=1))
    np.testing.assert_array_equal(stack([x, A], axis=-1).data, np.stack([A, A], axis=-1))


def test_tensors_of_two_dtypes_do_not_mix() -> None:
    with pytest.raises(DTypeError, match="expected tensors of one dtype, got float32 and float64"):
        tensor(A) + Tensor(A)
    with pytest.raises(DTypeError, match="no tensor"):
        maximum(A, A)


@pytest.mark.parametrize("operand", ["text", None, 1j, object()])
def test_operands_that_are_no_numbers(operand: Any) -> None:
    with pytest.raises(DTypeError, match="expected numbers"):
        tensor(A) + operand


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ShapeError):
        tensor(A) + np.ones(4)


def test_what_a_tensor_knows_of_itself() -> None:
    x = tensor(A)
    assert (x.shape, x.ndim, x.size, str(x.dtype), len(x)) == ((2, 3), 2, 6, "float32", 2)
    np.testing.assert_array_equal(x.numpy(), A)
    np.testing.assert_array_equal(np.asarray(x), A)
    assert np.asarray(x) is x.data
    assert np.array(x) is not x.data
    assert np.asarray(x, "float64").dtype == "float64"
    assert Tensor(x).data is x.data


def test_tensor_divides_bytes_by_255() -> None:
    np.testing.assert_allclose(
        tensor(np.array([0, 51, 255], np.uint8)).data, [0, 0.2, 1], rtol=1e-7
    )


def test_one_element_as_a_number() -> None:
    x = tensor([[2.5]])
    assert x.item() == 2.5
    assert isinstance(x.item(), float)
    assert float(x) == 2.5
    assert bool(x)
    assert not tensor(0.0)
    for convert in (Tensor.item, float, bool):
        with pytest.raises(
            ShapeError, match=r"expected a tensor of one element, got shape \(2, 3\)"
        ):
            convert(tensor(A))


def test_iteration_goes_over_the_first_axis() -> None:
    rows = list(Tensor(A, requires_grad=True))
    assert [row.shape for row in rows] == [(3,), (3,)]
    assert all(row.requires_grad for row in rows)
    with pytest.raises(TypeError, match="without axes"):
        list(tensor(1.0))


def test_indexing_past_the_end() -> None:
    with pytest.raises(IndexError):
        tensor(A)[2]


def test_repr() -> None:
    assert repr(tensor([1.0, 2.5])) == "Tensor([1. , 2.5], dtype=float32)"
    assert (
        repr(Tensor(np.ones(()), requires_grad=True))
        == "Tensor(1., dtype=float64, requires_grad=True)"
    )


def test_shapes() -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4))
    assert x.reshape(6, 4).shape == x.reshape((6, 4)).shape == x.reshape([6, -1]).shape == (6, 4)
    assert x.flatten().shape == (24,)
    assert x.flatten(1).shape == (2, 12)
    assert x.flatten(3).shape == (2, 3, 4, 1)
    assert Tensor(np.ones((0, 3))).flatten(1).shape == (0, 3)
    assert x.T.shape == (4, 3, 2)
    assert x.transpose(0, 2, 1).shape == x.transpose((0, 2, 1)).shape == (2, 4, 3)
    assert x.unsqueeze(0).shape == (1, 2, 3, 4)
    assert x.unsqueeze(-1).shape == x.unsqueeze(3).shape == (2, 3, 4, 1)
    assert x[:1, :, :1].squeeze().shape == (3,)
    assert x[:1].squeeze(0).shape == x[:1].squeeze(-3).shape == (3, 4)
    assert x[:, :1].expand(2, 5, 4).shape == (2, 5, 4)
    np.testing.assert_array_equal(x.T.data, x.data.T)


SHAPE_ERRORS: dict[str, Callable[[Tensor], Any]] = {
    "reshape": lambda x: x.reshape(5),
    "transpose": lambda x: x.transpose(0),
    "squeeze": lambda x: x.squeeze(1),
    "squeeze far": lambda x: x.squeeze(2),
    "unsqueeze": lambda x: x.unsqueeze(4),
    "flatten": lambda x: x.flatten(3),
    "expand": lambda x: x.expand(2, 4),
    "sum": lambda x: x.sum(axis=2),
    "max of nothing": lambda x: x[:0].max(),
}


@pytest.mark.parametrize("call", SHAPE_ERRORS.values(), ids=SHAPE_ERRORS.keys())
def test_shapes_that_do_not_fit(call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ShapeError):
        call(tensor(A))


def test_activations_of_tensors_are_the_layers() -> None:
    x = Tensor(A)
    for name, layer in ActivationLayer.by_name.items():
        made = layer("tanh") if name == "gelu_tanh" else layer()
        np.testing.assert_array_equal(activate(x, name).data, made(x).data)
    np.testing.assert_array_equal(softmax(x).data, nn.Softmax()(x).data)
    np.testing.assert_array_equal(softmax(x, 0).data, softmax(x.T).data.T)
    np.testing.assert_array_equal(log_softmax(x).data, nn.LogSoftmax()(x).data)


def test_activations_refuse_what_is_no_name_no_axis_and_no_tensor() -> None:
    with pytest.raises(ConfigError, match=r"expected an activation among .*, got 'swish'"):
        activate(tensor(A), "swish")
    with pytest.raises(
        ShapeError, match=r"softmax: expected an axis of a tensor of shape .* got 2"
    ):
        softmax(tensor(A), 2)
    with pytest.raises(ShapeError, match="log_softmax: expected an axis as an integer, got 'rows'"):
        log_softmax(tensor(A), "rows")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="no tensor"):
        relu(A)
    with pytest.raises(DTypeError, match="softmax: expected a tensor, got"):
        softmax(A)
