"""Losses that are a sum over elements: of outputs' distance, squared, absolute, Huber's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from warpfit.backends import Array, Backend
from warpfit.backends.base import LossTerms, Number
from warpfit.errors import ConfigError
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


@dataclass(frozen=True)
class MeanSquaredError(ElementLoss):
    """Mean of (prediction - target)² over rows and outputs.

    Parameters
    ----------
    half : bool
        scikit-learn's form: half of it, with gradient (prediction - target) / M.

    Examples
    --------
    >>> losses.MeanSquaredError()(np.array([[1.0], [4.0]]), np.array([[1.0], [2.0]]))
    2.0
    """

    name: ClassVar[str] = "mse"
    half: bool = False

    def terms(self, outputs: int) -> LossTerms:
        # scikit-learn's form sums its derivatives over the outputs.
        factors = (0.5 / outputs, 1.0) if self.half else (1.0 / outputs, 2.0 / outputs)
        return LossTerms("mse", 0.0, *factors)

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, distance if self.half else 2 * distance)


@dataclass(frozen=True)
class AbsoluteError(ElementLoss):
    """Mean of |prediction - target| over rows and outputs.

    Examples
    --------
    >>> losses.AbsoluteError()(np.array([[1.0], [4.0]]), np.array([[1.0], [2.0]]))
    1.0
    """

    name: ClassVar[str] = "absolute_error"

    def terms(self, outputs: int) -> LossTerms:
        return LossTerms("absolute_error", 0.0, 1.0 / outputs, 1.0 / outputs)


@dataclass(frozen=True)
class Huber(ElementLoss):
    """Mean of d²/2 where |d| ≤ delta, else delta (|d| - delta/2), with d = prediction - target.

    References
    ----------
    Huber: Robust Estimation of a Location Parameter (1964); torch.nn.HuberLoss.

    Examples
    --------
    >>> losses.Huber(delta=1.0)(np.array([[1.0], [4.0]]), np.array([[1.0], [2.0]]))
    0.75
    """

    name: ClassVar[str] = "huber"
    delta: float = 1.0

    def terms(self, outputs: int) -> LossTerms:
        return LossTerms("huber", self.delta, 1.0 / outputs, 1.0 / outputs)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delta < float("inf"):
            raise ConfigError(f"expected a Huber delta above 0, got {self.delta!r}")

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, min(self.delta, distance))


DISTANCES = tuple(kind.name for kind in (MeanSquaredError, AbsoluteError, Huber))
