"""The matrix product with tensor maps and wgmma: the kernel, against products in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit.backends.base import Activation
from warpfit.backends.cuda import CudaBackend, dense, jit
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.launch import Kernels
from warpfit.backends.cuda.matmul_wgmma_config import WgmmaConfig, wgmma_choices
from warpfit.backends.numpy import NumpyBackend
from warpfit.errors import DeviceError

pytestmark = pytest.mark.in_turns(8)

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
# Half the distance between a number and the next one, relative.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}

# (transpose_a, transpose_b): of layers, forward and backward.
TRANSPOSITIONS = [(False, False), (False, True), (True, False)]


@pytest.fixture(scope="module")
def kernels(kernel_runtime_of_any_order: Any) -> Kernels:
    if kernel_runtime_of_any_order.arch != "sm_90a":
        pytest.skip("wgmma is for sm_90a alone")
    return Kernels.of(kernel_runtime_of_any_order)


def wgmma(
    dtype: str = "bfloat16", transpose_a: bool = False, transpose_b: bool = False, **settings: Any
) -> WgmmaConfig:
    sizes = {"consumers": 1, "mma_rows": 1, "block_n": 64, "stages": 3, "out": dtype, **settings}
    block_m = 64 * sizes["mma_rows"] * sizes["consumers"]
    stored = {
        "transpose_a": transpose_a,
        "transpose_b": transpose_b,
        "block_k": 128 // BYTES[dtype],
    }
    return WgmmaConfig("gemm_sm90", dtype, **stored, vector=True, block_m=block_m, **sizes)


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


def seen(x: np.ndarray) -> np.ndarray:
    """Return the numbers that tensor cores see: float32 ones are rounded to 10 bits of mantissa."""
    if x.dtype != np.float32:
        return decoded(x)
    words = x.view(np.uint32)
    rounded = (words + 0xFFF + (words >> 13 & 1) & 0xFFFFE000).view(np.float32)
    return decoded(np.where(np.isfinite(x), rounded, x))


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return encoded(rng.uniform(-1, 1, shape), dtype)


def operands(
    seed: int, config: WgmmaConfig, m: int, n: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of the product that is asked for, as they are stored."""
    rng = np.random.default_rng(seed)
    a_across, b_across = config.transpose_a, config.transpose_b
    if config.swapped:
        a_across, b_across = not b_across, not a_across
    a = random(rng, (k, m) if a_across else (m, k), config.dtype)
    b = random(rng, (n, k) if b_across else (k, n), config.dtype)
    return a, b


