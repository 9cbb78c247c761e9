"""``warpfit bench``: finds the suites, hands arguments through, and says what is missing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpfit
from support.commands import ENVIRONMENT, Invoke, Outcome
from support.devices import no_gpu
from warpfit.cli import bench

ROOT = Path(__file__).resolve().parents[2]


def run_bench(*arguments: object) -> Outcome:
    """Return the outcome of ``warpfit bench`` in a process of its own: its suites print by
    themselves.
    """
    command = [sys.executable, "-m", "warpfit", "bench", *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_pager_that_has_read_enough_ends_it_quietly() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "warpfit", "bench", "list"]
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(
            command,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            env=ENVIRONMENT,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.fixture
def run_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """A function that runs a script of the suites in this process, given its arguments."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def run(name: str, *arguments: str) -> Outcome:
        script, harness = importlib.import_module(name), importlib.import_module("harness")
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as exit_of:
            harness.run_command(script.main)
        return Outcome(exit_of.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are started in place of suites, which fail with exit code 3."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(bench.subprocess, "run", run)
    return commands


@pytest.mark.parametrize(
    ("given", "handed"),
    [
        ([], ["list"]),
        (["train", "--minutes", "1", "--help"], ["train", "--minutes", "1", "--help"]),
        (["--compare", "a.json", "b.json"], ["--compare", "a.json", "b.json"]),
        (["report", "--check"], ["report", "--check"]),
    ],
)
def test_arguments_go_to_the_suites_as_they_are(
    invoke: Invoke, started: list[list[str]], given: list[str], handed: list[str]
) -> None:
    assert invoke("bench", *given).code == 3
    ((python, script, *arguments),) = started
    assert (python, Path(script)) == (sys.executable, ROOT / "benchmarks" / "suite.py")
    assert arguments == handed


def test_its_own_help_is_the_commands(invoke: Invoke, started: list[list[str]]) -> None:
    outcome = invoke("bench", "--help")
    assert outcome.code == 0
    assert "SUITE" in outcome.out
    assert started == []


def test_outside_a_checkout_it_says_so(
    misuse: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages" / "warpfit" / "__init__.py"
    monkeypatch.setattr(warpfit, "__file__", str(installed))
    outcome = misuse("bench", "train")
    assert "expected a checkout of warpfit" in outcome.err
    assert str(installed.parent) in outcome.err


def test_the_list_names_suites_and_tools(run_script: Callable[..., Outcome]) -> None:
    outcome = run_script("suite")
    assert (outcome.code, outcome.err) == (0, "")
    names = [line.split()[0] for line in outcome.out.splitlines()]
    assert names[:6] == ["gemm", "ops", "train", "widths", "cold-start", "waits"]
    assert names[-2:] == ["report", "compare"]


def test_an_unknown_suite_is_the_users_mistake() -> None:
    outcome = run_bench("gem")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("warpfit: expected a suite (gemm, ")
    assert outcome.err.count("\n") == 1


def test_the_list_takes_nothing_more(run_script: Callable[..., Outcome]) -> None:
    outcome = run_script("suite", "list", "--foo")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "warpfit: expected nothing after list, got --foo\n"


def test_an_unknown_part_is_the_users_mistake(run_script: Callable[..., Outcome]) -> None:
    outcome = run_script("scaling", "--parts", "right,x")
    assert (outcome.code, outcome.out) == (2, "")
    parts = "right, fast, launch, sweep, peers"
    assert outcome.err == f"warpfit: argument --parts: expected some of {parts}, got 'x'\n"


def test_a_suite_for_a_gpu_says_in_a_line_that_there_is_none(
    run_script: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch)
    outcome = run_script("suite", "ops")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("warpfit: bench ops needs an NVIDIA GPU: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
def test_two_files_are_compared_from_anywhere(tmp_path: Path) -> None:
    for name, us in (("a", 1.0), ("b", 2.0)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"environment": {}, "rows": {"x": {"us": us}}})
        )
    outcome = run_bench("--compare", "a.json", "b.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert "rows / x / us          1          2    2.00  WORSE" in outcome.out
    assert run_bench("compare", "b.json", "a.json").code == 0
