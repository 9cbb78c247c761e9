"""Every kernel that the CUDA backend asks for."""

from __future__ import annotations

from collections import defaultdict

from warpfit.backends.cuda import (
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
    one_launch,
    optim,
    pool,
    reduction,
)

__all__ = ["MODULES", "VARIANTS"]

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
    one_launch,
    optim,
    pool,
    reduction,
)


def _all_variants() -> dict[str, list[dict[str, str]]]:
    """Return the defines that each kernel is asked for, by its name."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for module in MODULES:
        for name, defines in module.variants():
            if defines not in found[name]:
                found[name].append(defines)
    return dict(found)


VARIANTS = _all_variants()
