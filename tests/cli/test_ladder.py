"""``warpfit ladder``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import Invoke
from warpfit.apps.ladder import RUNGS, Record
from warpfit.cli.console import Printer
from warpfit.cli.ladder import _Screen
from warpfit.plots import NO_PICTURES

QUICK = ("--data", "digits", "--limit", "300", "--epochs", "2")


def test_it_says_what_every_rung_does_and_did(invoke: Invoke, drawn: None, tmp_path: Path) -> None:
    outcome = invoke("ladder", *QUICK, "--out", tmp_path / "here")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    for rung in RUNGS:
        assert f"{rung.title}: {rung.changes}; to save {rung.saves}" in lines
    assert "ms an epoch, loss " in lines[1]
    assert outcome.out.count("not run: ") == len(
        RUNGS
    )  # a line each, but NumPy's, and all of them again at the end
    assert "64-256-10, batch 64, 300 rows of digits: CPU" in lines
    assert any("█" in line for line in lines)
    assert lines[-2:] == [str(tmp_path / "here" / name) for name in ("ladder.json", "ladder.png")]
    stored = json.loads((tmp_path / "here" / "ladder.json").read_text(encoding="utf-8"))
    assert [record["name"] for record in stored["records"]] == [rung.name for rung in RUNGS]
    assert stored["records"][0]["ms_per_epoch"] > 0
    assert stored["records"][1]["ms_per_epoch"] is None


def test_digits_in_place_of_mnist_are_told_of(invoke: Invoke) -> None:
    told = "MNIST was not found and could not be downloaded: training on digits instead.\n"
    assert told in invoke("ladder", *QUICK[2:], "--rungs", "numpy").out
    assert told not in invoke("ladder", *QUICK, "--rungs", "numpy").out


def test_results_go_to_a_folder_of_their_own_by_default(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("ladder", *QUICK, "--rungs", "numpy", "--network", "softmax-regression")
    assert outcome.code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {"ladder.json", "ladder.png"}
    assert "64-10, batch 128" in outcome.out


def test_where_no_rung_runs_there_is_no_picture(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("ladder", *QUICK, "--rungs", "fused..register", "--out", tmp_path / "here")
    assert "not run: fused kernels; tiled products; register tiles: " in outcome.out
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["ladder.json"]


def test_without_matplotlib_there_is_no_picture(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = invoke("ladder", *QUICK, "--rungs", "numpy", "--out", tmp_path / "here")
    assert outcome.out.endswith(NO_PICTURES + "\n")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["ladder.json"]


def test_a_terminal_has_a_table_that_grows() -> None:
    from rich.console import Console

    class Terminal(Printer):
        """Writes into memory."""

        def __init__(self) -> None:
            super().__init__()
            self.console = self.new_console()

        @staticmethod
        def new_console() -> Any:
            return Console(file=io.StringIO(), force_terminal=True, width=200, height=30)

        @property
        def text(self) -> str:
            console = self.new_console()  # which no thread refreshes meanwhile
            console.print(screen.live.get_renderable())
            return str(console.file.getvalue())

    printer, written = (
        Terminal(),
        Record(*["x"] * 5, is_peer=False, ms_per_epoch=12.3, loss=0.5, accuracy=0.9),
    )
    with _Screen(printer) as screen:
        screen.start(RUNGS[0])
        assert "to save nothing" in printer.text
        assert "12.3 ms" not in printer.text
        for _ in range(40):  # more than the screen has room for
            screen.show(written)
        assert "12.3 ms" in printer.text
        assert "90.00%" in printer.text
        assert len(printer.text.splitlines()) < 30


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--network", "cnn"], "expected a network among softmax-regression, mlp, deep, got 'cnn'"),
        (["--rungs", "top"], "expected rungs among numpy, textbook,"),
        (["--rungs", ","], "at least one rung"),
        (["--epochs", "0"], "expected epochs to be an integer of at least 1, got 0"),
        (["--limit", "-3"], "got -3"),
        (["--hidden", "0"], "got 0"),
        (["--lr", "-1"], "expected a learning rate above 0"),
        (["--precision", "float32"], "'float16' or 'bfloat16', got 'float32'"),
        (["--device", "cuda:17"], "cuda:17"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--epochs", "many"], "--epochs"),
    ],
)
def test_misuse(misuse: Invoke, flags: list[str], words: str) -> None:
    assert words in misuse("ladder", *flags).err


def test_a_folder_that_cannot_be_is_found_before_anything_runs(
    invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    outcome = invoke("ladder", *QUICK, "--rungs", "numpy", "--out", tmp_path / "file" / "sub")
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot make the folder" in outcome.err


def test_data_without_classes(misuse: Invoke, tmp_path: Path) -> None:
    rows: Any = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "numbers.npz", x=rows, y=rows[:, 0])
    assert "expected data with classes" in misuse("ladder", "--data", tmp_path / "numbers.npz").err
