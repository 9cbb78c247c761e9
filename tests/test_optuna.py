"""Optuna's studies by batches: what is asked, trained and told."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import warpfit as wf
from support.studies import HELD_OUT, X, Y, build, optimize, value_alone
from support.sweeps import build as build_candidate
from support.training import InterruptAt
from warpfit.errors import ConfigError, ShapeError
from warpfit.optuna import optimizing

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

TrialState = optuna.trial.TrialState
COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def new_study(direction: str = "minimize", seed: int = 0, **settings: Any) -> Any:
    given = {
        "sampler": optuna.samplers.RandomSampler(seed=seed),
        "pruner": optuna.pruners.NopPruner(),
        **settings,
    }
    return optuna.create_study(direction=direction, **given)


def states(study: Any) -> list[Any]:
    return [trial.state for trial in study.trials]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trials each call of `fit_many` has trained."""
    found: list[int] = []

    def counted(build: Any, x: Any, y: Any, **arguments: Any) -> Any:
        found.append(len(arguments["candidates"]))
        return wf.fit_many(build, x, y, **arguments)

    monkeypatch.setattr(optimizing, "fit_many", counted)
    monkeypatch.setattr(optimizing, "_check_settings", lambda settings: None)
    return found


def test_an_executors_workers_train_the_same_trials() -> None:
    here, elsewhere = new_study(), new_study()
    optimize(here, n_trials=5, batch=3)
    with ThreadPoolExecutor(2) as executor:
        optimize(elsewhere, n_trials=5, batch=3, executor=executor, n_jobs=-1)
    assert [trial.value for trial in elsewhere.trials] == [trial.value for trial in here.trials]


def test_trials_are_trained_by_batches_and_told_as_one_by_one(batches: list[int]) -> None:
    study = new_study()
    found = optimize(study, n_trials=10, batch=4)
    assert batches == [4, 4, 2]
    assert states(study) == [COMPLETE] * 10
    assert [trial.number for trial in study.trials] == list(range(10))
    for trial in study.trials[::4]:
        assert trial.value == value_alone(trial.params)
        assert trial.last_step == 2
        assert trial.intermediate_values[2] == trial.value
    assert (found.best_value, found.best_number) == (study.best_value, study.best_trial.number)
    loss = wf.evaluate(found.best_model, *HELD_OUT, loss="cross_entropy").loss
    assert loss == pytest.approx(study.best_value, rel=1e-5)
    assert min(found.ask_seconds, found.train_seconds, found.tell_seconds) > 0


def test_values_are_means_over_folds() -> None:
    study = new_study("maximize")
    optimize(study, n_trials=3, validation_data=None, folds=3)
    sweep = wf.fit_many(
        build_candidate,
        X[:60],
        Y[:60],
        candidates=[trial.params for trial in study.trials],
        folds=3,
        epochs=3,
        batch_size=16,
        device="cpu",
        n_jobs=1,
        verbose=False,
    )
    assert [trial.value for trial in study.trials] == [each["score"] for each in sweep.candidates]
    of_first = np.mean([history["val_accuracy"] for history in sweep.histories[:3]], axis=0)
    values = study.trials[0].intermediate_values
    np.testing.assert_allclose([values[step] for step in range(3)], of_first)


def made_up(trial: Any) -> Any:
    """Return a network that only trains with a rate and a decay of the right size."""
    model = wf.nn.Sequential(wf.nn.Linear(6, 3))
    optimizer = wf.optim.SGD(
        model.parameters(),
        lr=trial.suggest_float("lr", 1e-5, 1e3, log=True),
        momentum=trial.suggest_float("momentum", 0.0, 0.99),
        weight_decay=trial.suggest_float("decay", 1e-6, 10.0, log=True),
    )
    return model, optimizer


@pytest.mark.slow
def test_tpe_finds_better_values_than_chance_with_as_many_trials() -> None:
    def best(sampler: Any, batch: int) -> float:
        study = new_study(sampler=sampler)
        optimize(study, made_up, n_trials=80, batch=batch)
        return float(study.best_value)

    seeds = range(5)
    guided = [best(optuna.samplers.TPESampler(seed=seed, constant_liar=True), 8) for seed in seeds]
    drawn = [best(optuna.samplers.RandomSampler(seed=seed), 80) for seed in seeds]
    assert np.mean(guided) < 0.8 * np.mean(drawn)


