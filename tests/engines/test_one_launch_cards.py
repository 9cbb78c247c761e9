"""One launch over several cards, emulated as groups of blocks: the numbers of one card."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from support.fake_nccl import Card, open_cards
from support.one_launch import ADAPTIVE, activated, data
from support.training import Writing, assert_same_weights, mlp, sgd
from warpfit import nn
from warpfit.backends.cuda import jit, runtime
from warpfit.errors import ConfigError, DeviceError

SIZES, BATCH, CARDS = (17, 24, 16, 5), 96, ["cuda:0", "cuda:1"]
SHALLOW = (17, 24, 5)  # compiles in two thirds of the time
NUM_ROWS = 3 * BATCH + 37  # of the last batch only the first of two cards has rows
# The limits of float16, and of float32.
CLOSE, CLOSER = {"rtol": 2e-3, "atol": 2e-3}, {"rtol": 2e-5, "atol": 2e-6}

pytestmark = [on_emulator, pytest.mark.usefixtures("by_layers")]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    open_cards(monkeypatch, 2)


def rows() -> tuple[Any, Any]:
    return data(SIZES, num_rows=NUM_ROWS)


def fit(model: nn.Module, device: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    asked = {"epochs": 3, "batch_size": BATCH, "seed": 5, "precision": "float16"}
    asked |= {
        "engine": "one_launch",
        "verbose": False,
        "optimizer": optimizer or sgd(model, 0.05, momentum=0.9),
    }
    return wf.fit(model, *rows(), device=device, **(asked | settings))


def assert_numbers_of_one(
    make: Callable[[], nn.Module],
    optimizer: Callable[[nn.Module], Any],
    devices: Any = CARDS,
    num_runs: int = 1,
    **settings: Any,
) -> wf.History:
    """Train on one card, and on several, where runs come to equal bits."""
    close = CLOSER if settings.get("precision") == "float32" else CLOSE
    models = [make() for _ in range(1 + num_runs)]
    expected = fit(models[0], "cuda:0", optimizer(models[0]), **settings)
    found = [fit(model, devices, optimizer(model), **settings) for model in models[1:]]
    np.testing.assert_allclose(found[0].step_losses, expected.step_losses, **close)
    np.testing.assert_allclose(found[0]["accuracy"], expected["accuracy"], atol=0.01)
    for name, array in models[0].state_dict().items():
        np.testing.assert_allclose(models[1].state_dict()[name], array, **close)
    for model in models[2:]:
        assert_same_weights(models[1], model)
    assert f"of each of {len(found[0].plan.devices)} cards" in found[0].plan.reason
    return found[0]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_cards_have_the_numbers_of_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    open_cards(monkeypatch, count)
    assert_numbers_of_one(
        lambda: mlp(*SIZES), lambda m: sgd(m, 0.05, momentum=0.9), "cuda:all", num_runs=2
    )


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "adam": ADAPTIVE["adam"],
    "clipped": lambda model: sgd(model, 0.05, clip_norm=0.5),
    "penalized": lambda model: sgd(model, 0.05, l2=0.1),
}


# Each optimizer, precision and weighting once.
QUICK = {("adam", "float32", True), ("clipped", "float32", False), ("penalized", "bfloat16", True)}


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("name", "precision", "weighted"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(OPTIMIZERS, ("float32", "bfloat16"), (False, True))
    ],
)
def test_what_is_of_all_rows_is_of_all_cards(name: str, precision: str, weighted: bool) -> None:
    weights = np.random.default_rng(1).uniform(0, 2, NUM_ROWS) if weighted else None
    if precision == "float32":
        assert_numbers_of_one(
            lambda: activated(SHALLOW, ("tanh",), 0.3),
            OPTIMIZERS[name],
            precision=precision,
            sample_weight=weights,
        )
    else:
        model = activated(SHALLOW, ("tanh",), 0.3)
        optimizer = OPTIMIZERS[name](model)
        history = fit(model, CARDS, optimizer, precision=precision, sample_weight=weights)
        assert history["loss"][-1] < history["loss"][0]


@pytest.mark.usefixtures("cards")
def test_all_cards_have_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    from warpfit.engines.launch_cards import CardsRun

    open_run = CardsRun._open
    monkeypatch.setattr(CardsRun, "_open", lambda run: (open_run(run), runs.append(run))[1])
    fit(mlp(*SIZES), CARDS)
    (run,) = runs
    first, second = (each.state for each in run.runs)
    for name, array in first.parameters.items():
        own, other = run.ops.to_numpy(array), second.parameters[name]
        np.testing.assert_array_equal(own, run.others[0].ops.to_numpy(other))


@pytest.mark.usefixtures("cards")
def test_validation_within_the_launch_and_a_rule_between_launches() -> None:
    x, y = rows()
    settings: dict[str, Any] = {"validation_data": (x[:70], y[:70]), "epochs": 4}
    history = assert_numbers_of_one(
        lambda: mlp(*SIZES), lambda m: sgd(m, 0.05, momentum=0.9), **settings
    )
    assert history.plan.prepared.validates
    model = mlp(*SIZES)
    asked = {**settings, "epochs": 9}
    history = fit(model, CARDS, callbacks=[wf.EarlyStopping(patience=1, min_delta=9.0)], **asked)
    assert len(history["loss"]) == 2
    assert history.stopped_by.startswith("early stopping: no better val_loss")


@pytest.mark.usefixtures("cards")
def test_what_a_callback_writes_reaches_all_cards() -> None:
    expected, found = (fit(mlp(*SIZES), on, callbacks=[Writing()]) for on in ("cuda:0", CARDS))
    np.testing.assert_allclose(found.step_losses, expected.step_losses, **CLOSE)


@pytest.mark.usefixtures("cards")
def test_a_checkpoint_goes_on_on_another_number(tmp_path: Path) -> None:
    whole, cut = mlp(*SIZES), mlp(*SIZES)
    expected = fit(whole, CARDS, epochs=4)
    path = tmp_path / "run.ckpt"
    fit(cut, CARDS, epochs=2, callbacks=[wf.Checkpoint(path)])
    found = fit(cut, "cuda:0", epochs=4, resume_from=path)
    np.testing.assert_allclose(found.step_losses, expected.step_losses, **CLOSE)
    again = mlp(*SIZES)
    fit(again, CARDS, epochs=4, resume_from=path)
    assert_same_weights(whole, again)


@pytest.mark.usefixtures("cards")
def test_it_is_what_cards_train_by_where_they_can() -> None:
    plan = fit(mlp(*SIZES), "cuda:all", engine="auto", precision="auto", epochs=1).plan
    assert (plan.engine, plan.devices) == ("one_launch", tuple(CARDS))


@pytest.mark.usefixtures("cards")
def test_what_several_cards_do_not_train_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    few = "expected more than 32 rows of a batch for 2 cards, got 32"
    plan = fit(mlp(*SIZES), CARDS, engine="auto", batch_size=32, epochs=0).plan
    assert plan.engine == "graph"
    assert f"one_launch: {few}" in plan.reason
    with pytest.raises(ConfigError, match=few):
        fit(mlp(*SIZES), CARDS, batch_size=32)
    monkeypatch.setattr(Card, "reaches", lambda card, others: card is runtime._OPEN[1])
    message = "GPUs of one kind that write to each other's memory, got cuda:0, cuda:1"
    with pytest.raises(ConfigError, match=message):
        fit(mlp(*SIZES), CARDS)


def train_while_late(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> nn.Module:
    open_cards(monkeypatch, 2, reverse=True, **settings)
    model = mlp(*SIZES)
    fit(model, CARDS, epochs=1)
    return model


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("late_warp", [(0, 7), (1, 0), (2, 0), (3, 7), (5, 0), (5, 7)])
def test_bits_while_a_warp_is_late(
    monkeypatch: pytest.MonkeyPatch, cards: None, late_warp: tuple[int, int]
) -> None:
    in_time = mlp(*SIZES)
    fit(in_time, CARDS, epochs=1)
    assert_same_weights(in_time, train_while_late(monkeypatch, late_warp=late_warp))


# One place for even steps and odd ones: its marks are by steps.
SENT = ".gradients[step % 2][quad][threadIdx.x], 0,\n                           step / 2, numbers);"
FOUND = ".gradients[step % 2][quad][threadIdx.x];"
AWAITED = "numbers, step / 2,\n                [&](int i) {\n                    const int quad"
OWN_CARD = "card * REPLICAS + own_replica()"


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (
            {
                SENT: SENT.replace("step % 2", "0").replace("step / 2", "step"),
                FOUND: FOUND.replace("step % 2", "0"),
                AWAITED: AWAITED.replace("step / 2", "step"),
            },
            DeviceError,
        ),
        ({OWN_CARD: "own_replica()"}, AssertionError),
    ],
    ids=["one place", "the first card's rows"],
)
def test_mistakes_are_caught(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cards: None,
    mistake: dict[str, str],
    error: type[Exception],
) -> None:
    right = mlp(*SIZES)
    fit(right, CARDS, epochs=1)
    source = jit.flattened("one_launch_layers", ())
    for text, wrong in mistake.items():
        assert source.count(text) == 1, text
        source = source.replace(text, wrong)
    (tmp_path / "one_launch_layers.cu").write_text(source)
    with pytest.raises(error):
        assert_same_weights(right, train_while_late(monkeypatch, late_warp=(2, 0), folder=tmp_path))
