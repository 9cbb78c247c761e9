"""Drawings become images like those of the data sets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.neighbors import KNeighborsClassifier

from warpfit.apps.playground.drawing import as_digit
from warpfit.data import load_dataset

SIDE = 112


def drawn(rows: slice, columns: slice, shade: int = 255) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[rows, columns] = shade
    return pixels


def extent(image: npt.NDArray[np.float32]) -> tuple[int, int]:
    rows, columns = np.nonzero(image)
    return int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1


@pytest.mark.parametrize("size", [28, 8])
def test_nothing_drawn(size: int) -> None:
    assert as_digit(np.zeros((SIDE, SIDE), np.uint8), size) is None
    assert as_digit(drawn(slice(3, 9), slice(3, 9), shade=20), size) is None


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (slice(0, 40), slice(0, 20), (20, 10)),
        (slice(100, 112), slice(30, 102), (3, 20)),
        (slice(7, 8), slice(9, 10), (20, 20)),
        (slice(0, SIDE), slice(50, 51), (20, 1)),
    ],
)
def test_ink_fits_mnists_box_wherever_it_is(
    rows: slice, columns: slice, expected: tuple[int, int]
) -> None:
    image = as_digit(drawn(rows, columns), 28)
    assert image is not None
    assert (image.shape, image.dtype, image.max()) == ((28, 28), np.float32, 1.0)
    assert extent(image) == expected


def test_the_centre_of_mass_is_where_mnists_is() -> None:
    pixels = drawn(slice(10, 90), slice(10, 20))
    pixels[80:90, 10:60] = 255  # an L: more ink below and to the left
    image = as_digit(pixels, 28)
    assert image is not None
    rows, columns = np.indices(image.shape)
    for places in (rows, columns):
        assert abs((image * places).sum() / image.sum() - 14) <= 0.5


def test_ink_fills_the_height_of_small_digits() -> None:
    for width in (1, 10, 60, 100):
        image = as_digit(drawn(slice(20, 60), slice(5, 5 + width)), 8)
        assert image is not None
        assert image.shape == (8, 8)
        assert extent(image) == (8, min(7, max(1, round(8 * width / 40))))
        np.testing.assert_array_equal(image * 16, np.rint(image * 16))


def test_a_drawing_is_taken_for_what_it_is() -> None:
    digits = load_dataset("digits", flat=True)
    nearest = KNeighborsClassifier(3).fit(digits.x_train, digits.y_train)
    drawings = np.rint(digits.x_test * 255).astype(np.uint8).reshape(-1, 8, 8)
    large = [np.kron(drawing, np.ones((7, 7), np.uint8)) for drawing in drawings]
    aside = [np.pad(drawing, ((40, 16), (3, 53))) for drawing in large]
    seen = np.stack([as_digit(drawing, 8) for drawing in aside]).reshape(-1, 64)
    assert nearest.score(seen, digits.y_test) > 0.85