def test_settings_of_a_trial() -> None:
    def with_settings(trial: Any) -> Any:
        model, optimizer = build(trial)
        size = trial.suggest_categorical("batch_size", [8, 32])
        return model, optimizer, {"batch_size": size, "seed": trial.number, "epochs": 2}

    study = new_study()
    optimize(study, with_settings, n_trials=3)
    for trial in study.trials:
        wf.manual_seed(trial.number)
        model, optimizer = build_candidate(trial.params)
        history = wf.fit(
            model,
            X[:60],
            Y[:60],
            optimizer=optimizer,
            epochs=2,
            batch_size=trial.params["batch_size"],
            validation_data=HELD_OUT,
            device="cpu",
            seed=trial.number,
            verbose=False,
        )
        assert trial.value == history["val_loss"][-1]


def spread(model: Any, x: Any, y: Any) -> float:
    return float(np.std(wf.predict(model, x)))


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_function_is_a_metric_in_either_direction(direction: str) -> None:
    study = new_study(direction)
    found = optimize(study, n_trials=6, batch=3, metric=spread)
    best = min if direction == "minimize" else max
    assert found.best_value == study.best_value == best(trial.value for trial in study.trials)
    assert spread(found.best_model, *HELD_OUT) == pytest.approx(study.best_value, rel=1e-5)


def test_scorers_and_optimizers_have_names_as_in_fit_many() -> None:
    def by_name(trial: Any) -> Any:
        return build(trial)[0], "adam"

    study = new_study("maximize")
    found = optimize(study, by_name, n_trials=4, batch=2, metric="f1_macro")
    predicted = wf.predict(found.best_model, HELD_OUT[0], kind="labels")
    assert found.best_value == study.best_value > 0
    assert f1_score(HELD_OUT[1], predicted, average="macro") == pytest.approx(study.best_value)


# -- what fails
# -------------------------------------------------------------------------------------------------


def test_trials_that_diverge_have_failed_and_the_others_go_on() -> None:
    def with_one_too_fast(trial: Any) -> Any:
        rate = trial.suggest_categorical("lr", [0.1, 1e38])
        return build_candidate({"lr": rate})

    study = new_study(sampler=optuna.samplers.RandomSampler(seed=1))
    optimize(study, with_one_too_fast, n_trials=8, batch=8)
    assert {trial.params["lr"] for trial in study.trials} == {0.1, 1e38}
    for trial in study.trials:
        assert trial.state == (COMPLETE if trial.params["lr"] == 0.1 else FAIL)
        words = trial.user_attrs.get("error", "")
        assert words.startswith("diverged: the loss or a weight is not finite") == (
            trial.state == FAIL
        )


def third_is_wrong(trial: Any) -> Any:
    if trial.number == 2:
        raise KeyError("width")
    return build(trial)


def third_is_refused(trial: Any) -> Any:
    model, optimizer = build(trial)
    if trial.number == 2:
        model = wf.nn.Sequential(wf.nn.Linear(5, 3))
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (third_is_wrong, KeyError, "KeyError: 'width'"),
        (third_is_refused, ShapeError, "candidate trial=2: "),
        (lambda trial: 3 if trial.number == 2 else build(trial), ConfigError, "expected build to"),
    ],
)
def test_a_trial_that_cannot_be_built_fails_alone(build: Any, kind: type, words: str) -> None:
    study = new_study()
    with pytest.raises(kind):
        optimize(study, build, n_trials=8, batch=4)
    assert study.trials[2].state == FAIL
    assert study.trials[2].user_attrs["error"].startswith(words)
    assert set(states(study)) == {COMPLETE, FAIL}
    assert states(study).count(FAIL) == 1
    caught = new_study()
    optimize(caught, build, n_trials=8, batch=4, catch=kind)
    assert states(caught) == [COMPLETE] * 2 + [FAIL] + [COMPLETE] * 5


class Fails(wf.Callback):
    def on_epoch_end(self, run: Any) -> None:
        raise RuntimeError("no room")


