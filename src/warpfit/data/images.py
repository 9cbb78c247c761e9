"""Image files as arrays, of one size: a file, or a folder with a sub-folder of images per class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warpfit.checks import Array
from warpfit.data.dataset import unit_floats
from warpfit.errors import DataError, FileFormatError
from warpfit.extras import needs

if TYPE_CHECKING:
    from PIL.Image import Image

Rows = tuple[Array, Array]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
GRAY_MODES = ("L", "LA", "1")
COLOUR_MODES = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")

MOST_PIXELS = 64  # a side, where images of mixed sizes are resized


@contextmanager
def opened_image(path: Path) -> Iterator[Image]:
    """Yield the image in a file, of which nothing but size and mode is read so far.

    Raises
    ------
    DataError, FileFormatError
        If it cannot be read, or has other than 8 bits per channel.
    """
    with needs("data", "images need"):
        from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode not in GRAY_MODES + COLOUR_MODES:
                raise DataError(
                    f"{path} has pixels of mode {image.mode}; expected 8 bits per channel"
                )
            yield image
    except DataError:
        raise
    except Exception as error:  # on damaged files Pillow's parsers raise almost anything
        raise FileFormatError(f"{path} is no readable image: {error}") from error


def as_pixels(image: Image, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return an image's pixels, resized and converted to (H, W), (H, W, 1) or (H, W, 3)."""
    from PIL.Image import Resampling

    converted = image.convert("RGB" if shape[2:] == (3,) else "L")
    size = (shape[1], shape[0])
    return np.asarray(
        converted if image.size == size else converted.resize(size, Resampling.LANCZOS)
    ).reshape(shape)


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Images (N, H, W) or (N, H, W, 3) in [0, 1], their folders' names, and what was decided."""

    train: Rows
    test: Rows | None
    notes: tuple[str, ...]


def read_folder(folder: Path, size: tuple[int, int] | None = None) -> ImageFolder:
    """Return the images of a folder, of height and width `size` if that is given.

    Raises
    ------
    DataError, FileFormatError
        If there are no images, or one cannot be read.
    """
    train, test = folder / "train", folder / "test"
    has_test_set = bool(_sub_folders(train) and _sub_folders(test))
    files = _image_files(train) if has_test_set else _image_files(folder)
    num_train = len(files)
    if has_test_set:
        files += _image_files(test)
    x, notes = _stack([path for path, _ in files], size)
    y = np.array([label for _, label in files])
    held_out = (x[num_train:], y[num_train:]) if has_test_set else None
    return ImageFolder((x[:num_train], y[:num_train]), held_out, notes)


def _sub_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _image_files(folder: Path) -> list[tuple[Path, str]]:
    """Return each image below a folder and its class, the name of its sub-folder."""
    classes = _sub_folders(folder)
    if not classes:
        raise DataError(
            f"{folder} has no sub-folders; expected one per class, with its images inside"
        )
    files = []
    for sub_folder in classes:
        images = sorted(
            path for path in sub_folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES
        )
        if not images:
            raise DataError(
                f"{sub_folder} has no images; expected files ending in {', '.join(IMAGE_SUFFIXES)}"
            )
        files += [(path, sub_folder.name) for path in images]
    return files


def _stack(paths: list[Path], size: tuple[int, int] | None) -> tuple[Array, tuple[str, ...]]:
    """Return the images as (N, H, W), or as (N, H, W, 3) if one of them has colours."""
    looks = [_look(path) for path in paths]
    sizes = np.array([size for size, _ in looks])
    shape: tuple[int, ...] = _common_size(sizes) if size is None else size
    notes: tuple[str, ...] = ()
    if (sizes != shape).any():
        (low_h, low_w), (high_h, high_w) = sizes.min(axis=0), sizes.max(axis=0)
        notes = (
            f"images of {low_h}×{low_w} to {high_h}×{high_w} pixels (height×width) are resized to "
            f"{shape[0]}×{shape[1]}",
        )
    if not all(is_gray for _, is_gray in looks):
        shape = (*shape, 3)
    return unit_floats(np.stack([_pixels(path, shape) for path in paths])), notes


def _look(path: Path) -> tuple[tuple[int, int], bool]:
    """Return an image's height and width, and whether it is gray."""
    with opened_image(path) as image:
        return (image.height, image.width), image.mode in GRAY_MODES


def _pixels(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    with opened_image(path) as image:
        return as_pixels(image, shape)


def _common_size(sizes: Array) -> tuple[int, ...]:
    """Return the size of images if all have it; else the median, no side above 64 pixels."""
    if (sizes == sizes[0]).all():
        return tuple(sizes[0].tolist())
    median = np.median(sizes, axis=0)
    scale = min(1.0, MOST_PIXELS / median.max())
    return tuple(max(1, round(side * scale)) for side in median.tolist())
