"""Which devices train one network together, each as a rank with its part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from warpfit import backends
from warpfit.backends import ALL_CARDS, PROCESSES
from warpfit.backends.contract.communicator import Communicator, in_words
from warpfit.backends.numpy.processes import processes
from warpfit.checks import brief
from warpfit.engines.base import Plan
from warpfit.errors import ConfigError, DeviceError

P = ParamSpec("P")
T = TypeVar("T")


class Devices(NamedTuple):
    """The devices of a run."""

    own: str  # this rank's; rank 0's, if ranks are threads
    names: tuple[str, ...] = ()  # of all ranks; empty if only one device was asked for
    has_processes: bool = False  # whether ranks are processes

    def plan(self, draft: Plan) -> Plan:
        """Return a draft with these devices, or raise ConfigError if a batch has no row for some of
        them.
        """
        if draft.batch_size < len(self.names):
            raise ConfigError(
                f"expected batches of at least {len(self.names)} rows, one for each device, got "
                f"{draft.batch_size}"
            )
        return replace(draft, devices=self.names, has_processes=self.has_processes)


def named_devices(device: Any) -> list[str]:
    """Return the names of one device or several, which need not be here, or raise ConfigError."""
    if isinstance(device, str) and device == ALL_CARDS:
        return list(all_cards())
    devices = [device] if isinstance(device, str) else device
    if not isinstance(devices, Sequence) or isinstance(devices, bytes | bytearray) or not devices:
        raise ConfigError(f"expected a device or several, got {brief(device)}")
    if len(devices) > 1:
        _check_names(devices)
    else:
        backends.check_device_name(devices[0])
    return list(devices)


def _check_names(devices: Sequence[str]) -> None:
    """Raise ConfigError unless several devices have names, and each GPU has one only."""
    named = [each for each in devices if isinstance(each, str)]
    if not devices or "auto" in named or ALL_CARDS in named:
        raise ConfigError(
            "expected names of devices in a list, such as 'cuda:0' and 'cuda:1', and neither "
            f"'auto' nor {ALL_CARDS!r}, got {brief(list(devices))}"
        )
    for each in devices:
        backends.check_device_name(each)
    cards = ["cuda:0" if each == "cuda" else each for each in devices if each != "cpu"]
    if len(set(cards)) < len(cards):
        raise ConfigError(f"expected each GPU once, got {', '.join(devices)}")


def devices_of(device: Any) -> Devices:
    """Return the devices that `fit` is asked for.

    Parameters
    ----------
    device : str or sequence of str
        One; several; ``'cuda:all'``; or ``'processes'``, which is a device for each process.

    Raises
    ------
    ConfigError, DeviceError
        If they are no devices that can train together.
    """
    if not isinstance(device, list | tuple):
        if is_of_processes(device):
            return _of_processes()
        if isinstance(device, str) and device == ALL_CARDS:
            names = all_cards()
            return Devices(names[0], names)
        return Devices(device)  # which is checked where it is resolved
    _check_names(device)
    names = tuple(backends.resolve_device(each) for each in device)
    if "cpu" in names and len(set(names)) > 1:
        raise ConfigError(f"expected GPUs alone, or 'cpu' alone, got {', '.join(names)}")
    return Devices(names[0], names)


def all_cards() -> tuple[str, ...]:
    """Return the names of all GPUs, at least one, or raise DeviceError."""
    from warpfit.backends.cuda.runtime import devices, why_unavailable

    found = tuple(f"cuda:{idx}" for idx in range(len(devices())))
    if not found:
        reason = why_unavailable() or "the driver sees none"
        raise DeviceError(f"expected a CUDA device for {ALL_CARDS!r}, but {reason}")
    return found


def _of_processes() -> Devices:
    ranks = processes()
    device = backends.resolve_device("auto")
    if device != "cpu":
        cards = all_cards()
        device = cards[ranks.local_rank % len(cards)]
    return Devices(device, tuple(f"{PROCESSES}:{rank}" for rank in range(ranks.size)), True)


def is_of_processes(device: Any) -> bool:
    """Return whether a device is one for each process."""
    return isinstance(device, str) and device == PROCESSES


class Refusal(NamedTuple):
    """Why a process does not train with the others."""

    error: str


def agreeing(fit: Callable[P, T]) -> Callable[P, T]:
    """Let what `fit` raises in one process, before all have agreed on a run, be an error of all."""

    @wraps(fit)
    def among_processes(*given: P.args, **named: P.kwargs) -> T:
        is_planned = getattr(named.get("plan"), "has_processes", False)
        if not is_planned and not is_of_processes(named.get("device")):
            return fit(*given, **named)
        ranks = processes()
        ranks.have_agreed = False
        try:
            return fit(*given, **named)
        except BaseException as error:
            if not ranks.have_agreed:
                ranks.exchange(Refusal(in_words(error)))
            raise

    return among_processes


def agree_on(ranks: Communicator, own: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Raise ConfigError unless all processes have the same run, by what it is, and data."""
    found = ranks.exchange((own, digests))
    ranks.have_agreed = True
    for rank, each in enumerate(found):
        if isinstance(each, Refusal):
            raise ConfigError(f"expected all processes to train, but rank {rank} has {each.error}")
    first, of_first = found[0]
    for rank, (each, of_each) in enumerate(found):
        for name, value in each.items():
            if value != first[name]:
                raise ConfigError(
                    f"expected the same run in all processes, got {name} {brief(value)} on rank "
                    f"{rank} and {brief(first[name])} on rank 0"
                )
        if of_each != of_first:
            others = [name for name in digests if of_each.get(name) != of_first.get(name)]
            raise ConfigError(
                "expected the same data in all processes, each of which takes its part of every "
                f"batch, got another {' and '.join(others)} on rank {rank} than on rank 0"
            )
