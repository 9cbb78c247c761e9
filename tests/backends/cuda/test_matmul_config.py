"""Choice of kernel and tiles for matrix products."""

from __future__ import annotations

from itertools import product

import pytest

from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.matmul import candidates, configure, configure_for
from warpfit.backends.cuda.matmul_config import MatmulConfig
from warpfit.backends.cuda.matmul_wgmma_config import WgmmaConfig, wgmma_choices
from warpfit.errors import ConfigError

SHAPES = [
    (0, 5, 3),
    (1, 1, 1),
    (7, 10, 0),
    (64, 256, 784),
    (784, 256, 64),
    (33, 70, 1000),
    (1024, 1024, 1024),
]
TRANSPOSITIONS = list(product([False, True], [False, True]))
ARCHITECTURES = ["sm_75", "sm_86", "sm_90a", "sm_120a"]


def assert_runs(config: MatmulConfig, arch: str) -> None:
    """What the kernel's static_asserts and the launch need."""
    lanes_n = min(config.block_n // config.thread_n, 8)
    lanes_m = 32 // lanes_n
    assert config.block_m % (lanes_m * config.thread_m) == 0
    assert config.block_n % (lanes_n * config.thread_n) == 0
    assert lanes_m % 2 == 0
    assert config.threads % 32 == 0
    assert config.threads <= 1024
    assert config.min_blocks * config.threads <= 2048
    assert config.stages >= 2
    assert config.shared_bytes + 16 <= shared_bytes_of(arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_candidate_can_be_launched(
    shape: tuple[int, int, int], dtype: str, arch: str
) -> None:
    for (transpose_a, transpose_b), vector in product(TRANSPOSITIONS, [False, True]):
        found = candidates(
            *shape,
            dtype,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            arch=arch,
            vector=vector,
        )
        assert found
        for config in found:
            assert_runs(config, arch)
            assert (config.dtype, config.vector) == (dtype, vector)
            assert (config.transpose_a, config.transpose_b) == (transpose_a, transpose_b)


@pytest.mark.parametrize("shape", SHAPES)
def test_configure_takes_the_first_candidate_and_always_the_same(
    shape: tuple[int, int, int],
) -> None:
    assert (
        configure(*shape, "float32", vector=True) == candidates(*shape, "float32", vector=True)[0]
    )
    assert configure(*shape, "float32", vector=True) is configure(*shape, "float32", vector=True)


def test_tiles_cover_the_result() -> None:
    config = MatmulConfig("matmul_register", "float32", block_m=32, block_n=64, splits=3)
    assert config.tiles(33, 64) == 2
    assert config.grid(33, 64) == (2, 1, 3)
    assert config.partials(33, 64) == 2 * 3 * 32 * 64
    assert MatmulConfig("matmul_register", "float32").partials(33, 64) == 0


def test_large_tiles_are_numbered_along_x() -> None:
    small = MatmulConfig("matmul_register", "float32", block_m=64, block_n=64, splits=3)
    assert (small.swath_rows, small.grid(100, 200)) == (0, (2, 4, 3))
    large = MatmulConfig("matmul_register", "float32", block_m=128, block_n=64, splits=3)
    assert (large.swath_rows, large.grid(200, 200)) == (8, (8, 1, 3))


def test_tiles_that_the_grid_cannot_number_are_left_out() -> None:
    found = candidates(16, 70_000 * 8, 16, "float32", vector=True)
    assert all(config.grid(16, 70_000 * 8)[1] <= 65535 for config in found)


def test_textbook_kernels_have_a_grid_of_tiles() -> None:
    config = MatmulConfig("matmul_tiled", "float32")
    assert config.grid(33, 17) == (6, 1, 1)
    assert MatmulConfig("matmul_naive", "float32").grid(33, 17) == (2, 3, 1)
    assert config.block == (16, 16, 1)
    assert config.shared_bytes == 0
    assert config.defines() == {"DTYPE": "float32", "TRANSPOSE_A": 0, "TRANSPOSE_B": 0}


def test_threads_and_shared_memory() -> None:
    sizes = {
        "block_m": 32,
        "block_n": 16,
        "block_k": 64,
        "thread_m": 4,
        "thread_n": 4,
        "groups": 8,
        "stages": 2,
    }
    kept = MatmulConfig("matmul_register", "float32", turn=False, **sizes)  # type: ignore[arg-type]
    assert kept.threads == kept.block[0] == 8 * 32
    # A (32, 64) is kept, with 4 numbers between rows; B (64, 16) lies along n.
    assert kept.shared_bytes == 2 * (32 * 68 + 64 * 20) * 4
    turned = MatmulConfig("matmul_register", "float32", turn=True, **sizes)  # type: ignore[arg-type]
    assert turned.shared_bytes == 2 * 64 * (36 + 20) * 4
    groups = MatmulConfig(
        "matmul_register", "float32", block_m=64, block_n=64, block_k=8, groups=4, stages=2
    )
    assert groups.shared_bytes == 3 * 64 * 64 * 4


def test_a_small_product_fills_the_card_and_a_large_one_takes_large_tiles() -> None:
    small = configure(64, 256, 784, "float32", vector=True)
    assert 66 <= small.tiles(64, 256) * small.splits <= 264
    large = configure(4096, 4096, 4096, "float32", vector=True)
    assert large.block_m * large.block_n >= 128 * 128
    assert large.splits == 1


# -- Hopper
# ------------------------------------------------------------------------------------------------

HALF_SHAPES = [(1, 8, 8), (32, 4096, 4096), (784, 256, 64), (1000, 520, 1000), (8192, 8192, 8192)]


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", HALF_SHAPES)
def test_every_candidate_for_hopper_can_be_launched(shape: tuple[int, int, int], out: str) -> None:
    m, n, k = shape
    for transpose_a, transpose_b in TRANSPOSITIONS:
        choices = wgmma_choices(
            m, n, k, "bfloat16", transpose_a=transpose_a, transpose_b=transpose_b, out=out
        )
        assert choices
        for cycles, config in choices:
            assert cycles > 0
            assert config.stages >= 3
            assert config.shared_bytes <= shared_bytes_of("sm_90a")
            assert config.threads <= 384
            grid = config.grid(m, n)[0]
            assert grid % config.cluster == 0
            assert 0 < grid <= 132
            assert config.splits <= -(-k // config.block_k)
            assert config.partials(m, n) == (
                config.tiles(m, n) * config.splits * 16 * config.block_n if config.splits > 1 else 0
            )
            for box in config.boxes:
                assert 1 <= box.rows <= 256
                assert box.rows % 8 == 0
            assert config.boxes[0].columns == config.boxes[1].columns == 64


def test_products_of_few_rows_may_be_swapped() -> None:
    swapped = [config for _, config in wgmma_choices(32, 512, 256, "float16") if config.swapped]
    assert swapped
    # Cᵀ = op(B)ᵀ op(A)ᵀ: B (k, n) is its A, stored the other way round, and A (m, k) its B.
    assert all((config.transpose_a, config.transpose_b) == (True, True) for config in swapped)
    assert all(config.sizes(32, 512, 256, 256, 512) == (512, 32, 256, 512) for config in swapped)
    assert not any(config.swapped for _, config in wgmma_choices(65, 512, 256, "float16"))


def test_large_products_in_half_precision_go_to_the_kernel_for_hopper() -> None:
    kernels = {
        arch: configure(4096, 4096, 4096, "float16", arch=arch, vector=True).kernel
        for arch in ARCHITECTURES
    }
    assert kernels == {
        "sm_75": "matmul_mma",
        "sm_86": "matmul_mma",
        "sm_90a": "gemm_sm90",
        "sm_120a": "matmul_mma",
    }
    assert configure(4096, 4096, 4096, "float16", vector=False).kernel == "matmul_mma"
    assert configure(4096, 4096, 0, "float16", vector=True).kernel == "matmul_mma"


def tf32(m: int, n: int, k: int, *, transpose_a: bool, transpose_b: bool) -> list[WgmmaConfig]:
    stored = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return [config for _, config in wgmma_choices(m, n, k, "float32", **stored)]


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSITIONS)
def test_products_of_tf32_have_b_along_k(transpose_a: bool, transpose_b: bool) -> None:
    found = tf32(1024, 2048, 512, transpose_a=transpose_a, transpose_b=transpose_b)
    assert {config.swapped for config in found} == ({False} if transpose_b else {False, True})
    for config in found:
        assert config.transpose_b
        assert config.boxes[1].columns == 32
        assert config.shared_bytes <= shared_bytes_of("sm_90a")
        # What lies along k as it is stored: B if it is transposed, A if it is not.
        assert config.turns_b == (transpose_a if config.swapped else not transpose_b)
        assert config.takes_registers == (not transpose_b if config.swapped else transpose_a)
        assert config.stores_tensor == (not config.swapped and not config.takes_registers)
        assert not (config.takes_registers and config.mma_rows > 1)
        assert ("B turned" in str(config)) == config.turns_b


def test_an_operand_is_turned_if_its_copy_has_whole_rows() -> None:
    assert any(
        config.turns_b for config in tf32(512, 512, 512, transpose_a=True, transpose_b=False)
    )
    assert not tf32(512, 512, 510, transpose_a=True, transpose_b=False)


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "turned"),
    [(False, False, False), (False, True, False), (True, False, True), (True, True, False)],
)
def test_large_products_of_tf32_go_to_the_kernel_for_hopper(
    size: int, transpose_a: bool, transpose_b: bool, turned: bool
) -> None:
    stored = {"transpose_a": transpose_a, "transpose_b": transpose_b, "vector": True}
    config = configure(size, size, size, "float32", precision="tf32", **stored)
    assert isinstance(config, WgmmaConfig)
    assert config.turns_b == turned
    assert configure(size, size, size, "float32", **stored).kernel == "matmul_register"
    assert (
        configure(size, size, size, "float32", precision="tf32", arch="sm_86", **stored).kernel
        == "matmul_mma"
    )


