"""Lion."""

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
class LionSpec(OptimizerSpec):
    """w ← (1 - lr · weight_decay) · w - lr · sign(beta1 · m + (1 - beta1) · g).

    Then m ← beta2 · m + (1 - beta2) · g.
    """

    kind: ClassVar[str] = "lion"
    rule: ClassVar[str] = "lion"
    slots: ClassVar[tuple[str, ...]] = ("average",)
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = ranged("of at least 0", 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", self.checked_betas(self.betas))

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        beta1, beta2 = self.betas
        return UpdateNumbers(lr, kept=1 - lr * self.weight_decay, momentum=beta1, of_mean=beta2)


class Lion(Optimizer):
    """Lion: steps of one length along the sign of an average of gradients; decoupled weight decay.

    Parameters
    ----------
    lr : float or Schedule
        Every weight moves by this much in a step: a third to a tenth of Adam's.
    betas : pair of float
        Share of the average in a step's direction, and of itself that it keeps.
    weight_decay : float
        A step multiplies all parameters by 1 - lr · weight_decay.
    parameters, clip_norm
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Chen, Liang, Huang, Real, Wang, Liu, Pham, Dong, Luong, Hsieh, Lu, Le: Symbolic Discovery of
    Optimization Algorithms (2023).

    Examples
    --------
    >>> opt = optim.Lion(model.parameters(), lr=3e-4, weight_decay=0.1)
    """

    name: ClassVar[str] = "lion"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 3e-4}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, LionSpec(as_schedule(lr), clip_norm, 0.0, betas, weight_decay))
