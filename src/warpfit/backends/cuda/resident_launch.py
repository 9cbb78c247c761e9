"""What all launches have in common that keep a network on the chip while they train it for many
steps.

The modules of the five kernels each say how large such a launch is, and what its kernel takes. An
engine asks for both here, and never which kernel it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from warpfit.backends.base import Array
from warpfit.backends.cuda.arguments import Arguments
from warpfit.backends.cuda.config import Config
from warpfit.backends.cuda.prices import expected_microseconds
from warpfit.backends.cuda.sizes import padded
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import Obstacle

# Of the record of a step: a loss, what it weighs, and the rows that were right.
RECORD_BYTES = 24
# ``StoppingState`` of kernels that stop, and ``WatchedPart``.
STOPPING_STATE_BYTES, WATCHED_PART_BYTES = 112, 32


class LaunchedRun(Protocol):
    """What all launches of a run have for a kernel; arrays lie on the device.

    Attributes
    ----------
    parameters, slots : sequence of array
        Weights and bias of each layer; the same of each slot of the optimizer state.
    places, best_places : array
        Where all of these lie, and where the kernel is to keep the parameters of the best epoch.
    report_every, last_epoch, num_validated : int
    loss_scale, scale_of_weights, clip_norm, l2 : float
    rule, loss : tuple of float
        ``RuleSettings`` and ``LossSettings``.
    dropouts, class_weights : array
        ``Dropout`` of each layer; the classes' weights and their mean.
    dropout_key : sequence of int
    scales : array or None
        ``LayerScales`` of each layer, where numbers are sums of several.
    card : int
        This one's number of several.
    card_sums : array or None
        Where each of them has what they leave each other.
    validation : tuple of array
        Batches and targets.
    stopping : array
        ``StoppingMemory``.
    """

    parameters: list[Array]
    slots: list[list[Array]]
    report_every: int
    last_epoch: int
    num_validated: int
    loss_scale: float
    clip_norm: float
    l2: float
    rule: tuple[float, float, float, float]
    loss: tuple[float, float, float]
    dropout_key: tuple[int, int]
    card: int
    card_sums: Array | None

    @property
    def scale_of_weights(self) -> float: ...
    @property
    def places(self) -> Array: ...
    @property
    def best_places(self) -> Array | None: ...
    @property
    def dropouts(self) -> Array: ...
    @property
    def scales(self) -> Array | None: ...
    @property
    def class_weights(self) -> Array | None: ...
    @property
    def validation(self) -> tuple[Array | None, Array | None]: ...
    @property
    def stopping(self) -> Array | None: ...
    def zeros(self, nbytes: int) -> Array: ...
    def empty(self, nbytes: int) -> Array: ...


class LaunchedSteps(Protocol):
    """What one launch has; steps and epochs are counted from the run's first.

    Attributes
    ----------
    batches, targets : array
    num_rows, epochs, first_step, first_epoch : int
    rates, settings : array
        Of each step: its learning rate, or ``StepSettings``.
    record : array or int
        Of each step, or where it lies.
    talk : tuple
        ``Progress``, places for answers, and after how many epochs the kernel gives one.
    gram : tuple of array
        Gram matrices of each batch and the one before, and their scales.
    """

    batches: Array
    targets: Array
    num_rows: int
    epochs: int
    first_step: int
    first_epoch: int
    record: Array | int

    @property
    def rates(self) -> Array: ...
    @property
    def settings(self) -> Array: ...
    @property
    def talk(self) -> tuple[int | None, Array | None, int]: ...
    @property
    def gram(self) -> tuple[Array | None, Array | None]: ...


class ResidentLaunch(ABC):
    """How blocks and warps share a network's training; a frozen, printable value.

    Attributes
    ----------
    kernel : str
        The file's name.
    network : TrainedNetwork
    cluster, replicas : int
        Blocks of a cluster, and how many clusters partition the rows of a batch.
    talks : bool
        Whether the kernel tells the host of epochs while it runs, and ends when it is asked to.
    takes_a_card : bool
        Whether its blocks are most of a card's.
    looks_ahead : bool
        Whether it takes Gram matrices of the batches.
    """

    kernel: ClassVar[str]
    talks: ClassVar[bool] = False
    takes_a_card: ClassVar[bool] = False
    network: TrainedNetwork
    cluster: int
    replicas: int
    looks_ahead: bool

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.cluster * self.replicas

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def is_cooperative(self) -> bool:
        """Whether blocks wait for others than those of their cluster, so that all must be resident
        at once.
        """
        return self.replicas > 1

    @property
    def recorders(self) -> int:
        """Rows of the record of a step, which are added up."""
        return self.replicas

    @property
    def watched_bytes(self) -> int:
        """Bytes of device memory in which recorders leave each other what is watched of an
        epoch.
        """
        return WATCHED_PART_BYTES * self.recorders

    @property
    @abstractmethod
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, and those of them for weights."""

    @property
    @abstractmethod
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of shared memory of each part of ``struct Shared`` of the kernel."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Shared memory of a block."""

    @property
    def exchange_bytes(self) -> int:
        """Bytes of device memory beside those of the steps."""
        return 0

    @property
    def card_sums_bytes(self) -> int:
        """Bytes in which each of several cards is left sums by all."""
        return 0

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows that a replica has of a batch."""
        return -(-self.network.batch // (16 * self.replicas))

    @property
    def parts(self) -> int:
        """Parts that a batch's features are divided among."""
        return 1

    @property
    def block_features(self) -> int:
        """Features that a block multiplies by, a multiple of 16."""
        return padded(self.network.features)

    @property
    def chunk_rows(self) -> int:
        """Rows of which 8 features each lie in one piece, chunk after chunk; 0: rows do."""
        return 0

    @property
    def x_stride(self) -> int:
        """Numbers of a row of a part of a batch."""
        return self.block_features + (0 if self.chunk_rows else 8)

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch of x in device memory."""
        return 2 * self.network.terms * self.network.batch * self.parts * self.x_stride

    @property
    def target_bytes(self) -> int:
        """Bytes of a batch's targets in device memory."""
        return 4 * self.network.batch * self.network.target_words

    @property
    def settings_bytes(self) -> int:
        """Bytes of device memory for a step's settings."""
        return 16

    @property
    def step_bytes(self) -> int:
        """Bytes of device memory for a step: batch, targets, settings and row of the record."""
        of_record = RECORD_BYTES * self.recorders
        return self.batch_bytes + self.target_bytes + self.settings_bytes + of_record

    def record_bytes(self, num_rows: int) -> int:
        """Return the bytes of the record of an epoch, or of its validation."""
        return RECORD_BYTES * self.recorders * self.network.batches(num_rows)

    def epoch_bytes(self, num_rows: int, num_validated: int = 0) -> int:
        """Return the bytes that a launch takes for each of its epochs."""
        return self.step_bytes * self.network.batches(num_rows) + self.record_bytes(num_validated)

    def gathered_bytes(self, num_rows: int) -> int:
        """Return the bytes of rows in batches, with their targets."""
        return self.network.batches(num_rows) * (self.batch_bytes + self.target_bytes)

    @property
    @abstractmethod
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps and blocks wait for each other; see
        `prices`.
        """

    @property
    def microseconds(self) -> float:
        """What a step is expected to take on an H200."""
        return expected_microseconds(self.kernel, self.costs)

    @property
    @abstractmethod
    def config(self) -> Config:
        """The kernel's settings."""

    def gather_defines(self, source: str) -> dict[str, Any]:
        """Return the defines of the kernel that gathers the batches, from x of dtype `source`."""
        return self.network.gather_defines(source, self.parts, self.block_features, self.chunk_rows)

    @property
    def gram_defines(self) -> dict[str, Any]:
        """Those of the kernel that finds Gram matrices, if it looks ahead."""
        return self.network.gram_defines(self.parts, self.block_features, self.chunk_rows)

    @abstractmethod
    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> Arguments:
        """Return what the kernel takes."""

    def that_validates(self) -> ResidentLaunch | None:
        """Return the launch that goes over validation data as well, or None if the kernel
        cannot.
        """
        return None

    def that_stops(self, max_shared_bytes: int) -> ResidentLaunch | None:
        """Return the launch that decides when the run is over, or None if it cannot, or does not
        fit.
        """
        return None


