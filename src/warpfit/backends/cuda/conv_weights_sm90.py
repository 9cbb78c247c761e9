"""How the gradients of convolutions' weights are computed on Hopper's tensor cores: which bands of
an image come to shared memory at once, and which channels, outputs and rows of the kernel a block
has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import Array
from warpfit.backends.cuda.conv_sm90 import (
    BARRIER_BYTES,
    BYTES_A_CYCLE,
    DEPTH,
    IN_PIECE,
    WARPGROUP,
    Windows,
    WindowsOps,
    is_in_pieces,
    plane_bytes,
    row_counts,
)
from warpfit.backends.cuda.pool import PooledGradient

KERNEL = "conv2d_backward_weight_sm90"
# Outputs of a block, and the channels of a tap that it may have; sums of a thread; bands on their
# way or at work, and where each begins.
BLOCK_O, BLOCKS_C = 64, (64, 32, 24, 16)
MOST_WEIGHT_WARPGROUPS, MOST_STAGES, ALIGNMENT = 4, 3, 1024
# Sums for which threads have registers, by the warpgroups that multiply; and those up to which two
# warpgroups load beside three.
MOST_SUMS, SUMS_BESIDE_TWO = {1: 128, 2: 128, 3: 112, 4: 64}, 64
# Cycles of a multiprocessor for a product of 64 rows and a column from shared memory, while
# others write there, and those of a band whatever its size: measured with 32 and 64 channels.
CYCLES_OF_SHARED_COLUMN, CYCLES_OF_WEIGHT_BAND = 0.6, 2200


class WeightBand(NamedTuple):
    """How the gradient of weights is computed."""

    # rows and num_slices: rows of windows that come to shared memory at once, and the slices of
    # pixels that they are.
    rows: int
    num_slices: int
    block_c: int  # channels of a block, zeros included
    # warpgroups, kernel_rows and loading: warpgroups of a block that multiply, the rows of the
    # kernel that each has, and warpgroups that load.
    warpgroups: int
    kernel_rows: int
    loading: int
    stages: int
    plane_bytes: int
    shared_bytes: int
    parts: int  # blocks that partition the bands, and whose sums are added up


@lru_cache(maxsize=1024)
def choose_weight_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> WeightBand | None:
    """Return how the gradient of a forward pass' weights is the quickest; None if nothing fits."""
    found = []
    for rows in row_counts(windows.result[0]):
        band = _weight_band(windows, rows, num_images, num_multiprocessors, max_shared_bytes)
        if band is not None:
            found.append((_weight_cycles(windows, band, num_images), band))
    return min(found)[1] if found else None


