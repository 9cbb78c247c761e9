"""Traces of runs: valid, complete, and without effect on what is trained."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import nn, optim
from warpfit.training import profile

ROWS, BATCH, EPOCHS = 40, 16, 3
STEPS = -(-ROWS // BATCH)


class FakeNvtx:
    """The package ``nvtx``, with what was pushed and popped, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def push_range(self, message: str) -> None:
        self.heard.append(message)

    def pop_range(self) -> None:
        self.heard.append("pop")


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setitem(sys.modules, "nvtx", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(profile, "find_spec", lambda name: SimpleNamespace())
    return fake


def train(device: str, engine: str, callbacks: list[Any], **settings: Any) -> tuple[Any, Any]:
    """Return history and parameters of a small run."""
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, 6), np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    model = nn.Sequential(nn.Linear(6, 8, seed=1), nn.ReLU(), nn.Linear(8, 2, seed=2))
    optimizer = optim.SGD(model.parameters(), 0.1)
    places: dict[str, Any] = {"device": device, "engine": engine, "batch_size": BATCH, **settings}
    history = wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        epochs=EPOCHS,
        callbacks=callbacks,
        verbose=False,
        **places,
    )
    return history, model.state_dict()


def spans_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return a trace's spans by the names of their tracks, checked for what Chrome's format
    asks.
    """
    trace = json.loads(path.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tracks.values()}
    for event in events:
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert isinstance(event["name"], str)
            assert event["dur"] >= 0
            found[tracks[event["pid"], event["tid"]]].append(event)
    return found


def assert_one_after_the_other(spans: list[dict[str, Any]]) -> None:
    for before, after in pairwise(spans):
        assert after["ts"] >= before["ts"] + before["dur"] - 1e-6


def test_a_run_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    history, _ = train("cpu", "layerwise", [wf.Profile(path)])
    spans = spans_of(path)
    assert set(spans) == {"epochs", "steps", "launches"}
    epochs = [span for span in spans["epochs"] if span["name"].startswith("epoch ")]
    assert [span["name"] for span in epochs] == ["epoch 1", "epoch 2", "epoch 3"]
    assert [span["args"]["loss"] for span in epochs] == history["loss"]
    assert [span["dur"] for span in epochs] == pytest.approx(
        [1e6 * seconds for seconds in history["seconds"]], abs=0.01
    )
    assert [span["name"] for span in spans["steps"]] == [
        f"step {step + 1}" for step in range(STEPS)
    ] * EPOCHS
    assert_one_after_the_other(spans["steps"])
    assert_one_after_the_other([span for span in spans["epochs"] if " on " not in span["name"]])
    whole = spans["epochs"][0]  # before what it holds
    assert whole["name"] == "layerwise on cpu"
    assert whole["ts"] + whole["dur"] >= max(span["ts"] + span["dur"] for span in epochs)
    assert spans["launches"] == []


@pytest.mark.parametrize(
    ("engine", "precision", "launched"),
    [
        ("layerwise", "float32", {"update_parameters"}),
        ("graph", "float32", {"graph", "epoch_order"}),
        ("one_launch", "float16", {"gather_batches"}),
    ],
)
def test_launches_are_on_the_host_and_on_the_device(
    cuda: str, tmp_path: Path, engine: str, precision: str, launched: set[str]
) -> None:
    path = tmp_path / "trace.json"
    history, traced = train(cuda, engine, [wf.Profile(path)], precision=precision)
    spans = spans_of(path)
    names = [span["name"] for span in spans["launches"]]
    if engine == "one_launch":
        launched = launched | {history.plan.prepared.launch.kernel}
    assert launched <= set(names), sorted(set(names))
    assert [span["name"] for span in spans["kernels and graphs"]] == names
    assert_one_after_the_other(spans["kernels and graphs"])
    assert sum(span["name"].startswith("epoch ") for span in spans["epochs"]) == EPOCHS
    again, plain = train(cuda, engine, [], precision=precision)
    assert history["loss"] == again["loss"]
    assert all((traced[name] == plain[name]).all() for name in plain)


def test_launches_beyond_the_most_are_counted(
    cuda: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "MOST_LAUNCHES", 5)
    watching = wf.Profile(tmp_path / "trace.json")
    train(cuda, "layerwise", [watching])
    assert len(spans_of(watching.path)["launches"]) == 5
    assert watching.notes[-1].endswith("launches after the first 5")
    assert watching.notes[-1] in json.loads(watching.path.read_text())["otherData"]["missing"]


def test_ranges_are_opened_and_closed(cuda: str, nvtx: FakeNvtx, tmp_path: Path) -> None:
    train(cuda, "layerwise", [wf.Profile(tmp_path / "trace.json")])
    opened = [name for name in nvtx.heard if name != "pop"]
    assert nvtx.heard[0] == "layerwise, epochs from 1"
    assert "update_parameters" in opened
    assert nvtx.heard.count("pop") == len(opened)
    depth = 0
    for name in nvtx.heard:
        depth += -1 if name == "pop" else 1
        assert 0 <= depth <= 2
    assert depth == 0


def test_without_nvtx_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "find_spec", lambda name: None)

    def missing() -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(profile, "_LibraryRanges", missing)
    watching = wf.Profile(tmp_path / "trace.json")
    train("cpu", "layerwise", [watching])
    assert watching.notes == [
        "NVTX ranges: neither the package nvtx nor the toolkit's libnvToolsExt is installed"
    ]


def test_a_run_that_fails_leaves_no_trace_and_nobody_watching(cuda: str, tmp_path: Path) -> None:
    class Failing(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            self.runtime = run.ops.runtime
            assert self.runtime.watcher is not None
            raise RuntimeError("enough")

    failing = Failing()
    with pytest.raises(RuntimeError, match="enough"):
        train(cuda, "layerwise", [wf.Profile(tmp_path / "trace.json"), failing])
    assert failing.runtime.watcher is None
    assert list(tmp_path.iterdir()) == []