def test_small_products_of_tf32_go_to_the_kernel_of_warps() -> None:
    for shape in ((64, 4096, 4096), (4096, 64, 4096), (256, 256, 256)):
        assert configure(*shape, "float32", precision="tf32", vector=True).kernel == "matmul_mma"
    assert configure(4096, 4096, 4096, "float32", precision="tf32").kernel == "matmul_mma"


def test_a_long_sum_of_few_results_is_split() -> None:
    assert configure(16, 16, 100_000, "float32", vector=True).splits > 1


def test_halves_without_tensor_cores_use_registers() -> None:
    assert configure(64, 64, 64, "bfloat16", arch="sm_75").kernel == "matmul_register"
    assert configure(64, 64, 64, "bfloat16", arch="sm_80").kernel == "matmul_mma"
    assert configure(64, 64, 64, "float32", precision="tf32", arch="sm_90a").kernel == "matmul_mma"


def test_rows_too_long_for_32_bits_take_another_kernel() -> None:
    assert configure(256, 8, 2**25, "float32").kernel == "matmul_tiled"
    assert configure(4, 8, 2**25, "float32").kernel == "matmul_register"


def test_printable() -> None:
    config = MatmulConfig("matmul_register", "float32", block_m=32, splits=4)
    assert "32x16x16" in str(config)
    assert "4 splits" in str(config)


