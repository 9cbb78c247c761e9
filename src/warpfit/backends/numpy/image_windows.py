"""A window of each image, wherever its bits say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import Array, Backend, ImageWindows
from warpfit.backends.checks import check_windows, check_windows_backward

AXES = (1, 2)  # of height and width

Places = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


class WindowOps(Backend):
    """Windows of padded images, and what gradient these have by them."""

    def take_windows(self, x: Array, bits: Array, windows: ImageWindows) -> Array:
        check_windows("take_windows", x, bits, windows)
        pads = [(0, 0), *((pad, pad) for pad in windows.padding), (0, 0)]
        padded = np.pad(x, pads, "reflect" if windows.reflects else "constant")
        y = self.empty((len(x), *windows.size, x.shape[3]), x.dtype)
        y[...] = padded[_places(bits, padded.shape, windows.size)]
        return y

    def take_windows_backward(
        self, dy: Array, bits: Array, x_shape: tuple[int, ...], windows: ImageWindows
    ) -> Array:
        check_windows_backward("take_windows_backward", dy, bits, x_shape, windows)
        (count, height, width, channels), padding = x_shape, windows.padding
        padded = (count, height + 2 * padding[0], width + 2 * padding[1], channels)
        of_padded = np.zeros(padded, dy.dtype)
        of_padded[_places(bits, padded, windows.size)] = dy
        for axis, pad in zip(AXES, padding, strict=True):
            of_padded = _folded(of_padded, axis, pad, windows.reflects)
        dx = self.empty(x_shape, dy.dtype)
        dx[...] = of_padded
        return dx


def _places(bits: Array, padded: tuple[int, ...], size: tuple[int, ...]) -> Places:
    """Return images, rows and columns of the pixels of each window."""
    num_bits = bits.shape[-1]
    numbers = (bits != 0) @ (1 << np.arange(num_bits - 1, -1, -1))
    counts = np.array([padded[axis] - size[axis - 1] + 1 for axis in AXES])
    firsts = numbers * counts >> num_bits
    rows, columns = (firsts[:, i, None] + np.arange(size[i]) for i in range(2))
    images = np.arange(len(bits))[:, None, None]
    return images, rows[:, :, None], columns[:, None, :]


def _folded(padded: Array, axis: int, pad: int, reflects: bool) -> Array:
    """Return the gradient of images, given that of what they were padded to along an axis."""
    size, before = padded.shape[axis] - 2 * pad, (slice(None),) * axis
    inner = padded[(*before, slice(pad, pad + size))]
    if not reflects or not pad:
        return inner
    inner = inner.copy()
    inner[(*before, slice(1, pad + 1))] += padded[(*before, slice(pad - 1, None, -1))]
    last = slice(size - 1 - pad, size - 1)
    inner[(*before, last)] += padded[(*before, slice(-1, -pad - 1, -1))]
    return inner
