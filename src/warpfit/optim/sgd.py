"""Stochastic gradient descent, with momentum."""

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
class SGDSpec(OptimizerSpec):
    """w ← w - lr · v, v ← momentum · v + g; see the rule's formula."""

    kind: ClassVar[str] = "sgd"
    rule: ClassVar[str] = "sgd"
    momentum: float = ranged("in [0, 1]", 0.0)
    nesterov: bool = False
    weight_decay: float = ranged("of at least 0", 0.0)
    lr_in_velocity: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.momentum > 0 or not self.nesterov, "momentum above 0 for nesterov", self.momentum
        )

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        return UpdateNumbers(
            lr,
            decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            rate_in_velocity=self.lr_in_velocity,
        )


class SGD(Optimizer):
    """Stochastic gradient descent.

    Parameters
    ----------
    parameters : sequence of Parameter, or of groups
        Groups as `Optimizer` has them.
    lr : float or Schedule
    momentum : float
        In [0, 1]: share of the last velocity that is kept.
    nesterov : bool
        Whether to look ahead along the velocity.
    weight_decay : float
        Adds weight_decay · w to every gradient, biases included, as PyTorch does.
    clip_norm : float, optional
        Largest joint norm of all gradients.
    l2 : float
        scikit-learn's alpha, see `OptimizerSpec`.
    l2_by_weight : bool
        See `OptimizerSpec`.
    lr_in_velocity : bool
        scikit-learn's form: the velocity holds the learning rates of its steps.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Sutskever, Martens, Dahl, Hinton: On the importance of initialization and momentum in deep
    learning (2013); torch.optim.SGD, whose formulas these are.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Cosine(0.1), momentum=0.9)
    """

    name: ClassVar[str] = "sgd"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 0.05, "momentum": 0.9}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 0.1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        *,
        l2: float = 0.0,
        l2_by_weight: bool = False,
        lr_in_velocity: bool = False,
    ) -> None:
        spec = SGDSpec(
            as_schedule(lr),
            clip_norm,
            l2,
            momentum,
            nesterov,
            weight_decay,
            lr_in_velocity,
            l2_by_weight=l2_by_weight,
        )
        super().__init__(parameters, spec)
