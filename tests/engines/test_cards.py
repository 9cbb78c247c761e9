"""Several cards that train one network, on the emulator: the numbers of one card, from graphs that
hold the sums over all.
"""

from __future__ import annotations

from time import sleep
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from support.fake_nccl import FakeNccl, open_cards
from support.sweeps import build
from support.training import Writing, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import nn
from warpfit.backends.cuda import runtime
from warpfit.engines import graph, layerwise
from warpfit.engines.scaling import LossScale
from warpfit.errors import ConfigError, DeviceError

NUM_ROWS, BATCH = 53, 16  # three batches of 16, and one of 5
CARDS = ["cuda:0", "cuda:1"]

pytestmark = on_emulator


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    monkeypatch.setattr(graph, "MOST_OPERATIONS", 40)  # two steps
    return open_cards(monkeypatch, 2)


def fit(model: nn.Module, x: Any, y: Any, device: Any, **settings: Any) -> wf.History:
    asked = {"epochs": 4, "batch_size": BATCH, "seed": 5, "precision": "float32", "engine": "graph"}
    asked |= {"verbose": False, "optimizer": settings.pop("optimizer", None) or sgd(model)}
    return wf.fit(model, x, y, device=device, **(asked | settings))


def dropped() -> nn.Sequential:
    layers = (nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3, seed=2))
    return nn.Sequential(nn.Linear(6, 8, seed=1), *layers)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("engine", ["graph", "layerwise"])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_cards_have_the_numbers_of_one(nccl: FakeNccl, engine: str, weighted: bool) -> None:
    x, y = blobs(NUM_ROWS)
    weight = np.random.default_rng(1).uniform(0, 2, NUM_ROWS) if weighted else None
    settings: dict[str, Any] = {"engine": engine, "sample_weight": weight}
    one, *others = dropped(), dropped(), dropped()
    expected = fit(one, x, y, "cuda:0", optimizer=adam(one), **settings)
    found = [fit(each, x, y, CARDS, optimizer=adam(each), **settings) for each in others]
    np.testing.assert_allclose(found[0].step_losses, expected.step_losses, rtol=2e-5)
    np.testing.assert_allclose(found[0]["accuracy"], expected["accuracy"])
    for name, array in others[0].state_dict().items():
        np.testing.assert_allclose(array, one.state_dict()[name], rtol=1e-4, atol=1e-6)
    assert_same_weights(*others)
    assert (found[0].plan.engine, found[0].plan.devices) == (engine, tuple(CARDS))
    captured = {rank for name, rank, is_captured in nccl.calls if is_captured}
    assert captured == ({0, 1} if engine == "graph" else set())
    assert nccl.aborted == []


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("engine", ["graph", "layerwise"])
@pytest.mark.parametrize(
    ("precision", "rtol"),
    [("float32", 2e-5), pytest.param("bfloat16", 2e-2, marks=pytest.mark.slow)],
)
def test_a_card_without_rows_of_the_last_batch(
    nccl: FakeNccl, engine: str, precision: str, rtol: float
) -> None:
    x, y = blobs(2 * BATCH + 1)
    one, two = dropped(), dropped()
    expected = fit(one, x, y, "cuda:0", engine=engine, precision=precision)
    found = fit(two, x, y, CARDS, engine=engine, precision=precision)
    np.testing.assert_allclose(found.step_losses, expected.step_losses, rtol=rtol)
    assert found.step_losses.shape == (12,)


def images(synchronized: bool = False) -> nn.Sequential:
    norm = nn.BatchNorm2d(4, synchronized=synchronized)
    layers = (nn.RandomFlip(), nn.Conv2d(1, 4, 3, seed=1), norm, nn.ReLU())
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3, seed=2))


