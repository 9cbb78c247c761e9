"""Workers elsewhere: those of an executor and those of joblib, with one way to call them.

A worker that dies loses nothing but time: Dask calls again elsewhere what it had, and joblib's
workers are called again here, as long as anything comes back. The pools of `concurrent.futures`
break as a whole.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed, wait
from contextlib import suppress
from threading import Event
from traceback import format_exc
from typing import Any, NamedTuple

from warpfit.errors import ConfigError
from warpfit.sweep.sending import for_sending, joblibs_pickle, workers_of
from warpfit.sweep.threads import DeviceThreads, heard, stop_of

# A function of what all calls share, of a call's own share, and of what says that it is to stop.
Function = Callable[[Any, Any, Event | None], Any]

SECONDS_TO_HAND_OVER = 2.0
# How often in a row joblib's workers may die without a call that came back.
ATTEMPTS = 3


class Raised(NamedTuple):
    """In place of a result: what a call raised, or what became of its worker."""

    error: Exception
    is_lost: bool  # whether the call never came to its end


class Workers(ABC):
    """Where functions are called.

    Attributes
    ----------
    kind : str
        What has the workers, in words.
    count : int
    has_threads : bool
        Whether they are threads of this process, so that nothing is pickled.
    dumps : function
        What pickles for them.
    """

    kind: str
    count: int
    has_threads = False
    dumps: Callable[[Any], bytes] = staticmethod(pickle.dumps)

    @abstractmethod
    def results(
        self, function: Function, shared: Any, shares: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Call ``function(shared, share, stop)`` for every share, and yield its index with what
        came of it, a `Raised` included, in any order.

        After Ctrl-C, also one that is thrown into it, what still comes, and KeyboardInterrupt.
        """


