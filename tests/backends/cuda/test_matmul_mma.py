"""The matrix product on tensor cores: the kernel on the emulator, and the choice of its tiles."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from warpfit.backends.base import Activation
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.jit import ARCHITECTURES, compile_kernel
from warpfit.backends.cuda.launch import Kernels
from warpfit.backends.cuda.matmul_mma_config import MmaConfig, mma_choices, supports
from warpfit.backends.numpy import NumpyBackend
from warpfit.errors import DeviceError

pytestmark = pytest.mark.in_turns(8)

DTYPES = ["float16", "bfloat16", "float32"]
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
# Half the distance between a number and the next one, relative.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}

RAGGED = [(1, 1, 1), (7, 5, 0), (16, 17, 5), (63, 16, 16), (17, 65, 100), (65, 7, 130)]
EVEN = [(8, 8, 8), (16, 24, 0), (40, 72, 16), (64, 136, 104), (136, 64, 200)]

SMALL = {
    "block_m": 16,
    "block_n": 32,
    "warp_m": 16,
    "warp_n": 16,
    "groups": 2,
    "splits": 3,
    "stages": 2,
}
LARGE = {"block_m": 64, "block_n": 64, "warp_m": 32, "warp_n": 16, "stages": 4, "vector": True}

BOTH = [False, True]
TRANSPOSITIONS = list(product(BOTH, BOTH))
# Every transposition is seen in float16, which sets them apart from what other dtypes share.
PRODUCTS = [
    pytest.param(
        *case, marks=[] if case[0] == "float16" or case[1] != case[2] else pytest.mark.slow
    )
    for case in product(DTYPES, BOTH, BOTH)
]
each_product = pytest.mark.parametrize(("dtype", "transpose_a", "transpose_b"), PRODUCTS)


@pytest.fixture(scope="module")
def kernels(kernel_runtime_of_any_order: Any) -> Kernels:
    return Kernels.of(kernel_runtime_of_any_order)


def mma(
    dtype: str, transpose_a: bool = False, transpose_b: bool = False, **settings: Any
) -> MmaConfig:
    block_k = 64 * settings.get("groups", 1) // BYTES[dtype]
    return MmaConfig("matmul_mma", dtype, transpose_a, transpose_b, block_k=block_k, **settings)


def best(*shape_and_dtype: Any, **settings: Any) -> MmaConfig:
    return mma_choices(*shape_and_dtype, **settings)[0][1]


# bfloat16 travels as uint16.


def encoded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return x.astype(dtype)
    words = x.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def decoded(x: np.ndarray) -> np.ndarray:
    """Return the numbers as float64."""
    floats = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
    return floats.astype(np.float64)


def as_tensor_cores_see(x: np.ndarray) -> np.ndarray:
    """Return float32 numbers as mma/mma.cuh prepares them, cut to 10 bits of mantissa."""
    larger = x * np.float32(1 + 0.35 / 1024)
    return (larger.view(np.uint32) & 0xFFFFE000).view(np.float32)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return encoded(rng.uniform(-1, 1, shape), dtype)


def operands(seed: int, config: MmaConfig, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B as they are stored."""
    rng = np.random.default_rng(seed)
    a = random(rng, (k, m) if config.transpose_a else (m, k), config.dtype)
    b = random(rng, (n, k) if config.transpose_b else (k, n), config.dtype)
    return a, b


