"""What the benchmark of sweeps computes without a GPU: its peers' arithmetic, its rows, floors, and
the table.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
RATES = np.array([0.1, 0.5, 0.9], np.float32)
SIZES = (5, 8, 6, 3)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's module, which writes its results into an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    # All of them first: what is imported later would keep the folder beyond this test.
    harness, module, _ = import_module("harness"), import_module("sweep"), import_module("report")
    for each in (harness, module):
        monkeypatch.setattr(each, "RESULTS", tmp_path)
    return module


@pytest.fixture
def torch_bmm(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The peer in PyTorch, which neither compiles nor captures here."""
    pytest.importorskip("torch", reason="torch is not installed")
    module = import_module("peers.torch_bmm")
    monkeypatch.setattr(module.torch, "compile", lambda function, **settings: function)
    monkeypatch.setattr(module, "captured", lambda train, warm_up: warm_up() or train)
    monkeypatch.setattr(module, "STEPS_OF_A_GRAPH", 2)
    return module


@pytest.fixture
def jax_vmap(bench: Any) -> Any:
    pytest.importorskip("jax", reason="jax is not installed")
    return import_module("peers.jax_vmap")


def equal_rows(num_rows: int) -> tuple[Any, Any]:
    """Rows that are all the same, so that their order is of no account."""
    return np.tile(np.linspace(-1, 1, 5, dtype=np.float32), (num_rows, 1)), np.full(num_rows, 2)


def alone(
    layers: list[tuple[Any, Any]], x: Any, y: Any, rate: float, steps: int
) -> tuple[list[Any], float]:
    """A network's layers (in, out) after some steps of SGD on one batch, and the mean of its
    losses, in NumPy.
    """
    layers, losses = [(w.astype(np.float64), b.astype(np.float64)) for w, b in layers], []
    for _ in range(steps):
        inputs = [x.astype(np.float64)]
        for w, b in layers[:-1]:
            inputs.append(np.maximum(inputs[-1] @ w + b, 0))
        logits = inputs[-1] @ layers[-1][0] + layers[-1][1]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        losses.append(-np.log(shares[np.arange(len(y)), y]).mean())
        dz = shares - np.eye(logits.shape[1])[y]
        dz /= len(y)
        changed = []
        for (w, b), a in zip(reversed(layers), reversed(inputs), strict=True):
            changed.append((w - rate * a.T @ dz, b - rate * dz.sum(axis=0)))
            dz = dz @ w.T * (a > 0)
        layers = changed[::-1]
    return layers, float(np.mean(losses))


