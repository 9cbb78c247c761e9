"""A drawing as the networks know digits: scaled and centred as those they were trained on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["as_digit"]

Pixels = npt.NDArray[np.uint8]

LEAST_INK = 32  # a pixel that is darker is paper

# scikit-learn's digits fill their 8×8 pixels, and end at 16, MNIST's end at 255.
SMALL, SMALL_TOP = 8, 16


def as_digit(drawing: Pixels, size: int) -> npt.NDArray[np.float32] | None:
    """Return a drawing as an image of the data set, or None if nothing is drawn.

    Of 28 pixels a side it is as MNIST's digits are: the ink fits a box of 20×20, its centre of mass is in the middle.
    Of 8 it is as scikit-learn's: the ink fills the height or the width, and is in the middle.

    Parameters
    ----------
    drawing : ndarray (H, W) uint8
        White on black.
    size : {28, 8}

    Returns
    -------
    ndarray (size, size) float32, in [0, 1], or None
    """
    rows, columns = (np.flatnonzero((drawing >= LEAST_INK).any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return None
    ink = drawing[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if size == SMALL:
        scaled = _scaled(ink, SMALL)
        digit = _placed(scaled, SMALL, [(SMALL - side) / 2 for side in scaled.shape])
        return np.rint(digit * np.float32(SMALL_TOP / 255)) / np.float32(SMALL_TOP)
    scaled = _scaled(ink, size * 20 // 28)
    middle = [size / 2 - centre for centre in _centre_of_mass(scaled)]
    return _placed(scaled, size, middle) / np.float32(255)


def _scaled(ink: Pixels, box: int) -> Pixels:
    """Return the ink at the size at which its longer side is `box`, with the gray levels of anti-aliasing."""
    height, width = (max(1, round(side * box / max(ink.shape))) for side in ink.shape)
    return np.asarray(Image.fromarray(ink).resize((width, height), Image.Resampling.BILINEAR))


def _centre_of_mass(image: Pixels) -> tuple[float, float]:
    """Return row and column, from the upper left corner, in which a pixel's own centre is half a pixel."""
    weights = image.astype(np.float64)
    total = weights.sum() or 1.0
    rows, columns = (np.arange(side) + 0.5 for side in image.shape)
    return float(weights.sum(axis=1) @ rows / total), float(weights.sum(axis=0) @ columns / total)


def _placed(image: Pixels, size: int, corner: list[float]) -> npt.NDArray[np.float32]:
    """Return the image on black, with its upper left corner where asked for, or as near as keeps it whole."""
    top, left = (min(max(0, round(at)), size - side) for at, side in zip(corner, image.shape, strict=True))
    paper = np.zeros((size, size), np.float32)
    paper[top : top + image.shape[0], left : left + image.shape[1]] = image
    return paper
