"""The loss of counts and the logarithm of their rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from warpfit.backends import Array, Backend
from warpfit.errors import DataError
from warpfit.losses.base import TINY, Loss, float_targets


@dataclass(frozen=True)
class Poisson(Loss):
    """exp(z) - t z + t log t - t for logarithms z of a rate and counts t of at least 0, summed over
    outputs.

    Half the Poisson deviance, as scikit-learn's. No engine has an operation of its own for it: it
    is put together from those that every backend has.

    Examples
    --------
    >>> losses.Poisson()(np.array([[0.0]]), np.array([[1.0]]))
    0.0
    """

    name: ClassVar[str] = "poisson"

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, distance)

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        dtype = str(outputs.dtype)
        weights = ops.full((len(outputs),), 1.0, dtype) if sample_weight is None else sample_weight
        total = ops.reduce("sum", weights)
        rates = ops.unary("exp", outputs)
        log_targets = ops.unary("log", ops.binary("maximum", targets, TINY))
        excess = ops.binary("sub", rates, targets)
        terms = ops.binary(
            "add", excess, ops.binary("mul", targets, ops.binary("sub", log_targets, outputs))
        )
        # Over nothing the mean is 0.
        shares = ops.reshape(
            ops.binary("div", weights, ops.binary("maximum", total, TINY)), (-1, 1)
        )
        loss = ops.reduce("sum", ops.binary("mul", terms, shares))
        return loss, total, lambda: ops.binary("mul", excess, shares)

    def values(self, ops: Backend, outputs: Array) -> Array:
        """Return the rates, exp(outputs)."""
        return ops.unary("exp", outputs)

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        targets = float_targets(self.name, y, output_shape, dtype)
        if targets.size and targets.min() < 0:
            raise DataError(f"{self.name}: expected targets of at least 0, got {targets.min():g}")
        return targets
