"""In which precision a run goes on whose numbers are not finite in one that the engine chose.

float16 has little range. So where the precision was left open, a run that overflows goes back to
its last epoch, and on in bfloat16, then in float32: each epoch is of one precision, and which one
follows from the numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from warpfit.engines.base import Plan, Stopping, TrainingData, TrainState
from warpfit.engines.graph import GraphEngine
from warpfit.engines.layerwise import Layerwise
from warpfit.engines.one_launch import OneLaunchEngine
from warpfit.engines.scaling import AUTO
from warpfit.errors import ConfigError, DeviceError
from warpfit.training.place import where_they_run
from warpfit.training.plan import plan as make_plan

BY_RANGE = ("float16", "bfloat16", "float32")


class Planned(NamedTuple):
    """A plan, and data and validation data where it wants them."""

    plan: Plan
    data: TrainingData
    validation: TrainingData | None


@dataclass
class Planner:
    """Plans a run, and how it goes on in another precision."""

    state: TrainState
    # data and validation: where they were found.
    data: TrainingData
    validation: TrainingData | None
    stopping: Stopping | None  # as `plan.plan` takes it

    def plan(self, draft: Plan) -> Planned:
        """Return the plan of a draft, or raise as `plan.plan` does."""
        found = make_plan(draft, self.state, self.data, self.validation, self.stopping)
        return Planned(found, *where_they_run(found, self.data, self.validation))

    def after(self, plan: Plan) -> Planned | None:
        """Return how a run goes on that was not finite as planned; None if all has been tried."""
        for draft in later_drafts(plan):
            try:
                return self.plan(draft)
            except (ConfigError, DeviceError):
                continue
        return None


def later_drafts(plan: Plan) -> Iterator[Plan]:
    """Yield drafts with more range than a plan, as far as engine and precision were left open; from
    `one_launch` in float32 also where that was asked for.
    """
    engine, precision = plan.asked or (plan.engine, plan.precision)
    again = partial(replace, plan, loss_scale=AUTO, prepared=None, bytes=0, reason="")
    if precision == AUTO and plan.precision in BY_RANGE:
        for wider in BY_RANGE[BY_RANGE.index(plan.precision) + 1 :]:
            yield again(engine=engine, precision=wider)
    # Whose float32 is made of float16, and has room for numbers that grow, but not for all.
    is_made = (plan.engine, plan.precision) == (OneLaunchEngine.name, "float32")
    if is_made and engine in (AUTO, OneLaunchEngine.name):
        yield again(engine=GraphEngine.name)
        yield again(engine=Layerwise.name)
