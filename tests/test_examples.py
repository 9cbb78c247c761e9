"""The scripts of `examples/` run, and learn something, at a small size."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import warpfit as wf
from warpfit.data import Dataset

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run examples in a folder for what they write, with digits of MNIST's size for MNIST."""
    load = wf.data.load_dataset

    def load_dataset(name: str, *, flat: bool = False) -> Dataset:
        digits = load("digits")
        shape = (-1, 784) if flat else (-1, 28, 28)
        x = np.pad(digits.x_train, ((0, 0), (10, 10), (10, 10))).reshape(shape)
        y = digits.y_train
        return Dataset("few", x[:600], y[:600], x[600:700], y[600:700], digits.class_names)

    monkeypatch.setattr(wf.data, "load_dataset", load_dataset)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, *arguments: Any) -> Any:
    return import_module(name).main(*arguments)


def test_regression() -> None:
    assert 10 < run("regression", 0) < 5000


def test_mnist(folder: Path) -> None:
    assert run("mnist", 2, 200) > 0.12
    assert (folder / "mnist_cnn.safetensors").exists()


def test_mnist_convnet(capsys: pytest.CaptureFixture[str]) -> None:
    run("mnist_convnet", 3, 600)
    printed = capsys.readouterr().out
    assert re.search(r"total +34,826", printed)
    (loss,) = re.findall(r"test loss ([\d.]+)", printed)
    assert float(loss) < np.log(10)  # what guesses have


def test_autoencoder(folder: Path) -> None:
    assert run("autoencoder", 1, 1, 64) < 0.69
    assert np.load(folder / "denoised.npz")["denoised"].shape == (10, 28, 28, 1)


def test_vae(folder: Path) -> None:
    assert run("vae", 2, 300) < 0.8 * 784 * np.log(2)  # every pixel's is log 2 before
    assert np.load(folder / "samples.npy").shape == (64, 28, 28)


def test_siamese_network() -> None:
    example = import_module("siamese_network")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 100)
    images = np.broadcast_to(labels[:, None, None], (100, 28, 28))
    x, is_same = example.pairs_of(images, labels, 50, rng)
    np.testing.assert_array_equal(x[:, :1, 0, 0] == x[:, 1:, 0, 0], is_same)
    # ResNet-18 has 11,170,240 for grey images, without its last layer.
    assert example.SiameseNetwork(64).num_parameters == 11_170_240 + 262_657
    assert 0 <= example.main(1, 32, 4) <= 1


def test_structured_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    age, town = rng.normal(50, 10, 200), rng.choice(["Ulm", "Bonn"], 200)
    table = pd.DataFrame({"age": age, "town": town, "ill": (age > 50) & (town == "Ulm")})
    table.loc[::20, "age"] = np.nan
    table.to_csv(folder / "people.csv", index=False)
    assert run("structured_data", "people.csv", "ill", 20) > 0.7


def test_the_table_has_every_example() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`(\w+)\.py`\]", table, re.MULTILINE) == [
        name for name in NAMES if name != "explicit_style"
    ]
    lines = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    for name, ours, theirs in re.findall(
        r"^\| \[`(\w+)\.py`\].*?\| (\d+) of (\d+) \|", table, re.MULTILINE
    ):
        assert lines[name] == int(ours) <= int(theirs), name
