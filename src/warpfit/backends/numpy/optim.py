"""Optimizer updates in place, a block of elements at a time so that a block stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import check_float, check_update, check_velocities
from warpfit.backends.corrections import adam_corrected

__all__ = ["OptimOps"]

BLOCK = 1 << 18
CLIP_EPS = 1e-6


def _blocks(op: str, *groups: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    """Yield matching blocks of the arrays of every group: flat views of up to BLOCK elements."""
    check_update(op, *groups)
    for arrays in zip(*groups, strict=True):
        if arrays[0].size <= BLOCK or not all(array.flags.c_contiguous for array in arrays):
            yield arrays
            continue
        flat = [array.reshape(-1) for array in arrays]
        for start in range(0, flat[0].size, BLOCK):
            yield tuple(array[start : start + BLOCK] for array in flat)


class OptimOps(Backend):
    """w ← w - step, over lists of arrays."""

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
        check_velocities("sgd_update", velocities, momentum)
        lr = float(lr)
        for w, g, v in _blocks(
            "sgd_update", parameters, gradients, gradients if velocities is None else velocities
        ):
            if weight_decay:
                g = g + weight_decay * w
            if not momentum:
                w -= np.multiply(g, lr, out=self.empty(g.shape, g.dtype))
                continue
            # A learning rate inside the velocity scales what goes in; outside, what comes out.
            if lr_in_velocity:
                g = np.multiply(g, -lr, out=self.empty(g.shape, g.dtype))
            v *= momentum
            v += g
            step, scratch = v, self.empty(v.shape, v.dtype)
            if nesterov:
                step = np.multiply(v, momentum, out=scratch)
                step += g
            if not lr_in_velocity:
                step = np.multiply(step, -lr, out=scratch)
            w += step

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
        if corrected is None:
            corrected = adam_corrected(
                step, lr, beta1, beta2, eps, weight_decay, decoupled, eps_before_correction
            )
        rate, eps, shrink = map(float, corrected)
        for w, g, m, v in _blocks("adam_update", parameters, gradients, first_moments, second_moments):
            if weight_decay and decoupled:
                w *= shrink
            elif weight_decay:
                g = g + weight_decay * w
            scratch = np.multiply(g, 1 - beta1, out=self.empty(g.shape, g.dtype))
            m *= beta1
            m += scratch
            np.multiply(g, g, out=scratch)
            scratch *= 1 - beta2
            v *= beta2
            v += scratch
            np.sqrt(v, out=scratch)
            scratch += eps
            np.divide(m, scratch, out=scratch)
            scratch *= rate
            w -= scratch

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
        check_velocities("rmsprop_update", velocities, momentum)
        lr = float(lr)
        for w, g, s, v in _blocks(
            "rmsprop_update",
            parameters,
            gradients,
            square_averages,
            gradients if velocities is None else velocities,
        ):
            if weight_decay:
                g = g + weight_decay * w
            s *= alpha
            s += (1 - alpha) * g * g
            direction = g / (np.sqrt(s) + eps)
            if momentum:
                v *= momentum
                v += direction
                direction = v
            w -= lr * direction

    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        check_float("clip_by_norm", *gradients)
        # Summed in float64, so that the norm does not depend on how the sum is split.
        norm = sqrt(sum(float(np.add.reduce(np.square(g, dtype=np.float64), axis=None)) for g in gradients))
        if norm > max_norm - CLIP_EPS:
            for g in gradients:
                g *= max_norm / (norm + CLIP_EPS)
        return np.float64(norm)

    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        check_update("l2_penalty", weights, gradients)
        num_rows = float(divisor)
        coefficient = coefficient / num_rows if num_rows else 0.0
        squares = 0.0
        for w, g in zip(weights, gradients, strict=True):
            g += np.multiply(w, coefficient, out=self.empty(w.shape, w.dtype))
            squares += float(np.vdot(w, w))
        return np.float64(coefficient / 2 * squares)
