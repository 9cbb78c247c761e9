"""Learning rates as functions of the step.

A schedule is a frozen value. ``rate(progress)`` is a pure function, so any engine can compute it where it is
needed. Only `ReduceOnPlateau` looks at results: between epochs, through `observe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import cos, inf, pi
from typing import Any, ClassVar

from warpfit.errors import ConfigError

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "OneCycle",
    "PlateauState",
    "Progress",
    "ReduceOnPlateau",
    "Schedule",
    "Step",
    "as_schedule",
]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `step` of `total_steps`, counted from 0, with `steps_per_epoch` steps an epoch."""

    step: int
    total_steps: int
    steps_per_epoch: int

    @property
    def epoch(self) -> int:
        """The epoch that the step belongs to, counted from 0."""
        return self.step // max(1, self.steps_per_epoch)


def _require(condition: bool, schedule: Schedule, what: str) -> None:
    if not condition:
        raise ConfigError(f"{type(schedule).__name__}: expected {what}, got {schedule!r}")


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules; `lr` is the base or the largest rate, see each."""

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Schedule]]] = {}
    lr: float

    def __init_subclass__(cls) -> None:
        Schedule.by_name[cls.name] = cls

    def __post_init__(self) -> None:
        _require(0 <= self.lr < inf, self, "a learning rate that is finite and at least 0")

    def rate(self, progress: Progress) -> float:
        """Return the learning rate of a step."""
        raise NotImplementedError

    def observe(self, state: PlateauState, loss: float) -> PlateauState:
        """Return what follows from an epoch's loss; only `ReduceOnPlateau` makes use of it."""
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, from which `as_schedule` makes an equal schedule."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class PlateauState:
    """What `ReduceOnPlateau` remembers; every engine multiplies the rate by `scale`."""

    scale: float = 1.0
    best: float = inf
    bad_epochs: int = 0
    cooldown: int = 0


@dataclass(frozen=True)
class Constant(Schedule):
    """lr, always."""

    name: ClassVar[str] = "constant"

    def rate(self, progress: Progress) -> float:
        return self.lr


@dataclass(frozen=True)
class Step(Schedule):
    """lr · factor^(epoch // every): a drop after every `every` epochs."""

    name: ClassVar[str] = "step"
    every: int = 10
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.every >= 1 and 0 < self.factor <= 1, self, "every of at least 1 and a factor in (0, 1]")

    def rate(self, progress: Progress) -> float:
        return self.lr * self.factor ** (progress.epoch // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """lr · factor^epoch."""

    name: ClassVar[str] = "exponential"
    factor: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 < self.factor <= 1, self, "a factor in (0, 1]")

    def rate(self, progress: Progress) -> float:
        return self.lr * self.factor**progress.epoch


def _warm_up(lr: float, step: int, warmup_steps: float) -> float:
    return lr * min(1.0, (step + 1) / warmup_steps) if warmup_steps >= 1 else lr


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from lr down to final_lr, after a linear rise over the first epochs.

    References
    ----------
    Loshchilov, Hutter: SGDR (2017), without restarts.
    """

    name: ClassVar[str] = "cosine"
    final_lr: float = 0.0
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            0 <= self.final_lr < inf and self.warmup_epochs >= 0,
            self,
            "final_lr and warmup_epochs of at least 0",
        )

    def rate(self, progress: Progress) -> float:
        warmup_steps = min(self.warmup_epochs * progress.steps_per_epoch, progress.total_steps)
        if progress.step < warmup_steps:
            return _warm_up(self.lr, progress.step, warmup_steps)
        share = (progress.step - warmup_steps) / max(1.0, progress.total_steps - warmup_steps)
        return self.final_lr + (self.lr - self.final_lr) * 0.5 * (1 + cos(pi * min(1.0, share)))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """A cosine rise from lr / start_divisor to lr, then a cosine fall to lr / (start_divisor · final_divisor).

    References
    ----------
    Smith, Topin: Super-Convergence (2018); torch.optim.lr_scheduler.OneCycleLR with two phases.
    """

    name: ClassVar[str] = "one_cycle"
    rise: float = 0.3
    start_divisor: float = 25.0
    final_divisor: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            0 < self.rise < 1 and self.start_divisor >= 1 and self.final_divisor >= 1,
            self,
            "a rise in (0, 1) and divisors of at least 1",
        )

    def rate(self, progress: Progress) -> float:
        start, peak = self.lr / self.start_divisor, self.lr
        top = self.rise * progress.total_steps - 1
        if progress.step < top:
            return _between(start, peak, progress.step / top)
        fall = (1 - self.rise) * max(1, progress.total_steps)
        return _between(peak, start / self.final_divisor, min(1.0, (progress.step - top) / fall))


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + cos(pi * share))


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """lr, times factor whenever the loss has not fallen for more than `patience` epochs.

    The loss is the validation loss where there is one, else the training loss. It has fallen if it is below
    (1 - threshold) times the best so far.

    References
    ----------
    torch.optim.lr_scheduler.ReduceLROnPlateau with its defaults.
    """

    name: ClassVar[str] = "reduce_on_plateau"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            0 < self.factor < 1 and self.patience >= 0 and self.cooldown >= 0 and self.min_lr >= 0,
            self,
            "a factor in (0, 1), and patience, cooldown and min_lr of at least 0",
        )

    def rate(self, progress: Progress) -> float:
        return self.lr

    def observe(self, state: PlateauState, loss: float) -> PlateauState:
        if loss < state.best * (1 - self.threshold):
            state = replace(state, best=loss, bad_epochs=0)
        else:
            state = replace(state, bad_epochs=state.bad_epochs + 1)
        if state.cooldown > 0:
            state = replace(state, cooldown=state.cooldown - 1, bad_epochs=0)
        if state.bad_epochs <= self.patience:
            return state
        lowest = self.min_lr / self.lr if self.lr else 0.0
        scale = min(state.scale, max(state.scale * self.factor, lowest))
        return replace(state, scale=scale, bad_epochs=0, cooldown=self.cooldown)


def as_schedule(lr: float | Schedule | Mapping[str, Any]) -> Schedule:
    """Return a schedule from a number, from `Schedule.to_dict`'s description, or itself.

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    if isinstance(lr, Schedule):
        return lr
    if isinstance(lr, Mapping):
        settings = dict(lr)
        name = settings.pop("name", None)
        if not isinstance(name, str) or name not in Schedule.by_name:
            raise ConfigError(f"expected a schedule among {', '.join(Schedule.by_name)}, got {name!r}")
        try:
            return Schedule.by_name[name](**settings)
        except TypeError as error:
            raise ConfigError(f"expected the settings of the schedule {name}, got {settings!r}") from error
    try:
        rate = float(lr)
    except (TypeError, ValueError):
        raise ConfigError(f"expected a learning rate or a schedule, got {lr!r}") from None
    return Constant(rate)
