"""The values that every engine shares: what to run (`Plan`), on what (`TrainState`,
`TrainingData`), and what came out (`EpochReport`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.backends.transfer import device_of, moved
from warpfit.engines.scaling import LossScale, magnitude
from warpfit.engines.unlocked import UnlockedProperty
from warpfit.errors import Obstacle
from warpfit.losses import Loss
from warpfit.nn.network import NetworkSpec
from warpfit.nn.taped import TapedNetwork
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.schedules import PlateauState

# Of an array whose largest magnitude the host finds, wherever else it is.
MAGNITUDE_BYTES = 4 << 20

# Called after each step with the number of steps done in the epoch and the steps of an epoch.
StepListener = Callable[[int, int], None]

# Whether anyone looks at the state after an epoch, counted from 1.
BorderTest = Callable[[int], bool]


def every_epoch(epoch: int) -> bool:
    """Return True: the state is looked at after every epoch."""
    return True


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """How an engine runs a plan: found once, before the first step, and printable. Engines derive
    their own from it.
    """

    precision: str  # that of the plan, or the engine's choice where the plan leaves it open
    # The choice and the layout in words, if there is anything to say; not compared.
    reason: str = field(default="", compare=False)
    copied_bytes: int = 0  # of copies of the data, or of its pieces, that a run keeps on the device
    # About how long a step takes on an H200, where there is a guess.
    microseconds: float | None = None
    # Whether `Engine.run` goes over validation data by itself; if not, it is not to be given any.
    validates: bool = False
    # Whether it decides itself when the run is over; if not, it is not to be given a rule.
    stops: bool = False

    @property
    def is_streamed(self) -> bool:
        """Whether x, y and sample weights stay on the host, and come to the device in pieces."""
        return False


@dataclass(frozen=True)
class Plan:
    """How a run is computed, and why so.

    Runs of equal plans and seeds on the same data are bit-identical on one machine, on the CPU with
    the same number of BLAS threads.

    Parameters
    ----------
    engine, device : str
    precision : str
        One of ``PRECISIONS``; in a draft also ``'auto'``, which is the engine's choice.
    network : NetworkSpec or TapedNetwork
    loss : Loss
    optimizer : OptimizerSpec
    batch_size, epochs : int
    trained : tuple of str
        Names of the parameters that the optimizer changes.
    num_rows : int
        Rows of the data.
    shuffle : bool
        Whether batches follow the epoch order; otherwise rows keep theirs.
    report_every : int
        Epochs between two reports, which schedules and callbacks may act upon.
    bytes : int
        Memory of a device that state, buffers of one step, data or its pieces, and copies of them
        take.
    reason : str
        Why this engine.
    loss_scale : float or 'dynamic'
        What float16 gradients are multiplied by; in a draft also ``'auto'``. See
        `warpfit.engines.scaling`.
    prepared : Prepared or None
        How the engine runs it: kernel, layout, and what is done between epochs without the host.
        None in a draft.
    asked : (str, str) or None
        Engine and precision that were asked for, ``'auto'`` included; None in a draft. What was
        left open may change on the way; see `warpfit.training.precisions`.
    devices : tuple of str
        Those of all ranks, if several train the network; `device` is this rank's.
    has_processes : bool
        Whether ranks are processes rather than threads.
    """

    engine: str
    device: str
    precision: str
    network: NetworkSpec | TapedNetwork
    loss: Loss
    optimizer: OptimizerSpec
    batch_size: int
    epochs: int
    trained: tuple[str, ...]
    num_rows: int = 0
    shuffle: bool = True
    report_every: int = 1
    bytes: int = 0
    reason: str = ""
    loss_scale: float | str = 1.0
    prepared: Prepared | None = None
    asked: tuple[str, str] | None = None
    devices: tuple[str, ...] = ()
    has_processes: bool = False

    @property
    def num_ranks(self) -> int:
        """How many devices train the network, each on its part of a batch."""
        return max(1, len(self.devices))

    def most_of_rank(self, num_rows: int) -> int:
        """Return how many of some rows a device has at most."""
        return -(-num_rows // self.num_ranks)

    def reports(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 1, is reported."""
        return epoch % self.report_every == 0 or epoch == self.epochs

    def reported(self, epochs: range) -> Sequence[int]:
        """Return which of some epochs, counted from 0, are reported."""
        first = -(-(epochs.start + 1) // self.report_every) * self.report_every - 1
        found = range(first, epochs.stop, self.report_every)
        last = self.epochs - 1
        return [*found, last] if last in epochs and self.epochs % self.report_every else found

    @property
    def dtype(self) -> str:
        """Dtype of parameters, slots and targets: float32 for every precision but float64."""
        return "float64" if self.precision == "float64" else "float32"

    def identity(self) -> dict[str, Any]:
        """Return, JSON-ready, what a run is that may be resumed: all but its length, its size and
        the reason.

        What was prepared is left out, too: any kernel goes on from the state that another has left.
        """
        return {
            "engine": self.engine,
            "device": self.device,
            "precision": self.precision,
            "network": self.network.to_dict(),
            "loss": self.loss.to_dict(),
            "optimizer": self.optimizer.to_dict(),
            "batch_size": self.batch_size,
            "trained": list(self.trained),
            "num_rows": self.num_rows,
            "shuffle": self.shuffle,
            "report_every": self.report_every,
            "loss_scale": self.loss_scale,
        }


@dataclass
class TrainState:
    """All the numbers of a run between two epochs; engines change them in place.

    Parameters
    ----------
    parameters, buffers : dict of str to array
        By their names in the model.
    slots : dict of str to dict of str to array
        The optimizer's arrays: by slot, then by parameter.
    step : int
        Optimizer steps done, over all runs of this optimizer.
    epoch : int
        Epochs of this run done.
    seed : int
    plateau : PlateauState
        The state of a schedule that watches the loss; ``plateau.scale`` multiplies the learning
        rate.
    loss_scale : LossScale
        Where the plan's is ``'dynamic'``.
    exponents : list of tuple of int
        Of each layer, by what `one_launch` scales numbers in float32: see ``launch_scales``.
    was_shown : bool
        Whether a callback may have written into it since an engine did: only rank 0's has that.
    """

    parameters: dict[str, Array]
    buffers: dict[str, Array]
    slots: dict[str, dict[str, Array]]
    step: int
    epoch: int
    seed: int
    plateau: PlateauState = field(default_factory=PlateauState)
    loss_scale: LossScale = field(default_factory=LossScale)
    exponents: list[tuple[int, int, int]] = field(default_factory=list)
    was_shown: bool = False

    @property
    def arrays(self) -> dict[str, Array]:
        """Parameters and buffers together, by name."""
        return {**self.parameters, **self.buffers}

    def copy(self, ops: Backend) -> TrainState:
        """Return a state of its own with the same numbers."""
        return self.mapped(ops.copy)

    def mapped(self, function: Callable[[Array], Array]) -> TrainState:
        """Return the same state, of what a function makes of each array."""

        def each(arrays: Mapping[str, Array]) -> dict[str, Array]:
            return {name: function(array) for name, array in arrays.items()}

        slots = {slot: each(arrays) for slot, arrays in self.slots.items()}
        parameters, buffers = each(self.parameters), each(self.buffers)
        return replace(self, parameters=parameters, buffers=buffers, slots=slots)


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run, where they were found; `on` brings them to the device that runs it."""

    x: Array  # (N, ...): in any dtype; an engine converts the rows of a batch (uint8 means x / 255)
    y: Array  # (N, ...): as the loss needs them
    sample_weight: Array | None = None  # (N,)
    class_weight: Array | None = None  # (C,): always on the device
    _on: dict[str, TrainingData] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # x and y where they were found, if these are copies of them on a device.
    _found: tuple[Array, Array] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def found_at(x: Array, y: Array, sample_weight: Array | None, host_x: Array) -> TrainingData:
        """Return data whose rows x have come to a device from the host, where they still are."""
        return TrainingData(x, y, sample_weight, _found=(host_x, y))

    def __len__(self) -> int:
        return len(self.x)

    def is_on(self, device: str) -> bool:
        """Return whether the rows are on a device, or have been brought there."""
        return device in self._on or backends.is_device_array(self.x)

    def on(self, device: str) -> TrainingData:
        """Return the data with its rows on a device, where they are brought once."""
        if device not in self._on:
            ops, found = backends.get(device), self._found or (self.x, self.y)
            x, y = (self.x, self.y) if device_of(self.x) == device else found
            weights, class_weight = (
                None if array is None else moved(array, ops)
                for array in (self.sample_weight, self.class_weight)
            )
            self._on[device] = replace(
                self,
                x=moved(x, ops),
                y=moved(y, ops),
                sample_weight=weights,
                class_weight=class_weight,
                _found=found,
            )
        return self._on[device]

    @UnlockedProperty
    def largest_x(self) -> float:
        """The largest magnitude of x's numbers, as training takes them.

        Of few numbers that the host has it is known sooner than a device has compiled a kernel.
        """
        return magnitude(self._nearest(0))

    @UnlockedProperty
    def largest_y(self) -> float:
        """That of the targets'."""
        return magnitude(self._nearest(1))

    def _nearest(self, idx: int) -> Array:
        """Return x or y where its magnitude is known soonest."""
        found = self._found
        if found is not None and found[idx].nbytes <= MAGNITUDE_BYTES:
            return found[idx]
        return (self.x, self.y)[idx]


@dataclass(frozen=True)
class EpochReport:
    """What came out of one epoch.

    Parameters
    ----------
    epoch : int
        Counted from 1.
    loss : float
        Mean over the epoch's rows, each batch taken before its update.
    accuracy : float or None
        Share of rows that were right, before their batch's update; None for losses without an
        accuracy.
    lr : float
        Learning rate of the epoch's last step.
    seconds : float
        Wall time of the epoch's steps.
    num_rows : int
    step_losses : ndarray (steps,) float64
        The loss of every step.
    val_loss, val_accuracy : float or None
        On the validation data, after the epoch.
    metrics : mapping of str to float or None
        Those that `fit` was asked for, by column, after the epoch; None for what is not finite.
    """

    epoch: int
    loss: float
    accuracy: float | None
    lr: float
    seconds: float
    num_rows: int
    step_losses: npt.NDArray[np.float64] = field(repr=False, compare=False)
    val_loss: float | None = None
    val_accuracy: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict, hash=False)

    def value(self, column: str) -> Any:
        """Return what stands in a column of the history, None if nothing does."""
        return self.metrics[column] if column in self.metrics else getattr(self, column, None)

    @property
    def samples_per_second(self) -> float:
        """Rows trained on each second."""
        return self.num_rows / self.seconds if self.seconds else 0.0


