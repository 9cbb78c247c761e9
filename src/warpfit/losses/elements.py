"""What losses have in common that are a sum of a loss of each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from warpfit.backends import Array, Backend
from warpfit.backends.base import Number
from warpfit.errors import ConfigError
from warpfit.losses.base import Loss


@dataclass(frozen=True)
class ElementLoss(Loss):
    """A loss of each element of outputs and targets, which backends have under one name.

    Subclasses set `operation`: `operation`_forward, `operation`_backward and `operation`_step
    compute it.
    """

    operation: ClassVar[str] = ""

    def _operation(self, ops: Backend, part: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(ops, f"{self.operation}_{part}", None)
        if found is None:
            raise ConfigError(
                f"{self.name}: expected an operation of the backend, got {self.operation!r}"
            )
        return found

    def _settings(self) -> dict[str, Any]:
        """Return the keywords that the operations take for this loss."""
        return {}

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        settings = {"sample_weight": sample_weight, **self._settings()}
        loss, total = self._operation(ops, "forward")(outputs, targets, **settings)
        backward = self._operation(ops, "backward")
        return loss, total, lambda: backward(outputs, targets, total, **settings)

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
        settings = {"sample_weight": sample_weight, **self._settings()}
        step = self._operation(ops, "step")
        gradient: Array | None = step(outputs, targets, record, row, scale=scale, **settings)
        return gradient