@pytest.mark.parametrize(("dtype", "precision"), [("int8", "float32"), ("float32", "fast")])
def test_unknown_settings_are_refused(dtype: str, precision: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        configure(1, 1, 1, dtype, precision=precision)


# -- one kernel for all
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("matmul_naive", "float32"),
        ("matmul_tiled", "float16"),
        ("matmul_register", "float32"),
        ("matmul_mma", "bfloat16"),
        ("gemm_sm90", "float16"),
    ],
)
def test_a_kernel_that_is_asked_for_is_taken(kernel: str, dtype: str) -> None:
    for transpose_a, transpose_b in TRANSPOSITIONS:
        settings = {
            "transpose_a": transpose_a,
            "transpose_b": transpose_b,
            "vector": True,
            "arch": "sm_90a",
        }
        config = configure_for(kernel, 64, 256, 784, dtype, **settings)
        assert (config.kernel, config.dtype) == (kernel, dtype)
        assert (config.transpose_a, config.transpose_b) == (
            transpose_a,
            transpose_b,
        ) or kernel == "gemm_sm90"


def test_a_kernel_takes_the_tiles_that_suit_it_best() -> None:
    assert configure_for("matmul_register", 64, 256, 784, "float32") == configure(
        64, 256, 784, "float32"
    )


def test_a_kernel_that_does_not_compute_a_product_says_so() -> None:
    with pytest.raises(
        ConfigError, match="matmul_mma computes on sm_90a, got 64 x 256 x 784 of float32"
    ):
        configure_for("matmul_mma", 64, 256, 784, "float32", arch="sm_90a")
    with pytest.raises(
        ConfigError, match="gemm_sm90 computes on sm_80, got 64 x 256 x 784 of float16"
    ):
        configure_for("gemm_sm90", 64, 256, 784, "float16", arch="sm_80", vector=True)
