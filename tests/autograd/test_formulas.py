"""Every formula against central differences, over shapes that broadcast and over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import BroadcastableShapes, mutually_broadcastable_shapes

from warpfit import backends
from warpfit.autograd import Tensor, concatenate, formulas, maximum, minimum, stack, where
from warpfit.errors import ShapeError
from warpfit.gradcheck import distinct_values, gradcheck

OPS = backends.get("cpu")

Shape = tuple[int, ...]

BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b + 2),
    "pow": lambda a, b: (a + 2) ** b,
    "maximum": maximum,
    "minimum": minimum,
}

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
sized_shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


def gradient(function: Callable[..., Tensor], *inputs: Any) -> list[Any]:
    """Return the gradients of the sum of a function's results."""
    tensors = [Tensor(np.asarray(value, "float64"), requires_grad=True) for value in inputs]
    function(*tensors).sum().backward()
    return [tensor.grad for tensor in tensors]


@pytest.mark.parametrize("name", BINARY)
@given(pair=mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=3))
@settings(max_examples=25, deadline=None)
def test_binary_gradients_over_broadcast_shapes(name: str, pair: BroadcastableShapes) -> None:
    a, b = distinct_values(*pair.input_shapes)
    result = gradcheck(BINARY[name], [a, b])
    assert result.passed, result


@given(triple=mutually_broadcastable_shapes(num_shapes=3, max_side=3, max_dims=3))
@settings(max_examples=25, deadline=None)
def test_where_gradients_over_broadcast_shapes(triple: BroadcastableShapes) -> None:
    condition, a, b = distinct_values(*triple.input_shapes)
    assert gradcheck(lambda a, b: where(condition > 0, a, b), [a, b]).passed


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@given(shape=sized_shapes, keepdims=st.booleans(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_reduction_gradients_over_axes(
    name: str, shape: Shape, keepdims: bool, data: st.DataObject
) -> None:
    axes = st.integers(-len(shape), len(shape) - 1)
    several = st.lists(axes, unique_by=lambda axis: axis % len(shape)).map(tuple)
    axis = data.draw(st.none() | axes | several)
    (x,) = distinct_values(shape)
    assert gradcheck(lambda x: getattr(x, name)(axis, keepdims), [x]).passed


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((0, 3), 1), ((0, 3), None), ((), None)])
def test_reductions_of_nothing_and_of_scalars(name: str, shape: Shape, axis: int | None) -> None:
    (dx,) = gradient(lambda x: getattr(x, name)(axis), np.ones(shape))
    np.testing.assert_array_equal(dx, np.ones(shape))


@given(a=shapes, b=st.lists(st.integers(0, 3), min_size=1, max_size=2), inner=st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_matmul_over_shapes(a: Shape, b: list[int], inner: int) -> None:
    a_value, b_value = distinct_values((*a, inner), (inner, *b[1:]))
    np.testing.assert_allclose((Tensor(a_value) @ b_value).data, a_value @ b_value, atol=1e-12)
    assert gradcheck(lambda a, b: a @ b, [a_value, b_value]).passed


@pytest.mark.parametrize(
    ("a", "b"), [((), (3,)), ((3,), ()), ((3, 4), (3, 4)), ((2, 3, 4), (2, 4, 3)), ((3,), (4,))]
)
def test_matmul_of_other_shapes_is_an_error(a: Shape, b: Shape) -> None:
    with pytest.raises(ShapeError, match=r"expected shapes \(\.\.\., K\) and \(K,\) or \(K, N\)"):
        Tensor(np.ones(a)) @ np.ones(b)


@given(shape=sized_shapes, data=st.data())
@settings(max_examples=25, deadline=None)
def test_transpose_concatenate_and_stack_over_axes(shape: Shape, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    signed = tuple(axis - len(shape) * data.draw(st.booleans()) for axis in order)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    a, b = distinct_values(shape, shape)
    assert gradcheck(lambda a: a.transpose(signed), [a]).passed
    assert gradcheck(lambda a, b: concatenate([a, b, a], axis), [a, b]).passed
    assert gradcheck(lambda a, b: stack([a, b, b], axis), [a, b]).passed


def test_concatenate_of_unequal_lengths() -> None:
    a, b = distinct_values((2, 1, 3), (2, 4, 3))
    assert gradcheck(lambda a, b: concatenate([a, b], axis=1), [a, b]).passed


INDICES: dict[str, Any] = {
    "integer": 1,
    "negative": -1,
    "slice": slice(None, None, 2),
    "reversed": slice(None, None, -1),
    "axes": (slice(1), 2),
    "ellipsis and new axis": (..., None, 0),
    "repeated integers": np.array([0, 2, 0, 0]),
    "list": [1, 1],
    "matrix of integers": np.array([[0, 1], [1, 1]]),
    "pairs": ([0, 0, 2], [1, 1, 3]),
    "integers and slice": (slice(None), np.array([3, 3, 0])),
    "bool": np.array([True, False, True]),
    "bool matrix": np.arange(12).reshape(3, 4) % 3 == 0,
    "nothing": np.array([], dtype=int),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_index_gradients(index: Any) -> None:
    (x,) = distinct_values((3, 4))
    np.testing.assert_array_equal(Tensor(x)[index].data, x[index])
    assert gradcheck(lambda x: x[index], [x]).passed


def test_abs_has_slope_0_at_0() -> None:
    (dx,) = gradient(lambda x: x.abs(), [-2.0, 0.0, 3.0])
    np.testing.assert_array_equal(dx, [-1, 0, 1])


@pytest.mark.parametrize("function", [maximum, minimum])
def test_equal_operands_get_half_each(function: Callable[..., Tensor]) -> None:
    da, db = gradient(function, [1.0, 2.0], [1.0, 2.0])
    np.testing.assert_array_equal(da, [0.5, 0.5])
    np.testing.assert_array_equal(db, [0.5, 0.5])


@pytest.mark.parametrize("name", ["max", "min"])
def test_equal_entries_share_the_gradient(name: str) -> None:
    (dx,) = gradient(
        lambda x: getattr(x, name)(axis=1), [[1.0, 1.0, 1.0, 1.0], [-1.0, 2.0, 2.0, -1.0]]
    )
    chosen = [0, 0.5, 0.5, 0] if name == "max" else [0.5, 0, 0, 0.5]
    np.testing.assert_array_equal(dx, [[0.25] * 4, chosen])


def test_pow_where_the_logarithm_is_infinite() -> None:
    da, db = gradient(lambda a, b: a**b, [0.0, 0.0, 0.0, -2.0], [0.0, 2.0, 1.0, 0.0])
    np.testing.assert_array_equal(da, [0, 0, 1, 0])
    np.testing.assert_array_equal(db[:3], [0, 0, 0])
    assert np.isnan(db[3])


def test_pow_of_negative_numbers_by_whole_exponents() -> None:
    (dx,) = gradient(lambda x: x**3, [-2.0, 1.5])
    np.testing.assert_allclose(dx, [12, 6.75], rtol=1e-12)


def test_a_pullback_computes_only_what_is_needed() -> None:
    a, b = np.array([2.0]), np.array([-1.0])
    _, pullback = formulas.mul(OPS, a, b)
    assert [
        None if part is None else part.tolist() for part in pullback(np.ones(1), [False, True])
    ] == [
        None,
        [2],
    ]
    assert [part.tolist() for part in pullback(np.ones(1))] == [[-1], [2]]
