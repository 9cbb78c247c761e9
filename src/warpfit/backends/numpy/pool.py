"""Max and average pooling: one pass over the output for every tap of the window."""

from __future__ import annotations

from math import prod

import numpy as np

from warpfit.backends.base import Array, Backend, Pair
from warpfit.backends.checks import check_float, check_pool2d, check_pool2d_backward
from warpfit.backends.numpy.parallel import each_rows
from warpfit.backends.numpy.windows import taps


def _take_tap(indices: Array, mask: Array, tap: int) -> None:
    """Write an index where the mask is set: as it only grows, by a maximum, which is quicker."""
    np.maximum(indices, mask.view(np.uint8) * indices.dtype.type(tap), out=indices)


def _first_taps(num_windows: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """Return the index of the first tap of each window that lies inside the image: (OH, OW)."""
    row, column = (
        np.maximum(0, pad - step * np.arange(count))
        for count, step, pad in zip(num_windows, stride, padding, strict=True)
    )
    return row[:, None] * kernel[1] + column


class PoolOps(Backend):
    """The largest entry, or the mean, of every window."""

    def max_pool2d_forward(
        self,
        x: Array,
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
        of_positive: bool = False,
    ) -> tuple[Array, Array]:
        check_float("max_pool2d_forward", x)
        num_windows = check_pool2d("max_pool2d_forward", x.shape, kernel, stride, padding)
        y = self.empty((len(x), *num_windows, x.shape[3]), x.dtype)
        indices = self.empty(y.shape, np.min_scalar_type(prod(kernel) - 1 + of_positive))
        larger = self.empty(y.shape, bool)
        is_padded = padding != (0, 0)
        every_tap = list(taps(x.shape[1:3], num_windows, kernel, stride, padding))

        def pool(x: Array, y: Array, indices: Array, larger: Array) -> None:
            if is_padded:
                y.fill(-np.inf)
                indices[...] = _first_taps(num_windows, kernel, stride, padding)[:, :, None]
            for tap, (of_windows, of_pixels) in enumerate(every_tap):
                pixels, best = x[of_pixels], y[of_windows]
                index, mask = indices[of_windows], larger[of_windows]
                if not tap and not is_padded:
                    np.copyto(best, pixels)
                    index.fill(0)
                    continue
                np.greater(pixels, best, out=mask)
                np.maximum(best, pixels, out=best)
                _take_tap(index, mask, tap)
            if of_positive:
                np.logical_not(np.greater(y, 0, out=larger), out=larger)
                _take_tap(indices, larger, prod(kernel))

        each_rows(pool, x, y, indices, larger)
        return y, indices

    def max_pool2d_backward(
        self,
        dy: Array,
        indices: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        op = "max_pool2d_backward"
        num_windows = check_pool2d_backward(op, dy, x_shape, kernel, stride, padding, indices)
        dx = self.empty(x_shape, dy.dtype)
        uncovered = (size % step for size, step in zip(x_shape[1:3], kernel, strict=True))
        leaves_out = stride != kernel or any(padding) or any(uncovered)
        chosen, share = self.empty(dy.shape, bool), self.empty(dy.shape, dy.dtype)
        windows_overlap = stride[0] < kernel[0] or stride[1] < kernel[1]
        image = (x_shape[1], x_shape[2])
        every_tap = list(taps(image, num_windows, kernel, stride, padding))

        def spread(dx: Array, dy: Array, indices: Array, chosen: Array, share: Array) -> None:
            if leaves_out:
                dx.fill(0)
            for tap, (of_windows, of_pixels) in enumerate(every_tap):
                np.equal(indices, tap, out=chosen)
                if windows_overlap:
                    np.multiply(dy, chosen, out=share)
                    dx[of_pixels] += share[of_windows]
                else:
                    np.multiply(dy[of_windows], chosen[of_windows], out=dx[of_pixels])

        each_rows(spread, dx, dy, indices, chosen, share)
        return dx

    def avg_pool2d_forward(
        self, x: Array, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
    ) -> Array:
        check_float("avg_pool2d_forward", x)
        num_windows = check_pool2d("avg_pool2d_forward", x.shape, kernel, stride, padding)
        y = self.empty((len(x), *num_windows, x.shape[3]), x.dtype)
        y.fill(0)
        for of_windows, of_pixels in taps(x.shape[1:3], num_windows, kernel, stride, padding):
            y[of_windows] += x[of_pixels]
        y *= 1 / prod(kernel)
        return y

    def avg_pool2d_backward(
        self,
        dy: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        op = "avg_pool2d_backward"
        num_windows = check_pool2d_backward(op, dy, x_shape, kernel, stride, padding)
        share = np.multiply(dy, 1 / prod(kernel), out=self.empty(dy.shape, dy.dtype))
        dx = self.empty(x_shape, dy.dtype)
        dx.fill(0)
        for of_windows, of_pixels in taps(
            (x_shape[1], x_shape[2]), num_windows, kernel, stride, padding
        ):
            dx[of_pixels] += share[of_windows]
        return dx
