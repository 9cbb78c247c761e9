"""Processes of MPI that train one network: each runs the same program, and has the result."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.mpi import mpiexec, with_mpi
from support.training import Writing, adam, blobs, mlp

pytestmark = with_mpi

PROGRAM = """
import json
import warpfit as wf
from support.training import Writing, adam, blobs, mlp
from warpfit.backends.numpy.processes import processes

x, y = blobs(61, dtype="float64")
model = mlp(6, 8, 3, dtype="float64")
opt = adam(model)
rank = processes().rank

class Telling(wf.Callback):
    def on_epoch_end(self, run):
        print(f"epoch {run.report.epoch} on rank {rank}", flush=True)

callbacks, metrics = [Telling(), wf.Checkpoint("run.ckpt"), wf.EarlyStopping(patience=50)], []
"""
FIT = """
history = wf.fit(model, x, y, optimizer=opt, epochs=4, batch_size=16, seed=5, device="processes",
                 validation_data=(x, y), callbacks=callbacks, verbose=False, metrics=metrics)
weights = {name: array.tolist() for name, array in model.state_dict().items()}
with open(f"rank{rank}.json", "w") as file:
    measured = [history[f"val_{metric.__name__}"] for metric in metrics]
    json.dump([weights, history["loss"], measured, opt.step_count], file)
"""


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "program.py")


def test_each_process_begins_with_rank_0s_numbers_and_has_those_of_one_device(
    tmp_path: Path,
) -> None:
    x, y = blobs(61, dtype="float64")
    model = mlp(6, 8, 3, dtype="float64")
    optimizer = adam(model)
    asked: dict[str, Any] = {"epochs": 4, "batch_size": 16, "seed": 5, "verbose": False}
    asked |= {"callbacks": [wf.EarlyStopping(), Writing()], "validation_data": (x, y)}
    expected = wf.fit(model, x, y, optimizer=optimizer, device="cpu", **asked)
    others = """
def share_right(y, predicted):
    return (y == predicted).mean()

metrics = [share_right]
callbacks += [Writing()]
for parameter in model.parameters() if rank else ():
    parameter.data += 0.1
"""
    process = mpiexec(tmp_path, PROGRAM + others + FIT)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert sorted(out.splitlines()) == [f"epoch {epoch} on rank 0" for epoch in range(1, 5)]
    assert files(tmp_path) == ["rank0.json", "rank1.json", "run.ckpt"]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    weights, losses, (shares,), steps = ranks[0]
    np.testing.assert_allclose(losses, expected["loss"], rtol=1e-11)
    assert (len(shares), steps) == (4, optimizer.step_count)
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-9, atol=1e-12)


def test_processes_are_asked_for_the_same_run(tmp_path: Path) -> None:
    expected = {
        "batch_size 17 on rank 1 and 16 on rank 0": ("batch_size=16", "batch_size=16 + rank"),
        "seed 1 on rank 1 and 0 on rank 0": ("seed=5", "seed=rank"),
        "num_rows 60 on rank 1 and 61 on rank 0": ("model, x, y", "model, x[rank:], y[rank:]"),
    }
    fits = [FIT.replace(*change) for change in expected.values()]
    tried = f"""
for fit in {fits!r}:
    try:
        exec(fit)
    except wf.errors.ConfigError as error:
        print(f"{{rank}}: {{error}}", flush=True)
"""
    process = mpiexec(tmp_path, PROGRAM + tried)
    out, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    said = "expected the same run in all processes, got"
    assert sorted(out.splitlines()) == sorted(
        f"{rank}: {said} {what}" for rank in range(2) for what in expected
    )
    assert not files(tmp_path)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("end", ["interrupt", "kill", "raise"])
def test_what_ends_one_process_ends_all(end: str, tmp_path: Path) -> None:
    program = (
        PROGRAM
        + f"""
import os, signal, time
from warpfit.errors import DataError

class Ending(wf.Callback):
    def on_step(self, step, steps_per_epoch):
        if step == 3:
            if {end!r} == "raise":
                raise DataError("a callback raised it")
            open("reached", "w").close()
            time.sleep(60)

callbacks = [Ending(), wf.Checkpoint("run.ckpt")]
if rank == 1 and {end!r} == "kill":
    import threading
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
"""
        + FIT
    )
    process = mpiexec(tmp_path, program)
    if end == "interrupt":
        for _ in range(600):
            if (tmp_path / "reached").exists():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=50)  # hangs otherwise
    assert process.returncode != 0
    assert set(files(tmp_path)) <= {"reached"}
    if end == "raise":
        assert "rank 0 of 2: DataError: a callback raised it" in errors
