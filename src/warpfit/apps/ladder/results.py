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
    """A program that trains the task.

    Attributes
    ----------
    name, title : str
        As it is chosen, and as tables have it.
    changes : str
        What it changes in the one before.
    saves : str
        What that should save.
    if_little : str
        Why it may save little.
    """

    name: str
    title: str
    changes: str
    saves: str
    if_little: str


@dataclass(frozen=True)
class Record(Step):
    """What a rung, or a peer, did.

    Attributes
    ----------
    is_peer : bool
        Whether it is a program of others, or uses one, beside the ladder.
    ms_per_epoch : float or None
        Median over the later half of its epochs; None if it did not run.
    device_ms : float or None
        Milliseconds of an epoch in which the device is at work; None where that is not known apart.
    seconds : float or None
        All of its epochs together.
    first_call : float or None
        Seconds for what is done but once, apart: compilation, warm-up.
    epochs, steps : int
        Trained, and steps of each.
    is_scaled : bool
        Whether its epochs had fewer steps than the task's, and the time is scaled to as many.
    loss, accuracy : float or None
        Of the last epoch, on the rows trained on, each batch before its update.
    gain, gain_over_first : float or None
        The time of the last rung that ran before it, and of the first that ran, over its own. A
        peer has the second only.
    reason : str
        Why it did not run.
    step_losses : ndarray (steps of the epochs with losses,) float64, or None
    """

    is_peer: bool
    ms_per_epoch: float | None = None
    device_ms: float | None = None
    seconds: float | None = None
    first_call: float | None = None
    epochs: int = 0
    steps: int = 0
    is_scaled: bool = False
    loss: float | None = None
    accuracy: float | None = None
    gain: float | None = None
    gain_over_first: float | None = None
    reason: str = ""
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
    """The records of a climb, in their order, and what was climbed.

    Attributes
    ----------
    records : list of Record
    network, device, card : str
        The network's sizes; where the rungs ran; what the card, if there is one, is called.
    data : str
    batch, rows, epochs, steps : int
        `steps` of an epoch.
    lr : float
    seconds : float
        Of everything together.
    files : list of Path
        Those written.
    """

    records: list[Record]
    network: str
    device: str
    card: str
    data: str
    batch: int
    rows: int
    epochs: int
    steps: int
    lr: float
    seconds: float = 0.0
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
