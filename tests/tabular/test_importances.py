"""Which columns matter: by permutation, and by scikit-learn's inspection."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.inspection import PartialDependenceDisplay, partial_dependence, permutation_importance

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import ConfigError
from warpfit.tabular.preprocessing import Preprocessor

FEW: dict[str, Any] = {
    "n_epochs": 12,
    "batch_size": 16,
    "hidden_layer_sizes": (16,),
    "random_state": 0,
    "device": "cpu",
}
ROWS = 120


def table() -> tuple[pd.DataFrame, np.ndarray]:
    """Return columns of which `x` and `plan` matter, and what they make."""
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "noise": draws.normal(size=ROWS),
            "plan": draws.choice(["a", "b", "c"], ROWS),
            "town": [f"town {idx}" for idx in draws.integers(0, 12, ROWS)],
            "x": draws.normal(size=ROWS),
        }
    )
    return frame, 2 * frame["x"].to_numpy() + 3 * (frame["plan"] == "b").to_numpy()


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("n_folds", [None, 3])
def test_columns_that_matter_have_the_largest_importances(n_folds: int | None) -> None:
    frame, y = table()
    model = TabularRegressor(n_folds=n_folds, **FEW).fit(frame, y)
    found = model.feature_importances_
    assert found.shape == (4,)
    assert min(found[1], found[3]) > 0.2 > 5 * abs(found[0])
    assert model.feature_importances_ is found


def test_importances_are_those_of_permuted_rows() -> None:
    """By scikit-learn's own function, on the validation rows, up to which permutations."""
    frame, y = table()
    val = slice(80, None)
    model = TabularClassifier(**FEW).fit(frame[:80], y[:80] > 1, X_val=frame[val], y_val=y[val] > 1)
    theirs = permutation_importance(model, frame[val], y[val] > 1, n_repeats=40, random_state=0)
    np.testing.assert_allclose(model.feature_importances_, theirs.importances_mean, atol=0.06)


def test_new_fits_have_new_importances() -> None:
    frame, y = table()
    model = TabularRegressor(**FEW).fit(frame, y)
    first = model.feature_importances_
    again = model.fit(frame, -frame["noise"]).feature_importances_
    assert first.argmax() == 3
    assert again.argmax() == 0


def test_rows_are_not_pickled() -> None:
    frame, y = table()
    model = TabularRegressor(**{**FEW, "n_epochs": 2})
    with pytest.raises(NotFittedError):
        _ = model.feature_importances_
    model.fit(frame, y)
    assert not hasattr(pickle.loads(pickle.dumps(model)), "_held_out")
    with pytest.raises(ConfigError, match="before the estimator is copied or stored"):
        _ = pickle.loads(pickle.dumps(model)).feature_importances_
    assert not hasattr(pickle.loads(pickle.dumps(model)), "feature_importances_")
    expected = model.feature_importances_
    found = pickle.loads(pickle.dumps(model)).feature_importances_
    np.testing.assert_array_equal(found, expected)


def test_which_cells_a_column_has_become() -> None:
    frame, _ = table()
    frame.insert(0, "nothing", None)
    preprocessor = Preprocessor(frame, np.arange(ROWS))
    places = preprocessor.places_in_cells()
    assert places == [[], [0], [2, 3, 4], [5], [1]]
    cells = preprocessor.cells(frame)
    np.testing.assert_array_equal(cells[:, places[4][0]], frame["x"])
    np.testing.assert_array_equal(cells[:, places[2]].argmax(axis=1), frame["plan"].map(ord) - 97)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_partial_dependence_of_scikit_learn() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    frame, y = table()
    regressor = TabularRegressor(**FEW).fit(frame, y)
    found = partial_dependence(regressor, frame, ["x"], grid_resolution=5)
    assert (np.diff(found["average"][0]) > 0).all()
    classifier = TabularClassifier(**FEW).fit(frame, y > 1)
    display = PartialDependenceDisplay.from_estimator(
        classifier, frame, ["x", "plan"], categorical_features=["plan"], grid_resolution=5
    )
    assert len(display.pd_results) == 2