def exact(config: WgmmaConfig, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = seen(a), seen(b)
    if config.swapped:
        return (a if config.transpose_b else a.T) @ (b if config.transpose_a else b.T)
    return (a.T if config.transpose_a else a) @ (b.T if config.transpose_b else b)


def upload(runtime: Any, host: np.ndarray) -> DeviceArray:
    array = DeviceArray.allocate(runtime, host.shape, host.dtype)
    if host.size:
        runtime.upload(array.pointer, np.ascontiguousarray(host))
    return array


def upload_padded(runtime: Any, x: np.ndarray) -> DeviceArray:
    """Upload a matrix with NaN after each row, up to a multiple of 16 bytes."""
    per_piece = 16 // x.itemsize
    nan = encoded(np.array([np.nan]), "bfloat16" if x.dtype == np.uint16 else x.dtype.name)
    whole = np.repeat(nan, x.shape[0] * (x.shape[1] // per_piece + 1) * per_piece).reshape(
        x.shape[0], -1
    )
    whole[:, : x.shape[1]] = x
    return upload(runtime, whole)


def multiply(
    kernels: Kernels,
    config: WgmmaConfig,
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
    """Run the kernel; return C and z, which hold 7 before."""
    runtime = kernels._runtime
    m, n = exact(config, a, b).shape
    k = a.size // m
    before = encoded(np.full((m, n), 7.0), config.out)
    arrays = (before, bias, saved, before)
    dc, dbias, dsaved, dz = (None if x is None else upload(runtime, x) for x in arrays)
    assert dc is not None
    assert dz is not None
    held = [upload_padded(runtime, x) for x in ((b, a) if config.swapped else (a, b))]
    sizes = [x.shape for x in ((b, a) if config.swapped else (a, b))]
    maps = [
        runtime.tensor_map(x.pointer, config.map_dtype, *size, x.shape[1], *box)
        for x, size, box in zip(held, sizes, config.boxes[:2], strict=True)
    ]
    maps += [
        runtime.tensor_map(x.pointer, config.out, m, n, n, *config.boxes[2])
        for x in (dc, dc if dsaved is None else dsaved)
    ]
    partials = upload(runtime, np.full(config.partials(m, n), np.nan, np.float32))
    num_counters = config.counters(m, n, queues=True)
    counters = upload(runtime, np.zeros(max(1, num_counters), np.uint32))
    arrivals = counters if num_counters else None
    kernel = kernels.get(config.kernel, **{**config.defines(), "OUT": config.out, **defines})
    for _ in range(launches):
        kernel(config.grid(m, n), config.block, *maps, dc, dbias, dsaved, dz, alpha, slope,
               partials, arrivals,
               *config.sizes(m, n, k, 0, 0), shared_bytes=config.shared_bytes,
               cluster=config.cluster)  # fmt: skip
    assert not counters.numpy().any()
    return dc.numpy(), dz.numpy()


def assert_close(c: np.ndarray, expected: np.ndarray, out: str, k: int) -> None:
    bound = UNIT[out] * (1e-3 + np.abs(expected)) + 2 * UNIT["float32"] * (1 + k)
    assert c.shape == expected.shape
    assert (np.abs(decoded(c) - expected) <= bound).all(), np.abs(decoded(c) - expected).max()


def assert_product(
    kernels: Kernels,
    config: WgmmaConfig,
    m: int,
    n: int,
    k: int,
    *,
    launches: int = 1,
    **defines: Any,
) -> np.ndarray:
    a, b = operands(m + n + k, config, m, n, k)
    c, _ = multiply(kernels, config, a, b, launches=launches, **defines)
    assert_close(c, exact(config, a, b), config.out, k)
    return c


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSITIONS)
@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        ("float16", {"consumers": 2, "block_n": 128, "cluster": 2, "stages": 2}),
        ("bfloat16", {"consumers": 1, "mma_rows": 2, "block_n": 64}),
        pytest.param(
            "bfloat16", {"consumers": 2, "block_n": 256, "cluster": 2}, marks=pytest.mark.slow
        ),
        pytest.param(
            "float16", {"consumers": 2, "mma_rows": 2, "block_n": 128}, marks=pytest.mark.slow
        ),
    ],
)
def test_products_of_ragged_sizes(
    kernels: Kernels, dtype: str, transpose_a: bool, transpose_b: bool, settings: dict[str, Any]
) -> None:
    config = wgmma(dtype, transpose_a, transpose_b, **settings)
    assert_product(kernels, config, 201, 136, 150)
    assert_product(kernels, config, 1, 8, 1)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("block_n", [64, 192])
def test_few_blocks_go_over_many_tiles(kernels: Kernels, cluster: int, block_n: int) -> None:
    config = wgmma(
        transpose_b=True,
        block_n=block_n,
        cluster=cluster,
        stages=2,
        mma_rows=2,
        num_multiprocessors=2,
    )
    m, n = 400, 2 * block_n + 72
    assert config.tiles_of_clusters(m, n) * cluster > 3 * config.grid(m, n)[0]
    assert_product(kernels, config, m, n, 200)


@on_emulator
def test_tiles_are_queued_where_sums_run_beside_products() -> None:
    x = np.random.default_rng(0).normal(size=(256, 1024)).astype(np.float16)
    products = []
    for shares_device in (False, True):
        ops = CudaBackend(EmulatedRuntime(), precision="float16", shares_device=shares_device)
        products.append(ops.to_numpy(ops.matmul(ops.asarray(x), ops.asarray(x), transpose_a=True)))
        (launch,) = ops._products.values()
        assert launch.num_counters == shares_device
        assert not ops.arrivals(1).numpy().any()
    np.testing.assert_array_equal(*products)


@pytest.mark.parametrize(("block_n", "across"), [(32, False), (64, False), (64, True)])
def test_swapped_operands_of_few_rows(kernels: Kernels, block_n: int, across: bool) -> None:
    config = wgmma(transpose_a=across, transpose_b=not across, block_n=block_n, swapped=True)
    assert_product(kernels, config, 17, 136, 150)


