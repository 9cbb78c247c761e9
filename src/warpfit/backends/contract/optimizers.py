"""The contract of optimizers: lists of arrays, updated in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from warpfit.backends.contract.terms import Array, Number
from warpfit.backends.matrix_updates import MatrixNumbers
from warpfit.backends.update_rules import UpdateNumbers


class OptimizerContract(ABC):
    """Updates of all parameters at once, and what is done to their gradients before."""

    # -- optimizers: lists of arrays, updated in place

    @abstractmethod
    def update_parameters(
        self,
        rule: str,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        numbers: UpdateNumbers,
    ) -> None:
        """Change parameters and their slots by a rule of ``UPDATE_RULES``, where the formulas are.

        Of `numbers`, rate, eps and kept may lie on the device, () float64.
        """

    @abstractmethod
    def update_matrices(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        averages: Sequence[Array],
        factors: Sequence[float],
        numbers: MatrixNumbers,
    ) -> None:
        """Change parameters of at least two axes, and the averages of their gradients, in place.

        v ← momentum · v + (1 - momentum) · g, and w ← kept · w - rate · factor · d, each factor
        being a parameter's. d is v, or with Nesterov's momentum (1 - momentum) · g + momentum · v,
        both as ``orthogonalised`` of `warpfit.backends.matrix_updates` returns them for a matrix of
        w.shape[-1] columns. If numbers normalize, w is multiplied by √columns / ‖w‖ before.
        """

    @abstractmethod
    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        """Scale all gradients by min(1, max_norm / (norm + 1e-6)) in place; return the norm ()."""

    @abstractmethod
    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        """Add c · w to each gradient in place; return c / 2 · Σ w² (), c coefficient / divisor."""
