from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from support.numeric import (
    DTYPES,
    LAYOUTS,
    assert_within_tolerance,
    call,
    download,
    layouts,
    upload,
)
from warpfit.backends import Backend
from warpfit.backends.base import BINARY, COMPARISONS, REDUCTIONS, UNARY
from warpfit.errors import ConfigError, DTypeError, ShapeError

SCALAR_UNARY: dict[str, Callable[[float], float]] = {
    "neg": operator.neg,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "reciprocal": lambda x: 1 / x,
    "sin": math.sin,
    "cos": math.cos,
}

SCALAR_BINARY: dict[str, Callable[[float, float], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "maximum": max,
    "minimum": min,
    "eq": operator.eq,
    "lt": operator.lt,
    "gt": operator.gt,
    "le": operator.le,
    "ge": operator.ge,
}

SCALAR_REDUCE: dict[str, Callable[[Any], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}


def uniform(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 2, shape)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# -- unary
# -------------------------------------------------------------------------------------------------


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(backend: Backend, name: str, dtype: str) -> None:
    x = uniform(3, 4).astype(dtype)
    if name not in ("log", "sqrt"):
        x[:2] *= -1
    result = call(backend.unary, name, x)
    expected = [
        [SCALAR_UNARY[name](value) for value in row] for row in x.astype("float64").tolist()
    ]
    assert result.dtype == dtype
    assert_within_tolerance(result, expected)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("log", 0, -np.inf),
        ("log", -1, np.nan),
        ("sqrt", -1, np.nan),
        ("reciprocal", 0, np.inf),
        ("exp", 1e5, np.inf),
        ("sign", 0, 0),
    ],
)
def test_unary_at_the_border(backend: Backend, name: str, x: float, expected: float) -> None:
    np.testing.assert_equal(call(backend.unary, name, np.array([x, 1.0]))[0], expected)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_unary_of_small_shapes(backend: Backend, shape: tuple[int, ...]) -> None:
    assert call(backend.unary, "exp", np.zeros(shape, "float32")).shape == shape


def test_unary_refusals(backend: Backend) -> None:
    with pytest.raises(ConfigError, match=r"unary: expected one of neg, exp, .*, got 'tan'"):
        call(backend.unary, "tan", np.zeros(2))
    with pytest.raises(DTypeError, match=r"exp: expected float32 or float64.*, got int64"):
        call(backend.unary, "exp", np.zeros(2, "int64"))


# -- binary and where
# --------------------------------------------------------------------------------------


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS])
def test_binary_with_broadcasting(backend: Backend, name: str, dtype: str) -> None:
    a, b = (
        np.round(uniform(3, 1, 4), 1).astype(dtype),
        np.round(uniform(2, 1, seed=1), 1).astype(dtype),
    )
    result = call(backend.binary, name, a, b)
    assert result.dtype == (bool if name in COMPARISONS else dtype)
    assert result.shape == (3, 2, 4)
    for i, j, k in np.ndindex(result.shape):
        expected = SCALAR_BINARY[name](float(a[i, 0, k]), float(b[j, 0]))
        np.testing.assert_allclose(result[i, j, k], expected, rtol=1e-5)


@pytest.mark.in_turns(24)
@pytest.mark.parametrize(
    "number", [2, 2.5, True, np.float64(2.5), np.float32(2.5), np.array(2.5), np.int64(2)]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS])
def test_numbers_take_the_arrays_dtype(
    backend: Backend, name: str, dtype: str, number: Any
) -> None:
    x = uniform(3).astype(dtype)
    array = upload(backend, x)
    for args, operands in (((x, number), (array, number)), ((number, x), (number, array))):
        result = download(backend, backend.binary(name, *operands))
        assert result.dtype == (bool if name in COMPARISONS else dtype)
        expected = [SCALAR_BINARY[name](*(float(v) for v in pair)) for pair in np.broadcast(*args)]
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_shape_zero_take_the_others_dtype(backend: Backend, dtype: str) -> None:
    x, other = uniform(3).astype(dtype), "float64" if dtype == "float32" else "float32"
    for args in ((x, np.array(2.5, other)), (np.array(2.5, other), x)):
        assert call(backend.binary, "maximum", *args).dtype == dtype
        np.testing.assert_array_equal(
            call(backend.binary, "maximum", *args), np.full(3, 2.5, dtype)
        )


