"""What a command leaves where a file cannot be written: nothing, or what it can go on from."""

from __future__ import annotations

import errno
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.commands import DIGITS, Invoke
from warpfit.errors import ConfigError, DataError
from warpfit.files import ResultsFolder
from warpfit.plots import has_matplotlib
from warpfit.training import loop

RUN = ("train", *DIGITS, "--limit", "100", "--epochs", "2", "--out", "run")
TABLE = ("train", "--data", "cells.csv", "--method", "realmlp", "--epochs", "1", "--out", "run")
SWEEP = ("sweep", *DIGITS, "--limit", "100", "--lr", "0.1", "--jobs", "1", "--out", "run")
RESUMED = ("train", "--resume", "run", "--epochs", "3", "--profile", "--out", "run")
CHECKPOINT = "checkpoint.safetensors"
PICTURES = ["curves.svg", "confusion.svg"]
RESULTS = ["model.safetensors", "history.csv", "history.json", *PICTURES]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of files for which the disk has no room; none yet."""
    names: set[str] = set()
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name in names:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    return names


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_refused(invoke: Invoke, command: tuple[str, ...], name: str) -> None:
    outcome = invoke(*command)
    assert outcome.code == 2
    assert outcome.err.startswith("warpfit: cannot write ")
    assert outcome.err.endswith(f"{name}: No space left on device\n")


COMMANDS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "train": (RUN, ["model.safetensors", "history.csv", "history.json", "config.toml"]),
    "checkpoint": ((*RUN, "--checkpoint-every", "1"), [CHECKPOINT, "config.toml"]),
    "table": (TABLE, ["model.safetensors", "history.json"]),
    "sweep": (SWEEP, ["sweep.csv", "best.toml", "model.safetensors"]),
}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(command, name, id=f"{kind} {name}")
        for kind, (command, names) in COMMANDS.items()
        for name in names
    ],
)
def test_a_run_that_fails_can_be_repeated(
    invoke: Invoke,
    tmp_path: Path,
    fails: set[str],
    command: tuple[str, ...],
    name: str,
) -> None:
    (tmp_path / "cells.csv").write_text("x,kind\n" + "1,a\n2,b\n" * 20)
    fails.add(name)
    assert_refused(invoke, command, name)
    assert names_in(tmp_path) == ["cells.csv"]
    fails.clear()
    assert invoke(*command).code == 0
    assert name in names_in(tmp_path / "run")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (RUN, "curves.svg"),
        (RUN, "confusion.svg"),
        (TABLE, "confusion.svg"),
        pytest.param(
            SWEEP, "sweep.png", marks=pytest.mark.skipif(not has_matplotlib(), reason="no pictures")
        ),
    ],
)
def test_nothing_is_lost_for_a_picture(
    invoke: Invoke, tmp_path: Path, fails: set[str], command: tuple[str, ...], name: str
) -> None:
    (tmp_path / "cells.csv").write_text("x,kind\n" + "1,a\n2,b\n" * 20)
    fails.add(name)
    assert_refused(invoke, command, name)
    kept = next(names for of, names in COMMANDS.values() if of == command)
    assert names_in(tmp_path / "run") == sorted(kept)


def unpublished(folder: Path) -> ResultsFolder:
    """Return a folder with results that have yet to take their places."""
    results = ResultsFolder(folder)
    results.make()
    for name in ("history.json", "model.safetensors"):
        (results.unfinished / name).write_text(name)
    return results


@pytest.mark.parametrize("name", ["model.safetensors", "history.json"])
def test_of_what_cannot_take_its_place_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    results = unpublished(tmp_path / "run")
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        results.publish()
    results.end()
    assert not list(tmp_path.iterdir())


def test_files_take_their_places_in_spite_of_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = unpublished(tmp_path / "run")
    replace = os.replace

    def interrupted(source: Any, target: Any) -> None:
        replace(source, target)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.publish()
    results.end()
    assert names_in(tmp_path / "run") == ["history.json", "model.safetensors"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_two_runs_with_one_folder_lose_nothing(tmp_path: Path) -> None:
    runs = [ResultsFolder(tmp_path / "run") for _ in range(2)]
    for number, run in enumerate(runs):
        run.make()
        (run.unfinished / "model.safetensors").write_text(str(number))
    runs[1].publish()
    runs[1].end()
    with pytest.raises(ConfigError, match="expected no other run"):
        runs[0].publish()
    runs[0].end()
    assert (tmp_path / "run" / "model.safetensors").read_text() == "1"
    assert (runs[0].unfinished / "model.safetensors").read_text() == "0"


def test_a_run_that_fails_leaves_its_last_checkpoint(
    invoke: Invoke, tmp_path: Path, fails: set[str]
) -> None:
    fails.add("history.json")
    assert_refused(invoke, (*RUN, "--checkpoint-every", "1", "--profile"), "history.json")
    assert names_in(tmp_path / "run") == [CHECKPOINT, "config.toml"]
    fails.clear()
    assert invoke(*RESUMED).code == 0
    assert names_in(tmp_path / "run") == sorted([CHECKPOINT, "config.toml", "trace.json", *RESULTS])


@pytest.mark.parametrize("name", [CHECKPOINT, "config.toml", "trace.json", *RESULTS])
def test_what_a_resumed_run_leaves_is_of_one_run(
    invoke: Invoke, tmp_path: Path, fails: set[str], name: str
) -> None:
    folder = tmp_path / "run"
    assert invoke(*RUN, "--checkpoint-every", "1", "--profile").code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fails.add(name)
    assert_refused(invoke, RESUMED, name)
    if name == CHECKPOINT:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        return
    left = set(before) - {*PICTURES} if name in PICTURES else {CHECKPOINT, "config.toml"}
    assert set(names_in(folder)) - {*PICTURES} == left
    settings = tomllib.loads((folder / "config.toml").read_text())
    assert settings["epochs"] == (2 if name == "config.toml" else 3)
    fails.clear()
    assert invoke(*RESUMED).code == 0
    assert set(before) == set(names_in(folder))


def test_what_a_resumed_run_does_not_write_again_goes(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*RUN, "--checkpoint-every", "1", "--profile").code == 0
    again = [option for option in RESUMED if option != "--profile"]
    settings = (tmp_path / "run" / "config.toml").read_text().splitlines()
    left = [line for line in settings if not line.startswith("checkpoint_every")]
    (tmp_path / "settings.toml").write_text("\n".join(left))
    assert invoke(*again, "--config", "settings.toml").code == 0
    assert names_in(tmp_path / "run") == sorted([CHECKPOINT, "config.toml", *RESULTS])


def test_a_run_that_is_refused_changes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*RUN).code == 0
    (tmp_path / "run" / ".unfinished").mkdir()
    before = sorted((tmp_path / "run").iterdir())
    assert invoke(*RUN).code == 2
    assert sorted((tmp_path / "run").iterdir()) == before


def test_a_link_to_a_checkpoint_is_of_its_own_folder(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*RUN, "--checkpoint-every", "1").code == 0
    place = tmp_path / "run" / CHECKPOINT
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert invoke(*RESUMED).code == 0
    assert names_in(tmp_path / "run") == sorted([CHECKPOINT, "config.toml", "trace.json", *RESULTS])


@pytest.mark.parametrize("command", [RUN, TABLE, SWEEP])
def test_what_is_no_path_is_said(misuse: Invoke, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "cells.csv").write_text("x,kind\n" + "1,a\n2,b\n" * 20)
    message = misuse(*command[:-1], "", "--quiet").err
    assert message == "warpfit: expected out to be the path of a folder, got ''\n"
    if command == RUN:
        (tmp_path / "nul.toml").write_text(r'out = "a\u0000b"')
        message = misuse(*command[:-2], "--quiet", "--config", "nul.toml").err
        assert message == "warpfit: expected out to be a path, got 'a\\x00b'\n"


def test_a_resumed_run_that_fails_goes_on_by_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    """The checkpoint of an epoch comes after the epoch's report."""
    assert invoke(*RUN, "--checkpoint-every", "1").code == 0

    save = loop.save_checkpoint

    def saved_at_last(*given: Any, **named: Any) -> None:
        save(*given, **named)
        raise DataError("the data are gone")

    monkeypatch.setattr(loop, "save_checkpoint", saved_at_last)
    assert invoke(*RESUMED).code == 2
    assert names_in(tmp_path / "run") == [CHECKPOINT, "config.toml"]
    settings = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert settings["epochs"] == 3
