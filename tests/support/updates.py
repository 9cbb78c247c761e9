"""Updates of the contract, by the optimizers' settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.backends import Array
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.schedules import Constant

__all__ = ["spec_of", "update"]


def spec_of(kind: str, lr: float, **settings: Any) -> OptimizerSpec:
    """Return an optimizer's settings; `beta1` and `beta2` are those of `betas`."""
    betas = [settings.pop(name) for name in ("beta1", "beta2") if name in settings]
    if betas:
        settings["betas"] = (*betas, 0.999)[:2] if len(betas) < 2 else tuple(betas)
    return OptimizerSpec.by_kind[kind](Constant(lr), **settings)


def update(
    ops: Any,
    kind: str,
    parameters: Sequence[Array],
    gradients: Sequence[Array],
    *slots: Sequence[Array] | None,
    lr: float,
    step: int = 1,
    **settings: Any,
) -> None:
    """Update by an optimizer of these settings, by as many of the slots as it has."""
    spec = spec_of(kind, lr, **settings)
    named = {
        name: arrays
        for name, arrays in zip(spec.slot_names, slots, strict=False)
        if arrays is not None
    }
    spec.apply(ops, parameters, gradients, named, step=step, lr=lr)