def test_two_scalars(backend: Backend) -> None:
    x = upload(backend, np.asarray(3, "float32"))
    for result in (
        backend.binary("add", x, 1),
        backend.binary("add", 1.0, x),
        backend.binary("add", x, x),
    ):
        assert (result.dtype, result.shape) == (np.float32, ())


def test_where_takes_numbers(backend: Backend) -> None:
    condition = np.array([[True], [False]])
    x = np.arange(3, dtype="float32")
    result = call(backend.where, condition, x, 7)
    assert result.dtype == np.float32
    assert result.tolist() == [[0, 1, 2], [7, 7, 7]]
    assert call(backend.where, condition, 7, x).tolist() == [[7, 7, 7], [0, 1, 2]]


def test_arithmetic_at_the_border_is_quiet(backend: Backend) -> None:
    x = np.array([1.0, -1.0, 0.0])
    np.testing.assert_equal(call(backend.binary, "div", x, 0.0), [np.inf, -np.inf, np.nan])
    np.testing.assert_equal(call(backend.binary, "pow", x, 0.5), [1, np.nan, 0])
    np.testing.assert_equal(call(backend.binary, "maximum", x, np.nan), [np.nan] * 3)


def test_binary_refusals(backend: Backend) -> None:
    with pytest.raises(ConfigError, match=r"binary: expected one of add, .*, ge, got 'mod'"):
        call(backend.binary, "mod", np.zeros(2), 1)
    with pytest.raises(
        ShapeError, match=r"add: expected shapes that broadcast, got \(2,\) and \(3,\)"
    ):
        call(backend.binary, "add", np.zeros(2), np.zeros(3))
    with pytest.raises(
        DTypeError, match="add: expected operands of one dtype, got float32, float64"
    ):
        call(backend.binary, "add", np.zeros(2), np.zeros(2, "float32"))
    with pytest.raises(DTypeError, match=r"eq: expected float32 or float64.*, got int64"):
        call(backend.binary, "eq", np.zeros(2, "int64"), 1)
    with pytest.raises(DTypeError, match="where: expected a condition of bool, got float64"):
        call(backend.where, np.zeros(2), np.zeros(2), 0)
    with pytest.raises(ShapeError, match="where: expected shapes that broadcast"):
        call(backend.where, np.zeros(3, bool), np.zeros(2), 0)


# -- reductions
# --------------------------------------------------------------------------------------------


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1,), ()])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce(backend: Backend, name: str, axis: Any, keepdims: bool, dtype: str) -> None:
    x = normal(2, 3, 4).astype(dtype)
    result = call(backend.reduce, name, x, axis, keepdims)
    axes = (
        range(3)
        if axis is None
        else [a % 3 for a in (axis if isinstance(axis, tuple) else (axis,))]
    )
    groups: dict[tuple[int, ...], list[float]] = {}
    for place in np.ndindex(x.shape):
        groups.setdefault(tuple(0 if i in axes else n for i, n in enumerate(place)), []).append(
            float(x[place])
        )
    expected = np.empty([1 if i in axes else n for i, n in enumerate(x.shape)])
    for place, values in groups.items():
        expected[place] = SCALAR_REDUCE[name](values)
    assert result.dtype == dtype
    assert_within_tolerance(result, expected if keepdims else expected.squeeze(tuple(axes)))


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reduce_of_no_entries_is_zero(backend: Backend, name: str) -> None:
    assert call(backend.reduce, name, np.zeros((0, 3)), axis=0).tolist() == [0, 0, 0]
    assert call(backend.reduce, name, np.zeros((3, 0)), axis=0).shape == (0,)
    assert call(backend.reduce, name, np.zeros((0, 3))).item() == 0


def test_reduce_refusals(backend: Backend) -> None:
    with pytest.raises(
        ConfigError, match="reduce: expected one of sum, mean, max, min, got 'prod'"
    ):
        call(backend.reduce, "prod", np.zeros(2))
    with pytest.raises(ShapeError, match="max: zero-size array"):
        call(backend.reduce, "max", np.zeros((0, 3)), 0)
    with pytest.raises(ShapeError, match="sum: axis 2 is out of bounds"):
        call(backend.reduce, "sum", np.zeros((2, 3)), 2)
    with pytest.raises(DTypeError, match=r"mean: expected float32 or float64.*, got uint8"):
        call(backend.reduce, "mean", np.zeros(2, "uint8"))


