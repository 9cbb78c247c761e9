"""Whether several cards that train one network are right: what scaling.py checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from time import perf_counter
from typing import IO, Any, cast

import numpy as np

import warpfit as wf
from scaling_cases import rows_of, trained
from warpfit import nn
from warpfit.backends import PROCESSES
from warpfit.engines import steps
from warpfit.errors import DataError

# Three batches of 96 rows, and one of 37.
CHECKED_SIZES, CHECKED_ROWS, CHECKED_BATCH = (64, 256, 256, 10), 325, 96


def checks(devices: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each check, what came of it, and whether it passed."""
    sizes = CHECKED_SIZES
    x, y = rows_of(sizes, CHECKED_ROWS)
    asked: dict[str, Any] = {"batch_size": CHECKED_BATCH, "precision": "float32", "seed": 3}
    asked["engine"] = "layerwise" if devices[0] == "cpu" else "graph"
    _, one = trained(sizes, x, y, devices[:1], epochs=6, **asked)
    for count in counts[1:]:
        several, ranks = devices[:count], f"{count} ranks"
        model, history = trained(sizes, x, y, several, epochs=6, **asked)
        again, _ = trained(sizes, x, y, several, epochs=6, **asked)
        away = np.abs(history.step_losses / one.step_losses - 1).max()
        yield f"{ranks}, losses away from one's", _checked(float(away), away < 1e-4)
        is_same = _same_bits(model, again)
        yield f"{ranks}, equal bits", _checked(is_same, is_same)
        for name, others in (("one", devices[:1]), (f"all {len(devices)}", devices)):
            if len(others) != count:
                away = _away_when_resumed(sizes, x, y, several, others, one, asked)
                yield f"{ranks}, resumed on {name}, losses away", _checked(away, away < 1e-4)
    for count in counts[1:] if devices[0] != "cpu" else ():
        yield from _checks_of_launch(devices[:count], x, y, {**asked, "engine": "one_launch"})
    for count in counts[1:]:
        seconds = _seconds_to_fail(sizes, x, y, devices[:count], asked)
        yield f"{count} ranks, seconds until one's error ends all", _checked(seconds, seconds < 10)
        found, seconds = _of_processes(count, devices[0], {**asked, "epochs": 6})
        away = np.abs(found / one.step_losses.ravel() - 1).max()
        yield f"{count} processes, losses away from one's", _checked(float(away), away < 1e-4)
        yield (
            f"{count} processes, seconds until one killed ends all",
            _checked(seconds, seconds < 10),
        )


def _checks_of_launch(
    devices: Sequence[str], x: Any, y: Any, asked: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the checks of one launch over all devices."""
    sizes, name = CHECKED_SIZES, f"one launch over {len(devices)}"
    asked = {**asked, "batch_size": 32 * len(devices)}
    (_, one), (model, history), (again, _) = (
        trained(sizes, x, y, own, epochs=6, **asked) for own in (devices[:1], devices, devices)
    )
    away = np.abs(history.step_losses / one.step_losses - 1).max()
    yield f"{name}, losses away from one's", _checked(float(away), away < 1e-4)
    is_same = _same_bits(model, again)
    yield f"{name}, equal bits", _checked(is_same, is_same)


def _checked(value: Any, passed: Any) -> dict[str, Any]:
    return {"value": value, "passed": bool(passed)}


def _same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _away_when_resumed(
    sizes: Sequence[int],
    x: Any,
    y: Any,
    devices: Sequence[str],
    others: Sequence[str],
    one: Any,
    asked: dict[str, Any],
) -> float:
    """Return how far losses are away from those of one device if others go on from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        trained(sizes, x, y, devices, epochs=3, callbacks=[wf.Checkpoint(path)], **asked)
        _, history = trained(sizes, x, y, others, epochs=6, resume_from=path, **asked)
    return float(np.abs(history.step_losses / one.step_losses - 1).max())


def _seconds_to_fail(
    sizes: Sequence[int], x: Any, y: Any, devices: Sequence[str], asked: dict[str, Any]
) -> float:
    """Return after how many seconds an error of the last rank is the run's; infinity if it is
    not.
    """
    epochs_of = steps.Run.epochs

    def failing(run: Any, count: int) -> Any:
        if run.ranks.rank == len(devices) - 1 and run.state.epoch >= 2:
            raise DataError("a rank ends")
        return epochs_of(run, count)

    steps.Run.epochs = failing  # type: ignore[method-assign]
    begin = perf_counter()
    try:
        trained(sizes, x, y, devices, epochs=6, **asked)
    except DataError:
        return perf_counter() - begin
    finally:
        steps.Run.epochs = epochs_of  # type: ignore[method-assign]
    return inf


def _of_processes(count: int, device: str, asked: dict[str, Any]) -> tuple[Any, float]:
    """Return the losses of a run of so many processes, and after how many seconds all have ended
    once the last of them is killed.
    """
    command = [sys.executable, __file__, json.dumps(asked)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        shared = {"WARPFIT_MEETING": f"{folder}/meeting", "WARPFIT_WORLD_SIZE": str(count)}
        shared |= {"WARPFIT_DEVICE": "cpu"} if device == "cpu" else {}
        processes = []
        for rank in range(count):
            environment = {**os.environ, **shared, "WARPFIT_RANK": str(rank)}
            errors = started.enter_context(open(f"{folder}/errors{rank}", "w"))
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            started.enter_context(process)
            started.callback(process.kill)
            processes.append(process)
        first = cast(IO[str], processes[0].stdout)
        line = first.readline()
        if not line:
            raise DataError(f"expected losses of rank 0, got {Path(errors.name).read_text()}")
        losses = np.array(json.loads(line))
        first.readline()
        processes[-1].kill()
        begin = perf_counter()
        for process in processes[:-1]:
            process.communicate(timeout=60)
        return losses.ravel(), perf_counter() - begin


class _Telling(wf.Callback):
    """Says that an epoch is done."""

    def on_epoch_end(self, run: wf.Run) -> None:
        print("epoch", flush=True)


def train_as_process(asked: dict[str, Any]) -> None:
    """Print the losses of a run as one of several processes, and train on until one is killed."""
    x, y = rows_of(CHECKED_SIZES, CHECKED_ROWS)
    _, history = trained(CHECKED_SIZES, x, y, PROCESSES, **asked)
    print(json.dumps(history.step_losses.tolist()), flush=True)
    endless = {**asked, "epochs": 10**6, "callbacks": [_Telling()]}
    trained(CHECKED_SIZES, x, y, PROCESSES, **endless)


if __name__ == "__main__":
    train_as_process(json.loads(sys.argv[1]))
