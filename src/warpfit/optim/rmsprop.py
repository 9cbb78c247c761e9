"""RMSprop."""

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
class RMSpropSpec(OptimizerSpec):
    """w ← w - lr · g / (√s + eps), s ← alpha · s + (1 - alpha) g²; see the rule's formula."""

    kind: ClassVar[str] = "rmsprop"
    rule: ClassVar[str] = "rmsprop"
    alpha: float = ranged("in [0, 1)", 0.99)
    eps: float = ranged("above 0", 1e-8)
    weight_decay: float = ranged("of at least 0", 0.0)
    momentum: float = ranged("in [0, 1)", 0.0)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("square_average", "velocity") if self.momentum else ("square_average",)

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        return UpdateNumbers(
            lr, eps=self.eps, decay=self.weight_decay, momentum=self.momentum, of_square=self.alpha
        )


class RMSprop(Optimizer):
    """RMSprop.

    Parameters
    ----------
    alpha : float
        Decay of the average of squared gradients.
    momentum : float
        In [0, 1): share of the last velocity that is kept.
    parameters, lr, ...
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Tieleman, Hinton: Lecture 6.5, COURSERA (2012); torch.optim.RMSprop, whose formulas these are.

    Examples
    --------
    >>> opt = optim.RMSprop(model.parameters(), lr=0.001, momentum=0.9)
    """

    name: ClassVar[str] = "rmsprop"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 1e-3, "momentum": 0.0}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        spec = RMSpropSpec(as_schedule(lr), clip_norm, 0.0, alpha, eps, weight_decay, momentum)
        super().__init__(parameters, spec)
