"""``warpfit train``, from flags to files."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from safetensors.numpy import load_file

import warpfit as wf
from support.commands import DIGITS, ENVIRONMENT, Invoke
from support.strict import STRICT
from warpfit.cli.app import app
from warpfit.cli.train import OF_METHODS
from warpfit.training.settings import TrainSettings

RESULTS = [
    "config.toml",
    "confusion.svg",
    "curves.svg",
    "history.csv",
    "history.json",
    "model.safetensors",
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_same_weights(folder: Path, other: Path) -> None:
    weights, others = (load_file(run / "model.safetensors") for run in (folder, other))
    assert weights.keys() == others.keys()
    for name in weights:
        np.testing.assert_array_equal(weights[name], others[name])


def test_every_setting_is_an_option() -> None:
    options = {option.name for option in typer.main.get_command(app).commands["train"].params}
    own = options - {"config", "help", *OF_METHODS}
    assert own == {field.name for field in fields(TrainSettings)}


def test_writes_model_history_settings_and_pictures(trained: Path) -> None:
    assert names(trained) == RESULTS
    history = json.loads((trained / "history.json").read_text())
    assert history["epochs"]["epoch"] == [1, 2, 3]
    assert history["stopped_by"] == "epochs"
    assert history["test"]["rows"] == 359
    with (trained / "history.csv").open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    for picture in ("curves.svg", "confusion.svg"):
        root = ElementTree.parse(trained / picture).getroot()
        assert min(float(root.attrib[side]) for side in ("width", "height")) > 300
        assert "of 359 test rows right" in "".join(root.itertext())


def test_the_model_says_what_it_was_trained_on(trained: Path) -> None:
    card = wf.load_metadata(trained / "model.safetensors")
    assert card["data"] == "digits"
    assert card["class_names"] == list("0123456789")
    assert (card["input_shape"], card["network_shape"], card["scale"]) == ([8, 8], [64], 255)


def test_digits_reach_96_percent_with_the_defaults(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("train", "--data", "digits", "--out", "run", "--quiet").code == 0
    assert json.loads((tmp_path / "run" / "history.json").read_text())["test"]["accuracy"] >= 0.96


def test_output_in_a_log_is_plain(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("train", *DIGITS, "--out", "run")
    assert outcome.err == ""
    assert outcome.out.replace("\n", "").isprintable()
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["1/3", "2/3", "3/3"]
    assert any(line.startswith("layerwise on cpu in float32") for line in lines)
    assert any(line.startswith("test accuracy") for line in lines)
    assert str(Path("run") / "model.safetensors") in lines


def test_quiet_prints_nothing(invoke: Invoke) -> None:
    outcome = invoke("train", *DIGITS, "--out", "run", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_results_go_below_runs_by_default(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("train", *DIGITS, "--quiet").code == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert names(folder) == RESULTS


def test_the_written_settings_repeat_the_run(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    assert invoke("train", "--config", trained / "config.toml", "--out", "again").code == 0
    assert_same_weights(trained, tmp_path / "again")
    assert (tmp_path / "again" / "config.toml").read_text() == (trained / "config.toml").read_text()


def test_another_seed_gives_another_model(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    assert invoke("train", *DIGITS, "--seed", "1", "--out", "other").code == 0
    ours, theirs = (load_file(run / "model.safetensors") for run in (trained, tmp_path / "other"))
    assert not np.array_equal(ours["0.weight"], theirs["0.weight"])


def test_flags_win_over_the_file_and_the_file_over_defaults(
    invoke: Invoke, blobs: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(
        f"data = {json.dumps(str(blobs))}\nbatch-size = 7\nhidden = [4, 3]\noptimizer = "
        "'adam'\nlr = 1\nepochs = 2"
    )
    outcome = invoke(
        "train", "--config", "mine.toml", "--lr", "0.01", "--hidden", "none", "--out", "run"
    )
    assert outcome.code == 0, outcome
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (written["batch_size"], written["optimizer"]) == (7, "adam")
    assert (written["lr"], written["hidden"]) == (0.01, [])
    assert (written["seed"], written["precision"], written["engine"]) == (0, "float32", "layerwise")


def test_resumed_run_equals_an_uninterrupted_one(invoke: Invoke, tmp_path: Path) -> None:
    steady = (*DIGITS, "--schedule", "constant", "--optimizer", "adam", "--checkpoint-every", "1")
    assert invoke("train", *steady, "--epochs", "2", "--out", "first").code == 0
    assert names(tmp_path / "first") == sorted([*RESULTS, "checkpoint.safetensors"])
    assert invoke("train", "--resume", "first", "--epochs", "4", "--out", "second").code == 0
    assert invoke("train", "--resume", "first", "--epochs", "4", "--out", "first").code == 0
    assert_same_weights(tmp_path / "second", tmp_path / "first")
    assert invoke("train", *steady, "--epochs", "4", "--out", "whole").code == 0
    assert_same_weights(tmp_path / "second", tmp_path / "whole")
    assert json.loads((tmp_path / "second" / "history.json").read_text())["epochs"]["epoch"] == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("train", *DIGITS),
        ("train", "--resume", "other/checkpoint.safetensors"),
        ("train", "--data", "cells.csv", "--method", "realmlp", "--epochs", "1"),
        ("sweep", *DIGITS, "--lr", "0.1"),
        ("ladder", "--data", "digits", "--limit", "300", "--epochs", "1", "--rungs", "numpy"),
    ],
)
def test_results_of_two_runs_do_not_share_a_folder(
    invoke: Invoke, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "cells.csv").write_text("x,kind\n" + "1,a\n2,b\n" * 20)
    asked = (*DIGITS, "--limit", "100", "--checkpoint-every", "1", "--out")
    assert [invoke("train", *asked, folder).code for folder in ("run", "other")] == [0, 0]
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    outcome = invoke(*command, "--out", "run")
    assert outcome.code == 2
    assert outcome.err == (
        "warpfit: expected a new or an empty folder for the results, got run, which has "
        f"{', '.join(sorted([*RESULTS, 'checkpoint.safetensors']))}; name another folder, or "
        "remove them\n"
    )
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_run_resumed_on_other_data_says_so_or_is_told_to(invoke: Invoke, blobs: Path) -> None:
    data = dict(np.load(blobs))
    flags = ("--data", blobs, "--hidden", "4", "--checkpoint-every", "1")
    assert invoke("train", *flags, "--epochs", "1", "--out", "first").code == 0
    np.savez(blobs, **{**data, "x": data["x"][::-1].copy()})
    refused = invoke("train", "--resume", "first", "--epochs", "2", "--out", "second")
    assert refused.code == 2
    assert "got another x" in refused.err
    assert "--new-data" in refused.err
    assert (
        invoke("train", "--resume", "first", "--new-data", "--epochs", "2", "--out", "second").code
        == 0
    )
    assert invoke("train", "--resume", "second", "--epochs", "3", "--out", "third").code == 0


def test_ctrl_c_leaves_a_checkpoint_and_the_last_whole_epoch(
    invoke: Invoke, blobs: Path, tmp_path: Path
) -> None:
    flags = ["--data", str(blobs), "--schedule", "constant", "--checkpoint-every", "1"]
    command = [
        sys.executable,
        *STRICT,
        "-m",
        "warpfit",
        "train",
        *flags,
        "--epochs",
        "1000000",
        "--out",
        "run",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 2/"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert history["stopped_by"] == "interrupt"
    assert names(tmp_path / "run") == sorted([*RESULTS, "checkpoint.safetensors"])
    more = str(len(history["epochs"]["epoch"]) + 2)
    assert invoke("train", "--resume", "run", "--epochs", more, "--out", "resumed").code == 0
    assert invoke("train", *flags, "--epochs", more, "--out", "whole").code == 0
    assert_same_weights(tmp_path / "resumed", tmp_path / "whole")


def test_interrupt_before_the_first_epoch_leaves_nothing(
    invoke: Invoke, blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warpfit.engines.layerwise.Layerwise.run", interrupt)
    outcome = invoke("train", "--data", blobs, "--out", "deep/run")
    assert outcome.code == 130
    assert "before the first epoch" in outcome.out
    assert names(tmp_path) == ["blobs.npz"]


def test_diverged_run_exits_with_1_and_leaves_nothing(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("train", *DIGITS, "--lr", "1e30", "--out", "run")
    assert outcome.code == 1
    assert "not finite in epoch 1, step 2" in outcome.err
    assert names(tmp_path) == []


def test_falls_back_to_digits_without_mnist_and_network(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("train", "--epochs", "1", "--limit", "100", "--out", "run")
    assert outcome.code == 0
    assert outcome.out.startswith(
        "MNIST was not found and could not be downloaded: training on digits"
    )
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"] == "digits"


def test_pictures_need_no_matplotlib(
    invoke: Invoke, blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = invoke("train", "--data", blobs, "--epochs", "1", "--out", "run")
    assert outcome.code == 0
    assert names(tmp_path / "run") == RESULTS


def test_regression_from_a_table(invoke: Invoke, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 2))
    rows = [f"{a:.6f},{b:.6f},{2 * a - b + 0.5:.6f}" for a, b in x]
    (tmp_path / "line.csv").write_text("\n".join(["a,b,price", *rows]))
    flags = ("--data", "line.csv", "--label-column", "price", "--hidden", "none")
    outcome = invoke("train", *flags, "--out", "run")
    assert outcome.code == 0, outcome
    assert "test accuracy" not in outcome.out
    assert "confusion.svg" not in names(tmp_path / "run")
    outcome = invoke("evaluate", "run/model.safetensors", "--json")
    assert json.loads(outcome.out)["loss"] < 0.01
    assert invoke("evaluate", "run/model.safetensors").code == 0


def test_cnn_with_dropout_early_stopping_and_float64(
    invoke: Invoke, tiny_images: Path, tmp_path: Path
) -> None:
    flags = (
        "--model",
        "cnn",
        "--dropout",
        "0.5",
        "--early-stopping",
        "2",
        "--precision",
        "float64",
    )
    outcome = invoke(
        "train", "--data", tiny_images, *flags, "--epochs", "4", "--lr", "0.02", "--out", "run"
    )
    assert outcome.code == 0, outcome
    assert "validation: 3 rows of the training set" in outcome.out
    model = wf.load(tmp_path / "run" / "model.safetensors")
    assert model.dtype == "float64"
    kinds = [type(layer).__name__ for layer in model]
    assert kinds == [
        *("Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "Dropout", "Flatten"),
        *("Linear", "ReLU", "Dropout", "Linear"),
    ]


def test_data_without_test_rows(invoke: Invoke, tmp_path: Path) -> None:
    x, y = np.eye(6, dtype=np.float32), np.arange(6) % 2
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    outcome = invoke("train", "--data", "all.npz", "--epochs", "1", "--out", "run")
    assert outcome.code == 0
    assert "validation: none" in outcome.out
    assert "test" not in json.loads((tmp_path / "run" / "history.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a terminal is opened as on Unix")
def test_a_terminal_sees_the_progress_bars_lines_only(blobs: Path) -> None:
    import pty

    parent, child = pty.openpty()
    command = [sys.executable, "-m", "warpfit", "train", "--data", str(blobs), "--epochs", "2"]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=ENVIRONMENT)
    os.close(child)
    shown = b""
    while chunk := _read(parent):
        shown += chunk
    os.close(parent)
    assert process.wait(timeout=60) == 0
    assert (
        shown.count(b"accuracy") == 2 * 2 + 1
    )  # training and validation in two epochs, then the test


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_a_profile_is_one_of_the_files(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("train", *DIGITS, "--profile", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome
    assert str(tmp_path / "run" / "trace.json") in outcome.out
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    assert {"epoch 1", "epoch 2", "epoch 3"} <= {event["name"] for event in events}
    assert "profile" not in (tmp_path / "run" / "config.toml").read_text()
