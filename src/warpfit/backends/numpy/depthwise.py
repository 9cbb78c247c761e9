"""Depthwise convolutions: each channel's own, as a product of numbers for each tap."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.backends.base import Array, Pair
from warpfit.backends.numpy.norm import sum_rows
from warpfit.backends.numpy.windows import taps


def is_depthwise(w_shape: tuple[int, ...], groups: int) -> bool:
    """Whether groups have one channel and one output each."""
    return w_shape[2] == 1 and w_shape[3] == groups


def depthwise_forward(
    ops: Any, x: Array, w: Array, b: Array | None, num_windows: Pair, **windows: Pair
) -> Array:
    """Return z (M, OH, OW, C) for x (M, H, W, C) and w (KH, KW, 1, C)."""
    z = ops.empty((len(x), *num_windows, x.shape[3]), x.dtype)
    z[...] = 0 if b is None else b
    for weights, (of_windows, of_pixels) in _taps(x.shape, w, num_windows, windows):
        z[of_windows] += x[of_pixels] * weights
    return z


def depthwise_backward_input(
    ops: Any, dz: Array, w: Array, x_shape: tuple[int, ...], **windows: Pair
) -> Array:
    """Return dx of shape `x_shape`."""
    dx = ops.empty(x_shape, dz.dtype)
    dx.fill(0)
    for weights, (of_windows, of_pixels) in _taps(x_shape, w, dz.shape[1:3], windows):
        dx[of_pixels] += dz[of_windows] * weights
    return dx


def depthwise_backward_weight(
    ops: Any, dz: Array, x: Array, kernel: Pair, **windows: Pair
) -> Array:
    """Return dw (KH, KW, 1, C)."""
    dw = ops.empty((*kernel, 1, x.shape[3]), x.dtype)
    for own, (of_windows, of_pixels) in _taps(x.shape, dw, dz.shape[1:3], windows):
        own[...] = sum_rows(dz[of_windows] * x[of_pixels])
    return dw


def _taps(x_shape: tuple[int, ...], w: Array, num_windows: Pair, windows: dict[str, Pair]) -> Any:
    """Return for each tap its weights (C,), and the windows and pixels that meet there."""
    kernel = (w.shape[0], w.shape[1])
    settings = (windows["stride"], windows["padding"], windows["dilation"])
    rows = w.reshape(np.prod(kernel), w.shape[3])
    image = (x_shape[1], x_shape[2])
    return zip(rows, taps(image, num_windows, kernel, *settings), strict=True)
