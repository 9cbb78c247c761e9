"""Early stopping, logs, and when callbacks are called."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import InterruptAt, adam, assert_same_weights, blobs, mlp, same_weights, sgd
from warpfit import nn
from warpfit.errors import ConfigError, DivergedError
from warpfit.training.history import COLUMNS
from warpfit.training.run import Run

X, LABELS = blobs(60)
VALIDATION = blobs(30, seed=1)


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 5, "batch_size": 16, "verbose": False, **settings}
    return wf.fit(model, X, LABELS, optimizer=optimizer or adam(model), **settings)


class Recorder(wf.Callback):
    """Writes down its calls, and the weights at each epoch's end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights: list[dict[str, np.ndarray]] = []

    def on_start(self, run: Run) -> None:
        self.calls.append("start")

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self.calls.append(f"step {step}/{steps_per_epoch}")

    def on_epoch_end(self, run: Run) -> None:
        self.calls.append(f"epoch {run.report.epoch}")
        self.weights.append({name: array.copy() for name, array in run.state.arrays.items()})

    def on_end(self, run: Run) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.calls.append("close")


# -- the calls
# -----------------------------------------------------------------------------------------------


def test_callbacks_are_called_in_order() -> None:
    recorder = Recorder()
    fit(mlp(6, 3), epochs=2, callbacks=[recorder])
    steps = [f"step {step}/4" for step in range(1, 5)]
    assert recorder.calls == ["start", *steps, "epoch 1", *steps, "epoch 2", "end", "close"]


def test_after_an_interrupt_the_run_ends_and_closes() -> None:
    recorder = Recorder()
    fit(mlp(6, 3), callbacks=[InterruptAt(2), recorder])
    assert recorder.calls == ["start", "step 1/4", "end", "close"]


def test_after_an_error_the_run_only_closes() -> None:
    recorder = Recorder()
    model = mlp(6, 3)
    with pytest.raises(DivergedError):
        fit(model, sgd(model, 1e38), callbacks=[recorder])
    assert recorder.calls[0] == "start"
    assert "end" not in recorder.calls
    assert recorder.calls[-1] == "close"


def test_a_callback_that_overrides_nothing_is_fine() -> None:
    with_it, without = mlp(6, 3), mlp(6, 3)
    fit(with_it, callbacks=(wf.Callback(),))
    fit(without)
    assert_same_weights(with_it, without)


def test_a_callback_may_stop_the_run_and_change_the_weights_at_its_end() -> None:
    class StopAfterTwo(wf.Callback):
        def on_epoch_end(self, run: Run) -> None:
            if run.report.epoch == 2:
                run.stop("seen enough")

        def on_end(self, run: Run) -> None:
            run.state.parameters["0.bias"][...] = 7

    model = mlp(6, 3)
    history = fit(model, callbacks=[StopAfterTwo()])
    assert (len(history), history.stopped_by) == (2, "seen enough")
    np.testing.assert_array_equal(model[0].bias.data, [7, 7, 7])


def test_a_callback_may_scale_the_learning_rate() -> None:
    class Halve(wf.Callback):
        def on_epoch_end(self, run: Run) -> None:
            run.scale_lr(0.5)

    assert fit(mlp(6, 3), callbacks=[Halve()], epochs=3)["lr"] == [0.01, 0.005, 0.0025]


# -- early stopping
# ------------------------------------------------------------------------------------------


def scripted(values: list[float], **settings: Any) -> tuple[wf.History, wf.EarlyStopping, Recorder]:
    """Train with an EarlyStopping that sees `values` in place of the validation losses or
    accuracies.
    """
    stopping = wf.EarlyStopping(**settings)

    class Script(wf.Callback):
        def on_epoch_end(self, run: Run) -> None:
            object.__setattr__(run.report, stopping.monitor, values[run.report.epoch - 1])

    recorder, model = Recorder(), mlp(6, 8, 3)
    history = fit(
        model,
        epochs=len(values),
        validation_data=VALIDATION,
        callbacks=[Script(), recorder, stopping],
    )
    recorder.weights.append(model.state_dict())
    return history, stopping, recorder


def test_the_run_ends_after_the_patience_and_keeps_the_best_weights() -> None:
    history, stopping, recorder = scripted([3, 2, 2.5, 2, 1.9, 9], patience=2)
    assert len(history) == 4
    assert history.stopped_by == "early stopping: no better val_loss than 2 (epoch 2)"
    assert (stopping.best, stopping.best_epoch) == (2, 2)
    np.testing.assert_equal(recorder.weights[-1], recorder.weights[1])


def test_best_weights_are_kept_when_all_epochs_are_done() -> None:
    history, _, recorder = scripted([3, 1, 2], patience=5)
    assert history.stopped_by == "epochs"
    np.testing.assert_equal(recorder.weights[-1], recorder.weights[1])


def test_best_weights_may_be_left() -> None:
    _, _, recorder = scripted([3, 1, 2], patience=1, restore_best=False)
    np.testing.assert_equal(recorder.weights[-1], recorder.weights[2])


