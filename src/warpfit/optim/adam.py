"""Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from warpfit.autograd import Tensor
from warpfit.backends import Array, Backend
from warpfit.backends.corrections import adam_corrected
from warpfit.checks import as_tuple
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.schedules import Schedule, as_schedule

__all__ = ["Adam", "AdamSpec", "AdamW"]


@dataclass(frozen=True)
class AdamSpec(OptimizerSpec):
    """w ← w - lr · m̂ / (√v̂ + eps); see `Backend.adam_update`."""

    kind: ClassVar[str] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    eps_before_correction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = as_tuple(self.betas, Real)
        self.require(betas is not None and len(betas) == 2, "betas as two numbers", self.betas)
        object.__setattr__(self, "betas", tuple(map(float, betas or ())))
        self.require(all(0 <= beta < 1 for beta in self.betas), "betas in [0, 1)", self.betas)
        self.require(self.eps > 0, "eps above 0", self.eps)
        self.require(self.weight_decay >= 0, "weight_decay of at least 0", self.weight_decay)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment")

    def numbers(self, step: int, lr: float) -> tuple[float, ...]:
        settings = (*self.betas, self.eps, self.weight_decay, self.decoupled, self.eps_before_correction)
        return adam_corrected(step, lr, *settings)

    def apply(
        self,
        ops: Backend,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        slots: Mapping[str, Sequence[Array]],
        *,
        step: int,
        lr: float,
        numbers: Array | None = None,
    ) -> None:
        ops.adam_update(
            parameters,
            gradients,
            slots["first_moment"],
            slots["second_moment"],
            step=step,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
            eps_before_correction=self.eps_before_correction,
            corrected=None if numbers is None else [numbers[idx] for idx in range(3)],
        )


class Adam(Optimizer):
    """Adam.

    Parameters
    ----------
    parameters : sequence of Parameter
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

    References
    ----------
    Kingma, Ba: Adam (2015); torch.optim.Adam, whose formulas these are.
    """

    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        parameters: Sequence[Tensor],
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

    Parameters as `Adam`'s, with a weight decay of 0.01.

    References
    ----------
    Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019); torch.optim.AdamW.
    """

    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, clip_norm)