@dataclass
class Stopping:
    """When a run is over, for an engine that decides it: the settings and the state of a callback's
    `rule`.
    """

    monitor: str  # the number of a report that is watched
    patience: int  # epochs without improvement that end the run
    min_delta: float  # what counts as an improvement: more than that
    keeps_best: bool  # whether the parameters of the best epoch are kept
    best: float | None  # before the first epoch
    bad_epochs: int  # likewise
    # The parameters of the best epoch, if one was better than all before: the engine leaves them
    # here before it yields a report whose epoch is that of the state, and changes none of them
    # afterwards.
    best_arrays: dict[str, Array] = field(default_factory=dict)
    # scikit-learn's rule: what is better by however little is the best, and an improvement is
    # `min_delta` or more.
    any_gain_is_best: bool = False


class Engine(ABC):
    """A way to run training steps.

    Attributes
    ----------
    name : str
        By which `fit` knows it.
    needs_gpu : bool
    has_ranks : bool
        Whether several devices may train one network.
    """

    name: str
    needs_gpu = False
    has_ranks = False

    @abstractmethod
    def prepare(
        self,
        draft: Plan,
        data: TrainingData,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> Prepared | Obstacle:
        """Return how the engine runs a draft, or what is in the way.

        Parameters
        ----------
        draft : Plan
            Whose precision may be open.
        data : TrainingData
            Where it was found; what is looked at to choose a precision is brought to the device.
        validation : TrainingData, optional
            Likewise, for reports.
        stopping : Stopping, optional
            The rule by which a callback ends the run, if nothing else looks at the run between
            epochs.
        """

    @abstractmethod
    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: StepListener | None = None,
        is_border: BorderTest = every_epoch,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> Iterator[EpochReport]:
        """Train for `epochs` epochs from `state`, changing it, and yield a report for each epoch.

        Parameters
        ----------
        plan : Plan
            With what was prepared.
        state : TrainState
        data : TrainingData
            On the device, unless the plan streams it.
        epochs : int
        on_step : StepListener, optional
            Called after each step by an engine that comes back to the host between steps.
        is_border : BorderTest
            Epochs up to the next border may be trained at once before their reports are yielded one
            by one. The state is then that of the last of them: it belongs to a report whose epoch
            is ``state.epoch``. Which epochs are trained at once changes no bit. Once reports have
            been heard, what was a border may be none any more, but not the other way round.
        validation : TrainingData, optional
            Without weights, if what was prepared `validates`: reports of epochs that the plan asks
            for have its loss and accuracy.
        stopping : Stopping, optional
            If it `stops`: the run ends after the reported epoch that this rule makes the last.

        Raises
        ------
        DivergedError
            If a step's loss is NaN or infinite, or any parameter after the epochs trained at once;
            the state is of no use then.
        """


def has_room(plan: Plan, rows: TrainingData, reserved_bytes: int) -> bool:
    """Return whether rows are on the plan's device, or have room there beside what is reserved."""
    if rows.is_on(plan.device):
        return True
    runtime = getattr(backends.get(plan.device), "runtime", None)  # a device's
    return runtime is None or rows.x.nbytes <= runtime.memory_left() - reserved_bytes