def exact(config: MmaConfig, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of the numbers that tensor cores see."""
    if config.dtype == "float32":
        a, b = as_tensor_cores_see(a), as_tensor_cores_see(b)
    a, b = decoded(a), decoded(b)
    return (a.T if config.transpose_a else a) @ (b.T if config.transpose_b else b)


def upload(runtime: Any, host: np.ndarray) -> DeviceArray:
    array = DeviceArray.allocate(runtime, host.shape, host.dtype)
    if host.size:
        runtime.upload(array.pointer, np.ascontiguousarray(host))
    return array


def multiply(
    kernels: Kernels,
    config: MmaConfig,
    a: np.ndarray,
    b: np.ndarray,
    *,
    out: str | None = None,
    bias: np.ndarray | None = None,
    saved: np.ndarray | None = None,
    k: int | None = None,
    alpha: float = 1.0,
    slope: float = 0.01,
    launches: int = 1,
    **defines: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel; return C and z, which hold 7 before."""
    runtime = kernels._runtime
    out = out or config.dtype
    m, depth = a.shape[::-1] if config.transpose_a else a.shape
    n = b.shape[0] if config.transpose_b else b.shape[1]
    k = depth if k is None else k
    before = encoded(np.full((m, n), 7.0), out)
    inputs = (a, b, before, bias, saved, before)
    da, db, dc, dbias, dsaved, dz = (None if x is None else upload(runtime, x) for x in inputs)
    partials = upload(runtime, np.full(config.partials(m, n), np.nan, np.float32))
    arrivals = upload(runtime, np.zeros(config.tiles(m, n), np.uint32))
    kernel = kernels.get(config.kernel, **config.defines(), OUT=out, **defines)
    for _ in range(launches):
        kernel(config.grid(m, n), config.block, da, db, dc, dbias, dsaved, dz, alpha, slope,
               partials, arrivals,
               m, n, k, a.shape[1], b.shape[1], n, shared_bytes=config.shared_bytes)  # fmt: skip
    assert dc is not None
    assert dz is not None
    assert not arrivals.numpy().any()
    return dc.numpy(), dz.numpy()


def assert_close(c: np.ndarray, expected: np.ndarray, out: str, k: int) -> None:
    bound = UNIT[out] * (1e-3 + np.abs(expected)) + 2 * UNIT["float32"] * (1 + k)
    assert c.shape == expected.shape
    assert (np.abs(decoded(c) - expected) <= bound).all(), np.abs(decoded(c) - expected).max()


def assert_products(
    kernels: Kernels, config: MmaConfig, shapes: list[tuple[int, int, int]]
) -> None:
    for seed, (m, n, k) in enumerate(shapes):
        a, b = operands(seed, config, m, n, k)
        c, _ = multiply(kernels, config, a, b)
        assert_close(c, exact(config, a, b), config.dtype, k)


# -- the kernel
# ----------------------------------------------------------------------------------------------


@pytest.mark.in_turns(16)
@each_product
def test_products_of_any_shape(
    kernels: Kernels, dtype: str, transpose_a: bool, transpose_b: bool
) -> None:
    assert_products(kernels, mma(dtype, transpose_a, transpose_b, **SMALL), RAGGED)


@pytest.mark.in_turns(16)
@each_product
def test_products_by_16_bytes(
    kernels: Kernels, dtype: str, transpose_a: bool, transpose_b: bool
) -> None:
    assert_products(kernels, mma(dtype, transpose_a, transpose_b, **LARGE), EVEN)


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tile_chosen_for_large_products(kernels: Kernels, dtype: str) -> None:
    config = best(4096, 4096, 4096, dtype, vector=True)
    assert config.warp_m * config.warp_n == 64 * 64
    assert_products(kernels, config, [(264, 136, 200)])


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tiles_chosen_for_small_products(kernels: Kernels, dtype: str) -> None:
    for shape, transpose_a in (((64, 40, 296), False), ((72, 40, 64), True)):
        config = best(*shape, dtype, transpose_a=transpose_a, vector=True)
        assert (config.stages - 1) * config.block_k >= shape[2]
        assert_products(kernels, config, [shape, (24, 8, 600)])


def test_splits_leave_their_counters_ready_and_give_equal_bits(kernels: Kernels) -> None:
    config = mma("float16", **SMALL)
    a, b = operands(1, config, 40, 33, 500)
    once, _ = multiply(kernels, config, a, b)
    thrice, _ = multiply(kernels, config, a, b, launches=3)
    assert np.array_equal(once, thrice)


@pytest.mark.parametrize(("settings", "k"), [(SMALL, 37), (SMALL, 38), (SMALL, 40), (LARGE, 40)])
def test_what_follows_a_row_is_not_read(kernels: Kernels, settings: dict[str, Any], k: int) -> None:
    config = mma("float16", transpose_b=True, **settings)
    a, b = operands(2, config, 16, 24, 48)
    expected = exact(config, a[:, :k], b[:, :k])
    a[:, k:] = b[:, k:] = np.nan
    c, _ = multiply(kernels, config, a, b, k=k)
    assert_close(c, expected, "float16", k)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_tf32_keeps_what_is_not_finite(kernels: Kernels, bad: float) -> None:
    config = mma("float32", **SMALL)
    a, b = np.ones((20, 9), np.float32), np.ones((9, 12), np.float32)
    a[3, 4] = bad
    c, _ = multiply(kernels, config, a, b)
    assert np.array_equal(c[3], np.full(12, bad), equal_nan=True)
    assert (np.delete(c, 3, axis=0) == 9).all()


@pytest.mark.parametrize("low", [-1.0, 0.0], ids=["both signs", "positive"])
def test_tf32_has_no_drift(kernels: Kernels, low: float) -> None:
    config = mma("float32", **LARGE)
    rng = np.random.default_rng(9)
    a, b = (rng.uniform(low, 1, (64, 64)).astype(np.float32) for _ in range(2))
    c, _ = multiply(kernels, config, a, b)
    expected = decoded(a) @ decoded(b)
    # Operands merely cut to 10 bits would make it 7e-4.
    assert np.linalg.norm(c - expected) <= (3.5e-4 if low < 0 else 1e-4) * np.linalg.norm(expected)


def test_tf32_keeps_numbers_of_ten_bits(kernels: Kernels) -> None:
    config = mma("float32", **LARGE)
    a = np.arange(1024, 2048, dtype=np.float32).reshape(64, 16)  # the 11th bit is implied
    c, _ = multiply(kernels, config, a, np.eye(16, 64, dtype=np.float32))
    assert np.array_equal(c[:, :16], a)


def test_accumulates_float32_from_half_operands(kernels: Kernels) -> None:
    config = mma("bfloat16", transpose_a=True, **LARGE)
    a, b = operands(3, config, 72, 40, 64)
    c, _ = multiply(kernels, config, a, b, out="float32", alpha=-0.5)
    assert_close(c, -0.5 * exact(config, a, b), "float32", 64)


@pytest.mark.parametrize(
    ("settings", "shape"), [(SMALL, (17, 37, 9)), (LARGE, (72, 72, 48))], ids=["any", "by 16 bytes"]
)
def test_adds_the_bias_activates_and_keeps_z(
    kernels: Kernels, settings: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    config = mma("float16", **settings)
    a, b = operands(5, config, *shape)
    bias = random(np.random.default_rng(6), shape[1:2], "float16")
    names = {
        "EPILOGUE": "epilogue_activation",
        "ACTIVATION": "leaky_relu",
        "HAS_BIAS": 1,
        "STORE_Z": 1,
    }
    y, z = multiply(kernels, config, a, b, bias=bias, slope=0.25, **names)
    expected = exact(config, a, b) + decoded(bias)
    assert_close(z, expected, "float16", shape[2])
    activated = NumpyBackend().activation_forward(Activation("leaky_relu", 0.25), expected)
    assert_close(y, activated, "float16", shape[2])


def test_masks_by_the_derivative(kernels: Kernels) -> None:
    config = mma("float32", transpose_b=True, **SMALL)
    a, b = operands(7, config, 17, 37, 21)
    saved = random(np.random.default_rng(8), (17, 37), "float32")
    c, _ = multiply(kernels, config, a, b, saved=saved, EPILOGUE="epilogue_mask", ACTIVATION="tanh")
    assert_close(c, exact(config, a, b) * (1 - decoded(saved) ** 2), "float32", 21)


# -- the choice
# ----------------------------------------------------------------------------------------------

SHAPES = [
    (0, 0, 0),
    (1, 1, 1),
    (64, 256, 784),
    (784, 256, 64),
    (64, 10, 256),
    (32, 128, 128),
    (32, 8192, 8192),
    (2048, 2048, 2048),
    (8191, 8193, 8191),
]
BLOCK_LIMITS = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_90a": 227 << 10,
    "sm_120a": 99 << 10,
}


def test_supports() -> None:
    assert [supports("sm_75", dtype) for dtype in DTYPES] == [True, False, False]
    assert all(supports(arch, dtype) for arch in ARCHITECTURES[1:] for dtype in DTYPES)
    assert not supports("sm_90a", "float64")


@pytest.mark.parametrize(
    ("arch", "dtype"), [("sm_75", "bfloat16"), ("sm_75", "float32"), ("sm_90a", "float64")]
)
def test_refuses_what_tensor_cores_lack(arch: str, dtype: str) -> None:
    with pytest.raises(DeviceError, match=f"of {arch} multiply, got {dtype}"):
        best(64, 64, 64, dtype, arch=arch)


@pytest.mark.parametrize("arch", BLOCK_LIMITS)
def test_candidates_can_be_launched(arch: str) -> None:
    dtypes = [dtype for dtype in DTYPES if supports(arch, dtype)]
    for shape, dtype, (transpose_a, transpose_b) in product(SHAPES, dtypes, TRANSPOSITIONS):
        choices = mma_choices(
            *shape, dtype, transpose_a=transpose_a, transpose_b=transpose_b, arch=arch
        )
        assert list(choices) == sorted(choices, key=lambda choice: choice[0])
        found = [config for _, config in choices]
        assert 6 <= len(found) <= 14
        assert len(set(found)) == len(found)
        for config in found:
            assert config.shared_bytes <= BLOCK_LIMITS[arch] - 16  # what split.cuh needs
            assert config.threads <= 1024
            assert config.block_k * BYTES[dtype] % (64 * config.groups) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_products_are_spread_and_large_ones_get_large_tiles(dtype: str) -> None:
    small, large = (
        best(64, 256, 784, dtype, vector=True),
        best(*[4096] * 3, dtype, vector=True),
    )
    assert small.tiles(64, 256) * small.splits >= 32
    assert large.warp_m * large.warp_n == 64 * 64
    assert large.splits == 1


@pytest.mark.parametrize(
    ("dtype", "k", "stages"), [("bfloat16", 784, 5), ("float32", 784, 8), ("float16", 60, 2)]
)
def test_small_products_ask_for_all_of_k_at_once(dtype: str, k: int, stages: int) -> None:
    config = best(64, 256, k, dtype, vector=True)
    assert config.stages == stages
    assert (config.stages - 1) * config.block_k >= k
    assert (config.stages - 2) * config.block_k < k


def test_short_k_fills_its_block() -> None:
    config = best(784, 256, 64, "bfloat16", transpose_a=True, vector=True)
    assert (config.block_k, config.groups) == (64, 1)


# -- compiled
# ------------------------------------------------------------------------------------------------


def registers_and_spills(config: MmaConfig, arch: str) -> tuple[int, int]:
    pytest.importorskip("cuda.core")
    settings = tuple((name, str(value)) for name, value in config.defines().items())
    _, log = compile_kernel(config.kernel, settings, arch, verbose=True)
    used, spilled = (
        re.search(r"Used (\d+) registers", log),
        re.search(r"(\d+) bytes spill stores", log),
    )
    assert used is not None
    assert spilled is not None
    return int(used[1]), int(spilled[1])


@pytest.mark.in_turns(24)
@pytest.mark.parametrize(
    ("arch", "dtype"), [pair for pair in product(ARCHITECTURES, DTYPES) if supports(*pair)]
)
def test_compiles(arch: str, dtype: str) -> None:
    used, _ = registers_and_spills(best(64, 256, 784, dtype, arch=arch), arch)
    assert used <= 255


@pytest.mark.slow
@each_product
def test_large_tiles_stay_in_registers(dtype: str, transpose_a: bool, transpose_b: bool) -> None:
    config = best(*[4096] * 3, dtype, transpose_a=transpose_a, transpose_b=transpose_b, vector=True)
    assert registers_and_spills(config, "sm_90a")[1] == 0
