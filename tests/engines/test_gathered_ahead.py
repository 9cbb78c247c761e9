"""Batches of the next launch, gathered beside the one that runs."""

from __future__ import annotations

import numpy as np
import pytest

import warpfit as wf
from support.one_launch import data, fit
from support.training import assert_same_weights, mlp, sgd
from warpfit import nn
from warpfit.engines.launch_run import Run

SIZES = (6, 20, 3)
EPOCHS = 9


def trained(x: np.ndarray, y: np.ndarray) -> tuple[nn.Sequential, wf.History]:
    model = mlp(*SIZES)
    return model, fit(model, x, y, sgd(model), epochs=EPOCHS)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """From which epoch on, of how many, and whether beside a launch, batches are gathered."""
    found: list[tuple[int, int, bool]] = []
    gather = Run._gather

    def noted(run: Run, epoch: int, epochs: int, *, is_beside: bool = False) -> object:
        found.append((epoch, epochs, is_beside))
        return gather(run, epoch, epochs, is_beside=is_beside)

    monkeypatch.setattr(Run, "_gather", noted)
    return found


@pytest.mark.usefixtures("launches")
def test_each_launch_finds_its_batches_there(
    cuda: str, gathered: list[tuple[int, int, bool]]
) -> None:
    trained(*data(SIZES))
    assert gathered == [(0, 1, False), (1, EPOCHS - 1, True)]


@pytest.mark.usefixtures("launches")
def test_without_room_they_are_gathered_in_turn_and_have_the_same_bits(
    cuda: str, gathered: list[tuple[int, int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(SIZES)
    model, expected = trained(x, y)
    gathered.clear()
    monkeypatch.setattr(Run, "_has_room_for", lambda run, epochs: False)
    other, history = trained(x, y)
    assert gathered == [(0, 1, False), (1, EPOCHS - 1, False)]
    np.testing.assert_array_equal(history.step_losses, expected.step_losses)
    assert_same_weights(model, other)


# What was gathered for more epochs serves a launch that a border makes shorter.
def test_a_border_takes_the_first_of_them(
    cuda: str, gathered: list[tuple[int, int, bool]], launches: list[int], tmp_path: object
) -> None:
    x, y = data(SIZES)
    model, expected = trained(x, y)
    gathered.clear()
    launches.clear()
    other = mlp(*SIZES)
    checkpoints = [wf.Checkpoint(f"{tmp_path}/run.ckpt", every=4)]
    history = fit(other, x, y, sgd(other), epochs=EPOCHS, callbacks=checkpoints)
    assert launches == [1, 3, 4, 1]
    assert [is_beside for *_, is_beside in gathered] == [False, True, True, True]
    np.testing.assert_array_equal(history.step_losses, expected.step_losses)
    assert_same_weights(model, other)
