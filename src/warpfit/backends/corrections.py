"""Adam's bias corrections: found once, on the host, for every backend and engine."""

from __future__ import annotations

from math import sqrt

__all__ = ["adam_corrected"]


def adam_corrected(
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    eps_before_correction: bool,
) -> tuple[float, float, float]:
    """Return rate, eps and shrink of w ← shrink · w - rate · m / (√v + eps), for a step counted from 1."""
    correction1, correction2 = 1 - beta1**step, sqrt(1 - beta2**step)
    # m̂ / (√v̂ + eps) = (m / correction1) · correction2 / (√v + eps · correction2)
    rate = lr * correction2 / correction1
    eps = eps if eps_before_correction else eps * correction2
    return rate, eps, 1 - lr * weight_decay if decoupled else 1.0
