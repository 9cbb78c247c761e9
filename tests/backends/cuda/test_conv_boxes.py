"""Convolutions in boxes of windows: exact for whole numbers, whatever shape, stride and tile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from backends.cuda.test_conv_sm90 import whole_numbers
from conftest import on_emulator
from support.devices import assert_bits_when_late
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend, conv_boxes_sm90
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_boxes_sm90 import (
    AxisTaps,
    Geometry,
    choose_box,
    choose_tiling,
    choose_weight_tiling,
)
from warpfit.backends.cuda.pool import HALVING
from warpfit.backends.cuda.runtime import open_device

MOST_SHARED = shared_bytes_of("sm_90a")


class Setting(NamedTuple):
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def settings(self) -> dict[str, tuple[int, int]]:
        stride = (self.stride, self.stride)
        return {"stride": stride, "padding": self.padding, "dilation": self.dilation}


SETTINGS = {
    "padded": Setting((3, 8, 8, 24), (3, 3, 24, 72), padding=(1, 1)),
    "many_channels": Setting((2, 4, 4, 136), (3, 3, 136, 40), padding=(1, 1)),
    "strided": Setting((2, 9, 8, 32), (3, 3, 32, 48), 2, (1, 1)),
    "one_tap": Setting((3, 6, 5, 64), (1, 1, 64, 16)),
    "one_tap_strided": Setting((2, 7, 6, 16), (1, 1, 16, 64), 2),
    "dilated": Setting((1, 12, 11, 16), (2, 3, 16, 8), 1, (2, 0), (2, 3)),
    "dilated_and_strided": Setting((1, 11, 12, 8), (3, 2, 8, 24), 2, (2, 1), (2, 1)),
    "thrice": Setting((1, 10, 11, 8), (3, 5, 8, 16), 3, (1, 2)),
    "wider_than_the_kernel": Setting((2, 7, 8, 8), (2, 2, 8, 8), 3),
}


@pytest.fixture
def any_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """These kernels compute all that they can."""
    monkeypatch.setattr(conv_boxes_sm90, "LEAST_CHANNELS", 0)


@pytest.fixture(params=[(1, 256, 1), (2, 128, 2), (1, 64, 2)], ids=str)
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """The only tile."""
    mma_rows, block_n, cluster = request.param
    monkeypatch.setattr(conv_boxes_sm90, "TILES", ((mma_rows, block_n),))
    monkeypatch.setattr(conv_boxes_sm90, "CLUSTERS", (cluster,))
    for choose in (choose_tiling, choose_weight_tiling):
        choose.cache_clear()
    yield request.param
    for choose in (choose_tiling, choose_weight_tiling):
        choose.cache_clear()


def boxes_of(ops: CudaBackend) -> dict[str, bool]:
    """Return for each operation so far whether it was done by these kernels."""
    return {key[0]: launch.boxes is not None for key, launch in ops._launches.items()}


def check(runtime: Any, setting: Setting, dtype: str) -> None:
    relu, settings = Activation("relu"), setting.settings
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    y, _ = NumpyBackend().conv2d_forward(x, w, b, **settings, activation=relu)
    (dz,) = whole_numbers(y.shape)
    ops = CudaBackend(runtime)
    x_, w_, b_, dz_ = (ops.asarray(array, dtype) for array in (x, w, b, dz))
    found, _ = ops.conv2d_forward(x_, w_, b_, **settings, activation=relu)
    np.testing.assert_array_equal(found.numpy(), y)
    dx = NumpyBackend().conv2d_backward_input(
        dz, w, x.shape, **settings, x=np.abs(x), x_activation=relu, plus=x
    )
    saved = ops.asarray(np.abs(x), dtype)
    found = ops.conv2d_backward_input(
        dz_, w_, x.shape, **settings, x=saved, x_activation=relu, plus=x_
    )
    np.testing.assert_array_equal(found.numpy(), dx)
    dw, db = NumpyBackend().conv2d_backward_weight(dz, x, w.shape[:2], **settings)
    found_dw, found_db = ops.conv2d_backward_weight(dz_, x_, w.shape[:2], **settings)
    np.testing.assert_array_equal(found_dw.numpy(), dw)
    np.testing.assert_array_equal(found_db.numpy(), db)
    assert set(boxes_of(ops).values()) == {True}


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_whole_numbers_give_exact_results(
    kernel_runtime_of_any_order: Any, any_channels: None, name: str, dtype: str
) -> None:
    check(kernel_runtime_of_any_order, SETTINGS[name], dtype)


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("name", ["padded", "many_channels", "strided", "one_tap_strided"])
def test_every_tile_gives_exact_results(
    kernel_runtime: Any, any_channels: None, tile: tuple[int, int, int], name: str
) -> None:
    check(kernel_runtime, SETTINGS[name], "float16")


@on_emulator
def test_a_stage_is_overwritten_only_when_all_have_read_it(
    monkeypatch: pytest.MonkeyPatch, any_channels: None
) -> None:
    """A cluster, whose blocks share weights, and take several tiles of several stages each."""
    monkeypatch.setattr(conv_boxes_sm90, "TILES", ((1, 64),))
    monkeypatch.setattr(conv_boxes_sm90, "CLUSTERS", (2,))
    monkeypatch.setattr(conv_boxes_sm90, "MOST_STAGES", 2)
    choose_tiling.cache_clear()
    setting = SETTINGS["padded"]
    x, w = whole_numbers((5, *setting.x[1:]), setting.w)

    def results() -> list[Any]:
        ops = CudaBackend(open_device(0))
        x_, w_ = (ops.asarray(array, "float16") for array in (x, w))
        y, _ = ops.conv2d_forward(x_, w_, None, **setting.settings)
        assert set(boxes_of(ops).values()) == {True}
        return [y.numpy()]

    assert_bits_when_late(monkeypatch, results, blocks=2, warps=12, num_multiprocessors=2)
    choose_tiling.cache_clear()


@pytest.mark.slow
@on_emulator
def test_sums_over_windows_do_not_depend_on_late_warps(
    monkeypatch: pytest.MonkeyPatch, any_channels: None
) -> None:
    monkeypatch.setattr(conv_boxes_sm90, "TILES", ((1, 128),))
    monkeypatch.setattr(conv_boxes_sm90, "CLUSTERS", (2,))
    monkeypatch.setattr(conv_boxes_sm90, "MOST_STAGES", 2)
    choose_weight_tiling.cache_clear()
    setting = SETTINGS["padded"]
    x, dz = whole_numbers((9, *setting.x[1:]), (9, 8, 8, 72))

    def results() -> list[Any]:
        ops = CudaBackend(open_device(0))
        x_, dz_ = (ops.asarray(array, "float16") for array in (x, dz))
        dw, db = ops.conv2d_backward_weight(dz_, x_, (3, 3), **setting.settings)
        assert set(boxes_of(ops).values()) == {True}
        return [dw.numpy(), db.numpy()]

    assert_bits_when_late(monkeypatch, results, blocks=2, warps=12, num_multiprocessors=6)
    choose_weight_tiling.cache_clear()


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("all_tiles", "blocks"), [(False, 2), (True, 5), (True, 2)])
@pytest.mark.parametrize("name", ["padded", "many_channels", "strided"])
def test_gradients_of_weights_however_windows_are_partitioned(
    kernel_runtime: Any,
    any_channels: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    all_tiles: bool,
    blocks: int,
) -> None:
    """Blocks that share a tile, or have several and parts of others."""

    def chosen(geometry: Geometry, *settings: Any) -> Any:
        way = choose_weight_tiling(geometry, *settings)
        tiles = conv_boxes_sm90._weight_tiles(geometry, way.tiling) if all_tiles else 1
        return way._replace(run_tiles=tiles, run_blocks=blocks)

    monkeypatch.setattr(conv_boxes_sm90, "choose_weight_tiling", chosen)
    check(kernel_runtime, SETTINGS[name], "float16")


def test_gradients_of_pooled_windows_are_spread_once(
    kernel_runtime: Any, any_channels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a kernel of their own, as these read arrays."""
    setting, pooled, spread = SETTINGS["many_channels"], (2, 2, 2, 40), []
    x, w, dy = whole_numbers(setting.x, setting.w, pooled)
    indices = np.random.default_rng(0).integers(0, 5, pooled).astype(np.uint8)
    dz = NumpyBackend().max_pool2d_backward(dy, indices, (2, 4, 4, 40), **HALVING)
    ops = CudaBackend(kernel_runtime)
    by_itself = ops.max_pool2d_backward

    def counted(*args: Any, **pool: Any) -> Any:
        spread.append(args)
        return by_itself(*args, **pool)

    monkeypatch.setattr(ops, "max_pool2d_backward", counted)
    x_, w_, dy_ = (ops.asarray(array, "float16") for array in (x, w, dy))
    dz_ = ops.max_pool2d_backward_joined(dy_, ops.asarray(indices), dz.shape, HALVING)
    dw, _ = ops.conv2d_backward_weight(dz_, x_, w.shape[:2], **setting.settings)
    dx = ops.conv2d_backward_input(dz_, w_, x.shape, **setting.settings)
    expected = NumpyBackend().conv2d_backward_weight(dz, x, w.shape[:2], **setting.settings)
    np.testing.assert_array_equal(dw.numpy(), expected[0])
    expected_dx = NumpyBackend().conv2d_backward_input(dz, w, x.shape, **setting.settings)
    np.testing.assert_array_equal(dx.numpy(), expected_dx)
    assert set(boxes_of(ops).values()) == {True}
    assert len(spread) == 1


