"""NAdam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.backends.update_rules import UpdateNumbers
from warpfit.checks import ranged
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.groups import Parameters
from warpfit.optim.schedules import Schedule, as_schedule


def _momentum(step: Any, beta: float, decay: float) -> Any:
    return beta * (1 - 0.5 * 0.96 ** (step * decay))


@lru_cache(maxsize=8)
def _products(beta: float, decay: float, steps: int) -> npt.NDArray[np.float64]:
    """Return the product of the momenta up to each step."""
    return np.cumprod(_momentum(np.arange(1, steps + 1), beta, decay))


@dataclass(frozen=True)
class NAdamSpec(OptimizerSpec):
    """Adam whose step looks ahead along m, by Nesterov's momentum; see the rule's formula.

    The momentum of step t is μ_t = beta1 · (1 - 0.96^(t · momentum_decay) / 2). A step has
    (1 - μ_t) / (1 - Π μ) of the gradient and μ_{t+1} / (1 - μ_{t+1} Π μ) of m, Π μ the product up
    to t.
    """

    kind: ClassVar[str] = "nadam"
    rule: ClassVar[str] = "nadam"
    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = ranged("above 0", 1e-8)
    weight_decay: float = ranged("of at least 0", 0.0)
    momentum_decay: float = ranged("of at least 0", 4e-3)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", self.checked_betas(self.betas))

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        beta1, beta2 = self.betas
        root = np.sqrt if isinstance(step, np.ndarray) else sqrt
        correction2 = root(1 - beta2**step)
        now, next_one = (_momentum(t, beta1, self.momentum_decay) for t in (step, step + 1))
        # Of twice as many steps each time that more are asked for, to find few of them anew.
        most = 1 << int(np.max(step)).bit_length()
        product = _products(beta1, self.momentum_decay, most)[step - 1]
        if not isinstance(step, np.ndarray):
            product = float(product)
        of_gradient = (1 - now) / (1 - product)
        return UpdateNumbers(
            rate=lr * of_gradient * correction2,
            eps=self.eps * correction2,
            ahead=next_one / (1 - product * next_one) / of_gradient,
            decay=self.weight_decay,
            of_mean=beta1,
            of_square=beta2,
        )


class NAdam(Optimizer):
    """NAdam: Adam whose steps look ahead along the average, by Nesterov's momentum.

    Parameters
    ----------
    momentum_decay : float
        How fast the momentum rises, from half of the first beta to all of it: with 0.004 by half of
        the way in 4250 steps.
    parameters, lr, ...
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Dozat: Incorporating Nesterov Momentum into Adam (2016); torch.optim.NAdam, whose formulas these
    are, without its decoupled decay.

    Examples
    --------
    >>> opt = optim.NAdam(model.parameters(), lr=1e-3)
    >>> opt.spec.slot_names
    ('first_moment', 'second_moment')
    """

    name: ClassVar[str] = "nadam"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 2e-3}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        clip_norm: float | None = None,
    ) -> None:
        spec = NAdamSpec(as_schedule(lr), clip_norm, 0.0, betas, eps, weight_decay, momentum_decay)
        super().__init__(parameters, spec)
