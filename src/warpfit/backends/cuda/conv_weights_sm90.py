"""How the gradients of convolutions' weights are computed on Hopper's tensor cores: which bands of
an image come to shared memory at once, and which channels, outputs and rows of the kernel a block
has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES, Array
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_sm90 import (
    BARRIER_BYTES,
    BLOCKS_OF_LINES,
    BYTES_A_CYCLE,
    DEPTH,
    IN_PIECE,
    WARPGROUP,
    Windows,
    WindowsOps,
    example_windows,
    is_in_pieces,
    plane_bytes,
    row_counts,
)
from warpfit.backends.cuda.driver import is_debugging
from warpfit.backends.cuda.pool import PooledGradient

__all__ = ["WeightBand", "WeightOps", "choose_weight_band", "variants"]

KERNEL = "conv2d_backward_weight_sm90"
# Rows of a product, and the channels of a tap that they may be; where they are outputs, the
# channels that are columns, and pixels that are multiplied at once.
PRODUCT_ROWS, BLOCKS_C, COLUMNS_C, PIXELS = 64, (64, 32, 16), (16, 24, 32, 48, 64), 32
# Bands on their way or at work, and where each begins.
MOST_WEIGHT_WARPGROUPS, MOST_STAGES, ALIGNMENT = 4, 3, 1024
# Sums for which threads have registers, by the warpgroups that multiply; and those up to which two
# warpgroups load beside three.
MOST_SUMS, SUMS_BESIDE_TWO = {1: 128, 2: 128, 3: 112, 4: 64}, 64
# Cycles of a multiprocessor for a product of 64 rows and a column, both from shared memory, while
# others write there, or the rows from registers; and those of a band whatever its size: measured
# with 32 channels, 64 outputs.
CYCLES_OF_SHARED_COLUMN, CYCLES_OF_COLUMN, CYCLES_OF_WEIGHT_BAND = 1.1, 0.6, 2500


class WeightBand(NamedTuple):
    """How the gradient of weights is computed.

    Attributes
    ----------
    rows, num_slices : int
        Rows of windows that come to shared memory at once, and the slices of pixels that they are.
    block_c, block_o : int
        Channels, zeros included, and outputs of a block.
    warpgroups, kernel_rows, loading : int
        Warpgroups of a block that multiply, the rows of the kernel that each has, and warpgroups
        that load.
    stages : int
    plane_bytes, shared_bytes : int
    parts : int
        Blocks that share the bands out, and whose sums are added up.
    has_output_rows : bool
        Whether the rows of products are outputs, not channels of taps.
    """

    rows: int
    num_slices: int
    block_c: int
    block_o: int
    warpgroups: int
    kernel_rows: int
    loading: int
    stages: int
    plane_bytes: int
    shared_bytes: int
    parts: int
    has_output_rows: bool


@lru_cache(maxsize=1024)
def choose_weight_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> WeightBand | None:
    """Return how the gradient of a forward pass' weights takes the least time; None if nothing
    fits.
    """
    found = []
    for rows, has_output_rows in product(row_counts(windows.result[0]), (False, True)):
        shares = _output_shares(windows) if has_output_rows else _shares(windows)
        if shares is None:
            continue
        sizes = (num_images, num_multiprocessors, max_shared_bytes)
        band = _weight_band(windows, rows, shares, has_output_rows, *sizes)
        if band is not None:
            found.append((_weight_cycles(windows, band, num_images), band))
    return min(found)[1] if found else None


class _Shares(NamedTuple):
    """The channels and outputs of a block, its warpgroups, the kernel's rows of each, and the
    warpgroups that load.
    """

    block_c: int
    block_o: int
    warpgroups: int
    kernel_rows: int
    loading: int


def _groups(windows: Windows, block_c: int) -> int:
    """Return into how many groups of neighbouring taps a row of the kernel falls."""
    return -(-windows.kernel[1] // (PRODUCT_ROWS // block_c))


def _kernel_rows(windows: Windows) -> tuple[int, int]:
    """Return the warpgroups that share out the kernel's rows, and those of each."""
    height = windows.kernel[0]
    rows = -(-height // min(MOST_WEIGHT_WARPGROUPS, height))
    return -(-height // rows), rows


def _with_loaders(block_c: int, block_o: int, warpgroups: int, rows: int, sums: int) -> _Shares:
    loading = 1 if warpgroups > 3 or sums > SUMS_BESIDE_TWO else 2
    return _Shares(block_c, block_o, warpgroups, rows, loading)


def _shares(windows: Windows) -> _Shares | None:
    """Return those of products whose rows are channels of taps."""
    warpgroups, rows = _kernel_rows(windows)
    block_c = next(c for c in BLOCKS_C if windows.depth % c == 0)
    for block_o in BLOCKS_OF_LINES:
        sums = rows * _groups(windows, block_c) * block_o // 2
        if windows.outputs % block_o == 0 and sums <= MOST_SUMS[warpgroups]:
            return _with_loaders(block_c, block_o, warpgroups, rows, sums)
    return None


def _output_shares(windows: Windows) -> _Shares | None:
    """Return those of products whose rows are outputs."""
    warpgroups, rows = _kernel_rows(windows)
    block_c = next((c for c in COLUMNS_C if c >= windows.channels), COLUMNS_C[-1])
    sums = rows * windows.kernel[1] * block_c // 2
    if windows.outputs % PRODUCT_ROWS or sums > MOST_SUMS[warpgroups]:
        return None
    return _with_loaders(block_c, PRODUCT_ROWS, warpgroups, rows, sums)


def _weight_band(
    windows: Windows,
    rows: int,
    shares: _Shares,
    has_output_rows: bool,
    num_images: int,
    num_multiprocessors: int,
    max_shared_bytes: int,
) -> WeightBand | None:
    block_c, block_o, warpgroups, *_ = shares
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    at_once = PIXELS if has_output_rows else DEPTH
    num_slices = -(-rows * windows.pitch // at_once) * at_once // DEPTH
    last = num_slices * DEPTH - 1 + span_h * windows.pitch + span_w
    plane = plane_bytes(max((rows + span_h) * windows.pitch, last + 1), block_c)
    planes = (block_c if has_output_rows else PRODUCT_ROWS) // IN_PIECE
    stage = 2 * num_slices * DEPTH * block_o + planes * plane
    stage += -stage % ALIGNMENT
    stages = min(MOST_STAGES, max_shared_bytes // (stage + 2 * BARRIER_BYTES))
    if stages < 2:
        return None
    num_bands = num_images * -(-windows.result[0] // rows)
    columns = windows.outputs // block_o * -(-windows.channels // block_c)
    parts = max(1, min(num_bands, num_multiprocessors // columns))
    # Sums of dz pass through shared memory in the end, eight of each thread.
    of_stages = stages * (stage + 2 * BARRIER_BYTES)
    shared = max(of_stages, warpgroups * WARPGROUP * IN_PIECE * 4)
    ways = (stages, plane, shared, parts, has_output_rows)
    return WeightBand(rows, num_slices, *shares, *ways)


def _weight_cycles(windows: Windows, band: WeightBand, num_images: int) -> float:
    """Return about how many cycles a block works."""
    num_bands = -(-num_images * -(-windows.result[0] // band.rows) // band.parts)
    read = band.shared_bytes / band.stages / BYTES_A_CYCLE
    products = band.warpgroups * band.kernel_rows
    if band.has_output_rows:
        of_slice = products * windows.kernel[1] * band.block_c * CYCLES_OF_COLUMN
    else:
        products *= _groups(windows, band.block_c)
        of_slice = products * band.block_o * CYCLES_OF_SHARED_COLUMN
    return read + num_bands * (CYCLES_OF_WEIGHT_BAND + max(read, band.num_slices * of_slice))


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
        "BLOCK_O": band.block_o,
        "OUTPUT_ROWS": int(band.has_output_rows),
        "STAGES": band.stages,
        "BOUNDED_WAITS": int(is_debugging()),
        "X_PIECES": int(is_whole),
        "IS_POOLED": int(is_pooled),
    }


def weight_sizes(windows: Windows, band: WeightBand, num_images: int) -> tuple[int, ...]:
    """Return its last arguments."""
    return (num_images, *windows.sizes, band.rows, band.num_slices, band.plane_bytes)


class WeightOps(WindowsOps):
    """Gradients of the weights of such convolutions."""

    def weight_band_of(self, windows: Windows, dtype: str, num_images: int) -> WeightBand | None:
        """Return how the kernel computes the gradient of the weights of a forward pass; None if it
        does not.
        """
        is_whole = 0 not in (windows.channels, windows.outputs) and windows.outputs % DEPTH == 0
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
        blocks_o, blocks_c = windows.outputs // band.block_o, -(-windows.channels // band.block_c)
        self.kernel(KERNEL, **defines)(
            (band.parts, blocks_o, blocks_c),
            (band.warpgroups + band.loading) * WARPGROUP,
            *(*operands, sums, *weight_sizes(windows, band, len(x))),
            shared_bytes=band.shared_bytes,
        )
        return sums


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the kernel with a choice of the defines that it is asked for."""
    for dtype in HALF_DTYPES:
        for windows in example_windows():
            band = choose_weight_band(windows, 512, 132, shared_bytes_of("sm_90a"))
            assert band is not None
            for is_pooled in (False, True):
                is_whole = windows.channels >= IN_PIECE
                defines = weight_defines(dtype, windows, band, is_whole, is_pooled)
                yield KERNEL, {name: str(value) for name, value in defines.items()}
