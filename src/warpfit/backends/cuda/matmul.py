"""Which kernel computes a product, with which tiles: functions of its shape and the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.matmul_config import BYTES, MatmulConfig
from warpfit.backends.cuda.matmul_mma_config import mma_choices, supports
from warpfit.backends.cuda.matmul_register_config import register_choices
from warpfit.backends.cuda.matmul_wgmma_config import takes, wgmma_choices
from warpfit.errors import ConfigError


@lru_cache(maxsize=4096)
def configure(m: int, n: int, k: int, dtype: str, **settings: Any) -> MatmulConfig:
    """Return how to compute op(A) (m, k) @ op(B) (k, n): the first of `candidates`."""
    return candidates(m, n, k, dtype, **settings)[0]


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
    if dtype not in BYTES:
        raise ConfigError(f"expected a dtype among {', '.join(BYTES)}, got {dtype!r}")
    if precision not in ("float32", "tf32"):
        raise ConfigError(f"expected precision 'float32' or 'tf32', got {precision!r}")
    choices: list[tuple[float, MatmulConfig]] = []
    is_tensor_product = dtype in HALF_DTYPES or (dtype == "float32" and precision == "tf32")
    if is_tensor_product and supports(arch, dtype):
        settings: dict[str, Any] = {
            "transpose_a": transpose_a,
            "transpose_b": transpose_b,
            "num_multiprocessors": num_multiprocessors,
            "out": out,
        }
        choices += mma_choices(m, n, k, dtype, arch=arch, vector=vector, **settings)
        if takes(arch, dtype, m, n, k, vector=vector):
            choices += wgmma_choices(m, n, k, dtype, **settings)
    else:
        stored = MatmulConfig("matmul_register", dtype, transpose_a, transpose_b, vector)
        choices = register_choices(
            stored, m, n, k, num_multiprocessors=num_multiprocessors, arch=arch
        )
    return [config for _, config in sorted(choices, key=lambda choice: choice[0])]


def configure_for(kernel: str, m: int, n: int, k: int, dtype: str, **settings: Any) -> MatmulConfig:
    """Return how one kernel computes op(A) (m, k) @ op(B) (k, n), whether or not it is the best for
    that.

    Parameters
    ----------
    kernel : str
        The kernel file's stem: ``'matmul_naive'``, ``'matmul_tiled'``, ``'matmul_register'``,
        ``'matmul_mma'`` or ``'gemm_sm90'``.
    m, n, k, dtype, **settings
        As `candidates` takes them.

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
    raise ConfigError(
        f"expected a product that {kernel} computes on {arch}, got {m} x {n} x {k} of {dtype}"
    )