@pytest.mark.parametrize("settings", [{}, {"swapped": True, "transpose_b": True}, {"cluster": 2}])
def test_slices_leave_their_counters_ready_and_give_equal_bits(
    kernels: Kernels, settings: dict[str, Any]
) -> None:
    config = wgmma("float16", splits=3, num_multiprocessors=8, **settings)
    once = assert_product(kernels, config, 60, 72, 400)
    thrice = assert_product(kernels, config, 60, 72, 400, launches=3)
    assert np.array_equal(once, thrice)


def test_slices_of_several_rows(kernels: Kernels) -> None:
    config = wgmma(transpose_a=True, splits=2, consumers=2, mma_rows=2, num_multiprocessors=3)
    assert_product(kernels, config, 300, 72, 260)


@pytest.mark.parametrize("stores_tensor", [0, 1])
def test_accumulates_float32_from_half_operands(kernels: Kernels, stores_tensor: int) -> None:
    config = wgmma(transpose_a=True, out="float32")
    a, b = operands(3, config, 72, 40, 70)
    c, _ = multiply(kernels, config, a, b, alpha=-0.5, STORES_TENSOR=stores_tensor)
    assert_close(c, -0.5 * exact(config, a, b), "float32", 70)


@pytest.mark.parametrize("settings", [{}, {"swapped": True}, {"splits": 2}])
def test_adds_the_bias_activates_and_keeps_z(kernels: Kernels, settings: dict[str, Any]) -> None:
    config = wgmma("float16", transpose_b=True, **settings)
    a, b = operands(5, config, 40, 72, 130)
    bias = random(np.random.default_rng(6), (72,), "float16")
    names = {
        "EPILOGUE": "epilogue_activation",
        "ACTIVATION": "leaky_relu",
        "HAS_BIAS": 1,
        "STORE_Z": 1,
    }
    y, z = multiply(kernels, config, a, b, bias=bias, slope=0.25, **names)
    expected = exact(config, a, b) + decoded(bias)
    assert_close(z, expected, "float16", 130)
    activated = NumpyBackend().activation_forward(Activation("leaky_relu", 0.25), expected)
    assert_close(y, activated, "float16", 130)


@pytest.mark.parametrize(
    ("settings", "loads_saved"),
    [
        ({}, 0),
        ({"dtype": "float16"}, 1),
        ({"block_n": 192, "mma_rows": 2, "num_multiprocessors": 2}, 1),
        ({"splits": 2, "cluster": 2}, 1),
        ({"swapped": True}, 0),
    ],
)
def test_masks_by_the_derivative(
    kernels: Kernels, settings: dict[str, Any], loads_saved: int
) -> None:
    config = wgmma(transpose_b=True, **settings)
    m, n, k = 136, 200, 130
    a, b = operands(7, config, m, n, k)
    saved = random(np.random.default_rng(8), (m, n), config.out)
    names = {"EPILOGUE": "epilogue_mask", "ACTIVATION": "tanh", "LOADS_SAVED": loads_saved}
    c, _ = multiply(kernels, config, a, b, saved=saved, **names)
    assert_close(c, exact(config, a, b) * (1 - decoded(saved) ** 2), config.out, k)


# -- tf32: B along k, A along k or, by way of registers, across
# ---------------------------------------------

TF32 = [
    {"transpose_a": across, "swapped": swapped}
    for across in (False, True)
    for swapped in (False, True)
]


@pytest.mark.parametrize("lies", TF32)
@pytest.mark.parametrize(
    "settings",
    [
        {"consumers": 2, "block_n": 128, "cluster": 2, "stages": 2},
        {"mma_rows": 2, "block_n": 32},
        pytest.param({"consumers": 2, "block_n": 256}, marks=pytest.mark.slow),
    ],
)
def test_products_of_tf32(kernels: Kernels, settings: dict[str, Any], lies: dict[str, Any]) -> None:
    config = wgmma("float32", transpose_b=True, **lies, **settings)
    for shape in ((202, 136, 77), (132, 68, 130), (1, 4, 1)):
        assert_product(kernels, config, *shape)


