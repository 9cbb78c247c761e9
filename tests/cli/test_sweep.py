"""``warpfit sweep``, from flags to files."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import warpfit as wf
from support.commands import DIGITS, ENVIRONMENT, Invoke, Outcome
from warpfit.training.settings import OPTIMIZERS, read_settings

QUICK = ("--data", "digits", "--limit", "240", "--batch-size", "16", "--epochs", "2", "--jobs", "1")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_digits_in_place_of_mnist_are_told_of(invoke: Invoke) -> None:
    told = "MNIST was not found and could not be downloaded: training on digits instead.\n"
    assert invoke("sweep", *QUICK[2:], "--lr", "0.1").out.startswith(told)
    assert told not in invoke("sweep", *QUICK, "--lr", "0.1").out


def test_writes_table_picture_settings_and_the_best_model(
    invoke: Invoke, drawn: None, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    grid = ("--lr", "0.01,0.1", "--hidden", "16,8-8", "--optimizer", "sgd,adam", "--seeds", "2")
    outcome = invoke("sweep", *QUICK, *grid, "--out", folder)
    assert outcome.code == 0, outcome
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.toml",
        "model.safetensors",
        "sweep.csv",
        "sweep.png",
    ]
    found = rows(folder)
    assert len(found) == 16
    assert {row["hidden"] for row in found} == {"16", "8-8"}
    assert {row["seed"] for row in found} == {"0", "1"}
    assert {row["status"] for row in found} == {"done"}
    best = next(row for row in found if row["rank"] == "1")
    settings = read_settings(folder / "best.toml")
    assert (settings["lr"], settings["optimizer"]) == (float(best["lr"]), best["optimizer"])
    assert float(best["val_accuracy"]) == max(float(row["val_accuracy"]) for row in found)
    with Image.open(folder / "sweep.png") as image:
        assert min(image.size) > 300
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 50
    assert "16 candidates; validation: 24 rows of the training set" in outcome.out
    assert "64-16-10 relu, sgd, cross_entropy, batch 16: 4 networks" in outcome.out
    assert "networks       16 done" in outcome.out
    assert "ranked by      validation accuracy" in outcome.out
    assert {row["scored_on"] for row in found} == {"validation"}
    evaluated = invoke("evaluate", folder / "model.safetensors", "--data", "digits")
    accuracy = next(
        line.split()[-1] for line in evaluated.out.splitlines() if line.startswith("accuracy")
    )
    assert f"test accuracy  {accuracy}, of the best network" in outcome.out


def test_the_best_settings_train_the_same_network(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    early = ("--early-stopping", "2")  # a training with it holds out the same rows
    invoke("sweep", *QUICK, *early, "--lr", "0.01,0.1", "--out", folder)
    again = invoke("train", "--config", folder / "best.toml", "--out", tmp_path / "again")
    assert again.code == 0, again
    one, other = (wf.load(tmp_path / name / "model.safetensors") for name in ("results", "again"))
    for ours, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(
            ours, theirs, rtol=1e-5, atol=1e-6
        )  # BLAS may have other threads here


def test_folds_and_halving(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke(
        *(
            "sweep",
            *QUICK,
            "--lr",
            "0.001,0.1",
            "--folds",
            "2",
            "--halving",
            "2",
            "--metric",
            "accuracy",
        ),
        *("--out", tmp_path / "results"),
    )
    assert outcome.code == 0, outcome
    found = rows(tmp_path / "results")
    assert [row["fold"] for row in found] == ["0", "1", "0", "1"]
    assert sorted(row["status"] for row in found) == ["done", "done", "stopped", "stopped"]
    assert "2 folds of the training set" in outcome.out
    assert "ranked by  training accuracy" in outcome.out
    assert {row["scored_on"] for row in found} == {"training"}
    assert "best.toml` trains the best candidate on all rows" in outcome.out
    assert not (tmp_path / "results" / "model.safetensors").exists()


def test_one_candidate_and_regression(invoke: Invoke, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "line.npz", x=x, y=x @ [1.0, 2.0, 3.0])
    outcome = invoke(
        "sweep", "--data", "line.npz", "--epochs", "2", "--jobs", "1", "--out", "results"
    )
    assert outcome.code == 0, outcome
    assert len(rows(tmp_path / "results")) == 1
    assert "val_loss" in outcome.out
    assert "targets standardised: mean" in outcome.out
    assert "test R²" in outcome.out


def test_quiet(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("sweep", *QUICK, "--lr", "0.1,0.2", "--quiet", "--out", "results")
    assert outcome == Outcome(0, "", "")
    assert len(rows(tmp_path / "results")) == 2


def test_networks_that_all_diverge(invoke: Invoke, tmp_path: Path) -> None:
    for quiet in ([], ["--quiet"]):
        results = tmp_path / f"results{len(quiet)}"
        outcome = invoke(
            "sweep", *QUICK, "--lr", "1e37,1e38", "--optimizer", "adam", *quiet, "--out", results
        )
        assert outcome.code == 1
        assert outcome.err.startswith(
            "warpfit: expected a network with a score, got none: the loss or a weight"
        )
        assert ("2 diverged" in outcome.out) is not bool(quiet)
        assert sorted(path.name for path in results.iterdir()) == ["sweep.csv", "sweep.png"]


def test_all_train_as_long_as_the_best_settings_say(invoke: Invoke, tmp_path: Path) -> None:
    flags = ("--data", "digits", "--limit", "240", "--hidden", "8", "--jobs", "1", "--folds", "2")
    outcome = invoke("sweep", *flags, "--batch-size", "120,240", "--out", tmp_path / "results")
    assert outcome.code == 0, outcome
    (epochs,) = {int(row["epochs"]) for row in rows(tmp_path / "results")}
    assert read_settings(tmp_path / "results" / "best.toml")["epochs"] == epochs


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lr", "0.1,x"], "expected lr as numbers separated by commas, got 'x'"),
        (["--lr", "0.1,-1"], "candidate lr=-1: "),
        (
            ["--batch-size", "16,8.5"],
            "expected batch_size as integers separated by commas, got '8.5'",
        ),
        (["--hidden", "16,8-x"], "expected hidden widths like 256 or 256-128, or none, got '8-x'"),
        (["--optimizer", "sgd,sdg"], f"optimizer among {', '.join(OPTIMIZERS)}, got 'sdg'"),
        (
            ["--optimizer", "sgd,adam", "--momentum", "0.9"],
            "momentum works with optimizer muon or rmsprop or sgd",
        ),
        (["--folds", "1"], "expected 0 folds or at least 2, got 1"),
        (["--folds", "1000"], "at most as many folds as rows"),
        (["--seeds", "0"], "seeds to be an integer of at least 1, got 0"),
        (["--seeds", "1000000"], "expected at most 100,000 candidates, got 1,000,000"),
        (["--halving", "1"], "factor above 1, got 1.0"),
        (["--metric", "f2"], "expected metric among val_accuracy"),
        (["--jobs", "0"], "n_jobs as an integer other than 0"),
        (["--precision", "float16"], "precision 'auto', 'float32' or 'float64'"),
        (["--engine", "one_launch"], "engine 'one_launch'"),
        (["--out", "blobs.npz"], "cannot make the folder blobs.npz"),
        (["--data", "nothing"], "unknown data 'nothing'"),
    ],
)
def test_misuse(misuse: Invoke, blobs: Path, flags: list[str], message: str) -> None:
    assert message in misuse("sweep", "--data", blobs, "--lr", "0.1", "--device", "cpu", *flags).err


@pytest.mark.slow
def test_ctrl_c_writes_what_is_finished(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "warpfit",
        "sweep",
        *DIGITS[:2],
        "--epochs",
        "100",
        "--seeds",
        "40",
    ]
    process = subprocess.Popen(
        [*command, "--jobs", "1", "--batch-size", "4", "--out", str(tmp_path / "results")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    line = ""
    while "candidates" not in line:
        line = process.stdout.readline()
        assert line, process.communicate()
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "not started" in {row["status"] for row in rows(tmp_path / "results")}
