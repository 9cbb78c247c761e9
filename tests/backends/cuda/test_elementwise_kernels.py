"""What the elementwise kernels do beyond the contract's tests: half precision, whole tiles, long
sums, layouts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit import backends
from warpfit.backends import Backend, NumpyBackend
from warpfit.backends.base import BINARY, COMPARISONS, REDUCTIONS, UNARY
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.array import row_major_strides
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS
from warpfit.backends.cuda.layouts import copy_plan, joined, layout
from warpfit.errors import DTypeError, ShapeError

HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, np.inf, -np.inf, np.nan]
NUMPY = NumpyBackend()


def in_half_precision(names: Iterable[str]) -> pytest.MarkDecorator:
    """All functions in float16; in bfloat16, which is loaded and stored by the same code in all, a
    few.
    """
    few = ("exp", "maximum", "divide")
    cases = [(name, dtype) for name in names for dtype in HALVES]
    marked = [
        pytest.param(
            *case, marks=[] if case[1] == "float16" or case[0] in few else pytest.mark.slow
        )
        for case in cases
    ]
    return pytest.mark.parametrize(("name", "dtype"), marked)


@pytest.fixture
def ops(cuda: str) -> Backend:
    return backends.get(cuda)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def shifted(ops: Backend, host: Any) -> Any:
    """Return the values in memory that begins one element after an aligned address."""
    return ops.reshape(
        ops.asarray(np.concatenate([host.ravel()[:1], host.ravel()]))[1:], host.shape
    )


def transposed(ops: Backend, host: Any) -> Any:
    return ops.transpose(ops.asarray(np.ascontiguousarray(host.T)))


def spread(ops: Backend, host: Any) -> Any:
    wide = np.zeros([2 * size for size in host.shape], host.dtype)
    everywhere = tuple(slice(None, None, 2) for _ in host.shape)
    wide[everywhere] = host
    return ops.asarray(wide)[everywhere]


def backwards(ops: Backend, host: Any) -> Any:
    everywhere = tuple(slice(None, None, -1) for _ in host.shape)
    return ops.asarray(np.ascontiguousarray(host[everywhere]))[everywhere]


PLACED: dict[str, Callable[[Backend, Any], Any]] = {
    "contiguous": lambda ops, host: ops.asarray(host),
    "shifted": shifted,
    "transposed": transposed,
    "spread": spread,
    "backwards": backwards,
}
each_placing = pytest.mark.parametrize("place", PLACED.values(), ids=PLACED)


# -- functions
# -----------------------------------------------------------------------------------------------


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS])
def test_special_values_are_numpys(ops: Backend, name: str, dtype: str) -> None:
    a, b = (
        np.ascontiguousarray(grid, dtype) for grid in np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    )
    result = ops.binary(name, ops.asarray(a), ops.asarray(b)).numpy()
    expected = NUMPY.binary(name, a, b)
    if name in ("maximum", "minimum"):  # of +0 and -0 either may come
        result, expected = result + 0, expected + 0
    if expected.dtype == bool:
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[known]), np.signbit(expected[known]))


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_special_values_of_one_operand_are_numpys(ops: Backend, name: str, dtype: str) -> None:
    x = np.array([*SPECIAL, 1e-30, 88.0, 1e5], dtype)
    np.testing.assert_allclose(
        ops.unary(name, ops.asarray(x)).numpy(), NUMPY.unary(name, x), rtol=2e-6, atol=1e-6
    )


@pytest.mark.in_turns(6)
@in_half_precision(UNARY)
def test_unary_in_half_precision(ops: Backend, name: str, dtype: str) -> None:
    x = ops.asarray(np.abs(normal(700)) + np.float32(0.25), dtype)
    result = ops.unary(name, x)
    assert result.dtype == dtype
    expected = NUMPY.unary(name, x.numpy().astype("float64"))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1.01 * HALVES[dtype], atol=1e-6)


@pytest.mark.in_turns(6)
@in_half_precision([*BINARY, *COMPARISONS])
def test_binary_in_half_precision(ops: Backend, name: str, dtype: str) -> None:
    a, b = (
        ops.asarray(np.abs(normal(5000, seed=seed)) + np.float32(0.25), dtype) for seed in (0, 1)
    )
    wide_a, wide_b = (x.numpy().astype("float64") for x in (a, b))
    result = ops.binary(name, a, b)
    assert result.dtype == ("bool" if name in COMPARISONS else dtype)
    rtol = 1.01 * HALVES[dtype]
    np.testing.assert_allclose(
        result.numpy(), NUMPY.binary(name, wide_a, wide_b), rtol=rtol, atol=1e-6
    )
    with_number = ops.binary(name, a, 2.1)
    rounded = ops.asarray(np.float32(2.1), dtype).item()
    assert with_number.dtype == result.dtype
    np.testing.assert_allclose(
        with_number.numpy(), NUMPY.binary(name, wide_a, rounded), rtol=rtol, atol=1e-6
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_the_rest_in_half_precision(ops: Backend, dtype: str) -> None:
    x = ops.asarray(normal(3, 5), dtype)
    host = x.numpy()
    chosen = ops.where(ops.binary("gt", x, 0), x, 7)
    assert chosen.dtype == dtype
    np.testing.assert_array_equal(chosen.numpy(), np.where(host > 0, host, 7))
    places = np.array([2, 0, 2])
    np.testing.assert_array_equal(ops.take(x, places).numpy(), host[places])
    np.testing.assert_array_equal(
        ops.concatenate([x, x], 1).numpy(), np.concatenate([host, host], 1)
    )
    np.testing.assert_array_equal(ops.copy(ops.transpose(x)).numpy(), host.T)
    added = ops.add_at((3, 5), dtype, places, ops.asarray(np.ones((3, 5), np.float32), dtype))
    assert added.dtype == dtype
    assert added.numpy()[:, 0].tolist() == [1, 0, 2]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_adds_up_in_float32(ops: Backend, dtype: str) -> None:
    ones = ops.asarray(np.ones((6000, 3), np.float32), dtype)
    for axis in (None, 0):
        assert ops.reduce("mean", ones, axis).numpy().ravel()[0] == 1
    total = ops.add_at(
        (1,), dtype, np.zeros(512, np.int64), ops.asarray(np.full(512, 0.5, np.float32), dtype)
    )
    assert total.numpy().tolist() == [256]


def test_arrays_and_numbers_only(ops: Backend) -> None:
    x = ops.asarray(normal(3))
    for stranger in ([1.0, 2.0, 3.0], "2", np.zeros(3, np.float32), None):
        with pytest.raises(DTypeError, match="add: expected numbers and arrays on one device, got"):
            ops.binary("add", x, stranger)


# -- whole tiles: 8 KiB of the result for each block
# -----------------------------------------------------------

SHAPES = [(64, 96), (41, 101), (3, 2048)]


@pytest.mark.in_turns(2)
@each_placing
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_operands_lie_anywhere(
    ops: Backend, dtype: str, shape: tuple[int, int], place: Any
) -> None:
    a, b = normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype)
    placed = place(ops, a)
    np.testing.assert_array_equal(ops.unary("neg", placed).numpy(), -a)
    np.testing.assert_array_equal(
        ops.binary("maximum", ops.asarray(b), placed).numpy(), np.maximum(b, a)
    )
    condition = ops.binary("lt", placed, ops.asarray(b))
    np.testing.assert_array_equal(condition.numpy(), a < b)
    np.testing.assert_array_equal(
        ops.where(condition, placed, ops.asarray(b)).numpy(), np.minimum(a, b)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operands_repeat(ops: Backend, shape: tuple[int, int]) -> None:
    x = normal(*shape)
    array = ops.asarray(x)
    for other in (x[0], x[:1], x[:, :1], x[0, 0], x[::-1, :1][:, [0]]):
        for a, b, c, d in (
            (array, ops.asarray(other), x, other),
            (ops.asarray(other), array, other, x),
        ):
            np.testing.assert_array_equal(ops.binary("sub", a, b).numpy(), c - d)
    for number in (2, -0.5, True):
        np.testing.assert_array_equal(
            ops.binary("sub", number, array).numpy(), np.float32(number) - x
        )
    narrow = x[:, :1] > 0
    chosen = ops.where(ops.asarray(narrow), 1.5, ops.asarray(x[0]))
    np.testing.assert_array_equal(chosen.numpy(), np.where(narrow, np.float32(1.5), x[0]))


def test_large_transposed_operands_are_put_into_order_first(
    ops: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(513, 512)
    copied: list[tuple[int, ...]] = []
    contiguous = ops.contiguous
    monkeypatch.setattr(
        ops, "contiguous", lambda array: copied.append(array.shape) or contiguous(array)
    )
    across, along = ops.transpose(ops.asarray(x)), ops.asarray(x)[:, ::2]
    np.testing.assert_array_equal(ops.unary("neg", across).numpy(), -x.T)
    np.testing.assert_array_equal(ops.binary("sub", across, 1).numpy(), x.T - np.float32(1))
    assert copied == [(512, 513)] * 2
    np.testing.assert_array_equal(
        ops.binary("sub", along, ops.asarray(x[:, 1::2])).numpy(), x[:, ::2] - x[:, 1::2]
    )
    np.testing.assert_array_equal(ops.unary("neg", across[:100, :100]).numpy(), -x.T[:100, :100])
    assert len(copied) == 2


def test_more_axes_than_a_layout_holds(ops: Backend) -> None:
    x = np.arange(3**9, dtype=np.float32).reshape((3,) * 9)
    everywhere = (slice(None, None, 2),) * 9
    scattered = ops.asarray(x)[everywhere]
    for op in (lambda: ops.unary("neg", scattered), lambda: ops.copy(scattered)):
        with pytest.raises(ShapeError, match="expected at most 8 axes that do not join, got 9"):
            op()
    joining = ops.asarray(x)[..., ::2]
    np.testing.assert_array_equal(ops.unary("neg", joining).numpy(), -x[..., ::2])


# -- copies
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0)], ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 70, 65), (9, 8, 130), (64, 2, 64), (1, 129, 7), (2, 2200, 70)], ids=str
)
def test_transposes_are_copied(ops: Backend, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    expected = x.transpose(axes)
    result = ops.transpose(ops.asarray(x), axes)
    np.testing.assert_array_equal(ops.copy(result).numpy(), expected)
    np.testing.assert_array_equal(
        ops.asarray(result, "float32").numpy(), expected / np.float32(255)
    )


@each_placing
def test_copies_from_and_to_any_layout(ops: Backend, place: Any) -> None:
    x = normal(37, 130)
    placed = place(ops, x)
    np.testing.assert_array_equal(ops.copy(placed).numpy(), x)
    np.testing.assert_array_equal(ops.asarray(placed, "float64").numpy(), x)
    for target in (ops.zeros((130, 37), "float32"), ops.zeros((130, 74), "float32")[:, ::2]):
        ops.assign(ops.transpose(target), placed)
        np.testing.assert_array_equal(target.numpy(), x.T)


def test_repeated_values_are_copied(ops: Backend) -> None:
    x = normal(3, 1, 700)
    np.testing.assert_array_equal(
        ops.copy(ops.broadcast_to(ops.asarray(x), (3, 5, 700))).numpy(),
        np.broadcast_to(x, (3, 5, 700)),
    )


def test_only_transposed_memory_is_tiled() -> None:
    assert copy_plan((100, 200), (4, 400), 4, (800, 4), 4).is_tiled
    assert not copy_plan((100, 200), (1600, 8), 4, (800, 4), 4).is_tiled
    assert not copy_plan((3, 200), (4, 12), 4, (800, 4), 4).is_tiled
    assert not copy_plan((100, 200), (0, 4), 4, (800, 4), 4).is_tiled


def test_axes_join_only_where_they_lie_in_sequence_everywhere() -> None:
    assert joined([(2, 12), (3, 4), (4, 1)]) == [(24, 1)]
    assert joined([(2, 12, 0), (3, 4, 4), (4, 1, 1)]) == [(2, 12, 0), (12, 1, 1)]
    assert joined([(1, 5), (3, 0), (1, 7), (2, 0)]) == [(6, 0)]
    assert joined([]) == []
    assert len(layout((2, 3), (12, 4), 4)) == 136


# -- reductions
# ----------------------------------------------------------------------------------------------

REDUCED: list[tuple[tuple[int, ...], Any]] = [
    ((40_001,), None),
    ((4096, 5), None),
    ((3, 9001), 1),
    ((9001, 3), 0),
    ((1500, 40), 0),
    ((1, 70), 0),
    ((17, 13), 1),
    ((500, 3), 1),
    ((500, 515), 1),
    ((700, 1030), 1),
    ((6, 50, 33), 1),
    ((6, 50, 33), (0, 2)),
    ((4, 5, 6, 7), (0, 2)),
    ((4, 5, 6, 7), (1, 3)),
    ((300, 2, 2), 0),
]


@pytest.mark.in_turns(3)
@each_placing
@pytest.mark.parametrize(("shape", "axis"), REDUCED, ids=str)
def test_sums_agree_with_float64_to_a_millionth(
    ops: Backend, shape: tuple[int, ...], axis: Any, place: Any
) -> None:
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    precise = x.astype(np.float64).sum(axis)
    result = ops.reduce("sum", place(ops, x), axis).numpy()
    assert result.dtype == np.float32
    assert (np.abs(result - precise) / np.maximum(1, np.abs(precise))).max() <= 1e-6


@pytest.mark.in_turns(24)
@each_placing
@pytest.mark.parametrize(("shape", "axis"), REDUCED, ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_are_found_anywhere(
    ops: Backend, name: str, shape: tuple[int, ...], axis: Any, place: Any
) -> None:
    x = normal(*shape)
    for value in (np.float32(9), np.float32(-9), np.nan, np.inf):
        spot = np.random.default_rng(1).integers(0, shape)
        x[tuple(spot)] = value
        result = ops.reduce(name, place(ops, x), axis).numpy()
        np.testing.assert_array_equal(result, NUMPY.reduce(name, x, axis))


@pytest.mark.in_turns(4)
@on_emulator
@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_order_of_blocks_and_threads_does_not_matter(
    name: str, emulated_runtime: EmulatedRuntime
) -> None:
    forwards, reversed_ = CudaBackend(emulated_runtime), CudaBackend(EmulatedRuntime(reverse=True))
    for shape, axis in REDUCED:
        x = normal(*shape)
        bits = [
            np.asarray(ops.reduce(name, ops.asarray(x), axis).numpy()).tobytes()
            for ops in (forwards, reversed_)
        ]
        assert bits[0] == bits[1]


def test_repeated_values_are_reduced(ops: Backend) -> None:
    x = normal(1, 9)
    repeated = ops.broadcast_to(ops.asarray(x), (700, 9))
    np.testing.assert_allclose(ops.reduce("sum", repeated, 0).numpy(), 700 * x[0], rtol=1e-5)
    np.testing.assert_allclose(
        ops.reduce("mean", repeated, 1).numpy(), np.full(700, x.mean()), rtol=1e-5
    )
    np.testing.assert_allclose(ops.reduce("sum", repeated).numpy(), 700 * x.sum(), rtol=1e-5)


# -- places
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int32", "int64", "float64"])
def test_any_dtype_can_be_taken(ops: Backend, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, (7, 12)).astype(dtype)
    result = ops.take(ops.asarray(x), np.array([6, 0, -1]))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.numpy(), x[[6, 0, -1]])


@each_placing
@pytest.mark.parametrize(
    "index", [np.array([5, 1, 1, -1]), (slice(None), np.array([[3, 0], [7, 3]]))], ids=str
)
@pytest.mark.parametrize("shape", [(6, 1000), (9, 11)], ids=str)
def test_rows_and_columns_are_taken_from_any_layout(
    ops: Backend, shape: tuple[int, int], index: Any, place: Any
) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(ops.take(place(ops, x), index).numpy(), x[index])
    values = normal(*x[index].shape, seed=1)
    added = ops.add_at(shape, "float32", index, place(ops, values))
    np.testing.assert_allclose(
        added.numpy(), NUMPY.add_at(shape, "float32", index, values), rtol=1e-6, atol=1e-6
    )


def test_indices_may_live_on_the_device(ops: Backend) -> None:
    x = ops.asarray(normal(5, 3))
    rows, mask = np.array([4, 0, -1]), np.array([True, False, True])
    result = ops.take(x, (ops.asarray(rows)[:, None], ops.asarray(np.array([2, 0]))))
    np.testing.assert_array_equal(result.numpy(), x.numpy()[rows[:, None], [2, 0]])
    np.testing.assert_array_equal(ops.take(x, (1, ops.asarray(mask))).numpy(), x.numpy()[1, mask])
    with pytest.raises(IndexError, match="expected an index into axis 0 of size 5, got 5"):
        ops.take(x, ops.asarray(np.array([0, 5])))
    with pytest.raises(IndexError, match="expected an index into axis 1 of size 3, got -4"):
        ops.add_at((5, 3), "float32", (slice(None), ops.asarray(np.array([-4]))), x[:, :1])


def test_only_floats_are_added(ops: Backend) -> None:
    with pytest.raises(DTypeError, match=r"add_at: expected float32 .*, got int64"):
        ops.add_at((3,), "int64", np.array([0]), ops.asarray(np.array([1])))


def test_many_values_meet_at_one_place_in_their_order(ops: Backend) -> None:
    places = np.random.default_rng(0).integers(0, 3, 2000)
    values = normal(2000, 2)
    results = [ops.add_at((4, 2), "float32", places, ops.asarray(values)).numpy() for _ in range(2)]
    expected = NUMPY.add_at((4, 2), "float64", places, values.astype("float64"))
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
    assert results[0].tobytes() == results[1].tobytes()
    assert results[0][3].tolist() == [0, 0]


# -- conversions
# ---------------------------------------------------------------------------------------------


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("target", DEVICE_FLOATS)
@pytest.mark.parametrize("source", DEVICE_FLOATS)
def test_every_conversion_of_floats(ops: Backend, source: str, target: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (6, 35)) / 8  # held by every dtype
    on_device = ops.asarray(x, source)
    rows = np.array([4, 0, 4])
    gathered = ops.gather_rows(on_device, ops.asarray(rows), target)
    assert gathered.dtype == target
    np.testing.assert_array_equal(gathered.numpy(), x[rows])
    if source == target:
        return
    result, filled = ops.cast(on_device, target, 0.5), ops.zeros(x.shape, target)
    ops.cast_into([filled], [on_device])
    assert (result.dtype, filled.dtype) == (target, target)
    np.testing.assert_array_equal(result.numpy(), x / 2)
    np.testing.assert_array_equal(filled.numpy(), x)


@pytest.mark.parametrize("dtype", DEVICE_FLOATS)
def test_sums_choices_and_places_in_every_dtype(ops: Backend, dtype: str) -> None:
    x = np.arange(24.0).reshape(4, 6)
    on_device = ops.asarray(x, dtype)
    np.testing.assert_array_equal(ops.reduce("sum", on_device, 0).numpy(), x.sum(axis=0))
    mask = x % 3 == 0
    chosen = ops.where(ops.asarray(mask), on_device, ops.binary("add", on_device, on_device))
    np.testing.assert_array_equal(chosen.numpy(), np.where(mask, x, 2 * x))
    index = np.array([1, 0, 1, 5])
    np.testing.assert_array_equal(
        ops.add_at((7, 6), dtype, index, on_device).numpy(),
        NUMPY.add_at((7, 6), "float64", index, x),
    )


def test_transposed_integers_are_copied(ops: Backend) -> None:
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(ops.copy(ops.transpose(ops.asarray(x))).numpy(), x.T)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((256, 512), (4, 1024)),
        ((3, 256, 512), (524288, 4, 1024)),
        ((256, 5, 512), (4, 524288, 1024)),
    ],
)
def test_a_tile_is_read_and_written_along_memory(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    plan = copy_plan(shape, strides, 4, row_major_strides(shape, 4), 4)
    assert plan.is_tiled
    for packed, from_the_end in ((plan.x_layout, 2), (plan.y_layout, 1)):
        ndim, *rest = struct.unpack("17q", packed)
        assert rest[8 + ndim - from_the_end] == 1
