"""The sets of points, and the grid of decision images."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from warpfit.apps.playground.points import GRID, LIMIT, POINT_SETS, grid_points, make_points


@pytest.mark.parametrize("name", POINT_SETS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_sets_of_points(name: str, noise: float) -> None:
    data = make_points(name, noise)
    assert data.name == name
    for x, y, count in ((data.x_train, data.y_train, 400), (data.x_test, data.y_test, 200)):
        assert (x.shape, x.dtype) == ((count, 2), np.float32)
        assert np.abs(x).max() <= LIMIT
        counts = np.bincount(y, minlength=data.num_classes)
        assert counts.max() - counts.min() <= 1
    again = make_points(name, noise)
    np.testing.assert_array_equal(again.x_train, data.x_train)


@pytest.mark.parametrize("name", POINT_SETS)
def test_without_noise_neighbours_have_one_class(name: str) -> None:
    data = make_points(name, 0.0)
    nearest = KNeighborsClassifier(1).fit(data.x_train, data.y_train)
    assert nearest.score(data.x_test, data.y_test) > 0.98


def test_noise_makes_it_harder() -> None:
    scores = []
    for noise in (0.0, 0.15, 0.5):
        data = make_points("moons", noise)
        nearest = KNeighborsClassifier(1).fit(data.x_train, data.y_train)
        scores.append(nearest.score(data.x_test, data.y_test))
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[2] + 0.1


def test_the_grid_runs_from_the_upper_left() -> None:
    grid = grid_points()
    step = 2 * LIMIT / GRID
    assert grid.shape == (GRID**2, 2)
    np.testing.assert_allclose(grid[0], [-LIMIT + step / 2, LIMIT - step / 2], rtol=1e-6)
    np.testing.assert_allclose(grid[1] - grid[0], [step, 0], atol=1e-6)
    np.testing.assert_allclose(grid[-1], -grid[0], rtol=1e-6)
