"""What the benchmark of one_launch computes without a GPU: floors, tables, what it keeps, and its
peers' arithmetic.
"""

from __future__ import annotations

import json
from argparse import Namespace
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
    return bench.summarised(
        {"network": "784-256-10", "batch": 64, "rows": 60_000, "programs": programs}
    )


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
    ran = {
        "us": {"median": 2.5, "min": 2.4, "max": 2.6},
        "blocks": 16,
        "replicas": 1,
        "plan": "...",
    }
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


def test_cases_are_told_apart_by_their_names(bench: Any) -> None:
    names = [case.name for case in bench.CASES]
    assert len(set(names)) == len(names)
    assert {"784-256-10/64", "784-256-10/64 adam", "64-64-64-64-1/256 adamw"} <= set(names)
    assert names[-1] == "32-256-256-256-8/256 adamw dropout 0.1 cosine"
    assert bench.names(tuple(names))(",".join(names)) == names


def test_ours_has_the_optimizer_and_the_dropout_of_its_case(bench: Any) -> None:
    case = bench.Case((6, 5, 4, 3), 2, "adamw", dropout=0.25, schedule="cosine")
    program = bench.Ours(case, "float16", *rows_of_two_kinds(4))
    kinds = [type(layer).__name__ for layer in program.model]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    spec = program.make_optimizer().spec
    assert (spec.decoupled, spec.weight_decay, spec.lr.name, spec.lr.lr) == (
        True,
        0.01,
        "cosine",
        1e-3,
    )
    plain = bench.Ours(bench.Case((6, 5, 3), 2), "float16", *rows_of_two_kinds(4))
    assert [type(layer).__name__ for layer in plain.model] == ["Linear", "ReLU", "Linear"]
    assert plain.make_optimizer().spec.lr.lr == 0.1


def test_made_up_rows_have_the_targets_of_their_case(bench: Any) -> None:
    x, y = bench.rows_of(bench.Case((32, 16, 8), 16))
    assert (x.shape, y.shape, y.dtype) == (
        (16 * bench.MOST_STEPS, 32),
        (16 * bench.MOST_STEPS,),
        np.int64,
    )
    assert np.bincount(y).min() > len(y) / 16
    x, y = bench.rows_of(bench.Case((64, 16, 1), 16))
    assert (x.shape[1], y.shape, y.dtype) == (64, (len(x), 1), np.float32)


def test_peers_of_one_optimizer_leave_the_others_out(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        bench, "measured", lambda programs, deadline: started.extend(programs) or {}
    )
    monkeypatch.setattr(bench, "rows_of", lambda case: rows_of_two_kinds(4))
    chosen = {
        "parts": ["peers"],
        "peers": ["torch_graph", "torch_graph_fused"],
        "precisions": ["tf32"],
    }
    arguments = Namespace(**chosen, again=False)
    for case in (bench.Case((5, 2), 2), bench.Case((5, 2), 2, "adam")):
        row = bench.row_of(case, {}, arguments, LATER, {})
        assert (row["network"], row["training"]) == (
            "5-2",
            "" if case.optimizer == "sgd" else "adam",
        )
    assert started == ["torch_graph tf32", "torch_graph tf32", "torch_graph_fused tf32"]


def test_floors_are_those_of_the_formulas(bench: Any) -> None:
    case = bench.Case((784, 256, 10), 64)
    assert bench.step_flop(case.sizes, 64) == 4 * 64 * 784 * 256 + 6 * 64 * 256 * 10
    # 64 sub-cores with 640 operations a cycle at 1.76 GHz; 1,568 cycles for reading x twice.
    assert bench.arithmetic_floor_us(case, 16) == pytest.approx(
        52_363_264 / (64 * 640 * 1760), rel=1e-12
    )
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
    found = row(
        bench, warpfit_in_float16=2.0, jax_scan_8_in_tf32=20.0, torch_graph_in_bfloat16=10.0
    )
    assert found["best_peer"] == "torch_graph bfloat16"
    assert found["ratio"] == {"float16": 5.0}
    alone = row(bench, warpfit_in_float16=2.0)
    assert alone["best_peer"] is None
    assert alone["ratio"] == {}


