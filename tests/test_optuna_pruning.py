"""How a study's pruner ends trials: between epochs, and within a launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.studies import build, optimize
from support.sweeps import build as build_candidate
from warpfit.optuna import pruning
from warpfit.sweep import together
from warpfit.sweep.runner import OneByOne

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

TrialState = optuna.trial.TrialState
COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
RATES = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4]


def new_study(pruner: Any, direction: str = "minimize", **settings: Any) -> Any:
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(direction=direction, pruner=pruner, sampler=sampler, **settings)


def of_one_shape(trial: Any) -> Any:
    return build_candidate({"lr": RATES[trial.number % len(RATES)]})


def steps(study: Any) -> list[list[int]]:
    return [sorted(trial.intermediate_values) for trial in study.trials]


@pytest.fixture
def epochs_trained(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The last epoch of each network, by its number in the batch, as runners of this process
    train it.
    """
    found: dict[int, int] = {}
    run = OneByOne.run_tasks

    def watched(self: Any, tasks: Any) -> Any:
        for outcome in run(self, tasks):
            found[outcome.number] = outcome.epochs
            yield outcome

    monkeypatch.setattr(OneByOne, "run_tasks", watched)
    return found


class OddOnes(optuna.pruners.BasePruner):
    """Prunes trials of odd numbers after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number % 2 and trial.last_step == self.step)


@pytest.mark.parametrize("folds", [None, 2])
def test_networks_stop_after_the_epoch_at_which_the_pruner_says_so(
    epochs_trained: dict[int, int], folds: int | None
) -> None:
    study = new_study(OddOnes(1))
    data = {} if folds is None else {"validation_data": None, "folds": folds}
    found = optimize(study, n_trials=4, epochs=4, **data)
    assert [trial.state for trial in study.trials] == [COMPLETE, PRUNED] * 2
    assert steps(study) == [[0, 1, 2, 3], [0, 1]] * 2
    each = 1 if folds is None else folds
    ends = [epochs_trained[number] for number in range(4 * each)]
    assert ends == ([4] * each + [2] * each) * 2
    for trial in study.trials:
        assert trial.value == trial.intermediate_values[trial.last_step]
    assert found.best_number in (0, 2)
    whole = new_study(optuna.pruners.NopPruner())
    optimize(whole, n_trials=4, epochs=4, **data)
    for trial, other in zip(study.trials, whole.trials, strict=True):
        for step, value in trial.intermediate_values.items():
            assert value == other.intermediate_values[step]


def test_epochs_that_are_not_reported_are_no_steps() -> None:
    study = new_study(OddOnes(3))
    optimize(study, n_trials=2, epochs=6, report_every=2)
    assert steps(study) == [[1, 3, 5], [1, 3]]


def test_a_functions_scores_are_intermediate_values(epochs_trained: dict[int, int]) -> None:
    def spread(model: Any, x: Any, y: Any) -> float:
        return float(np.std(wf.predict(model, x)))

    study = new_study(OddOnes(0))
    optimize(study, n_trials=2, epochs=3, metric=spread)
    assert steps(study) == [[0, 1], [0]]  # asked for where the pruner is
    assert epochs_trained == {0: 3, 1: 1}
    assert all(value > 0 for value in study.trials[0].intermediate_values.values())


def test_the_median_is_that_of_the_batches_before() -> None:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    study = new_study(pruner)
    optimize(study, n_trials=16, batch=4, epochs=4)
    assert [trial.state for trial in study.trials[:4]] == [COMPLETE] * 4
    pruned = [trial for trial in study.trials if trial.state == PRUNED]
    assert pruned
    for trial in pruned:
        before = [
            other.intermediate_values[trial.last_step]
            for other in study.trials[: trial.number // 4 * 4]
            if other.state == COMPLETE
        ]
        assert min(trial.intermediate_values.values()) > np.median(before)


class FailsOnFewRows(wf.Callback):
    def on_epoch_end(self, run: Any) -> None:
        if run.plan.num_rows == 20:
            raise RuntimeError("too few")


def test_a_trial_with_a_fold_that_failed_does_not_go_on(epochs_trained: dict[int, int]) -> None:
    folds = [(np.arange(20), np.arange(20, 60)), (np.arange(20, 60), np.arange(20))]
    study = new_study(OddOnes(5))
    few = [FailsOnFewRows()]
    data = {"validation_data": None, "folds": folds}
    optimize(study, n_trials=1, epochs=4, fit_callbacks=few, **data)
    assert [trial.state for trial in study.trials] == [FAIL]
    assert study.trials[0].user_attrs["error"] == "failed: RuntimeError: too few"
    assert epochs_trained[1] == 1


def test_processes_stop_networks_too() -> None:
    study = new_study(OddOnes(0))
    optimize(study, n_trials=4, epochs=3, n_jobs=2)
    assert steps(study) == [[0, 1, 2], [0]] * 2


# -- successive halving
# -------------------------------------------------------------------------------------------------


def halved(study: Any, device: str = "cpu", **arguments: Any) -> Any:
    return optimize(study, of_one_shape, n_trials=6, epochs=9, device=device, **arguments)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rungs of each launch that trains many networks, None where it has none."""
    found: list[Any] = []
    launch = together.start_many

    def counted(members: Any, rows: Any, rungs: Any = None) -> Any:
        found.append(rungs)
        return launch(members, rows, rungs)

    monkeypatch.setattr(together, "start_many", counted)
    return found