@pytest.mark.parametrize("swapped", [False, True])
def test_few_blocks_go_over_many_tiles_of_tf32(kernels: Kernels, swapped: bool) -> None:
    """Stages of a tile are an odd number, of which two take turns in registers."""
    config = wgmma(
        "float32",
        True,
        True,
        swapped=swapped,
        block_n=64,
        stages=2,
        consumers=2,
        num_multiprocessors=2,
    )
    assert_product(kernels, config, 300, 200, 5 * 32)


@pytest.mark.parametrize("lies", TF32)
def test_slices_of_tf32(kernels: Kernels, lies: dict[str, Any]) -> None:
    config = wgmma("float32", transpose_b=True, splits=3, num_multiprocessors=8, **lies)
    once = assert_product(kernels, config, 60, 72, 230)
    assert np.array_equal(once, assert_product(kernels, config, 60, 72, 230, launches=3))


@pytest.mark.parametrize("lies", TF32)
def test_tf32_adds_the_bias_activates_and_keeps_z(kernels: Kernels, lies: dict[str, Any]) -> None:
    config = wgmma("float32", transpose_b=True, **lies)
    a, b = operands(5, config, 39, 72, 70)
    bias = random(np.random.default_rng(6), (72,), "float32")
    names = {
        "EPILOGUE": "epilogue_activation",
        "ACTIVATION": "leaky_relu",
        "HAS_BIAS": 1,
        "STORE_Z": 1,
    }
    y, z = multiply(kernels, config, a, b, bias=bias, slope=0.25, **names)
    expected = exact(config, a, b) + decoded(bias)
    assert_close(z, expected, "float32", 70)
    assert_close(y, np.where(expected < 0, 0.25 * expected, expected), "float32", 70)


@pytest.mark.parametrize("lies", TF32)
def test_tf32_masks_by_the_derivative(kernels: Kernels, lies: dict[str, Any]) -> None:
    config = wgmma("float32", transpose_b=True, **lies)
    a, b = operands(7, config, 70, 76, 70)
    saved = random(np.random.default_rng(8), (70, 76), "float32")
    names = {
        "EPILOGUE": "epilogue_mask",
        "ACTIVATION": "tanh",
        "LOADS_SAVED": int(config.stores_tensor),
    }
    c, _ = multiply(kernels, config, a, b, saved=saved, alpha=2.0, **names)
    assert_close(c, exact(config, a, b) * (1 - decoded(saved) ** 2), "float32", 70)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("low", [-1.0, 0.0], ids=["both signs", "positive"])
def test_tf32_is_rounded_to_nearest(kernels: Kernels, low: float, across: bool) -> None:
    config = wgmma("float32", across, True)
    rng = np.random.default_rng(9)
    a, b = (rng.uniform(low, 1, (64, 64)).astype(np.float32) for _ in range(2))
    c, _ = multiply(kernels, config, a, b)
    expected = (decoded(a).T if across else decoded(a)) @ decoded(b).T
    # Operands merely cut to 10 bits would make it 7e-4.
    assert np.linalg.norm(c - expected) <= (3.5e-4 if low < 0 else 1e-4) * np.linalg.norm(expected)


@pytest.mark.parametrize("across", [False, True])
def test_tf32_keeps_numbers_of_ten_bits(kernels: Kernels, across: bool) -> None:
    config = wgmma("float32", across, True)
    a = np.arange(1024, 2048, dtype=np.float32).reshape(32, 32)  # the 11th bit is implied
    c, _ = multiply(kernels, config, a, np.eye(32, dtype=np.float32))
    assert np.array_equal(c, a.T if across else a)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_tf32_keeps_what_is_not_finite(kernels: Kernels, bad: float, across: bool) -> None:
    config = wgmma("float32", across, True)
    a, b = np.ones((20, 20), np.float32), np.ones((12, 20), np.float32)
    a[3, 3] = bad
    c, _ = multiply(kernels, config, a, b)
    assert np.array_equal(c[3], np.full(12, bad), equal_nan=True)
    assert (np.delete(c, 3, axis=0) == 20).all()


