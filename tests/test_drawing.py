"""Pictures drawn by a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warpfit.drawing import Artist, Picture
from warpfit.errors import ConfigError
from warpfit.plots import plot_history

pytest.importorskip("matplotlib")

COLUMNS = {"epoch": [1, 2], "loss": [2.0, 1.0], "accuracy": [0.5, 0.75]}


def picture(path: Path) -> Picture:
    return Picture(plot_history, (COLUMNS, "a title"), path)


def test_the_process_draws_what_is_drawn_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = picture(tmp_path / "here.png"), picture(tmp_path / "there.png")
    here.draw()
    with Artist() as artist:
        monkeypatch.setattr(Picture, "draw", lambda _: pytest.fail("the process draws"))
        artist.draw([there])
    assert there.path.read_bytes() == here.path.read_bytes()


@pytest.mark.parametrize("executable", ["", "/bin/false", "/no/such/program"])
def test_where_there_is_no_process_pictures_are_drawn_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr("sys.executable", executable)
    paths = [tmp_path / "a.png", tmp_path / "b.svg"]
    with Artist() as artist:
        artist.draw([picture(path) for path in paths])
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_picture_that_cannot_be_written_is_an_error_here(tmp_path: Path) -> None:
    with Artist() as artist, pytest.raises(ConfigError, match="cannot write"):
        artist.draw([picture(tmp_path / "missing" / "a.png")])


def test_a_process_that_has_nothing_to_draw_ends_with_the_block() -> None:
    artist = Artist()
    with artist:
        process: Any = artist._process
        assert process.returncode is None
    assert process.returncode is not None
