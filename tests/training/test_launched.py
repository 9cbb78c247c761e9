"""Processes that a launcher such as torchrun starts: they find each other by a file, and train one
network over TCP.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.launched import launch
from support.training import adam, blobs, mlp
from warpfit.backends.numpy import sockets
from warpfit.backends.numpy.sockets import Launched, SocketCommunicator
from warpfit.errors import ConfigError, DeviceError

PROGRAM = """
import json, os, time
import numpy as np
import warpfit as wf
from support.training import adam, blobs, mlp
from warpfit.backends.numpy.processes import processes

x, y = blobs(61, dtype="float64")
model = mlp(6, 8, 3, dtype="float64")
ranks = processes()
rank, callbacks = ranks.rank, []
"""
FIT = """
history = wf.fit(model, x, y, optimizer=adam(model), epochs=4, batch_size=16, seed=5,
                 device="processes", callbacks=callbacks, verbose=False)
weights = {name: array.tolist() for name, array in model.state_dict().items()}
print(json.dumps([weights, history["loss"]]))
"""


def outcomes(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit code, output and the last line of errors of each."""
    found = []
    for process in processes:
        out, errors = process.communicate(timeout=50)  # hangs otherwise
        found.append((process.returncode, out, (errors.strip().splitlines() or [""])[-1]))
    return found


def test_a_file_of_another_users_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = tmp_path / "meeting"
    meeting.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "key": "00"}))
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    with pytest.raises(DeviceError, match=r"expected .*meeting as a file of this user's"):
        SocketCommunicator(Launched(1, 2, 1, meeting, True))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("as_torchrun", [False, True])
def test_each_process_has_the_numbers_of_one_device(tmp_path: Path, as_torchrun: bool) -> None:
    x, y = blobs(61, dtype="float64")
    model = mlp(6, 8, 3, dtype="float64")
    asked: dict[str, Any] = {"epochs": 4, "batch_size": 16, "seed": 5, "verbose": False}
    expected = wf.fit(model, x, y, optimizer=adam(model), device="cpu", **asked)
    sums = """
arrays = [np.full((3, 2), rank + 1.0), np.zeros((0, 4)), np.array(1.0 * rank), np.eye(3)[1:].T]
arrays[3] *= 1 + rank
ranks.all_reduce(arrays)
ranks.broadcast(own := [np.full(2, 7.0 + rank)])
assert own[0].tolist() == [7, 7] and arrays[0].tolist() == [[6, 6]] * 3 and arrays[2] == 3
assert arrays[3].tolist() == [[0, 0], [6, 0], [0, 6]]
assert ranks.exchange(rank) == [0, 1, 2] and ranks.share(rank) == 0
ranks.barrier()
"""
    others = outcomes(launch(tmp_path, PROGRAM + sums + FIT, 3, as_torchrun=as_torchrun))
    assert [code for code, *_ in others] == [0] * 3, others
    assert len({out for _, out, _ in others}) == 1
    weights, losses = json.loads(others[0][1])
    np.testing.assert_allclose(losses, expected["loss"], rtol=1e-11)
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-9, atol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("difference", "own", "of_others"),
    [
        (
            "y = y[:5]",
            "ShapeError: expected as many rows in y as in x, got 5 and 61",
            "ConfigError: expected all processes to train, but rank 1 has ShapeError: expected",
        ),
        (
            "x = x + 1; y = y[::-1]",
            "ConfigError: expected the same data in all processes, each of which takes its part of "
            "every batch, got another x and y on rank 1 than on rank 0",
            "ConfigError: expected the same data in all processes",
        ),
    ],
)
def test_what_one_process_is_refused_ends_all(
    difference: str, own: str, of_others: str, tmp_path: Path
) -> None:
    program = f"{PROGRAM}\nif rank == 1:\n    {difference}\n{FIT}"
    first, second = outcomes(launch(tmp_path, program))
    assert (first[0], second[0]) == (1, 1)
    assert f"warpfit.errors.{of_others}" in first[2]
    assert second[2] == f"warpfit.errors.{own}"


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("end", ["kill", "raise", "exit", "interrupt"])
def test_what_ends_one_process_ends_all(end: str, tmp_path: Path) -> None:
    ending = f"""
from warpfit.errors import DataError

class Ending(wf.Callback):
    def on_step(self, step, steps_per_epoch):
        if step == 3:
            if {end!r} == "raise":
                raise DataError("a callback raised it")
            print("reached", flush=True)
            if {end!r} == "interrupt":
                raise KeyboardInterrupt
            time.sleep(0 if {end!r} == "exit" else 60)
            raise SystemExit(4)

callbacks = [Ending()]
"""
    first, second = launch(tmp_path, PROGRAM + ending + FIT)
    if end == "kill":
        assert first.stdout is not None
        assert first.stdout.readline() == "reached\n"
        first.send_signal(signal.SIGKILL)
    began = time.monotonic()
    code, out, error = outcomes([second])[0]
    assert code == 1
    assert time.monotonic() - began < 10 + 20 * (end != "kill")
    assert not out
    says = {"raise": "DataError: a callback raised it", "exit": "SystemExit: 4"}
    says["interrupt"] = "KeyboardInterrupt"
    assert (
        error
        == f"warpfit.errors.DeviceError: rank 0 of 2: {says.get(end, 'its process has ended')}"
    )
    first.communicate(timeout=50)


