"""The rungs that are engines: what `warpfit.fit` does with the task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpfit import optim
from warpfit.ladder.task import Task
from warpfit.ladder.trainer import Epoch
from warpfit.training import fit

__all__ = ["ByEngine"]


@dataclass(frozen=True)
class ByEngine:
    """Trains a task by an engine.

    Parameters
    ----------
    task : Task
    device, engine, precision : str
        As `fit` takes them.
    """

    task: Task
    device: str
    engine: str
    precision: str = "float32"

    def warm_up(self) -> None:
        """Compile what is needed, by a whole epoch on a GPU: an engine's kernels depend on the data's sizes."""
        if self.device != "cpu":
            list(self.run(len(self.task.x), 1))

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
