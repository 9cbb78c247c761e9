"""Every kernel compiles for every architecture, in every dtype it is used in, and keeps its numbers in registers."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.util import find_spec

import pytest

from warpfit.backends.cuda import (
    activation,
    arrays,
    columns,
    conv,
    dense,
    dropout,
    elementwise,
    indexing,
    jit,
    loss,
    norm,
    optim,
    pool,
    reduction,
)
from warpfit.backends.cuda.matmul_mma_config import supports

MODULES = (
    activation,
    arrays,
    columns,
    conv,
    dense,
    dropout,
    elementwise,
    indexing,
    loss,
    norm,
    optim,
    pool,
    reduction,
)
# Kernels whose numbers do not all fit into registers on sm_90a, with the reason.
MAY_SPILL: dict[str, str] = {}

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")

pytestmark = pytest.mark.skipif(find_spec("cuda") is None, reason="cuda-core is not installed")


def all_variants() -> dict[str, list[dict[str, str]]]:
    """Return the defines that each kernel is asked for, by its name."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for module in MODULES:
        for name, defines in module.variants():
            if defines not in found[name]:
                found[name].append(defines)
    return dict(found)


VARIANTS = all_variants()


def test_every_kernel_file_is_asked_for() -> None:
    textbook = {"matmul_naive", "matmul_tiled"}  # rungs of the ladder
    assert VARIANTS.keys() | textbook == {path.stem for path in jit.KERNELS.glob("*.cu")}


@pytest.mark.parametrize("arch", jit.ARCHITECTURES)
@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_without_spills(name: str, arch: str) -> None:
    for defines in VARIANTS[name]:
        if "mma" in name and not supports(arch, defines["DTYPE"]):
            continue
        code, log = jit.compile_kernel(name, tuple(defines.items()), arch, verbose=True)
        assert code.startswith(b"\x7fELF")
        spilled = [max(map(int, pair)) for pair in _SPILLS.findall(log)]
        assert spilled, log
        if arch == "sm_90a" and name not in MAY_SPILL:
            assert max(spilled) == 0, f"{defines}: {log}"


@pytest.mark.parametrize("name", ["matmul_naive", "matmul_tiled"])
@pytest.mark.parametrize("arch", jit.ARCHITECTURES)
def test_textbook_products_compile(name: str, arch: str) -> None:
    code, _ = jit.compile_kernel(
        name, (("DTYPE", "float32"), ("TRANSPOSE_A", "0"), ("TRANSPOSE_B", "1")), arch
    )
    assert code.startswith(b"\x7fELF")
