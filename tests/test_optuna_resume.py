"""Studies that a killed process leaves, and that go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.strict import STRICT
from support.studies import optimize, storage_at, value_alone

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

TrialState = optuna.trial.TrialState
COMPLETE, RUNNING = TrialState.COMPLETE, TrialState.RUNNING

KILLED = """
import os, signal, sys
from pathlib import Path
import optuna
from support.studies import build, optimize, storage_at

optuna.logging.set_verbosity(optuna.logging.ERROR)
storage, where, count = storage_at(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
study = optuna.create_study(
    storage=storage,
    study_name="killed",
    sampler=optuna.samplers.RandomSampler(seed=0),
    pruner=optuna.pruners.NopPruner(),
)

def count_down():
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def built(trial):
    made = build(trial)
    if where == "asking":
        count_down()
    return made

tell = study.tell
def told(*arguments):
    tell(*arguments)
    if where == "telling":
        count_down()
study.tell = told

import warpfit as wf
class Watch(wf.Callback):
    def on_epoch_end(self, run):
        if where == "training":
            count_down()

set_value = optuna.Trial.report
def reported(self, value, step):
    set_value(self, value, step)
    if where == "reporting":
        count_down()
optuna.Trial.report = reported

optimize(study, built, n_trials=12, batch=4, fit_callbacks=[Watch()])
"""


def killed(path: Path, where: str, count: int) -> None:
    """Run a process that is killed in the midst of its twelve trials, by batches of four."""
    tests = Path(__file__).resolve().parent
    paths = (str(tests), *sys.path)
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", KILLED, str(path), where, str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("file", ["study.db", "study.log"])
@pytest.mark.parametrize(
    ("where", "count", "complete", "running"),
    [
        ("asking", 6, 4, 2),
        pytest.param("training", 17, 4, 4, id="training"),  # the second network of the batch
        ("reporting", 20, 6, 2),
        ("telling", 6, 6, 2),
    ],
)
def test_no_trial_is_lost_or_told_twice_after_a_kill(
    tmp_path: Path, file: str, where: str, count: int, complete: int, running: int
) -> None:
    killed(tmp_path / file, where, count)
    study = optuna.load_study(
        study_name="killed",
        storage=storage_at(tmp_path / file),
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=optuna.pruners.NopPruner(),
    )
    before = study.trials
    assert [trial.state for trial in before] == [COMPLETE] * complete + [RUNNING] * running
    told: list[int] = []
    optimize(
        study,
        n_trials=12 - complete,
        batch=4,
        resume=True,
        callbacks=[lambda study, trial: told.append(trial.number)],
    )
    assert told == list(range(complete, 12))
    assert [trial.state for trial in study.trials] == [COMPLETE] * 12
    assert [trial.number for trial in study.trials] == list(range(12))
    for trial, other in zip(study.trials, before, strict=False):
        assert trial.params == other.params
    for trial in study.trials:
        assert trial.value == value_alone(trial.params)
        assert sorted(trial.intermediate_values) == [0, 1, 2]


def test_running_trials_are_left_alone_unless_they_are_to_be_resumed() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    other: Any = study.ask()
    optimize(study, n_trials=2)
    assert [trial.state for trial in study.trials] == [RUNNING, COMPLETE, COMPLETE]
    study.tell(other, 1.0)
