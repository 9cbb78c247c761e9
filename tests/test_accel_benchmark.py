"""The benchmark of what accel costs, at one round."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's module, which writes into an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    harness, module, report = map(import_module, ("harness", "accel_costs", "report"))
    for each in (harness, report):
        monkeypatch.setattr(each, "RESULTS", tmp_path)
    for name in ("OPENBLAS_NUM_THREADS", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(module, "CALLS", 4)
    return module


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_all_rows_are_measured_and_shown(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[tuple[str, bool]] = []

    def worker(script: str, _: str, what: str, *accel: str) -> dict[str, float]:
        assert Path(script).samefile(bench.__file__)
        measured.append((what, bool(accel)))
        return {"seconds": bench.WORKERS[what]() + 1e-3 * len(accel)}

    monkeypatch.setattr(bench, "run_worker", worker)
    monkeypatch.setattr(sys, "argv", ["accel_costs.py", "--rounds", "1"])
    bench.main()
    assert measured == [(what, own) for what in bench.WORKERS for own in (False, True)]
    text = import_module("report").render("<!-- results: accel_costs -->\n<!-- end -->\n")
    assert "| CPU milliseconds | without | with accel | more |" in text
    for label in bench.LABELS.values():
        assert f"| {label} | " in text


def test_a_worker_prints_its_seconds(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["accel_costs.py", "--worker", "fallback"])
    bench.main()
    assert json.loads(capsys.readouterr().out)["seconds"] > 0
