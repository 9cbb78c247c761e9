"""Training in NumPy with the roundings of products in half precision, and otherwise in float32."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np


def rounded(values: Any, precision: str) -> Any:
    """Return numbers rounded to the nearest even of the precision, as float32."""
    if precision == "float16":
        return values.astype("f2").astype("f4")
    words = np.ascontiguousarray(values, "f4").view("u4")
    return ((words + 0x7FFF + (words >> 16 & 1)) & 0xFFFF0000).astype("u4").view("f4")


def rounded_sgd(
    weights: Iterable[Any],
    batches: Iterable[tuple[Any, Any]],
    precision: str,
    lr: float,
    momentum: float,
    scale: float,
) -> list[Any]:
    """Return the weights of a network of two layers with ReLU after SGD on cross-entropy.

    Rounded are x, the weights, hidden units, and both layers' gradients, which come times `scale`,
    a power of two.

    Parameters
    ----------
    weights : of float32
        w1 (F, H), b1 (H,), w2 (H, O) and b2 (O,).
    batches : of (x, y)
        x (B, F) float32 and labels y (B,).
    """
    half = partial(rounded, precision=precision)
    w1, b1, w2, b2 = parameters = [np.array(array, "f4") for array in weights]
    velocities = [np.zeros_like(array) for array in parameters]
    # Without momentum, gradients are rounded times the learning rate, too.
    factor = np.float32(scale if momentum else scale * lr)
    step = np.float32(lr if momentum else 1) / np.float32(scale)
    for x, y in batches:
        x = half(x)
        z = x @ half(w1) + b1
        h = half(np.maximum(z, 0))
        outputs = h @ half(w2) + b2
        p = np.exp(outputs - outputs.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        dz = half(p * (factor / np.float32(len(y))))
        dh = half(dz @ half(w2).T * (z > 0))
        gradients = [x.T @ dh, dh.sum(0), h.T @ dz, dz.sum(0)]
        for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            velocity *= np.float32(momentum)
            velocity += gradient
            parameter -= step * velocity
    return parameters
