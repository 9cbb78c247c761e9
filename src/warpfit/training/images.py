"""Image files as samples for a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.data.images import IMAGE_SUFFIXES, as_pixels, opened_image
from warpfit.errors import ConfigError, DataError, FileFormatError, ShapeError
from warpfit.files import PathLike
from warpfit.training.trained import TrainedModel


@dataclass(frozen=True)
class ImagePrediction:
    """A model's prediction for an image."""

    path: Path
    # (width, height): the image's own size, where it was not the model's.
    resized_from: tuple[int, int] | None
    # tuple of (name, probability): the most probable first; empty for regression.
    classes: tuple[tuple[str, float], ...] = ()
    outputs: tuple[float, ...] = ()  # the target values that are predicted; empty for classes


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class _Image:
    path: Path
    pixels: npt.NDArray[np.uint8]
    resized_from: tuple[int, int] | None


def predict_images(
    trained: TrainedModel, path: PathLike, *, invert: bool = False, top: int = 3
) -> tuple[list[ImagePrediction], list[Skipped]]:
    """Return a model's predictions for an image file, or for every image in a folder, sorted by
    name.

    Images become gray or coloured and are resized as the model needs them; pixels count as x/255.

    Parameters
    ----------
    trained : TrainedModel
    path : path of a file or a folder
    invert : bool
        Whether to turn black into white first: MNIST's digits are white on black.
    top : int
        How many classes to give.

    Returns
    -------
    (list of ImagePrediction, list of Skipped)
        Of a folder, hidden files and sub-folders are ignored, and files that are no images are
        skipped.

    Raises
    ------
    ShapeError, ConfigError
        If the model does not take images with pixels from 0 to 1, or `top` is less than 1.
    DataError
        If there is no image.
    """
    if top < 1:
        raise ConfigError(f"expected top of at least 1, got {top}")
    card = trained.card
    if len(card.input_shape) not in (2, 3) or card.input_shape[2:] not in ((), (1,), (3,)):
        raise ShapeError(
            f"expected a model of images, got one of samples of shape {card.input_shape}"
        )
    if card.scale is None:
        raise ConfigError(
            "expected a model trained on pixels from 0 to 1, got one trained on other numbers"
        )
    images, skipped = _read(Path(path).expanduser(), card.input_shape, invert)
    rows = trained.predictions(np.stack([image.pixels for image in images]))
    return [
        _as_prediction(image, row, card.class_names, top)
        for image, row in zip(images, rows, strict=True)
    ], skipped


def _as_prediction(
    image: _Image, row: npt.NDArray[Any], class_names: Sequence[str], top: int
) -> ImagePrediction:
    if not class_names:
        return ImagePrediction(image.path, image.resized_from, outputs=tuple(row.tolist()))
    best = np.argsort(-row, kind="stable")[:top]
    classes = tuple((class_names[i], float(row[i])) for i in best)
    return ImagePrediction(image.path, image.resized_from, classes=classes)


def _read(path: Path, shape: tuple[int, ...], invert: bool) -> tuple[list[_Image], list[Skipped]]:
    if not path.exists():
        raise DataError(f"{path} does not exist; expected an image file or a folder of images")
    if not path.is_dir():
        return [_read_image(path, shape, invert)], []
    images, skipped = [], []
    for file in sorted(path.iterdir()):
        if file.is_dir() or file.name.startswith("."):
            continue
        try:
            if file.suffix.lower() not in IMAGE_SUFFIXES:
                raise FileFormatError("not an image")
            images.append(_read_image(file, shape, invert))
        except DataError as error:
            skipped.append(Skipped(file, str(error)))
    if not images:
        raise DataError(
            f"{path} has no images; expected files ending in {', '.join(IMAGE_SUFFIXES)}"
        )
    return images, skipped


def _read_image(path: Path, shape: tuple[int, ...], invert: bool) -> _Image:
    """Return the image with pixels of the shape (H, W), (H, W, 1) or (H, W, 3)."""
    with opened_image(path) as image:
        pixels = as_pixels(image, shape)
        own_size = None if image.size == (shape[1], shape[0]) else image.size
    return _Image(path, 255 - pixels if invert else pixels, own_size)
