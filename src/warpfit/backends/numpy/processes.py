"""This process among those that were started together to train one network."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from warpfit.backends.numpy.mpi import MpiCommunicator
from warpfit.extras import needs

if TYPE_CHECKING:
    from warpfit.backends.numpy.sockets import SocketCommunicator


@cache
def processes() -> MpiCommunicator | SocketCommunicator:
    """Return this process among those of its launcher: that which set WARPFIT_RANK, torchrun, or
    MPI's; the same at every call.

    Raises
    ------
    ConfigError
        If variables of the launcher are missing, or mpi4py is not installed.
    DeviceError
        If not all processes come.
    """
    # Not for one process alone: it needs multiprocessing.
    from warpfit.backends.numpy.sockets import Launched, SocketCommunicator

    launched = Launched.of(os.environ)
    if launched is not None:
        return SocketCommunicator(launched)
    with needs("multi", "processes without WARPFIT_RANK need"):
        from mpi4py import MPI
    return MpiCommunicator(MPI)