def assert_as_alone(start: list[Any], found: list[Any], losses: Any, steps: int) -> None:
    x, y = equal_rows(4)
    for idx, rate in enumerate(RATES):
        expected, loss = alone([(w[idx], b[idx]) for w, b in start], x, y, float(rate), steps)
        assert losses[idx] == pytest.approx(loss, rel=1e-4)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours[0][idx], theirs[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(ours[1][idx], theirs[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("has_own_orders", [True, False])
def test_batched_products_train_each_network_by_itself(
    torch_bmm: Any, has_own_orders: bool
) -> None:
    trainer = torch_bmm.Trainer(
        SIZES,
        *equal_rows(13),
        rates=RATES,
        batch_size=4,
        precision="float32",
        has_own_orders=has_own_orders,
        device="cpu",
    )

    def layers() -> list[Any]:
        arrays = [array.numpy().copy() for array in trainer.parameters]
        return [(w, b[:, 0]) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]

    start = layers()
    losses, right = trainer.epoch()
    assert trainer.steps == 3  # a graph of two, and one of one
    assert_as_alone(start, layers(), losses, 3)
    assert ((right >= 0) & (right <= 1)).all()


@pytest.mark.parametrize("settings", [{}, {"unroll": 2}, {"has_own_orders": False}])
def test_vmap_trains_each_network_by_itself(jax_vmap: Any, settings: dict[str, Any]) -> None:
    trainer = jax_vmap.Trainer(
        SIZES, *equal_rows(13), rates=RATES, batch_size=4, precision="float32", **settings
    )
    start = [(np.array(w), np.array(b)) for w, b in trainer.parameters]
    losses, right = trainer.epoch()
    found = [(np.array(w), np.array(b)) for w, b in trainer.parameters]
    assert_as_alone(start, found, losses, 3)
    assert ((right >= 0) & (right <= 1)).all()


def test_peers_have_an_order_for_each_network_or_one_for_all(torch_bmm: Any, jax_vmap: Any) -> None:
    x, y = np.arange(60, dtype=np.float32).reshape(12, 5), np.arange(12) % 3
    settings = {"rates": RATES, "batch_size": 4, "precision": "float32"}
    for has_own_orders, rows in ((True, 3), (False, 1)):
        trainer = torch_bmm.Trainer(
            SIZES, x, y, device="cpu", has_own_orders=has_own_orders, **settings
        )
        trainer.epoch()
        orders = trainer.orders.numpy()
        assert len(np.unique(orders, axis=0)) == rows
        assert (np.sort(orders, axis=1) == np.arange(12)).all()
    drawn = jax_vmap.Trainer(SIZES, x, y, **settings)._orders(np.uint32(0))
    assert drawn.shape == (3, 3, 4)
    assert len(np.unique(np.asarray(drawn).reshape(3, -1), axis=0)) == 3


def test_the_floor_is_that_of_the_cards_tensor_cores(bench: Any) -> None:
    case = next(case for case in bench.CASES if case.networks == 1024)
    assert case.name == "784-128-10/64x1024"
    assert case.floor_us == pytest.approx(0.044, abs=0.001)
    assert (case.rates[0], case.rates[-1]) == pytest.approx(bench.RATES)


@pytest.mark.slow
def test_rows_are_measured_kept_and_rendered(
    bench: Any, monkeypatch: pytest.MonkeyPatch, torch_bmm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    case = bench.Case((5, 8, 3), 4, 3, 22)
    monkeypatch.setattr(bench, "CASES", (case,))
    monkeypatch.setattr(bench, "EPOCHS", 1)
    monkeypatch.setattr(bench, "MOST_EPOCHS", 30)
    arguments = bench.parsed(["--device", "cpu", "--ours", "float32", "--peers", "torch_bmm"])
    arguments.precisions, arguments.parts = ["float32"], ["ours", "peers"]
    bench.measure(arguments)
    (row,) = bench.read_results()["rows"].values()
    ours, peer = (row["programs"][name] for name in ("warpfit float32", "torch_bmm float32"))
    assert (ours["steps"], peer["steps"]) == (3 * 6, 3 * 5)
    assert "3 networks (3 candidates) on cpu" in ours["plan"]
    assert "us" in ours
    assert row["best_peer"] == "torch_bmm float32"
    assert "µs per network and step" in capsys.readouterr().out
    report = import_module("report")
    table = report.sweep(bench.read_results())
    assert "| 5-8-3 | 4 | 3 |" in table
    assert "PyTorch bmm, compile + CUDA graph, float32" in table
    arguments.parts = ["peers"]
    bench.measure(arguments)  # nothing is left to measure
    assert bench.read_results()["rows"][case.name]["programs"]["torch_bmm float32"] == peer


def test_programs_that_fail_or_have_no_time_do_not_take_the_others_with_them(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = bench.Case((5, 8, 3), 4, 2, 22)
    arguments = bench.parsed(["--device", "nowhere", "--ours", "float16", "--parts", "ours"])
    row = bench.row_of(case, {}, arguments, perf_counter() + 1e6, {})
    assert "nowhere" in row["programs"]["warpfit float16"]["reason"]
    assert bench.row_of(case, {}, arguments, perf_counter() - 1, {})["programs"] == {}
    monkeypatch.setattr(bench, "CURVE_NETWORKS", (1,))
    monkeypatch.setattr(
        bench, "rows_of", lambda case: (np.ones((8, 784), np.float32), np.zeros(8, int))
    )
    points = bench.curve(arguments, perf_counter() + 1e6)
    assert "nowhere" in points["1"]["warpfit float16"]


@pytest.mark.slow
def test_the_search_is_the_same_for_all(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(size=(60, 784)).astype(np.float32), np.arange(60) % 10
    monkeypatch.setattr(bench, "mnist", lambda part: rows)
    monkeypatch.setattr(bench, "import_module", lambda name: 1 / 0)  # no PyTorch's graphs here
    search = bench.Search(candidates=2, folds=2, epochs=2, hidden=4, batch=16, num_rows=60)
    arguments = bench.parsed(["--device", "cpu"])
    for place in ("joblib", "warpfit.estimators.search"):
        monkeypatch.setattr(f"{place}.effective_n_jobs", lambda n_jobs: 1)
    found = bench.searched(search, arguments, perf_counter() + 1e6)["programs"]
    assert list(found) == ["fit_many", "GridSearchCV", "PyTorch, one after the other", "SweepCV"]
    assert found["fit_many"]["seconds"] > 0
    assert found["GridSearchCV"]["extrapolated_from"] == 2
    assert found["PyTorch, one after the other"]["reason"].startswith("ZeroDivisionError")
    text = import_module("report")._search(
        {"candidates": 2, "folds": 2, "epochs": 2, "programs": json.loads(json.dumps(found))}
    )
    assert "extrapolated from 2 fits" in text


def test_the_picture_is_drawn(bench: Any, tmp_path: Path) -> None:
    point = {"floor": 0.01, "warpfit float16": 0.02, "jax_vmap bfloat16": "MemoryError: too large"}
    curve = {"1": point, "4": {**point, "floor": 0.04}}
    figure = bench.draw({"environment": {"gpu": "a card"}, "curve": curve})
    ours, theirs, floor, alone = figure.axes[0].lines
    assert [list(line.get_xdata()) for line in (ours, theirs, floor)] == [[1, 4], [], [1, 4]]
    assert set(alone.get_ydata()) == {0.02}
    figure.savefig(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