def test_more_is_better_for_accuracies() -> None:
    history, stopping, _ = scripted([0.5, 0.7, 0.6, 0.65, 0.9], monitor="val_accuracy", patience=2)
    assert (len(history), stopping.best, stopping.best_epoch) == (4, 0.7, 2)


@pytest.mark.parametrize(("min_delta", "num_epochs"), [(0.0, 6), (0.07, 6), (0.12, 3)])
def test_improvements_must_be_worth_it(min_delta: float, num_epochs: int) -> None:
    values = [1, 0.95, 0.9, 0.85, 0.8, 0.75]
    history, *_ = scripted(values, min_delta=min_delta, patience=2)
    assert len(history) == num_epochs


def test_a_stopping_can_be_used_again() -> None:
    stopping = wf.EarlyStopping("loss", patience=1)
    first, second = mlp(6, 3), mlp(6, 3)
    one = fit(first, callbacks=[stopping])
    other = fit(second, callbacks=[stopping])
    assert one["loss"] == other["loss"]
    assert_same_weights(first, second)


def test_it_watches_the_training_loss_without_validation_data() -> None:
    model, plain = mlp(6, 3), mlp(6, 3)
    history = fit(
        model, sgd(model, 0.0), callbacks=[wf.EarlyStopping("loss", patience=2)], shuffle=False
    )
    assert len(history) == 3
    assert same_weights(model, plain)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"monitor": 3}, "expected to monitor a column, got 3"),
        ({"mode": "less"}, "expected EarlyStopping's mode among auto, min, max, got 'less'"),
        ({"patience": 0}, "patience to be an integer of at least 1, got 0"),
        ({"min_delta": -1.0}, "min_delta to be a number of at least 0, got -1.0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        wf.EarlyStopping(**settings)
    with pytest.raises(
        ConfigError, match="expected Checkpoint's every to be an integer of at least 1, got 0"
    ):
        wf.Checkpoint("file", every=0)


# -- logs
# --------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_logs_hold_every_report(tmp_path: Path) -> None:
    history = fit(
        mlp(6, 3),
        validation_data=VALIDATION,
        callbacks=[wf.CSVLog(tmp_path / "log.csv"), wf.JSONLLog(str(tmp_path / "log.jsonl"))],
    )
    columns = [*COLUMNS]
    from_csv, from_jsonl = read_csv(tmp_path / "log.csv"), read_jsonl(tmp_path / "log.jsonl")
    assert [list(row) for row in from_csv] == [list(row) for row in from_jsonl] == [columns] * 5
    for column in columns:
        assert [row[column] for row in from_jsonl] == history[column]
        assert [float(row[column]) for row in from_csv] == history[column]


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    paths = tmp_path / "log.csv", tmp_path / "log.jsonl"
    fit(mlp(6, 3), epochs=1, callbacks=[wf.CSVLog(paths[0]), wf.JSONLLog(paths[1])])
    assert read_csv(paths[0])[0]["val_loss"] == ""
    assert read_jsonl(paths[1])[0]["val_loss"] is None


def test_logs_are_whole_after_every_epoch(tmp_path: Path) -> None:
    path, seen = tmp_path / "log.csv", []

    class Reader(wf.Callback):
        def on_step(self, step: int, steps_per_epoch: int) -> None:
            if step == 1:
                seen.append(len(read_csv(path)))

    path.write_text("an old log\n")
    fit(mlp(6, 3), callbacks=[wf.CSVLog(path), Reader()])
    assert seen == [0, 1, 2, 3, 4]
    assert len(read_csv(path)) == 5
    assert [found.name for found in tmp_path.iterdir()] == ["log.csv"]


def test_a_learning_rate_of_numpys_is_a_number_in_the_log(tmp_path: Path) -> None:
    model = mlp(6, 3)
    schedule = wf.optim.Exponential(np.float32(0.5), 0.5)
    fit(model, sgd(model, schedule), epochs=2, callbacks=[wf.JSONLLog(tmp_path / "log")])
    assert [row["lr"] for row in read_jsonl(tmp_path / "log")] == [0.5, 0.25]


@pytest.mark.parametrize("log", [wf.CSVLog, wf.JSONLLog])
def test_a_resumed_run_goes_on_below_its_rows(tmp_path: Path, log: Any) -> None:
    read = read_csv if log is wf.CSVLog else read_jsonl
    path, checkpoint = tmp_path / "log", wf.Checkpoint(tmp_path / "checkpoint")
    fit(mlp(6, 3), callbacks=[log(path), InterruptAt(11), checkpoint])
    assert len(read(path)) == 2
    rows = read(path)
    path.unlink()
    fit(mlp(6, 3), callbacks=[log(path)], resume_from=checkpoint.path)
    resumed = read(path)
    assert [int(row["epoch"]) for row in resumed] == [1, 2, 3, 4, 5]
    assert resumed[:2] == rows
