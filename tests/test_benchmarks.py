"""What the benchmark of one_launch computes without a GPU: floors, tables, what it keeps, and its peers' arithmetic."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from support.mnist import find_mnist

ROOT = Path(__file__).resolve().parents[1]
LATER = perf_counter() + 1e6


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module, which lives beside the others and imports them by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("one_launch")


@pytest.fixture
def peers(bench: Any) -> Any:
    """A function that imports a module of peers, or skips the test."""

    def find(name: str, needs: str) -> Any:
        pytest.importorskip(needs, reason=f"{needs} is not installed")
        return import_module(f"peers.{name}")

    return find


class FakeProgram:
    """Two steps an epoch; takes what it is told to, and fails where it is told to."""

    steps = 2

    def __init__(self, seconds: float, fails_in: str = "") -> None:
        self.epoch, self.fails_in = seconds, fails_in

    def start(self) -> tuple[float, float]:
        if self.fails_in == "start":
            raise ImportError("no such library\nat all")
        return 10 * self.epoch, 0.5

    def turn(self) -> list[float]:
        if self.fails_in == "turn":
            raise MemoryError("too large")
        return [self.epoch, 3 * self.epoch]


@pytest.mark.skipif(find_mnist() is None, reason="no MNIST on this machine")
def test_pixels_are_scaled_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPFIT_DATA", str(find_mnist()))
    x, y = bench.mnist.__wrapped__("test")
    assert (x.dtype, x.shape, y.dtype) == (np.float32, (10_000, 784), np.int64)
    assert (x.min(), x.max()) == (0, 1)


def row(bench: Any, **us: float) -> dict[str, Any]:
    """A row of results with these medians; names have _in_ for the space before the precision."""
    programs = {
        name.replace("_in_", " "): {
            "us": {"median": value, "min": value / 2, "max": value * 2},
            "first_call": 1.5,
            "first_loss": 0.25,
        }
        for name, value in us.items()
    }
    return bench.summarised({"network": "784-256-10", "batch": 64, "rows": 60_000, "programs": programs})


def environment(**changes: Any) -> dict[str, Any]:
    packages = {"warpfit": "1", "torch": "2"}
    settings = {"gpu": "NVIDIA H200", "driver": "580", "cpu": "CPU", "cores": 2, "date": "today"}
    return {**settings, "python": "3.12", "commit": "abc", "packages": packages, **changes}


def results(bench: Any) -> dict[str, Any]:
    rows = {
        "784-256-10/64": row(
            bench, warpfit_in_float16=2.5, jax_scan_8_in_tf32=20.0, torch_eager_in_tf32=800.0
        )
    }
    ran = {"us": {"median": 2.5, "min": 2.4, "max": 2.6}, "blocks": 16, "replicas": 1, "plan": "..."}
    curves = {
        "batch": {"32": ran, "64": ran},
        "width": {"256": ran, "512": {"reason": "expected less, got more"}},
    }
    spread = {"median": 25.0, "min": 24.0, "max": 26.0}
    accuracy = {"median": 0.9765, "min": 0.97, "max": 0.98}
    headline = {
        "float16": {"epochs": 10, "ms": spread, "accuracy": accuracy},
        "bfloat16": {"reason": "not here"},
    }
    return {"environment": environment(), "rows": rows, "curves": curves, "headline": headline}


def test_floors_are_those_of_the_formulas(bench: Any) -> None:
    case = bench.Case((784, 256, 10), 64)
    assert bench.step_flop(case.sizes, 64) == 4 * 64 * 784 * 256 + 6 * 64 * 256 * 10
    # 64 sub-cores with 640 operations a cycle at 1.76 GHz; 1,568 cycles for reading x twice.
    assert bench.arithmetic_floor_us(case, 16) == pytest.approx(52_363_264 / (64 * 640 * 1760), rel=1e-12)
    assert bench.shared_memory_floor_us(case, 1) == pytest.approx(1568 / 1760)
    assert bench.shared_memory_floor_us(case, 4) == pytest.approx(392 / 1760)


def test_programs_take_turns_and_failures_stay_their_own(bench: Any) -> None:
    programs = {
        "good": FakeProgram(1.0),
        "missing": FakeProgram(1.0, "start"),
        "broken": FakeProgram(1.0, "turn"),
    }
    cells = bench.measured(programs, LATER)
    assert cells["good"]["us"] == {"median": 1e6, "min": 0.5e6, "max": 1.5e6}
    assert cells["good"]["first_call"] == 10.0 - 2.0
    assert cells["missing"] == {"reason": "ImportError: no such library"}
    assert cells["broken"] == {"reason": "MemoryError: too large"}


def test_nothing_starts_after_the_deadline(bench: Any) -> None:
    assert bench.measured({"late": FakeProgram(1.0)}, perf_counter() - 1) == {}


def test_the_quickest_peer_is_the_best(bench: Any) -> None:
    found = row(bench, warpfit_in_float16=2.0, jax_scan_8_in_tf32=20.0, torch_graph_in_bfloat16=10.0)
    assert found["best_peer"] == "torch_graph bfloat16"
    assert found["ratio"] == {"float16": 5.0}
    alone = row(bench, warpfit_in_float16=2.0)
    assert alone["best_peer"] is None
    assert alone["ratio"] == {}


@pytest.mark.parametrize(
    ("changes", "parts", "programs"),
    [
        ({}, {"rows", "curves", "headline"}, {"warpfit float16", "jax_scan_8 tf32", "torch_eager tf32"}),
        ({"commit": "def"}, {"rows"}, {"jax_scan_8 tf32", "torch_eager tf32"}),
        ({"gpu": "another"}, {"rows"}, set()),
        ({"packages": {"torch": "3"}}, {"rows"}, set()),
    ],
)
def test_what_an_older_file_is_worth(bench: Any, changes: Any, parts: set[str], programs: set[str]) -> None:
    kept = bench.kept_results(results(bench), environment(**changes))
    assert set(kept) == parts
    assert {name for row in kept["rows"].values() for name in row["programs"]} == programs


def test_a_page_has_the_tables_once_there_are_results(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    page = "<!-- results: one_launch -->\n<!-- end -->\n<!-- results: one_launch_peers -->\n<!-- end -->\n"
    assert report.render(page) == page
    (tmp_path / "one_launch.json").write_text(json.dumps(results(bench)))
    full = report.render(page)
    assert "| 784-256-10 | 64 | 2.50 (1.25 to 5.00) | - | 20.0 (10.0 to 40.0) |" in full
    assert "| JAX scan, unroll=8, tf32 | **8.0** | 800 (400 to 1600) |" in full
    assert "take 25.0 ms (24.0 to 26.0) in float16, and reach 97.65% on the test set." in full
    assert "20.0 (10.0 to 40.0) tf32, 1.5 s" in full
    assert report.render(full) == full


def test_the_picture_is_drawn_from_the_results(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PICTURE", tmp_path / "one_launch.png")
    bench.draw(results(bench))
    assert bench.PICTURE.read_bytes().startswith(b"\x89PNG")


# -- the peers' arithmetic, on the CPU ------------------------------------------------------------------------


def rows_of_two_kinds(num_rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 5)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


def one_batch(torch_eager: Any, y: Any) -> tuple[Any, Any]:
    """An eager model trained on one batch, and the tuple (loss, share) of that epoch; the other modules' reference."""
    import torch

    torch.manual_seed(0)
    model = torch_eager.mlp((5, 8, y.shape[1] if y.ndim == 2 else 2))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    x, _ = rows_of_two_kinds(len(y))
    result = torch_eager.Trainer(model, x, y, batch_size=len(y), lr=0.5, device="cpu").epoch()
    return (start, [parameter.detach() for parameter in model.parameters()]), result


