"""Every kernel that the CUDA backend asks for."""

from __future__ import annotations

from kernel_variants import MODULES, all_variants, variants_of

__all__ = ["MODULES", "VARIANTS", "variants_of"]

VARIANTS = all_variants()
