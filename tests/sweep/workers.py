"""A sweep by an executor of other processes; prints what the same sweep in this process should say,
too.

python workers.py processes | dask | mpi
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing import get_context
from typing import Any

import warpfit as wf
from support.sweeps import build
from support.training import blobs


@contextmanager
def executor_of(kind: str) -> Iterator[Executor]:
    if kind == "processes":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
            yield executor
    elif kind == "dask":
        from distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client.get_executor()
    else:
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield executor


def sweep(**arguments: Any) -> dict[str, Any]:
    x, y = blobs(80)
    grid = {"lr": [0.1, 1e38, 0.3], "width": [4, 8]}
    found = wf.fit_many(
        build,
        x,
        y,
        grid=grid,
        folds=2,
        epochs=3,
        halving=2,
        device="cpu",
        verbose=False,
        **arguments,
    )
    weights = [model.state_dict() for model in found.models]
    digest = sha256(b"".join(array.tobytes() for arrays in weights for array in arrays.values()))
    return {
        "weights": digest.hexdigest(),
        "records": [{**record, "seconds": 0} for record in found],
        "plan": found.plan.reason,
    }


if __name__ == "__main__":
    with executor_of(sys.argv[1]) as executor:
        shards = sweep(executor=executor)
    print(json.dumps({"shards": shards, "here": sweep(n_jobs=1)}))
