"""Tiles of products on Hopper, by shape and dtype; which operand of float32 is turned before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.matmul_config import BYTES, MatmulConfig

_LINE_BYTES = 128  # of k that a stage holds
_WARPGROUP = 128
_STAGED_BYTES = 4 * 2 * (2048 + 8)  # that the results of a warpgroup pass through, with barriers
_BARRIER_BYTES = 16  # of a stage
_TOLD_BYTES = 16  # of a slot of the queue of tiles, which has one more than there are stages
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_STAGES = 12


class Box(NamedTuple):
    """What a tensor copy moves at once of an operand as it is stored."""

    rows: int
    columns: int


@dataclass(frozen=True)
class WgmmaConfig(MatmulConfig):
    """How a product is launched on Hopper's tensor cores.

    All sizes are those of the kernel's own product: of the transposed one, Cᵀ = op(B)ᵀ op(A)ᵀ, if
    it is swapped. The blocks of a cluster, one below the other, share the tile of B.
    """

    out: str = "float16"  # C's dtype
    consumers: int = 1  # warpgroups of a block that multiply
    mma_rows: int = 1  # how often 64 rows are one warpgroup's
    # Whether rows of the tile are columns of C: for products of few rows, and for those of float32.
    swapped: bool = False
    # Whether the kernel's B is a copy of the operand, turned to lie along k: tensor cores take
    # float32 only so.
    turns_b: bool = False
    num_multiprocessors: int = 132  # of the device

    def __str__(self) -> str:
        swapped = ", swapped" if self.swapped else ""
        turned = ", B turned" if self.turns_b else ""
        return (
            f"{self.kernel} {self.block_m}x{self.block_n}x{self.block_k}, {self.consumers} "
            f"consumers, clusters of {self.cluster}, {self.splits} splits, {self.stages} "
            f"stages{swapped}{turned}"
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARPGROUP * (1 + self.consumers)

    @property
    def block(self) -> tuple[int, int, int]:
        """The block to launch with."""
        return self.threads, 1, 1

    @property
    def stage_bytes(self) -> int:
        """Shared memory of the tiles of A and B that are multiplied at once."""
        return (self.block_m + self.block_n) * _LINE_BYTES

    @property
    def takes_registers(self) -> bool:
        """Whether A goes to the tensor cores by way of registers: float32 that lies across k."""
        return self.dtype == "float32" and self.transpose_a

    @property
    def stores_tensor(self) -> bool:
        """Whether C is written by way of shared memory and a tensor map."""
        return not self.swapped and not self.takes_registers

    @property
    def map_dtype(self) -> str:
        """What tensor maps of A and B are of."""
        return "tf32" if self.dtype == "float32" else self.dtype

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        staged = self.consumers * _STAGED_BYTES if self.stores_tensor else 0
        queue = (self.stages + 1) * _TOLD_BYTES
        return self.stages * (self.stage_bytes + _BARRIER_BYTES) + staged + queue

    def tiles_of_clusters(self, m: int, n: int) -> int:
        """Return the number of tiles of C, each of a cluster's size."""
        m, n = (n, m) if self.swapped else (m, n)
        return -(-m // (self.block_m * self.cluster)) * -(-n // self.block_n)

    def tiles(self, m: int, n: int) -> int:
        """Return the number of warps' tiles of C."""
        return self.tiles_of_clusters(m, n) * self.cluster * self.consumers * 4 * self.mma_rows

    def counters(self, m: int, n: int, *, queues: bool = False) -> int:
        is_long = self.tiles_of_clusters(m, n) * self.cluster > self.num_multiprocessors
        return super().counters(m, n) or int(queues and is_long)

    def partials(self, m: int, n: int) -> int:
        """Return the number of float32 sums that `partials` has to hold."""
        return self.tiles(m, n) * self.splits * 16 * self.block_n if self.splits > 1 else 0

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the grid to launch with."""
        pieces = self.tiles_of_clusters(m, n) * self.splits
        return min(self.num_multiprocessors // self.cluster, pieces) * self.cluster, 1, 1

    def sizes(self, m: int, n: int, k: int, lda: int, ldb: int) -> tuple[int, ...]:
        """Return the kernel's last arguments, for a C whose rows lie one after the other."""
        return (n, m, k, n) if self.swapped else (m, n, k, n)

    @property
    def swath_rows(self) -> int:
        """How many rows of tiles of clusters are walked together."""
        return max(1, 16 // self.cluster)

    @property
    def boxes(self) -> tuple[Box, Box, Box]:
        """What tensor copies move at once of the kernel's A, B and C."""
        line = _LINE_BYTES // BYTES[self.dtype]
        a = Box(line if self.transpose_a else self.block_m, line)
        if self.transpose_b:
            b = Box(self.block_n // self.cluster, line)
        else:
            b = Box(
                line if self.block_n // line % self.cluster == 0 else line // self.cluster, line
            )
        return a, b, Box(16, 128 // BYTES[self.out])

    def defines(self) -> dict[str, str | int]:
        """Return the kernel's defines, without those of the epilogue."""
        sizes = ("block_n", "splits", "stages", "consumers", "mma_rows", "cluster")
        return {
            "DTYPE": self.dtype,
            "TRANSPOSE_A": int(self.transpose_a),
            "TRANSPOSE_B": int(self.transpose_b),
            "VECTOR": int(self.vector),
            "SWATH_ROWS": self.swath_rows,
            "STORES_TENSOR": int(self.stores_tensor),
            "SWAPPED": int(self.swapped),
            **{name.upper(): getattr(self, name) for name in sizes},
        }


# Products of float32 numbers with fewer rows or columns, which wait more than they multiply, go to
# matmul_mma.
_LEAST_SIDE_OF_FLOAT32 = 128


def takes(arch: str, dtype: str, m: int, n: int, k: int, *, vector: bool) -> bool:
    """Whether the kernel computes a product.

    Tensor copies need rows that begin at multiples of 16 bytes. float32 is for precision tf32.
    """
    if generation(arch) != 90 or not vector or min(m, n, k) < 1:
        return False
    return dtype in HALF_DTYPES or (dtype == "float32" and min(m, n) >= _LEAST_SIDE_OF_FLOAT32)


class _Tiling(NamedTuple):
    consumers: int
    mma_rows: int
    block_n: int


# Of large products, of smaller ones, and, in half precision, of those of few rows, swapped. float32
# swaps the former too where B lies across: of the kernel's operands only A may.
_TILINGS = (
    _Tiling(2, 1, 256),
    _Tiling(2, 2, 128),
    _Tiling(2, 1, 128),
    _Tiling(1, 1, 256),
    _Tiling(1, 1, 128),
    _Tiling(2, 1, 64),
    _Tiling(1, 1, 64),
)
_SWAPPED_TILINGS = (_Tiling(1, 1, 32), _Tiling(2, 1, 32), _Tiling(1, 1, 64), _Tiling(2, 1, 64))
_MOST_ROWS_SWAPPED = 64


def _with_stages(config: WgmmaConfig) -> WgmmaConfig:
    """Return the configuration with as many stages as fit, up to those that can be of use."""
    left = shared_bytes_of("sm_90a") - replace(config, stages=0).shared_bytes
    stage = replace(config, stages=1).shared_bytes - replace(config, stages=0).shared_bytes
    return replace(config, stages=min(_MOST_STAGES, left // stage))


class _Product(NamedTuple):
    """What a product is, besides its sizes."""

    dtype: str
    out: str
    transpose_a: bool
    transpose_b: bool
    num_multiprocessors: int

    def config(self, tiling: _Tiling, *, swapped: bool) -> WgmmaConfig:
        """Return the configuration of tiles of this kind, with as many stages as fit."""
        transpose_b = not self.transpose_a if swapped else self.transpose_b
        turns_b = self.dtype == "float32" and not transpose_b
        return _with_stages(
            WgmmaConfig(
                "gemm_sm90",
                self.dtype,
                not self.transpose_b if swapped else self.transpose_a,
                transpose_b or turns_b,
                vector=True,
                block_m=64 * tiling.mma_rows * tiling.consumers,
                block_n=tiling.block_n,
                block_k=_LINE_BYTES // BYTES[self.dtype],
                out=self.out,
                consumers=tiling.consumers,
                mma_rows=tiling.mma_rows,
                swapped=swapped,
                turns_b=turns_b,
                num_multiprocessors=self.num_multiprocessors,
            )
        )


def _tilings(m: int, product: _Product) -> Iterator[tuple[_Tiling, bool]]:
    """Yield useful tilings, each with whether it is one of the swapped product."""
    yield from ((tiling, False) for tiling in _TILINGS)
    if product.dtype == "float32":
        yield from ((tiling, True) for tiling in _TILINGS if not product.transpose_b)
    elif m <= _MOST_ROWS_SWAPPED:
        yield from ((tiling, True) for tiling in _SWAPPED_TILINGS)


def _configs(m: int, n: int, k: int, product: _Product) -> Iterator[WgmmaConfig]:
    """Yield all useful tilings, clusters and numbers of slices."""
    steps = -(-k * BYTES[product.dtype] // _LINE_BYTES)
    for tiling, swapped in _tilings(m, product):
        config = product.config(tiling, swapped=swapped)
        if config.takes_registers and tiling.mma_rows > 1:
            continue  # the sums leave no registers for A
        if config.turns_b and k * BYTES[product.dtype] % 16:
            continue  # rows of the copy begin at multiples of 16 bytes
        if config.block_n % 64 and not config.transpose_b:
            continue  # boxes of whole lines
        if swapped and m <= _MOST_ROWS_SWAPPED and config.block_n < m:
            continue  # each weight would be read twice
        tiles = config.tiles_of_clusters(m, n)
        if tiling == _TILINGS[0] and tiles >= 2 * product.num_multiprocessors:
            yield replace(config, cluster=2)
        for splits in _SPLITS:
            if splits == 1 or (splits <= steps and tiles * splits <= product.num_multiprocessors):
                yield replace(config, splits=splits)


# -- a guess of the time, in the unit of those of matmul_mma_config; constants fitted to
# measurements on an H200 --

_MULTIPLIES = {2: 1700, 4: 850}  # a cycle of one multiprocessor, by the bytes of a number
_SHARED_BYTES = 80  # a cycle, by wgmma
_STEP = 17  # barriers of a block of k
_L2_BYTES = 68  # a cycle, by each multiprocessor
_MEMORY_BYTES = 17.6  # by each, if all of them read or write
_LATENCY = 1100  # of a copy, of which 4 stages are under way
_WRITE_BYTES = 29
_START = 3440  # launch, first stages, last store
_SPLIT = 2960
_PARTIAL_BYTES = 40
_SCATTER_BYTES = 20  # written without a tensor copy, of float32
_TURN_START = 3000  # of the kernel that turns an operand before
_TURN_BYTES = 14


def _cycles(config: WgmmaConfig, m: int, n: int, k: int) -> float:
    """Return a guess of the time on the busiest multiprocessor, in cycles."""
    size, out_size = BYTES[config.dtype], BYTES[config.out]
    pieces = config.tiles_of_clusters(m, n) * config.splits * config.cluster
    own = -(-pieces // config.num_multiprocessors)
    steps = own * -(-k // (config.block_k * config.splits))
    area = config.block_m * config.block_n
    memory = ((m + n) * k * size + m * n * out_size) / config.num_multiprocessors / _MEMORY_BYTES
    scatters = config.dtype == "float32" and not config.stores_tensor
    write = own * area * out_size / (_SCATTER_BYTES if scatters else _WRITE_BYTES)
    if config.turns_b:
        turned = 2 * k * (m if config.swapped else n) * size
        write += _TURN_START + turned / config.num_multiprocessors / _TURN_BYTES
    if config.splits > 1:
        write += _SPLIT + config.splits * area * 4 / _PARTIAL_BYTES
    return _START + write + max(steps * _step_cycles(config, pieces), memory)


def _step_cycles(config: WgmmaConfig, pieces: int) -> float:
    """Return the time of a block of k: of tensor cores, of what they read, or of the copies."""
    tensor = config.block_m * config.block_n * config.block_k / _MULTIPLIES[BYTES[config.dtype]]
    read = (64 + config.block_n) * config.consumers * config.mma_rows * _LINE_BYTES / _SHARED_BYTES
    copied = (config.block_m + config.block_n / config.cluster) * _LINE_BYTES
    of_l2 = _L2_BYTES * config.num_multiprocessors / min(pieces, config.num_multiprocessors)
    return _STEP + max(tensor, read, copied / min(of_l2, 4 * copied / _LATENCY))


@lru_cache(maxsize=1024)
def wgmma_choices(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    num_multiprocessors: int = 132,
    out: str | None = None,
) -> tuple[tuple[float, WgmmaConfig], ...]:
    """Return ways to compute op(A) (m, k) @ op(B) (k, n), each with a guess of its time in cycles.

    Parameters
    ----------
    m, n, k : int
        Sizes, at least 1.
    dtype : str
        float16, bfloat16, or float32 for tf32.
    transpose_a, transpose_b : bool
        Whether A is stored (k, m), B (n, k).
    num_multiprocessors : int
        Of the device.
    out : str or None
        C's dtype; `dtype` if None.
    """
    product = _Product(dtype, out or dtype, transpose_a, transpose_b, num_multiprocessors)
    return tuple((_cycles(config, m, n, k), config) for config in _configs(m, n, k, product))