@pytest.mark.parametrize(
    ("changes", "parts", "programs"),
    [
        (
            {},
            {"rows", "curves", "headline"},
            {"warpfit float16", "jax_scan_8 tf32", "torch_eager tf32"},
        ),
        ({"commit": "def"}, {"rows"}, {"jax_scan_8 tf32", "torch_eager tf32"}),
        ({"gpu": "another"}, {"rows"}, set()),
        ({"packages": {"torch": "3"}}, {"rows"}, set()),
    ],
)
def test_what_an_older_file_is_worth(
    bench: Any, changes: Any, parts: set[str], programs: set[str]
) -> None:
    kept = bench.kept_results(results(bench), environment(**changes))
    assert set(kept) == parts
    assert {name for row in kept["rows"].values() for name in row["programs"]} == programs


def test_ours_of_another_commit_says_so(bench: Any) -> None:
    report, old, env = import_module("report"), results(bench), environment(commit="def")
    kept = bench.with_earlier(old, env)
    assert kept["earlier"] == {"headline": "abc", "curves": "abc"}
    (name,) = kept["rows"]
    cells = kept["rows"][name]["programs"]
    cells["warpfit float16"] |= {"commit": "abc"}
    told = " At commit abc: 784-256-10 at 64, ten epochs, the picture.\n"
    assert report._sources({**kept, "environment": env}).endswith(told)
    cells["jax_scan_8 tf32"] |= {"commit": "abc", "date": "2026-01-02 03:04 UTC"}
    peers = " At commit abc, 2026-01-02: 1 of 2 figures of peers.\n"
    assert report._sources({**kept, "environment": env}).endswith(told[:-1] + peers)
    for cell in cells.values():
        cell |= {"commit": "def", "date": "today"}
    assert "At commit" not in report._sources({**kept, "earlier": {}, "environment": env})
    again = bench.with_earlier({**kept, "environment": env}, environment(commit="ghi"))
    assert again["earlier"] == kept["earlier"]
    other = environment(gpu="another")
    assert bench.with_earlier(old, other) == {"rows": {}}


