"""Programs of others: processes that are ended when they hang or fail, and what the peers
compute.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime
from support.training import blobs
from warpfit.apps.ladder import RUNGS, Record, Result, climb
from warpfit.apps.ladder.task import Task

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import ladder_peers
from ladder_peers import PEERS, Measured, Peer, beside, run_peers

ROOT = Path(__file__).resolve().parents[1]

# A worker whose programs do what their names say.
WORKER = """
import json, os, pathlib, subprocess, sys, time

def tell(what):
    print("ladder: " + json.dumps(what), flush=True)

folder, library, *names = sys.argv[1:]
pathlib.Path(folder, "task.json").read_text()
print("a line of the library's own")
tell({"ready": library})
for name in names:
    if name == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pathlib.Path(os.environ["CHILD"]).write_text(str(child.pid))
        time.sleep(60)
    if name == "dies":
        sys.exit("Segmentation fault, so to speak")
    if name == "fails":
        tell({"reason": "RuntimeError: no cuDNN"})
    else:
        seconds = [9.0, 2.0, 2.5]
        tell({"first_call": 1.0, "seconds": seconds, "steps": 4, "loss": 0.5, "accuracy": 0.9})
"""


def small_task() -> Task:
    x, y = blobs(50, 12, 4)
    return Task((12, 16, 4), 10, 0.5, x, y)


def outcomes(
    names: list[str], *, seconds: float = 20.0, deadline: float = 1e12
) -> dict[str, Measured | str]:
    kind = PEERS["numpy-by-hand"]
    chosen = [replace(kind, name=name, seconds=seconds) for name in names]
    found = run_peers(chosen, small_task(), "cpu", 3, deadline, lambda peer: None)
    return {peer.name: outcome for peer, outcome in found}


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a worker in place whose programs succeed, fail, die and hang; return where the last one's
    child is told.
    """
    path = tmp_path / "worker.py"
    path.write_text(WORKER, encoding="utf-8")
    monkeypatch.setattr(ladder_peers, "WORKER", path)
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    return tmp_path / "child"


def is_running(process: int) -> bool:
    try:
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        )
    except OSError:
        return False
    return state != "Z"


def test_one_that_fails_or_dies_or_hangs_does_not_spoil_the_others(fake_worker: Path) -> None:
    found = outcomes(["good", "fails", "dies", "well", "hangs", "fine"], seconds=2.0)
    measured = Measured(1.0, [9.0, 2.0, 2.5], 4, 0.5, 0.9)
    assert [found[name] for name in ("good", "well", "fine")] == [measured] * 3
    assert found["fails"] == "RuntimeError: no cuDNN"
    assert found["dies"] == "its process ended: Segmentation fault, so to speak"
    assert found["hangs"] == "it took longer than 2 s, and was ended"
    assert not is_running(int(fake_worker.read_text(encoding="utf-8")))


def test_nothing_is_started_when_the_time_is_over(fake_worker: Path) -> None:
    assert outcomes(["good"], deadline=perf_counter() + 1) == {
        "good": "there was no time left for it"
    }


def with_peers(task: Task, names: list[str], *, epochs: int = 4) -> Result:
    """Return what a climb of NumPy's rung alone finds, and peers beside it."""
    own = climb(device="cpu", data=(task.x, task.y), rungs=["numpy"], epochs=epochs)
    told: list[Record] = []
    chosen = [PEERS[name] for name in names]
    found = beside(own, task, chosen, 1e12, lambda step: None, told.append)
    assert list(found)[1:] == told
    return found


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_peers, "find_spec", lambda name: None)
    _, record = with_peers(small_task(), ["jax-scan"])
    assert (record.ran, record.reason) == (False, "JAX is not installed")


def test_a_peer_stands_beside_the_ladder(fake_worker: Path) -> None:
    x, y = blobs(500, 12)
    numpy, peer = with_peers(Task((12, 16, 4), 64, 0.5, x, y), ["numpy-by-hand"])
    assert (peer.is_peer, peer.epochs, peer.steps, peer.is_scaled) == (True, 4, 4, True)
    assert peer.ms_per_epoch == 2.25e3 * 8 / 4  # the median of the later half, of 8 steps
    assert peer.gain_over_first == (numpy.ms_per_epoch or 0) / peer.ms_per_epoch
    assert peer.gain is None


def test_the_page_says_of_every_peer_what_the_benchmark_says() -> None:
    page = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
    for peer in PEERS.values():
        assert f"| `{peer.name}` | {peer.changes} | " in page


def test_every_row_of_the_report_has_a_counterpart() -> None:
    page = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
    rows = page.partition("| row of the report |")[2].partition("\n\n")[0].splitlines()[2:]
    names = {rung.name for rung in RUNGS} | set(PEERS)
    assert len(rows) == 9
    for row in rows:
        assert names & set(row.partition(" ms | ")[2].split("`")), row


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker's module."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds to this
    return import_module("peers.ladder_worker")


