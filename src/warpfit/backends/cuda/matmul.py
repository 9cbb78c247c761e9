"""Which kernel computes a matrix product, and with which tiles: pure functions of its shape and the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeVar

from warpfit.backends.cuda.jit import generation
from warpfit.errors import ConfigError

__all__ = [
    "MAX_GRID_Y",
    "SPLITS",
    "STATIC_BYTES",
    "MatmulConfig",
    "aligned",
    "candidates",
    "configure",
    "configure_for",
    "fitted",
    "shared_bytes_of",
]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_TILE = 16  # of matmul_naive and matmul_tiled
# Shared memory that kernels declare themselves.
STATIC_BYTES = 16
MAX_GRID_Y = 65535
# Numbers of slices of k worth a try.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class MatmulConfig:
    """How a product C (m, n) = op(A) (m, k) @ op(B) (k, n) is launched.

    Attributes
    ----------
    kernel : str
        The kernel file's stem.
    dtype : str
        Of A and B.
    transpose_a, transpose_b : bool
        Whether A is stored (k, m), B (n, k).
    vector : bool
        Whether rows are moved 16 bytes at once; see `aligned`.
    block_m, block_n, block_k : int
        The tile of C that a block computes, and how much of k it holds at once.
    thread_m, thread_n : int
        The part of it that is one thread's.
    groups : int
        Groups of threads in a block that share the k of each tile.
    splits : int
        Slices of k, each a block's; their sums are added in the workspace.
    stages : int
        Tiles in shared memory at once.
    turn : bool
        Whether operands that are stored along k are turned on their way to shared memory.
    min_blocks : int
        Blocks that have to fit a multiprocessor, which bounds the registers of a thread.
    cluster : int
        Blocks that share tiles of an operand.
    """

    kernel: str
    dtype: str
    transpose_a: bool = False
    transpose_b: bool = False
    vector: bool = False
    block_m: int = _TILE
    block_n: int = _TILE
    block_k: int = _TILE
    thread_m: int = 1
    thread_n: int = 1
    groups: int = 1
    splits: int = 1
    stages: int = 1
    turn: bool = True
    min_blocks: int = 1
    cluster: int = 1

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        if self.kernel != "matmul_register":
            return f"{self.kernel} {tile}"
        turned = "turned" if self.turn else "kept"
        return (
            f"{self.kernel} {tile}, {self.thread_m}x{self.thread_n} a thread, {self.groups} groups, "
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
        size = _BYTES[self.dtype]
        keeps_a, keeps_b = not self.transpose_a and not self.turn, self.transpose_b and not self.turn
        stage = _tile_numbers(self.block_m, self.block_k, keeps_a, 16 // size)
        stage += _tile_numbers(self.block_n, self.block_k, keeps_b, 16 // size)
        sums = (self.groups - 1) * self.block_m * self.block_n * max(4, size)
        return max(self.stages * stage * size, sums)

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of C: with splits, the zeros that `arrivals` has to hold."""
        return -(-m // self.block_m) * -(-n // self.block_n)

    def partials(self, m: int, n: int) -> int:
        """Return the number of sums (float32, or float64 for float64) that `partials` has to hold."""
        return self.tiles(m, n) * self.splits * self.block_m * self.block_n if self.splits > 1 else 0

    @property
    def swath_rows(self) -> int:
        """How many rows of tiles are walked together, to share L2; 0 where finding the place would cost more."""
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
        settings = {"VECTOR": int(self.vector), "TURN": int(self.turn), "SWATH_ROWS": self.swath_rows}
        return {**common, **own, **settings}


_Config = TypeVar("_Config", bound=MatmulConfig)


def _tile_numbers(rows: int, ks: int, kept: bool, pad: int) -> int:
    """Return the numbers in a tile: `kept` with its rows along k, else turned; each line padded."""
    return rows * (ks + pad) if kept else ks * (rows + pad)


def aligned(dtype: str, *pointers_and_rows: tuple[int, int, int]) -> bool:
    """Whether all rows begin and end at multiples of 16 bytes, so that kernels may move 16 bytes at once.

    Parameters
    ----------
    dtype : str
        Of all arrays.
    *pointers_and_rows : tuple of (address, length of a row, leading dimension)
        Of A, B and C, as they are stored; length and leading dimension in elements.
    """
    size = _BYTES[dtype]
    return all((pointer | length * size | ld * size) % 16 == 0 for pointer, length, ld in pointers_and_rows)


# -- choice --------------------------------------------------------------------------------------------------


def shared_bytes_of(arch: str) -> int:
    """Return the shared memory that one block may ask for on an architecture such as ``'sm_90a'``."""
    kib = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227}
    return kib.get(generation(arch), 99) << 10


