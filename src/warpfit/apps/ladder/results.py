"""What a climb of the ladder found: a record of each rung, and all of them together."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

import warpfit


@dataclass(frozen=True)
class Step:
    """A program that trains the task."""

    name: str  # as it is chosen
    title: str  # as tables have it
    changes: str  # what it changes in the one before
    saves: str  # what that should save
    if_little: str  # why it may save little


@dataclass(frozen=True)
class Record(Step):
    """What a rung, or a peer, did; loss and accuracy are the last epoch's, as it was trained."""

    is_peer: bool  # a program of others, or one that uses such, beside the ladder
    ms_per_epoch: float | None = None  # median over the later half; None if it did not run
    device_ms: float | None = None  # of an epoch, in which the device is at work, if that is known
    seconds: float | None = None  # of all epochs
    first_call: float | None = None  # seconds for what is done but once: compilation, warm-up
    epochs: int = 0
    steps: int = 0  # of an epoch
    is_scaled: bool = False  # from fewer steps to as many as the task's epochs have
    loss: float | None = None
    accuracy: float | None = None
    gain: float | None = None  # the time of the last rung that ran before it over its own
    gain_over_first: float | None = None  # that of the first; a peer has this one only
    reason: str = ""  # why it did not run
    # Of the epochs with losses.
    step_losses: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @property
    def ran(self) -> bool:
        """Whether there is a time."""
        return self.ms_per_epoch is not None

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready, without the losses of all steps."""
        return {name: value for name, value in asdict(self).items() if name != "step_losses"}


@dataclass(frozen=True)
class Result(Sequence[Record]):
    """The records of a climb, in their order, what was climbed, and the files that were written."""

    records: list[Record]
    network: str  # its sizes
    device: str
    card: str  # what it is called, if there is one
    data: str
    batch: int
    rows: int
    epochs: int
    steps: int  # of an epoch
    lr: float
    seconds: float = 0.0  # of everything
    files: list[Path] = field(default_factory=list, compare=False)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.records[index]

    @property
    def title(self) -> str:
        """What was trained, and where."""
        where = self.card or "CPU"
        return f"{self.network}, batch {self.batch}, {self.rows:,} rows of {self.data}: {where}"

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready, with the versions it ran with."""
        own = {
            name: value for name, value in vars(self).items() if name not in ("records", "files")
        }
        versions = {
            "python": platform.python_version(),
            "warpfit": warpfit.__version__,
            "numpy": np.__version__,
        }
        return {**own, "versions": versions, "records": [record.to_dict() for record in self]}

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Result:
        """Return what `to_dict` has stored."""
        own = {
            name: stored[name]
            for name in Result.__dataclass_fields__
            if name not in ("records", "files")
        }
        return Result([Record(**record) for record in stored["records"]], **own)
