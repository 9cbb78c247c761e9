"""What kernels of many networks take of a rule that halves them at rungs, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.backends.launch_structs import CANDIDATE_BYTES, QUEUE_FIELDS

# After the last rung, when networks are not compared any more.
NO_RUNG = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Rungs:
    """A rule by which a launch halves: the better candidates of each rung go on, at least one."""

    epochs: Sequence[int]  # after which networks are compared, at least one
    factor: float  # one in so many candidates goes on
    # Networks of a candidate, which follow on one another and are judged by their mean.
    num_folds: int
    metric: str  # the number of a report by which they are; where it is the same, the loss


class Halved(NamedTuple):
    """After which epoch a network was left behind; as which candidate, 0 if none has a result."""

    after: int
    place: int
    num_compared: int


class DeviceQueue:
    """The queue of a launch's networks, on the device.

    Parameters
    ----------
    ops : CudaBackend
    count : int
        Networks.
    rungs : Rungs, optional

    Attributes
    ----------
    array : DeviceArray
        As the kernel takes it.
    """

    def __init__(self, ops: Any, count: int, rungs: Rungs | None) -> None:
        self._kept: list[Array] = []
        if rungs is None:
            self.array = ops.zeros((1,), "int32")
            return
        own = np.zeros(1, QUEUE_FIELDS)
        epochs = np.array([*rungs.epochs, NO_RUNG], np.int32)
        numbers = np.zeros((len(epochs), count), np.int32)
        numbers[0] = np.arange(count)
        results = np.zeros(CANDIDATE_BYTES * (count // rungs.num_folds), np.uint8)
        for name, array in (("rungs", epochs), ("numbers", numbers), ("results", results)):
            self._kept.append(ops.asarray(array))
            own[name] = self._kept[-1].pointer
        own["factor"], own["num_folds"] = rungs.factor, rungs.num_folds
        own["of_validation"] = rungs.metric.startswith("val")
        own["of_accuracy"] = rungs.metric.endswith("accuracy")
        own["end"] = own["published"] = count
        self.array = ops.asarray(own.view(np.uint8))


def halved_of(standing: npt.NDArray[Any]) -> Halved | None:
    """Return where halving left a network behind, if it did; `standing` is its ``Standing`` ()."""
    after, place, num_compared = (
        int(standing[name]) for name in ("halved_after", "place", "num_compared")
    )
    return Halved(after, place, num_compared) if after else None
