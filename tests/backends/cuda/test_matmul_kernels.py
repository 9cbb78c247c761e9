"""The matmul kernels against float64 products, on the emulator."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from warpfit.backends.base import ACTIVATIONS, Activation
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.launch import Kernels
from warpfit.backends.cuda.matmul import configure
from warpfit.backends.cuda.matmul_config import MatmulConfig
from warpfit.backends.numpy import NumpyBackend

pytestmark = pytest.mark.in_turns(8)

NUMPY_DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
# Largest error, in units of what rounding sums of |a| |b| may give.
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11}

RAGGED = [
    (1, 1, 1),
    (7, 5, 0),
    (16, 16, 16),
    (17, 63, 5),
    (65, 17, 64),
    (63, 130, 100),
    (130, 65, 37),
]
EVEN = [(8, 8, 8), (16, 24, 0), (40, 72, 16), (64, 136, 104), (136, 64, 40)]

SMALL = {"block_m": 16, "block_n": 16, "block_k": 32, "thread_m": 4, "thread_n": 2, "stages": 3}
SQUARE = {"block_m": 32, "block_n": 64, "block_k": 16, "thread_m": 8, "thread_n": 8, "stages": 2}

Case = tuple[MatmulConfig, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def kernels(kernel_runtime_of_any_order: Any) -> Kernels:
    return Kernels.of(kernel_runtime_of_any_order)


def register(dtype: str = "float32", **settings: Any) -> MatmulConfig:
    return MatmulConfig("matmul_register", dtype, **settings)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(NUMPY_DTYPES[dtype])


def upload(runtime: Any, host: np.ndarray) -> DeviceArray:
    array = DeviceArray.allocate(runtime, host.shape, host.dtype)
    if host.size:
        runtime.upload(array.pointer, np.ascontiguousarray(host))
    return array


def operands(
    rng: np.random.Generator, config: MatmulConfig, m: int, n: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B as they are stored."""
    a = random(rng, (k, m) if config.transpose_a else (m, k), config.dtype)
    b = random(rng, (n, k) if config.transpose_b else (k, n), config.dtype)
    return a, b


def exact(config: MatmulConfig, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a.T if config.transpose_a else a) @ (b.T if config.transpose_b else b)


