"""Every kernel that the CUDA backend asks for, with its settings, and which cards take it.

A function `of_name` yields the kernels that the backend's module `name` launches, with all sets of
defines that it asks for where they are few, else with a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kernel_variants import arrays, convolutions, layers, products, runs
from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.matmul_mma_config import supports

Variants = list[tuple[str, dict[str, str]]]


def variants_of(module: str) -> Variants:
    """Return the kernels of a module of the backend, and their defines as the compiler has them."""
    return [(kernel, texts(defines)) for kernel, defines in _OF_MODULES[module]()]


def texts(defines: Mapping[str, Any]) -> dict[str, str]:
    """Return defines as the compiler has them."""
    return {
        name: str(int(value) if isinstance(value, bool) else value)
        for name, value in defines.items()
    }


_OF_MODULES: dict[str, Callable[[], Iterable[tuple[str, dict[str, Any]]]]] = {
    name.removeprefix("of_"): function
    for group in (arrays, products, convolutions, layers, runs)
    for name, function in vars(group).items()
    if name.startswith("of_")
}
MODULES = tuple(_OF_MODULES)


def all_variants() -> dict[str, list[dict[str, str]]]:
    """Return the settings that each kernel is asked for, once each, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    for module in MODULES:
        for name, defines in variants_of(module):
            known = found.setdefault(name, [])
            if defines not in known:
                known.append(defines)
    return found


def is_supported(name: str, defines: dict[str, str], arch: str) -> bool:
    """Return whether an architecture takes a variant: half precision goes to its tensor cores, if
    it has them.
    """
    is_apart = defines.get("RANKS", "") not in ("", defines.get("CLUSTER"))
    is_apart |= defines.get("FEATURE_PARTS", "1") != "1"
    if name.endswith("_sm90") or "_few_" in name or is_apart:  # beside kernels for Hopper alone
        return generation(arch) == 90
    if defines.get("CLUSTER", "1") != "1" or defines.get("WEIGHT_REGISTERS", "0") != "0":
        return generation(arch) >= 90
    if name == "one_launch_images":
        return generation(arch) >= 80
    dtype, always = defines.get("DTYPE", ""), ("one_launch", "narrow_step", "many_", "table_")
    uses_them = str(int("mma" in name or name.startswith(always)))
    if defines.get("TENSOR_CORES", uses_them) == "1":
        return supports(arch, dtype)
    is_product = name.startswith("conv2d") or name == "matmul_register"
    is_product &= not name.startswith(("conv2d_depthwise", "conv2d_grouped"))
    return not (is_product and dtype in HALF_DTYPES and supports(arch, dtype))
