"""Batch and layer normalisation.

What backward needs is one array (3, channels) or (3, rows) of the arithmetic type: mean, rest and
1/σ. The rest is what rounding took off the mean, so that a mean far larger than the spread costs no
precision.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from warpfit.backends.base import IDENTITY, Activation, Array
from warpfit.backends.checks import (
    check_activation_backward,
    check_batch_norm,
    check_float,
    check_layer_norm,
    check_parameters,
    check_same_shape,
    check_shape,
)
from warpfit.backends.cuda.arrays import power_of_two
from warpfit.backends.cuda.columns import ColumnOps
from warpfit.backends.cuda.dtypes import acc_dtype

THREADS, WARP, VECTOR_BYTES = 256, 32, 16
# Rows that a thread takes at least where it sums, and where it maps.
ROWS_SUMMED, ROWS_MAPPED = 8, 8
# Threads that sum, but for statistics of more than half precision. Blocks for each multiprocessor
# where blocks sum and must be added, and where they map.
THREADS_SUMMED, BLOCKS_SUMMED, BLOCKS_MAPPED = 512, 1, 32
# Rows that a thread sums at most, in float32 of half precision.
MOST_ROWS = 512
MOST_ROW_BLOCKS = 65535
# Threads along a row where blocks sum: a line of 128 bytes. Narrow tiles leave the last block of
# each tile few sums to add.
WIDTH_SUMMED = 8
# Of layer norm: what a thread keeps of its row, and the widest team.
GROUPS_KEPT, MOST_THREADS_A_ROW = 4, 512


class _Columns(NamedTuple):
    """How a matrix (rows, channels) is spread over blocks whose threads walk down its columns."""

    grid: tuple[int, int]  # tiles of columns, and blocks of rows
    threads: int  # of a block
    # What the kernels call num_rows, channels, width, wide and rows_per_block.
    layout: tuple[int, int, int, int, int]


@lru_cache(maxsize=512)
def _columns(
    num_rows: int,
    channels: int,
    in_vector: int,
    most_blocks: int,
    rows: int,
    most_width: int,
    most_threads: int = THREADS,
) -> _Columns:
    """Spread a matrix, at least `rows` rows a thread; these take `in_vector` columns at once."""
    groups = channels // in_vector
    tiles = -(-groups // most_width)
    width = -(-groups // tiles)
    lines = most_threads // width
    at_least = -(-num_rows // (lines * MOST_ROWS))
    at_most = max(at_least, most_blocks // tiles)
    row_blocks = max(1, min(-(-num_rows // (lines * rows)), at_most, MOST_ROW_BLOCKS))
    rows_per_block = max(1, -(-num_rows // row_blocks))
    grid = (tiles, max(1, -(-num_rows // rows_per_block)))
    threads = -(-width * lines // WARP) * WARP
    return _Columns(grid, threads, (num_rows, channels, width, int(in_vector > 1), rows_per_block))


def _in_vector(channels: int, itemsize: int, pointers: int) -> int:
    """Return how many columns a thread takes: a vector of them, or 1 where vectors are not aligned.

    `pointers` has the bits of all addresses.
    """
    in_vector = VECTOR_BYTES // itemsize
    return 1 if channels % in_vector or pointers % VECTOR_BYTES else in_vector


class _After(NamedTuple):
    """What made y of x̂: y = f(x̂ · weight + bias)."""

    weight: Array | None
    bias: Array | None
    activation: Activation

    @property
    def parameter(self) -> Array | None:
        return self.bias if self.weight is None else self.weight


NOTHING_AFTER = _After(None, None, IDENTITY)


def _defines(x: Array, parameter: Array | None, activation: Activation) -> dict[str, Any]:
    """Return the types of x and of a parameter, any if there is none, and the activation."""
    dtype = x.dtype if parameter is None else parameter.dtype
    return {"DTYPE": x.dtype, "PARAMETER": dtype.name, "ACTIVATION": activation.name}


def _address(array: Array | None) -> int:
    return 0 if array is None else array.pointer


class NormOps(ColumnOps):
    """y = (x - mean) / √(variance + eps) · weight + bias."""

    def batch_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        running_mean: Array,
        running_var: Array,
        *,
        training: bool,
        momentum: float = 0.1,
        eps: float = 1e-5,
        activation: Activation = IDENTITY,
        added: Array | None = None,
    ) -> tuple[Array, tuple[Array]]:
        op = "batch_norm_forward"
        check_parameters(op, x, weight, bias, running_mean, running_var)
        check_float(op, x, added)
        check_shape(op, "added", added, x.shape)
        statistics = {"running_mean": running_mean, "running_var": running_var}
        check_batch_norm(op, x, training, weight=weight, bias=bias, **statistics)
        x, weight, bias = (
            self.contiguous(x),
            self.contiguous_or_none(weight),
            self.contiguous_or_none(bias),
        )
        means, variances = self.contiguous(running_mean), self.contiguous(running_var)
        added = self.contiguous_or_none(added)
        channels = x.shape[-1]
        y = self.empty(x.shape, x.dtype)
        saved = self.empty((3, channels), acc_dtype(x.dtype))
        if not channels:
            return y, (saved,)
        num_rows = x.size // channels
        if training:
            self._batch_statistics(x, means, variances, saved, num_rows, momentum, eps)
            for own, copy in ((running_mean, means), (running_var, variances)):
                if own is not copy:
                    self._copy_into(own, copy)
        # Without rows one block still notes the statistics.
        pointers = x.pointer | y.pointer | _address(added)
        columns = self._spread_to_map(num_rows, channels, x.itemsize, pointers)
        kernel = self.kernel(op, **_defines(x, means, activation), HAS_ADDED=int(added is not None))
        arrays = (x, weight, bias, means, variances, added, saved, y)
        numbers = (eps, activation.slope, training)
        kernel(columns.grid, columns.threads, *arrays, *columns.layout, *numbers)
        return y, (saved,)

    def _spread_to_map(
        self, num_rows: int, channels: int, itemsize: int, pointers: int
    ) -> _Columns:
        """Spread matrices whose addresses have the bits `pointers` over blocks that map them."""
        most = self.runtime.num_multiprocessors * BLOCKS_MAPPED
        return _columns(
            num_rows, channels, _in_vector(channels, itemsize, pointers), most, ROWS_MAPPED, THREADS
        )

    def _spread_to_sum(
        self, num_rows: int, channels: int, itemsize: int, pointers: int, threads: int
    ) -> _Columns:
        """Spread matrices whose addresses have the bits `pointers` over blocks that sum them."""
        most = self.runtime.num_multiprocessors * BLOCKS_SUMMED * THREADS_SUMMED // threads
        return _columns(
            num_rows,
            channels,
            _in_vector(channels, itemsize, pointers),
            most,
            ROWS_SUMMED,
            WIDTH_SUMMED,
            threads,
        )

    def _batch_statistics(
        self,
        x: Array,
        means: Array,
        variances: Array,
        saved: Array,
        num_rows: int,
        momentum: float,
        eps: float,
    ) -> None:
        """Write a batch's statistics to `saved`, and move the running ones."""
        threads = THREADS_SUMMED if x.itemsize == 2 else THREADS
        columns = self._spread_to_sum(num_rows, x.shape[-1], x.itemsize, x.pointer, threads)
        sums = self._block_sums(columns)
        kernel = self.kernel("batch_norm_statistics", DTYPE=x.dtype, PARAMETER=means.dtype.name)
        kernel(
            columns.grid,
            columns.threads,
            x,
            means,
            variances,
            saved,
            *sums,
            *columns.layout,
            momentum,
            eps,
        )

    def _block_sums(self, columns: _Columns) -> tuple[Array, Array]:
        """Return room for the sums of the blocks, and their counters."""
        tiles, row_blocks = columns.grid
        return self.empty((row_blocks, 2, columns.layout[1]), "float64"), self.arrivals(tiles)

    def batch_norm_backward(
        self,
        dy: Array,
        x: Array,
        weight: Array | None,
        saved: tuple[Array],
        *,
        training: bool,
        bias: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array, Array]:
        op = "batch_norm_backward"
        check_float(op, dy, x)
        check_parameters(op, x, weight, bias)
        check_same_shape(op, dy, x)
        check_shape(op, "weight", weight, x.shape[-1:])
        check_shape(op, "bias", bias, x.shape[-1:])
        dy, x = self.contiguous(dy), self.contiguous(x)
        weight, bias = self.contiguous_or_none(weight), self.contiguous_or_none(bias)
        channels = x.shape[-1]
        dx = self.empty(x.shape, x.dtype)
        after = _After(weight, bias, activation)
        dweight, dbias, factor = self._parameter_gradients(
            dy, x, saved[0], (channels,), per_row=False, after=after
        )
        if x.size:
            pointers = dy.pointer | x.pointer | dx.pointer
            columns = self._spread_to_map(x.size // channels, channels, x.itemsize, pointers)
            arrays = (dy, x, weight, bias, saved[0], dweight, dbias, dx)
            kernel = self.kernel(op, **_defines(x, after.parameter, activation))
            numbers = (1 / factor, activation.slope, training)
            kernel(columns.grid, columns.threads, *arrays, *columns.layout, *numbers)
        return dx, dweight, dbias

    def _parameter_gradients(
        self,
        dy: Array,
        x: Array,
        statistics: Array | None,
        shape: tuple[int, ...],
        *,
        per_row: bool,
        after: _After = NOTHING_AFTER,
    ) -> tuple[Array, Array, float]:
        """Return dweight and dbias, of the given shape, and the factor that is in them: half
        precision's loss scale. Without statistics x̂ is x.
        """
        acc = acc_dtype(x.dtype)
        dweight, dbias = self.empty(shape, acc), self.empty(shape, acc)
        factor = 1 / self.loss_scale if x.dtype.itemsize == 2 else 1.0
        size = x.size
        if not size:
            for gradient in (dweight, dbias):
                self.runtime.fill(gradient.pointer, gradient.nbytes)
            return dweight, dbias, factor
        channels = prod(shape)
        pointers = dy.pointer | x.pointer
        columns = self._spread_to_sum(
            size // channels, channels, x.itemsize, pointers, THREADS_SUMMED
        )
        arrays = (dy, x, after.weight, after.bias, statistics)
        sums = (dweight, dbias, *self._block_sums(columns))
        kernel = self.kernel(
            "norm_parameter_gradients", **_defines(x, after.parameter, after.activation)
        )
        numbers = (per_row, factor, after.activation.slope)
        kernel(columns.grid, columns.threads, *arrays, *sums, *columns.layout, *numbers)
        return dweight, dbias, factor

    def bias_gradient(self, activation: Activation, dy: Array, y: Array, z: Array | None) -> Array:
        if activation.needs_input:
            # dz need not be written: f'(z) is found on the way to the sums.
            check_float("bias_gradient", dy, z)
            check_activation_backward("bias_gradient", activation, dy, y, z)
            saved: Any = z
            operands = (self.contiguous(dy), self.contiguous(saved), None, y.shape[-1:])
            after = _After(None, None, activation)
            return self._parameter_gradients(*operands, per_row=False, after=after)[1]
        dz = dy if activation == IDENTITY else self.activation_backward(activation, dy, y, z)
        scale = 1 / self.loss_scale if dz.itemsize == 2 else 1.0
        rows = self.reshape(dz, (prod(dz.shape[:-1]), dz.shape[-1]))
        return self.column_sums(rows, acc_dtype(dz.dtype), scale)

    def layer_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        *,
        num_axes: int = 1,
        eps: float = 1e-5,
    ) -> tuple[Array, tuple[Array]]:
        op = "layer_norm_forward"
        check_float(op, x, weight, bias)
        check_layer_norm(op, x, weight, bias, num_axes)
        x, weight, bias = (
            self.contiguous(x),
            self.contiguous_or_none(weight),
            self.contiguous_or_none(bias),
        )
        row_size = prod(x.shape[x.ndim - num_axes :])
        num_rows = prod(x.shape[: x.ndim - num_axes])
        y = self.empty(x.shape, x.dtype)
        saved = self.empty((3, num_rows), acc_dtype(x.dtype))
        if x.size:
            grid, block = _teams(num_rows, row_size, x.itemsize)
            pointers = x.pointer | y.pointer | _address(weight) | _address(bias)
            wide = _in_vector(row_size, x.itemsize, pointers) > 1
            kernel = self.kernel(op, DTYPE=x.dtype)
            kernel(grid, block, x, weight, bias, y, saved, num_rows, row_size, eps, wide)
        return y, (saved,)

    def layer_norm_backward(
        self, dy: Array, x: Array, weight: Array | None, saved: tuple[Array], *, num_axes: int = 1
    ) -> tuple[Array, Array, Array]:
        op = "layer_norm_backward"
        check_float(op, dy, x, weight)
        check_same_shape(op, dy, x)
        check_layer_norm(op, x, weight, None, num_axes)
        dy, x, weight = self.contiguous(dy), self.contiguous(x), self.contiguous_or_none(weight)
        own_shape = x.shape[x.ndim - num_axes :]
        row_size = prod(own_shape)
        dx = self.empty(x.shape, x.dtype)
        dweight, dbias, _ = self._parameter_gradients(dy, x, saved[0], own_shape, per_row=True)
        if x.size:
            num_rows = x.size // row_size
            grid, block = _teams(num_rows, row_size, x.itemsize)
            pointers = dy.pointer | x.pointer | dx.pointer | _address(weight)
            wide = _in_vector(row_size, x.itemsize, pointers) > 1
            kernel = self.kernel(op, DTYPE=x.dtype)
            kernel(grid, block, dy, x, weight, saved[0], dx, num_rows, row_size, wide)
        return dx, dweight, dbias


def _teams(num_rows: int, row_size: int, itemsize: int) -> tuple[int, tuple[int, int]]:
    """Return grid and block for a team of threads a row, few of which do not fit registers."""
    kept = GROUPS_KEPT * VECTOR_BYTES // itemsize
    threads = min(MOST_THREADS_A_ROW, max(WARP, power_of_two(-(-row_size // kept))))
    rows = THREADS // WARP if threads == WARP else 1
    return -(-num_rows // rows), (threads, rows)
