"""Epochs trained at once: who looks at a run between two of them, and what remains when it is
broken off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.at_once import AtOnce
from support.training import InterruptAt, assert_same_weights, blobs, mlp, sgd
from warpfit import nn, optim
from warpfit.engines.layerwise import Layerwise
from warpfit.errors import DivergedError
from warpfit.training.plan import ENGINES

X, LABELS = blobs(60)
VALIDATION = blobs(30, seed=1)
EPOCHS = 6


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "layerwise", AtOnce)


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": EPOCHS, "batch_size": 16, "seed": 5, "verbose": False, **settings}
    return wf.fit(model, X, LABELS, optimizer=optimizer or sgd(model, momentum=0.9), **settings)


class Looks(wf.Callback):
    """Notes the epoch of each report, and that of the state."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[tuple[int, int]] = []
        self.stop_at = stop_at

    def on_epoch_end(self, run: Any) -> None:
        self.seen.append((run.report.epoch, run.state.epoch))
        if run.report.epoch == self.stop_at:
            run.stop("asked to")


class Listens(Looks):
    needs_run = False


class HearsNothing(wf.Callback):
    pass


class ActsFromFour(Looks):
    def may_act_after(self, epoch: int) -> bool:
        return epoch >= 4


# -- borders
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "borders"),
    [
        ({}, []),
        ({"verbose": True}, []),
        ({"callbacks": [Listens(), HearsNothing()]}, []),
        ({"lr": optim.Cosine(0.1)}, []),
        ({"callbacks": [Looks()]}, [1, 2, 3, 4, 5, 6]),
        ({"callbacks": [Looks()], "report_every": 4}, [4, 6]),
        ({"callbacks": [ActsFromFour()]}, [4, 5, 6]),
        ({"callbacks": [ActsFromFour()], "report_every": 3}, [6]),
        ({"lr": optim.ReduceOnPlateau(0.1), "report_every": 2}, [2, 4, 6]),
        ({"validation_data": VALIDATION, "report_every": 3}, [3, 6]),
    ],
    ids=[
        "none",
        "bar",
        "deaf",
        "cosine",
        "looks",
        "looks at fourths",
        "acts late",
        "acts late at thirds",
        "plateau",
        "validation",
    ],
)
def test_the_state_is_wanted_where_someone_looks_at_it(
    at_once: None, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], borders: list[int]
) -> None:
    found: list[int] = []
    run = AtOnce.run

    def noted(self: Any, *arguments: Any) -> Any:
        is_border = arguments[5]
        found.extend(epoch for epoch in range(1, EPOCHS + 1) if is_border(epoch))
        return run(self, *arguments)

    monkeypatch.setattr(AtOnce, "run", noted)
    model = mlp(6, 3)
    settings = dict(settings)
    fit(model, sgd(model, settings.pop("lr", 0.1)), **settings)
    assert found == borders


def test_checkpoints_and_logs(at_once: None, tmp_path: Any) -> None:
    looks = Looks()
    callbacks = [
        wf.Checkpoint(tmp_path / "run", every=4),
        wf.CSVLog(tmp_path / "log.csv"),
        Listens(),
    ]
    fit(mlp(6, 3), callbacks=callbacks)
    assert callbacks[2].seen == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 6), (6, 6)]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + EPOCHS
    fit(mlp(6, 3), callbacks=[looks, callbacks[0]])
    assert looks.seen == [(epoch, epoch) for epoch in range(1, 7)]


def test_every_epoch_is_reported_the_same(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [mlp(6, 8, 3) for _ in range(2)]
    at_a_time = fit(models[0])
    monkeypatch.setitem(ENGINES, "layerwise", Layerwise)
    one_by_one = fit(models[1])
    assert_same_weights(*models)
    assert at_a_time["epoch"] == [1, 2, 3, 4, 5, 6]
    assert [replace(r, seconds=0) for r in at_a_time] == [replace(r, seconds=0) for r in one_by_one]
    np.testing.assert_array_equal(at_a_time.step_losses, one_by_one.step_losses)


def test_a_run_is_resumed_from_a_border(at_once: None, tmp_path: Any) -> None:
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    fit(whole)
    fit(first, epochs=4, callbacks=[wf.Checkpoint(tmp_path / "run", every=3)])
    history = fit(second, resume_from=tmp_path / "run")
    assert_same_weights(whole, second)
    assert history["epoch"] == [1, 2, 3, 4, 5, 6]


# -- broken off
# --------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_the_weights_of_the_last_border(at_once: None, tmp_path: Any) -> None:
    stopped, expected = mlp(6, 8, 3), mlp(6, 8, 3)
    steps = 4
    callbacks = [InterruptAt(3 * steps + 2), wf.Checkpoint(tmp_path / "run", every=2)]
    history = fit(stopped, callbacks=callbacks)
    fit(expected, epochs=2)
    assert (history.stopped_by, history["epoch"]) == ("interrupt", [1, 2])
    assert_same_weights(stopped, expected)


def test_divergence_leaves_the_weights_of_the_last_border(at_once: None, tmp_path: Any) -> None:
    model, expected = mlp(6, 1), mlp(6, 1)

    def train(model: nn.Module, epochs: int, **settings: Any) -> None:
        # Every step multiplies the weights, by more than ten and less than a thousand.
        optimizer = sgd(model, 0.5)
        settings = {"loss": "mse", "epochs": epochs, "batch_size": 16, "verbose": False, **settings}
        wf.fit(model, 10 * X, LABELS, optimizer=optimizer, **settings)

    with pytest.raises(DivergedError) as error:
        train(model, 50, callbacks=[wf.Checkpoint(tmp_path / "run", every=2)])
    assert error.value.epoch > 2
    train(expected, (error.value.epoch - 1) // 2 * 2)
    assert_same_weights(model, expected)


def test_a_callback_that_looks_may_end_the_run_at_any_epoch(at_once: None) -> None:
    stopped, expected = mlp(6, 8, 3), mlp(6, 8, 3)
    history = fit(stopped, callbacks=[Looks(stop_at=3)])
    fit(expected, epochs=3)
    assert (history.stopped_by, len(history)) == ("asked to", 3)
    assert_same_weights(stopped, expected)


def test_one_that_only_listens_ends_it_at_a_border(at_once: None, tmp_path: Any) -> None:
    callbacks = [Listens(stop_at=3), wf.Checkpoint(tmp_path / "run", every=4)]
    history = fit(mlp(6, 3), callbacks=callbacks)
    assert (history.stopped_by, len(history)) == ("asked to", 4)
