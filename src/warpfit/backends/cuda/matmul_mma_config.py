"""Tiles of the matrix product on tensor cores, chosen by shape, dtype and device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.matmul_config import (
    BYTES,
    MAX_GRID_Y,
    SPLITS,
    STATIC_BYTES,
    MatmulConfig,
    fitted,
)
from warpfit.errors import DeviceError

_SLICE_BYTES = 32  # of k that one mma takes
_MAX_CANDIDATES = 14
_SPLITS_TRIED = 2  # of each tiling
_MAX_STEPS_AT_ONCE = 8  # blocks of k in shared memory


def supports(arch: str, dtype: str) -> bool:
    """Whether tensor cores of an architecture multiply a dtype; float32 stands for tf32.

    Parameters
    ----------
    arch : str
        Such as ``'sm_90a'``.
    dtype : str
        Of the operands.
    """
    return dtype in (*HALF_DTYPES, "float32") and generation(arch) >= (
        75 if dtype == "float16" else 80
    )


@dataclass(frozen=True)
class MmaConfig(MatmulConfig):
    """How a product on tensor cores is launched."""

    # warp_m and warp_n: the part of a block's tile that is one warp's, in each of the `groups`.
    warp_m: int = 16
    warp_n: int = 16

    def __str__(self) -> str:
        return (
            f"{self.kernel} {self.block_m}x{self.block_n}x{self.block_k}, "
            f"{self.warp_m}x{self.warp_n} a warp, "
            f"{self.groups} groups, {self.splits} splits, {self.stages} stages"
        )

    @property
    def group_threads(self) -> int:
        """Threads that have sums of their own."""
        return 32 * (self.block_m // self.warp_m) * (self.block_n // self.warp_n)

    @property
    def block(self) -> tuple[int, int, int]:
        """The block to launch with."""
        return self.threads, 1, 1

    @property
    def tile_bytes(self) -> int:
        """Numbers of one tile of A and one of B, in bytes."""
        return (self.block_m + self.block_n) * self.block_k * BYTES[self.dtype]

    @property
    def stage_bytes(self) -> int:
        """Shared memory of these tiles; rows that do not run along k are padded."""
        padded_rows = (self.transpose_a + (not self.transpose_b)) * self.block_k
        return self.tile_bytes + padded_rows * 8 * BYTES[self.dtype]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the tiles, or the sums on their way to C."""
        return max(
            self.stages * self.stage_bytes, 4 * self.groups * self.block_m * (self.block_n + 8)
        )

    @property
    def swath_rows(self) -> int:
        """How many rows of tiles are walked together; small tiles are too short of time."""
        return 8 if self.block_m * self.block_n >= 128 * 128 else 0

    def defines(self) -> dict[str, str | int]:
        """Return the kernel's defines, without those of the epilogue."""
        sizes = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "groups", "splits", "stages")
        return {
            "DTYPE": self.dtype,
            "TRANSPOSE_A": int(self.transpose_a),
            "TRANSPOSE_B": int(self.transpose_b),
            "VECTOR": int(self.vector),
            "SWATH_ROWS": self.swath_rows,
            **{name.upper(): getattr(self, name) for name in sizes},
        }


class _Tiling(NamedTuple):
    """A block's tile, with its depth in slices; the tile of a warp; groups and stages."""

    block_m: int
    block_n: int
    slices: int
    warp_m: int
    warp_n: int
    groups: int
    stages: int


_TILINGS = (
    # Large products: the fewest reads of shared memory and L2 for each mma, one block on a
    # multiprocessor.
    _Tiling(128, 256, 4, 64, 64, 1, 4),
    _Tiling(256, 128, 4, 64, 64, 1, 4),
    _Tiling(128, 256, 2, 64, 64, 1, 6),
    _Tiling(256, 128, 2, 64, 64, 1, 6),
    # Two blocks or more: one computes while the other starts or writes.
    _Tiling(128, 128, 2, 64, 64, 1, 4),
    _Tiling(128, 128, 4, 64, 64, 1, 3),
    _Tiling(128, 128, 4, 64, 32, 1, 3),
    _Tiling(128, 64, 4, 64, 32, 1, 4),
    _Tiling(64, 128, 4, 32, 64, 1, 4),
    _Tiling(64, 64, 4, 32, 32, 1, 4),
    _Tiling(64, 64, 8, 32, 32, 2, 3),
    # Few rows or columns: memory and latency count, so groups share k and much of it is under way
    # at once.
    _Tiling(32, 256, 4, 32, 32, 1, 4),
    _Tiling(32, 128, 4, 32, 32, 1, 4),
    _Tiling(32, 128, 8, 32, 32, 2, 4),
    _Tiling(32, 64, 8, 32, 32, 2, 4),
    _Tiling(32, 64, 16, 32, 32, 4, 3),
    _Tiling(32, 32, 16, 32, 32, 4, 3),
    _Tiling(32, 32, 16, 16, 16, 2, 4),
    _Tiling(64, 32, 8, 32, 32, 2, 4),
    _Tiling(128, 32, 8, 32, 32, 2, 4),
    _Tiling(16, 256, 4, 16, 64, 1, 4),
    _Tiling(16, 128, 8, 16, 32, 2, 4),
    _Tiling(16, 64, 16, 16, 32, 4, 3),
    _Tiling(16, 32, 16, 16, 32, 4, 4),
    _Tiling(16, 32, 16, 16, 32, 8, 4),
    _Tiling(32, 16, 16, 32, 16, 8, 4),
    _Tiling(16, 16, 16, 16, 16, 8, 4),
    _Tiling(64, 16, 16, 32, 16, 4, 3),
    _Tiling(128, 16, 8, 32, 16, 2, 4),
)