@pytest.mark.parametrize("size", [1, 4, 7, 8])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "dilation", "padding"), [(3, 1, 1), (2, 2, 0), (1, 1, 0)])
def test_the_phases_of_a_gradient_meet_every_pixel_once(
    size: int, stride: int, kernel: int, dilation: int, padding: int
) -> None:
    """Each tap of each window sees one pixel, of which a phase knows."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    expected = sorted(
        (window * stride + tap * dilation - padding, tap, window)
        for window in range(max(0, count))
        for tap in range(kernel)
        if 0 <= window * stride + tap * dilation - padding < size
    )
    found = []
    for phase in range(stride):
        axis = AxisTaps.adjoint(kernel, stride, padding, dilation, phase)
        for place in range(-(-(size - phase) // stride)):
            for q in range(axis.taps):
                window = place * axis.stride + axis.first + q * axis.step
                if 0 <= window < count:
                    tap = axis.first_tap + q * axis.tap_step
                    found.append((phase + place * stride, tap, window))
    assert sorted(found) == expected


def test_boxes_cover_windows_with_few_others() -> None:
    assert choose_box((512, 32, 32), 128, 1) == (1, 4, 32)
    assert choose_box((512, 8, 8), 128, 1) == (2, 8, 8)
    assert choose_box((512, 4, 4), 256, 1) == (16, 4, 4)
    assert choose_box((3, 24, 24), 64, 1) == (1, 8, 8)
    assert choose_box((1, 2, 300), 128, 2)[2] <= 128


def test_wide_convolutions_take_large_tiles_and_all_multiprocessors() -> None:
    pairs = ((1, 1), (1, 1), (1, 1))
    shape = (512, 8, 8, 256)
    geometry = Geometry(shape, (3, 3, 256, 256), shape, *pairs)
    (part,) = geometry.passes()
    tiling = choose_tiling(geometry, part, 132, MOST_SHARED)
    assert 64 * tiling.mma_rows * 2 * tiling.block_n == 128 * 256
    assert tiling.shared_bytes <= MOST_SHARED
    weights = choose_weight_tiling(geometry, 132, MOST_SHARED)
    assert weights.parts > 1
