"""The state of a run whose arrays are made when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod

from warpfit.backends import Array
from warpfit.engines.base import TrainState
from warpfit.on_demand import Maker, OnDemand

ARRAYS = ("parameters", "buffers", "slots")


class OnDevice(ABC):
    """The parameters of a trained network where they were trained."""

    @property
    @abstractmethod
    def are_finite(self) -> bool:
        """Whether they are known to be finite: their sum is."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return them by name, on the device."""


class StateOnDemand(OnDemand, TrainState):
    """A state whose arrays are made when they are asked for, from where they are by then.

    Attributes
    ----------
    on_device : OnDevice or None
        Of a trained network whose numbers have not left its device.
    """

    on_device: OnDevice | None = None

    @classmethod
    def of(cls, arrays: Maker, step: int, seed: int) -> StateOnDemand:
        """Return the state of a run that begins; a function gives its `ARRAYS`."""
        state = cls({}, {}, {}, step, 0, seed)
        state.take_from(arrays)
        return state

    def take_from(self, arrays: Maker, on_device: OnDevice | None = None) -> None:
        """Let a function give the arrays from now on; say where the parameters stay meanwhile."""
        self.promise(arrays, *ARRAYS)
        self.on_device = on_device
