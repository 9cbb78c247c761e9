"""Ctrl-C in a sweep whose networks threads train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT, pthread_kill
from threading import Event, Lock, Thread, get_ident, main_thread
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import blobs
from warpfit.sweep.threads import DeviceThreads, Stop, heard

X, Y = blobs(60)
ROOT = Path(__file__).resolve().parents[2]
ENDLESS = 10**8  # epochs: days


class CtrlC(wf.Callback):
    """Interrupts the main thread, as a terminal does, when so many networks are amid their work."""

    needs_run = False

    def __init__(self, at_work: int) -> None:
        self.at_work, self.began, self._lock = at_work, set[int](), Lock()

    def __deepcopy__(self, memo: Any) -> CtrlC:
        return self

    def on_epoch_end(self, run: Any) -> None:
        if run.plan.epochs < ENDLESS or run.report.epoch < 100:
            return
        with self._lock:
            is_last = get_ident() not in self.began and len(self.began) == self.at_work - 1
            self.began.add(get_ident())
        if is_last:
            pthread_kill(main_thread().ident or 0, SIGINT)


@contextmanager
def _executor(kind: str) -> Iterator[dict[str, Any]]:
    if kind == "devices":
        yield {"device": ["cpu", "cpu"]}
        return
    with ThreadPoolExecutor(2) as executor:
        yield {"device": "cpu", "executor": executor, "n_jobs": 2}


@pytest.mark.parametrize("kind", ["devices", "an executor"])
def test_ctrl_c_breaks_off_the_networks_at_work_and_keeps_what_is_done(kind: str) -> None:
    candidates = [{"epochs": 2}, {"epochs": 2}, *({"epochs": ENDLESS, "lr": lr} for lr in (1, 2))]
    last = [{"epochs": ENDLESS}] * 2
    with _executor(kind) as where:
        candidates += last if kind == "devices" else []
        found = wf.fit_many(
            build, X, Y, candidates=candidates, callbacks=[CtrlC(2)], verbose=False, **where
        )
    assert found.interrupted
    assert found.counts() == {
        "done": 2,
        "interrupted": 2,
        **({"not started": 2} if kind == "devices" else {}),
    }
    for record, model, history in zip(found.records, found.models, found.histories, strict=True):
        assert len(history) == (2 if record["status"] == "done" else record["epochs"])
        assert (model is None) == (record["status"] == "not started")


TWICE = """
import os, signal, threading, time
import numpy as np
import warpfit as wf
from support.sweeps import build
from support.training import blobs

x, y = blobs(60)
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)

class Stuck(wf.Callback):
    def on_start(self, run):
        if run.plan.epochs == 3:
            threading.Timer(0.2, interrupt).start()
            threading.Timer(1.0, interrupt).start()
            time.sleep(10**6)

found = wf.fit_many(
    build, x, y, candidates=[{"epochs": 2}, {"epochs": 3}], device=["cpu", "cpu"],
    callbacks=[Stuck()], verbose=False,
)
print(found.interrupted, found.counts())
"""


def test_a_second_ctrl_c_does_not_wait_for_a_thread_that_does_not_end() -> None:
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    process = subprocess.run(
        [sys.executable, "-c", TWICE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=60,
    )
    assert process.stdout == "True {'done': 1, 'not started': 1}\n", process.stderr
    assert process.returncode == 0, process.stderr


def test_a_search_ends_at_once() -> None:
    interrupting = CtrlC(2)
    estimator = wf.MLPClassifier(
        8, max_iter=ENDLESS, n_iter_no_change=ENDLESS, callbacks=[interrupting], device=["cpu"] * 2
    )
    with pytest.raises(KeyboardInterrupt):
        wf.SweepCV(estimator, {"alpha": [1e-3, 1e-2]}, cv=2, refit=False).fit(X, Y)
    assert len(interrupting.began) == 2


def test_what_is_set_interrupts_threads_once_and_those_that_come_later() -> None:
    stop, is_at_work, came = Stop(), Event(), list[str]()

    def work() -> None:
        with suppress(KeyboardInterrupt), heard(stop):
            is_at_work.set()
            try:
                while True:
                    np.zeros(3)
            except KeyboardInterrupt:
                came.append("interrupt")
            stop.set()  # again
            for _ in range(1000):
                np.zeros(3)
            came.append("end")
        with suppress(KeyboardInterrupt), heard(stop):
            came.append("too late")

    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(work)
        assert is_at_work.wait(30)
        stop.set()
        done.result(30)
    assert came == ["interrupt", "end"]


def test_without_anything_to_hear_there_is_nothing() -> None:
    with heard(None):
        pass
    stop = Stop()
    with heard(stop):
        pass
    stop.set()  # interrupts nobody
    with pytest.raises(KeyboardInterrupt), heard(stop):
        pytest.fail("it began")


def test_ctrl_c_as_threads_start_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = Thread.start, list[Thread]()

    def interrupted(self: Thread) -> None:
        if started:
            raise KeyboardInterrupt
        started.append(self)
        start(self)

    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DeviceThreads(["cpu", "cpu"])
    started[0].join(10)
    assert not started[0].is_alive()
