"""Schedule: a learning rate as a function of the step, and where a run stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.checks import check_fields, register
from warpfit.errors import ConfigError

Rates = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `step` of `total_steps`, from 0, with `steps_per_epoch` an epoch."""

    step: int
    total_steps: int
    steps_per_epoch: int

    @property
    def epoch(self) -> int:
        """The epoch that the step belongs to, counted from 0."""
        return self.step // max(1, self.steps_per_epoch)


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules; `lr` is the base or the largest rate, see each.

    A schedule has `rate`, or `rates` if many steps at once are quicker.

    Examples
    --------
    >>> opt = optim.SGD(model.parameters(), lr=optim.Step(0.1, every=2))
    >>> np.round(wf.fit(model, x, y, optimizer=opt, epochs=4)["lr"], 4).tolist()
    [0.1, 0.1, 0.01, 0.01]
    """

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Schedule]]] = {}
    # Whether all steps of an epoch have one rate.
    is_by_epoch: ClassVar[bool] = False
    lr: float

    def __init_subclass__(cls) -> None:
        if cls.rate is Schedule.rate and cls.rates is Schedule.rates:
            raise ConfigError(f"expected {cls.__name__} to define rate or rates, got neither")
        register(cls, "name", Schedule.by_name)

    def __post_init__(self) -> None:
        check_fields(type(self).__name__, self)
        if not 0 <= self.lr < inf:
            raise ConfigError(
                f"{type(self).__name__}: expected a learning rate that is finite and at least 0, "
                f"got {self!r}"
            )

    def rate(self, progress: Progress) -> float:
        """Return the learning rate of a step."""
        return float(self.rates(progress, 1)[0])

    def rates(self, progress: Progress, count: int) -> Rates:
        """Return the learning rates (count,) float64 from a step on, as `rate` gives them."""
        if not self.is_by_epoch:
            places = range(progress.step, progress.step + count)
            return np.array(
                [self.rate(replace(progress, step=step)) for step in places], np.float64
            )
        each = max(1, progress.steps_per_epoch)
        epochs = np.arange(progress.step, progress.step + count) // each
        firsts = range(progress.epoch, progress.epoch + count // each + 2)
        by_epoch = [self.rate(replace(progress, step=epoch * each)) for epoch in firsts]
        return np.array(by_epoch, np.float64)[epochs - progress.epoch]

    @property
    def largest(self) -> float:
        """The bound of all rates, but for rounding; schedules that rise above `lr` say so here."""
        return self.lr

    def observe(self, state: PlateauState, loss: float) -> PlateauState:
        """Return what follows from an epoch's loss; only `ReduceOnPlateau` makes use of it."""
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, from which `as_schedule` makes an equal schedule."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class PlateauState:
    """The state of `ReduceOnPlateau`; every engine multiplies the learning rate by `scale`."""

    scale: float = 1.0
    best: float = inf
    bad_epochs: int = 0
    cooldown: int = 0
