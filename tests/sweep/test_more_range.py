"""Networks of a launch that float16 does not hold, where it was the engine's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.one_launch import Spike, activated, data
from support.training import assert_same_weights
from warpfit import optim
from warpfit.sweep import together

SIZES = (9, 20, 14, 3)
X, Y = data(SIZES, num_rows=90)
# In the second of three epochs of five batches.
SPIKE = Spike(0.05, at=7, peak=1e3)
RATES = {
    "calm": replace(SPIKE, peak=0.05),
    "spike": SPIKE,
    "endless": replace(SPIKE, lr=1e38, peak=1e38),
}


def build(candidate: Any) -> Any:
    model = activated(SIZES, ("gelu", "tanh"))
    return model, optim.SGD(model.parameters(), RATES[candidate["rate"]])


def sweep(rates: list[str], **arguments: Any) -> wf.Sweep:
    given = {"epochs": 3, "batch_size": 18, "device": "cuda", "verbose": False, **arguments}
    candidates = [{"rate": rate, "seed": idx} for idx, rate in enumerate(rates)]
    return wf.fit_many(build, X, Y, candidates=candidates, **given)


class Hears(wf.Callback):
    """Counts what it hears of."""

    needs_run = needs_model = needs_step_losses = False

    def __init__(self) -> None:
        self.heard: list[int] = []

    def on_epoch_end(self, run: wf.Run) -> None:
        self.heard.append(run.report.epoch)


FOLDS = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
MORE: dict[str, Callable[[], dict[str, Any]]] = {
    "alone": dict,
    "folds": lambda: {"folds": FOLDS},
    "callbacks": lambda: {
        "callbacks": [wf.EarlyStopping(patience=2), Hears()],
        "validation_data": (X[:20], Y[:20]),
    },
}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", MORE)
def test_one_that_overflows_is_trained_anew_in_bfloat16(cuda: str, name: str) -> None:
    rates = ["calm", "spike", "calm", "spike"]
    found = sweep(rates, **MORE[name]())
    assert "in one launch" in str(found.plan)
    assert {record["status"] for record in found} <= {"done", "stopped"}
    halves, wider = (sweep(rates, precision=own, **MORE[name]()) for own in ("float16", "bfloat16"))
    overflows = [record["status"] == "diverged" for record in halves]
    assert 0 < sum(overflows) <= len(found) // 2
    for place, is_wider in enumerate(overflows):
        expected, history = wider if is_wider else halves, found.histories[place]
        assert_same_weights(found.models[place], expected.models[place])
        assert history["loss"] == expected.histories[place]["loss"]
        assert history.precisions == {1: "bfloat16" if is_wider else "float16"}
        assert ("trained anew in bfloat16" in history.plan.reason) == is_wider


def test_callbacks_do_not_hear_of_what_was_thrown_away(cuda: str) -> None:
    hears: list[Hears] = []

    class Own(Hears):
        def __deepcopy__(self, memo: Any) -> Hears:
            hears.append(Hears())
            return hears[-1]

    found = sweep(["calm", "spike"], callbacks=[Own()])
    assert [record["status"] for record in found] == ["done", "done"]
    assert [own.heard for own in hears] == [[1, 2, 3]] * 2


def test_one_that_no_precision_holds_diverges(cuda: str) -> None:
    found = sweep(["calm", "endless"])
    assert [record["status"] for record in found] == ["done", "diverged"]
    assert "epoch 1" in found.records[1]["message"]


def test_one_of_many_that_are_halved_drops_out(cuda: str) -> None:
    found = sweep(["calm", "spike", "calm"], halving=wf.Halving(factor=2, min_epochs=2))
    assert found.records[1]["status"] == "diverged"
    assert found.best_candidate["rate"] == "calm"


@pytest.mark.parametrize("at", [2, 3], ids=["first wave", "anew"])
def test_ctrl_c_interrupts_those_that_would_be_trained_anew(
    cuda: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    launches, closed = [], []

    def start(*arguments: Any) -> Any:
        launches.append(arguments)
        if len(launches) == at:
            raise KeyboardInterrupt
        return start_many(*arguments)

    class Closes(Hears):
        def close(self) -> None:
            closed.append(self)

    start_many = together.start_many
    monkeypatch.setattr(together, "start_many", start)
    monkeypatch.setattr(together.Together, "_most", lambda self, launch: 2)
    found = sweep(["calm", "spike", "calm", "calm"], callbacks=[Closes()])
    assert found.interrupted
    done = 2 * (at - 1) - 1
    assert found.counts() == {"interrupted": 4 - done, "done": done}
    assert found.records[1]["status"] == "interrupted"
    assert len(closed) == 4
