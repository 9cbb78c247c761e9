"""What the benchmark of whole calls computes without a GPU: calls, small; processes; the table."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LATER = perf_counter() + 1e6

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's module, which writes its results to a folder of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("harness", "report"):
        monkeypatch.setattr(import_module(name), "RESULTS", tmp_path)
    return import_module("waits")


@pytest.fixture
def scope(waits: Any, tmp_path: Path) -> Any:
    calls = import_module("waits_calls")
    waits.write_datasets(tmp_path)
    return calls.Scope(calls.SMALL, tmp_path, "cpu")


@pytest.mark.parametrize(
    ("row", "program"),
    [
        ("many", "warpfit auto"),
        pytest.param("folds", "warpfit auto", marks=pytest.mark.slow),
        ("small", "warpfit auto"),
        pytest.param("search", "warpfit auto", marks=pytest.mark.slow),
        ("shapes", "warpfit auto"),
        ("first-fit", "sklearn"),
        ("architectures", "warpfit auto"),
        pytest.param("architectures", "torch_eager", marks=pytest.mark.slow),
        ("table", "warpfit auto"),
        ("table", "torch_eager"),
        pytest.param("shapes", "jax_scan", marks=pytest.mark.slow),
        pytest.param("many", "jax_vmap", marks=pytest.mark.slow),
        ("predict", "sklearn"),
    ],
)
def test_calls_are_timed_in_order(waits: Any, scope: Any, row: str, program: str) -> None:
    library = program.partition("_")[0]
    pytest.importorskip("sklearn" if library.startswith("warpfit") else library)
    found = import_module("waits_calls").measured(row, program, time_ns(), scope)
    figures = {figure for _, figure in waits.ROWS[row].limits} - {"process"}
    assert figures <= found["seconds"].keys()
    assert all(value > 0 for name, value in found["seconds"].items() if name != "predict")
    assert all(0 < value < 10 for value in found["quality"].values())


def test_every_row_has_a_command(waits: Any, tmp_path: Path) -> None:
    calls = import_module("waits_calls")
    for name, row in waits.ROWS.items():
        for program in (*row.ours, *row.peers):
            command = waits.Process(tmp_path).command(name, program, tmp_path)
            assert (name in calls.CALLS) == any("waits_calls.py" in word for word in command)


@pytest.mark.slow
def test_a_process_gets_caches_of_its_own(waits: Any, tmp_path: Path) -> None:
    found = waits.Process(tmp_path).run("import", "warpfit auto", tmp_path / "caches")
    assert 0 < found["seconds"][waits.IMPORT] < 60
    waits.write_datasets(tmp_path)
    small = waits.Process(tmp_path, ("--small", "--device", "cpu"))
    found = small.run("iris", "warpfit cpu", tmp_path / "caches")
    assert found["seconds"]["process"] > found["seconds"]["first call"] > 0
    failed = small.run("iris", "no_such_peer", tmp_path / "caches")
    assert failed == {"reason": "ModuleNotFoundError: No module named 'peers.no_such_peer'"}


class FakeProcess:
    """Takes 2 s in a folder that is empty, 1 s in one that is not, and half for a second call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[str] = []

    def run(self, row: str, program: str, caches: Path) -> dict[str, Any]:
        self.programs.append(program)
        if program == "jax_vmap":
            return {"reason": "no JAX"}
        seconds = 1.0 if any(caches.iterdir()) else 2.0
        (caches / "kernel").touch()
        return {"seconds": {"first call": seconds, "second call": seconds / 2}, "quality": {}}


def options(waits: Any, *given: str) -> argparse.Namespace:
    found: argparse.Namespace = waits.parsed(["--rows", "many", *given])
    return found


def test_rounds_begin_with_empty_caches(
    waits: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = FakeProcess(tmp_path)
    rows = waits.measure(options(waits), process)
    ours = rows["many"]["programs"]["warpfit auto"]["figures"]
    assert ours["empty"]["first call"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert ours["warm"]["second call"]["median"] == 0.5
    assert "many, jax_vmap: no JAX" in capsys.readouterr().out
    page = "<!-- results: waits -->\n<!-- end -->\n"
    full = import_module("report").render(page)
    line = "| 512 × 784-128-10, batch 64, 3 epochs of MNIST | second call, warm | 0.30 s | 0.50 s |"
    assert f"{line} - | 0.50 s | - |" in full
    assert "\nmany: " in full


def test_peers_are_measured_once(waits: Any, tmp_path: Path) -> None:
    waits.measure(options(waits), FakeProcess(tmp_path))
    process = FakeProcess(tmp_path)
    waits.measure(options(waits), process)
    assert set(process.programs) == {"warpfit auto", "jax_vmap"}  # which had failed
    process = FakeProcess(tmp_path)
    waits.measure(options(waits, "--parts", "peers", "--again"), process)
    assert set(process.programs) == {"torch_bmm", "jax_vmap"}


def test_no_program_is_started_when_the_time_is_over(
    waits: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = FakeProcess(tmp_path)
    waits.measure(options(waits, "--minutes", "0"), process)
    assert process.programs == []
    assert "no time left for many, warpfit auto" in capsys.readouterr().out


def test_rows_that_need_a_gpu_are_left_out_without(
    waits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: "no driver")
    assert waits.rows_that_run() == [
        "shapes",
        "first-fit",
        "architectures",
        "import",
        "iris",
        "predict",
    ]
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: None)
    assert waits.rows_that_run() == [name for name in waits.ROWS if name != "make"]
