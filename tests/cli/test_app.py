"""The command itself: help, version, exit codes, start; and the commands that only look."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import warpfit as wf
from support.commands import Invoke, run_python
from warpfit.cli.app import _parser, app
from warpfit.gradcheck import GradcheckResult, InputCheck

COMMANDS = ("train", "sweep", "evaluate", "predict", "info", "gradcheck", "datasets", "cache")


def test_help_names_every_command() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert all(command in done.output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = CliRunner().invoke(app, [command, "-h"])
    assert done.exit_code == 0
    assert "Usage" in done.output


@pytest.mark.parametrize(
    "command", app.registered_commands, ids=lambda each: each.callback.__name__
)
def test_what_a_command_does_is_one_line(command: Any) -> None:
    """In the list of all commands Typer keeps line breaks of a docstring's first paragraph."""
    assert "\n" not in inspect.getdoc(command.callback).partition("\n\n")[0]


def test_no_arguments_show_the_help(invoke: Invoke) -> None:
    outcome = invoke()
    assert outcome.code == 0
    assert "Commands" in outcome.out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["warpfit", "--version"])
    with pytest.raises(SystemExit) as exit_of:
        runpy.run_module("warpfit", run_name="__main__")
    assert exit_of.value.code == 0
    assert capsys.readouterr().out == f"warpfit {wf.__version__}\n"


def test_bad_input_from_the_shell() -> None:
    outcome = run_python("-m", "warpfit", "train", "--batch-size", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "warpfit: expected batch_size to be an integer of at least 1, got 0\n"


def test_start_leaves_heavy_packages_alone() -> None:
    code = (
        "import sys, warpfit.cli.app; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    imported = run_python("-c", code).out.split()
    assert "typer" in imported
    assert {"scipy", "sklearn", "matplotlib", "requests", "PIL", "safetensors"}.isdisjoint(imported)


def test_a_command_is_parsed_without_the_annotations_of_others() -> None:
    assert list(_parser("train").commands) == ["train"]
    assert set(_parser("--help").commands) == set(_parser("trian").commands) > {"train", "sweep"}


def test_unexpected_error_is_one_line_and_a_traceback_on_demand(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oh\nno")

    monkeypatch.setattr("warpfit.data.available_datasets", fail)
    outcome = invoke("datasets")
    assert outcome.code == 1
    assert outcome.err.startswith("warpfit: unexpected RuntimeError: oh no (please report")
    assert outcome.err.count("\n") == 1
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    assert "Traceback" in invoke("datasets").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, ""),
        (MemoryError("8 GiB"), 1, "not enough memory: 8 GiB"),
        (wf.errors.CompileError("no"), 1, "no"),
        (wf.errors.DTypeError("no"), 2, "no"),
    ],
)
def test_exit_codes(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("warpfit.data.available_datasets", fail)
    outcome = invoke("datasets")
    assert outcome.code == code
    assert message in outcome.err


def test_info_names_versions_devices_engines_and_folders(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = invoke("info")
    assert outcome.code == 0
    for text in (
        wf.__version__,
        np.__version__,
        "BLAS",
        "NVRTC",
        "layerwise",
        "graph",
        "one_launch",
        str(tmp_path / "cache"),
    ):
        assert text in outcome.out
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert "threadpoolctl is not installed" in invoke("info").out


def test_a_report_is_all_that_info_shows_and_more_without_the_home_folder(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WARPFIT_DATA", str(tmp_path / "somewhere"))
    monkeypatch.setenv("API_KEY", "of mine")
    shown, report = invoke("info").out.splitlines(), invoke("info", "--report").out.splitlines()
    assert (report[0], report[-1]) == ("```text", "```")
    shown = [line for line in shown if "runs/" not in line]  # of this second
    assert {line.replace(str(tmp_path), "~") for line in shown} < set(report)
    text = "\n".join(report)
    assert str(tmp_path) not in text
    assert "of mine" not in text
    for words in (r"platform +\S+", r"joblib +\d", r"LANG +C.UTF-8", r"WARPFIT_DATA +~/somewhere"):
        assert re.search(rf"^  {words}", text, re.MULTILINE), words
    assert re.search(r"^  NVIDIA's driver +(?:unknown: no /proc|NVRM version)", text, re.MULTILINE)


def test_a_report_says_what_is_wrong_with_the_cache(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "cache")

    monkeypatch.setattr("warpfit.backends.cuda.machine_code.cache_use", fail)
    outcome = invoke("info", "--report")
    assert outcome.code == 0
    assert re.search(r"^  kernels +cannot read the cache: Permission denied", outcome.out, re.M)


def test_datasets_says_what_is_here(invoke: Invoke) -> None:
    rows = {line.split()[0]: line for line in invoke("datasets").out.splitlines()}
    assert "not here" in rows["mnist"]
    assert "scikit-learn" in rows["digits"]
    assert "not yet tried" in rows["cifar10"]


def test_gradcheck_shows_every_chosen_check(invoke: Invoke) -> None:
    outcome = invoke("gradcheck", "--only", "linear", "--dtype", "float64")
    assert outcome.code == 0
    rows = [line for line in outcome.out.splitlines() if "float64" in line]
    assert rows
    assert all("linear" in row.lower() and row.rstrip().endswith("ok") for row in rows)


def test_gradcheck_fails_with_the_failing_entry(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = GradcheckResult((InputCheck("weight", 0.5, (1, 2), 1.0, 3.0),), tolerance=1e-6)
    right = GradcheckResult((InputCheck("weight", 1e-9, (0,), 1.0, 1.0),), tolerance=1e-6)
    checks = [("Wrong float64", lambda: wrong), ("Right float64", lambda: right)]
    monkeypatch.setattr("warpfit.standard_checks.standard_checks", lambda device: iter(checks))
    outcome = invoke("gradcheck")
    assert outcome.code == 1
    assert "weight[1, 2]" in outcome.out
    assert "1 of 2 checks passed" in outcome.out