def test_a_page_has_the_tables_once_there_are_results(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    page = (
        "<!-- results: one_launch -->\n<!-- end -->\n<!-- results: one_launch_peers "
        "-->\n<!-- end -->\n"
    )
    assert report.render(page) == page
    (tmp_path / "one_launch.json").write_text(json.dumps(results(bench)))
    full = report.render(page)
    assert "| 784-256-10 | 64 | 2.50 (1.25 to 5.00) | - | 20.0 (10.0 to 40.0) |" in full
    assert "| JAX scan, unroll=8, tf32 | **8.0** | 800 (400 to 1600) |" in full
    assert "take 25.0 ms (24.0 to 26.0) in float16, and reach 97.65% on the test set." in full
    assert "20.0 (10.0 to 40.0) tf32, 1.5 s" in full
    assert report.render(full) == full


def test_airbench_is_held_against_each_mode_of_its_peer(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    us = {"warpfit float16": 4000.0, "torch max-autotune": 6000.0, "torch reduce-overhead": 8000.0}
    programs = {
        name: {"us": {"median": value, "min": value - 1, "max": value + 1}}
        for name, value in us.items()
    }
    found = {"environment": results(bench)["environment"], "programs": programs}
    (tmp_path / "airbench.json").write_text(json.dumps(found))
    full = report.render("<!-- results: airbench -->\n<!-- end -->\n")
    assert "| warpfit, float16 | 4000 (3999 to 4001) |  |" in full
    assert "| PyTorch, max-autotune | 6000 (5999 to 6001) | **1.50** |" in full
    assert "| PyTorch, reduce-overhead | 8000 (7999 to 8001) | **2.00** |" in full


def test_a_page_says_how_rows_are_trained_and_what_does_not_run(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    found = results(bench)
    other = row(bench, torch_graph_in_tf32=20.0, torch_graph_fused_in_bfloat16=10.0)
    other["programs"]["warpfit float16"] = {"reason": "ConfigError: expected less, got more"}
    found["rows"]["other"] = other | {"training": "adamw, cosine"}
    (tmp_path / "one_launch.json").write_text(json.dumps(found))
    page = (
        "<!-- results: one_launch -->\n<!-- end -->\n<!-- results: one_launch_peers "
        "-->\n<!-- end -->\n"
    )
    full = report.render(page)
    assert "| 784-256-10, adamw, cosine | 64 | - | - | 10.0 (5.0 to 20.0) |" in full
    assert "\n784-256-10, adamw, cosine at batch 64: ConfigError: expected less, got more\n" in full
    assert (
        "| PyTorch compile + CUDA graph | PyTorch compile + fused optimizer + CUDA graph |" in full
    )
    assert "| 784-256-10, adamw, cosine, 64 | - | - | 20.0 (10.0 to 40.0) tf32, 1.5 s |" in full


def test_the_picture_is_drawn_from_the_results(bench: Any) -> None:
    found = results(bench)
    found["rows"]["784-256-10/64 adam"] = row(bench) | {
        "training": "adam"
    }  # which is none of the curve's
    over_batch, over_width = bench.draw(found).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in over_batch.get_lines()}
    assert lines["warpfit, float16"] == [[32, 2.5], [64, 2.5]]
    assert lines["best of PyTorch and JAX"] == [[64, 20.0]]
    assert [label.get_text() for label in over_width.get_xticklabels()] == ["256", "512\n×"]


# -- the peers' arithmetic, on the CPU
# ------------------------------------------------------------------------


def rows_of_two_kinds(num_rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 5)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


def one_batch(torch_eager: Any, y: Any) -> tuple[Any, Any]:
    """An eager model trained on one batch, and the tuple (loss, share) of that epoch; the other
    modules' reference.
    """
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
    torch_graph.step(
        parameters, total, correct, x, torch.from_numpy(y), lr=0.5, dtype=torch.float32
    )
    torch.testing.assert_close(parameters, expected)
    assert (total.item(), correct.item() / 16) == (pytest.approx(loss), share)


def test_graphs_train_on_every_row_of_whole_batches_once(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_graph = peers("torch_graph", "torch")
    seen: list[int] = []

    def step(parameters: Any, total: Any, correct: Any, x: Any, y: Any, **settings: Any) -> None:
        seen.extend(y.tolist())
        assert x[:, 0].tolist() == y.tolist()

    monkeypatch.setattr(torch_graph.torch, "compile", lambda function, **settings: step)
    monkeypatch.setattr(torch_graph, "captured", lambda train, warm_up: train)
    labels = np.arange(
        2 * 70 + 1
    )  # two graphs of 32 steps, one of 6, and a row that fills no batch
    x = np.repeat(labels[:, None], 3, axis=1).astype(np.float32)
    trainer = torch_graph.Trainer(
        (3, 2), x, labels, batch_size=2, lr=0.1, precision="float32", device="cpu"
    )
    orders = []
    for _ in range(2):
        seen.clear()
        trainer.epoch()
        assert len(set(seen)) == len(seen) == 140
        orders.append(tuple(seen))
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    "settings", [{"unroll": 1}, {"unroll": 4}, {"unroll": 4, "gathers_first": False}]
)
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


# -- the peers' optimizers, schedules and dropout
# -------------------------------------------------------------

ADAMS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "adamw, cosine": {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine"},
}
SIZES = (5, 8, 6, 2)


def equal_rows(num_rows: int) -> tuple[Any, Any]:
    """Rows that are all the same, so that their order is of no account."""
    return np.tile(np.linspace(-1, 1, 5, dtype=np.float32), (num_rows, 1)), np.ones(
        num_rows, np.int64
    )


def eager_epochs(
    torch_eager: Any, start: list[Any], settings: dict[str, Any]
) -> tuple[list[Any], Any]:
    """The parameters of an eager model after two epochs of five steps from a start, and the
    second's (loss, share).
    """
    import torch

    model = torch_eager.mlp(SIZES)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.copy_(value)
    trainer = torch_eager.Trainer(
        model, *equal_rows(20), batch_size=4, lr=0.05, device="cpu", **settings
    )
    trainer.epoch()
    result = trainer.epoch()
    return [parameter.detach() for parameter in model.parameters()], result


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("fused", [False, True], ids=["compiled", "fused"])
@pytest.mark.parametrize("settings", ADAMS.values(), ids=ADAMS)
def test_adam_in_graphs_is_that_of_eager(
    peers: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], fused: bool
) -> None:
    torch_graph = peers("torch_graph", "torch")
    torch = torch_graph.torch
    monkeypatch.setattr(torch, "compile", lambda function, **settings: function)
    monkeypatch.setattr(torch_graph, "captured", lambda train, warm_up: warm_up() or train)
    monkeypatch.setattr(torch_graph, "STEPS_OF_A_GRAPH", 3)  # one graph of them, and one of two
    rows = equal_rows(20)
    more = {"precision": "float32", "fused": fused, "device": "cpu", **settings}
    trainer = torch_graph.Trainer(SIZES, *rows, batch_size=4, lr=0.05, **more)
    start = [parameter.clone() for parameter in trainer.parameters]
    expected, result = eager_epochs(peers("torch_eager", "torch"), start, settings)
    trainer.epoch()
    assert trainer.epoch() == pytest.approx(result, rel=1e-4)
    torch.testing.assert_close(trainer.parameters, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", ADAMS.values(), ids=ADAMS)
def test_adam_in_jax_is_that_of_eager(peers: Any, settings: dict[str, Any]) -> None:
    jax_scan, torch_eager = peers("jax_scan", "jax"), peers("torch_eager", "torch")
    torch = torch_eager.torch
    more = {"precision": "float32", "unroll": 2, **settings}
    trainer = jax_scan.Trainer(SIZES, *equal_rows(20), batch_size=4, lr=0.05, **more)

    def parameters() -> list[Any]:
        arrays = [
            np.array(array) for layer in trainer.parameters for array in (layer[0].T, layer[1])
        ]
        return [torch.from_numpy(array) for array in arrays]

    expected, result = eager_epochs(torch_eager, parameters(), settings)
    trainer.epoch()
    assert trainer.epoch() == pytest.approx(result, rel=1e-4)
    torch.testing.assert_close(parameters(), expected, rtol=1e-5, atol=1e-6)


def with_dropout(layers: list[tuple[Any, Any]], x: Any, kept: Any) -> Any:
    """The outputs of linear layers (in, out) with ReLU and a quarter of the units dropped, in
    NumPy.
    """
    for idx, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if idx < len(layers) - 1:
            own, kept = kept[:, : x.shape[1]], kept[:, x.shape[1] :]
            x = np.maximum(x, 0) * own / 0.75
    return x


def dropped_batch() -> tuple[list[tuple[Any, Any]], Any, Any, Any]:
    rng = np.random.default_rng(1)
    shapes = [((5, 8), 8), ((8, 6), 6), ((6, 2), 2)]
    layers = [
        (rng.standard_normal(w, np.float32), rng.standard_normal(b, np.float32)) for w, b in shapes
    ]
    return layers, *rows_of_two_kinds(16), rng.random((16, 14)) > 0.25


def test_graphs_drop_the_units_of_each_layer(peers: Any) -> None:
    torch_graph = peers("torch_graph", "torch")
    torch = torch_graph.torch
    layers, x, _, kept = dropped_batch()
    parameters = [torch.from_numpy(array) for w, b in layers for array in (w.T, b)]
    rest = (torch.float32, torch.from_numpy(kept), 0.25)
    found = torch_graph.outputs_of(parameters, torch.from_numpy(x), *rest)
    np.testing.assert_allclose(found, with_dropout(layers, x, kept), rtol=1e-5, atol=1e-5)


def test_jax_drops_the_units_of_each_layer(peers: Any) -> None:
    jax_scan = peers("jax_scan", "jax")
    layers, x, y, kept = dropped_batch()
    outputs = with_dropout(layers, x, kept)
    found, correct = jax_scan.loss_and_correct(layers, jax_scan.jnp.asarray(x), y, kept, 0.25)
    picked = outputs[np.arange(16), y]
    expected = np.mean(np.log(np.exp(outputs).sum(axis=1)) - picked)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert int(correct) == (outputs.argmax(axis=1) == y).sum()


def test_peers_draw_anew_which_units_they_keep(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of_two_kinds(64)
    settings = {
        "batch_size": 16,
        "lr": 0.05,
        "precision": "float32",
        "optimizer": "adamw",
        "dropout": 0.25,
    }
    torch_graph, jax_scan = peers("torch_graph", "torch"), peers("jax_scan", "jax")
    monkeypatch.setattr(torch_graph.torch, "compile", lambda function, **settings: function)
    monkeypatch.setattr(torch_graph, "captured", lambda train, warm_up: train)
    graphs = torch_graph.Trainer((5, 64, 64, 2), *rows, device="cpu", **settings)
    first, second = (graphs._draw_kept(64).numpy() for _ in range(2))
    scans = jax_scan.Trainer((5, 64, 64, 2), *rows, unroll=1, **settings)
    third, fourth = (np.array(scans._kept(np.uint32(epoch))) for epoch in range(2))
    inside = jax_scan.Trainer((5, 64, 64, 2), *rows, unroll=1, gathers_first=False, **settings)
    for one, other in ((first, second), (third, fourth)):
        assert one.mean() == pytest.approx(0.75, abs=0.03)
        assert (one == other).mean() < 0.75
    assert all(np.isfinite(trainer.epoch()[0]) for trainer in (graphs, scans, inside))


# -- convolutions
# --------------------------------------------------------------------------------------------------


def test_a_convolutions_work_is_counted(bench: Any) -> None:
    convolutions = import_module("convolutions")
    shape = convolutions.Shape(8, 4, 6, stride=2, batch=2)
    assert (shape.x, shape.w, shape.y) == ((2, 8, 8, 4), (3, 3, 4, 6), (2, 4, 4, 6))
    assert shape.flop == 2 * 2 * 16 * 6 * 36
    assert shape.bytes == 2 * (512 + 216 + 192)
    names = [shape.name for shape in convolutions.SHAPES]
    assert len(set(names)) == len(names) == 15
    depthwise = convolutions.Shape(8, 4, 4, batch=2, groups=4)
    assert depthwise.w == (3, 3, 1, 4)
    assert depthwise.name == "2 of 8 × 8 × 4, 3 × 3 to 4, depthwise, padded"


def test_both_residual_networks_have_the_same_parameters(bench: Any, peers: Any) -> None:
    peers("torch_eager", "torch")
    residual = import_module("residual")
    ours, theirs = residual.our_resnet((4, 6, 8)), residual.their_resnet((4, 6, 8))
    sizes = [parameter.data.size for parameter in ours.parameters()]
    assert sorted(sizes) == sorted(parameter.numel() for parameter in theirs.parameters())
    x, labels = residual.made_up_images(2)
    assert ours(x).shape == (2, residual.CLASSES)
    assert labels.shape == (2,)
