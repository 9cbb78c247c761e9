"""The guess of a graph's step: near what was measured, and what `auto` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, blobs, mlp, sgd
from warpfit import nn
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.graph_costs import graph_microseconds
from warpfit.training.plan import ENGINES, LEAST_OF_GRAPH

MEASURED = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "widths.json").read_text(encoding="utf-8")
)
BY_GRAPH = {name: row for name, row in MEASURED["rows"].items() if row["plan"].startswith("graph")}


def guess(sizes: tuple[int, ...], rows: int, batch_size: int, precision: str, is_adam: bool = False) -> Any:
    model = mlp(*sizes)
    x = np.zeros((batch_size, sizes[0]), np.float32)
    y = np.arange(batch_size) % 10 if sizes[-1] == 10 else np.zeros((batch_size, sizes[-1]), np.float32)
    loss = "cross_entropy" if sizes[-1] == 10 else "mse"
    settings = {"batch_size": batch_size, "verbose": False, "device": "cpu", "epochs": 0, "loss": loss}
    found = wf.fit(model, x, y, optimizer=(adam if is_adam else sgd)(model), **settings).plan
    whole = np.broadcast_to(x[:1], (rows, *x.shape[1:])), np.broadcast_to(y[:1], (rows, *y.shape[1:]))
    return graph_microseconds(Plan(**{**found.__dict__, "precision": precision}), TrainingData(*whole))


@pytest.mark.parametrize("name", BY_GRAPH)
def test_it_is_near_what_was_measured(name: str) -> None:
    row = BY_GRAPH[name]
    sizes = tuple(map(int, row["network"].split("-")))
    if max(sizes) > 2048:
        pytest.skip("its weights take gigabytes")
    (program,) = (program for program in row["programs"] if program.startswith("warpfit "))
    precision = program.split()[1]
    found = guess(sizes, row["rows"], row["batch"], precision, "adam" in row["training"])
    assert 0.7 < found / row["programs"][program]["us"]["median"] < 1.4


def test_more_costs_more() -> None:
    small = guess((64, 64, 64, 8), 640, 64, "float16")
    assert guess((64, 64, 64, 8), 64, 64, "float16") > small  # an epoch costs something, too
    assert guess((64, 64, 64, 64, 8), 640, 64, "float16") > small
    assert guess((64, 64, 64, 8), 40960, 4096, "float16") > small
    assert guess((64, 64, 64, 8), 640, 64, "float32") > small
    assert guess((512, 512, 512, 8), 640, 64, "float16", True) > guess((512, 512, 512, 8), 640, 64, "float16")


def test_of_other_layers_there_is_none() -> None:
    x, y = blobs(20)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    settings = {"batch_size": 10, "verbose": False, "device": "cpu", "epochs": 0}
    plan = wf.fit(model, x, y, optimizer=sgd(model), **settings).plan
    assert graph_microseconds(plan, TrainingData(x, y)) is None


@pytest.mark.parametrize(
    ("in_one", "in_graph", "engine"),
    [
        (100.0, 50.0, "graph"),
        (100.0, 90.0, "one_launch"),
        (10.0, 5.0, "one_launch"),
        (100.0, None, "one_launch"),
    ],
)
def test_auto_takes_a_graph_that_is_much_quicker(
    cuda: str, monkeypatch: pytest.MonkeyPatch, in_one: float, in_graph: float | None, engine: str
) -> None:
    for name, microseconds in (("one_launch", in_one), ("graph", in_graph)):
        monkeypatch.setattr(ENGINES[name], "microseconds", lambda self, *given, us=microseconds: us)
    x, y = blobs(40)
    model = mlp(6, 8, 3)
    history = wf.fit(model, x, y, optimizer=sgd(model), epochs=1, device=cuda, verbose=False)
    assert history.plan.engine == engine
    words = "about 50 µs a step on an H200, one_launch about 100"
    assert (words in history.plan.reason) == (engine == "graph")
    assert history.plan.reason.startswith(f"{engine} runs it")
    assert LEAST_OF_GRAPH > 10
