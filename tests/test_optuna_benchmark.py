"""The benchmark of Optuna's trials, at a tiny size."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna", reason="Optuna is not installed")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's module, with a few rows for MNIST's, which writes into an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    # All of them first: what is imported later would keep the folder beyond this test.
    harness, module, report = (
        import_module("harness"),
        import_module("optuna_trials"),
        import_module("report"),
    )
    for each in (harness, report):
        monkeypatch.setattr(each, "RESULTS", tmp_path)

    def rows(part: str) -> tuple[Any, Any]:
        rng = np.random.default_rng(len(part))
        y = np.arange(60) % 10
        x = rng.uniform(0, 0.3, (60, 784)).astype(np.float32)
        x[np.arange(60), 70 * y] += 0.7
        return x, y

    def worker(script: str, *given: str) -> Any:
        arguments = module.parsed(list(given))
        assert arguments.worker
        assert Path(script).samefile(module.__file__)
        assert os.environ["WARPFIT_CACHE_DIR"] != os.environ["CUDA_CACHE_PATH"]
        return module.found_by(module.by_batches, module.task_of_mnist, arguments)

    monkeypatch.setattr(module, "mnist", rows)
    monkeypatch.setattr(module, "run_worker", worker)
    monkeypatch.setattr(module, "SEEDS", 2)
    monkeypatch.delenv("CUDA_CACHE_PATH", raising=False)
    return module


@pytest.mark.slow
def test_all_programs_make_the_same_trials(bench: Any) -> None:
    given = ["--trials", "10", "--batch", "4", "--device", "cpu"]
    arguments = bench.parsed([*given, "--parts", "ours,journal,sqlite"])
    assert bench.measure(arguments)["parts"].keys() == {"ours", "journal", "sqlite"}
    arguments = bench.parsed([*given, "--parts", "one-by-one,values"])
    parts = bench.measure(arguments)["parts"]
    ours, others = parts["ours"], parts["one-by-one"]
    assert "CUDA_CACHE_PATH" not in os.environ
    for cell in (ours, ours["empty_cache"], parts["journal"], parts["sqlite"]):
        assert cell["optuna_seconds"] > cell["suggest_seconds"] > 0
        assert cell["optuna_seconds"] + cell["train_seconds"] < cell["seconds"]
        assert cell["best"] == ours["best"]
    assert others["extrapolated_from"] == 10
    assert others["seconds"] == pytest.approx(10 * others["trial_seconds"])
    assert len(parts["values"]["by_batches"]) == len(parts["values"]["one_by_one"]) == 2
    blocks = (f"<!-- results: {name} -->\n<!-- end -->\n" for name in ("optuna", "optuna_values"))
    text = import_module("report").render("".join(blocks))
    assert "| 10 trials of 784-width-10, 3 epochs | seconds | Optuna's own | |" in text
    assert "| `wf.optuna.optimize`, empty kernel cache | " in text
    assert "| the same, in SQLite | " in text
    assert "| `study.optimize` with `wf.fit` | " in text
    assert "extrapolated from 10 trials" in text
    assert "| best loss of 1 trials on digits | mean of 2 seeds | least | most |" in text
    assert "batches were better in 0 of 2 seeds" in text


def test_pytorch_trains_the_same_network(bench: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    arguments = bench.parsed(
        ["--trials", "5", "--measured", "2", "--device", "cpu", "--parts", "torch"]
    )
    found = bench.measure(arguments)["parts"]["torch"]
    assert found["extrapolated_from"] == 2
    assert found["seconds"] == pytest.approx(5 * found["trial_seconds"])


def test_a_part_that_fails_says_why(bench: Any) -> None:
    arguments = bench.parsed(["--trials", "2", "--device", "nowhere", "--parts", "ours,values"])
    results = bench.measure(arguments)
    assert "nowhere" in results["parts"]["ours"]["reason"]
    assert "nowhere" in bench.table(results)