@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "swapped"),
    [
        *((*which, False) for which in [*TRANSPOSITIONS, (True, True)]),
        (False, False, True),
        (True, False, True),
    ],
)
def test_the_backend_turns_an_operand_where_the_kernel_needs_it(
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    transpose_a: bool,
    transpose_b: bool,
    swapped: bool,
) -> None:
    def choose(
        *shape: Any, precision: str, vector: bool, arch: str, **settings: Any
    ) -> WgmmaConfig:
        assert (precision, vector, arch) == ("tf32", True, "sm_90a")
        configs = (
            config for _, config in wgmma_choices(*shape, **settings) if config.block_n == 64
        )
        return next(config for config in configs if config.swapped == swapped)

    monkeypatch.setattr(dense, "configure", choose)
    rng = np.random.default_rng(10)
    ops = CudaBackend(kernels._runtime, precision="tf32", reuse=True)
    for m, n, k in ((132, 136, 72), (68, 200, 36)):
        a = random(rng, (k, m) if transpose_a else (m, k), "float32")
        b = random(rng, (n, k) if transpose_b else (k, n), "float32")
        expected = (seen(a).T if transpose_a else seen(a)) @ (seen(b).T if transpose_b else seen(b))
        # Rows of b follow each other at a distance.
        wide = ops.asarray(np.concatenate([b, np.full((len(b), 4), np.nan, np.float32)], axis=1))
        da, db = ops.asarray(a), wide[:, : b.shape[1]]
        for _ in range(2):
            ops.begin_step()
            c = ops.matmul(da, db, transpose_a=transpose_a, transpose_b=transpose_b)
            assert_close(ops.to_numpy(c), expected, "float32", k)


@pytest.mark.in_turns(2)
@on_emulator
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("A_FROM_REGISTERS ? block % 2 : 0", "0"),
        ("wgmma_wait<1>();\n        if (block > 0)", "if (block > 0)"),
    ],
    ids=["one set of registers", "no wait"],
)
def test_what_is_done_wrongly_with_registers(
    right: str, wrong: str, reverse: bool, tmp_path: Path
) -> None:
    config = wgmma("float32", True, True, swapped=True, block_n=32, num_multiprocessors=2)
    run_wrongly(right, wrong, OPERANDS_WRITTEN, reverse, tmp_path, config)


# Tiles as they are chosen, of which some are too large for the emulator's patience.
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 264, 200), (8, 264, 600), (64, 72, 300)])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSITIONS)
def test_all_that_may_be_chosen(
    kernels: Kernels, shape: tuple[int, int, int], transpose_a: bool, transpose_b: bool
) -> None:
    choices = wgmma_choices(
        *shape, "bfloat16", transpose_a=transpose_a, transpose_b=transpose_b, num_multiprocessors=6
    )
    configs = [config for _, config in choices]
    for config in configs:
        assert_product(kernels, config, *shape)
    assert_product(kernels, replace(configs[0], splits=1, cluster=2), *shape)


# -- planted mistakes
# ----------------------------------------------------------------------------------------

# Each is once in the source of the kernel with all its headers.
WAITS_FOR_STAGE = "wait(shared.full[cursor.slot], cursor.round);"
WAITS_FOR_ROOM = "wait(shared.empty[cursor.slot], cursor.round + 1);"
WAITS_AND_RELEASES = """wgmma_wait<1>();
        if (block > 0) release(shared.empty[before]);"""
WAITS_FOR_ALL = "    wgmma_wait<0>();\n"
FENCE, COMMIT = "    wgmma_fence();\n", "    wgmma_commit();\n"
ALIGNMENT = "#define SHARED_ALIGNMENT 1024"
TO_ALL = "(1 << CLUSTER) - 1"
TO_OTHERS = "mbarrier_arrive_at(cluster_address(&empty, lane));"
WAITS_FOR_BUFFER = "bulk_wait_read<1>();"
FENCE_AND_STORE = """fence_async();
        __syncwarp();"""
WAITS_FOR_STORES = "if (threadIdx.x % 32 == 0) bulk_wait_read<0>();\n#endif"

ONCE_MORE = (
    r"mbarrier_expect: expected 1 arrivals in a phase of the barrier at .*, got one more, while"
)
OPERANDS_WRITTEN = r"wgmma_wait: expected the operands of a product to stay as they are until then"
BOX_WRITTEN = r"bulk_wait_read: expected the 2048 bytes from .* on to stay as they are until stored"
WAITS_FOR_EVER = r"deadlock: in block.* wait at mbarrier_test"


