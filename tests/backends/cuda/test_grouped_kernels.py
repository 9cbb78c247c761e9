"""Kernels of convolutions in groups: strips of depthwise ones, tiles of narrow groups, products as
of one group, and others.

Small whole numbers make every product and sum exact in every type, so that results have to be equal
to those of NumPy's backend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import on_gpu
from emulator.build import gxx_missing
from emulator.runtime import EmulatedRuntime
from kernel_variants import variants_of
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_depthwise import (
    MOST_WORDS,
    Grouped,
    choose_strips,
    positions,
    words,
)
from warpfit.backends.cuda.conv_grouped_mma import choose_group_tile, shared_bytes_of_tile
from warpfit.errors import ShapeError

needs_gxx = pytest.mark.skipif(gxx_missing() is not None, reason=str(gxx_missing()))

HALF, WIDE = ("float16", "bfloat16"), ("float32", "float64")
EVERY = HALF + WIDE
RELU = Activation("relu")


class Case(NamedTuple):
    """A convolution in groups, and what its kernels are called after."""

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    kind: str
    dtypes: tuple[str, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def settings(self) -> dict[str, Any]:
        pairs = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {**pairs, "groups": self.x[3] // self.w[2]}


CASES = {
    "pairs": Case((2, 7, 9, 16), (3, 3, 1, 16), "depthwise", EVERY),
    "odd": Case((1, 6, 19, 5), (3, 3, 1, 5), "depthwise", EVERY, padding=(0, 2)),
    "strided": Case((2, 9, 12, 6), (3, 3, 1, 6), "depthwise", HALF, (2, 2)),
    "strides": Case((1, 13, 11, 70), (5, 4, 1, 70), "depthwise", HALF, (3, 2), (3, 1)),
    "far": Case((1, 9, 33, 2), (2, 3, 1, 2), "depthwise", HALF, (6, 5)),
    "farther": Case((1, 3, 36, 2), (1, 1, 1, 2), "grouped", HALF, (1, 33), (0, 0)),
    "spread": Case((2, 9, 10, 5), (3, 2, 1, 5), "depthwise", HALF, (1, 1), (2, 1), (2, 3)),
    "large": Case((1, 9, 8, 6), (7, 7, 1, 6), "depthwise", HALF, padding=(3, 3)),
    "pixel": Case((1, 1, 1, 2), (3, 3, 1, 2), "depthwise", HALF),
    "fours": Case((2, 9, 10, 16), (3, 3, 4, 16), "mma", HALF),
    "tiles": Case((3, 40, 9, 72), (3, 3, 4, 72), "mma", HALF, (2, 2)),
    "eights": Case((2, 8, 7, 72), (3, 3, 8, 72), "mma", HALF, (1, 2), (1, 2), (2, 1)),
    "sixteens": Case((1, 8, 7, 48), (3, 2, 16, 48), "mma", HALF, (2, 1), (0, 1), (1, 2)),
    "fives": Case((1, 6, 7, 32), (5, 5, 16, 32), "mma", HALF, padding=(2, 2)),
    "two_dozen": Case((1, 8, 7, 72), (3, 3, 24, 72), "mma", HALF),
    "images": Case((5, 3, 2, 16), (3, 3, 8, 16), "mma", HALF),
    "thirty_two": Case((1, 7, 7, 128), (3, 3, 32, 128), "mma", HALF),
    "two_outputs": Case((2, 6, 5, 3), (3, 2, 1, 6), "grouped", EVERY, (2, 1)),
    "threes": Case((2, 6, 5, 6), (3, 2, 3, 4), "grouped", EVERY, (2, 1)),
    "two_of_four": Case((2, 6, 5, 8), (3, 3, 4, 4), "grouped", EVERY),
    "twelve": Case((2, 6, 5, 12), (3, 3, 4, 12), "product", HALF),
    "threes_of_three": Case((2, 6, 5, 6), (3, 3, 3, 6), "grouped", EVERY),
    "fours_to_eights": Case((2, 6, 5, 8), (3, 3, 4, 16), "product", HALF),
    "whole_fours": Case((2, 6, 5, 16), (3, 3, 4, 16), "product", WIDE),
    "dozens": Case((1, 7, 6, 24), (3, 2, 12, 24), "product", EVERY, (2, 1), (1, 2), (1, 2)),
    "twenties": Case((1, 6, 5, 40), (3, 3, 20, 40), "product", EVERY, (1, 2), (2, 1), (2, 1)),
    "slices": Case((3, 9, 9, 8), (3, 3, 4, 12), "product", EVERY),
    "fewer_outputs": Case((2, 7, 5, 24), (2, 3, 8, 15), "product", EVERY, (2, 2)),
    "two_columns": Case((1, 4, 5, 140), (2, 1, 70, 140), "product", WIDE),
    "strides_of_spread": Case((1, 9, 9, 4), (3, 3, 1, 4), "grouped", HALF, (2, 1), (1, 1), (2, 2)),
}


def whole_numbers(case: Case) -> tuple[Any, Any, Any, Any]:
    """Return x, w, b, dz."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.integers(-1, 2, s).astype("f8") for s in (case.x, case.w, case.w[3:]))
    y, _ = NumpyBackend().conv2d_forward(x, w, b, **case.settings)
    return x, w, b, rng.integers(-1, 2, y.shape).astype("f8")


