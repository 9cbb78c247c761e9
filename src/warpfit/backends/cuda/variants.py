"""Every kernel that the CUDA backend asks for, with its settings, and which cards take it."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from warpfit.backends import cuda
from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.matmul_mma_config import supports


def modules_with_kernels() -> dict[str, Any]:
    """Return the backend's modules that say which kernels they ask for, by name."""
    modules = {
        info.name: import_module(f"{cuda.__name__}.{info.name}")
        for info in iter_modules(cuda.__path__)
    }
    return {name: module for name, module in modules.items() if hasattr(module, "variants")}


def all_variants() -> dict[str, list[dict[str, str]]]:
    """Return the settings that each kernel is asked for, once each, by its name: all of them where
    they are few, else a choice.
    """
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for module in modules_with_kernels().values():
        for name, defines in module.variants():
            if defines not in found[name]:
                found[name].append(defines)
    return dict(found)


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
    dtype, always = defines.get("DTYPE", ""), ("one_launch", "narrow_step", "many_", "table_")
    uses_them = str(int("mma" in name or name.startswith(always)))
    if defines.get("TENSOR_CORES", uses_them) == "1":
        return supports(arch, dtype)
    is_product = name.startswith("conv2d") or name == "matmul_register"
    return not (is_product and dtype in HALF_DTYPES and supports(arch, dtype))
