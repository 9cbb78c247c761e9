"""Convolutions in groups of 4 to 32 channels and as many outputs, on tensor cores, from tiles of
images in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from warpfit.backends.base import HALF_DTYPES, IDENTITY, Activation, Array
from warpfit.backends.cuda.conv_depthwise import DepthwiseOps, Grouped
from warpfit.backends.cuda.matmul_mma_config import supports

KERNEL, WEIGHT_KERNEL = "conv2d_grouped_mma", "conv2d_grouped_backward_weight_mma"
THREADS, IN_PIECE, AT_ONCE = 256, 8, 32
GROUPS, CHANNELS = (4, 8, 16, 24, 32), 64  # channels of a group, and of a block
MOST_IMAGES = 8  # of a tile
# Registers of a thread for weights, and for sums, with which two blocks run at once, and one.
HELD_WEIGHTS, HELD_SUMS = (36, 72), (40, 104)
RESERVED_BYTES = 1024  # of a block, for the system
# What a tile costs besides its pixels, in pixels.
TILE_PIXELS = 256


class GroupTile(NamedTuple):
    """Windows that a block takes at once, and how many blocks share all tiles of a slice."""

    size: tuple[int, int, int]  # images, rows, columns
    shared_bytes: int
    blocks: int
    slices: int  # of the channels


def blocks_held(shape: Grouped) -> int:
    """Return how many blocks' weights, or sums, the registers of a multiprocessor hold."""
    taps = prod(shape.kernel)
    steps = -(-taps * shape.group // 16)
    words = steps * (4 if shape.group > 8 and steps <= 18 else 2)
    if shape.is_of_weights:
        words = max(1, shape.group // 8) * -(-taps // 2) * 4
    two, one = HELD_SUMS if shape.is_of_weights else HELD_WEIGHTS
    return 2 if words <= two else int(words <= one)


def pixels(shape: Grouped, images: int, *tile: int) -> tuple[int, int]:
    """Return how many pixels a tile's windows see, and its windows as they lie in memory."""
    steps = (1, 1) if shape.is_adjoint else shape.stride
    spans = shape.of_axes(lambda k, apart: (k - 1) * apart + 1, "kernel", "dilation")
    seen = prod((n - 1) * step + span for n, step, span in zip(tile, steps, spans, strict=True))
    windows = images * prod(tile)
    return images * seen, -(-windows // AT_ONCE) * AT_ONCE if shape.is_of_weights else windows


def shared_bytes_of_tile(shape: Grouped, *tile: int) -> int:
    """Return what a block needs."""
    seen, windows = pixels(shape, *tile)
    in_block = CHANNELS // shape.group * shape.group
    line = (in_block // IN_PIECE | 1) * IN_PIECE
    if shape.is_of_weights:
        return 2 * 2 * line * (seen + windows)
    of_x = (line if shape.group % 16 else in_block + 16) * seen
    weights = -(-prod(shape.kernel) * shape.group // 16) * 16
    return 2 * (of_x + max(of_x + line * windows, line * weights))


@lru_cache(maxsize=1024)
def choose_group_tile(
    shape: Grouped, num_multiprocessors: int, max_shared_bytes: int
) -> GroupTile | None:
    """Return the tile by which multiprocessors read the fewest pixels; None if none fits."""
    registers = blocks_held(shape)
    if shape.group not in GROUPS or shape.read[3] % IN_PIECE or not registers:
        return None
    slices, found = -(-shape.read[3] // (CHANNELS // shape.group * shape.group)), []
    # What a block reads or writes besides its tiles, in pixels.
    once = prod(shape.kernel) * shape.group * (4 if shape.is_of_weights else 1)
    for tile in _tiles(shape):
        shared_bytes = shared_bytes_of_tile(shape, *tile)
        if shared_bytes > max_shared_bytes:
            continue
        room = (max_shared_bytes + RESERVED_BYTES) // (shared_bytes + RESERVED_BYTES)
        sizes = zip((shape.read[0], *shape.made), tile, strict=True)
        count = prod(-(-size // part) for size, part in sizes)
        rounds = -(-count // max(1, min(registers, room) * num_multiprocessors // slices))
        blocks = -(-count // rounds)
        busy = max(registers, -(-blocks * slices // num_multiprocessors))
        cost = busy * (rounds * (sum(pixels(shape, *tile)) + TILE_PIXELS) + once)
        found.append((cost, GroupTile(tile, shared_bytes, blocks, slices)))
    return min(found)[1] if found else None


def _tiles(shape: Grouped) -> Iterator[tuple[int, int, int]]:
    """Yield even parts of an image, and some images."""
    parts = ({-(-size // count) for count in range(1, size + 1)} for size in shape.made)
    yield from ((1, height, width) for height, width in product(*parts))
    yield from ((images, *shape.made) for images in range(2, min(shape.read[0], MOST_IMAGES) + 1))


class GroupTileOps(DepthwiseOps):
    """Convolutions of groups that tensor cores take."""

    def group_tile_of(self, shape: Grouped, *operands: Array) -> GroupTile | None:
        """Return how kernels compute what has numbers; None if none does."""
        runtime = self.runtime
        is_known = shape.dtype in HALF_DTYPES and supports(runtime.arch, shape.dtype)
        if not is_known or any(each.pointer % 16 for each in operands):
            return None
        return choose_group_tile(shape, runtime.num_multiprocessors, runtime.max_shared_bytes)

    def convolve_tiles(
        self,
        shape: Grouped,
        tile: GroupTile,
        x: Array,
        w: Array,
        y: Array,
        bias: Array | None = None,
        z: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> None:
        """Write y; of gradients x is dz, and y is dx."""
        own = shape.result_defines(activation, stores_z=z is not None)
        kernel = self.kernel(KERNEL, **own, GROUP=shape.group)
        self._start_tiles(kernel, shape, tile, (x, w, bias, y, z, activation.slope), x, y)

    def gradients_of_tiles(self, shape: Grouped, tile: GroupTile, dz: Array, x: Array) -> Array:
        """Return parts of the weights' gradient, to be added up."""
        size = prod(shape.kernel) * shape.group * x.shape[3]
        sums = self.empty((tile.blocks, size), "float32")
        kernel = self.kernel(WEIGHT_KERNEL, **shape.defines, GROUP=shape.group)
        self._start_tiles(kernel, shape, tile, (dz, x, sums), x, dz)
        return sums

    def _start_tiles(
        self, kernel: Any, shape: Grouped, tile: GroupTile, first: Any, x: Array, y: Array
    ) -> None:
        padding = shape.padding
        if shape.is_adjoint:
            names = ("kernel", "dilation", "padding")
            padding = shape.of_axes(lambda k, apart, p: (k - 1) * apart - p, *names)
        sizes = (len(x), *x.shape[1:3], *y.shape[1:], *padding, *shape.dilation, *tile.size)
        grid = (tile.blocks, tile.slices)
        kernel(grid, THREADS, *first, *sizes, shared_bytes=tile.shared_bytes)
