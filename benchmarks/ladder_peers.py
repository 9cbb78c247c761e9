"""Programs of others beside the ladder, each library in a process of its own.

A process tells of one program after the other (`peers/ladder_worker.py`). One that fails, or takes
longer than it may, is ended; the programs that were to come after it get a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import warpfit
from warpfit.apps.ladder.climbing import later_half
from warpfit.apps.ladder.results import Record, Result, Step
from warpfit.apps.ladder.task import Task

# How a line begins with which a worker tells something.
MARK = "ladder: "
# Seconds that a peer's epochs may take, and that a library may take to be imported and find its
# device.
EPOCH_SECONDS, IMPORT_SECONDS = 5.0, 60.0
# Fewer seconds than this are not worth a start.
LEAST_SECONDS = 5.0

_PACKAGES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}


@dataclass(frozen=True)
class Peer(Step):
    """A program beside the ladder."""

    library: str  # the package that it needs
    seconds: float = 20.0  # at most, for set-up, compilation and epochs
    needs_gpu: bool = False


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "numpy-by-hand",
            "NumPy by hand",
            "a plain loop of thirty lines",
            "nothing: it is what one would write first",
            "it does what the NumPy backend does, without its buffers",
            "numpy",
        ),
        Peer(
            "cublas",
            "no read-back, cuBLAS",
            "the rung no-readback with float32 products by cuBLAS (torch.mm, on the same arrays)",
            "time in products",
            "PyTorch's dispatch costs the host more than our launch does",
            "torch",
            needs_gpu=True,
        ),
        Peer(
            "cudnn",
            "fewer reports, cuBLAS, cuDNN",
            "that with fewer reports, and the softmax by the cuDNN that PyTorch brings along",
            "time in the softmax",
            "a softmax of ten classes takes next to nothing",
            "torch",
            needs_gpu=True,
        ),
        Peer(
            "torch-dataloader",
            "PyTorch, DataLoader",
            "PyTorch eager as its tutorials have it, rows from a DataLoader, pinned where there "
            "is a GPU",
            "time to write it, not to run it",
            "the DataLoader puts batches together row by row, in Python",
            "torch",
            25.0,
        ),
        Peer(
            "torch-preloaded",
            "PyTorch, preloaded",
            "all rows on the device from the beginning",
            "the DataLoader's work",
            "the host starts some fifty kernels a step",
            "torch",
        ),
        Peer(
            "torch-amp",
            "PyTorch, preloaded, AMP",
            "autocast to bfloat16",
            "time in products",
            "casts are more kernels to start",
            "torch",
        ),
        Peer(
            "torch-compile",
            "PyTorch, AMP, torch.compile",
            "forward and backward compiled",
            "kernels between products",
            "the host still starts each kernel",
            "torch",
            45.0,
            needs_gpu=True,
        ),
        Peer(
            "torch-graph",
            "PyTorch, compile + CUDA graph",
            "a whole step compiled, in bfloat16, 32 steps a CUDA graph",
            "the host's time for each kernel",
            "it is the quickest that PyTorch offers",
            "torch",
            45.0,
            needs_gpu=True,
        ),
        Peer(
            "jax-scan",
            "JAX, jit(scan)",
            "an epoch is one compiled function, a scan over its batches; on a GPU in bfloat16, "
            "32 steps unrolled",
            "the host's time for each kernel",
            "each step is still several kernels",
            "jax",
            45.0,
        ),
    )
}


@dataclass(frozen=True)
class Measured:
    """What a peer did; loss and accuracy are the last epoch's."""

    first_call: float  # seconds until its first epoch was trained, less those of a later one
    seconds: list[float]  # of each later epoch
    steps: int  # of these epochs
    loss: float | None
    accuracy: float | None


WORKER = Path(__file__).with_name("peers") / "ladder_worker.py"


def beside(
    result: Result,
    task: Task,
    peers: Sequence[Peer],
    deadline: float,
    on_start: Callable[[Step], None],
    on_rung: Callable[[Record], None],
) -> Result:
    """Return a climb's result with the records of peers that train the same task."""
    first = next((record.ms_per_epoch for record in result if record.ran), None)
    records = list(result)
    for peer, found in run_peers(peers, task, result.device, result.epochs, deadline, on_start):
        record = Record(peer.name, peer.title, peer.changes, peer.saves, peer.if_little, True)
        if isinstance(found, Measured):
            record = _filled(record, found, task.steps, first)
        else:
            record = replace(record, reason=found)
        records.append(record)
        on_rung(record)
    return replace(result, records=records)


