"""Convolutions on Hopper's tensor cores: exact for whole numbers, whatever the shape, the band and
the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import on_emulator
from support.devices import assert_bits_when_late
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend, conv_few, conv_sm90
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_few import FewBand, FewTiles, choose_few_band
from warpfit.backends.cuda.conv_sm90 import Band, Windows, choose_band, row_counts
from warpfit.backends.cuda.conv_weights_sm90 import choose_weight_band
from warpfit.backends.cuda.pool import HALVING, PooledGradient
from warpfit.backends.cuda.runtime import open_device
from warpfit.errors import ShapeError

MOST_SHARED = shared_bytes_of("sm_90a")


class Setting(NamedTuple):
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        return {"padding": self.padding, "dilation": self.dilation}

    @property
    def windows(self) -> Windows:
        y, _ = NumpyBackend().conv2d_forward(np.zeros(self.x), np.zeros(self.w), None, **self.pairs)
        return Windows.forward(self.x, self.w, y.shape[1:3], self.padding, self.dilation)


SETTINGS = {
    "squares": Setting((2, 10, 18, 16), (3, 3, 16, 32)),
    "in_order": Setting((2, 9, 8, 32), (3, 2, 32, 16)),
    "padded": Setting((1, 12, 11, 16), (3, 3, 16, 48), padding=(1, 2)),
    "dilated": Setting((1, 12, 11, 16), (2, 3, 16, 16), (2, 0), (2, 3)),
    "padded_beyond_the_kernel": Setting((1, 5, 4, 16), (3, 4, 16, 16), padding=(4, 3)),
    "one_tap": Setting((3, 7, 5, 48), (1, 1, 48, 16)),
    "many_outputs": Setting((1, 6, 6, 16), (3, 3, 16, 128)),
    "gray": Setting((3, 9, 9, 1), (3, 3, 1, 32)),
    "colours": Setting((2, 9, 10, 3), (5, 5, 3, 80), padding=(2, 1)),
    "few_colours": Setting((2, 9, 10, 3), (3, 3, 3, 32), (1, 2), (2, 1)),
    "no_whole_pieces": Setting((2, 7, 8, 12), (3, 3, 12, 32), padding=(0, 1)),
    "a_slice_and_a_half": Setting((2, 7, 8, 24), (2, 2, 24, 64)),
    "gray_to_24": Setting((3, 9, 9, 1), (5, 5, 1, 24)),
}


def whole_numbers(*shapes: tuple[int, ...]) -> Iterator[Any]:
    """Yield numbers so small that sums are exact in bfloat16 too."""
    rng = np.random.default_rng(0)
    for shape in shapes:
        yield rng.integers(-1, 2, shape).astype("float64") * (rng.random(shape) < 0.5)


def kernels_of(ops: CudaBackend) -> dict[str, bool]:
    """Return for each operation so far whether it was done by these kernels."""
    return {
        key[0]: launch.windows is not None or launch.weights is not None
        for key, launch in ops._launches.items()
    }


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_whole_numbers_give_exact_results(
    kernel_runtime_of_any_order: Any, name: str, dtype: str
) -> None:
    setting, relu = SETTINGS[name], Activation("relu")
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    y, _ = NumpyBackend().conv2d_forward(x, w, b, **setting.pairs, activation=relu)
    (dz,) = whole_numbers(y.shape)
    dx = NumpyBackend().conv2d_backward_input(dz, w, x.shape, **setting.pairs)
    dw, db = NumpyBackend().conv2d_backward_weight(dz, x, w.shape[:2], **setting.pairs)
    ops = CudaBackend(kernel_runtime_of_any_order)
    x_, w_, b_, dz_ = (ops.asarray(array, dtype) for array in (x, w, b, dz))
    found, _ = ops.conv2d_forward(x_, w_, b_, **setting.pairs, activation=relu)
    np.testing.assert_array_equal(found.numpy(), y)
    found = ops.conv2d_backward_input(dz_, w_, x.shape, **setting.pairs)
    np.testing.assert_array_equal(found.numpy(), dx)
    found_dw, found_db = ops.conv2d_backward_weight(dz_, x_, w.shape[:2], **setting.pairs)
    np.testing.assert_array_equal(found_dw.numpy(), dw)
    np.testing.assert_array_equal(found_db.numpy(), db)
    by_other = set() if setting.x[3] % 16 in (0, 8) else {"conv2d_backward_input"}
    assert {op for op, is_own in kernels_of(ops).items() if not is_own} == by_other


def take_small_bands(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    """Let blocks take the smallest bands, one after the other or the next ahead."""

    def choose(windows: Windows, *_: int) -> Band | None:
        counts = reversed(row_counts(windows.result[0], windows.pools))
        bands = (conv_sm90._band(windows, rows, MOST_SHARED, stages) for rows in counts)
        return next(filter(None, bands), None)

    monkeypatch.setattr(conv_sm90, "choose_band", choose)


@pytest.mark.in_turns(3)
@on_emulator
@pytest.mark.parametrize(("name", "stages"), [("squares", 1), ("squares", 2), ("gray", 1)])
def test_a_band_is_overwritten_only_when_all_have_read_it(
    monkeypatch: pytest.MonkeyPatch, name: str, stages: int
) -> None:
    """One multiprocessor, so that blocks take several bands, whichever warp is late."""
    take_small_bands(monkeypatch, stages)
    setting = SETTINGS[name]
    x, w, dz = whole_numbers(
        (4, *setting.x[1:]), setting.w, (4, *setting.windows.result, setting.w[3])
    )

    def results() -> list[Any]:
        ops = CudaBackend(open_device(0))
        x_, w_, dz_ = (ops.asarray(array, "float16") for array in (x, w, dz))
        y, _ = ops.conv2d_forward(x_, w_, None, **setting.pairs)
        pooled, indices = ops.conv2d_pooled_forward(x_, w_, None, pool=HALVING, **setting.pairs)
        dw, db = ops.conv2d_backward_weight(dz_, x_, setting.w[:2], **setting.pairs)
        assert set(kernels_of(ops).values()) == {True}
        return [array.numpy() for array in (y, pooled, indices, dw, db)]

    assert_bits_when_late(monkeypatch, results, blocks=2, warps=16, num_multiprocessors=1)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("name", ["squares", "in_order", "padded", "a_slice_and_a_half"])
def test_warps_of_their_own_load_the_next_band(
    kernel_runtime_of_any_order: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    take_small_bands(monkeypatch, 2)
    setting, relu = SETTINGS[name], Activation("relu")
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    y, _ = NumpyBackend().conv2d_forward(x, w, b, **setting.pairs, activation=relu)
    ops = CudaBackend(kernel_runtime_of_any_order)
    on_device = (ops.asarray(array, "float16") for array in (x, w, b))
    found, _ = ops.conv2d_forward(*on_device, **setting.pairs, activation=relu)
    np.testing.assert_array_equal(found.numpy(), y)
    ((_, band),) = [launch.windows for launch in ops._launches.values()]
    assert band.stages == 2


@pytest.mark.parametrize("has_bias", [False, True])
def test_z_is_kept_if_the_activation_needs_it(kernel_runtime: Any, has_bias: bool) -> None:
    setting, gelu = SETTINGS["in_order"], Activation("gelu")
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    given = (x, w, b if has_bias else None)
    y, z = NumpyBackend().conv2d_forward(*given, activation=gelu)
    ops = CudaBackend(kernel_runtime)
    on_device = [None if array is None else ops.asarray(array, "float16") for array in given]
    found_y, found_z = ops.conv2d_forward(*on_device, activation=gelu)
    np.testing.assert_allclose(found_y.numpy(), y, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found_z.numpy(), z)


POOLED = {
    "halved": SETTINGS["squares"],
    "halved_with_a_rest": Setting((2, 13, 20, 16), (3, 2, 16, 64)),
    "halved_gray": Setting((2, 12, 9, 1), (3, 3, 1, 32), padding=(1, 1)),
    "halved_thrice_16": Setting((1, 20, 7, 16), (3, 3, 16, 48)),
    "halved_gray_to_24": Setting((2, 12, 12, 1), (5, 5, 1, 24)),
    "halved_of_24": Setting((2, 7, 8, 24), (3, 3, 24, 32)),
    "halved_24_to_64": Setting((2, 9, 8, 24), (3, 3, 24, 64), padding=(1, 1)),
}


def test_images_whose_numbers_32_bits_do_not_count(
    kernel_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other kernels take few channels of them; their gradient is not left to be spread."""
    ops, windows = CudaBackend(kernel_runtime), SETTINGS["gray"].windows
    assert isinstance(ops.tiles_of(windows, "float16", 1), FewTiles)
    monkeypatch.setattr(conv_few, "MOST_NUMBERS", windows.image[0] * windows.image[1])
    assert not isinstance(ops.tiles_of(windows, "float16", 1), FewTiles)
    assert not isinstance(ops.weight_tiles_of(windows, "float16", 1), FewBand)
    size = (1, 2**15, 2**15, 2)
    dy = ops.zeros((1, 1, 1, 1), "float32").view(size, (0,) * 4)
    indices = ops.zeros((1, 1, 1, 1), "uint8").view(size, (0,) * 4)
    with pytest.raises(ShapeError, match="expected images of less than 2"):
        ops.max_pool2d_backward_joined(dy, indices, (1, 2**16, 2**16, 2), HALVING)


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", POOLED)
def test_windows_are_pooled(kernel_runtime_of_any_order: Any, name: str, dtype: str) -> None:
    """Whole numbers are often equal: the first in a window counts."""
    setting, relu = POOLED[name], Activation("relu")
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    settings = {**setting.pairs, "activation": relu, "pool": HALVING}
    y, indices = NumpyBackend().conv2d_pooled_forward(x, w, b, **settings)
    assert set(np.unique(indices)) == {0, 1, 2, 3, 4}
    ops = CudaBackend(kernel_runtime_of_any_order)
    on_device = (ops.asarray(array, dtype) for array in (x, w, b))
    found, found_indices = ops.conv2d_pooled_forward(*on_device, **settings)
    assert found_indices.dtype == indices.dtype
    np.testing.assert_array_equal(found.numpy(), y)
    np.testing.assert_array_equal(found_indices.numpy(), indices)
    assert kernels_of(ops) == {"conv2d_pooled_forward": True}


