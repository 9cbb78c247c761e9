"""Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from warpfit.backends.update_rules import UpdateNumbers
from warpfit.checks import ranged
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.groups import Parameters
from warpfit.optim.schedules import Schedule, as_schedule


@dataclass(frozen=True)
class AdamSpec(OptimizerSpec):
    """w ← w - lr · m̂ / (√v̂ + eps); m̂ = m / (1 - beta1^step), v̂ alike."""

    kind: ClassVar[str] = "adam"
    rule: ClassVar[str] = "adam"
    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = ranged("above 0", 1e-8)
    weight_decay: float = ranged("of at least 0", 0.0)
    decoupled: bool = False
    eps_before_correction: bool = False

    @property
    def name(self) -> str:
        return "adamw" if self.decoupled else self.kind

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", self.checked_betas(self.betas))

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        beta1, beta2 = self.betas
        root = np.sqrt if isinstance(step, np.ndarray) else sqrt
        correction1, correction2 = 1 - beta1**step, root(1 - beta2**step)
        # m̂ / (√v̂ + eps) = (m / correction1) · correction2 / (√v + eps · correction2)
        return UpdateNumbers(
            rate=lr * correction2 / correction1,
            eps=self.eps * (1.0 if self.eps_before_correction else correction2),
            kept=1 - lr * self.weight_decay if self.decoupled else 1.0,
            decay=0.0 if self.decoupled else self.weight_decay,
            of_mean=beta1,
            of_square=beta2,
        )


class Adam(Optimizer):
    """Adam.

    Parameters
    ----------
    parameters : sequence of Parameter, or of groups
        Groups as `Optimizer` has them.
    lr : float or Schedule
    betas : pair of float
        Decay of the averages of gradients and of their squares.
    eps : float
    weight_decay : float
        Adds weight_decay · w to every gradient, biases included, as PyTorch does.
    clip_norm : float, optional
        Largest joint norm of all gradients.
    l2 : float
        scikit-learn's alpha, see `OptimizerSpec`.
    l2_by_weight : bool
        See `OptimizerSpec`.
    eps_before_correction : bool
        scikit-learn's form: eps is added before the bias correction.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Kingma, Ba: Adam (2015); torch.optim.Adam, whose formulas these are.

    Examples
    --------
    >>> opt = optim.Adam(model.parameters(), lr=0.01)
    """

    name: ClassVar[str] = "adam"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 1e-3}
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        *,
        l2: float = 0.0,
        l2_by_weight: bool = False,
        eps_before_correction: bool = False,
    ) -> None:
        spec = AdamSpec(
            as_schedule(lr),
            clip_norm,
            l2,
            betas,
            eps,
            weight_decay,
            self.decoupled,
            eps_before_correction,
            l2_by_weight=l2_by_weight,
        )
        super().__init__(parameters, spec)


class AdamW(Adam):
    """Adam whose weight decay shrinks the weights instead of joining the gradients.

    Parameters
    ----------
    parameters, lr, betas, eps, clip_norm
        As `Adam`'s.
    weight_decay : float
        Shrinks every parameter by lr · weight_decay before the update.

    Raises
    ------
    ConfigError
        If there are no parameters, or a number is out of range.

    References
    ----------
    Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019); torch.optim.AdamW.

    Examples
    --------
    >>> opt = optim.AdamW(model.parameters(), lr=optim.OneCycle(0.01), weight_decay=0.05)
    """

    name: ClassVar[str] = "adamw"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 1e-3, "weight_decay": 0.01}
    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, clip_norm)