def fitted(config: _Config, shared_bytes: int) -> _Config | None:
    """Return the configuration with as many stages as fit the shared memory of a block, or None if two do not."""
    while config.shared_bytes + STATIC_BYTES > shared_bytes:
        if config.stages == 2:
            return None
        config = replace(config, stages=config.stages - 1)
    return config


@lru_cache(maxsize=4096)
def configure(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    precision: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    num_multiprocessors: int = 132,
    arch: str = "sm_90a",
    vector: bool = False,
    out: str | None = None,
) -> MatmulConfig:
    """Return how to compute op(A) (m, k) @ op(B) (k, n).

    Half types, and float32 at precision ``'tf32'``, go to the tensor cores of cards that take them.

    Parameters
    ----------
    m, n, k : int
        Sizes; 0 is allowed.
    dtype : str
        float32, float64, float16 or bfloat16.
    precision : str
        ``'float32'``, or ``'tf32'`` for products of float32 on tensor cores.
    transpose_a, transpose_b : bool
        Whether A is stored (k, m), B (n, k).
    num_multiprocessors : int
        Of the device.
    arch : str
        Of the device, such as ``'sm_90a'``.
    vector : bool
        Whether all rows of all arrays are `aligned`.
    out : str or None
        C's dtype; `dtype` if None.

    Raises
    ------
    ConfigError
        For an unknown dtype or precision.
    """
    return candidates(
        m,
        n,
        k,
        dtype,
        precision=precision,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        num_multiprocessors=num_multiprocessors,
        arch=arch,
        vector=vector,
        out=out,
    )[0]


def candidates(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    precision: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    num_multiprocessors: int = 132,
    arch: str = "sm_90a",
    vector: bool = False,
    out: str | None = None,
) -> Sequence[MatmulConfig]:
    """Return the configurations worth a measurement, those of which most is expected first.

    Parameters and errors are those of `configure`.
    """
    settings = (precision, transpose_a, transpose_b, num_multiprocessors, arch, vector, out)
    return [config for _, config in _ranked(m, n, k, dtype, *settings)]


def configure_for(kernel: str, m: int, n: int, k: int, dtype: str, **settings: Any) -> MatmulConfig:
    """Return how one kernel computes op(A) (m, k) @ op(B) (k, n), whether or not it is the best for that.

    Parameters
    ----------
    kernel : str
        The kernel file's stem: ``'matmul_naive'``, ``'matmul_tiled'``, ``'matmul_register'``, ``'matmul_mma'`` or
        ``'gemm_sm90'``.
    m, n, k, dtype, **settings
        As `configure` takes them.

    Raises
    ------
    ConfigError
        If the kernel does not compute such a product on this device.
    """
    if kernel in ("matmul_naive", "matmul_tiled"):
        stored = settings.get("transpose_a", False), settings.get("transpose_b", False)
        return MatmulConfig(kernel, dtype, *stored)
    for config in candidates(m, n, k, dtype, **settings):
        if config.kernel == kernel:
            return config
    arch = settings.get("arch", "this device")
    raise ConfigError(f"expected a product that {kernel} computes on {arch}, got {m} x {n} x {k} of {dtype}")


