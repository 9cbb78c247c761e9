"""The rungs that are engines: what `warpfit.fit` does with the task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpfit import optim
from warpfit.apps.ladder.task import Task
from warpfit.apps.ladder.trainer import PROBE_STEPS, Epoch
from warpfit.training import fit


@dataclass(frozen=True)
class ByEngine:
    """Trains a task by an engine; all else is as `fit` takes it."""

    task: Task
    device: str
    engine: str
    precision: str = "float32"

    def prepare(self) -> tuple[float, int]:
        """Compile what is needed, and return the seconds of some steps, and how many they were.

        On a GPU these are two whole epochs, of which the second is timed: kernels depend on the
        data's sizes, and graphs are captured in the first.
        """
        task = self.task
        if self.device != "cpu":
            return list(self.run(len(task.x), 2))[-1].seconds, task.steps
        steps = min(PROBE_STEPS, task.steps)
        (probe,) = self.run(min(len(task.x), steps * task.batch), 1)
        return probe.seconds, steps

    def device_seconds(self) -> None:
        """Return None: an engine does not tell how long the device works on a step."""

    def run(self, rows: int, epochs: int) -> Iterator[Epoch]:
        """Train from the initial values on the first rows, and yield each epoch.

        Raises
        ------
        ConfigError
            If the engine cannot run the network; the message says what is in the way.
        DivergedError
            If the loss or a parameter is NaN or infinite.
        """
        task, model = self.task, self.task.model()
        history = fit(
            model,
            task.x[:rows],
            task.y[:rows],
            optimizer=optim.SGD(model.parameters(), task.lr),
            epochs=epochs,
            batch_size=task.batch,
            device=self.device,
            engine=self.engine,
            precision=self.precision,
            seed=task.seed,
            verbose=False,
        )
        for report in history:
            yield Epoch(report.seconds, report.loss, report.accuracy, report.step_losses)
