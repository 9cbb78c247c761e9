"""Operations of ensembles whose members share weights, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import (
    DTYPES,
    assert_derivative,
    assert_within_tolerance,
    call,
    download,
    layouts,
    upload,
)
from warpfit.backends import Backend, NumpyBackend
from warpfit.data.order import epoch_order, round_keys_of
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.random import DROPOUT, stream_key

PLACE = {"p": 0.3, "seed": 7, "step": 3, "layer_idx": 1}
SHAPES = [(2, 3, 5), (3, 4, 16), (1, 9, 33), (2, 0, 4), (0, 3, 4), (2, 3, 0)]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def operands(shape: tuple[int, int, int], dtype: str = "float64") -> list[Any]:
    """Return z, scale, bias and next_scale."""
    members, _, units = shape
    values = [normal(*shape), *(normal(members, units, seed=seed) for seed in (1, 2, 3))]
    return [value.astype(dtype) for value in values]


# -- products
# ----------------------------------------------------------------------------------------------


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (3, 33, 17, 34), (2, 3, 0, 4), (0, 2, 3, 4)])
def test_products_of_each(
    backend: Backend,
    sizes: tuple[int, int, int, int],
    transpose_a: bool,
    transpose_b: bool,
    dtype: str,
) -> None:
    count, m, k, n = sizes
    a, b = normal(count, m, k), normal(count, k, n, seed=1)
    found = call(
        backend.batched_matmul,
        (a.transpose(0, 2, 1) if transpose_a else a).astype(dtype),
        (b.transpose(0, 2, 1) if transpose_b else b).astype(dtype),
        transpose_a=bool(transpose_a),
        transpose_b=bool(transpose_b),
    )
    assert found.dtype == dtype
    assert_within_tolerance(found, np.einsum("emk,ekn->emn", a, b))


def test_products_refuse_operands(backend: Backend) -> None:
    a, b = np.ones((2, 3, 4)), np.ones((2, 5, 3))
    with pytest.raises(ShapeError, match="batched_matmul: expected equal inner sizes, got 4 and 5"):
        backend.batched_matmul(a, b)
    with pytest.raises(ShapeError, match="expected as many matrices of both, got shapes"):
        backend.batched_matmul(a, b[:1])
    with pytest.raises(DTypeError, match="batched_matmul: expected operands of one dtype"):
        backend.batched_matmul(a, b.astype("float32"), transpose_b=True)


# -- orders
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "rows", "batch_size"), [(3, 23, 5), (2, 300, 300), (1, 4, 9)])
def test_orders_batch_by_batch(backend: Backend, members: int, rows: int, batch_size: int) -> None:
    keys = round_keys_of(5, range(7, 7 + members))
    orders = backend.zeros((members * rows,), "int64")
    backend.member_orders(orders, backend.asarray(keys), batch_size)
    own = np.array([epoch_order(rows, 5, 7 + member) for member in range(members)])
    starts = range(0, rows, batch_size)
    expected = [own[:, start : start + batch_size].ravel() for start in starts]
    np.testing.assert_array_equal(backend.to_numpy(orders), np.concatenate(expected))


def test_orders_refuse_operands(backend: Backend) -> None:
    orders, keys = backend.zeros((7,), "int64"), backend.zeros((2, 8), "uint32")
    with pytest.raises(ShapeError, match=r"expected as many rows of 2 members, got \(7,\)"):
        backend.member_orders(orders, keys, 3)
    with pytest.raises(ShapeError, match=r"expected keys of shape \(2, 8\), got"):
        backend.member_orders(orders, backend.zeros((2, 7), "uint32"), 3)
    with pytest.raises(DTypeError, match="expected orders of int64, got uint32"):
        backend.member_orders(backend.zeros((8,), "uint32"), keys, 3)


# -- relu, dropout and scales
# -----------------------------------------------------------------------------


def upper_half(a: int, b: int) -> int:
    return a * b >> 64


def philox64(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Return the four words of 64 bits, as the paper has them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        c0, c1, c2, c3 = (
            upper_half(0xCA5A826395121157, c2) ^ c1 ^ k0,
            0xCA5A826395121157 * c2 % 2**64,
            upper_half(0xD2E7470EE14C6C93, c0) ^ c3 ^ k1,
            0xD2E7470EE14C6C93 * c0 % 2**64,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return [c0, c1, c2, c3]


def naive_mask(
    shape: tuple[int, ...], p: float, seed: int, step: int, layer_idx: int, first_member: int = 0
) -> Any:
    """Apply the contract's rule unit by unit."""
    mask, key = np.zeros(shape), stream_key(seed, DROPOUT)
    for member, row, unit in np.ndindex(shape):
        idx = row * shape[2] + unit
        words = philox64([1 + idx // 16, first_member + member, layer_idx, step], key)
        word = words[idx % 16 // 4] >> 16 * (idx % 4) & 0xFFFF
        mask[member, row, unit] = 1 / (1 - p) if word >= round(p * 2**16) else 0
    return mask


def expected_of(z: Any, scale: Any, bias: Any, next_scale: Any, mask: Any) -> Any:
    value = z * scale[:, None] + bias[:, None]
    return np.maximum(value, 0) * mask * next_scale[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_follows_the_rule(
    backend: Backend, shape: tuple[int, int, int], p: float, dtype: str
) -> None:
    place = PLACE | {"p": p}
    z, *vectors = operands(shape, dtype)
    found, kept = call(backend.member_relu_forward, z, *vectors, **place, first_member=4)
    assert (found.dtype, kept.dtype) == (dtype, bool)
    mask = naive_mask(shape, **place, first_member=4)
    exact = [value.astype("float64") for value in (z, *vectors)]
    assert_within_tolerance(found, expected_of(*exact, mask))
    np.testing.assert_array_equal(
        kept, (mask > 0) & (exact[0] * exact[1][:, None] + exact[2][:, None] > 0)
    )


def test_golden_mask(backend: Backend) -> None:
    ones, zeros = np.ones((1, 8)), np.zeros((1, 8))
    _, kept = call(
        backend.member_relu_forward,
        np.ones((1, 2, 8)),
        ones,
        zeros,
        ones,
        p=0.5,
        seed=0,
        step=0,
        layer_idx=0,
    )
    assert kept.astype(int).tolist() == GOLDEN


GOLDEN = [[[1, 1, 0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1, 0, 0]]]


@pytest.mark.parametrize("changed", [{"seed": 8}, {"step": 4}, {"layer_idx": 0}])
def test_every_word_of_counter_and_key_matters(backend: Backend, changed: dict[str, int]) -> None:
    given = [np.ones((1, 32, 16)), *(np.ones((1, 16)) for _ in range(3))]
    _, kept = call(backend.member_relu_forward, *given, **(PLACE | {"p": 0.5}))
    _, other = call(backend.member_relu_forward, *given, **(PLACE | {"p": 0.5} | changed))
    assert 0.4 < (kept != other).mean() < 0.6


def test_members_apart_are_members_together(backend: Backend) -> None:
    given = operands((4, 3, 5))
    whole = call(backend.member_relu_forward, *given, **PLACE)
    last = call(backend.member_relu_forward, *(each[2:] for each in given), **PLACE, first_member=2)
    for one, other in zip(whole, last, strict=True):
        np.testing.assert_array_equal(one[2:], other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward_follows_the_rule(
    backend: Backend, shape: tuple[int, int, int], dtype: str
) -> None:
    z, scale, bias, next_scale = operands(shape, dtype)
    dy = normal(*shape, seed=5).astype(dtype)
    _, kept = call(backend.member_relu_forward, z, scale, bias, next_scale, **PLACE)
    found = call(backend.member_relu_backward, dy, z, kept, scale, bias, next_scale, p=PLACE["p"])
    z, scale, bias, next_scale, dy = (
        each.astype("float64") for each in (z, scale, bias, next_scale, dy)
    )
    q = dy * kept / 0.7
    sums, products = q.sum(axis=1), (q * z).sum(axis=1)
    expected = (
        q * (scale * next_scale)[:, None],
        next_scale * products,
        next_scale * sums,
        scale * products + bias * sums,
    )
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert_within_tolerance(one, other)


@pytest.mark.parametrize("place", range(4))
def test_derivatives(place: int) -> None:
    ops, given, dy = NumpyBackend(), operands((2, 3, 5)), normal(2, 3, 5, seed=5)
    y, kept = ops.member_relu_forward(*given, **PLACE)
    gradients = ops.member_relu_backward(dy, given[0], kept, *given[1:], p=PLACE["p"])

    def loss(value: Any) -> float:
        moved = [*given[:place], value, *given[place + 1 :]]
        return float((dy * ops.member_relu_forward(*moved, **PLACE)[0]).sum())

    assert np.isfinite(y).all()
    assert_derivative(gradients[place], loss, given[place])


def test_layout_of_inputs_does_not_matter(backend: Backend) -> None:
    given, dy = operands((2, 3, 5)), normal(2, 3, 5, seed=5)
    y, kept = call(backend.member_relu_forward, *given, **PLACE)
    gradients = call(backend.member_relu_backward, dy, given[0], kept, *given[1:], p=0.3)
    kinds = [dict(layouts(each)) for each in (*given, dy)]
    for name in ("read-only", "fortran", "strided", "reversed"):
        *others, other_dy = (kind[name] for kind in kinds)
        other, _ = call(backend.member_relu_forward, *others, **PLACE)
        np.testing.assert_array_equal(other, y)
        found = call(backend.member_relu_backward, other_dy, others[0], kept, *others[1:], p=0.3)
        for one, another in zip(found, gradients, strict=True):
            np.testing.assert_allclose(one, another, rtol=1e-14, atol=1e-14)


def test_not_a_number_goes_through(backend: Backend) -> None:
    z, ones = np.full((1, 2, 4), np.nan), np.ones((1, 4))
    y, kept = call(backend.member_relu_forward, z, ones, ones, ones, **PLACE)
    assert np.isnan(y).all()
    assert not kept.any()


def test_members_refuse_operands(backend: Backend) -> None:
    z, scale, bias, next_scale = operands((2, 3, 5))
    with pytest.raises(ConfigError, match=r"member_relu_forward: expected p in \[0, 1\), got 1"):
        backend.member_relu_forward(z, scale, bias, next_scale, **(PLACE | {"p": 1.0}))
    with pytest.raises(ShapeError, match=r"expected z of shape \(E, M, N\), got \(3, 5\)"):
        backend.member_relu_forward(z[0], scale, bias, next_scale, **PLACE)
    with pytest.raises(ShapeError, match=r"expected bias of shape \(2, 5\), got \(1, 5\)"):
        backend.member_relu_forward(z, scale, bias[:1], next_scale, **PLACE)
    with pytest.raises(DTypeError, match="member_relu_forward: expected operands of one dtype"):
        backend.member_relu_forward(z, scale, bias.astype("float32"), next_scale, **PLACE)
    with pytest.raises(DTypeError, match="expected kept of bool, got float64"):
        backend.member_relu_backward(z, z, z, scale, bias, next_scale, p=0.3)
    with pytest.raises(ShapeError, match="member_relu_backward: expected operands of the same"):
        backend.member_relu_backward(z[:, :1], z, z > 0, scale, bias, next_scale, p=0.3)


# -- half precision
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("units", [10, 16])
def test_half_precision(make_backend: Any, units: int, dtype: str) -> None:
    ops = make_backend()
    if isinstance(ops, NumpyBackend):
        pytest.skip("half precision is for devices")
    limit = {"float16": 4e-3, "bfloat16": 4e-2}[dtype]
    values = [*operands((2, 3, units), "float32"), normal(2, 3, units, seed=5).astype("float32")]
    *given, dy = (ops.asarray(upload(ops, value), dtype) for value in values)
    *exact, exact_dy = (np.float64(each.numpy()) for each in (*given, dy))
    numpy = NumpyBackend()
    y, kept = ops.member_relu_forward(*given, **PLACE)
    expected, expected_kept = numpy.member_relu_forward(*exact, **PLACE)
    np.testing.assert_array_equal(kept.numpy(), expected_kept)
    gradients = ops.member_relu_backward(dy, given[0], kept, *given[1:], p=0.3)
    assert [str(each.dtype) for each in gradients] == [dtype, *["float32"] * 3]
    of_exact = numpy.member_relu_backward(exact_dy, exact[0], expected_kept, *exact[1:], p=0.3)
    products = ops.batched_matmul(given[0], dy, transpose_a=True)
    of_exact_products = numpy.batched_matmul(exact[0], exact_dy, transpose_a=True)
    for one, other in zip(
        download(ops, (y, *gradients, products)),
        (expected, *of_exact, of_exact_products),
        strict=True,
    ):
        error = np.abs(np.float64(one) - other) / np.maximum(1, np.abs(other))
        assert error.max() < limit


def test_a_step_may_lie_on_the_device(make_backend: Any) -> None:
    ops = make_backend()
    given = [upload(ops, value) for value in operands((2, 3, 5))]
    step = ops.asarray(np.float64(3))
    _, kept = ops.member_relu_forward(*given, **(PLACE | {"step": step}))
    _, expected = ops.member_relu_forward(*given, **PLACE)
    np.testing.assert_array_equal(download(ops, kept), download(ops, expected))
