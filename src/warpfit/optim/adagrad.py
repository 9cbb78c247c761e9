"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from warpfit.backends.update_rules import UpdateNumbers
from warpfit.checks import ranged
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.groups import Parameters
from warpfit.optim.schedules import Schedule, as_schedule


@dataclass(frozen=True)
class AdagradSpec(OptimizerSpec):
    """w ← w - lr / (1 + (step - 1) · lr_decay) · g / (√s + eps), s ← s + g²."""

    kind: ClassVar[str] = "adagrad"
    rule: ClassVar[str] = "adagrad"
    slots: ClassVar[tuple[str, ...]] = ("square_sum",)
    lr_decay: float = ranged("of at least 0", 0.0)
    weight_decay: float = ranged("of at least 0", 0.0)
    eps: float = ranged("above 0", 1e-10)

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        rate = lr / (1 + (step - 1) * self.lr_decay)
        return UpdateNumbers(rate, eps=self.eps, decay=self.weight_decay)


class Adagrad(Optimizer):
    """Adagrad: steps that shrink with the root of the sum of all squared gradients so far.

    Parameters
    ----------
    lr_decay : float
        Step t, counted from 0, divides the learning rate by 1 + t · lr_decay.
    eps : float
        Added to the root.
    parameters, lr, ...
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization (2011); torch.optim.Adagrad, whose formulas these are, with sums that begin at 0.

    Examples
    --------
    >>> opt = optim.Adagrad(model.parameters(), lr=0.05, lr_decay=1e-3)
    >>> opt.spec.slot_names
    ('square_sum',)
    """

    name: ClassVar[str] = "adagrad"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 0.01}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        clip_norm: float | None = None,
    ) -> None:
        spec = AdagradSpec(as_schedule(lr), clip_norm, 0.0, lr_decay, weight_decay, eps)
        super().__init__(parameters, spec)