def test_pooled_nan_comes_through(kernel_runtime: Any) -> None:
    setting = SETTINGS["squares"]
    x, w = whole_numbers(setting.x, setting.w)
    x[0, 4, 5, 3] = np.nan
    y, _ = NumpyBackend().conv2d_pooled_forward(x, w, None, pool=HALVING)
    ops = CudaBackend(kernel_runtime)
    on_device = (ops.asarray(array, "float16") for array in (x, w))
    found, _ = ops.conv2d_pooled_forward(*on_device, None, pool=HALVING)
    assert np.isnan(y).any()
    np.testing.assert_array_equal(found.numpy(), y)


@pytest.mark.parametrize(
    "pool",
    [
        {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)},
        {"kernel": (2, 2), "stride": (1, 1), "padding": (0, 0)},
    ],
)
def test_other_pooling_follows_the_convolution(kernel_runtime: Any, pool: Any) -> None:
    setting = SETTINGS["padded"]
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    y, indices = NumpyBackend().conv2d_pooled_forward(x, w, b, **setting.pairs, pool=pool)
    ops = CudaBackend(kernel_runtime)
    on_device = (ops.asarray(array, "float16") for array in (x, w, b))
    found, found_indices = ops.conv2d_pooled_forward(*on_device, **setting.pairs, pool=pool)
    np.testing.assert_array_equal(found.numpy(), y)
    np.testing.assert_array_equal(found_indices.numpy(), indices)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_derivative_of_the_activation_below(kernel_runtime: Any, shift: int) -> None:
    setting, relu = SETTINGS["padded"], Activation("relu")
    dz, w, x = whole_numbers(
        (*setting.x[:1], *setting.windows.result, setting.w[3]), setting.w, setting.x
    )
    x = np.maximum(x, 0)
    given = {"x": x, "x_activation": relu}
    dx = NumpyBackend().conv2d_backward_input(dz, w, x.shape, **setting.pairs, **given)
    ops = CudaBackend(kernel_runtime)
    dz_, w_, whole = (
        ops.asarray(array, "float16") for array in (dz, w, np.append(np.ones(shift), x))
    )
    x_ = whole[shift:].view(x.shape, ops.asarray(x, "float16").strides)
    given = {"x": x_, "x_activation": relu}
    found = ops.conv2d_backward_input(dz_, w_, x.shape, **setting.pairs, **given)
    np.testing.assert_array_equal(found.numpy(), dx)