def multiply(
    kernels: Kernels,
    config: MatmulConfig,
    a: np.ndarray,
    b: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    saved: np.ndarray | None = None,
    alpha: float = 1.0,
    slope: float = 0.01,
    launches: int = 1,
    **defines: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Run a kernel; return C and z."""
    runtime = kernels._runtime
    m, k = a.shape[::-1] if config.transpose_a else a.shape
    n = b.shape[0] if config.transpose_b else b.shape[1]
    start = np.full((m, n), np.nan, a.dtype)
    on_device = [
        None if x is None else upload(runtime, x)
        for x in (a, b, start, bias, saved, np.full_like(start, 7))
    ]
    da, db, dc, dbias, dsaved, dz = on_device
    sums = np.float64 if config.dtype == "float64" else np.float32
    partials = upload(runtime, np.full(config.partials(m, n), np.nan, sums))
    arrivals = upload(runtime, np.zeros(config.tiles(m, n), np.uint32))
    kernel = kernels.get(config.kernel, **config.defines(), **defines)
    lda, ldb = a.shape[1], b.shape[1]
    for _ in range(launches):
        kernel(config.grid(m, n), config.block, da, db, dc, dbias, dsaved, dz, alpha, slope,
               partials, arrivals,
               m, n, k, lda, ldb, n, shared_bytes=config.shared_bytes)  # fmt: skip
    assert not arrivals.numpy().any()
    return dc.numpy(), dz.numpy()


def assert_product(
    kernels: Kernels, config: MatmulConfig, shapes: list[tuple[int, int, int]]
) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in shapes:
        a, b = operands(rng, config, m, n, k)
        c, _ = multiply(kernels, config, a, b)
        expected = exact(config, a, b)
        bound = (
            UNIT[config.dtype] * (1 + np.abs(expected))
            + UNIT["float64" if a.itemsize == 8 else "float32"] * 2 * k
        )
        assert c.shape == (m, n)
        assert (np.abs(c - expected) <= bound).all(), (m, n, k, np.abs(c - expected).max())


BOTH = [False, True]
TRANSPOSITIONS = list(product(BOTH, BOTH))


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSITIONS)
def test_tiled_kernel(kernels: Kernels, transpose_a: bool, transpose_b: bool) -> None:
    assert_product(
        kernels, MatmulConfig("matmul_tiled", "float32", transpose_a, transpose_b), RAGGED
    )


@pytest.mark.parametrize("transposed", BOTH)
def test_naive_kernel(kernels: Kernels, transposed: bool) -> None:
    assert_product(kernels, MatmulConfig("matmul_naive", "float32", transposed, transposed), RAGGED)


# Operands stored along k are turned or kept; which of them are, depends on the transposition.
@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "turn"),
    [
        (False, False, False),
        (False, True, True),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ],
)
def test_register_kernel_of_any_shape(
    kernels: Kernels, transpose_a: bool, transpose_b: bool, turn: bool
) -> None:
    own = {**SMALL, "groups": 2} if turn else {**SMALL, "groups": 4, "splits": 3}
    config = register(transpose_a=transpose_a, transpose_b=transpose_b, turn=turn, **own)
    assert_product(kernels, config, RAGGED)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "turn"),
    [
        (False, False, True),
        (False, True, True),
        (False, True, False),
        (True, False, True),
        (True, True, False),
    ],
)
def test_register_kernel_by_16_bytes(
    kernels: Kernels, transpose_a: bool, transpose_b: bool, turn: bool
) -> None:
    config = register(
        transpose_a=transpose_a, transpose_b=transpose_b, turn=turn, vector=True, **SQUARE
    )
    assert_product(kernels, config, EVEN)


@pytest.mark.parametrize(
    ("dtype", "vector", "shapes"),
    [("float64", False, RAGGED), ("float64", True, EVEN), ("float16", True, EVEN)],
)
def test_register_kernel_of_other_dtypes(
    kernels: Kernels, dtype: str, vector: bool, shapes: Any
) -> None:
    config = register(
        dtype, transpose_b=True, vector=vector, turn=False, groups=2, splits=2, **SMALL
    )
    assert_product(kernels, config, shapes)


def test_splits_leave_their_counters_ready_and_give_equal_bits(kernels: Kernels) -> None:
    config = register(turn=False, groups=4, splits=3, **SMALL)
    a, b = operands(np.random.default_rng(1), config, 40, 33, 500)
    once, _ = multiply(kernels, config, a, b)
    thrice, _ = multiply(kernels, config, a, b, launches=3)
    assert np.array_equal(once, thrice)


def test_rows_may_be_parts_of_longer_ones(kernels: Kernels) -> None:
    config = MatmulConfig("matmul_tiled", "float32")
    rng = np.random.default_rng(2)
    a, b = random(rng, (20, 50), "float32"), random(rng, (30, 40), "float32")
    runtime = kernels._runtime
    c = upload(runtime, np.full((20, 25), 7, np.float32))
    kernel = kernels.get(config.kernel, **config.defines())
    kernel(config.grid(20, 23), config.block, upload(runtime, a), upload(runtime, b), c, None,
           None, None, 1.0, 0.0,
           None, None, 20, 23, 30, 50, 40, 25)  # fmt: skip
    assert np.allclose(c.numpy()[:, :23], a[:, :30] @ b[:, :23], rtol=0, atol=1e-5)
    assert (c.numpy()[:, 23:] == 7).all()


EPILOGUE_CONFIGS = {
    "ragged": register(turn=False, groups=4, **SMALL),
    "register": register(turn=True, vector=True, splits=2, **SQUARE),
}


@pytest.fixture(params=EPILOGUE_CONFIGS)
def case(request: pytest.FixtureRequest) -> Case:
    config = EPILOGUE_CONFIGS[request.param]
    shape = (40, 72, 48) if config.vector else (17, 37, 9)
    return config, *operands(np.random.default_rng(3), config, *shape)


def test_store_scales(kernels: Kernels, case: Case) -> None:
    config, a, b = case
    c, _ = multiply(kernels, config, a, b, alpha=-0.5, EPILOGUE="epilogue_store")
    assert np.allclose(c, -0.5 * exact(config, a, b), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["leaky_relu"])
def test_activation_adds_the_bias_and_keeps_z(kernels: Kernels, case: Case, name: str) -> None:
    config, a, b = case
    bias = random(np.random.default_rng(5), (b.shape[1],), "float32")
    settings = {"EPILOGUE": "epilogue_activation", "ACTIVATION": name, "HAS_BIAS": 1, "STORE_Z": 1}
    y, z = multiply(kernels, config, a, b, bias=bias, slope=0.2, **settings)
    expected = exact(config, a, b) + bias
    assert np.allclose(z, expected, rtol=0, atol=1e-5)
    assert np.allclose(
        y, NumpyBackend().activation_forward(Activation(name, 0.2), expected), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["silu"])
def test_mask_multiplies_by_the_derivative(kernels: Kernels, case: Case, name: str) -> None:
    config, a, b = case
    saved = random(np.random.default_rng(6), (a.shape[0], b.shape[1]), "float32")
    c, _ = multiply(kernels, config, a, b, saved=saved, EPILOGUE="epilogue_mask", ACTIVATION=name)
    wide = saved.astype(np.float64)
    expected = NumpyBackend().activation_backward(Activation(name), exact(config, a, b), wide, wide)
    assert np.allclose(c, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_derivative(kernel_runtime: Any, name: str) -> None:
    kernels, activation, ops = Kernels.of(kernel_runtime), Activation(name, 0.2), NumpyBackend()
    z = np.linspace(-30, 30, 64 * 16 + 1)[:-1].reshape(64, 16)
    y = ops.activation_forward(activation, z)
    saved = z if activation.needs_input else y
    dz, _ = multiply(
        kernels,
        MatmulConfig("matmul_naive", "float64"),
        z,
        np.eye(16),
        saved=saved,
        slope=0.2,
        EPILOGUE="epilogue_mask",
        ACTIVATION=name,
    )
    assert np.allclose(dz, ops.activation_backward(activation, z, y, z), rtol=1e-13, atol=1e-13)


def test_relu_without_bias_lets_nan_through(kernel_runtime: Any) -> None:
    config = MatmulConfig("matmul_naive", "float32")
    a = np.array([[np.nan], [-1.0], [2.0]], np.float32)
    settings = {"EPILOGUE": "epilogue_activation", "ACTIVATION": "relu"}
    y, z = multiply(Kernels.of(kernel_runtime), config, a, np.ones((1, 1), np.float32), **settings)
    assert np.array_equal(y, [[np.nan], [0], [2]], equal_nan=True)
    assert (z == 7).all()  # not stored


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_configure_chooses(kernels: Kernels, dtype: str) -> None:
    m, n, k = 32, 48, 256
    vector = not (k | n) * np.dtype(dtype).itemsize & 15
    config = configure(m, n, k, dtype, num_multiprocessors=132, vector=vector)
    assert_product(kernels, config, [(m, n, k)])
