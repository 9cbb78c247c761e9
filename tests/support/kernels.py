"""Every kernel that the CUDA backend asks for."""

from __future__ import annotations

from warpfit.backends.cuda.variants import all_variants, modules_with_kernels

__all__ = ["MODULES", "VARIANTS"]

MODULES = modules_with_kernels()
VARIANTS = all_variants()
