"""A drawing as the networks know digits: scaled and centred as those they were trained on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

LEAST_INK = 32  # a pixel that is darker is paper

# scikit-learn's digits have 8×8 pixels, which end at 16.
SMALL, SMALL_TOP = 8, 16


def as_digit(drawing: Pixels, size: int) -> npt.NDArray[np.float32] | None:
    """Return a drawing as an image of the data set, or None if nothing is drawn.

    Of 28 pixels a side it is as MNIST's digits are: the ink fits a box of 20×20, with its centre of
    mass at pixel (14, 14). Of 8 it is as scikit-learn's: the ink fills the height, at its own width
    up to 7, and is in the middle. The drawing (H, W) is white on black, the image (size, size) from
    0 to 1.
    """
    rows, columns = (np.flatnonzero((drawing >= LEAST_INK).any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return None
    ink = drawing[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    if size == SMALL:
        scaled = _scaled(ink, SMALL, min(SMALL - 1, round(SMALL * width / height)))
        digit = _placed(scaled, SMALL, (0, (SMALL - scaled.shape[1]) / 2))
        return np.rint(digit * np.float32(SMALL_TOP / 255)) / np.float32(SMALL_TOP)
    zoom = (size * 20 // 28) / max(height, width)
    scaled = _scaled(ink, round(height * zoom), round(width * zoom))
    row, column = _centre_of_mass(scaled)
    return _placed(scaled, size, (size // 2 - row, size // 2 - column)) / np.float32(255)


def _scaled(ink: Pixels, height: int, width: int) -> Pixels:
    """Return the ink at another size, at least a pixel a side, with gray levels as anti-aliased."""
    image = Image.fromarray(ink).resize((max(1, width), max(1, height)), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _centre_of_mass(image: Pixels) -> tuple[float, float]:
    """Return row and column, counted in pixels from 0, as the makers of MNIST did."""
    weights = image.astype(np.float64)
    total = weights.sum() or 1.0
    rows, columns = (np.arange(side) for side in image.shape)
    return float(weights.sum(axis=1) @ rows / total), float(weights.sum(axis=0) @ columns / total)


def _placed(image: Pixels, size: int, corner: tuple[float, float]) -> npt.NDArray[np.float32]:
    """Return the image on black, its upper left corner as near to a place as keeps it whole."""
    top, left = (
        min(max(0, round(at)), size - side) for at, side in zip(corner, image.shape, strict=True)
    )
    paper = np.zeros((size, size), np.float32)
    paper[top : top + image.shape[0], left : left + image.shape[1]] = image
    return paper
