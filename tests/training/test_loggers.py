"""Logs of TensorBoard, MLflow and Weights & Biases, written to disk by the libraries themselves."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpfit as wf
from support.training import InterruptAt, adam, blobs, mlp
from warpfit.errors import ConfigError

# The libraries warn in their own name.
pytestmark = pytest.mark.filterwarnings("default")

X, LABELS = blobs(60)
COLUMNS = {
    *("loss", "accuracy", "lr", "seconds", "num_rows"),
    *("val_loss", "val_accuracy", "samples_per_second"),
}


def fit(log: wf.Callback, *others: wf.Callback, **settings: Any) -> wf.History:
    model = mlp(6, 3)
    settings = {"epochs": 3, "batch_size": 16, "validation_data": blobs(20, seed=1), **settings}
    settings = {"optimizer": adam(model), "verbose": False, **settings}
    return wf.fit(model, X, LABELS, callbacks=[log, *others], **settings)


class Fail(wf.Callback):
    def on_epoch_end(self, run: wf.Run) -> None:
        raise RuntimeError("a user's own error")


# -- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard finds in a folder: of each tag steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "runs" / "first"
    history = fit(wf.TensorBoardLog(folder))
    found = scalars(folder)
    assert set(found) == COLUMNS
    for column, pairs in found.items():
        steps, values = zip(*pairs, strict=True)
        assert steps == (1, 2, 3)
        assert values == pytest.approx(history[column], rel=1e-6)  # in float32


def test_tensorboard_has_what_was_trained_before_an_error(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(RuntimeError, match="a user's own error"):
        fit(wf.TensorBoardLog(tmp_path), Fail())
    assert [step for step, _ in scalars(tmp_path)["loss"]] == [1]


def test_a_resumed_run_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log, path = wf.TensorBoardLog(tmp_path / "log"), tmp_path / "checkpoint"
    fit(log, wf.Checkpoint(path), epochs=2)
    fit(log, epochs=4, resume_from=path)
    assert [step for step, _ in scalars(tmp_path / "log")["loss"]] == [1, 2, 3, 4]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file"):
        fit(wf.TensorBoardLog(tmp_path / "file"))
    with pytest.raises(ConfigError, match="expected TensorBoardLog's folder to be a path, got 3"):
        wf.TensorBoardLog(3)  # type: ignore[arg-type]


# -- MLflow


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    return mlflow


def only_run(mlflow: Any, experiment: str) -> Any:
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def test_mlflow_reads_what_is_written(mlflow: Any) -> None:
    history = fit(wf.MLflowLog("digits", name="small"))
    run = only_run(mlflow, "digits")
    assert (run.info.run_name, run.info.status) == ("small", "FINISHED")
    assert mlflow.active_run() is None
    params = run.data.params
    assert (params["loss.name"], params["optimizer.kind"]) == ("cross_entropy", "adam")
    assert (params["optimizer.lr.lr"], params["batch_size"]) == ("0.01", "16")
    assert (params["engine"], params["seed"], params["num_parameters"]) == ("layerwise", "0", "21")
    assert set(run.data.metrics) == COLUMNS
    for column in COLUMNS:
        points = mlflow.MlflowClient().get_metric_history(run.info.run_id, column)
        assert sorted((p.step, p.value) for p in points) == list(enumerate(history[column], 1))


def test_mlflow_keeps_the_active_run_open(mlflow: Any) -> None:
    mlflow.set_experiment("mine")
    with mlflow.start_run() as mine:
        mlflow.log_param("data", "blobs")
        fit(wf.MLflowLog("another"))
        assert mlflow.active_run().info.run_id == mine.info.run_id
    run = only_run(mlflow, "mine")
    assert run.data.params["data"] == "blobs"
    assert "loss" in run.data.metrics
    assert mlflow.get_experiment_by_name("another") is None


@pytest.mark.parametrize(("other", "status"), [(InterruptAt(6), "KILLED"), (Fail(), "FAILED")])
def test_mlflow_is_told_how_a_run_ended(mlflow: Any, other: wf.Callback, status: str) -> None:
    try:
        fit(wf.MLflowLog("ends"), other)
    except RuntimeError:
        assert status == "FAILED"
    assert only_run(mlflow, "ends").info.status == status


# -- Weights & Biases


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"DIR": tmp_path, "MODE": "offline", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    return pytest.importorskip("wandb")


def records(folder: Path) -> list[Any]:
    """Return the records of the only run below a folder: a log as LevelDB's, in one block."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # the process that writes has ended, and all is written
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, found = path.read_bytes(), 7, []
    assert len(data) < 1 << 15
    while place < len(data):
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        assert kind == 1  # a whole record
        found.append(Record.FromString(data[place + 7 : place + 7 + length]))
        place += 7 + length
    return found


def rows(found: list[Any]) -> list[dict[str, Any]]:
    logged = [record.history for record in found if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.item}
        for each in logged
    ]


def config(found: list[Any]) -> dict[str, Any]:
    updates = [each for r in found for each in (*r.config.update, *r.run.config.update)]
    return {each.key or each.nested_key[0]: json.loads(each.value_json) for each in updates}


def test_wandb_writes_what_is_logged(wandb: Any, tmp_path: Path) -> None:
    history = fit(wf.WandbLog("digits", name="small"))
    assert wandb.run is None
    found = records(tmp_path)
    logged = rows(found)
    assert [row["epoch"] for row in logged] == [1, 2, 3]
    for column in COLUMNS:
        assert [row[column] for row in logged] == history[column], column
    assert config(found)["optimizer.kind"] == "adam"
    (run,) = {(r.run.project, r.run.display_name) for r in found if r.run.project}
    assert run == ("digits", "small")
    assert [r.exit.exit_code for r in found if r.WhichOneof("record_type") == "exit"] == [0]


def test_wandb_keeps_the_active_run_open(wandb: Any, tmp_path: Path) -> None:
    mine = wandb.init(project="mine")
    fit(wf.WandbLog("another"))
    assert wandb.run is mine
    mine.finish()
    found = records(tmp_path)
    assert len(rows(found)) == 3
    assert {r.run.project for r in found if r.run.project} == {"mine"}


def test_wandb_is_told_of_an_error(wandb: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a user's own error"):
        fit(wf.WandbLog("digits"), Fail())
    assert [r.exit.exit_code for r in records(tmp_path) if r.HasField("exit")] == [1]


# -- all of them


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: wf.TensorBoardLog("runs"), "tensorboard"),
        (wf.MLflowLog, "mlflow"),
        (wf.WandbLog, "wandb"),
    ],
    ids=["tensorboard", "mlflow", "wandb"],
)
def test_what_is_not_installed_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"Log needs {package}: pip install 'warpfit\[{package}\]'"
    ):
        make()


def test_nothing_is_imported_before_a_log_is_made() -> None:
    code = "import sys, warpfit; warpfit.WandbLog; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"tensorboard", "mlflow", "wandb"}
