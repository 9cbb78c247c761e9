from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import DTYPES, assert_derivative, assert_within_tolerance, call
from warpfit.backends import Activation, Backend
from warpfit.backends.base import ACTIVATIONS
from warpfit.errors import ConfigError, ShapeError

FLAGS = [False, True]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def naive_product(a: Any, b: Any) -> Any:
    return np.array(
        [[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a]
    )


# -- matmul
# ------------------------------------------------------------------------------------------------


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_b", FLAGS)
@pytest.mark.parametrize("transpose_a", FLAGS)
def test_matmul(backend: Backend, transpose_a: bool, transpose_b: bool, dtype: str) -> None:
    a, b = normal(3, 5).astype(dtype), normal(5, 4, seed=1).astype(dtype)
    result = call(
        backend.matmul,
        a.T.copy() if transpose_a else a,
        b.T.copy() if transpose_b else b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    assert result.dtype == dtype
    assert_within_tolerance(result, naive_product(a.astype("float64"), b.astype("float64")))


@given(
    rows=st.integers(0, 50),
    inner=st.integers(0, 50),
    columns=st.integers(0, 50),
    dtype=st.sampled_from(DTYPES),
    transpose_a=st.booleans(),
    transpose_b=st.booleans(),
)
@settings(deadline=None)
def test_matmul_of_any_shape(
    backend: Backend,
    rows: int,
    inner: int,
    columns: int,
    dtype: str,
    transpose_a: bool,
    transpose_b: bool,
) -> None:
    a, b = normal(rows, inner), normal(inner, columns, seed=1)
    result = call(
        backend.matmul,
        (a.T if transpose_a else a).astype(dtype),
        (b.T if transpose_b else b).astype(dtype),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    assert result.dtype == dtype
    assert_within_tolerance(result, np.einsum("mk,kn->mn", a, b))


@pytest.mark.parametrize(
    ("a", "b", "flags", "message"),
    [
        ((3, 5), (4, 3), {}, r"got 5 and 4 \(shapes \(3, 5\) and \(4, 3\)\)"),
        (
            (5, 3),
            (4, 3),
            {"transpose_a": True},
            r"got 5 and 4 \(shapes \(5, 3\) transposed and \(4, 3\)\)",
        ),
        (
            (3, 5),
            (4, 3),
            {"transpose_b": True},
            r"got 5 and 3 \(shapes \(3, 5\) and \(4, 3\) transposed\)",
        ),
        ((3,), (3, 4), {}, "two matrices, got shapes"),
        ((3, 4), (4,), {}, "two matrices, got shapes"),
        ((2, 3, 4), (4, 3), {}, "two matrices, got shapes"),
    ],
)
def test_matmul_refuses_shapes(backend: Backend, a: Any, b: Any, flags: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"matmul: expected .*{message}"):
        call(backend.matmul, np.zeros(a), np.zeros(b), **flags)


# -- linear
# ------------------------------------------------------------------------------------------------


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", FLAGS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_linear_forward(backend: Backend, name: str, bias: bool, dtype: str) -> None:
    activation = Activation(name, 0.2)
    x, w = normal(6, 5).astype(dtype), normal(5, 4, seed=1).astype(dtype)
    b = normal(4, seed=2).astype(dtype) if bias else None
    y, z = call(backend.linear_forward, x, w, b, activation)
    expected = naive_product(x.astype("float64"), w.astype("float64")) + (b if bias else 0)
    assert y.dtype == dtype
    assert_within_tolerance(y, call(backend.activation_forward, activation, expected))
    assert (z is not None) == (name in ("gelu", "gelu_tanh", "silu", "mish"))
    if z is not None:
        assert z.dtype == dtype
        assert_within_tolerance(z, expected)


def test_linear_forward_is_the_identity_by_default(backend: Backend) -> None:
    x, w, b = normal(3, 2), normal(2, 4), normal(4)
    y, z = call(backend.linear_forward, x, w, b)
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-14)
    assert z is None


def test_linear_of_no_inputs_is_the_bias(backend: Backend) -> None:
    y, _ = call(backend.linear_forward, np.zeros((3, 0)), np.zeros((0, 2)), np.array([1.0, -2.0]))
    np.testing.assert_array_equal(y, [[1.0, -2.0]] * 3)


@pytest.mark.parametrize("needs_db", FLAGS)
@pytest.mark.parametrize("needs_dx", FLAGS)
def test_linear_backward(backend: Backend, needs_dx: bool, needs_db: bool) -> None:
    x, w, b, dz = normal(5, 3), normal(3, 4, seed=1), normal(4, seed=2), normal(5, 4, seed=3)
    dx, dw, db = call(backend.linear_backward, dz, x, w, needs_dx=needs_dx, needs_db=needs_db)

    def inner(x: Any = x, w: Any = w, b: Any = b) -> Any:
        return np.sum(dz * call(backend.linear_forward, x, w, b)[0])

    assert_derivative(dw, lambda value: inner(w=value), w)
    assert (dx is not None, db is not None) == (needs_dx, needs_db)
    if needs_dx:
        assert_derivative(dx, lambda value: inner(x=value), x)
    if needs_db:
        assert_derivative(db, lambda value: inner(b=value), b)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_linear_backward_takes_over_the_derivative_of_the_activation_below(
    backend: Backend, name: str
) -> None:
    activation = Activation(name, slope=0.2)
    w, z, dz = normal(3, 4, seed=1), normal(5, 3, seed=2), normal(5, 4, seed=3)
    x = call(backend.activation_forward, activation, z)
    if activation.needs_input:
        with pytest.raises(
            ConfigError, match=f"linear_backward: expected an activation .* got '{name}'"
        ):
            call(backend.linear_backward, dz, x, w, x_activation=activation)
        return
    dx, dw, db = call(backend.linear_backward, dz, x, w, x_activation=activation)
    plain_dx, plain_dw, plain_db = call(backend.linear_backward, dz, x, w)
    alone = call(backend.linear_backward_input, dz, x, w, x_activation=activation)
    np.testing.assert_array_equal(alone, dx)
    np.testing.assert_array_equal(call(backend.linear_backward_input, dz, x, w), plain_dx)
    assert_within_tolerance(dx, call(backend.activation_backward, activation, plain_dx, x, None))
    np.testing.assert_array_equal(dw, plain_dw)
    np.testing.assert_array_equal(db, plain_db)


def test_linear_backward_of_no_rows_is_zero(backend: Backend) -> None:
    dx, dw, db = call(backend.linear_backward, np.zeros((0, 4)), np.zeros((0, 3)), normal(3, 4))
    assert dx.shape == (0, 3)
    np.testing.assert_array_equal(dw, np.zeros((3, 4)))
    np.testing.assert_array_equal(db, np.zeros(4))


@pytest.mark.parametrize(
    ("x", "w", "b", "message"),
    [
        ((3, 5), (4, 2), (2,), r"x of shape \(M, 4\) for w \(4, 2\), got x \(3, 5\)"),
        ((4,), (4, 2), (2,), r"x of shape \(M, 4\) .* got x \(4,\)"),
        ((2, 3, 4), (4, 2), None, r"x of shape \(M, 4\)"),
        ((3, 4), (4,), None, r"w of shape \(K, N\), got \(4,\)"),
        ((3, 4), (), None, r"w of shape \(K, N\), got \(\)"),
        ((3, 4), (4, 2), (4,), r"b of shape \(2,\) for w \(4, 2\), got \(4,\)"),
        ((3, 4), (4, 2), (1, 2), r"b of shape \(2,\)"),
    ],
)
def test_linear_forward_refuses_shapes(
    backend: Backend, x: Any, w: Any, b: Any, message: str
) -> None:
    with pytest.raises(ShapeError, match=f"linear: expected {message}"):
        call(backend.linear_forward, np.zeros(x), np.zeros(w), None if b is None else np.zeros(b))


@pytest.mark.parametrize("dz", [(5, 3), (4, 4), (5,)])
def test_linear_backward_refuses_shapes(backend: Backend, dz: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        call(backend.linear_backward, np.zeros(dz), np.zeros((5, 3)), np.zeros((3, 4)))


# -- sum_columns
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 3), (1, 3), (0, 3), (7, 0), (1000, 5)])
def test_sum_columns(backend: Backend, shape: tuple[int, int], dtype: str) -> None:
    x = normal(*shape).astype(dtype)
    assert_within_tolerance(
        call(backend.sum_columns, x), [sum(column) for column in x.T.astype("float64")]
    )


@pytest.mark.parametrize("w", [(2, 3), (4, 2), (4,)])
@pytest.mark.parametrize("needs_dx", [True, False])
def test_linear_backward_refuses_weights(
    backend: Backend, w: tuple[int, ...], needs_dx: bool
) -> None:
    dz, x = np.zeros((5, 3)), np.zeros((5, 4))
    with pytest.raises(ShapeError, match=r"linear_backward: expected w of shape \(4, 3\)"):
        call(backend.linear_backward, dz, x, np.zeros(w), needs_dx=needs_dx)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_sum_columns_refuses_shapes(backend: Backend, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"sum_columns: expected a matrix \(M, N\)"):
        call(backend.sum_columns, np.zeros(shape))