def _filled(record: Record, found: Measured, steps: int, first: float | None) -> Record:
    ms_per_epoch = later_half(found.seconds) * 1e3 * steps / found.steps
    return replace(
        record,
        ms_per_epoch=ms_per_epoch,
        seconds=sum(found.seconds),
        first_call=found.first_call,
        epochs=1 + len(found.seconds),  # the first call has trained one
        steps=found.steps,
        is_scaled=found.steps < steps - 1,  # some leave the short last batch out
        loss=found.loss,
        accuracy=found.accuracy,
        gain_over_first=first / ms_per_epoch if first and ms_per_epoch else None,
    )


def run_peers(
    peers: Sequence[Peer],
    task: Task,
    device: str,
    epochs: int,
    deadline: float,
    on_start: Callable[[Peer], None],
) -> Iterator[tuple[Peer, Measured | str]]:
    """Run peers one after the other, and yield each with what it did, or why it did not.

    They train for so many epochs at most. After the deadline, by `perf_counter`, none is started.
    """
    if not peers:
        return
    with tempfile.TemporaryDirectory(prefix="warpfit-ladder-") as folder:
        _store(task, device, epochs, Path(folder))
        for library, group in groupby(peers, key=lambda peer: peer.library):
            yield from _of_library(library, list(group), device, Path(folder), deadline, on_start)


def _obstacle(peer: Peer, device: str) -> str:
    """Return why a peer cannot run, as far as is known without trying."""
    if find_spec(peer.library) is None:
        return f"{_PACKAGES[peer.library]} is not installed"
    return "it needs a CUDA device" if peer.needs_gpu and device == "cpu" else ""


def _store(task: Task, device: str, epochs: int, folder: Path) -> None:
    """Write for workers what they train."""
    np.save(folder / "x.npy", task.x)
    np.save(folder / "y.npy", task.y)
    settings: dict[str, Any] = {
        "sizes": task.sizes,
        "batch": task.batch,
        "lr": task.lr,
        "seed": task.seed,
        "device": device,
        "epochs": epochs,
        "seconds": EPOCH_SECONDS,
    }
    (folder / "task.json").write_text(json.dumps(settings), encoding="utf-8")


def _of_library(
    library: str,
    peers: list[Peer],
    device: str,
    folder: Path,
    deadline: float,
    on_start: Callable[[Peer], None],
) -> Iterator[tuple[Peer, Measured | str]]:
    """Run the peers of a library: in one process, as long as that holds."""
    obstacles = {peer.name: _obstacle(peer, device) for peer in peers}
    worker: _Worker | None = None
    try:
        for idx, peer in enumerate(peers):
            on_start(peer)
            left = deadline - perf_counter()
            obstacle = obstacles[peer.name] or (
                "" if left > LEAST_SECONDS else "there was no time left for it"
            )
            if obstacle:
                yield peer, obstacle
                continue
            if worker is None:
                names = [later.name for later in peers[idx:] if not obstacles[later.name]]
                worker = _Worker(library, names, folder)
            yield peer, worker.outcome(min(left, peer.seconds), min(left, IMPORT_SECONDS))
            if worker.is_over:
                worker.close()
                worker = None
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """A process that runs some programs of a library, and tells of each, until it `is_over`."""

    def __init__(self, library: str, names: list[str], folder: Path) -> None:
        self.is_over, self._is_ready = False, False
        self._errors = (folder / f"{library}.log").open("w+", encoding="utf-8", errors="replace")
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        sources = str(Path(warpfit.__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (sources, os.environ.get("PYTHONPATH")))
        )
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), library, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,  # so that what it starts ends with it
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def outcome(self, seconds: float, import_seconds: float) -> Measured | str:
        """Return what the next program did, or why it did not."""
        if not self._is_ready:
            told = self._told(import_seconds)
            if isinstance(told, str):
                return told
            self._is_ready = True
        told = self._told(seconds)
        if isinstance(told, str):
            return told
        return str(told["reason"]) if "reason" in told else Measured(**told)

    def _told(self, seconds: float) -> dict[str, Any] | str:
        """Return what the worker tells next; if it does not, the reason, and it is over."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.is_over = True
            return f"it took longer than {seconds:.0f} s, and was ended"
        if line is None:
            self.is_over = True
            return f"its process ended: {self._last_words()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def _listen(self) -> None:
        assert self._process.stdout is not None  # a pipe
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(line.removeprefix(MARK))
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.flush()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def close(self) -> None:
        """End the process, with all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
