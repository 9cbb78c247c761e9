"""Adadelta."""

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
class AdadeltaSpec(OptimizerSpec):
    """w ← w - lr · d, d = √(u + eps) / √(s + eps) · g; s averages g², then u averages d²."""

    kind: ClassVar[str] = "adadelta"
    rule: ClassVar[str] = "adadelta"
    slots: ClassVar[tuple[str, ...]] = ("square_average", "step_average")
    rho: float = ranged("in [0, 1)", 0.9)
    eps: float = ranged("above 0", 1e-6)
    weight_decay: float = ranged("of at least 0", 0.0)

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        return UpdateNumbers(lr, eps=self.eps, decay=self.weight_decay, of_square=self.rho)


class Adadelta(Optimizer):
    """Adadelta: steps as long as those before were in the mean, over how large gradients are.

    Parameters
    ----------
    lr : float or Schedule
        What a step is multiplied by.
    rho : float
        Decay of the averages of squared gradients and squared steps.
    eps : float
        Added below both roots; the first steps are about its root.
    parameters, weight_decay, clip_norm
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Zeiler: ADADELTA, An Adaptive Learning Rate Method (2012); torch.optim.Adadelta, whose formulas
    these are.

    Examples
    --------
    >>> opt = optim.Adadelta(model.parameters(), rho=0.95)
    >>> opt.spec.slot_names
    ('square_average', 'step_average')
    """

    name: ClassVar[str] = "adadelta"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 1.0}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        spec = AdadeltaSpec(as_schedule(lr), clip_norm, 0.0, rho, eps, weight_decay)
        super().__init__(parameters, spec)
