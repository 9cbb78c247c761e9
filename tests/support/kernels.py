"""Every kernel that the CUDA backend asks for."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from warpfit.backends import cuda

__all__ = ["MODULES", "VARIANTS"]


def _modules_with_kernels() -> dict[str, Any]:
    """Return the backend's modules that say which kernels they ask for, by name."""
    modules = {
        info.name: import_module(f"{cuda.__name__}.{info.name}")
        for info in iter_modules(cuda.__path__)
    }
    return {name: module for name, module in modules.items() if hasattr(module, "variants")}


def _all_variants() -> dict[str, list[dict[str, str]]]:
    """Return the defines that each kernel is asked for, once each, by its name."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for module in MODULES.values():
        for name, defines in module.variants():
            if defines not in found[name]:
                found[name].append(defines)
    return dict(found)


MODULES = _modules_with_kernels()
VARIANTS = _all_variants()