def _shares(windows: Windows) -> tuple[int, int, int, int] | None:
    """Return a block's channels, its warpgroups, the kernel's rows of each, and those that load."""
    height, width = windows.kernel
    rows = -(-height // min(MOST_WEIGHT_WARPGROUPS, height))
    warpgroups = -(-height // rows)
    possible = [c for c in BLOCKS_C if rows * width * c // 2 <= MOST_SUMS[warpgroups]]
    if not possible:
        return None
    # The fewest columns in all, and of these the fewest blocks.
    block_c = min(possible, key=lambda c: (-(-windows.channels // c) * c, -c))
    loading = 1 if warpgroups > 3 or rows * width * block_c // 2 > SUMS_BESIDE_TWO else 2
    return block_c, warpgroups, rows, loading


def _weight_band(
    windows: Windows, rows: int, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> WeightBand | None:
    shares = _shares(windows)
    if shares is None:
        return None
    block_c, warpgroups, *_ = shares
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    num_slices = -(-rows * windows.pitch // DEPTH)
    last = num_slices * DEPTH - 1 + span_h * windows.pitch + span_w
    depth = -(-block_c // DEPTH) * DEPTH
    plane = plane_bytes(max((rows + span_h) * windows.pitch, last + 1), depth)
    stage = 2 * num_slices * DEPTH * BLOCK_O + depth // IN_PIECE * plane
    stage += -stage % ALIGNMENT
    stages = min(MOST_STAGES, max_shared_bytes // (stage + 2 * BARRIER_BYTES))
    if stages < 2:
        return None
    num_bands = num_images * -(-windows.result[0] // rows)
    columns = -(-windows.outputs // BLOCK_O) * -(-windows.channels // block_c)
    parts = max(1, min(num_bands, num_multiprocessors // columns))
    # Sums of dz pass through shared memory in the end, eight of each thread.
    of_stages = stages * (stage + 2 * BARRIER_BYTES)
    shared = max(of_stages, warpgroups * WARPGROUP * IN_PIECE * 4)
    return WeightBand(rows, num_slices, *shares, stages, plane, shared, parts)


def _weight_cycles(windows: Windows, band: WeightBand, num_images: int) -> float:
    """Return about how many cycles a block works."""
    num_bands = -(-num_images * -(-windows.result[0] // band.rows) // band.parts)
    read = band.shared_bytes / band.stages / BYTES_A_CYCLE
    products = band.warpgroups * band.kernel_rows * windows.kernel[1]
    multiplied = band.num_slices * products * band.block_c * CYCLES_OF_SHARED_COLUMN
    return read + num_bands * (CYCLES_OF_WEIGHT_BAND + max(read, multiplied))


def weight_defines(
    dtype: str, windows: Windows, band: WeightBand, is_whole: bool, is_pooled: bool
) -> dict[str, str | int]:
    """Return the defines of the kernel of weights' gradients, as `conv_sm90.defines_of`."""
    return {
        "DTYPE": dtype,
        "WARPGROUPS": band.warpgroups,
        "LOADING": band.loading,
        "OWN_ROWS": band.kernel_rows,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "BLOCK_C": band.block_c,
        "STAGES": band.stages,
        "X_PIECES": int(is_whole),
        "IS_POOLED": int(is_pooled),
    }


def weight_sizes(windows: Windows, band: WeightBand, num_images: int) -> tuple[int, ...]:
    """Return its last arguments."""
    return (num_images, *windows.sizes, band.rows, band.num_slices, band.plane_bytes)


class WeightOps(WindowsOps):
    """Gradients of the weights of such convolutions."""

    def weight_band_of(self, windows: Windows, dtype: str, num_images: int) -> WeightBand | None:
        """Return how the kernel computes the weights' gradient; None if it does not."""
        is_whole = windows.channels * windows.outputs > 0 and windows.outputs % IN_PIECE == 0
        if not is_whole or not self.has_kernels(dtype, num_images):
            return None
        runtime = self.runtime
        return choose_weight_band(
            windows, num_images, runtime.num_multiprocessors, runtime.max_shared_bytes
        )

    def weight_gradients(
        self, windows: Windows, band: WeightBand, dz: Array | PooledGradient, x: Array
    ) -> Array:
        """Return the gradients of weights and then of the bias, summed over some of the windows in
        each row: (parts, windows.num_gradients) float32, with the loss scale.
        """
        sums = self.empty((band.parts, windows.num_gradients), "float32")
        is_whole, is_pooled = is_in_pieces(x, windows.channels), isinstance(dz, PooledGradient)
        operands = (dz.dy, dz.indices, x) if isinstance(dz, PooledGradient) else (dz, None, x)
        defines = weight_defines(x.dtype.name, windows, band, is_whole, is_pooled)
        blocks_o, blocks_c = -(-windows.outputs // BLOCK_O), -(-windows.channels // band.block_c)
        self.kernel(KERNEL, **defines)(
            (band.parts, blocks_o, blocks_c),
            (band.warpgroups + band.loading) * WARPGROUP,
            *(*operands, sums, *weight_sizes(windows, band, len(x))),
            shared_bytes=band.shared_bytes,
        )
        return sums
