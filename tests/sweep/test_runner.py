"""Who trains: an executor's workers, processes, and what they do when something goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import warpfit as wf
from support.devices import no_gpu
from support.sweeps import ARGUMENTS, build
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit.errors import ConfigError, DeviceError
from warpfit.sweep.elsewhere import Shards, run_shard
from warpfit.sweep.fit_many import _tasks
from warpfit.sweep.folds import SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.sending import stop_of, workers_of

X, Y = blobs(60)
SCRIPT = Path(__file__).with_name("workers.py")
ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}


def results(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        [*command], capture_output=True, text=True, timeout=120, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_same(found: dict[str, Any], words: str) -> None:
    assert found["shards"]["weights"] == found["here"]["weights"]
    assert found["shards"]["records"] == found["here"]["records"]
    assert words in found["shards"]["plan"]


def test_a_pool_of_processes_gives_the_same_bits() -> None:
    found = results(sys.executable, str(SCRIPT), "processes")
    assert_same(found, "2 shards by ProcessPoolExecutor, on cpu")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("distributed") is None, reason="distributed (Dask) is not installed")
def test_dasks_workers_give_the_same_bits() -> None:
    found = results(sys.executable, str(SCRIPT), "dask")
    assert_same(found, "2 shards by ClientExecutor, on cpu")


def mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.skipif(mpiexec() is None, reason="no mpiexec was found, of an MPI library")
def test_mpis_workers_give_the_same_bits() -> None:
    command = [
        str(mpiexec()),
        "-n",
        "3",
        sys.executable,
        "-m",
        "mpi4py.futures",
        str(SCRIPT),
        "mpi",
    ]
    assert_same(results(*command), "2 shards by MPIPoolExecutor, on cpu")


def sweep(**arguments: Any) -> wf.Sweep:
    given = {"grid": {"lr": [0.1, 0.2, 0.3]}, "epochs": 2, "verbose": False, **arguments}
    return wf.fit_many(given.pop("build", build), X, Y, **given)


def test_threads_are_an_executor_too_and_shards_take_devices_in_turn() -> None:
    one = sweep(device="cpu", n_jobs=1)
    with ThreadPoolExecutor(1) as executor:
        found = sweep(executor=executor, device=["cpu", "cpu"], n_jobs=3)
    assert found.plan.reason == "3 shards by ThreadPoolExecutor, on cpu, cpu"
    for ours, theirs in zip(found.models, one.models, strict=True):
        assert_same_weights(ours, theirs)


def test_several_threads_have_the_bits_of_one_and_leave_blas_its_threads() -> None:
    def blas() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    folds = [(np.arange(len(X))[fold::2], np.arange(len(X))[1 - fold :: 2]) for fold in range(2)]
    grid = {"lr": [0.1, 0.2], "seed": list(range(8))}
    one = sweep(device="cpu", n_jobs=1, grid=grid, folds=folds)
    with threadpool_limits(limits=2, user_api="blas"):
        before, interval = blas(), sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with ThreadPoolExecutor(4) as executor:
                found = sweep(executor=executor, device="cpu", grid=grid, folds=folds)
        finally:
            sys.setswitchinterval(interval)
        assert blas() == before
    assert found.counts() == {"done": 32}
    for ours, theirs in zip(found.models, one.models, strict=True):
        assert_same_weights(ours, theirs)


def test_threads_stop_after_ctrl_c_and_hand_over_what_they_have() -> None:
    executor, stop = ThreadPoolExecutor(1), stop_of(ThreadPoolExecutor(1))
    assert stop is not None
    assert stop_of(Broken()) is None
    trained: list[Any] = []

    class Counting(wf.Callback):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

        def on_start(self, run: Any) -> None:
            trained.append(run)
            if len(trained) == 2:
                stop.set()

    tasks = _tasks(
        build,
        [{"lr": lr} for lr in (0.1, 0.2, 0.3)],
        ARGUMENTS,
        SweepData(X, Y),
        [None],
        [Counting()],
        None,
    )
    with executor:
        outcomes = executor.submit(run_shard, tasks, "cpu", stop).result()
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    with pytest.raises(KeyboardInterrupt):
        run_here(tasks, stop)


def test_an_executor_that_takes_nothing_is_named() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(
        DeviceError, match=r"a worker of ThreadPoolExecutor ended with RuntimeError: .*shutdown"
    ):
        sweep(executor=executor, device="cpu")


class Killing(wf.Callback):
    """Ends its process at a rate, as a system without memory does."""

    def on_start(self, run: Any) -> None:
        if run.plan.optimizer.lr.rate(None) == 0.3:
            time.sleep(1.0)  # the others are through
            os._exit(1)


def test_a_process_that_is_killed_takes_no_others_with_it() -> None:
    found = sweep(device="cpu", n_jobs=2, callbacks=[Killing()])
    assert found.counts() == {"done": 2, "failed": 1}
    assert found.records[2]["message"].startswith("a process that trained networks was killed")


def test_devices_that_only_workers_have_are_their_business(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(
            DeviceError, match=r"a worker of ThreadPoolExecutor ended with DeviceError: .*cuda:0"
        ),
    ):
        sweep(executor=executor, device="cuda", precision="float16")
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ConfigError, match="expected device 'auto'"),
    ):
        sweep(executor=executor, device="tpu")


class Broken(Executor):
    """Whose workers fail at all that they are told."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("the node went down"))
        return future


def test_a_worker_that_breaks_is_named() -> None:
    with pytest.raises(
        DeviceError, match="a worker of Broken ended with RuntimeError: the node went down"
    ):
        sweep(executor=Broken())


def test_what_cannot_be_sent_is_said() -> None:
    def local(candidate: Any) -> Any:
        class Local(wf.nn.Module):
            def __init__(self) -> None:
                self.inner = mlp(6, 3)

            def forward(self, x: Any) -> Any:
                return self.inner(x)

        model = Local()
        return model, sgd(model)

    with pytest.raises(
        ConfigError, match=r"that can be pickled, to be sent to other processes, but .*Local"
    ):
        sweep(executor=Broken(), build=local)


def test_workers_are_counted_as_far_as_executors_say() -> None:
    with ThreadPoolExecutor(5) as executor:
        assert workers_of(executor) == 5
    assert workers_of(Broken()) >= 1
    assert Shards(Broken(), ["cpu"], 2).at_once([]) == 2


INTERRUPTED = """
import warpfit as wf
from support.sweeps import ARGUMENTS, build
from support.training import blobs
x, y = blobs(2000)
def said(candidate):
    if candidate["seed"] == 39:
        print("built", flush=True)
    return build(candidate)
grid, arguments = {"seed": list(range(40))}, {"epochs": 150, "batch_size": 8, "device": "cpu"}
found = wf.fit_many(said, x, y, grid=grid, n_jobs=N_JOBS, halving=HALVING, **arguments)
print(found.interrupted, found.counts())
"""


@pytest.mark.parametrize(
    ("n_jobs", "halving"), [(1, None), (2, None), (2, wf.Halving(3, min_epochs=50))]
)
def test_ctrl_c_in_a_terminal_returns_what_is_finished(
    n_jobs: int, halving: Any, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        INTERRUPTED.replace("N_JOBS", str(n_jobs)).replace(
            "HALVING", f"{halving and f'wf.{halving}'}"
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "built\n"
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.startswith("True {"), output
    assert "not started" in output
