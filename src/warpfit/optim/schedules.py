"""Learning rates as functions of the step.

A schedule is a frozen value. ``rate(progress)`` is a pure function, so any engine can compute it
where it is needed, and ``rates(progress, count)`` gives those of many steps at once. Only
`ReduceOnPlateau` looks at results: between epochs, through `observe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any, ClassVar

import numpy as np

from warpfit.checks import brief, ranged
from warpfit.errors import ConfigError
from warpfit.optim.schedule import PlateauState, Progress, Rates, Schedule

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "InverseScaling",
    "Linear",
    "OneCycle",
    "PlateauState",
    "Progress",
    "ReduceOnPlateau",
    "Schedule",
    "Step",
    "as_schedule",
]


@dataclass(frozen=True)
class Constant(Schedule):
    """lr, always.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Constant(0.1))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.1, 0.1, 0.1]
    """

    name: ClassVar[str] = "constant"
    is_by_epoch: ClassVar[bool] = True

    def rate(self, progress: Progress) -> float:
        return self.lr

    def rates(self, progress: Progress, count: int) -> Rates:
        return np.full(count, self.lr)


@dataclass(frozen=True)
class Step(Schedule):
    """lr · factor^(epoch // every): a drop after every `every` epochs.

    Parameters
    ----------
    lr : float
        Of the first epochs.
    every : int
        Epochs from one drop to the next.
    factor : float
        In (0, 1].

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Step(0.1, every=2))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.1, 0.01, 0.01]
    """

    name: ClassVar[str] = "step"
    is_by_epoch: ClassVar[bool] = True
    every: int = ranged("of at least 1", 10)
    factor: float = ranged("in (0, 1]", 0.1)

    def rate(self, progress: Progress) -> float:
        return self.lr * self.factor ** (progress.epoch // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """lr · factor^epoch.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Exponential(0.1, factor=0.5))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.05, 0.025, 0.0125]
    """

    name: ClassVar[str] = "exponential"
    is_by_epoch: ClassVar[bool] = True
    factor: float = ranged("in (0, 1]", 0.95)

    def rate(self, progress: Progress) -> float:
        return self.lr * self.factor**progress.epoch


@dataclass(frozen=True)
class InverseScaling(Schedule):
    """lr / (1 + n)^power, where n = before + per_epoch · epoch; the first epoch of a run has lr
    itself.

    scikit-learn's ``'invscaling'`` counts rows in n: `before` are those of earlier runs.

    Parameters
    ----------
    lr : float
        Of the first epoch.
    power : float
    per_epoch : int
        What an epoch adds to n.
    before : int
        n of the first epoch.

    Raises
    ------
    ConfigError
        If a number is out of range.

    References
    ----------
    sklearn.neural_network.MLPClassifier, ``learning_rate='invscaling'``.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.InverseScaling(0.1))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.0707, 0.0577, 0.05]
    """

    name: ClassVar[str] = "inverse_scaling"
    is_by_epoch: ClassVar[bool] = True
    power: float = ranged("of at least 0 and finite", 0.5)
    per_epoch: int = ranged("of at least 0", 1)
    before: int = ranged("of at least 0", 0)

    def rate(self, progress: Progress) -> float:
        if progress.epoch == 0:
            return self.lr
        return self.lr / (1 + self.before + self.per_epoch * progress.epoch) ** self.power


def _steps(progress: Progress, count: int) -> Rates:
    return np.arange(progress.step, progress.step + count, dtype=np.float64)


def _cosine(start: float, end: float, share: Rates) -> Rates:
    """Return half a cosine from start to end, at shares of the way."""
    # Python's cosine: NumPy's may differ in the last bit from one machine to the next.
    cosines = np.fromiter(map(cos, (pi * share).tolist()), np.float64, len(share))
    return end + (start - end) * 0.5 * (1 + cosines)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from lr down to final_lr, after a linear rise over the first epochs.

    Parameters
    ----------
    lr : float
        After the rise.
    final_lr : float
        At the end of the run.
    warmup_epochs : float
        Epochs of the rise.

    Raises
    ------
    ConfigError
        If a number is out of range.

    References
    ----------
    Loshchilov, Hutter: SGDR (2017), without restarts.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Cosine(0.1, warmup_epochs=1))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.0854, 0.0371, 0.0017]
    """

    name: ClassVar[str] = "cosine"
    final_lr: float = ranged("of at least 0 and finite", 0.0)
    warmup_epochs: float = ranged("of at least 0", 0.0)

    def rates(self, progress: Progress, count: int) -> Rates:
        steps = _steps(progress, count)
        warmup_steps = min(self.warmup_epochs * progress.steps_per_epoch, progress.total_steps)
        rise, fall = np.split(steps, [np.count_nonzero(steps < warmup_steps)])
        rising = self.lr * np.minimum(1.0, (rise + 1) / max(1.0, warmup_steps))
        shares = (fall - warmup_steps) / max(1.0, progress.total_steps - warmup_steps)
        return np.concatenate([rising, _cosine(self.lr, self.final_lr, np.minimum(1.0, shares))])

    @property
    def largest(self) -> float:
        return max(self.lr, self.final_lr)


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from lr to final_lr, which would follow the last step.

    Parameters
    ----------
    lr : float
        Of the first step.
    final_lr : float
        At the end of the run.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Linear(0.16))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.13, 0.09, 0.05, 0.01]
    """

    name: ClassVar[str] = "linear"
    final_lr: float = ranged("of at least 0 and finite", 0.0)

    def rates(self, progress: Progress, count: int) -> Rates:
        shares = np.minimum(1.0, _steps(progress, count) / max(1, progress.total_steps))
        return self.lr + (self.final_lr - self.lr) * shares

    @property
    def largest(self) -> float:
        return max(self.lr, self.final_lr)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """A cosine rise from lr / start_divisor to lr, then a cosine fall to lr / (start_divisor ·
    final_divisor).

    Parameters
    ----------
    lr : float
        The largest.
    rise : float
        Share of the run's steps that rise, in (0, 1).
    start_divisor, final_divisor : float
        At least 1.

    Raises
    ------
    ConfigError
        If a number is out of range.

    References
    ----------
    Smith, Topin: Super-Convergence (2018); torch.optim.lr_scheduler.OneCycleLR with two phases.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.OneCycle(0.1))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.0899, 0.0812, 0.0283, 0.0]
    """

    name: ClassVar[str] = "one_cycle"
    rise: float = ranged("in (0, 1)", 0.3)
    start_divisor: float = ranged("of at least 1", 25.0)
    final_divisor: float = ranged("of at least 1", 1e4)

    def rates(self, progress: Progress, count: int) -> Rates:
        steps = _steps(progress, count)
        start, peak = self.lr / self.start_divisor, self.lr
        top = self.rise * progress.total_steps - 1
        rise, fall = np.split(steps, [np.count_nonzero(steps < top)])
        rising = _cosine(start, peak, rise / top) if len(rise) else rise
        shares = (fall - top) / ((1 - self.rise) * max(1, progress.total_steps))
        return np.concatenate(
            [rising, _cosine(peak, start / self.final_divisor, np.minimum(1.0, shares))]
        )


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """lr, times factor whenever the loss has not fallen for more than `patience` reported epochs.

    The loss is the validation loss where there is one, else the training loss. It has fallen if it
    is below (1 - threshold) times the best so far.

    Parameters
    ----------
    lr : float
        At first.
    factor : float
        In (0, 1).
    patience : int
        Reported epochs without a fall that are let pass.
    threshold : float
        Share by which the loss has to fall, in [0, 1).
    cooldown : int
        Reported epochs after a drop that do not count.
    min_lr : float
        The rate does not drop below it.

    Raises
    ------
    ConfigError
        If a number is out of range.

    References
    ----------
    torch.optim.lr_scheduler.ReduceLROnPlateau with its defaults.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.ReduceOnPlateau(0.1, patience=3))
    """

    name: ClassVar[str] = "reduce_on_plateau"
    is_by_epoch: ClassVar[bool] = True
    factor: float = ranged("in (0, 1)", 0.1)
    patience: int = ranged("of at least 0", 10)
    threshold: float = ranged("in [0, 1)", 1e-4)
    cooldown: int = ranged("of at least 0", 0)
    min_lr: float = ranged("of at least 0", 0.0)

    def rate(self, progress: Progress) -> float:
        return self.lr

    def rates(self, progress: Progress, count: int) -> Rates:
        return np.full(count, self.lr)

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
            raise ConfigError(
                f"expected a schedule among {', '.join(Schedule.by_name)}, got {name!r}"
            )
        try:
            return Schedule.by_name[name](**settings)
        except TypeError as error:
            raise ConfigError(
                f"expected the settings of the schedule {name}, got {settings!r}"
            ) from error
    try:
        rate = None if isinstance(lr, bool) else float(lr)
    except (TypeError, ValueError):
        rate = None
    if rate is None:
        raise ConfigError(f"expected a learning rate or a schedule, got {brief(lr)}")
    return Constant(rate)