TARGETS = {"labels": rows_of_two_kinds(16)[1], "numbers": rows_of_two_kinds(16)[0][:, :1]}


@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
def test_the_step_of_the_graphs_is_that_of_eager(peers: Any, y: Any) -> None:
    torch = pytest.importorskip("torch")

    torch_graph = peers("torch_graph", "torch")
    (parameters, expected), (loss, share) = one_batch(peers("torch_eager", "torch"), y)
    total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    x = torch.from_numpy(rows_of_two_kinds(16)[0])
    torch_graph.step(parameters, total, correct, x, torch.from_numpy(y), lr=0.5, dtype=torch.float32)
    torch.testing.assert_close(parameters, expected)
    assert (total.item(), correct.item() / 16) == (pytest.approx(loss), share)


def test_graphs_train_on_every_row_of_whole_batches_once(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_graph = peers("torch_graph", "torch")
    seen: list[int] = []

    def step(parameters: Any, total: Any, correct: Any, x: Any, y: Any, **settings: Any) -> None:
        seen.extend(y.tolist())
        assert x[:, 0].tolist() == y.tolist()

    monkeypatch.setattr(torch_graph.torch, "compile", lambda function, **settings: step)
    monkeypatch.setattr(torch_graph, "captured", lambda train, warm_up: train)
    labels = np.arange(2 * 70 + 1)  # two graphs of 32 steps, one of 6, and a row that fills no batch
    x = np.repeat(labels[:, None], 3, axis=1).astype(np.float32)
    trainer = torch_graph.Trainer((3, 2), x, labels, batch_size=2, lr=0.1, precision="float32", device="cpu")
    orders = []
    for _ in range(2):
        seen.clear()
        trainer.epoch()
        assert len(set(seen)) == len(seen) == 140
        orders.append(tuple(seen))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("settings", [{"unroll": 1}, {"unroll": 4}, {"unroll": 4, "gathers_first": False}])
@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
def test_jax_scans_take_the_steps_of_eager(peers: Any, y: Any, settings: dict[str, Any]) -> None:
    jax_scan = peers("jax_scan", "jax")
    (start, expected), result = one_batch(peers("torch_eager", "torch"), y)
    x = rows_of_two_kinds(16)[0]
    sizes = (5, 8, len(expected[-1]))
    trainer = jax_scan.Trainer(sizes, x, y, batch_size=16, lr=0.5, precision="float32", **settings)
    layers = zip(start[::2], start[1::2], strict=True)
    trainer.parameters = [
        (jax_scan.jnp.asarray(w.numpy().T), jax_scan.jnp.asarray(b.numpy())) for w, b in layers
    ]
    assert trainer.epoch() == pytest.approx(result, rel=1e-5)
    for (weight, bias), right_weight, right_bias in zip(
        trainer.parameters, expected[::2], expected[1::2], strict=True
    ):
        np.testing.assert_allclose(weight, right_weight.numpy().T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(bias, right_bias.numpy(), rtol=1e-5, atol=1e-6)
