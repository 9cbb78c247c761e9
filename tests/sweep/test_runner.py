"""Who trains: an executor's workers, processes, and what they do when something goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config
from joblib._parallel_backends import ThreadingBackend
from joblib.parallel import BACKENDS
from threadpoolctl import threadpool_info, threadpool_limits

import warpfit as wf
from support.devices import no_gpu
from support.sweeps import ARGUMENTS, build
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit.errors import ConfigError, DeviceError, Obstacle
from warpfit.sweep import elsewhere
from warpfit.sweep.elsewhere import Shards, run_shard
from warpfit.sweep.fit_many import _tasks
from warpfit.sweep.folds import SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.sending import workers_of
from warpfit.sweep.threads import own_device, stop_of
from warpfit.sweep.workers import (
    DeviceWorkers,
    ExecutorsWorkers,
    JoblibsWorkers,
    _called,
    workers_for,
)

X, Y = blobs(60)
SCRIPT = Path(__file__).with_name("workers.py")
ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}


def sweep(**arguments: Any) -> wf.Sweep:
    given = {"grid": {"lr": [0.1, 0.2, 0.3]}, "epochs": 2, "verbose": False, **arguments}
    return wf.fit_many(given.pop("build", build), X, Y, **given)


def test_threads_are_an_executor_too_and_shards_take_devices_in_turn() -> None:
    one = sweep(device="cpu", n_jobs=1)
    with ThreadPoolExecutor(1) as executor:
        found = sweep(executor=executor, device=["cpu", "cpu"], n_jobs=3)
        whole = sweep(executor=executor, device=["cpu", "cpu"], n_jobs=1)
    assert whole.plan.reason == "1 shard by ThreadPoolExecutor, on cpu"
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


def _shard_here(tasks: Any, share: None, stop: Any) -> Any:
    return run_shard(tasks, "cpu")


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
        outcomes = executor.submit(_called, _shard_here, tasks, None, stop).result()
    assert [outcome.status for outcome in outcomes] == ["done", "interrupted"]
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
    """Ends its process at a rate, as a system without memory does, as often as `most`, which a file
    counts.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most

    def on_start(self, run: Any) -> None:
        if run.plan.optimizer.lr.rate(None) != 0.3:
            return
        with open(self.path, "a+") as file:
            file.write("killed\n")
            file.seek(0)
            if len(file.readlines()) <= self.most:
                file.close()
                time.sleep(0.5)  # the others are through
                os._exit(1)


@pytest.mark.slow
def test_a_process_that_is_killed_takes_no_others_with_it(tmp_path: Path) -> None:
    found = sweep(device="cpu", n_jobs=2, callbacks=[Killing(tmp_path / "kills", 100)])
    assert found.counts() == {"done": 2, "failed": 1}
    words = "a process that trained networks was killed again and again"
    assert found.records[2]["message"].startswith(words)


def test_what_a_killed_process_had_is_trained_again(tmp_path: Path) -> None:
    kills = tmp_path / "kills"
    found = sweep(device="cpu", n_jobs=2, callbacks=[Killing(kills, 1)])
    assert kills.read_text() == "killed\n" * 2
    assert found.counts() == {"done": 3}
    for ours, theirs in zip(found.models, sweep(device="cpu", n_jobs=1).models, strict=True):
        assert_same_weights(ours, theirs)


def test_several_devices_take_networks_as_they_are_free() -> None:
    found = sweep(device=["cpu", "cpu"])
    assert found.plan.reason == "in turn by cpu, cpu, whichever is free"
    for ours, theirs in zip(found.models, sweep(device="cpu", n_jobs=1).models, strict=True):
        assert_same_weights(ours, theirs)


def test_a_slow_device_takes_fewer() -> None:
    at_work, others_done, done = Event(), Event(), []

    def train(shared: Any, share: int, stop: Event | None) -> str:
        device = own_device() or ""
        if device == "slow":
            at_work.set()
            assert others_done.wait(30)
        assert at_work.wait(30)
        done.append(share)
        if len(done) == 9:
            others_done.set()
        return device

    found = dict(DeviceWorkers(["slow", "fast"]).results(train, None, range(10)))
    assert sorted(found) == list(range(10))
    assert Counter(found.values()) == {"slow": 1, "fast": 9}
    assert own_device() is None


def test_shards_are_as_large_as_a_device_trains_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[int]] = []
    monkeypatch.setattr(elsewhere, "_outcomes", lambda _, __, shards, ___: sent.extend(shards))
    tasks = [SimpleNamespace(number=idx, model=build({"lr": 0.1})[0]) for idx in range(7)]
    launch = SimpleNamespace(groups=lambda num_multiprocessors: 3)
    plan = SimpleNamespace(device="cuda:0", epochs=1, num_rows=60)
    longer = SimpleNamespace(device="cuda:0", epochs=2, num_rows=60)
    ops = SimpleNamespace(runtime=SimpleNamespace(num_multiprocessors=132))
    monkeypatch.setattr(elsewhere.backends, "get", lambda device: ops)
    groups: Any = [
        SimpleNamespace(plan=plan, launch=launch, tasks=tasks[:5]),
        SimpleNamespace(plan=longer, launch=Obstacle("no kernel"), tasks=tasks[5:]),
    ]
    workers: Any = DeviceWorkers(["cuda:0", "cuda:1"])
    elsewhere.Cards(workers, ["cuda:0", "cuda:1"], 2).run(groups)
    assert [[task.number for task in shard] for shard in sent] == [[5], [6], [0, 1, 2], [3, 4]]


class Cluster(ThreadingBackend):
    """A backend of joblib as Ray's: all workers are the cores of its machines."""

    def effective_n_jobs(self, n_jobs: int) -> int:
        return 16 if n_jobs == -1 else super().effective_n_jobs(n_jobs)


@pytest.mark.parametrize(("named", "num_workers"), [({}, 16), ({"n_jobs": 2}, 2)])
def test_the_workers_of_a_cluster_are_as_many_as_joblibs_context_says(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, int], num_workers: int
) -> None:
    monkeypatch.setitem(BACKENDS, "cluster", Cluster)
    with parallel_config("cluster", **named):
        found = workers_for(None, -1)
        assert isinstance(found, JoblibsWorkers)
        assert (found.kind, found.count) == ("cluster", num_workers)
        assert workers_for(None, 1) is None
        if named:
            plan = sweep(device="cpu", n_jobs=3).plan
            assert plan.reason == "3 shards by cluster, on cpu"


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
        pytest.raises(ConfigError, match="expected one device, 'auto'"),
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
    assert Shards(ExecutorsWorkers(Broken()), ["cpu"], 2).at_once([]) == 2


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


@pytest.mark.in_turns(3)
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