def _ranked(
    m: int,
    n: int,
    k: int,
    dtype: str,
    precision: str,
    transpose_a: bool,
    transpose_b: bool,
    num_multiprocessors: int,
    arch: str,
    vector: bool,
    out: str | None,
) -> list[tuple[float, MatmulConfig]]:
    """Return configurations with guesses of their times in cycles, the shortest first."""
    if dtype not in _BYTES:
        raise ConfigError(f"expected a dtype among {', '.join(_BYTES)}, got {dtype!r}")
    if precision not in ("float32", "tf32"):
        raise ConfigError(f"expected precision 'float32' or 'tf32', got {precision!r}")
    if dtype in ("float16", "bfloat16") or (dtype == "float32" and precision == "tf32"):
        # Their configurations derive from MatmulConfig.
        from warpfit.backends.cuda.matmul_mma_config import mma_choices, supports
        from warpfit.backends.cuda.matmul_wgmma_config import takes, wgmma_choices

        if supports(arch, dtype):
            settings: dict[str, Any] = {
                "transpose_a": transpose_a,
                "transpose_b": transpose_b,
                "num_multiprocessors": num_multiprocessors,
                "out": out,
            }
            choices: list[tuple[float, MatmulConfig]] = []
            choices += mma_choices(m, n, k, dtype, arch=arch, vector=vector, **settings)
            if takes(arch, dtype, m, n, k, vector=vector):
                choices += wgmma_choices(m, n, k, dtype, **settings)
            return sorted(choices, key=lambda choice: choice[0])
    stored = MatmulConfig("matmul_register", dtype, transpose_a, transpose_b, vector)
    if max(min(rows, _TILE_LINES) * length for rows, length in _stored_shapes(stored, m, n, k)) >= 2**32:
        return [(inf, replace(stored, kernel="matmul_tiled", vector=False))]
    device = _Device(num_multiprocessors, shared_bytes_of(arch))
    found = sorted(_choices(stored, device, m, n, k), key=lambda choice: choice.cycles)
    return [(choice.cycles, choice.config) for choice in found]


# Lines of a tile; within them matmul_register counts in 32 bits.
_TILE_LINES = 256


def _stored_shapes(config: MatmulConfig, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (k, m) if config.transpose_a else (m, k), (n, k) if config.transpose_b else (k, n)


class _Device(NamedTuple):
    num_multiprocessors: int
    shared_bytes: int


@dataclass(frozen=True)
class _Choice:
    config: MatmulConfig
    cycles: float


@dataclass(frozen=True)
class _Tiling:
    """A choice of tile sizes of matmul_register, and how much of the peak its inner loop can reach."""

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


# Efficiency: FFMA among all instructions of the inner loop, or what reads of shared memory leave of it.
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


def _choices(stored: MatmulConfig, device: _Device, m: int, n: int, k: int) -> Iterator[_Choice]:
    """Yield all tilings that fit the device, with all useful numbers of splits."""
    for tiling in _TILINGS["float64" if stored.dtype == "float64" else "float32"]:
        config = fitted(_config(stored, tiling), device.shared_bytes)
        if config is None or config.grid(m, n)[1] > MAX_GRID_Y:
            continue
        for splits in _useful_splits(config.tiles(m, n), k, device.num_multiprocessors * tiling.min_blocks):
            split = replace(config, splits=splits)
            yield _Choice(split, _cycles(split, tiling.efficiency, m, n, k, device.num_multiprocessors))


def _config(stored: MatmulConfig, tiling: _Tiling) -> MatmulConfig:
    sizes = {
        field.name: getattr(tiling, field.name) for field in fields(tiling) if field.name != "efficiency"
    }
    return replace(stored, **sizes)


def _useful_splits(tiles: int, k: int, room: int) -> list[int]:
    """Return numbers of slices that do not make more blocks than there is room for, nor too short slices."""
    largest = max(1, min(room // max(tiles, 1), k // _SLICE))
    return [splits for splits in SPLITS if splits <= largest]


def _cycles(
    config: MatmulConfig, efficiency: float, m: int, n: int, k: int, num_multiprocessors: int
) -> float:
    """Return a guess of the time on the busiest multiprocessor, in cycles."""
    size = _BYTES[config.dtype]
    area, slice_k = config.block_m * config.block_n, -(-k // config.splits)
    blocks = max(1, -(-config.tiles(m, n) * config.splits // num_multiprocessors))
    warps = min(blocks, config.min_blocks) * config.threads / 32
    rate = _MULTIPLIES[config.dtype] * efficiency * min(1.0, warps / _BUSY_WARPS)
    multiply = blocks * area * slice_k / rate
    read = blocks * (config.block_m + config.block_n) * slice_k * size / _READ_BYTES
    regroup = 6 * blocks * (config.groups - 1) * config.thread_m * config.thread_n
    split = _SPLIT + (blocks + config.splits) * area * size / _READ_BYTES if config.splits > 1 else 0
    return _START + max(multiply, read) + regroup + split
