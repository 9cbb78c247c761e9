"""Ranks that are cards, whose arrays NCCL adds up; nccl4py is its binding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warpfit.backends.contract.communicator import Communicator
from warpfit.backends.contract.terms import Array
from warpfit.backends.cuda.beside import BesideCommunicator
from warpfit.errors import DeviceError
from warpfit.extras import needs


class NcclCommunicator(BesideCommunicator):
    """A card among several, on a stream of its own beside the card's.

    Parameters
    ----------
    host : Communicator
        The same ranks as threads or processes: they agree on Python objects.
    runtime : Runtime
        The card.
    nccl : nccl.core.Communicator
        Of the same rank.
    """

    is_kept = True

    def __init__(self, host: Communicator, runtime: Any, nccl: Any) -> None:
        super().__init__(host, runtime)
        self._nccl = nccl
        host.on_abort(nccl.abort)

    @staticmethod
    def of_threads(
        hosts: Sequence[Communicator], runtimes: Sequence[Any]
    ) -> list[NcclCommunicator]:
        """Return the communicators of cards that threads of this process work with."""
        nccl = _core().Communicator.init_all([runtime.index for runtime in runtimes])
        return [
            NcclCommunicator(host, runtime, own)
            for host, runtime, own in zip(hosts, runtimes, nccl, strict=True)
        ]

    @staticmethod
    def of_process(host: Communicator, runtime: Any) -> NcclCommunicator:
        """Return the communicator of a card of this process, the only one; all ranks call this."""
        core = _core()
        own = bytes(core.get_unique_id()) if not host.rank else None
        number = core.UniqueId.from_bytes(host.share(own))
        runtime.activate()
        return NcclCommunicator(host, runtime, core.Communicator.init(host.size, host.rank, number))

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        core = _core()
        self._start(
            arrays,
            lambda array: self._nccl.allreduce(array, array, core.SUM, stream=self._stream),
        )

    def broadcast(self, arrays: Sequence[Array]) -> None:
        self._start(
            arrays, lambda array: self._nccl.broadcast(array, array, 0, stream=self._stream)
        )
        self.join()

    def _start(self, arrays: Sequence[Array], start: Callable[[Array], None]) -> None:
        self._begin(arrays)
        try:
            with _core().group():
                for array in arrays:
                    start(array)
        except Exception as error:
            raise DeviceError(f"NCCL failed on {self._runtime.name}: {error}") from error
        self._note()


def _core() -> Any:
    with needs("multi", "several GPUs need"):
        from nccl import core
    return core