def test_a_batch_that_fails_as_a_whole_is_told_before_the_error_is_raised() -> None:
    study = new_study()
    with pytest.raises(Exception, match="all 3 networks failed"):
        optimize(study, n_trials=6, batch=3, fit_callbacks=[Fails()])
    assert states(study) == [FAIL] * 3
    assert all("no room" in trial.user_attrs["error"] for trial in study.trials)


def test_build_may_prune() -> None:
    def picky(trial: Any) -> Any:
        made = build(trial)
        if trial.params["width"] == 4:
            raise optuna.TrialPruned
        return made

    study = new_study()
    optimize(study, picky, n_trials=8, batch=4)
    for trial in study.trials:
        assert trial.state == (PRUNED if trial.params["width"] == 4 else COMPLETE)
    assert {COMPLETE, PRUNED} == set(states(study))


def test_ctrl_c_tells_what_is_finished_and_fails_what_ran() -> None:
    study = new_study()
    # Each network has copies of the callback: four batches of rows an epoch.
    callbacks = [InterruptAt(9)]
    with pytest.raises(KeyboardInterrupt):
        optimize(
            study,
            lambda trial: (*build(trial), {"epochs": 3 if trial.number == 2 else 2}),
            n_trials=8,
            batch=4,
            fit_callbacks=callbacks,
        )
    assert states(study) == [COMPLETE, COMPLETE, FAIL, FAIL]
    assert [trial.user_attrs["error"] for trial in study.trials[2:]] == [
        "interrupted: interrupt",
        "not started",
    ]