def test_a_process_that_waits_for_what_will_not_come_is_ended(tmp_path: Path) -> None:
    program = f"""{PROGRAM}
from warpfit.backends.numpy import sockets
sockets.SECONDS_TO_HEAR = 0.2
if rank:
    os._exit(3)
time.sleep(40)
"""
    first, second = outcomes(launch(tmp_path, program))
    assert (first[0], second[0]) == (1, 3)
    assert first[2] == "rank 0 of 2: rank 1 of 2: its process has ended"


def test_what_a_launcher_says(tmp_path: Path) -> None:
    assert Launched.of({"RANK": "1", "PATH": "/bin"}) is None
    own = {"WARPFIT_RANK": "1", "WARPFIT_WORLD_SIZE": "3", "WARPFIT_MEETING": str(tmp_path)}
    assert Launched.of(own) == (1, 3, 1, tmp_path, False)
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}
    found = Launched.of({**torchrun, "MASTER_PORT": "29500"})
    assert found is not None
    assert found[:3] == (5, 8, 1)
    assert found.is_local
    assert found.meeting.name == f"warpfit-{os.getuid()}-none--29500-8"
    assert found.meeting != Launched.of({**torchrun, "MASTER_PORT": "1"}).meeting  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WARPFIT_RANK": "0"}, "WARPFIT_WORLD_SIZE as a number of at least 1, got ''"),
        (
            {"WARPFIT_RANK": "2", "WARPFIT_WORLD_SIZE": "2"},
            "WARPFIT_RANK as a number of at least 0 and below 2, got '2'",
        ),
        (
            {"WARPFIT_RANK": "-1", "WARPFIT_WORLD_SIZE": "2"},
            "WARPFIT_RANK as a number of at least 0 and below 2, got '-1'",
        ),
    ],
)
def test_what_a_launcher_may_not_say(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"expected {message}"):
        Launched.of(given)


def test_processes_that_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SECONDS_TO_MEET", 0.3)
    for rank, came in ((0, "got 1 of them"), (1, "got no rank 0")):
        launched = Launched(rank, 2, rank, tmp_path / "meeting", True)
        with pytest.raises(DeviceError, match=f"expected 2 processes to meet by .*, {came}"):
            SocketCommunicator(launched)


def test_the_file_is_for_one_user_and_one_of_an_earlier_run_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    path.write_text(json.dumps({"host": "127.0.0.1", "port": 9, "key": "00"}))
    found: dict[int, SocketCommunicator] = {}

    def meet(rank: int) -> None:
        found[rank] = SocketCommunicator(Launched(rank, 2, rank, path, True))

    threads = [Thread(target=meet, args=(rank,)) for rank in (1, 0)]
    threads[0].start()
    time.sleep(0.1)
    path.unlink()
    threads[1].start()
    modes = set()
    while threads[1].is_alive():  # the file may have gone before it is looked at
        with suppress(FileNotFoundError):
            modes.add(stat.S_IMODE(path.stat().st_mode))
        time.sleep(1e-4)
    threads[0].join(10)
    assert modes <= {0o600}
    assert sorted(found) == [0, 1]
    for each in found.values():
        each._leave()
