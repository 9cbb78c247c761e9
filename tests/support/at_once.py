"""An engine that trains several epochs before it tells of them, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpfit.engines.base import EpochReport, Plan, TrainingData, TrainState
from warpfit.engines.layerwise import Layerwise

__all__ = ["AtOnce"]


class AtOnce(Layerwise):
    """layerwise, which trains as many epochs at once as it may."""

    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: Any = None,
        is_border: Any = None,
        validation: Any = None,
        stopping: Any = None,
    ) -> Iterator[EpochReport]:
        reports: list[EpochReport] = []
        for report in super().run(plan, state, data, epochs, on_step):
            reports.append(report)
            if is_border(report.epoch) or report.epoch == plan.epochs:
                yield from reports
                reports = []