def test_arrays_that_begin_anywhere_are_left_to_the_other_kernel(kernel_runtime: Any) -> None:
    setting = SETTINGS["in_order"]
    x, w = whole_numbers(setting.x, setting.w)
    y, _ = NumpyBackend().conv2d_forward(x, w, None)
    ops = CudaBackend(kernel_runtime)
    whole = ops.asarray(np.concatenate([[9.0], x.ravel()]), "float16")
    w_ = ops.asarray(w, "float16")
    moved = whole[1:].view(x.shape, ops.asarray(x, "float16").strides)
    found, _ = ops.conv2d_forward(moved, w_, None)
    np.testing.assert_array_equal(found.numpy(), y)
    assert kernels_of(ops) == {"conv2d_forward": False}


@pytest.mark.parametrize("num_images", [1, 64, 512])
@pytest.mark.parametrize("name", SETTINGS)
def test_bands_and_tiles_cover_the_windows(name: str, num_images: int) -> None:
    forward = SETTINGS[name].windows
    weight_band = choose_weight_band(forward, num_images, 132, MOST_SHARED)
    assert weight_band is not None
    assert weight_band.num_slices * 16 >= weight_band.rows * forward.pitch
    assert weight_band.warpgroups * weight_band.kernel_rows >= forward.kernel[0]
    assert weight_band.shared_bytes <= MOST_SHARED
    for windows in (forward, forward.adjoint):
        if not windows.are_possible:
            continue
        band = choose_band(windows, num_images, 132, MOST_SHARED)
        assert band is not None
        assert band.shared_bytes <= MOST_SHARED
        height, width = windows.result
        assert 1 <= band.rows <= -(-height // 8) * 8
        if band.tiles_across:
            down = band.num_tiles // band.tiles_across
            assert (8 * down >= min(band.rows, height), 8 * band.tiles_across >= width) == (1, 1)
        else:
            assert band.num_tiles * 64 >= (band.rows - 1) * windows.pitch + width


@pytest.mark.parametrize(("name", "block_o"), [("gray", 32), ("few_colours", 32), ("colours", 16)])
def test_few_channels_and_their_taps_are_rows_of_one_product(name: str, block_o: int) -> None:
    windows = SETTINGS[name].windows
    band = choose_few_band(windows, 512, 132, MOST_SHARED)
    assert band is not None
    assert band.block_o == block_o
    assert band.num_slices * 16 >= band.rows * windows.pitch
    assert 2 * (band.shared_bytes + 1024) <= MOST_SHARED + 1024
    assert band.x_numbers >= (band.rows + windows.kernel[0] - 1) * windows.pitch * windows.channels


def test_taps_of_many_channels_are_rows_of_several_products() -> None:
    for windows in (SETTINGS["squares"].windows, Setting((1, 9, 9, 4), (7, 7, 4, 64)).windows):
        assert choose_few_band(windows, 512, 132, MOST_SHARED) is None


def test_more_blocks_where_there_are_few_images() -> None:
    windows = Setting((1, 26, 26, 32), (3, 3, 32, 64)).windows
    few, many = (choose_band(windows, count, 132, MOST_SHARED) for count in (64, 512))
    assert few is not None
    assert many is not None
    assert few.rows < many.rows == 24
    assert many.tiles_across == 3  # 24 by 24 windows are whole squares


def test_a_convolution_whose_weights_do_not_fit_is_left_to_the_other_kernel() -> None:
    assert (
        choose_band(Setting((1, 9, 9, 512), (3, 3, 512, 64)).windows, 64, 132, MOST_SHARED) is None
    )


def test_the_loss_scale_leaves_gradients_of_weights(kernel_runtime: Any) -> None:
    setting = SETTINGS["in_order"]
    dz, x = whole_numbers((*setting.x[:1], *setting.windows.result, setting.w[3]), setting.x)
    dw, db = NumpyBackend().conv2d_backward_weight(dz, x, setting.w[:2])
    ops = CudaBackend(kernel_runtime, loss_scale=4.0)
    on_device = (ops.asarray(array, "float16") for array in (4 * dz, x))
    found_dw, found_db = ops.conv2d_backward_weight(*on_device, setting.w[:2])
    np.testing.assert_array_equal(found_dw.numpy(), dw)
    np.testing.assert_array_equal(found_db.numpy(), db)
    assert (
        ops.conv2d_backward_weight(
            *(ops.asarray(array, "float16") for array in (dz, x)), setting.w[:2], needs_db=False
        )[1]
        is None
    )


@pytest.mark.parametrize("channels", [8, 16, 24, 32, 48, 64, 128])
def test_pieces_that_are_copied_together_go_to_different_banks(channels: int) -> None:
    planes, stride = channels // 8, conv_sm90.plane_bytes(100, channels) // 16
    assert stride >= 100
    pieces = [(i // planes + i % planes * stride) % 8 for i in range(8)]
    assert len(set(pieces)) == 8 or 8 % planes


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", POOLED)
def test_gradients_of_pooled_windows_are_spread_as_they_are_read(
    kernel_runtime_of_any_order: Any, name: str, dtype: str
) -> None:
    setting, numpy = POOLED[name], NumpyBackend()
    shape = (setting.x[0], *setting.windows.result, setting.w[3])
    pooled = (shape[0], shape[1] // 2, shape[2] // 2, shape[3])
    x, w, dy = whole_numbers(setting.x, setting.w, pooled)
    indices = np.random.default_rng(0).integers(0, 5, pooled).astype(np.uint8)
    dz = numpy.max_pool2d_backward_joined(dy, indices, shape, HALVING)
    dx = numpy.conv2d_backward_input(dz, w, x.shape, **setting.pairs)
    dw, db = numpy.conv2d_backward_weight(dz, x, w.shape[:2], **setting.pairs)
    ops = CudaBackend(kernel_runtime_of_any_order)
    x_, w_, dy_ = (ops.asarray(array, dtype) for array in (x, w, dy))
    dz_ = ops.max_pool2d_backward_joined(dy_, ops.asarray(indices), shape, HALVING)
    assert isinstance(dz_, PooledGradient)
    found_dw, found_db = ops.conv2d_backward_weight(dz_, x_, w.shape[:2], **setting.pairs)
    np.testing.assert_array_equal(found_dw.numpy(), dw)
    np.testing.assert_array_equal(found_db.numpy(), db)
    found = ops.conv2d_backward_input(dz_, w_, x.shape, **setting.pairs)
    np.testing.assert_array_equal(found.numpy(), dx)
    by_other = set() if setting.x[3] % 16 in (0, 8) else {"conv2d_backward_input"}
    assert {op for op, is_own in kernels_of(ops).items() if not is_own} == by_other


@pytest.mark.parametrize(
    ("pool", "dtype"),
    [
        ({"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}, "float16"),
        (HALVING, "float32"),
    ],
)
def test_other_gradients_of_pooling_are_arrays(kernel_runtime: Any, pool: Any, dtype: str) -> None:
    numpy, (x, dy) = NumpyBackend(), whole_numbers((1, 4, 6, 8), (1, 2, 3, 8))
    _, indices = numpy.max_pool2d_forward(x, **pool)
    dx = numpy.max_pool2d_backward_joined(dy, indices, x.shape, pool)
    ops = CudaBackend(kernel_runtime)
    given = ops.asarray(dy, dtype), ops.asarray(indices)
    found = ops.max_pool2d_backward_joined(*given, x.shape, pool)
    np.testing.assert_array_equal(found.numpy(), dx)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("w", [(1, 1, 1040, 16), (1, 1, 16, 1040)])
def test_channels_for_which_a_warpgroup_has_too_few_threads(
    kernel_runtime: Any, w: tuple[int, int, int, int]
) -> None:
    ops, reference = CudaBackend(kernel_runtime), NumpyBackend()
    x, weights = whole_numbers((1, 4, 4, w[2]), w)
    y, _ = reference.conv2d_forward(x, weights, None)
    on_device = [ops.asarray(array, "float16") for array in (x, weights)]
    np.testing.assert_array_equal(ops.conv2d_forward(*on_device, None)[0].numpy(), y)
    (dz,) = whole_numbers(y.shape)
    dx = ops.conv2d_backward_input(ops.asarray(dz, "float16"), on_device[1], x.shape)
    np.testing.assert_array_equal(dx.numpy(), reference.conv2d_backward_input(dz, weights, x.shape))
