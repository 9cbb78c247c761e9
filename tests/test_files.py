"""Files that are whole or not there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import warpfit as wf
from warpfit.data import load_user_data, read_idx
from warpfit.errors import ConfigError, FileFormatError
from warpfit.files import ResultsFolder, atomic_path, check_is_file, make_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def break_off(target: Path, error: BaseException) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        raise error


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(tmp_path) == ["file.txt"]


def test_an_old_file_is_replaced_at_once(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")
    with atomic_path(str(target)) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="folders that can be opened")
def test_content_reaches_the_disk_before_its_name_and_its_name_before_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, done = tmp_path / "file.txt", []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        path = tmp_path if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else None
        content = None if path else next(tmp_path.glob(".file.txt.*.tmp")).read_text()
        done.append(
            ("fsync of the folder", target.read_text()) if path else ("fsync of the file", content)
        )
        real_fsync(descriptor)

    def replace(source: Path, destination: Path) -> None:
        done.append(("replace", source.read_text()))
        real_replace(source, destination)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_path(target) as temporary:
        temporary.write_text("new")
    assert done == [
        ("fsync of the file", "new"),
        ("replace", "new"),
        ("fsync of the folder", "new"),
    ]


def test_a_folder_that_cannot_be_synchronised_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(22, os.strerror(22))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_path(tmp_path / "file.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "file.txt").read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, ConfigError])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")
    with pytest.raises(error, match="while writing"):
        break_off(target, error("while writing"))
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_failure_of_the_disk_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*file: No space left on device"):
        break_off(tmp_path / "file", OSError(28, os.strerror(28)))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing/file", "No such file or directory"),
        ("a file/below", "Not a directory"),
        ("a folder", "Is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a folder").mkdir()
    with (
        pytest.raises(ConfigError, match=rf"^cannot write {tmp_path / place}: {reason}$"),
        atomic_path(tmp_path / place) as temporary,
    ):
        temporary.write_text("new")
    assert names(tmp_path) == ["a file", "a folder"]


def test_make_folder_makes_parents_and_keeps_what_is_there(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a" / "b")
    (folder / "file").touch()
    assert make_folder(str(folder)) == tmp_path / "a" / "b"
    assert names(folder) == ["file"]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match=f"cannot make the folder {tmp_path / place}: "):
            make_folder(tmp_path / place)


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # the tests may run as root, who may everything
    with pytest.raises(
        ConfigError, match=f"cannot write to the folder {tmp_path}: permission denied"
    ):
        make_folder(tmp_path)


def test_a_folder_of_results_goes_if_nothing_came(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folder = ResultsFolder(tmp_path / "there" / "new" / "newer")
    folder.make()
    assert folder.path.is_dir()
    folder.end()
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with folder.filled():
        (folder.path / "result").touch()
    assert (folder.path / "result").exists()


def test_a_folder_of_results_is_one_runs(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    (tmp_path / ".gitkeep").touch()
    folder.make()
    (tmp_path / "model").touch()
    (tmp_path / "history").touch()
    message = f"expected a new or an empty folder for the results, got {tmp_path}, which has "
    with pytest.raises(ConfigError, match=f"{message}history, model; name another folder, or"):
        folder.make()
    folder.make(goes_on=True)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "{} does not exist; expected a model file"),
        ("no folder/nothing", "{} does not exist; expected a model file"),
        ("folder", "{} is a folder; expected a model file"),
        ("file/below", "cannot read {}: Not a directory; expected a model file"),
        ("x" * 300, "cannot read {}: File name too long; expected a model file"),
    ],
)
def test_what_is_no_file_is_named(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileFormatError, match=re.escape(message.format(tmp_path / place))):
        check_is_file(tmp_path / place, "a model file")
    check_is_file(tmp_path / "file", "a model file")


@pytest.mark.parametrize(
    "read", [wf.load, wf.load_metadata, wf.MLPClassifier.load, read_idx, load_user_data]
)
@pytest.mark.parametrize("path", [5, None, "a\0b"])
def test_what_is_no_path_is_named(read: Any, path: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"^expected path to be a path, got {re.escape(repr(path))}$"
    ):
        read(path)
