"""What all launches have in common that train many networks of one shape, each whole in a part of a
block or more.

`many_small_networks_sm90.py`, `many_networks.py` and `many_networks_sm90.py` say how large such a
launch is, and how its kernel takes rows; an engine asks for both here, and never which kernel it
is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from warpfit.backends.cuda.arguments import Arguments
from warpfit.backends.cuda.resident_config import OfManyNetworks
from warpfit.backends.cuda.trained_network import TrainedNetwork


class ManyLaunch(ABC):
    """How blocks share many networks' training; a frozen, printable value.

    Attributes
    ----------
    kernel : str
        The file's name.
    arguments : type
        Of the kernel.
    network : TrainedNetwork
        What all of them are.
    cluster : int
        Blocks of a network.
    is_for_plain_networks : bool
        Whether the kernel takes neither dropout nor sample or class weights.
    label_dtype : str
        Of labels.
    pads_rows : bool
        Whether rows of x have `x_width` numbers, of which the last are zeros, and a row of zeros
        stands before them.
    has_ones : bool
        Whether a one follows the features of a row, for the biases.
    weighs_targets : bool
        Whether a row's weight lies behind its target.
    """

    kernel: ClassVar[str]
    arguments: ClassVar[Callable[..., Arguments]]
    is_for_plain_networks: ClassVar[bool] = False
    label_dtype: ClassVar[str] = "int32"
    pads_rows: ClassVar[bool] = True
    has_ones: ClassVar[bool] = False
    weighs_targets: ClassVar[bool] = False
    network: TrainedNetwork
    cluster: int

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Shared memory of a block."""

    @property
    @abstractmethod
    def x_width(self) -> int:
        """Numbers of a row of x."""

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Numbers of a network's parameters, padding included."""

    @property
    @abstractmethod
    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Where layers' weights and biases begin among a network's parameters; their shapes."""

    @property
    @abstractmethod
    def config(self) -> OfManyNetworks:
        """The kernel's settings, of networks that nobody compares and none of which is kept."""

    @abstractmethod
    def groups(self, num_multiprocessors: int) -> int:
        """Return how many networks train at once, at most."""

    @abstractmethod
    def blocks_of(self, num_networks: int) -> int:
        """Return how many blocks train so many networks at once."""

    @property
    def network_bytes(self) -> int:
        """Bytes on the device of a network's parameters, and of their optimizer state."""
        return 4 * (1 + self.network.slots) * self.num_parameters

    def bytes_of_rows(self, nbytes: int, num_rows: int) -> int:
        """Return the bytes on the device of rows x, `nbytes` as given, as the kernel takes them."""
        return nbytes + 2 * num_rows * self.x_width
