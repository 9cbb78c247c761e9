"""The examples of a page run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import warpfit as wf
from warpfit.cli.app import app
from warpfit.data import Dataset

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    """Return the code of a page's blocks of Python."""
    return FENCED.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_for_scikit_learns_users(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = examples("docs/scikit-learn.md")
    for code in blocks:
        exec(compile(code, "docs/scikit-learn.md", "exec"), names)
    assert len(blocks) == 13
    assert names["classifier"].score(names["X_test"], names["y_test"]) > 0.95
    assert names["search"].best_score_ > 0.8
    for name in ("single", "dropping", "cosine", "steps", "watched", "exact", "several"):
        assert names[name].score(names["X_test"], names["y_test"]) > 0.85, name
    assert np.median(np.abs(names["robust"].predict(names["patients"]) - names["progress"])) < 0.6
    assert len(names["watched"].validation_scores_) == names["watched"].n_iter_
    printed = capsys.readouterr().out
    assert "layerwise cpu float64 on the CPU there is one engine, layerwise" in printed
    assert str(names["classifier"].loss_) in printed


def digits_of_784_pixels() -> Dataset:
    """Return a few digits in the size of MNIST's."""
    digits = wf.data.load_dataset("digits")
    x = np.pad(digits.x_train, ((0, 0), (10, 10), (10, 10))).reshape(-1, 784)[:600]
    return Dataset("few", x[:500], digits.y_train[:500], x[500:], digits.y_train[500:600], digits.class_names)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_readmes_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = digits_of_784_pixels()
    monkeypatch.setattr(wf.data, "load_dataset", lambda name, flat: few)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = examples("README.md")
    for code in blocks:
        exec(compile(code, "README.md", "exec"), names)
    assert len(blocks) == 2
    assert (tmp_path / "curves.png").exists()
    assert (tmp_path / "model.safetensors").exists()
    assert "layerwise on the CPU there is one engine, layerwise" in capsys.readouterr().out
    assert names["history"]["loss"][-1] < names["history"]["loss"][0]
    assert names["classifier"].score(names["X"] / 16, names["y"]) > 0.95


def test_the_readme_is_a_shop_window() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


COMMANDS: Any = typer.main.get_command(app)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [
    (page.name, line.partition("#")[0].split())
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
    if not language and line.startswith("warpfit ")
]


@pytest.mark.parametrize(
    ("page", "words"), LINES, ids=[f"{page}: {' '.join(words)}" for page, words in LINES]
)
def test_commands_that_pages_name_are_there(page: str, words: list[str]) -> None:
    command = COMMANDS.commands[words[1]]
    if command.context_settings.get("ignore_unknown_options"):  # they are for a script
        return
    options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_targets_that_pages_name_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "CONTRIBUTING.md"))
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {"train", "test", "notebook", "docs"} <= named
    assert [name for name in named if not re.search(rf"^{name}(?: [a-z-]+)*:", makefile, re.MULTILINE)] == []


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_of_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = examples("docs/sweep.md")
    for code in blocks:
        exec(compile(code, "docs/sweep.md", "exec"), names)
    assert len(blocks) == 5
    assert len(names["table"]) == 18
    assert abs(names["history"]["loss"][-1] - names["sweep"].records[0]["loss"]) < 1e-5
    assert names["search"].best_score_ > 0.7
    assert "{'stopped': 16, 'done': 2} 9" in capsys.readouterr().out
