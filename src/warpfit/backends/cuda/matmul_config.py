"""How a matrix product is launched: kernel, tiles and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_TILE = 16  # of matmul_naive and matmul_tiled
# Shared memory that kernels declare themselves.
STATIC_BYTES = 16
MAX_GRID_Y = 65535
# Numbers of slices of k worth a try.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class MatmulConfig:
    """How a product C (m, n) = op(A) (m, k) @ op(B) (k, n) is launched."""

    kernel: str  # the kernel file's stem
    dtype: str  # of A and B
    # transpose_a and transpose_b: whether A is stored (k, m), B (n, k).
    transpose_a: bool = False
    transpose_b: bool = False
    vector: bool = False  # whether all rows begin and end at 16 bytes, and so move at once
    # block_m, block_n and block_k: the tile of C that a block computes, and how much of k it holds
    # at once.
    block_m: int = _TILE
    block_n: int = _TILE
    block_k: int = _TILE
    # thread_m and thread_n: the part of it that is one thread's.
    thread_m: int = 1
    thread_n: int = 1
    groups: int = 1  # groups of threads in a block that share the k of each tile
    splits: int = 1  # slices of k, each a block's; their sums are added in the workspace
    stages: int = 1  # tiles in shared memory at once
    # Whether operands that are stored along k are turned on their way to shared memory.
    turn: bool = True
    # Blocks that have to fit a multiprocessor, which bounds the registers of a thread.
    min_blocks: int = 1
    cluster: int = 1  # blocks that share tiles of an operand

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        if self.kernel != "matmul_register":
            return f"{self.kernel} {tile}"
        turned = "turned" if self.turn else "kept"
        return (
            f"{self.kernel} {tile}, {self.thread_m}x{self.thread_n} a thread, {self.groups} "
            "groups, "
            f"{self.splits} splits, {self.stages} stages, {turned}, {self.min_blocks} blocks"
        )

    @property
    def stores_tensor(self) -> bool:
        """Whether C is written by way of shared memory and a tensor map."""
        return False

    @property
    def group_threads(self) -> int:
        """Threads that have sums of their own."""
        return self.block_m // self.thread_m * (self.block_n // self.thread_n)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * self.group_threads

    @property
    def block(self) -> tuple[int, int, int]:
        """The block to launch with."""
        return (self.threads, 1, 1) if self.kernel == "matmul_register" else (_TILE, _TILE, 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the tiles, or the sums that groups exchange."""
        if self.kernel != "matmul_register":
            return 0
        size = BYTES[self.dtype]
        keeps_a, keeps_b = (
            not self.transpose_a and not self.turn,
            self.transpose_b and not self.turn,
        )
        stage = _tile_numbers(self.block_m, self.block_k, keeps_a, 16 // size)
        stage += _tile_numbers(self.block_n, self.block_k, keeps_b, 16 // size)
        sums = (self.groups - 1) * self.block_m * self.block_n * max(4, size)
        return max(self.stages * stage * size, sums)

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of C."""
        return -(-m // self.block_m) * -(-n // self.block_n)

    def counters(self, m: int, n: int, *, queues: bool = False) -> int:
        """Return how many zeros `arrivals` has to hold: for sums over slices, and for blocks that
        take tiles as they come, if there are more than run at once and the kernel can.
        """
        return self.tiles(m, n) if self.splits > 1 else 0

    def partials(self, m: int, n: int) -> int:
        """Return how many sums (float32, or float64 for float64) `partials` has to hold."""
        return (
            self.tiles(m, n) * self.splits * self.block_m * self.block_n if self.splits > 1 else 0
        )

    @property
    def swath_rows(self) -> int:
        """How many rows of tiles are walked together, to share L2; 0 where that would cost more."""
        return 8 if self.block_m * self.block_n > 64 * 64 else 0

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the grid to launch with."""
        if self.kernel == "matmul_naive":
            return -(-n // self.block_n), -(-m // self.block_m), 1
        if self.kernel == "matmul_tiled":
            return self.tiles(m, n), 1, 1
        if self.swath_rows:
            return self.tiles(m, n), 1, self.splits
        return -(-m // self.block_m), -(-n // self.block_n), self.splits

    def sizes(self, m: int, n: int, k: int, lda: int, ldb: int) -> tuple[int, ...]:
        """Return the kernel's last arguments, for a C whose rows lie one after the other."""
        return m, n, k, lda, ldb, n

    def defines(self) -> dict[str, str | int]:
        """Return the kernel's defines, without those of the epilogue."""
        common: dict[str, str | int] = {
            "DTYPE": self.dtype,
            "TRANSPOSE_A": int(self.transpose_a),
            "TRANSPOSE_B": int(self.transpose_b),
        }
        if self.kernel != "matmul_register":
            return common
        sizes = (
            "block_m",
            "block_n",
            "block_k",
            "thread_m",
            "thread_n",
            "groups",
            "splits",
            "stages",
            "min_blocks",
        )
        own = {name.upper(): getattr(self, name) for name in sizes}
        settings = {
            "VECTOR": int(self.vector),
            "TURN": int(self.turn),
            "SWATH_ROWS": self.swath_rows,
        }
        return {**common, **own, **settings}


_Config = TypeVar("_Config", bound=MatmulConfig)


def _tile_numbers(rows: int, ks: int, kept: bool, pad: int) -> int:
    """Return the numbers in a tile: `kept` with its rows along k, else turned; each line padded."""
    return rows * (ks + pad) if kept else ks * (rows + pad)


def fitted(config: _Config, shared_bytes: int) -> _Config | None:
    """Return the configuration with as many stages as fit a block, or None if two do not."""
    while config.shared_bytes + STATIC_BYTES > shared_bytes:
        if config.stages == 2:
            return None
        config = replace(config, stages=config.stages - 1)
    return config
