"""Tiles of the matrix product in registers, chosen by shape, dtype and device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import inf
from typing import NamedTuple

from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.matmul_config import BYTES, MAX_GRID_Y, SPLITS, MatmulConfig, fitted

# Lines of a tile; within them matmul_register counts in 32 bits.
_TILE_LINES = 256


def register_choices(
    stored: MatmulConfig, m: int, n: int, k: int, *, num_multiprocessors: int, arch: str
) -> list[tuple[float, MatmulConfig]]:
    """Return configurations with guesses of their times in cycles.

    Rows too long for matmul_register to count are matmul_tiled's.

    Parameters
    ----------
    stored : MatmulConfig
        How A and B are stored: dtype, transpositions, alignment.
    m, n, k : int
    num_multiprocessors : int
        Of the device.
    arch : str
        Of the device, such as ``'sm_90a'``.
    """
    if (
        max(min(rows, _TILE_LINES) * length for rows, length in _stored_shapes(stored, m, n, k))
        >= 2**32
    ):
        return [(inf, replace(stored, kernel="matmul_tiled", vector=False))]
    device = _Device(num_multiprocessors, shared_bytes_of(arch))
    return list(_choices(stored, device, m, n, k))


def _stored_shapes(
    config: MatmulConfig, m: int, n: int, k: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    return (k, m) if config.transpose_a else (m, k), (n, k) if config.transpose_b else (k, n)


class _Device(NamedTuple):
    num_multiprocessors: int
    shared_bytes: int


@dataclass(frozen=True)
class _Tiling:
    """Tile sizes of matmul_register, and how much of the peak its inner loop can reach."""

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    groups: int
    stages: int
    turn: bool
    min_blocks: int
    efficiency: float


# Efficiency: FFMA among all instructions of the inner loop, or what reads of shared memory leave of
# it.
_TILINGS = {
    "float32": (
        _Tiling(256, 128, 16, 16, 8, 1, 3, True, 1, 0.85),
        _Tiling(128, 256, 16, 8, 16, 1, 3, True, 1, 0.85),
        _Tiling(128, 128, 16, 8, 8, 1, 3, True, 2, 0.87),
        _Tiling(128, 128, 8, 8, 8, 1, 4, True, 2, 0.84),
        _Tiling(128, 64, 16, 8, 8, 1, 4, True, 3, 0.85),
        _Tiling(64, 128, 16, 8, 8, 1, 4, True, 3, 0.84),
        _Tiling(128, 64, 16, 8, 8, 2, 4, True, 2, 0.80),
        _Tiling(64, 128, 16, 8, 8, 2, 4, True, 2, 0.85),
        _Tiling(64, 64, 16, 8, 8, 2, 4, True, 3, 0.82),
        _Tiling(64, 64, 16, 8, 4, 1, 4, True, 4, 0.78),
        _Tiling(64, 64, 32, 8, 8, 4, 3, True, 2, 0.80),
        _Tiling(64, 32, 32, 8, 4, 4, 4, True, 2, 0.65),
        _Tiling(32, 64, 32, 4, 8, 4, 4, True, 2, 0.65),
        _Tiling(64, 32, 32, 4, 4, 2, 4, False, 2, 0.55),
        _Tiling(64, 32, 64, 4, 4, 4, 2, False, 1, 0.55),
        _Tiling(32, 64, 32, 4, 4, 2, 4, False, 2, 0.55),
        _Tiling(32, 32, 64, 4, 4, 4, 4, False, 2, 0.55),
        _Tiling(32, 32, 64, 4, 4, 4, 4, True, 2, 0.50),
        _Tiling(32, 16, 64, 4, 4, 8, 5, False, 1, 0.45),
        _Tiling(16, 32, 64, 4, 4, 8, 5, False, 1, 0.45),
        _Tiling(16, 16, 128, 4, 2, 8, 5, False, 1, 0.35),
        _Tiling(16, 16, 64, 4, 2, 8, 5, False, 2, 0.35),
        _Tiling(16, 8, 128, 2, 2, 8, 6, False, 1, 0.25),
        _Tiling(16, 8, 64, 2, 2, 8, 6, False, 2, 0.25),
        _Tiling(8, 16, 128, 2, 2, 8, 6, False, 1, 0.25),
    ),
    "float64": (
        _Tiling(128, 64, 16, 8, 4, 1, 3, True, 1, 0.80),
        _Tiling(64, 64, 16, 4, 4, 1, 4, True, 2, 0.70),
        _Tiling(32, 32, 32, 4, 2, 4, 4, True, 1, 0.50),
        _Tiling(32, 32, 32, 4, 2, 4, 4, False, 1, 0.50),
        _Tiling(16, 16, 64, 2, 2, 4, 4, False, 1, 0.30),
        _Tiling(8, 16, 64, 2, 2, 8, 4, False, 1, 0.20),
    ),
}

_SLICE = 32  # a slice of k is at least this long
# Cycles and bytes per cycle of one multiprocessor; they only have to rank the choices.
_MULTIPLIES = {"float32": 128, "float64": 64, "float16": 128, "bfloat16": 128}
_READ_BYTES = 48  # from L2
_START = 3000  # launch, first tile from memory, last store
_SPLIT = 4000  # write, fence, count, read
_BUSY_WARPS = 8.5  # that hide the latencies of the inner loop


def _choices(
    stored: MatmulConfig, device: _Device, m: int, n: int, k: int
) -> Iterator[tuple[float, MatmulConfig]]:
    """Yield all tilings that fit the device, with all useful numbers of splits."""
    for tiling in _TILINGS["float64" if stored.dtype == "float64" else "float32"]:
        config = fitted(_config(stored, tiling), device.shared_bytes)
        if config is None or config.grid(m, n)[1] > MAX_GRID_Y:
            continue
        for splits in _useful_splits(
            config.tiles(m, n), k, device.num_multiprocessors * tiling.min_blocks
        ):
            split = replace(config, splits=splits)
            yield _cycles(split, tiling.efficiency, m, n, k, device.num_multiprocessors), split


def _config(stored: MatmulConfig, tiling: _Tiling) -> MatmulConfig:
    sizes = {
        field.name: getattr(tiling, field.name)
        for field in fields(tiling)
        if field.name != "efficiency"
    }
    return replace(stored, **sizes)


def _useful_splits(tiles: int, k: int, room: int) -> list[int]:
    """Return numbers of slices with room for all their blocks, none too short."""
    largest = max(1, min(room // max(tiles, 1), k // _SLICE))
    return [splits for splits in SPLITS if splits <= largest]


def _cycles(
    config: MatmulConfig, efficiency: float, m: int, n: int, k: int, num_multiprocessors: int
) -> float:
    """Return a guess of the time on the busiest multiprocessor, in cycles."""
    size = BYTES[config.dtype]
    area, slice_k = config.block_m * config.block_n, -(-k // config.splits)
    blocks = max(1, -(-config.tiles(m, n) * config.splits // num_multiprocessors))
    warps = min(blocks, config.min_blocks) * config.threads / 32
    rate = _MULTIPLIES[config.dtype] * efficiency * min(1.0, warps / _BUSY_WARPS)
    multiply = blocks * area * slice_k / rate
    read = blocks * (config.block_m + config.block_n) * slice_k * size / _READ_BYTES
    regroup = 6 * blocks * (config.groups - 1) * config.thread_m * config.thread_n
    split = (
        _SPLIT + (blocks + config.splits) * area * size / _READ_BYTES if config.splits > 1 else 0
    )
    return _START + max(multiply, read) + regroup + split
