"""Launches of kernels along rows of a matrix, and of elementwise ones over contiguous arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps, blocks_for, power_of_two

THREADS = 256
# Bytes of each array that a thread of an elementwise kernel takes.
BYTES_OF_THREAD = 32

# Entries of a short row in a thread's registers: few where a warp can hold a row like that, else
# all there is room for. Of a long row as many as its threads can have under way.
FEW, TWELVE, MANY, MANY_FLOAT64 = 8, 12, 16, 8
AT_ONCE, AT_ONCE_FLOAT64 = 16, 8
WARP = 32
THREADS_OF_LONG_ROW = 512
SMALL_BLOCK = 64
# Rows that a thread takes one after the other, at most.
MOST_ROUNDS = 4
# Shared memory of a block that handles short rows, at least.
STAGED_BYTES = 16 << 10
# Shared memory that kernels use besides.
RESERVED_BYTES = 2 << 10
# A block for each row, where the rows' results do not have to be added.
MOST_BLOCKS = 1 << 20


def elements_of_block(itemsize: int) -> int:
    """Return how many elements a block of an elementwise kernel takes."""
    return THREADS * BYTES_OF_THREAD // itemsize


class RowLaunch(NamedTuple):
    """How a kernel along a matrix' rows is launched; see ``kernels/ops/softmax/softmax.cuh``."""

    defines: dict[str, int]
    grid: int
    block: int
    lanes: int
    capacity: int
    shared_bytes: int


@lru_cache(maxsize=4096)
def launch_rows(
    num_rows: int,
    num_columns: int,
    itemsize: int,
    num_kept: int,
    most_blocks: int,
    max_shared_bytes: int,
) -> RowLaunch:
    """Return the launch for rows (M, C) of an element size in bytes, `num_kept` arrays kept."""
    if num_columns > _room(many_of(itemsize), itemsize, num_columns) * WARP:
        return _long_rows(num_rows, num_columns, itemsize, num_kept, most_blocks, max_shared_bytes)
    return _short_rows(num_rows, num_columns, itemsize, num_kept, most_blocks)


def many_of(itemsize: int) -> int:
    return MANY_FLOAT64 if itemsize == 8 else MANY


def _room(items: int, itemsize: int, num_columns: int) -> int:
    """Return how many entries of a short row a thread takes at most: if staged, an odd number."""
    return items - 1 if num_columns * itemsize % 16 else items


def at_once(itemsize: int, num_kept: int) -> int:
    return (AT_ONCE_FLOAT64 if itemsize == 8 else AT_ONCE) // num_kept


def _short_rows(
    num_rows: int, num_columns: int, itemsize: int, num_kept: int, most_blocks: int
) -> RowLaunch:
    """Return a launch with a few lanes for each row, all in registers."""
    row_bytes = num_columns * itemsize
    is_staged = row_bytes % 16 != 0
    items = _items_of_staged(num_columns, itemsize) if is_staged else FEW
    if num_columns > _room(items, itemsize, num_columns) * WARP:
        items = many_of(itemsize)
    lanes = power_of_two(-(-num_columns // _room(items, itemsize, num_columns)))
    # Small blocks where whole rows pass through shared memory: while one waits at a barrier, others
    # go on.
    is_row_of_thread = is_staged and lanes == 1
    block = min(
        SMALL_BLOCK if is_row_of_thread else THREADS, max(WARP, power_of_two(num_rows * lanes))
    )
    rows_at_once, rounds = block // lanes, 1
    if num_rows > rows_at_once * most_blocks and not is_row_of_thread:
        rounds = MOST_ROUNDS
        if is_staged:
            rounds = max(
                1, min(rounds, STAGED_BYTES // max(1, rows_at_once * row_bytes * num_kept))
            )
    capacity = rows_at_once * rounds
    shared_bytes = num_kept * (-(-capacity * row_bytes // 16) * 16) if is_staged else 0
    defines = {"ITEMS": items, "LONG_ROWS": 0, "STAGED": int(is_staged)}
    return RowLaunch(defines, blocks_for(num_rows, capacity), block, lanes, capacity, shared_bytes)


def _items_of_staged(num_columns: int, itemsize: int) -> int:
    """Return a thread's entries of rows that pass through shared memory: a whole row, or less."""
    choices = [FEW, *([TWELVE] if itemsize == 4 else []), many_of(itemsize)]
    return next((n for n in choices if num_columns <= _room(n, itemsize, num_columns)), FEW)


def _long_rows(
    num_rows: int,
    num_columns: int,
    itemsize: int,
    num_kept: int,
    most_blocks: int,
    max_shared_bytes: int,
) -> RowLaunch:
    """Return a launch with a block a row, kept in registers and shared memory as far as it goes."""
    width, items = 16 // itemsize, at_once(itemsize, num_kept)
    # Where rows begin anywhere, the first vector and the last may be there in part only.
    num_vectors = -(-(num_columns + (width - 1 if num_columns % width else 0)) // width)
    vectors_of_thread = items // width
    rounds = -(-num_vectors // (THREADS_OF_LONG_ROW * vectors_of_thread))
    block = -(-num_vectors // (rounds * vectors_of_thread * WARP)) * WARP
    # All rounds but the last are kept in shared memory, if they fit.
    round_bytes = block * vectors_of_thread * 16 * num_kept
    rounds_kept = min(rounds - 1, (max_shared_bytes - RESERVED_BYTES) // round_bytes)
    grid = blocks_for(num_rows, 1, most_blocks)
    defines = {"ITEMS": items, "LONG_ROWS": 1, "STAGED": 0}
    capacity = rounds_kept * block * vectors_of_thread
    return RowLaunch(defines, grid, block, 0, capacity, rounds_kept * round_bytes)


class RowOps(ArrayOps):
    """What operations along rows share."""

    def row_launch(
        self,
        num_rows: int,
        num_columns: int,
        itemsize: int,
        num_kept: int = 1,
        is_summed: bool = True,
    ) -> RowLaunch:
        """Return `launch_rows` for this device; `is_summed`: blocks leave sums, so few of them."""
        most_blocks = self.most_blocks if is_summed else MOST_BLOCKS
        most_shared = self.runtime.max_shared_bytes
        return launch_rows(num_rows, num_columns, itemsize, num_kept, most_blocks, most_shared)

    def vectors(self, x: DeviceArray) -> DeviceArray:
        """Return x, or a copy if it is not contiguous from a multiple of 16 bytes on."""
        if x.is_contiguous and not x.pointer & 15:
            return x
        out = self.empty(x.shape, x.dtype)
        self._copy_into(out, x)
        return out