class _Rows:
    """Iterates as Python does over what has only __getitem__."""

    def __init__(self, backend: Backend, x: Any) -> None:
        self._backend, self._x = backend, x

    def __getitem__(self, index: int) -> Any:
        return self._backend.take(self._x, index)


# -- moving elements
# ---------------------------------------------------------------------------------------


def test_reshape_transpose_broadcast(backend: Backend) -> None:
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(call(backend.reshape, x, (4, -1)).ravel(), x.ravel())
    assert call(backend.transpose, x).shape == (4, 3, 2)
    result = call(backend.transpose, x, (1, 2, 0))
    assert all(result[j, k, i] == x[i, j, k] for i, j, k in np.ndindex(x.shape))
    assert (call(backend.broadcast_to, x[:, :1], (5, 2, 3, 4)) == x[:, :1]).all()


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        ("reshape", (5, 2)),
        ("transpose", (0, 0)),
        ("transpose", (0,)),
        ("transpose", (0, 2)),
        ("broadcast_to", (3, 3)),
    ],
)
def test_moving_refusals(backend: Backend, op: str, argument: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=f"^{op}: "):
        call(getattr(backend, op), np.zeros((2, 3)), argument)


INDICES: list[Any] = [
    True,
    (slice(None), np.array(False)),
    (np.array([2, 0]), 1),
    (np.array([0, 1]), None, np.array([1, 2])),
    (slice(None), None, np.array([[1, 1], [2, -1]])),
    (np.array([[True, False, True], [False] * 3, [True] * 3, [False] * 3])),
    (np.array([-1, 3], np.int32), slice(None, None, -1)),
    1,
    -1,
    np.int64(2),
    slice(1, 3),
    slice(None, None, -2),
    (slice(None), 1),
    (..., 0),
    None,
    (1, None, slice(2)),
    np.array([0, 2, 2, 2]),
    [3, 0, 3],
    (slice(None), np.array([1, 1])),
    (np.array([0, 0, 3]), np.array([1, 1, 2])),
    (np.array([[0], [0]]), slice(1)),
    np.array([True, False, True, False]),
    np.array([], int),
    (),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_take_and_its_adjoint(backend: Backend, index: Any) -> None:
    x = normal(4, 3)
    taken = call(backend.take, x, index)
    np.testing.assert_array_equal(taken, x[index])
    values = normal(*taken.shape, seed=1)
    result = call(backend.add_at, x.shape, "float64", index, values)
    # Numbering the elements tells which of them each value must be added to.
    expected = np.zeros(x.size)
    for place, value in zip(
        np.arange(x.size).reshape(x.shape)[index].ravel(), values.ravel(), strict=True
    ):
        expected[place] += value
    assert_within_tolerance(result, expected.reshape(x.shape))


def test_add_at_keeps_the_dtype(backend: Backend) -> None:
    assert call(backend.add_at, (3,), np.dtype("float32"), 1, np.float32(2)).dtype == np.float32


@pytest.mark.parametrize(
    "index",
    [
        3,
        -4,
        np.array([0, 3]),
        [0, -4],
        (0, 0),
        np.array([True, False]),
        np.array([0.5]),
        ([0, 1], [0, 1]),
    ],
    ids=str,
)
def test_what_is_no_index_is_refused(backend: Backend, index: Any) -> None:
    with pytest.raises(IndexError):
        call(backend.take, np.zeros(3), index)
    with pytest.raises(IndexError):
        call(backend.add_at, (3,), "float64", index, np.zeros(()))


def test_index_arrays_that_do_not_fit_each_other_are_refused(backend: Backend) -> None:
    with pytest.raises(IndexError):
        call(backend.take, np.zeros((3, 3)), ([0, 1], [0, 1, 2]))


def test_iteration_ends_at_an_index_out_of_range(backend: Backend) -> None:
    x = upload(backend, np.arange(3.0))
    assert [float(value) for value in _Rows(backend, x)] == [0, 1, 2]


def test_add_at_refuses_values_of_another_shape(backend: Backend) -> None:
    for index in (slice(2), np.array([0, 1])):
        with pytest.raises(ShapeError, match="add_at: "):
            call(backend.add_at, (3,), "float64", index, np.zeros(3))


def test_concatenate_and_stack(backend: Backend) -> None:
    a, b = normal(2, 3).astype("float32"), normal(2, 3, seed=1).astype("float32")
    assert call(backend.concatenate, [a, b]).tolist() == [*a.tolist(), *b.tolist()]
    joined = call(backend.concatenate, [a, b[:, :1]], axis=1)
    assert joined.tolist() == [[*ra, rb[0]] for ra, rb in zip(a.tolist(), b.tolist(), strict=True)]
    stacked = call(backend.stack, [a, b], axis=-1)
    assert (stacked.shape, stacked.dtype) == ((2, 3, 2), np.float32)
    assert stacked[..., 1].tolist() == b.tolist()


@pytest.mark.parametrize("op", ["concatenate", "stack"])
def test_joining_refusals(backend: Backend, op: str) -> None:
    join = partial(call, getattr(backend, op))
    with pytest.raises(ShapeError, match=f"{op}: "):
        join([])
    with pytest.raises(ShapeError, match=f"{op}: "):
        join([np.zeros((2, 3)), np.zeros((3, 2))])
    with pytest.raises(ShapeError, match=f"{op}: axis 3 is out of bounds"):
        join([np.zeros((2, 3))], axis=3)
    with pytest.raises(DTypeError, match=f"{op}: expected operands of one dtype"):
        join([np.zeros(2), np.zeros(2, "float32")])


@pytest.mark.in_turns(2)
@given(pair=shapes.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=4))
@settings(deadline=None, max_examples=150)
def test_unbroadcast_is_the_adjoint_of_broadcast_to(backend: Backend, pair: Any) -> None:
    small, large = pair.input_shapes[0], pair.result_shape
    values, x = normal(*small), normal(*large, seed=1)
    result = call(backend.unbroadcast, x, small)
    assert result.shape == small
    np.testing.assert_allclose(
        np.sum(result * values), np.sum(x * np.broadcast_to(values, large)), atol=1e-10
    )


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 1, 1, 1)])
def test_unbroadcast_refuses_what_does_not_broadcast_to_x(
    backend: Backend, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError, match="unbroadcast: expected"):
        call(backend.unbroadcast, np.zeros((3, 2)), shape)


