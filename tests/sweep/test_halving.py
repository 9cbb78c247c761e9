from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import joblib
import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import assert_same_weights, blobs
from warpfit.engines.base import EpochReport
from warpfit.errors import ConfigError, DivergedError
from warpfit.sweep import runner
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import run_in_rungs
from warpfit.sweep.metric import Metric
from warpfit.sweep.progress import SweepProgress
from warpfit.sweep.runner import Runner, in_order
from warpfit.sweep.tasks import DIVERGED, PAUSED, STOPPED, Outcome, Task, train
from warpfit.training.history import History

X, Y = blobs(90)
RATES = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4]


def sweep(**arguments: Any) -> wf.Sweep:
    given = {
        "grid": {"lr": RATES},
        "epochs": 9,
        "batch_size": 16,
        "metric": "loss",
        "n_jobs": 1,
        "device": "cpu",
        "verbose": False,
        **arguments,
    }
    return wf.fit_many(build, X, Y, **given)


def test_rungs_and_survivors() -> None:
    rule = wf.Halving(3)
    assert rule.rungs(30) == [1, 3, 9, 27]
    assert rule.rungs(27) == [1, 3, 9]
    assert rule.rungs(1) == []
    assert wf.Halving(1.5, min_epochs=2).rungs(8) == [2, 3, 4, 7]
    assert wf.Halving(1.1).rungs(4) == [1, 2, 3]
    assert wf.Halving(np.float32(2)).rungs(9, report_every=3) == [3, 6]
    assert wf.Halving(2, min_epochs=4).rungs(9, report_every=9) == []
    assert [rule.survivors(n) for n in (1, 2, 3, 4, 9, 10)] == [1, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"factor": 1}, "factor above 1, got 1"),
        ({"factor": float("nan")}, "factor above 1, got nan"),
        ({"factor": float("inf")}, "finite factor above 1, got inf"),
        ({"factor": True}, "factor above 1, got True"),
        ({"min_epochs": 0}, "min_epochs to be an integer of at least 1"),
    ],
)
def test_rules_that_are_none(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        wf.Halving(**arguments)


def test_the_better_go_on_and_have_the_bits_of_a_run_without_rungs() -> None:
    through, halved = sweep(), sweep(halving=3)
    epochs = [record["epochs"] for record in halved]
    losses = np.array([history["loss"] for history in through.histories])  # (candidates, epochs)
    in_play = list(range(len(RATES)))
    expected = [0] * len(RATES)
    for rung, survivors in ((1, 2), (3, 1), (9, 1)):
        for idx in in_play:
            expected[idx] = rung
        in_play = sorted(in_play, key=lambda idx: losses[idx, rung - 1])[:survivors]
    assert epochs == expected
    (last,) = in_play
    assert_same_weights(halved.models[last], through.models[last])
    np.testing.assert_array_equal(
        halved.histories[last].step_losses, through.histories[last].step_losses
    )
    assert halved.best["candidate"] == {"lr": RATES[last]}
    assert halved.best["status"] == "done"


def test_of_equals_those_that_come_first_go_on() -> None:
    found = sweep(candidates=[{"lr": 0.1}] * 4, grid=None, halving=2)
    assert [record["epochs"] for record in found] == [9, 2, 1, 1]


def test_those_that_do_not_say_why_and_keep_what_they_have() -> None:
    found = sweep(halving=wf.Halving(2, min_epochs=2))
    stopped = [record for record in found if record["status"] == "stopped"]
    assert len(stopped) == 5
    first = [record["message"] for record in stopped if record["epochs"] == 2]
    assert sorted(first) == [f"halving: {place} of 6 after 2 epochs" for place in (4, 5, 6)]
    for record, history in zip(found, found.histories, strict=True):
        assert len(history) == record["epochs"]
        assert record["loss"] == history["loss"][-1]
    ranks = {record["epochs"]: record["rank"] for record in found}
    assert ranks[9] < ranks[8] < ranks[4] < ranks[2]


def test_stateful_optimizers_early_stopping_and_folds_survive_a_pause() -> None:
    arguments: dict[str, Any] = {
        "candidates": [
            {"lr": 0.01, "optimizer": "adam", "dropout": 0.2},
            {"lr": 0.1, "momentum": 0.9},
        ],
        "grid": None,
        "folds": 2,
        "metric": "val_loss",
        "callbacks": [wf.EarlyStopping("val_loss", patience=4)],
    }
    through, halved = sweep(**arguments), sweep(halving=2, **arguments)
    best = [idx for idx, record in enumerate(halved) if record["rank"] == 1]
    assert len(best) == 2
    for idx in best:
        assert_same_weights(halved.models[idx], through.models[idx])
        for name in ("epochs", "status", "val_loss", "score"):
            assert halved.records[idx][name] == through.records[idx][name]
    others = {record["epochs"] for record in halved if record["rank"] == 2}
    assert len(others) == 1  # folds of a candidate stop together


def test_a_network_that_early_stopping_ends_at_a_rung_is_over() -> None:
    stopping = wf.EarlyStopping("loss", patience=2, min_delta=9.0)
    through = sweep(callbacks=[stopping])
    assert [record["epochs"] for record in through] == [3] * len(RATES)
    at_every_epoch, at_its_end = wf.Halving(1.01), wf.Halving(3, min_epochs=3)
    for halving in (at_every_epoch, at_its_end):
        halved = sweep(callbacks=[stopping], halving=halving)
        for record, whole in zip(halved, through, strict=True):
            for name in ("epochs", "status", "message", "loss"):
                assert record[name] == whole[name]


def test_schedules_follow_the_whole_run_not_the_rung() -> None:
    def scheduled(candidate: dict[str, Any]) -> Any:
        model, _ = build(candidate)
        return model, wf.optim.SGD(model.parameters(), lr=wf.optim.Cosine(candidate["lr"]))

    arguments: dict[str, Any] = {
        "epochs": 4,
        "batch_size": 16,
        "n_jobs": 1,
        "device": "cpu",
        "verbose": False,
    }
    grid = {"lr": [0.05, 0.3]}
    through = wf.fit_many(scheduled, X, Y, grid=grid, **arguments)
    halved = wf.fit_many(scheduled, X, Y, grid=grid, halving=2, **arguments)
    best = next(idx for idx, record in enumerate(halved) if record["rank"] == 1)
    assert_same_weights(halved.models[best], through.models[best])
    assert halved.histories[best]["lr"] == through.histories[best]["lr"]


def test_diverged_networks_are_out_and_shorter_ones_stay_in() -> None:
    candidates = [{"lr": 1e38}, {"lr": 0.2, "epochs": 2}, {"lr": 0.1}, {"lr": 0.001}]
    found = sweep(grid=None, candidates=candidates, halving=2)
    statuses = [record["status"] for record in found]
    assert statuses[0] == "diverged"
    assert statuses[1] == "done"
    assert found.records[1]["epochs"] == 2
    assert "stopped" in statuses


def test_ctrl_c_at_a_rung_keeps_what_paused() -> None:
    class Interrupting(wf.Callback):
        count = 0

        def on_epoch_end(self, run: Any) -> None:
            Interrupting.count += 1
            if Interrupting.count == len(RATES) + 1:  # the first epoch after the first rung
                raise KeyboardInterrupt

    found = sweep(halving=3, callbacks=[Interrupting()])
    assert found.interrupted
    counts = found.counts()
    assert counts == {"stopped": 4, "interrupted": 2}  # one at work, one whose turn had not come
    assert [record["epochs"] for record in found] == [1] * len(RATES)
    # What was to go on is better than what was not.
    assert sorted(r["rank"] for r in found if r["status"] == "interrupted") == [1, 2]
    assert found.best["status"] == "interrupted"


def ctrl_c(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["here", "processes", "executor"])
def test_ctrl_c_before_anything_came_back_is_told(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    arguments: dict[str, Any] = {}
    if where == "here":
        monkeypatch.setattr(runner, "train", ctrl_c)
    elif where == "processes":
        monkeypatch.setattr(joblib, "Parallel", lambda **_: ctrl_c)
        arguments["n_jobs"] = 2
    else:
        arguments["executor"] = executor = ThreadPoolExecutor(1)
        monkeypatch.setattr(executor, "submit", ctrl_c)
    found = sweep(halving=3, **arguments)
    assert found.interrupted
    assert found.counts() == {"not started": len(RATES)}


def test_ctrl_c_after_a_rung_before_anything_more_came_back_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_second_rung(task: Task) -> Outcome:
        if task.checkpoint is not None:
            raise KeyboardInterrupt
        return train(task)

    monkeypatch.setattr(runner, "train", at_second_rung)
    found = sweep(halving=3)
    assert found.interrupted
    assert found.counts() == {"stopped": 4, "interrupted": 2}


def test_ctrl_c_while_a_result_is_taken_down_keeps_what_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SweepProgress, "tell", ctrl_c)
    found = sweep(halving=3)
    assert found.interrupted
    assert "not started" not in found.counts()


@pytest.mark.parametrize("report_every", [2, 3])
def test_rungs_are_at_epochs_that_are_reported(cuda: str, report_every: int) -> None:
    for device in ("cpu", cuda):
        found = sweep(halving=2, report_every=report_every, epochs=8, device=device)
        halved = [record for record in found if record["status"] == "stopped"]
        assert halved
        for record in halved:
            assert record["epochs"] % report_every == 0
            assert record["message"].endswith(f"after {record['epochs']} epochs")


def test_a_history_says_that_halving_ended_it(cuda: str) -> None:
    for device in ("cpu", cuda):
        found = sweep(halving=3, device=device)
        for record, history in zip(found, found.histories, strict=True):
            assert history.stopped_by == (record["message"] or "epochs")


@pytest.mark.parametrize("engine", ["layerwise", "auto"])
def test_on_a_device_a_pause_changes_no_bit_either(cuda: str, engine: str) -> None:
    arguments: dict[str, Any] = {
        "grid": {"lr": [0.05, 0.2]},
        "epochs": 3,
        "device": cuda,
        "engine": engine,
    }
    through, halved = sweep(**arguments), sweep(halving=2, **arguments)
    best = next(idx for idx, record in enumerate(halved) if record["rank"] == 1)
    assert sorted(record["epochs"] for record in halved) == [1, 3]
    assert_same_weights(halved.models[best], through.models[best])


class Told(Runner):
    """Tells of each network what it is given: status and loss at each rung."""

    def __init__(self, losses: dict[int, list[tuple[str, float]]]) -> None:
        self.losses = losses

    def explain(self, groups: Any) -> str:
        return "by heart"

    def at_once(self, groups: Any) -> int:
        return 1

    def run(self, groups: Any) -> Any:
        for task in in_order(groups):
            epoch = 1 if task.checkpoint is None else 2
            status, loss = self.losses[task.number][epoch - 1]
            report = EpochReport(epoch, loss, None, 0.1, 0.0, 9, np.empty(0))
            outcome = Outcome(
                task.number, status, "", History([report]), None, None, (), report=report
            )
            outcome.checkpoint = b""
            if status == DIVERGED:
                outcome.error = DivergedError(
                    remedies="", epoch=epoch + 1, step=1, lr=0.1, last_finite_loss=loss
                )
            yield outcome


def messages(losses: dict[int, list[tuple[str, float]]]) -> dict[int, str]:
    task: Any = Task(0, None, None, None, None, {"epochs": 3})  # type: ignore[arg-type]
    plan: Any = None
    group = Group(plan, tuple(replace(task, number=number) for number in losses))
    found = run_in_rungs(Told(losses).run, [group], wf.Halving(2), Metric("loss"), num_folds=2)
    return {outcome.number: outcome.message for outcome in found}


def test_a_candidate_with_a_fold_that_diverged_is_out() -> None:
    found = messages(
        {
            0: [(DIVERGED, 0.1)],
            1: [(PAUSED, 0.1)],
            2: [(PAUSED, 0.3), (STOPPED, 0.1)],
            3: [(PAUSED, 0.3), (STOPPED, 0.1)],
        }
    )
    assert found == {0: "", 1: "halving: a fold has no result after 1 epoch", 2: "", 3: ""}


def test_one_that_halving_stopped_is_not_compared_again_by_a_fold_that_had_ended() -> None:
    both = [(PAUSED, 0.3), (PAUSED, 0.3)]
    worse = [(PAUSED, 0.4), (PAUSED, 0.4)]
    found = messages(
        {0: [(STOPPED, 0.1)], 1: [(PAUSED, 0.9)], 2: both, 3: both, 4: worse, 5: worse}
    )
    assert found[1] == "halving: 3 of 3 after 1 epoch"
    assert found[4] == "halving: 2 of 2 after 2 epochs"