# If k is not longer than their 4 slices, of which groups could not make use.
_TILINGS_OF_SHORT_K = (
    _Tiling(64, 32, 4, 32, 16, 1, 4),
    _Tiling(32, 64, 4, 16, 32, 1, 4),
)
_SHORT_K_BYTES = 4 * _SLICE_BYTES


@lru_cache(maxsize=1024)
def _ranked(
    m: int,
    n: int,
    k: int,
    dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    num_multiprocessors: int,
    arch: str,
    vector: bool,
    out: str,
) -> tuple[tuple[float, MmaConfig], ...]:
    device = _Device(num_multiprocessors, shared_bytes_of(arch))
    found = []
    short = k * BYTES[dtype] <= _SHORT_K_BYTES
    for tiling in _TILINGS + (_TILINGS_OF_SHORT_K if short else ()):
        if tiling.warp_m * tiling.warp_n == 64 * 64 and not vector:
            continue  # copying rows of any length takes registers that the sums need
        config = fitted(
            _config(tiling, dtype, transpose_a, transpose_b, vector), device.shared_bytes
        )
        if config is None or config.grid(m, n)[1] > MAX_GRID_Y:
            continue
        splits = [
            replace(config, splits=splits) for splits in _useful_splits(config, device, m, n, k)
        ]
        timed = [(_cycles(split, device, m, n, k, BYTES[out]), split) for split in splits]
        found += sorted(timed, key=_time)[:_SPLITS_TRIED]
    best = sorted(found, key=_time)[:_MAX_CANDIDATES]
    return tuple((cycles, _with_all_of_k(config, device, m, n, k)) for cycles, config in best)