@pytest.mark.parametrize("precision", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_norms_of_the_whole_batch(nccl: FakeNccl, precision: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(21, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 21)
    models = [images(synchronized=True) for _ in range(3)]
    asked: dict[str, Any] = {"precision": precision, "batch_size": 8, "epochs": 3}
    expected = fit(models[0], x, y, "cuda:0", **asked)
    found = [fit(model, x, y, CARDS, **asked) for model in models[1:]]
    close = {"rtol": 1e-5, "atol": 1e-6} if precision == "float32" else {"rtol": 5e-3, "atol": 1e-3}
    np.testing.assert_allclose(found[0].step_losses, expected.step_losses, **close)
    for name, array in models[0].state_dict().items():
        np.testing.assert_allclose(models[1].state_dict()[name], array, **close)
    assert_same_weights(*models[1:])


@pytest.mark.slow
def test_convolutions_and_norms(nccl: FakeNccl) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 40)
    models = [images() for _ in range(3)]
    for model, engine in zip(models, ("graph", "graph", "layerwise"), strict=True):
        history = fit(model, x, y, CARDS, engine=engine, batch_size=8, precision="float16")
        assert history["loss"][-1] < history["loss"][0]
    assert_same_weights(models[0], models[1])
    weights = [model.state_dict() for model in models[::2]]
    for name, array in weights[0].items():
        np.testing.assert_allclose(array, weights[1][name], rtol=2e-2, atol=2e-3)


def test_half_precision(nccl: FakeNccl) -> None:
    x, y = blobs(NUM_ROWS)
    one, two = mlp(6, 8, 3), mlp(6, 8, 3)
    expected = fit(one, x, y, "cuda:0", precision="float16")
    found = fit(two, x, y, "cuda:all", precision="float16")
    assert found.plan.devices == tuple(CARDS)
    np.testing.assert_allclose(found.step_losses, expected.step_losses, rtol=5e-3)


@pytest.mark.parametrize("engine", ["graph", "layerwise"])
def test_what_a_callback_writes_is_for_all_cards(nccl: FakeNccl, engine: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    expected, found = (
        fit(model, x, y, on, optimizer=adam(model), engine=engine, callbacks=[Writing()])
        for model, on in zip(models, ("cuda:0", CARDS), strict=True)
    )
    np.testing.assert_allclose(found.step_losses, expected.step_losses, rtol=2e-5)


def test_a_loss_scale_that_a_callback_writes_is_that_of_all_cards(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halving(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            run.state.loss_scale = LossScale(run.state.loss_scale.value / 2)

    scales: list[tuple[int, float]] = []
    step = layerwise._Run._rescale

    def noting(run: Any, *given: Any) -> bool:
        scales.append((run.ranks.rank, run.ops.loss_scale))
        return step(run, *given)

    monkeypatch.setattr(layerwise._Run, "_rescale", noting)
    x, y = blobs(BATCH)
    asked: dict[str, Any] = {"engine": "layerwise", "precision": "float16", "epochs": 3}
    fit(mlp(6, 8, 3), x, y, CARDS, loss_scale="dynamic", callbacks=[Halving()], **asked)
    assert sorted(scales) == [(rank, 2.0**power) for rank in (0, 1) for power in (14, 15, 16)]


def test_one_card_in_a_list_has_its_bits(nccl: FakeNccl) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    fit(models[0], x, y, ["cuda:1"], precision="float16")
    fit(models[1], x, y, "cuda:0", precision="float16")
    assert_same_weights(*models)
    assert nccl.calls == []


def test_an_error_of_one_card_ends_all_and_the_next_run_begins_anew(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    train = graph._Run.train_epoch

    def failing(run: Any, *settings: Any) -> Any:
        if run.ranks.rank == 1 and run.state.epoch == 2:
            raise DeviceError("the second card fell off the bus")
        return train(run, *settings)

    with monkeypatch.context() as patched:
        patched.setattr(graph._Run, "train_epoch", failing)
        with pytest.raises(DeviceError, match="the second card fell off the bus"):
            fit(mlp(6, 8, 3), x, y, CARDS)
    for _ in range(300):
        if len(nccl.aborted) < 2:
            sleep(0.1)
    assert sorted(nccl.aborted) == [0, 1]
    assert fit(mlp(6, 8, 3), x, y, CARDS).stopped_by == "epochs"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (["cuda:0", "cuda:0"], "expected each GPU once, got cuda:0, cuda:0"),
        (["cuda:0", "cpu"], "expected GPUs alone, or 'cpu' alone, got cuda:0, cpu"),
    ],
)
def test_which_devices_do_not_train_together(nccl: FakeNccl, device: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(mlp(6, 8, 3), *blobs(NUM_ROWS), device)


def test_a_sweep_over_two_cards_has_the_bits_of_one(nccl: FakeNccl) -> None:
    x, y = blobs(90)
    candidates = [
        {"lr": 0.05 * (1 + idx), "seed": idx, "width": 4 + 4 * (idx % 2)} for idx in range(6)
    ]
    given: dict[str, Any] = {"candidates": candidates, "epochs": 2, "batch_size": 16}
    one = wf.fit_many(build, x, y, device="cuda:0", verbose=False, **given)
    runtime._OPEN[0].launched.clear()
    two = wf.fit_many(build, x, y, device="cuda:all", verbose=False, **given)
    assert two.plan.device == "cuda:0, cuda:1"
    assert {record["status"] for record in two} == {"done"}
    assert all(runtime._OPEN[idx].launched["many_networks"] for idx in range(2))
    for ours, theirs in zip(two.models, one.models, strict=True):
        assert_same_weights(ours, theirs)
