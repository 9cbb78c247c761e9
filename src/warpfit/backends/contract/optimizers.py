"""The contract of optimizers: lists of arrays, updated in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from warpfit.backends.contract.terms import Array, Number

__all__ = ["OptimizerContract"]


class OptimizerContract(ABC):
    """Updates of all parameters at once, and what is done to their gradients before."""

    # -- optimizers: lists of arrays, updated in place ---------------------------------------------------

    @abstractmethod
    def sgd_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        lr_in_velocity: bool = False,
    ) -> None:
        """w ← w - lr · d, with g ← g + weight_decay · w, v ← momentum · v + g, and d = v or g + momentum · v.

        d is g without momentum, v with it, g + momentum · v with Nesterov's. ``lr_in_velocity`` is
        scikit-learn's form: v ← momentum · v - lr · g, then w ← w + v, or w + momentum · v - lr · g.
        `velocities` may be None without momentum, and are left alone then.
        """

    @abstractmethod
    def adam_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        first_moments: Sequence[Array],
        second_moments: Sequence[Array],
        *,
        step: int,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps_before_correction: bool = False,
        corrected: Sequence[Number] | None = None,
    ) -> None:
        """w ← w - lr · m̂ / (√v̂ + eps) with m̂ = m / (1 - beta1^step), v̂ = v / (1 - beta2^step).

        ``step`` counts from 1. Weight decay joins the gradient, or with ``decoupled`` (AdamW) shrinks w by
        lr · weight_decay first. ``eps_before_correction`` is scikit-learn's form: eps is added to √v, and
        the corrections multiply lr by √(1 - beta2^step) / (1 - beta1^step).

        ``corrected`` takes the place of all numbers that follow from step and lr: what `adam_corrected` returns
        for them, as numbers or on the device. They are not looked at then.
        """

    @abstractmethod
    def rmsprop_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        square_averages: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        """w ← w - lr · d with s ← alpha · s + (1 - alpha) g² and d = g / (√s + eps).

        With momentum v ← momentum · v + d takes the place of d; `velocities` may be None without.
        Weight decay joins the gradient, as in `sgd_update`.
        """

    @abstractmethod
    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        """Scale all gradients by min(1, max_norm / (norm + 1e-6)) in place; return their joint norm ()."""

    @abstractmethod
    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        """Add c · w to each gradient in place; return c / 2 · Σ w² as (); c is coefficient / divisor, or 0 over 0."""