class ExecutorsWorkers(Workers):
    """Those of an executor.

    Parameters
    ----------
    executor : concurrent.futures.Executor
    kind : str
        In words, if that is not the executor's class.
    """

    def __init__(self, executor: Executor, kind: str = "") -> None:
        self.executor, self.kind = executor, kind or type(executor).__name__
        self.count, self.has_threads = workers_of(executor), stop_of(executor) is not None

    def results(
        self, function: Function, shared: Any, shares: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        futures: dict[Future[Any], int] = {}
        stop = stop_of(self.executor)
        try:
            there = _there(self.executor, shared)
            for idx, share in enumerate(shares):
                try:
                    futures[self.executor.submit(_called, function, there, share, stop)] = idx
                except Exception as error:
                    yield idx, Raised(error, is_lost=True)
            for future in as_completed(futures):
                yield futures[future], _result(future)
        except KeyboardInterrupt:
            if stop is not None:
                stop.set()
            yield from _handed_over(futures, SECONDS_TO_HAND_OVER if stop is None else None)
            raise
        finally:
            if stop is not None:
                stop.set()
            for future in futures:
                future.cancel()


class DeviceWorkers(Workers):
    """A thread of this process for each device, which takes the next call when it has done one."""

    kind = "a thread for each device"
    has_threads = True

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices, self.count = tuple(devices), len(devices)

    def results(
        self, function: Function, shared: Any, shares: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        threads, waits = DeviceThreads(self.devices), True
        try:
            yield from ExecutorsWorkers(threads).results(function, shared, shares)
        except KeyboardInterrupt:  # they have ended, or a second one does not wait for them
            waits = False
            raise
        finally:
            threads.shutdown(waits)


class JoblibsWorkers(Workers):
    """Those of joblib: of the backend that `joblib.parallel_config` names, or processes here."""

    def __init__(self, count: int) -> None:
        self.count, self.kind = count, cluster_of_joblib() or "joblib"
        self.dumps = joblibs_pickle()

    def results(
        self, function: Function, shared: Any, shares: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        from joblib import delayed

        left, num_deaths = dict(enumerate(shares)), 0
        while left:
            calls = [
                delayed(_numbered)(idx, function, shared, share) for idx, share in left.items()
            ]
            parallel = _parallel(max(2, self.count))  # one would be this process
            try:
                for idx, result in parallel(calls):
                    del left[idx]
                    num_deaths = 0
                    yield idx, result
            except Exception as error:
                num_deaths += 1
                if num_deaths == ATTEMPTS or not _is_sendable((function, left), self.dumps):
                    yield from ((idx, Raised(error, is_lost=True)) for idx in left)
                    return


def workers_for(executor: Any, num_jobs: int | None, devices: Sequence[str] = ()) -> Workers | None:
    """Return the workers elsewhere that were asked for: by an executor, by joblib's context, or by
    several devices; None if this process has the work to do.
    """
    if executor is not None:
        return ExecutorsWorkers(executor)
    if num_jobs != 1 and (name := cluster_of_joblib()):
        return _of_cluster(name, num_jobs)
    return DeviceWorkers(devices) if len(devices) > 1 else None


def _of_cluster(name: str, num_jobs: int | None) -> Workers:
    from joblib import effective_n_jobs
    from joblib.parallel import get_active_backend

    backend, named = get_active_backend()
    client: Any = getattr(backend, "client", None)
    if hasattr(client, "get_executor"):  # Dask's: joblib would call here if one worker is left
        return ExecutorsWorkers(client.get_executor(), name)
    # Of more workers than there are cards Ray would wait for those that have none.
    return JoblibsWorkers(effective_n_jobs(num_jobs if named is None else named))


def cluster_of_joblib() -> str:
    """Return the name of the backend that `joblib.parallel_config` names, if its workers are a
    cluster's; "" for joblib's own, which are on this machine, and within a call that Dask made:
    there joblib itself lets a worker that waits do other calls, which Dask's executor would not.
    """
    if "joblib" not in sys.modules:  # nor has anybody named a backend then
        return ""
    from joblib.parallel import BACKENDS, get_active_backend

    backend = type(get_active_backend()[0])
    if backend.__module__ == "joblib._parallel_backends" or _is_in_dasks_call():
        return ""
    return next((name for name, kind in BACKENDS.items() if kind is backend), backend.__name__)


def _is_in_dasks_call() -> bool:
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def thrown(results: Iterator[Any], interrupt: BaseException) -> Iterator[Any]:
    """Yield what results still come after an interrupt that did not reach their iterator."""
    found: Any = results
    with suppress(KeyboardInterrupt, StopIteration):
        yield found.throw(interrupt)
        yield from found


def _parallel(num_jobs: int) -> Any:
    from joblib import Parallel
    from joblib.parallel import get_active_backend

    can_yield = get_active_backend()[0].supports_return_generator
    try:
        return Parallel(n_jobs=num_jobs, return_as="generator_unordered" if can_yield else "list")
    except ValueError as error:  # of a backend that users have set
        raise ConfigError(f"expected a backend of joblib such as loky: {error}") from error


def _there(executor: Any, shared: Any) -> Any:
    """Return what workers take for a value that all calls share, where an executor has a place for
    it, so that it goes there once.

    Dask gets a call that returns the value: that it makes again if the value is lost with a worker,
    which it cannot do for data that was scattered.
    """
    client: Any = getattr(executor, "_client", None)
    if not hasattr(client, "nthreads"):
        return shared
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return client.submit(_same, shared, pure=False)


def _same(value: Any) -> Any:
    return value


def _numbered(idx: int, function: Function, shared: Any, share: Any) -> tuple[int, Any]:
    return idx, _called(function, shared, share, None)


def _called(function: Function, shared: Any, share: Any, stop: Event | None) -> Any:
    """Return what a function returns, or its error, which is thereby told from a lost worker's."""
    result = None
    try:
        with heard(stop):
            result = function(shared, share, stop)
    except KeyboardInterrupt:
        if result is None:  # else it came when all was done
            raise
    except Exception as error:
        if stop is None:  # another process: frames do not get through
            error.add_note(f"Where it was raised:\n{format_exc()}")
        return Raised(for_sending(error), is_lost=False)
    return result


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        return Raised(error, is_lost=True)


def _handed_over(
    futures: dict[Future[Any], int], seconds: float | None
) -> Iterator[tuple[int, Any]]:
    """Yield what workers that Ctrl-C reached, too, hand over within seconds; what was yielded
    before comes again.
    """
    for future in futures:
        future.cancel()
    done, _ = wait(futures, timeout=seconds)
    for future in done:
        if not future.cancelled() and future.exception() is None:
            yield futures[future], future.result()


def _is_sendable(value: Any, dumps: Callable[[Any], bytes]) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
