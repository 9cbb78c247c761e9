"""What losses have in common that are a sum of a loss of each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from warpfit.backends import Array, Backend
from warpfit.backends.base import LossTerms, Number
from warpfit.losses.base import Loss


@dataclass(frozen=True)
class ElementLoss(Loss):
    """A loss of each element of outputs and targets, which backends compute by its `terms`."""

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        terms = self._terms_of(outputs)
        loss, total = ops.element_loss_forward(outputs, targets, terms, sample_weight=sample_weight)
        return (
            loss,
            total,
            lambda: ops.element_loss_backward(
                outputs, targets, total, terms, sample_weight=sample_weight
            ),
        )

    def train_step(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Array | None:
        return ops.element_loss_step(
            outputs,
            targets,
            record,
            row,
            self._terms_of(outputs),
            scale=scale,
            sample_weight=sample_weight,
        )

    def _terms_of(self, outputs: Array) -> LossTerms:
        return self.terms(max(1, prod(outputs.shape[1:])))
