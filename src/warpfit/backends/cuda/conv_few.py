"""How convolutions of images with few channels, and the gradients of their weights, are computed:
taps and channels together are the k, or the rows, of one product.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from warpfit.backends.base import IDENTITY, Activation, Array
from warpfit.backends.cuda.conv_sm90 import (
    BLOCKS_N,
    BYTES_A_CYCLE,
    CYCLES_OF_BAND,
    DEPTH,
    IN_PIECE,
    RESERVED_BYTES,
    SIDE,
    WAITED_CYCLES,
    Band,
    Windows,
    result_defines,
    row_counts,
)
from warpfit.backends.cuda.conv_weights_sm90 import WeightBand, WeightOps
from warpfit.backends.cuda.pool import PooledGradient

KERNEL, WEIGHT_KERNEL, THREADS = "conv2d_few_mma", "conv2d_backward_weight_few_mma", 256
BLOCKS_O = (64, 32, 24, 16)
# Words of weights, or sums, of a thread; bands on their way or at work; blocks of a multiprocessor,
# and those of the forward pass for which it has room.
MOST_WORDS, MOST_SUMS, STAGES, BLOCKS, FORWARD_BLOCKS = 32, 64, 3, 2, 4
MOST_NUMBERS = 2**31


class FewBand(NamedTuple):
    """How the gradient of weights for few channels is computed."""

    # rows and num_slices: rows of windows that come to shared memory at once, and the slices of 16
    # that they are.
    rows: int
    num_slices: int
    block_o: int  # outputs of a block
    # x_numbers and shared_bytes: numbers of an image that a stage has room for, and bytes of a
    # block.
    x_numbers: int
    shared_bytes: int
    parts: int  # blocks that partition the bands, and whose sums are added up


@lru_cache(maxsize=1024)
def choose_few_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> FewBand | None:
    """Return how the weights' gradient is the quickest; None if many channels, or no room."""
    row_tiles = -(-(windows.taps * windows.channels + 1) // DEPTH)
    block_o = next((o for o in BLOCKS_O if windows.outputs % o == 0), 0)
    if windows.channels >= IN_PIECE or not block_o or row_tiles * block_o > 2 * MOST_SUMS:
        return None
    at_once = max(1, BLOCKS * num_multiprocessors // (windows.outputs // block_o))
    of_block = (max_shared_bytes + RESERVED_BYTES) // BLOCKS - RESERVED_BYTES
    found = []
    for rows in row_counts(windows.result[0]):
        num_bands = num_images * -(-windows.result[0] // rows)
        band = _few_band(windows, rows, block_o, row_tiles, min(num_bands, at_once))
        read = band.shared_bytes / STAGES / BYTES_A_CYCLE
        rounds = -(-num_bands // band.parts)
        blocks = -(-band.parts * (windows.outputs // block_o) // num_multiprocessors)
        cycles = WAITED_CYCLES + rounds * (CYCLES_OF_BAND + blocks * read)
        if band.shared_bytes <= of_block:
            found.append((cycles, band))
    return min(found)[1] if found else None


def _few_band(windows: Windows, rows: int, block_o: int, row_tiles: int, parts: int) -> FewBand:
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    num_slices = -(-rows * windows.pitch // DEPTH)
    last_pixel = num_slices * DEPTH - 1 + span_h * windows.pitch + span_w
    x_numbers = max((rows + span_h) * windows.pitch, last_pixel + 1) * windows.channels
    stage = 2 * num_slices * DEPTH * _line_of(block_o) + -(-2 * x_numbers // 16) * 16
    # The sums of all warps pass through shared memory in the end.
    of_sums = 4 * THREADS // 32 * DEPTH * row_tiles * block_o
    return FewBand(rows, num_slices, block_o, x_numbers, max(STAGES * stage, of_sums), parts)


class FewTiles(NamedTuple):
    """How a forward pass over few channels is computed."""

    # rows and block_n: rows of windows, an even number, and outputs of a block.
    rows: int
    block_n: int
    shared_bytes: int


@lru_cache(maxsize=1024)
def choose_few_tiles(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> FewTiles | None:
    """Return the tiles by which all multiprocessors have work at once, if that can be; None if
    channels are not few, or nothing fits.
    """
    slices = -(-windows.taps * windows.channels // DEPTH)
    columns = (n for n in BLOCKS_N if windows.outputs % n == 0 and slices * n <= 4 * MOST_WORDS)
    block_n = next(columns, 0)
    if windows.is_adjoint or windows.channels >= IN_PIECE or not block_n:
        return None
    of_block = (max_shared_bytes + RESERVED_BYTES) // FORWARD_BLOCKS - RESERVED_BYTES
    height, found = windows.result[0], None
    for rows in range(2, height + 2, 2):
        tiles = FewTiles(rows, block_n, _few_shared_bytes(windows, rows, block_n, slices))
        if tiles.shared_bytes > of_block:
            break
        found = tiles
        num_blocks = num_images * -(-height // rows) * (windows.outputs // block_n)
        if num_blocks <= BLOCKS * num_multiprocessors:
            break
    return found


def _few_shared_bytes(windows: Windows, rows: int, block_n: int, slices: int) -> int:
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    last_col = -(-windows.result[1] // SIDE) * SIDE - 1 + span_w
    num_pixels = (rows - 1 + span_h) * windows.pitch + max(windows.pitch, last_col + 1)
    return 2 * (slices * DEPTH * _line_of(block_n) + num_pixels * windows.channels)


def _line_of(outputs: int) -> int:
    """Return the numbers from a line of shared memory to the next: an odd number of pieces."""
    return (outputs // IN_PIECE | 1) * IN_PIECE


class FewOps(WeightOps):
    """Both, for images of few channels."""

    def tiles_of(self, windows: Windows, dtype: str, num_images: int) -> Band | FewTiles | None:
        """Return how a kernel computes a convolution, as `band_of`; None if none does."""
        few = self._few(choose_few_tiles, windows, dtype, num_images)
        return few or self.band_of(windows, dtype, num_images)

    def convolve(
        self,
        windows: Windows,
        tiles: Band | FewTiles,
        x: Array | PooledGradient,
        w: Array,
        y: Array,
        *,
        bias: Array | None = None,
        z: Array | None = None,
        saved: Array | None = None,
        indices: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> None:
        """Write to y what `multiply_windows` does; few channels take neither mask nor pooled x."""
        if isinstance(tiles, Band):
            both: dict[str, Any] = {"saved": saved, "indices": indices, "activation": activation}
            self.multiply_windows(windows, tiles, x, w, y, bias=bias, z=z, **both)
            return
        assert not isinstance(x, PooledGradient)  # as it is no forward pass' input
        defines = {
            **few_defines(x.dtype.name, windows),
            "BLOCK_N": tiles.block_n,
            "POOLS": int(windows.pools),
            **result_defines(activation.name, bias is not None, z is not None, False),
        }
        self.kernel(KERNEL, **defines)(
            (len(x) * -(-windows.result[0] // tiles.rows), windows.outputs // tiles.block_n),
            THREADS,
            *(x, w, bias, y, z, indices, activation.slope, *few_sizes(windows), tiles.rows),
            shared_bytes=tiles.shared_bytes,
        )

    def weight_tiles_of(
        self, windows: Windows, dtype: str, num_images: int
    ) -> WeightBand | FewBand | None:
        """Return how a kernel computes gradients, as `weight_band_of`; None if none does."""
        few = self._few(choose_few_band, windows, dtype, num_images)
        return few or self.weight_band_of(windows, dtype, num_images)

    def sums_of_gradients(
        self, windows: Windows, band: WeightBand | FewBand, dz: Array | PooledGradient, x: Array
    ) -> Array:
        """Return what `weight_gradients` does."""
        if isinstance(band, WeightBand):
            return self.weight_gradients(windows, band, dz, x)
        sums = self.empty((band.parts, windows.num_gradients), "float32")
        is_pooled = isinstance(dz, PooledGradient)
        operands = (dz.dy, dz.indices, x) if isinstance(dz, PooledGradient) else (dz, None, x)
        of_band = (band.rows, band.num_slices, band.x_numbers)
        self.kernel(WEIGHT_KERNEL, **weight_defines(x.dtype.name, windows, band, is_pooled))(
            (band.parts, windows.outputs // band.block_o),
            THREADS,
            *(*operands, sums, len(x), *few_sizes(windows), *of_band),
            shared_bytes=band.shared_bytes,
        )
        return sums

    def _few(self, choose: Any, windows: Windows, dtype: str, num_images: int) -> Any:
        """Return what is chosen where the device has kernels, which count an image's numbers by 32
        bits, and there is something to compute.
        """
        is_counted = prod(windows.image) * windows.channels < MOST_NUMBERS
        is_empty = 0 in (windows.channels, windows.outputs)
        if is_empty or not is_counted or not self.has_kernels(dtype, num_images):
            return None
        runtime = self.runtime
        return choose(windows, num_images, runtime.num_multiprocessors, runtime.max_shared_bytes)


def few_defines(dtype: str, windows: Windows) -> dict[str, str | int]:
    """Return the defines that both kernels have."""
    return {
        "DTYPE": dtype,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "CHANNELS": windows.channels,
    }


def weight_defines(
    dtype: str, windows: Windows, band: FewBand, is_pooled: bool
) -> dict[str, str | int]:
    """Return the defines for gradients; `is_pooled` says whether dz is a `PooledGradient`."""
    of_band = {"BLOCK_O": band.block_o, "STAGES": STAGES, "IS_POOLED": int(is_pooled)}
    return {**few_defines(dtype, windows), **of_band}


def few_sizes(windows: Windows) -> tuple[int, ...]:
    """Return the arguments that both kernels have."""
    ends = (*windows.image, *windows.result, windows.outputs)
    return (*ends, *windows.padding, *windows.dilation)
