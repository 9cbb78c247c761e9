"""How the gradients of convolutions' weights are computed where images have few channels: taps and
channels together are the rows of one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_sm90 import (
    BYTES_A_CYCLE,
    CYCLES_OF_BAND,
    DEPTH,
    IN_PIECE,
    RESERVED_BYTES,
    WAITED_CYCLES,
    Windows,
    example_windows,
    row_counts,
)

__all__ = ["FewBand", "choose_few_band", "few_defines", "few_sizes", "variants"]

FEW_KERNEL, FEW_THREADS = "conv2d_backward_weight_few_mma", 256
BLOCKS_O = (64, 32, 16)
# Sums of a thread, bands on their way or at work, and blocks of a multiprocessor.
MOST_SUMS, STAGES, BLOCKS = 64, 3, 2


class FewBand(NamedTuple):
    """How the gradient of weights for few channels is computed.

    Attributes
    ----------
    rows, num_slices : int
        Rows of windows that come to shared memory at once, and the slices of 16 that they are.
    block_o : int
        Outputs of a block.
    x_numbers, shared_bytes : int
        Numbers of an image that a stage has room for, and bytes of a block.
    parts : int
        Blocks that share the bands out, and whose sums are added up.
    """

    rows: int
    num_slices: int
    block_o: int
    x_numbers: int
    shared_bytes: int
    parts: int


@lru_cache(maxsize=1024)
def choose_few_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> FewBand | None:
    """Return how the gradient of a forward pass' weights takes the least time; None if channels are
    not few, or nothing fits.
    """
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
        cycles = WAITED_CYCLES + rounds * (CYCLES_OF_BAND + BLOCKS * read)
        if band.shared_bytes <= of_block:
            found.append((cycles, band))
    return min(found)[1] if found else None


def _few_band(windows: Windows, rows: int, block_o: int, row_tiles: int, parts: int) -> FewBand:
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    num_slices = -(-rows * windows.pitch // DEPTH)
    last_pixel = num_slices * DEPTH - 1 + span_h * windows.pitch + span_w
    x_numbers = max((rows + span_h) * windows.pitch, last_pixel + 1) * windows.channels
    stage = 2 * num_slices * DEPTH * (block_o + IN_PIECE) + -(-2 * x_numbers // 16) * 16
    # The sums of all warps pass through shared memory in the end.
    of_sums = 4 * FEW_THREADS // 32 * DEPTH * row_tiles * block_o
    return FewBand(rows, num_slices, block_o, x_numbers, max(STAGES * stage, of_sums), parts)


def few_defines(
    dtype: str, windows: Windows, band: FewBand, is_pooled: bool
) -> dict[str, str | int]:
    """Return the kernel's defines; `is_pooled` says whether dz is a `PooledGradient`."""
    return {
        "DTYPE": dtype,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "CHANNELS": windows.channels,
        "BLOCK_O": band.block_o,
        "STAGES": STAGES,
        "IS_POOLED": int(is_pooled),
    }


def few_sizes(windows: Windows, band: FewBand, num_images: int) -> tuple[int, ...]:
    """Return its last arguments."""
    ends = (*windows.image, *windows.result, windows.outputs)
    of_band = (band.rows, band.num_slices, band.x_numbers)
    return (num_images, *ends, *windows.padding, *windows.dilation, *of_band)


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the kernel with a choice of the defines that it is asked for."""
    for dtype in HALF_DTYPES:
        for windows in example_windows():
            band = choose_few_band(windows, 512, 132, shared_bytes_of("sm_90a"))
            for is_pooled in (False, True) if band is not None else ():
                defines = few_defines(dtype, windows, band, is_pooled)
                yield FEW_KERNEL, {name: str(value) for name, value in defines.items()}