PRUNER = {"min_resource": 1, "reduction_factor": 3}


def test_successive_halving_is_that_of_a_launch(cuda: str, launches: list[Any]) -> None:
    study = new_study(optuna.pruners.SuccessiveHalvingPruner(**PRUNER))
    halved(study, cuda)
    (rungs,) = launches
    assert (list(rungs.epochs), rungs.factor) == ([1, 3], 3)
    ends = sorted(trial.last_step + 1 for trial in study.trials)
    assert ends == [1, 1, 1, 1, 3, 9]
    best = study.best_trial
    assert (best.state, best.last_step) == (COMPLETE, 8)
    others = [trial for trial in study.trials if trial.number != best.number]
    assert {trial.state for trial in others} == {PRUNED}
    at_first = [trial.intermediate_values[0] for trial in study.trials]
    kept = [trial.intermediate_values[0] for trial in study.trials if trial.last_step > 0]
    assert sorted(kept) == sorted(at_first)[:2]


def test_another_pruner_is_asked_between_launches(cuda: str, launches: list[Any]) -> None:
    study = new_study(OddOnes(0))
    optimize(study, of_one_shape, n_trials=4, epochs=3, device=cuda)
    assert launches == [None] * 3
    assert steps(study) == [[0, 1, 2], [0]] * 2


def test_without_a_pruner_a_batch_is_one_launch(cuda: str, launches: list[Any]) -> None:
    study = new_study(optuna.pruners.NopPruner())
    optimize(study, of_one_shape, n_trials=4, epochs=3, device=cuda)
    assert launches == [None]
    assert steps(study) == [[0, 1, 2]] * 4


def test_halving_is_the_same_on_the_host_and_in_place_of_a_pruner() -> None:
    found = []
    for pruner, arguments in (
        (optuna.pruners.SuccessiveHalvingPruner(**PRUNER), {}),
        (optuna.pruners.NopPruner(), {"halving": wf.Halving(3)}),
    ):
        study = new_study(pruner)
        halved(study, **arguments)
        found.append([(t.state, t.value, t.intermediate_values) for t in study.trials])
    assert found[0] == found[1]
    assert [len(values) for _, _, values in found[0]].count(1) == 4


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, wf.Halving(4)),
        ({"min_resource": 2, "reduction_factor": 3}, wf.Halving(3, 2)),
        ({"min_resource": 1, "min_early_stopping_rate": 2}, wf.Halving(4, 16)),
    ],
)
def test_the_rule_of_a_halving_pruner(settings: dict[str, Any], rule: wf.Halving) -> None:
    pruner = optuna.pruners.SuccessiveHalvingPruner(**settings)
    assert pruning.rule_of(pruner, [], 1) == rule


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    "pruner",
    [
        optuna.pruners.SuccessiveHalvingPruner(min_resource=1, bootstrap_count=2),
        optuna.pruners.HyperbandPruner(max_resource=9),
        optuna.pruners.ThresholdPruner(upper=1e9),
    ],
    ids=lambda pruner: type(pruner).__name__,
)
def test_what_a_sweep_does_not_halve_by_is_asked(pruner: Any) -> None:
    assert isinstance(pruning.rule_of(pruner, [], 1), pruning.Pruning)
    study = new_study(pruner, study_name="asked")
    optimize(study, build, n_trials=12, batch=6, epochs=9)
    assert {trial.state for trial in study.trials} <= {COMPLETE, PRUNED}
    assert COMPLETE in {trial.state for trial in study.trials}


def test_releases_whose_settings_are_called_otherwise_are_asked() -> None:
    pruner = optuna.pruners.SuccessiveHalvingPruner()
    del pruner._reduction_factor
    assert isinstance(pruning.rule_of(pruner, [], 1), pruning.Pruning)
