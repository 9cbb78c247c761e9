"""The thread that trains a connection's networks, one at a time: the newest request wins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, nn
from warpfit.apps.playground.messages import Settings, Train
from warpfit.apps.playground.points import make_points
from warpfit.data import Dataset
from warpfit.engines.base import EpochReport, Plan
from warpfit.errors import WarpfitError
from warpfit.losses import Loss
from warpfit.optim import Optimizer
from warpfit.training import Callback, fit
from warpfit.training.evaluate import predict_network
from warpfit.training.recipes import make_model, make_optimizer
from warpfit.training.run import Run
from warpfit.training.settings import TrainSettings

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
JOIN_SECONDS = 10.0


@dataclass(frozen=True)
class Network:
    """A network's numbers after an epoch, on the host, where any thread may use them."""

    spec: Any
    arrays: dict[str, npt.NDArray[Any]]
    loss: Loss
    epoch: int

    def probabilities(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the probabilities (N, C) of the classes of rows x (N, features)."""
        ops = backends.create("cpu")
        dtype = str(next(iter(self.arrays.values())).dtype)
        return predict_network(
            ops, self.spec, self.arrays, x, dtype=dtype, form=self.loss.probabilities
        )


@dataclass(frozen=True)
class Started:
    """A training has its plan."""

    number: int
    request: Train
    plan: Plan
    network: Network
    data: Dataset
    num_parameters: int
    goes_on: bool


@dataclass(frozen=True)
class Reported:
    """An epoch is over."""

    number: int
    request: Train
    report: EpochReport
    network: Network


@dataclass(frozen=True)
class Ended:
    """A training is over: finished, stopped or failed, and if so why."""

    number: int
    request: Train
    how: str
    reason: str = ""


Event = Started | Reported | Ended


class Turns:
    """A lock that goes round: who asked for it first has it first.

    Trainings on one GPU share its stream and memory, which a single thread may use at a time: they
    take turns, an epoch each.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def __enter__(self) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()

    def pass_on(self) -> None:
        """Let others have their turns, and wait for the next."""
        self.__exit__()
        self.__enter__()


class _StoppedError(Exception):
    """Someone wants something else than this training."""


@dataclass
class _Job:
    """A training that is asked for."""

    number: int
    request: Train
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Trained:
    """A network that is there, and what it came from."""

    origin: Any
    model: nn.Sequential
    optimizer: Optimizer
    epochs: int = 0


class Trainer:
    """A thread that trains what it was asked for last, of flat digits or of points.

    The turns, those of all trainers of the process, are taken on a GPU. `tell` hears of every
    `Event` in this thread, and must not wait.
    """

    def __init__(
        self, digits: Dataset, device: str, turns: Turns, tell: Callable[[Event], None]
    ) -> None:
        self.digits, self.device, self.turns, self.tell = digits, device, turns, tell
        self._changed = threading.Condition()
        self._wanted: _Job | None = None
        self._running: _Job | None = None
        self._closed = False
        self._numbers = count(1)
        self._trained: dict[str, _Trained] = {}
        self._thread = threading.Thread(
            target=self._work, name="warpfit-playground-trainer", daemon=True
        )
        self._thread.start()

    def train(self, request: Train) -> None:
        """Train as asked for, in place of what is under way."""
        with self._changed:
            self._cancel()
            self._wanted = _Job(next(self._numbers), request)
            self._changed.notify()

    def stop(self) -> None:
        """End what is under way, after its step or, on some engines, its epoch."""
        with self._changed:
            self._cancel()

    def close(self) -> bool:
        """End what is under way, and the thread; return whether it has ended."""
        with self._changed:
            self._cancel()
            self._closed = True
            self._changed.notify()
        self._thread.join(JOIN_SECONDS)
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        if self._wanted is not None:
            self.tell(Ended(self._wanted.number, self._wanted.request, STOPPED))
        self._wanted = None
        if self._running is not None:
            self._running.cancelled.set()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            self.tell(Ended(job.number, job.request, *self._outcome(job)))

    def _next_job(self) -> _Job | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            self._running, self._wanted = self._wanted, None
            return None if self._closed else self._running

    def _outcome(self, job: _Job) -> tuple[str, str]:
        """Train, and return how it ended and why."""
        try:
            if self.device == "cpu":
                self._train(job)
            else:
                with self.turns:
                    self._train(job)
        except _StoppedError:
            return STOPPED, ""
        except (WarpfitError, MemoryError) as error:
            self._trained.pop(job.request.task, None)
            return FAILED, str(error) or "not enough memory"
        except Exception as error:  # the page must be informed, and the server go on
            self._trained.pop(job.request.task, None)
            return FAILED, f"unexpected {type(error).__name__}: {error} (please report this)"
        return (STOPPED if job.cancelled.is_set() else FINISHED), ""

    def _train(self, job: _Job) -> None:
        request, settings = job.request, job.request.settings
        points = request.points
        data = self.digits if points is None else make_points(points.name, points.noise)
        trained, goes_on = self._network_for(request, data)
        missing = settings.epochs - trained.epochs
        fit(
            trained.model,
            data.x_train,
            data.y_train,
            optimizer=trained.optimizer,
            epochs=min(request.epochs, missing if missing > 0 else settings.epochs),
            batch_size=settings.batch_size,
            validation_data=(data.x_test, data.y_test),
            device=self.device,
            seed=trained.epochs,  # a training that goes on has new orders
            callbacks=[_Watch(self, job, trained, data, goes_on)],
            verbose=False,
        )

    def _network_for(self, request: Train, data: Dataset) -> tuple[_Trained, bool]:
        """Return the network to train, and whether it was there before."""
        origin = replace(request.settings, epochs=0), request.points
        there = self._trained.get(request.task)
        if there is not None and there.origin == origin and not request.afresh:
            return there, True
        settings = _as_train_settings(request.settings, len(data.x_train))
        model = make_model(settings, data.x_train.shape[1:], data.num_classes)
        new = _Trained(origin, model, make_optimizer(settings, model))
        self._trained[request.task] = new
        return new, False


def _as_train_settings(settings: Settings, num_rows: int) -> TrainSettings:
    return TrainSettings(
        hidden=(settings.width,) * settings.depth,
        activation=settings.activation,
        optimizer=settings.optimizer,
        lr=settings.lr,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        schedule="constant",
    ).resolved(num_rows=num_rows, has_classes=True)


class _Watch(Callback):
    """Tells of a training, and ends it when it is no longer wanted."""

    def __init__(
        self, trainer: Trainer, job: _Job, trained: _Trained, data: Dataset, goes_on: bool
    ) -> None:
        self.trainer, self.job, self.trained = trainer, job, trained
        self.data, self.goes_on = data, goes_on

    def on_start(self, run: Run) -> None:
        self._look()
        num_parameters = sum(array.size for array in run.state.parameters.values())
        number, request, network = self.job.number, self.job.request, self._network(run)
        self.trainer.tell(
            Started(number, request, run.plan, network, self.data, num_parameters, self.goes_on)
        )

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self._look()

    def on_epoch_end(self, run: Run) -> None:
        self.trained.epochs += 1
        report = replace(run.report, epoch=self.trained.epochs)
        self.trainer.tell(Reported(self.job.number, self.job.request, report, self._network(run)))
        if self.job.cancelled.is_set():
            run.stop(STOPPED)
        elif self.trainer.device != "cpu":
            self.trainer.turns.pass_on()

    def _look(self) -> None:
        if self.job.cancelled.is_set():
            raise _StoppedError

    def _network(self, run: Run) -> Network:
        arrays = {
            name: np.array(run.ops.to_numpy(array)) for name, array in run.state.arrays.items()
        }
        return Network(run.plan.network, arrays, run.plan.loss, self.trained.epochs)