def results(ops: Any, arrays: Any, case: Case, activation: Activation = RELU) -> list[Any]:
    """Return y, dx, dw and db."""
    x, w, b, dz = arrays
    y, _ = ops.conv2d_forward(x, w, b, **case.settings, activation=activation)
    dx = ops.conv2d_backward_input(dz, w, case.x, **case.settings)
    return [y, dx, *ops.conv2d_backward_weight(dz, x, case.w[:2], **case.settings)]


def kernels_asked(ops: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Return a list of the kernels that `ops` asks for from now on."""
    asked: list[tuple[str, dict[str, Any]]] = []
    kernel = ops.kernel

    def record(name: str, **defines: Any) -> Any:
        asked.append((name, defines))
        return kernel(name, **defines)

    monkeypatch.setattr(ops, "kernel", record)
    return asked


def kind_of(name: str) -> str:
    """Return what a kernel takes convolutions in groups as."""
    return next((kind for kind in ("depthwise", "mma", "grouped") if kind in name), "product")


def assert_exact(ops: CudaBackend, case: Case, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = whole_numbers(case)
    expected = results(NumpyBackend(), arrays, case)
    asked = kernels_asked(ops, monkeypatch)
    found = results(ops, [ops.asarray(array, dtype) for array in arrays], case)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)
    convolutions = [name for name, _ in asked if name.startswith("conv2d")]
    assert [kind_of(name) for name in convolutions] == 3 * [case.kind]


ALL = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]


@needs_gxx
@pytest.mark.in_turns(8)
@pytest.mark.parametrize(("name", "dtype"), ALL)
@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_in_groups(order: str, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CudaBackend(EmulatedRuntime(reverse=order == "reversed", num_multiprocessors=2))
    assert_exact(ops, CASES[name], dtype, monkeypatch)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(("name", "dtype"), ALL)
def test_groups_of_whole_numbers_give_exact_results(
    kernel_runtime: Any, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_exact(CudaBackend(kernel_runtime), CASES[name], dtype, monkeypatch)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", ["whole_fours", "dozens", "slices"])
def test_groups_of_whole_numbers_in_tf32_give_exact_results(
    kernel_runtime: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = CudaBackend(kernel_runtime, precision="tf32")
    assert_exact(ops, CASES[name], "float32", monkeypatch)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", ["pairs", "eights", "fours"])
def test_groups_of_arrays_that_begin_anywhere(
    kernel_runtime: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, ops = CASES[name], CudaBackend(kernel_runtime)
    arrays = whole_numbers(case)
    moved = []
    for array in arrays:
        whole = ops.asarray(np.concatenate([[9.0], array.ravel()]), "float16")
        moved.append(whole[1:].view(array.shape, ops.asarray(array, "float16").strides))
    expected = results(NumpyBackend(), arrays, case)
    asked = kernels_asked(ops, monkeypatch)
    for got, wanted in zip(results(ops, moved, case), expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)
    # The emulator loads words from anywhere.
    assert not any("mma" in name or defines.get("WIDTH", 1) > 1 for name, defines in asked)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", ["pairs", "fours", "thirty_two", "dozens"])
def test_groups_keep_what_the_activation_needs(kernel_runtime: Any, name: str) -> None:
    case, ops, gelu = CASES[name], CudaBackend(kernel_runtime), Activation("gelu")
    x, w, b, _ = whole_numbers(case)
    y, z = NumpyBackend().conv2d_forward(x, w, b, **case.settings, activation=gelu)
    arrays = [ops.asarray(array, "float16") for array in (x, w, b)]
    found, kept = ops.conv2d_forward(*arrays, **case.settings, activation=gelu)
    np.testing.assert_array_equal(kept.numpy(), z)
    np.testing.assert_allclose(found.numpy(), y, rtol=2e-3, atol=2e-3)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["pairs", "odd", "tiles", "eights", "thirty_two", "dozens"])
def test_a_groups_nan_stays_in_it(kernel_runtime: Any, name: str, bad: float) -> None:
    """Numbers that are not finite reach what they are added to, and no other group."""
    case, ops = CASES[name], CudaBackend(kernel_runtime)
    x, w, b, dz = whole_numbers(case)
    x[0, -1, -1, 0] = dz[0, -1, -1, 0] = bad
    w[w == 0] = 1
    arrays = [ops.asarray(array, "float16") for array in (x, w, b, dz)]
    with np.errstate(invalid="ignore"):
        expected = results(NumpyBackend(), (x, w, b, dz), case, Activation())
    found = [array.numpy() for array in results(ops, arrays, case, Activation())]
    for got, wanted in zip(found, expected, strict=True):
        assert not np.isfinite(got[~np.isfinite(wanted)]).any()
        np.testing.assert_array_equal(got[..., case.w[2] :], wanted[..., case.w[2] :])
    for got, wanted in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))


@pytest.mark.in_turns(2)
def test_wide_groups_in_half_precision_are_convolutions_of_their_own(
    kernel_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, ops = Case((2, 4, 5, 72), (1, 2, 36, 80), "product", HALF), CudaBackend(kernel_runtime)
    arrays, asked = whole_numbers(case), kernels_asked(ops, monkeypatch)
    found = results(ops, [ops.asarray(array, "float16") for array in arrays], case)
    for got, wanted in zip(found, results(NumpyBackend(), arrays, case), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)
    assert {defines.get("GROUPS", 1) for _, defines in asked} == {1}
    assert not [name for name, _ in asked if "grouped" in name]


def test_shapes_of_groups_are_refused_of_one_group(kernel_runtime: Any) -> None:
    case, ops = CASES["dozens"], CudaBackend(kernel_runtime)
    x, w, b, _ = (ops.asarray(array, "float32") for array in whole_numbers(case))
    ops.conv2d_forward(x, w, b, **case.settings)
    with pytest.raises(ShapeError, match=r"expected x of shape .* 12\) for w"):
        ops.conv2d_forward(x, w, b, **{**case.settings, "groups": 1})


@needs_gxx
@pytest.mark.parametrize("name", ["pairs", "tiles", "slices"])
def test_group_gradients_have_equal_bits_in_any_order(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(1)
    x, _, _, dz = (rng.standard_normal(array.shape) for array in whole_numbers(case))
    found = []
    for reverse in (False, True):
        ops = CudaBackend(EmulatedRuntime(reverse=reverse, num_multiprocessors=2))
        operands = [ops.asarray(array, "float16") for array in (dz, x)]
        found.append(ops.conv2d_backward_weight(*operands, case.w[:2], **case.settings)[0].numpy())
    np.testing.assert_array_equal(*found)


@needs_gxx
@pytest.mark.in_turns(2)
@pytest.mark.parametrize("warp", range(8))
def test_tiles_wait_for_late_warps(warp: int) -> None:
    """Tiles are overwritten when all warps have read them, and read when they are there."""
    case, found = CASES["tiles"], []
    for late in ({}, {"late_warp": (0, warp)}):
        ops = CudaBackend(EmulatedRuntime(num_multiprocessors=1, **late))
        found.append(results(ops, [ops.asarray(a, "float16") for a in whole_numbers(case)], case))
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


# -- large ones
# -----------------------------------------------------------------------------------------------

LARGE = {
    "depthwise": Case((8, 32, 31, 130), (3, 3, 1, 130), "depthwise", HALF),
    "strided": Case((8, 33, 30, 96), (5, 5, 1, 96), "depthwise", HALF, (2, 2), (2, 2)),
    "fours": Case((8, 28, 27, 136), (3, 3, 4, 136), "mma", HALF),
    "small_images": Case((700, 7, 7, 32), (3, 3, 8, 32), "mma", HALF),
    "strided_eights": Case((8, 28, 27, 136), (3, 3, 8, 136), "mma", HALF, (2, 2)),
}


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", LARGE)
def test_large_groups_agree_with_float64(name: str, dtype: str) -> None:
    from warpfit.backends.cuda.runtime import open_device

    case, ops, rng = LARGE[name], CudaBackend(open_device(0)), np.random.default_rng(2)
    arrays = [rng.standard_normal(array.shape) for array in whole_numbers(case)]
    on_device = [ops.asarray(array, dtype) for array in arrays]
    rounded = [array.numpy().astype("f8") for array in on_device]
    found = results(ops, on_device, case, Activation())
    again = results(ops, on_device, case, Activation())
    unit = 2.0 ** (-10 if dtype == "float16" else -7)
    for got, twice, wanted in zip(
        found, again, results(NumpyBackend(), rounded, case, Activation()), strict=True
    ):
        np.testing.assert_array_equal(got.numpy(), twice.numpy())
        error = np.abs(got.numpy().astype("f8") - wanted).max() / np.abs(wanted).max()
        assert error < (unit if got.dtype == dtype else 1e-5)


# -- what is chosen
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_adjoint", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_strips_cover_all_positions(size: int, stride: int, is_adjoint: bool) -> None:
    side, pairs = 31, ((stride, stride), (size // 2, size // 2), (1, 1))
    windows = (side + 2 * (size // 2) - size) // stride + 1
    read, made = (windows, side) if is_adjoint else (side, windows)
    shape = Grouped(
        "float16", 1, (64, read, read, 96), (made, made), (size, size), *pairs, is_adjoint
    )
    strips = choose_strips(shape, True, 132)
    assert strips is not None
    assert words(shape, strips.columns, strips.width) <= MOST_WORDS
    _, (height, width) = positions(shape)
    assert 0 <= strips.columns * strips.strips - width < strips.columns
    assert 0 <= strips.rows * strips.chunks - height < strips.rows
    assert 96 // strips.width * 64 * strips.strips * strips.chunks >= 132 * 128  # threads


def test_strips_refuse_what_registers_do_not_hold() -> None:
    pairs = ((1, 1), (7, 7), (1, 1))
    shape = Grouped("float16", 1, (64, 31, 31, 96), (31, 31), (15, 15), *pairs)
    assert choose_strips(shape, True, 132) is None


@pytest.mark.parametrize("is_of_weights", [False, True])
@pytest.mark.parametrize("group", [4, 8, 16, 24, 32])
@pytest.mark.parametrize("side", [1, 7, 56, 224])
def test_tiles_fit_shared_memory(side: int, group: int, is_of_weights: bool) -> None:
    read, pairs = (64, side, side, 32 * group), ((1, 1), (1, 1), (1, 1))
    shape = Grouped("float16", group, read, (side, side), (3, 3), *pairs, False, is_of_weights)
    most = shared_bytes_of("sm_90a")
    tile = choose_group_tile(shape, 132, most)
    assert tile is not None
    assert shared_bytes_of_tile(shape, *tile.size) == tile.shared_bytes <= most
    assert 1 <= tile.blocks <= 64 * side * side


@needs_gxx
def test_grouped_variants_are_what_the_wrapper_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ("conv_depthwise", "conv_grouped", "conv_grouped_mma")
    known = {name: {*defines} for module in modules for name, defines in variants_of(module)}
    ops = CudaBackend(EmulatedRuntime())
    asked = kernels_asked(ops, monkeypatch)
    for case in (CASES["pairs"], CASES["fours"], CASES["threes"]):
        results(ops, [ops.asarray(array, "float16") for array in whole_numbers(case)], case)
    own = [(name, defines) for name, defines in asked if name.startswith("conv2d")]
    assert {name for name, _ in own} == {*known}
    assert all({*defines} == known[name] for name, defines in own)
