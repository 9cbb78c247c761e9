"""The same training steps in NumPy as one would write them first: a loop, and nothing reused from
step to step.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np


class Trainer:
    """Trains a network of linear layers and ReLU by SGD, on every batch of an epoch."""

    def __init__(
        self, sizes: tuple[int, ...], x: Any, y: Any, *, batch_size: int, lr: float
    ) -> None:
        self.rng = np.random.default_rng(0)
        self.x, self.y, self.batch_size, self.lr = x, y, batch_size, lr
        self.steps = -(-len(x) // batch_size)
        self.layers = [
            [
                self.rng.uniform(-(fan**-0.5), fan**-0.5, shape).astype(np.float32)
                for shape in ((fan, width), (width,))
            ]
            for fan, width in pairwise(sizes)
        ]

    def epoch(self, most_steps: int | None = None) -> tuple[float, float]:
        """Train for an epoch, or its first steps; return the mean of their losses and the share of
        right rows.
        """
        order, losses, correct, seen = self.rng.permutation(len(self.x)), [], 0, 0
        for first in range(0, len(order), self.batch_size)[:most_steps]:
            rows = order[first : first + self.batch_size]
            inputs, labels = [self.x[rows]], self.y[rows]
            for w, b in self.layers[:-1]:
                inputs.append(np.maximum(inputs[-1] @ w + b, 0))
            w, b = self.layers[-1]
            logits = inputs[-1] @ w + b
            shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
            probabilities = shifted / shifted.sum(axis=1, keepdims=True)
            picked = probabilities[np.arange(len(rows)), labels]
            losses.append(float(-np.log(picked).mean()))
            correct, seen = correct + int((logits.argmax(axis=1) == labels).sum()), seen + len(rows)
            dz = probabilities
            dz[np.arange(len(rows)), labels] -= 1
            dz /= len(rows)
            for layer, a in zip(reversed(self.layers), reversed(inputs), strict=True):
                dw, db = a.T @ dz, dz.sum(axis=0)
                if layer is not self.layers[0]:
                    dz = (dz @ layer[0].T) * (a > 0)
                layer[0] -= self.lr * dw
                layer[1] -= self.lr * db
        return float(np.mean(losses)), correct / seen
