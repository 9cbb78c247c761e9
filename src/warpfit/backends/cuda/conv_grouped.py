"""Convolutions in groups: narrow ones by kernels of their own, wide ones group by group; others as
those of one group.
"""

from __future__ import annotations

from itertools import chain
from math import prod

from warpfit.backends.base import Activation, Array, Pair, Pairs
from warpfit.backends.checks import check_conv2d, check_groups, check_shape
from warpfit.backends.cuda.conv_depthwise import Grouped, Strips
from warpfit.backends.cuda.conv_grouped_mma import GroupTile, GroupTileOps
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.grouped import (
    backward_input_by_group,
    backward_weight_by_group,
    forward_by_group,
)

Shape = tuple[int, ...]

THREADS, COLUMNS = 256, 32
# Channels and outputs of a group from which on kernels for one group are the quickest.
LEAST_OF_PRODUCT = 4
# Those from which on a group in half precision, which has more kernels, is a convolution apart.
LEAST_WIDE = 32
# Blocks of a multiprocessor that share the windows of a gradient of weights.
BLOCKS_SUMMED = 8


def _is_product(w_shape: Shape, groups: int, itemsize: int) -> bool:
    least = min(w_shape[2], w_shape[3] // groups)
    return least >= LEAST_OF_PRODUCT and (least < LEAST_WIDE or itemsize > 2)


def _is_wide(w_shape: Shape, groups: int) -> bool:
    return min(w_shape[2], w_shape[3] // groups) >= LEAST_WIDE


class GroupedOps(GroupTileOps):
    """Convolutions whose channels fall into groups, each of which makes outputs of its own. Methods
    return None where the kernels for one group take them.
    """

    def grouped_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        pairs: Pairs,
        groups: int,
        activation: Activation,
    ) -> tuple[Array, Array | None] | None:
        """Return what `conv2d_forward` does; `pairs` are stride, padding and dilation."""
        op = "conv2d_forward"
        counts = check_conv2d(op, x.shape, w.shape, *pairs, groups)
        check_shape(op, "b", b, w.shape[3:])
        b = self.contiguous_or_none(b)
        shape = _grouped(x, x.shape, counts, w.shape, pairs)
        how = self._how(shape, x.shape, w.shape, x, w)
        if how is None and _is_product(w.shape, groups, x.itemsize):
            return None
        if how is None and _is_wide(w.shape, groups):
            return forward_by_group(self, x, w, b, pairs, groups, activation)
        y = self.empty((x.shape[0], *counts, w.shape[3]), x.dtype)
        z = self.empty(y.shape, y.dtype) if activation.needs_input else None
        if isinstance(how, Strips):
            self.convolve_strips(shape, how, x, w, y, b, z, activation)
        elif how is not None:
            self.convolve_tiles(shape, how, x, w, y, b, z, activation)
        elif y.size:
            own = {"ACTIVATION": activation.name, "STORE_Z": int(activation.needs_input)}
            kernel = self.kernel("conv2d_grouped_forward", DTYPE=x.dtype, **own)
            sizes = _sizes(x.shape, w.shape, counts, pairs, groups)
            arrays = (x, w, b, y, z, activation.slope, prod(y.shape[:3]))
            kernel(-(-y.size // THREADS), THREADS, *arrays, *sizes)
        return y, z

    def grouped_backward_input(
        self, dz: Array, w: Array, x_shape: Shape, pairs: Pairs, groups: int
    ) -> Array | None:
        """Return dx."""
        op = "conv2d_backward_input"
        counts = check_conv2d(op, x_shape, w.shape, *pairs, groups)
        check_shape(op, "dz", dz, (x_shape[0], *counts, w.shape[3]))
        shape = _grouped(dz, dz.shape, x_shape[1:3], w.shape, pairs)._replace(is_adjoint=True)
        how = self._how(shape, x_shape, w.shape, dz, w)
        if how is None and _is_product(w.shape, groups, dz.itemsize):
            return None
        if how is None and _is_wide(w.shape, groups):
            return backward_input_by_group(self, dz, w, x_shape, pairs, groups)
        dx = self.empty(x_shape, dz.dtype)
        if isinstance(how, Strips):
            self.convolve_strips(shape, how, dz, w, dx)
        elif how is not None:
            self.convolve_tiles(shape, how, dz, w, dx)
        elif dx.size:
            kernel = self.kernel("conv2d_grouped_backward_input", DTYPE=dz.dtype)
            sizes = _sizes(x_shape, w.shape, counts, pairs, groups)
            kernel(-(-dx.size // THREADS), THREADS, dz, w, dx, prod(x_shape[:3]), *sizes)
        return dx

    def grouped_backward_weight(
        self,
        dz: Array,
        x: Array,
        kernel_size: Pair,
        pairs: Pairs,
        groups: int,
        needs_db: bool,
    ) -> tuple[Array, Array | None] | None:
        """Return dw and db as `conv2d_backward_weight` does."""
        op = "conv2d_backward_weight"
        check_groups(op, groups)
        w_shape = (*kernel_size, x.shape[3] // groups, dz.shape[3])
        counts = check_conv2d(op, x.shape, w_shape, *pairs, groups)
        check_shape(op, "dz", dz, (x.shape[0], *counts, w_shape[3]))
        dtype, scale = acc_dtype(x.dtype), 1 / self.loss_scale if x.itemsize == 2 else 1.0
        shape = _grouped(x, x.shape, counts, w_shape, pairs)._replace(is_of_weights=True)
        how = self._how(shape, x.shape, w_shape, dz, x)
        if how is None and _is_product(w_shape, groups, x.itemsize):
            return None
        if isinstance(how, Strips):
            partials = self.gradients_of_strips(shape, how, dz, x)
        elif how is not None:
            partials = self.gradients_of_tiles(shape, how, dz, x)
        elif _is_wide(w_shape, groups):
            return backward_weight_by_group(self, dz, x, kernel_size, pairs, groups, needs_db)
        else:
            sizes = _sizes(x.shape, w_shape, counts, pairs, groups)
            partials = self._any_gradients(dz, x, w_shape, sizes)
        dw = self.reshape(self.column_sums(partials, dtype, scale), w_shape)
        if not needs_db:
            return dw, None
        rows = self.reshape(dz, (prod(dz.shape[:3]), w_shape[3]))
        return dw, self.column_sums(rows, dtype, scale)

    def _any_gradients(self, dz: Array, x: Array, w_shape: Shape, sizes: tuple[int, ...]) -> Array:
        """Return parts of the weights' gradient, to be added up."""
        num_windows, rows = prod(dz.shape[:3]), prod(w_shape[:3])
        tiles = -(-w_shape[3] // COLUMNS)
        most = BLOCKS_SUMMED * self.runtime.num_multiprocessors // max(1, tiles * rows)
        parts = max(1, min(most, num_windows // THREADS))
        partials = self.empty((parts, prod(w_shape)), acc_dtype(x.dtype))
        kernel = self.kernel("conv2d_grouped_backward_weight", DTYPE=x.dtype)
        if partials.size:
            kernel((rows * tiles, 1, parts), THREADS, *(dz, x, partials, num_windows), *sizes)
        return partials

    def _how(
        self, shape: Grouped, x_shape: Shape, w_shape: Shape, *operands: Array
    ) -> Strips | GroupTile | None:
        """Return how the quick kernels compute what has numbers; None if they do not."""
        if w_shape[3] != x_shape[3] or not prod(x_shape) or not prod(w_shape):
            return None
        of = self.strips_of if shape.group == 1 else self.group_tile_of
        return of(shape, *operands)


def _grouped(operand: Array, read: Shape, made: Shape, w_shape: Shape, pairs: Pairs) -> Grouped:
    kernel, of_result = (w_shape[0], w_shape[1]), (made[0], made[1])
    stride, padding, dilation = ((int(h), int(w)) for h, w in pairs)  # lists, perhaps
    dtype, group = operand.dtype.name, w_shape[2]
    return Grouped(dtype, group, read, of_result, kernel, stride, padding, dilation)


def _sizes(
    x_shape: Shape, w_shape: Shape, counts: Pair, pairs: Pairs, groups: int
) -> tuple[int, ...]:
    """Return what all kernels take last."""
    of_images = (*x_shape[1:3], *counts, *w_shape[:2], *chain(*pairs))
    return (*of_images, x_shape[3], w_shape[3], w_shape[2], w_shape[3] // groups)
