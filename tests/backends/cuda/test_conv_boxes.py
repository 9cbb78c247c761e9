"""Convolutions in boxes of windows: exact for whole numbers, whatever shape, stride and tile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from backends.cuda.test_conv_sm90 import whole_numbers
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend, conv_boxes_sm90
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_boxes_sm90 import (
    choose_tiling,
    choose_weight_tiling,
)

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


def check(runtime: Any, setting: Setting, dtype: str, *, weights: bool = True) -> None:
    relu, settings = Activation("relu"), setting.settings
    x, w, b = whole_numbers(setting.x, setting.w, setting.w[3:])
    y, _ = NumpyBackend().conv2d_forward(x, w, b, **settings, activation=relu)
    (dz,) = whole_numbers(y.shape)
    ops = CudaBackend(runtime)
    x_, w_, b_, dz_ = (ops.asarray(array, dtype) for array in (x, w, b, dz))
    found, _ = ops.conv2d_forward(x_, w_, b_, **settings, activation=relu)
    np.testing.assert_array_equal(found.numpy(), y)
    dx = NumpyBackend().conv2d_backward_input(
        dz, w, x.shape, **settings, x=np.abs(x), x_activation=relu
    )
    saved = ops.asarray(np.abs(x), dtype)
    found = ops.conv2d_backward_input(dz_, w_, x.shape, **settings, x=saved, x_activation=relu)
    np.testing.assert_array_equal(found.numpy(), dx)
    if weights:
        dw, db = NumpyBackend().conv2d_backward_weight(dz, x, w.shape[:2], **settings)
        found_dw, found_db = ops.conv2d_backward_weight(dz_, x_, w.shape[:2], **settings)
        np.testing.assert_array_equal(found_dw.numpy(), dw)
        np.testing.assert_array_equal(found_db.numpy(), db)
    assert set(boxes_of(ops).values()) == {True}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_whole_numbers_give_exact_results(
    kernel_runtime_of_any_order: Any, any_channels: None, name: str, dtype: str
) -> None:
    check(kernel_runtime_of_any_order, SETTINGS[name], dtype)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", ["padded", "many_channels", "strided", "one_tap_strided"])
def test_every_tile_gives_exact_results(
    kernel_runtime: Any, any_channels: None, tile: tuple[int, int, int], name: str
) -> None:
    check(kernel_runtime, SETTINGS[name], "float16", weights=tile[1] // 64 % tile[2] == 0)