def arguments_of(run: LaunchedRun, steps: LaunchedSteps) -> dict[str, Any]:
    """Return those of `SmallArguments`, which most kernels take."""
    return {
        "batches": steps.batches,
        "targets": steps.targets,
        "settings": steps.settings,
        "places": run.places,
        "record": steps.record,
        "num_rows": steps.num_rows,
        "num_epochs": steps.epochs,
        "scale": run.loss_scale,
        "rule": run.rule,
        "loss": run.loss,
    }


def passes_arguments_of(run: LaunchedRun, steps: LaunchedSteps) -> dict[str, Any]:
    """Return those of `PassesArguments`."""
    key0, key1 = run.dropout_key
    validation_batches, validation_targets = run.validation
    return {
        **arguments_of(run, steps),
        "dropouts": run.dropouts,
        "first_step": steps.first_step,
        "key0": key0,
        "key1": key1,
        "validation_batches": validation_batches,
        "validation_targets": validation_targets,
        "num_validated": run.num_validated,
        "first_epoch": steps.first_epoch,
        "report_every": run.report_every,
        "last_epoch": run.last_epoch,
        "stopping": run.stopping,
        "best_places": run.best_places,
    }


def too_heavy(most: int, got: int) -> Obstacle:
    """Return that registers have no room for so many bytes of weights."""
    return Obstacle(
        f"expected at most {most} bytes of weights for the registers of a block, got {got}",
        got / max(1, most),
    )


def too_large(launches: Iterable[ResidentLaunch], most: int, what: str) -> Obstacle:
    """Return that shared memory has no room for something in any of the launches."""
    least = min(launch.shared_bytes for launch in launches)
    return Obstacle(
        f"expected at most {most} bytes of shared memory for {what}, got {least}", least / most
    )
