"""Points of the plane in two or three classes, and the grid that shows a network's decisions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from warpfit.data import Dataset

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

TRAIN_POINTS, TEST_POINTS = 400, 200
LIMIT = 1.5  # coordinates end at -LIMIT and LIMIT
GRID = 96  # pixels of a side of a decision image
SEED = 0
NOISE_OF_BLOBS = 0.15  # besides what is asked for: without any, a blob would be a point


def make_points(name: str, noise: float) -> Dataset:
    """Return one of ``POINT_SETS``, the same at every call, with as many points of each class to
    within one; to coordinates, about 1 in size, noise of this standard deviation is added.
    """
    rng = np.random.default_rng(SEED)
    place, num_classes = POINT_SETS[name]
    noise = math.hypot(noise, NOISE_OF_BLOBS) if name == "blobs" else noise

    def sample(count: int) -> tuple[npt.NDArray[np.float32], Labels]:
        labels = np.arange(count) % num_classes
        points = place(labels, rng.uniform(size=count)) + noise * rng.normal(size=(count, 2))
        return np.clip(points, -LIMIT, LIMIT).astype(np.float32), labels

    train, test = sample(TRAIN_POINTS), sample(TEST_POINTS)
    return Dataset(name, *train, *test, class_names=tuple("ABC"[:num_classes]))


def _on_circle(angle: Numbers, radius: Numbers | float = 1.0) -> Numbers:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _moons(labels: Labels, along: Numbers) -> Numbers:
    """Two half circles, one hanging into the other."""
    upper = _on_circle(np.pi * along) * 0.75 + [-0.375, -0.2]
    lower = _on_circle(np.pi * (along + 1)) * 0.75 + [0.375, 0.2]
    return np.where(labels[:, None] == 0, upper, lower)


def _circles(labels: Labels, along: Numbers) -> Numbers:
    """A circle around another."""
    return _on_circle(2 * np.pi * along, np.where(labels == 0, 0.5, 1.1))


def _spirals(labels: Labels, along: Numbers) -> Numbers:
    """Two arms, which wind once and a half around each other."""
    radius = np.sqrt(along)  # as many points on every piece of an arm
    return _on_circle(3 * np.pi * radius + np.pi * labels, 0.1 + 1.15 * radius)


def _blobs(labels: Labels, along: Numbers) -> Numbers:
    """Three clouds."""
    return _on_circle(2 * np.pi * labels / 3 + np.pi / 2, 0.85)


# By name: where points of a label lie, from a number in [0, 1) each, and how many labels there are.
POINT_SETS: dict[str, tuple[Callable[[Labels, Numbers], Numbers], int]] = {
    "spirals": (_spirals, 2),
    "moons": (_moons, 2),
    "circles": (_circles, 2),
    "blobs": (_blobs, 3),
}


def grid_points() -> npt.NDArray[np.float32]:
    """Return the middles (GRID², 2) of a decision image's pixels, by rows from the upper left."""
    middles = LIMIT * ((2 * np.arange(GRID) + 1) / GRID - 1)
    x, y = np.meshgrid(middles, -middles)
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
