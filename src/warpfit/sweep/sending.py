"""Values sent to other processes, and back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from warpfit.cores import num_cores
from warpfit.errors import ConfigError, DeviceError


def check_sendable(value: Any, what: str, error: Exception, dumps: Callable[[Any], bytes]) -> None:
    """Raise ConfigError from `error` if this value cannot be pickled."""
    try:
        dumps(value)
    except Exception as reason:
        raise ConfigError(
            f"expected {what} that can be pickled, to be sent to other processes, but {reason}; "
            "objects of classes and functions at the top of a module can"
        ) from error


def for_sending(error: Exception) -> Exception:
    """Return an error, or one that says the same if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DeviceError(f"{type(error).__name__}: {error}")
    return error


def joblibs_pickle() -> Callable[[Any], bytes]:
    """Return joblib's pickler; releases before 1.6 contain it."""
    try:
        from cloudpickle import dumps
    except ImportError:
        from joblib.externals.cloudpickle import dumps
    return dumps


def workers_of(executor: Any) -> int:
    """Return how many workers an executor has, as far as it says, else the cores that
    this process may use.
    """
    for name in ("_max_workers", "num_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    client: Any = getattr(executor, "_client", None)
    if hasattr(client, "nthreads"):  # Dask's
        return max(1, sum(client.nthreads().values()))
    return num_cores()