@pytest.mark.parametrize("is_told", [True, False])
def test_ctrl_c_while_trials_are_told(monkeypatch: pytest.MonkeyPatch, is_told: bool) -> None:
    study = new_study()
    tell = study.tell

    def interrupted(trial: Any, value: Any = None, state: Any = None) -> None:
        is_second = trial.number == 1 and state is None
        if is_told or not is_second:
            tell(trial, value, state)
        if is_second:
            raise KeyboardInterrupt

    monkeypatch.setattr(study, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimize(study, n_trials=8, batch=4)
    assert states(study) == [COMPLETE, COMPLETE if is_told else FAIL, FAIL, FAIL]
    assert study.trials[3].user_attrs["error"] == "interrupt"


def test_ctrl_c_while_trials_are_asked_for() -> None:
    def interrupted(trial: Any) -> Any:
        if trial.number == 5:
            raise KeyboardInterrupt
        return build(trial)

    study = new_study()
    with pytest.raises(KeyboardInterrupt):
        optimize(study, interrupted, n_trials=8, batch=4)
    assert states(study) == [COMPLETE] * 4 + [FAIL] * 2


# -- when it ends
# -------------------------------------------------------------------------------------------------


def test_callbacks_see_every_trial_and_may_stop_the_study() -> None:
    seen: list[tuple[int, Any]] = []

    def watch(study: Any, trial: Any) -> None:
        seen.append((trial.number, trial.state))
        if trial.number == 5:
            study.stop()

    study = new_study()
    optimize(study, batch=4, callbacks=[watch])
    assert seen == [(number, COMPLETE) for number in range(8)]
    with pytest.raises(RuntimeError):
        study.stop()  # as Optuna has it, outside of an optimization
    most = optuna.study.MaxTrialsCallback(12, states=(COMPLETE,))
    optimize(study, batch=4, callbacks=[most])
    assert len(study.trials) == 12


def test_build_may_stop_the_study() -> None:
    def stopping(trial: Any) -> Any:
        if trial.number == 2:
            trial.study.stop()
        return build(trial)

    study = new_study()
    optimize(study, stopping, n_trials=12, batch=4)
    assert states(study) == [COMPLETE] * 3


def test_a_grid_that_is_exhausted_ends_the_study() -> None:
    grid = {"lr": [0.01, 0.1], "width": [4, 8]}
    study = new_study(sampler=optuna.samplers.GridSampler(grid, seed=0))
    optimize(study, batch=2)
    assert {(trial.params["lr"], trial.params["width"]) for trial in study.trials} == {
        (lr, width) for lr in grid["lr"] for width in grid["width"]
    }
    assert len(study.trials) == 4


def test_no_batch_begins_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(optimizing, "perf_counter", lambda: float(next(clock)))
    study = new_study()
    optimize(study, batch=2, timeout=10)
    assert states(study) == [COMPLETE] * 4
    optimize(study, batch=2, timeout=0)
    assert len(study.trials) == 4


def test_enqueued_trials_come_first() -> None:
    study = new_study()
    study.enqueue_trial({"lr": 0.125, "width": 8})
    optimize(study, n_trials=2)
    assert study.trials[0].params == {"lr": 0.125, "width": 8}


# -- what others see
# -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    return optuna.storages.JournalStorage(backend)


@pytest.mark.in_turns(2)
def test_storages_hold_usual_trials(storage: Any) -> None:
    study = new_study(storage=storage, study_name="one")
    optimize(study, n_trials=4, batch=2)
    again = optuna.load_study(storage=storage, study_name="one")
    in_memory = new_study()
    optimize(in_memory, n_trials=4, batch=2)
    for found, expected in zip(again.trials, in_memory.trials, strict=True):
        assert (found.state, found.value, found.params) == (
            expected.state,
            expected.value,
            expected.params,
        )
        assert found.intermediate_values == expected.intermediate_values


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_tables_importances_and_plots_see_usual_trials() -> None:
    study = new_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    optimize(study, n_trials=24, batch=6, epochs=4)
    table = study.trials_dataframe()
    assert {"number", "value", "state", "params_lr", "params_width", "duration"} <= set(table)
    assert (table["duration"].dt.total_seconds() > 0).all()
    importances = optuna.importance.get_param_importances(study)
    assert set(importances) == {"lr", "width"}
    plots = pytest.importorskip("optuna.visualization.matplotlib")
    assert len(plots.plot_intermediate_values(study).lines) == 24
    assert plots.plot_optimization_history(study).collections


# -- what is refused
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_trials": 0}, "n_trials to be an integer of at least 1"),
        ({"batch": 0}, "batch to be an integer of at least 1"),
        ({"timeout": -1}, "timeout to be a number of at least 0"),
        ({"metric": "val_accuracy"}, "direction 'minimize' fits, got 'val_accuracy'"),
        ({"metric": "f1"}, "direction 'minimize' fits, got 'f1'"),
        ({"metric": "neg_log_loss"}, "direction 'minimize' fits, got 'neg_log_loss'"),
        ({"metric": "f1score"}, "metric among val_accuracy"),
        ({"validation_data": None, "metric": "val_loss"}, "validation_data or folds"),
        ({"grid": {}}, "settings of fit_many, got 'grid'"),
        ({"epoch": 3}, "settings of fit_many, got 'epoch'"),
        ({"epochs": 0}, "epochs to be an integer of at least 1"),
        ({"halving": True}, "expected halving as"),
        ({"resume": "yes"}, "resume to be True or False"),
        ({"build": None}, "build to be a function of a trial"),
        ({"catch": 5}, "catch as classes of exceptions, got 5"),
        ({"catch": ["ValueError"]}, "catch as classes of exceptions"),
        ({"callbacks": print}, "callbacks as functions of a study and a trial"),
        ({"callbacks": [5]}, "callbacks as functions of a study and a trial"),
    ],
)
def test_arguments_are_checked_before_a_trial_is_asked_for(
    arguments: dict[str, Any], words: str
) -> None:
    study = new_study()
    with pytest.raises(ConfigError, match=words):
        optimize(study, **{"n_trials": 2, **arguments})
    assert study.trials == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [(3, "settings as a dict, got 3"), ({"lr": 1}, "settings among batch_size, .* got 'lr'")],
)
def test_settings_of_a_trial_are_checked(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        optimize(new_study(), lambda trial: (*build(trial), settings), n_trials=2)


def test_a_study_has_one_direction() -> None:
    with pytest.raises(ConfigError, match="one direction, got int"):
        optimize(3)
    several = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(ConfigError, match="one direction, got Study with 2"):
        optimize(several)


def test_without_optuna_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = r"warpfit.optuna needs optuna: pip install 'warpfit\[optuna\]'"
    with pytest.raises(ConfigError, match=words):
        optimize(None)


def test_training_rows_that_decide_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    try:
        optimize(new_study(), validation_data=None, n_trials=2)
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(verbosity)
    assert "trials are compared on the training rows" in caplog.text
    assert "Trials 0 to 1 finished; best " in caplog.text
