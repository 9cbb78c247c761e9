"""Inverted dropout from counter-based random numbers, computed where they are used."""

from __future__ import annotations

import struct
from functools import lru_cache

from warpfit.backends.base import Array, Number
from warpfit.backends.checks import check_dropout, check_float, check_same_shape
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps, blocks_for, power_of_two
from warpfit.backends.cuda.launch import scalar
from warpfit.errors import ShapeError
from warpfit.random import DROPOUT, stream_key

THREADS = 256
# A random counter decides so many units.
UNITS = 4
VECTORS_PER_THREAD, VECTOR_BYTES = 2, 16
BLOCKS_PER_MULTIPROCESSOR = 64
MOST_GRID_ROWS = 65535

# Seeds are few, and a key costs more than a launch.
key_of = lru_cache(maxsize=64, typed=True)(lambda seed: stream_key(seed, DROPOUT))
# Of Philox4x64: rounds, and what is added to the key from each to the next.
LONG_ROUNDS, LONG_STEPS = 10, (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


@lru_cache(maxsize=64, typed=True)
def round_keys_of(seed: int) -> bytes:
    """Return the `RoundKeys` of base/philox64.cuh."""
    keys = [
        (word + number * step) % 2**64
        for number in range(LONG_ROUNDS)
        for word, step in zip(key_of(seed), LONG_STEPS, strict=True)
    ]
    return struct.pack(f"={len(keys)}Q", *keys)


def check_step(op: str, step: Number) -> None:
    """Raise ShapeError unless counters hold the step, if it is the host's."""
    if type(step) is not DeviceArray and not 0 <= step < 2**32:
        raise ShapeError(f"{op}: expected a step from 0 to {2**32 - 1}, got {step}")


@lru_cache(maxsize=512)
def _spread(
    num_rows: int, num_units: int, most_blocks: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return grid and block for a thread for every four units of every row."""
    num_groups = -(-num_units // UNITS)
    across = min(THREADS, power_of_two(num_groups))
    down = THREADS // across
    grid_x = blocks_for(num_groups, across, most_blocks)
    grid_y = blocks_for(num_rows, down, min(MOST_GRID_ROWS, max(1, most_blocks // grid_x)))
    return (grid_x, grid_y), (across, down)


class DropoutOps(ArrayOps):
    """Each unit is 0 with probability p, else x / (1 - p)."""

    def dropout_forward(
        self,
        x: Array,
        *,
        p: float,
        seed: int,
        step: Number,
        layer_idx: int,
        first_row: int = 0,
    ) -> tuple[Array, Array]:
        check_float("dropout_forward", x)
        check_dropout("dropout_forward", x, p)
        check_step("dropout_forward", step)
        key = key_of(seed)
        x = self.contiguous(x)
        mask, y = self.empty(x.shape, x.dtype), self.empty(x.shape, x.dtype)
        if not x.size:
            return y, mask
        num_rows = x.shape[0]
        num_units = x.size // num_rows
        most = self.runtime.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        grid, block = _spread(num_rows, num_units, most)
        # Rows begin at whole groups, and all three arrays at multiples of a group.
        group_bytes = min(VECTOR_BYTES, UNITS * x.itemsize)
        wide = num_units % UNITS == 0 and (x.pointer | y.pointer | mask.pointer) % group_bytes == 0
        settings = (*scalar(step), layer_idx, *key, round(p * 2**32), 1 / (1 - p), wide)
        kernel = self.kernel("dropout_forward", DTYPE=x.dtype)
        kernel(grid, block, x, y, mask, num_rows, num_units, first_row, *settings)
        return y, mask

    def dropout_backward(self, dy: Array, mask: Array) -> Array:
        check_float("dropout_backward", dy, mask)
        check_same_shape("dropout_backward", dy, mask)
        dy, mask = self.contiguous(dy), self.contiguous(mask)
        dx = self.empty(dy.shape, dy.dtype)
        size = dx.size
        if size:
            per_block = THREADS * VECTORS_PER_THREAD * VECTOR_BYTES // dx.itemsize
            grid = blocks_for(
                size, per_block, self.runtime.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
            )
            self.kernel("dropout_backward", DTYPE=dx.dtype)(grid, THREADS, dy, mask, dx, size)
        return dx