def _with_all_of_k(config: MmaConfig, device: _Device, m: int, n: int, k: int) -> MmaConfig:
    """Return a small tile with stages for all blocks of k, if they fit while all tiles are computed
    at once.

    Then all of the operands are asked for before anything is waited for.
    """
    steps = max(1, -(-k // (config.splits * config.block_k)))
    if config.block_m * config.block_n > 64 * 64 or steps > _MAX_STEPS_AT_ONCE:
        return config
    whole = replace(config, stages=steps + 1)
    blocks = config.tiles(m, n) * config.splits
    if whole.shared_bytes > device.shared_bytes - STATIC_BYTES:
        return config
    return whole if blocks <= device.num_multiprocessors * device.resident(whole) else config


def _time(choice: tuple[float, MmaConfig]) -> float:
    return choice[0]


def mma_choices(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    num_multiprocessors: int = 132,
    arch: str = "sm_90a",
    vector: bool = False,
    out: str | None = None,
) -> tuple[tuple[float, MmaConfig], ...]:
    """Return ways to compute op(A) (m, k) @ op(B) (k, n) on tensor cores, each with a guess of its
    time in cycles.

    The one of which most is expected comes first.

    Parameters
    ----------
    m, n, k : int
        Sizes; 0 is allowed.
    dtype : str
        float16, bfloat16, or float32 for tf32.
    transpose_a, transpose_b : bool
        Whether A is stored (k, m), B (n, k).
    num_multiprocessors : int
        Of the device.
    arch : str
        Such as ``'sm_90a'``.
    vector : bool
        Whether all rows of all arrays are `aligned`.
    out : str or None
        C's dtype; `dtype` if None.

    Raises
    ------
    DeviceError
        If the architecture's tensor cores do not take the dtype.
    """
    if not supports(arch, dtype):
        raise DeviceError(f"expected a dtype that tensor cores of {arch} multiply, got {dtype}")
    settings = (transpose_a, transpose_b, num_multiprocessors, arch, vector)
    return _ranked(m, n, k, dtype, *settings, out or dtype)


def _config(
    tiling: _Tiling, dtype: str, transpose_a: bool, transpose_b: bool, vector: bool
) -> MmaConfig:
    return MmaConfig(
        "matmul_mma",
        dtype,
        transpose_a,
        transpose_b,
        vector,
        block_m=tiling.block_m,
        block_n=tiling.block_n,
        block_k=tiling.slices * _SLICE_BYTES // BYTES[dtype],
        groups=tiling.groups,
        stages=tiling.stages,
        warp_m=tiling.warp_m,
        warp_n=tiling.warp_n,
    )


def _useful_splits(config: MmaConfig, device: _Device, m: int, n: int, k: int) -> Iterator[int]:
    """Yield numbers of slices that make one wave at most, each with a block of k at least."""
    yield 1
    if config.block_m * config.block_n > 128 * 128:
        return
    room = device.num_multiprocessors * device.resident(config) // max(config.tiles(m, n), 1)
    largest = min(room, -(-k // config.block_k))
    yield from (splits for splits in SPLITS[1:] if splits <= largest)


# -- a guess of the time, which only has to rank the choices


class _Device(NamedTuple):
    num_multiprocessors: int
    shared_bytes: int  # of a block, about that of a multiprocessor

    def resident(self, config: MmaConfig) -> int:
        """Return how many blocks a multiprocessor holds at once."""
        # Sums, two sets of fragments, and addresses; registers come in multiples of 8.
        fragments = (config.warp_m + config.warp_n) // 2
        registers = min(255, config.warp_m * config.warp_n // 32 + fragments + 60)
        by_registers = 65536 // (config.threads * -(-registers // 8) * 8)
        return max(1, min(self.shared_bytes // (config.shared_bytes + 1024), by_registers, 16))


# Multiply-adds per cycle of one multiprocessor, as mma.sync reaches them on sm_90.
_MULTIPLIES = {"float16": 930, "bfloat16": 930, "float32": 480}
_READ_BYTES = 40  # from L2 per cycle, by one multiprocessor alone
_L2_BYTES = 33.5  # by each, if all of them read
_MEMORY_BYTES = 15  # from device memory, if all of them read
_SHARED_BYTES = 100
_CHAIN = 60  # of a product that waits for the one before
_STEP = 61  # barrier and first fragments of a block of k
_START = 2930  # launch, the first read of global memory, last store
_LATENCY = 615  # of a read of global memory
_SPLIT = 2900  # write, fence, count, read
_BUSY_WARPS = 6.9  # that keep the tensor cores busy
# What a block does of this if it is the only one and no other computes while it waits at its
# barrier.
_ALONE = {"float16": 1.0, "bfloat16": 1.0, "float32": 0.62}


def _cycles(config: MmaConfig, device: _Device, m: int, n: int, k: int, out_bytes: int) -> float:
    """Return a guess of the time on the busiest multiprocessor, in cycles."""
    steps = max(1, -(-k // (config.splits * config.block_k)))
    blocks = max(1, -(-config.tiles(m, n) * config.splits // device.num_multiprocessors))
    resident = min(blocks, device.resident(config))
    multiply = blocks * steps * _step_cycles(config, resident)
    read = blocks * steps * config.tile_bytes / _read_rate(config, resident)
    chain = -(-blocks // resident) * steps * _chain_cycles(config)
    size = BYTES[config.dtype]
    from_memory = ((m * k + k * n) * size + m * n * out_bytes) / _MEMORY_BYTES
    from_l2 = config.tiles(m, n) * config.splits * steps * config.tile_bytes / _L2_BYTES
    shared_by_all = max(from_memory, from_l2) / device.num_multiprocessors
    write = (
        blocks * config.block_m * config.block_n * (8 * config.groups + out_bytes) / _SHARED_BYTES
    )
    if config.splits > 1:
        write += _SPLIT + config.splits * config.block_m * config.block_n * 4 / _READ_BYTES
    return _START + write + max(multiply, read, chain, shared_by_all)


def _step_cycles(config: MmaConfig, resident: int) -> float:
    """Return the throughput of a block of k: tensor cores, or what they read from shared memory."""
    busy = min(1.0, resident * config.threads / 32 / _BUSY_WARPS) * (
        _ALONE[config.dtype] if resident == 1 else 1
    )
    tensor = config.block_m * config.block_n * config.block_k / (_MULTIPLIES[config.dtype] * busy)
    slices = config.block_k * BYTES[config.dtype] // _SLICE_BYTES
    fragments = slices * config.group_threads // 32 * (config.warp_m + config.warp_n) * _SLICE_BYTES
    return max(tensor, (fragments + config.stage_bytes) / _SHARED_BYTES)


def _chain_cycles(config: MmaConfig) -> float:
    """Return the time that one warp needs for its part of a block of k, alone."""
    slices = config.block_k * BYTES[config.dtype] // _SLICE_BYTES // config.groups
    products = config.warp_m * config.warp_n // 128
    return _STEP + slices * max(_CHAIN, products * 8)


def _read_rate(config: MmaConfig, resident: int) -> float:
    """Return bytes per cycle from L2: its rate, or what is under way during one latency."""
    under_way = resident * (config.stages - 1) * config.tile_bytes
    rate = min(_READ_BYTES, under_way / _LATENCY)
    return rate if config.vector else rate / 4
