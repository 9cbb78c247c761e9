"""The page runs as it stands: its program by each of its commands, then what it shows besides."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warpfit
from support.commands import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "accel.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM, INSTALLING, PIPELINES = (block for language, block in BLOCKS if language == "python")
(COMMANDS,) = (block for language, block in BLOCKS if not language)
(REPORT,) = (block for language, block in BLOCKS if language == "text")
NO_GPU = {"WARPFIT_DEVICE": "auto", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the program is, and where Python looks as if the wheel was installed."""
    (tmp_path / "digits.py").write_text(PROGRAM)
    site = tmp_path / "site"
    site.mkdir()
    (site / "warpfit_accel.pth").write_bytes((ROOT / "src" / "warpfit_accel.pth").read_bytes())
    adding = f"import site\nsite.addsitedir({str(site)!r})\n"
    (site / "sitecustomize.py").write_text(adding)
    return tmp_path


def columns_of(report: str) -> list[list[str]]:
    """Return a report's rows without what differs from run to run, and as short as the page's."""
    rows = [re.split(r"  +", line) for line in report.splitlines()]
    return [[*row[:4], " ".join(row[5:])[:14]] for row in rows]


@pytest.mark.slow
@pytest.mark.in_turns(4)
@pytest.mark.parametrize("command", COMMANDS.splitlines())
def test_the_commands(folder: Path, command: str) -> None:
    words = shlex.split(command.partition("python ")[2], comments=True)
    variables = dict(part.split("=") for part in command.partition("python ")[0].split())
    path = f"{folder / 'site'}:{Path(warpfit.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**ENVIRONMENT, **NO_GPU, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "<class 'sklearn.neural_network._multilayer_perceptron.MLPClassifier'> 0." in done.stdout
    report = done.stderr[done.stderr.find("warpfit.accel:") :] if "--report" in words else ""
    assert columns_of(report) == columns_of(REPORT if report else "")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    warpfit.accel.forget()
    exec(INSTALLING, names)
    printed = capsys.readouterr().out
    assert "MLPClassifier.fit  <string>:4  cpu, layerwise, float64" in printed
    assert not hasattr(names["MLPClassifier"]._fit, "__wrapped__")
    exec(PIPELINES, names)
    assert re.search("GridSearchCV +<string>:7 +one by one ", capsys.readouterr().out)
