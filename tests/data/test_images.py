"""Folders of photos of mixed sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from warpfit.data import load_user_data
from warpfit.data.images import as_pixels, opened_image
from warpfit.errors import ConfigError


def save(path: Path, size: tuple[int, int], color: object = 100, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)  # type: ignore[arg-type]


def test_images_of_mixed_sizes_are_resized_to_their_median(tmp_path: Path) -> None:
    for index, size in enumerate(((10, 8), (12, 20), (30, 12))):
        save(tmp_path / "a" / f"{index}.png", size)
    data = load_user_data(tmp_path, test_fraction=0)
    assert data.x_train.shape == (3, 12, 12)
    np.testing.assert_allclose(data.x_train, 100 / 255, rtol=1e-6)
    assert data.notes[0] == "images of 8×10 to 20×30 pixels (height×width) are resized to 12×12"


def test_no_side_of_large_ones_is_longer_than_64_pixels(tmp_path: Path) -> None:
    for index, size in enumerate(((640, 320), (644, 322), (636, 318))):
        save(tmp_path / "a" / f"{index}.png", size)
    assert load_user_data(tmp_path).x_train.shape[1:] == (32, 64)


def test_images_of_one_size_keep_it_and_nothing_is_said(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", (100, 70))
    data = load_user_data(tmp_path, test_fraction=0)
    assert data.x_train.shape == (2, 70, 100)
    assert not any("resized" in note for note in data.notes)


def test_the_size_can_be_told(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", (10, 8))
    save(tmp_path / "b" / "1.png", (12, 20), (200, 100, 0), "RGB")
    data = load_user_data(tmp_path, image_size=(4, 6), test_fraction=0)
    assert data.x_train.shape == (2, 4, 6, 3)
    assert "resized to 4×6" in data.notes[0]
    np.savez(tmp_path / "x.npz", x=np.eye(4), y=np.arange(4) % 2)
    with pytest.raises(ConfigError, match=r"image_size is for a folder of images; .*x.npz is none"):
        load_user_data(tmp_path / "x.npz", image_size=(4, 6))


def test_pixels_are_those_that_predict_takes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    data = load_user_data(tmp_path, image_size=(7, 5), test_fraction=0)
    with opened_image(tmp_path / "a" / "1.png") as image:
        np.testing.assert_allclose(data.x_train[0], as_pixels(image, (7, 5)) / 255, rtol=1e-6)
