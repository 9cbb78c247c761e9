"""Ranks that are cards, whose arrays NCCL adds up; nccl4py is its binding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warpfit.backends.contract.communicator import Communicator
from warpfit.backends.contract.terms import Array
from warpfit.errors import DeviceError, ShapeError
from warpfit.extras import needs


class NcclCommunicator(Communicator):
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

    def __init__(self, host: Communicator, runtime: Any, nccl: Any) -> None:
        self._host, self._runtime, self._nccl = host, runtime, nccl
        self.rank, self.size = host.rank, host.size
        self._stream: Any = None  # made with the first sum
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
        if not all(array.is_contiguous for array in arrays):
            raise ShapeError("expected contiguous arrays for NCCL, got one that is not")
        self._stream = self._runtime.fork(self._stream)
        try:
            with _core().group():
                for array in arrays:
                    start(array)
        except Exception as error:
            raise DeviceError(f"NCCL failed on {self._runtime.name}: {error}") from error

    def join(self) -> None:
        if self._stream is not None:
            self._runtime.merge(self._stream)

    def barrier(self) -> None:
        self._host.barrier()

    def share(self, value: Any) -> Any:
        return self._host.share(value)

    def abort(self, error: BaseException) -> BaseException:
        return self._host.abort(error)

    def on_abort(self, act: Callable[[], None]) -> None:
        self._host.on_abort(act)


def _core() -> Any:
    with needs("multi", "several GPUs need"):
        from nccl import core
    return core