def test_every_peer_has_its_program(worker: Any) -> None:
    assert list(worker.PROGRAMS) == list(PEERS)
    assert worker.MARK == ladder_peers.MARK


def test_the_loop_by_hand_learns_in_a_process_of_its_own() -> None:
    x, y = blobs(320, 12, 4)
    _, record = with_peers(Task((12, 16, 4), 64, 0.5, x, y), ["numpy-by-hand"], epochs=30)
    assert record.reason == ""
    assert (record.epochs, record.steps) == (30, 5)
    assert record.loss is not None
    assert record.loss < 0.3
    assert (record.accuracy or 0) > 0.9


def test_the_loop_by_hand_computes_what_the_backend_does(worker: Any) -> None:
    numpy_loop = import_module("peers.numpy_loop")
    task = small_task()
    by_hand = numpy_loop.Trainer(task.sizes, task.x, task.y, batch_size=len(task.x), lr=task.lr)
    model = task.model()
    by_hand.layers = [
        [w.data.copy(), b.data.copy()]
        for w, b in zip(model.parameters()[::2], model.parameters()[1::2], strict=True)
    ]
    from warpfit import fit, optim

    losses = [by_hand.epoch()[0] for _ in range(4)]
    optimizer = optim.SGD(model.parameters(), task.lr)
    history = fit(
        model,
        task.x,
        task.y,
        optimizer=optimizer,
        epochs=4,
        batch_size=50,
        device="cpu",
        verbose=False,
    )
    np.testing.assert_allclose(losses, history["loss"], rtol=1e-5)


class SlowTrainer:
    """Ten milliseconds a step."""

    steps = 400

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def epoch(self, most_steps: int | None = None) -> tuple[float, float]:
        self.asked.append(most_steps)
        return 0.5, 0.9


def test_a_slow_peer_trains_for_fewer_steps(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SlowTrainer()
    clock = iter([0.0, 1.0, 1.4, 3.0, 3.0, 5.1, 5.1, 7.3, 9.0, 9.0])
    monkeypatch.setattr(worker, "perf_counter", lambda: next(clock))
    found = worker.measured(lambda task: trainer, {"epochs": 9, "seconds": 4.0})
    assert trainer.asked == [2, 40, 200, 200, 200]
    assert (found["steps"], found["seconds"]) == (200, pytest.approx([2.1, 2.2]))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", ["torch-preloaded", "torch-dataloader", "torch-amp", "jax-scan"])
def test_peers_learn_on_a_cpu(name: str, worker: Any) -> None:
    pytest.importorskip(PEERS[name].library, reason=f"{PEERS[name].library} is not installed")
    x, y = blobs(320, 12, 4)
    settings = {"sizes": (12, 16, 4), "batch": 32, "lr": 0.5, "seed": 0, "device": "cpu"}
    found = worker.measured(
        worker.PROGRAMS[name], {**settings, "data": (x, y), "epochs": 15, "seconds": 20.0}
    )
    assert found["loss"] < 0.4
    assert found["accuracy"] > 0.9
    assert len(found["seconds"]) == 14


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_products_of_the_library_are_ours(
    transposed: tuple[bool, bool], worker: Any, emulated_runtime: EmulatedRuntime
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    library_ops = import_module("peers.library_ops")

    class Ops(library_ops.CublasOps):  # type: ignore[misc, name-defined]
        """As on a GPU, but over the emulator's memory."""

        def shared(self, array: Any) -> Any:
            place = (ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
            return torch.from_numpy(
                np.ctypeslib.as_array(place).view(np.float32).reshape(array.shape)
            )

    rng, (first, second) = np.random.default_rng(0), transposed
    a, b = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    ops = Ops(emulated_runtime)
    turned: Callable[[Any, bool], Any] = lambda x, is_turned: ops.asarray(  # noqa: E731
        np.ascontiguousarray(x.T) if is_turned else x
    )
    for _ in range(2):
        ops.begin_step()
        out = ops.matmul(turned(a, first), turned(b, second), transpose_a=first, transpose_b=second)
        np.testing.assert_allclose(ops.to_numpy(out), a @ b, rtol=1e-5, atol=1e-6)


def test_a_worker_tells_what_it_lacks(worker: Any, tmp_path: Path) -> None:
    task: Any = {"device": "cuda:0", "epochs": 2, "sizes": (2, 2), "data": (None, None)}
    if os.environ.get("CUDA_VISIBLE_DEVICES") or not pytest.importorskip("torch"):
        pytest.skip("PyTorch may see a GPU")
    import torch

    if torch.cuda.is_available():
        pytest.skip("PyTorch sees a GPU")
    with pytest.raises(RuntimeError, match="sees the GPU"):
        worker.torch_dataloader({**task, "batch": 1, "lr": 0.1})


def test_titles_are_all_different() -> None:
    peers_of_all: list[Peer] = list(PEERS.values())
    assert len({peer.title for peer in peers_of_all}) == len(peers_of_all)
