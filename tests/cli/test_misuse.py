"""Bad input to every command: one sentence, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import Invoke
from support.devices import no_gpu
from warpfit.data import write_idx
from warpfit.training.settings import OPTIMIZERS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "0"], "batch_size to be an integer of at least 1, got 0"),
        (["--batch-size", "many"], "--batch-size"),
        (["--epochs", "0"], "epochs to be an integer of at least 1, got 0"),
        (["--hidden", "16,x"], "'16,x'"),
        (["--hidden", "16,0"], "width to be an integer of at least 1, got 0"),
        (["--dropout", "1"], "dropout in [0, 1), got 1.0"),
        (["--optimizer", "sdg"], f"optimizer among {', '.join(OPTIMIZERS)}, got 'sdg'"),
        (
            ["--optimizer", "adam", "--momentum", "0.5"],
            "momentum works with optimizer muon or rmsprop or sgd",
        ),
        (["--momentum", "1.1"], "momentum in [0, 1], got 1.1"),
        (["--momentum", "0", "--nesterov"], "momentum above 0 for nesterov"),
        (
            ["--schedule", "step", "--warmup-epochs", "1"],
            "warmup_epochs works with schedule cosine",
        ),
        (["--lr", "-1"], "learning rate that is finite and at least 0"),
        (["--clip-norm", "nan"], "clip_norm of at least 0, got nan"),
        (["--weight-decay", "-1"], "weight_decay of at least 0, got -1.0"),
        (["--loss", "mse"], "loss for labels of classes, got 'mse'"),
        (
            ["--loss", "binary_cross_entropy"],
            "expected labels of 2 classes, got 3; cross_entropy takes any",
        ),
        (["--label-smoothing", "2"], "label_smoothing in [0, 1], got 2.0"),
        (["--activation", "tan"], "activation among"),
        (["--model", "rnn"], "model among mlp, cnn, got 'rnn'"),
        (["--model", "cnn"], "images (H, W) or (H, W, C) for a cnn, got samples of shape (5,)"),
        (["--precision", "float16"], "precision 'auto', 'float32' or 'float64'"),
        (["--device", "cuda"], "expected a CUDA device for 'cuda:0', but"),
        (["--device", "tpu"], "expected one device, 'auto', 'cpu', 'cuda'"),
        (
            ["--device", "cpu,tpu"],
            "expected one device, 'auto', 'cpu', 'cuda' or 'cuda:1', ..., got 'tpu'",
        ),
        (["--device", "cuda:all"], "expected a CUDA device for 'cuda:all', but"),
        (["--device", "cuda:all,cpu"], "and neither 'auto' nor 'cuda:all', got ['cuda:all', 'cpu'"),
        (["--engine", "steam"], "engine among auto, layerwise, graph, one_launch, got 'steam'"),
        (["--seed", "-1"], "seed that is an integer"),
        (["--limit", "-1"], "limit to be an integer of at least 0"),
        (["--label-column", "y"], "label_column names a column of a .csv file"),
        (["--image-size", "8"], "image_size is for a folder of images"),
        (
            ["--image-size", "8,8,3"],
            "image_size as height and width like 32,48, or 32 for both, got '8,8,3'",
        ),
        (["--image-size", "0"], "every side of image_size to be an integer of at least 1, got 0"),
        (["--task", "ranking"], "task among auto, classification, regression, got 'ranking'"),
        (["--out", "blobs.npz"], "cannot make the folder blobs.npz"),
        (["--out", "blobs.npz/below"], "cannot make the folder"),
        (["--resume", "nothing.safetensors"], "nothing.safetensors"),
        (["--config", "nothing.toml"], "cannot read nothing.toml"),
        (["--early-stopping", "1", "--limit", "5"], "too few to hold out a tenth"),
        (["--unknown", "1"], "--unknown"),
    ],
)
def test_settings(
    misuse: Invoke, blobs: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    no_gpu(monkeypatch)
    assert message in misuse("train", "--data", blobs, *flags).err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 5", "mine.toml: unknown setting 'epoch'"),
        ("batch-size = '64'", "mine.toml: expected batch-size to be an integer, got '64'"),
        ("epochs = 5.0", "mine.toml: expected epochs to be an integer, got 5.0"),
        ("lr = true", "mine.toml: expected lr to be a number, got True"),
        ("nesterov = 1", "mine.toml: expected nesterov to be true or false, got 1"),
        ("data = 3", "mine.toml: expected data to be text, got 3"),
        ("hidden = [1, 'x']", "mine.toml: expected hidden to be a list of integers"),
        ("hidden = 'x'", "mine.toml: expected hidden to be a list of integers"),
        ("lr = ", "mine.toml is no readable TOML file"),
        ("batch_size = 0", "batch_size to be an integer of at least 1, got 0"),
    ],
)
def test_settings_file(misuse: Invoke, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert message in misuse("train", "--config", "mine.toml").err


def save_npz(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def with_nan() -> np.ndarray:
    x = np.ones((6, 4))
    x[2, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(6), "y": np.arange(6) % 2}, "at least two dimensions; got shape (6,)"),
        ({"x": np.ones((6, 4)), "y": np.arange(5) % 2}, "expected as many rows"),
        ({"x": np.ones((6, 4)) * np.inf, "y": np.arange(6) % 2}, "inf in row 0, column 0"),
        (
            {"x": 2 * np.ones((6, 4)), "y": np.arange(6) % 2},
            "as all cells are the same: x0, x1, x2, x3",
        ),
        ({"x": np.ones((6, 4)), "y": with_nan()[:, 1]}, "nan in row 2"),
        ({"x": np.ones((0, 4)), "y": np.arange(0)}, "has no rows"),
        ({"a": np.ones(3)}, "found a"),
    ],
)
def test_arrays(misuse: Invoke, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    save_npz(tmp_path / "data.npz", **arrays)
    assert message in misuse("train", "--data", "data.npz").err


def test_missing_cells_that_are_not_to_be_filled(misuse: Invoke, tmp_path: Path) -> None:
    save_npz(tmp_path / "data.npz", x=with_nan(), y=np.arange(6) % 2)
    assert "NaN or infinity in row" in misuse("train", "--data", "data.npz", "--no-preprocess").err
    (tmp_path / "data.csv").write_text("town,area,y\n" + "Ulm,3,0\nBonn,4,1\n" * 9)
    assert (
        "got other columns: 'town'" in misuse("train", "--data", "data.csv", "--no-preprocess").err
    )


def test_options_that_a_known_dataset_does_not_take(misuse: Invoke) -> None:
    assert (
        "digits is a known dataset"
        in misuse("train", "--data", "digits", "--label-column", "y").err
    )
    assert (
        "digits is a known dataset" in misuse("train", "--data", "digits", "--image-size", "8").err
    )


def test_a_file_that_is_not_there(misuse: Invoke, trained: Path) -> None:
    model = trained / "model.safetensors"
    assert "house.csv does not exist" in misuse("train", "--data", "house.csv").err
    assert "sub/house does not exist" in misuse("train", "--data", "sub/house").err
    assert "house.csv does not exist" in misuse("evaluate", model, "--data", "house.csv").err
    assert "house.csv does not exist" in misuse("predict", model, "house.csv").err


def test_a_data_dir_that_is_not_there(
    misuse: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.array([0, 1, 9], np.uint8))
    monkeypatch.setenv("WARPFIT_DATA", str(tmp_path))
    for data in ([], ["--data", "mnist"]):
        assert "data_dir /nope is no folder" in misuse("train", *data, "--data-dir", "/nope").err


def test_labels_out_of_range(misuse: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "fashion_mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.array([0, 9, 10], np.uint8))
    outcome = misuse("train", "--data", "fashion_mnist", "--data-dir", tmp_path)
    assert "label 10 in row 2; expected 0 to 9" in outcome.err


@pytest.mark.parametrize("name", ["empty.npz", "empty.csv", "empty.txt"])
def test_empty_files(misuse: Invoke, tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert name in misuse("train", "--data", name).err
    assert name in misuse("evaluate", name).err
    assert name in misuse("predict", name, name).err


def test_unknown_dataset(misuse: Invoke, trained: Path) -> None:
    message = "unknown data 'mnits': expected a dataset among mnist"
    assert message in misuse("train", "--data", "mnits").err
    assert message in misuse("evaluate", trained / "model.safetensors", "--data", "mnits").err


def test_dataset_that_is_not_here(misuse: Invoke) -> None:
    outcome = misuse("train", "--data", "mnist")
    assert "the dataset 'mnist' is not in" in outcome.err
    assert "no connection" in outcome.err


def test_evaluate_on_other_data(misuse: Invoke, trained: Path, blobs: Path, tmp_path: Path) -> None:
    model = trained / "model.safetensors"
    assert "expected samples of shape (8, 8)" in misuse("evaluate", model, "--data", blobs).err
    assert "one device, 'auto', 'cpu'" in misuse("evaluate", model, "--device", "cpu,cpu").err
    assert "split among test, train, all" in misuse("evaluate", model, "--split", "dev").err
    x = np.zeros((4, 8, 8), np.float32)
    save_npz(tmp_path / "other.npz", x=x, y=np.array(["0", "1", "cat", "cat"]))
    assert "got cat" in misuse("evaluate", model, "--data", "other.npz", "--split", "all").err
    save_npz(tmp_path / "floats.npz", x=x, y=np.ones(4) / 2)
    assert (
        "has 0.5 in row 0; expected integers, booleans or text for classes"
        in misuse("evaluate", model, "--data", "floats.npz", "--split", "all").err
    )
    save_npz(tmp_path / "one.npz", x=x[:1], y=np.array([1]))
    assert "one has no test rows" in misuse("evaluate", model, "--data", "one.npz").err


def test_files_that_are_no_models(
    misuse: Invoke, trained: Path, blobs: Path, tmp_path: Path
) -> None:
    import warpfit as wf

    assert "blobs.npz" in misuse("evaluate", blobs).err
    assert (
        "nothing does not exist; expected a model file" in misuse("predict", "nothing", blobs).err
    )
    cut = (trained / "model.safetensors").read_bytes()[:-8]
    (tmp_path / "cut.safetensors").write_bytes(cut)
    assert "cut.safetensors" in misuse("evaluate", "cut.safetensors").err
    wf.save(wf.nn.Sequential(wf.nn.Linear(2, 2)), "bare.safetensors")
    assert "a model that `warpfit train` wrote" in misuse("evaluate", "bare.safetensors").err


def test_resume_from_another_run(
    misuse: Invoke, invoke: Invoke, trained: Path, blobs: Path
) -> None:
    flags = ("--data", blobs, "--epochs", "1", "--hidden", "4")
    assert invoke("train", *flags, "--checkpoint-every", "1", "--out", "first").code == 0
    wider = misuse("train", "--resume", "first", "--hidden", "5", "--out", "second")
    assert "differs in network.layers[0].out_features (4 there, 5 here)" in wider.err
    assert "warpfit-checkpoint" in misuse("train", "--resume", trained / "model.safetensors").err
    assert (
        "nowhere does not exist; expected a checkpoint file"
        in misuse("train", "--resume", "nowhere").err
    )


def test_unknown_command_and_missing_argument(misuse: Invoke) -> None:
    assert "'trian'" in misuse("trian").err
    assert "`warpfit evaluate --help`" in misuse("evaluate").err


def test_images(misuse: Invoke, invoke: Invoke, trained: Path, blobs: Path, tmp_path: Path) -> None:
    from PIL import Image

    model = trained / "model.safetensors"
    assert "nothing.png does not exist" in misuse("predict", model, "nothing.png").err
    (tmp_path / "text.png").write_text("text")
    assert "no readable image" in misuse("predict", model, "text.png").err
    assert "expected samples of shape (8, 8)" in misuse("predict", model, blobs).err
    assert (
        "--out for the predictions of a table"
        in misuse("predict", model, "text.png", "--out", "a.csv").err
    )
    Image.fromarray(np.zeros((8, 8), np.uint16)).save("deep.png")
    assert "8 bits per channel" in misuse("predict", model, "deep.png").err
    Image.new("L", (8, 8)).save("fine.png")
    assert "top of at least 1, got 0" in misuse("predict", model, "fine.png", "--top", "0").err
    (tmp_path / "folder").mkdir()
    assert "folder has no images" in misuse("predict", model, "folder").err
    assert invoke("train", "--data", blobs, "--epochs", "1", "--out", "run").code == 0
    assert "a model of images" in misuse("predict", "run/model.safetensors", "fine.png").err


def test_pixels_of_an_unknown_scale(misuse: Invoke, invoke: Invoke, tmp_path: Path) -> None:
    from PIL import Image

    x = np.random.default_rng(0).normal(size=(20, 4, 4))
    save_npz(tmp_path / "normal.npz", x=x, y=np.arange(20) % 2)
    Image.new("L", (4, 4)).save("fine.png")
    assert invoke("train", "--data", "normal.npz", "--epochs", "1", "--out", "run").code == 0
    assert "pixels from 0 to 1" in misuse("predict", "run/model.safetensors", "fine.png").err


def test_gradcheck(misuse: Invoke) -> None:
    assert "float64, float32, both" in misuse("gradcheck", "--dtype", "float16").err
    assert "'nonsense'" in misuse("gradcheck", "--only", "nonsense").err


def test_one_class_is_nothing_to_tell_apart(invoke: Invoke, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.eye(20, 4), y=np.full(20, "cat"))
    outcome = invoke("train", "--data", tmp_path / "one.npz", "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "one: expected at least two classes, got one, 'cat'" in outcome.err
    assert not (tmp_path / "run").exists()


def test_targets_that_are_all_the_same_are_nothing_to_learn(invoke: Invoke, tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", x=np.eye(20, 4), y=np.full(20, 3.5))
    outcome = invoke("train", "--data", tmp_path / "flat.npz", "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "flat: expected targets that differ, got 3.5 in every training row" in outcome.err


def test_of_many_foreign_classes_some_are_named(
    misuse: Invoke, invoke: Invoke, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    np.savez(tmp_path / "two.npz", x=x, y=np.arange(200) % 2)
    np.savez(tmp_path / "many.npz", x=x, y=np.repeat([f"kind {i}" for i in range(100)], 2))
    assert (
        invoke(
            "train", "--data", tmp_path / "two.npz", "--epochs", "1", "--out", tmp_path / "run"
        ).code
        == 0
    )
    model = tmp_path / "run" / "model.safetensors"
    outcome = misuse("evaluate", model, "--data", tmp_path / "many.npz")
    assert "expected classes of the model (0, 1), got kind " in outcome.err
    assert " more" in outcome.err


def test_without_rows_to_test_on_there_is_no_accuracy(invoke: Invoke, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=np.eye(3, 4), y=np.arange(3) % 2)
    outcome = invoke(
        "train", "--data", tmp_path / "few.npz", "--out", tmp_path / "run", "--epochs", "1"
    )
    assert outcome.code == 0
    assert "none, as there are no rows to test on" in outcome.out
    assert "100.00 %" not in outcome.out
