"""``warpfit predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import warpfit as wf
from support.commands import Invoke


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return a folder with three digits as images, one of them larger and coloured, and two files
    of other kinds.
    """
    folder = tmp_path / "pictures"
    folder.mkdir()
    pixels = np.rint(wf.data.load_dataset("digits").x_test[:3] * 255).astype(np.uint8)
    Image.fromarray(pixels[0]).save(folder / "b.png")
    Image.fromarray(pixels[1]).save(folder / "a.png")
    Image.fromarray(pixels[2]).resize((40, 32), Image.Resampling.NEAREST).convert("RGB").save(
        folder / "c.bmp"
    )
    (folder / "notes.txt").write_text("not a picture")
    (folder / "broken.png").write_bytes(b"\x89PNG")
    (folder / "below").mkdir()
    return folder


def as_json(invoke: Invoke, *arguments: str | Path) -> Any:
    outcome = invoke("predict", *arguments, "--json")
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


def test_folder_gives_labels_and_probabilities_by_name(
    invoke: Invoke, trained: Path, pictures: Path
) -> None:
    model = trained / "model.safetensors"
    report = as_json(invoke, model, pictures)
    assert [Path(p["image"]).name for p in report["predictions"]] == ["a.png", "b.png", "c.bmp"]
    assert [Path(s["file"]).name for s in report["skipped"]] == ["broken.png", "notes.txt"]
    assert [p["resized_from"] for p in report["predictions"]] == [None, None, [40, 32]]
    rows = np.stack(
        [np.asarray(Image.open(pictures / name)).ravel() for name in ("a.png", "b.png")]
    )
    expected = wf.predict(wf.load(model), rows, kind="probabilities")
    for prediction, row in zip(report["predictions"], expected, strict=False):
        assert prediction["label"] == str(row.argmax())
        assert prediction["probability"] == pytest.approx(row.max())
        assert [top["label"] for top in prediction["top"]] == [str(i) for i in np.argsort(-row)[:3]]


def test_table_names_what_was_resized_and_skipped(
    invoke: Invoke, trained: Path, pictures: Path
) -> None:
    outcome = invoke("predict", trained / "model.safetensors", pictures)
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["image", "a.png", "b.png", "c.bmp"]
    assert lines[4] == "c.bmp: resized from 40×32 pixels to the model's size"
    assert lines[5].startswith("broken.png: skipped, ")
    assert lines[6] == "notes.txt: skipped, not an image"


def test_inverted_picture_gives_the_same(invoke: Invoke, trained: Path, pictures: Path) -> None:
    model = trained / "model.safetensors"
    with Image.open(pictures / "a.png") as image:
        Image.fromarray(255 - np.asarray(image)).save("ink.png")
    straight = as_json(invoke, model, pictures / "a.png")["predictions"][0]
    assert as_json(invoke, model, "ink.png", "--invert")["predictions"][0]["top"] == straight["top"]
    assert as_json(invoke, model, "ink.png")["predictions"][0]["top"] != straight["top"]


def test_top_bounds_the_classes(invoke: Invoke, trained: Path, pictures: Path) -> None:
    model = trained / "model.safetensors"
    for top, shown in (("1", 1), ("50", 10)):
        assert (
            len(as_json(invoke, model, pictures / "a.png", "--top", top)["predictions"][0]["top"])
            == shown
        )


def test_cnn_reads_text_classes(invoke: Invoke, tiny_images: Path) -> None:
    flags = ("--model", "cnn", "--hidden", "8", "--epochs", "4", "--lr", "0.02")
    assert invoke("train", "--data", tiny_images, *flags, "--out", "run").code == 0
    bright = np.zeros((8, 8), np.uint8)
    bright[4:] = 200
    Image.fromarray(bright).save("one.png")
    assert as_json(invoke, "run/model.safetensors", "one.png")["predictions"][0]["label"] == "below"


def test_regression_on_colour_pictures_gives_outputs(invoke: Invoke, tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(size=(40, 4, 4, 3)).astype(np.float32)
    np.savez("colour.npz", x=x, y=x.mean(axis=(1, 2, 3)))
    assert invoke("train", "--data", "colour.npz", "--lr", "0.01", "--out", "run").code == 0
    Image.new("L", (4, 4), 128).save("gray.png")
    [prediction] = as_json(invoke, "run/model.safetensors", "gray.png")["predictions"]
    assert prediction["outputs"] == pytest.approx([0.5], abs=0.15)
    table = invoke("predict", "run/model.safetensors", "gray.png").out.splitlines()
    assert table[0].split() == ["image", "output"]


def test_two_classes_by_one_logit(invoke: Invoke, tiny_images: Path) -> None:
    flags = ("--loss", "binary_cross_entropy", "--hidden", "8", "--epochs", "20", "--lr", "0.1")
    outcome = invoke("train", "--data", tiny_images, *flags, "--out", "run")
    assert outcome.code == 0
    assert "Linear  (1,)" in outcome.out
    report = json.loads(invoke("evaluate", "run/model.safetensors", "--split", "all", "--json").out)
    assert report["accuracy"] > 0.9
    found = (
        sum(score["recall"] * score["num_rows"] for score in report["classes"]) / report["num_rows"]
    )
    assert found == pytest.approx(report["accuracy"])
    bright = np.zeros((8, 8), np.uint8)
    bright[4:] = 200
    for name, pixels in (("below", bright), ("above", bright[::-1])):
        Image.fromarray(pixels).save("one.png")
        [prediction] = as_json(invoke, "run/model.safetensors", "one.png")["predictions"]
        assert prediction["label"] == name
        assert sum(top["probability"] for top in prediction["top"]) == pytest.approx(1)