@pytest.mark.in_turns(12)
@on_emulator
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        pytest.param(WAITS_FOR_STAGE, "", ONCE_MORE, id="no wait"),
        pytest.param(
            WAITS_FOR_STAGE,
            f"if (threadIdx.x / 32 != 5) {WAITS_FOR_STAGE}",
            OPERANDS_WRITTEN,
            id="a warp",
        ),
        pytest.param(WAITS_FOR_ROOM, "", ONCE_MORE, id="no room"),
        pytest.param(
            WAITS_FOR_ROOM, WAITS_FOR_ROOM.replace(" + 1", ""), WAITS_FOR_EVER, id="parity"
        ),
        pytest.param(
            WAITS_AND_RELEASES,
            "\n".join(WAITS_AND_RELEASES.splitlines()[::-1]) + "wgmma_wait<1>();",
            OPERANDS_WRITTEN,
            id="released early",
        ),
        pytest.param(WAITS_FOR_ALL, "", OPERANDS_WRITTEN, id="no last wait"),
        pytest.param(
            FENCE, "", r"wgmma_bf16: expected wgmma_fence before a product", id="no fence"
        ),
        pytest.param(
            COMMIT, "", r"the thread leaves while \d+ products of its group", id="no commit"
        ),
        pytest.param(
            ALIGNMENT,
            "",
            r"wgmma_bf16: expected the atoms of a at multiples of 1024",
            id="alignment",
        ),
        pytest.param(TO_ALL, "1 << own_rank()", WAITS_FOR_EVER, id="to itself alone"),
        pytest.param(
            TO_OTHERS,
            "if (lane == 0) mbarrier_arrive(&empty);",
            WAITS_FOR_EVER,
            id="released here alone",
        ),
        pytest.param(WAITS_FOR_BUFFER, ";", BOX_WRITTEN, id="buffer in use"),
        pytest.param(
            FENCE_AND_STORE,
            "__syncwarp();",
            r"store_tensor: expected fence_async after",
            id="no async fence",
        ),
        pytest.param(
            WAITS_FOR_STORES,
            "#endif",
            r"the thread leaves while \d of its stores of boxes",
            id="stores under way",
        ),
    ],
)
def test_what_is_done_wrongly(
    right: str, wrong: str, message: str, reverse: bool, tmp_path: Path
) -> None:
    run_wrongly(right, wrong, message, reverse, tmp_path)


@on_emulator
def test_a_warp_that_does_not_meet_before_it_stores(tmp_path: Path) -> None:
    """In reverse order all is well: the lane that stores is the last one."""
    message = rf"({BOX_WRITTEN}|store_tensor: expected fence_async after)"
    run_wrongly(FENCE_AND_STORE, "fence_async();", message, False, tmp_path)


@on_emulator
def test_a_ring_of_tiles_that_is_as_long_as_that_of_stages(tmp_path: Path) -> None:
    """Each tile is one stage, so that the one that loads is as far ahead as it can be."""
    config = wgmma(transpose_b=True, cluster=2, num_multiprocessors=2)
    message = "store_async_pair: something is on its way already"
    slots = "QUEUE_SLOTS = STAGES + 1", "QUEUE_SLOTS = STAGES"
    run_wrongly(*slots, message, False, tmp_path, config, (250, 600, 60))


def run_wrongly(
    right: str,
    wrong: str,
    message: str,
    reverse: bool,
    folder: Path,
    config: WgmmaConfig | None = None,
    sizes: tuple[int, int, int] = (250, 200, 270),
) -> None:
    """Run a copy of the kernel with a mistake, which the emulator has to tell in these words."""
    source = jit.flattened("gemm_sm90", ())
    before, after = source.rsplit(right, 1)  # headers, which come first, may have it too
    (folder / "gemm_sm90.cu").write_text(before + wrong + after)
    kernels = Kernels(EmulatedRuntime(folder=folder, reverse=reverse))
    config = config or wgmma(
        transpose_b=True, block_n=128, cluster=2, stages=2, num_multiprocessors=2
    )
    with pytest.raises(DeviceError, match=rf"^kernel gemm_sm90, block \(\d, 0, 0\).*: {message}"):
        assert_product(kernels, config, *sizes)
