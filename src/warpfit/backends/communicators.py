"""Which communicators the ranks of a run have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from warpfit import backends
from warpfit.backends.contract.communicator import Alone, Communicator
from warpfit.backends.numpy.processes import processes
from warpfit.backends.numpy.threads import ThreadCommunicator
from warpfit.errors import DivergedError

# Those of cards, by the devices: making them takes a second.
_IDLE: dict[tuple[str, ...], Sequence[Communicator]] = {}
_OF_PROCESS: dict[str, Communicator] = {}


@contextmanager
def of_threads(devices: Sequence[str]) -> Iterator[Sequence[Communicator]]:
    """Give a communicator for each device, of threads of this process, until the block ends; after
    an error within it they are of no use to anyone.
    """
    key = tuple(devices)
    made = _IDLE.pop(key, None) or _made(key)
    try:
        yield made
    except (GeneratorExit, DivergedError):  # the ranks have ended before all epochs were done
        _keep(key, made)
        raise
    _keep(key, made)


def _keep(devices: tuple[str, ...], made: Sequence[Communicator]) -> None:
    if len(devices) > 1 and devices[0] != "cpu":
        _IDLE[devices] = made


def _made(devices: Sequence[str]) -> Sequence[Communicator]:
    if len(devices) == 1:
        return [Alone()]
    hosts = ThreadCommunicator.of_size(len(devices))
    if devices[0] == "cpu":
        return hosts
    from warpfit.backends.cuda.nccl import NcclCommunicator

    found: list[Any] = [backends.get(device) for device in devices]
    return NcclCommunicator.of_threads(hosts, [ops.runtime for ops in found])


def of_process(device: str) -> Communicator:
    """Return the communicator of this process among all, whose arrays are on a device."""
    if device not in _OF_PROCESS:
        _OF_PROCESS[device] = _of_process(device)
    return _OF_PROCESS[device]


def _of_process(device: str) -> Communicator:
    host = processes()
    if device == "cpu" or host.size == 1:
        return host
    from warpfit.backends.cuda.nccl import NcclCommunicator

    ops: Any = backends.get(device)
    return NcclCommunicator.of_process(host, ops.runtime)