# -- any shape and layout
# ----------------------------------------------------------------------------------


@pytest.mark.in_turns(2)
@given(
    shape=shapes.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    unary=st.sampled_from(UNARY),
    binary=st.sampled_from(BINARY),
    layout=st.sampled_from(LAYOUTS),
)
@settings(deadline=None, max_examples=100)
def test_float32_agrees_with_float64_in_any_layout(
    backend: Backend, shape: tuple[int, ...], unary: str, binary: str, layout: str
) -> None:
    x = uniform(*shape)
    single = x.astype("float32")
    before = single.copy()
    laid = dict(layouts(single))[layout]
    precise = single.astype("float64")
    assert_within_tolerance(call(backend.unary, unary, laid), call(backend.unary, unary, precise))
    assert_within_tolerance(
        call(backend.binary, binary, laid, single), call(backend.binary, binary, precise, precise)
    )
    assert_within_tolerance(
        call(backend.reduce, "mean", laid), call(backend.reduce, "mean", precise)
    )
    np.testing.assert_array_equal(single, before)


def test_reused_results_keep_until_the_next_step(make_backend: Callable[..., Backend]) -> None:
    backend = make_backend(reuse=True)
    values = uniform(3)
    x = backend.copy(upload(backend, values))
    for _ in range(2):
        backend.begin_step()
        root, double = backend.unary("sqrt", x), backend.binary("add", x, x)
        at = backend.add_at((2,), "float64", 0, backend.take(x, 0))
        assert_within_tolerance(download(backend, root), np.sqrt(values))
        np.testing.assert_array_equal(download(backend, double), 2 * values)
        assert download(backend, at).tolist() == [values[0], 0]
