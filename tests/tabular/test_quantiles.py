from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import QuantileTransformer

from warpfit.tabular.network import Columns
from warpfit.tabular.quantiles import QuantilePreprocessor


def rows_of(column: Any, trained: int | None = None) -> Any:
    """Return what a table of one column becomes."""
    frame = pd.DataFrame({"x": column})
    table = QuantilePreprocessor(frame, np.arange(trained or len(frame)))
    return table.transform(frame)


def test_numbers_become_normally_distributed() -> None:
    found = rows_of(np.random.default_rng(0).exponential(size=3000))[:, 0]
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.05
    assert abs((found**3).mean()) < 0.3


def test_order_stays_and_far_away_is_the_edge() -> None:
    x = np.append(np.arange(200.0), [1e9, -1e9])
    found = rows_of(x, trained=200)[:, 0]
    assert (np.diff(found[:200]) > 0).all()
    assert found[200] >= found[199]
    assert found[201] <= found[0]


def test_the_largest_numbers() -> None:
    found = rows_of([-1.7e308, 1.7e308, 0.0, 1.0, np.nan] * 4)
    assert np.isfinite(found).all()
    assert found[0] < found[4] < found[1]


def test_missing_numbers_become_the_median() -> None:
    found = rows_of([1.0, np.nan, 2, 3, 9, 5])
    assert found[1, 0] == 0


@pytest.mark.parametrize("x", [[7.0] * 4, [np.nan] * 4])
def test_a_column_without_differences_is_left_out(x: Any) -> None:
    assert rows_of(x).shape == (4, 0)
    frame = pd.DataFrame({"x": x, "y": range(4)})
    table = QuantilePreprocessor(frame, np.arange(4))
    assert table.columns == Columns(1)
    assert table.transform(frame).shape == (4, 1)


def test_categories_become_codes_with_one_of_their_own_for_missing_cells() -> None:
    frame = pd.DataFrame({"few": ["b", None, "a"], "flag": [True, False, True], "x": [1, 2, 3]})
    table = QuantilePreprocessor(frame, np.arange(3))
    assert table.columns == Columns(1, 0, (3, 3))
    np.testing.assert_array_equal(table.transform(frame)[:, 1:], [[2, 2], [0, 1], [1, 2]])
    other = table.transform(pd.DataFrame({"few": ["c"], "flag": [None], "x": [2]}))
    np.testing.assert_array_equal(other[:, 1:], [[0, 0]])


def test_scales_of_other_rows_leave_out_other_columns() -> None:
    frame = pd.DataFrame({"x": [1.0, 1, 1, 2, 3, 4], "y": [1.0, 2, 3, 4, 5, 6]})
    first = QuantilePreprocessor(frame, np.arange(3))
    second = first.with_scales_of(first.cells(frame)[3:])
    assert (first.columns, second.columns) == (Columns(1), Columns(2))
    assert first.scaled(first.cells(frame)).shape == (6, 1)


def test_numbers_are_transformed_as_scikit_learn_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpfit.tabular.quantiles.NOISE", 0.0)
    x = np.random.default_rng(0).normal(size=(400, 2))
    x[:, 1] = np.round(x[:, 1])
    x[::9, 0] = np.nan
    theirs = QuantileTransformer(n_quantiles=10, output_distribution="normal").fit(x[:300])
    frame = pd.DataFrame(x)
    found = QuantilePreprocessor(frame, np.arange(300)).transform(frame)
    np.testing.assert_allclose(found, np.nan_to_num(theirs.transform(x)), rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_numbers_are_pytabkits() -> None:
    pytest.importorskip("torch")
    utils = pytest.importorskip("pytabkit.models.utils", reason="pytabkit is not installed")
    random = np.random.default_rng(0)
    x = random.normal(size=(700, 3)) * [1, 10, 0.1]
    x[:, 2] = random.random(700) < 0.1
    theirs = utils.TabrQuantileTransformer(random_state=0).fit(x[:600])
    frame = pd.DataFrame(x)
    found = QuantilePreprocessor(frame, np.arange(600)).transform(frame)
    np.testing.assert_allclose(found, theirs.transform(x), rtol=1e-12)
