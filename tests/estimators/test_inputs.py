"""What the estimators refuse of rows and weights beyond what scikit-learn's checks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit import MLPClassifier, MLPRegressor, SweepCV
from warpfit.errors import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).uniform(size=(24, 3))
Y = (X[:, 0] > 0.5).astype(int)
MASK = np.arange(24) == 3


def classifier(**settings: Any) -> MLPClassifier:
    return MLPClassifier((3,), max_iter=2, device="cpu", **settings)


def regressor() -> MLPRegressor:
    return MLPRegressor(hidden_layer_sizes=(3,), max_iter=2, device="cpu")


def masked(array: Any) -> Any:
    return np.ma.masked_array(
        array, np.broadcast_to(MASK.reshape(-1, *[1] * (array.ndim - 1)), array.shape)
    )


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("X", lambda estimator: estimator.fit(masked(X), Y)),
        ("y", lambda estimator: estimator.fit(X, masked(Y))),
        ("sample_weight", lambda estimator: estimator.fit(X, Y, masked(np.ones(24)))),
        ("X", lambda estimator: estimator.fit(X, Y, X_val=masked(X), y_val=Y)),
        ("y_val", lambda estimator: estimator.fit(X, Y, X_val=X, y_val=masked(Y))),
        ("X", lambda estimator: estimator.fit(X, Y).predict(masked(X))),
        ("X", lambda estimator: estimator.fit(X, Y).score(masked(X), Y)),
        ("X", lambda estimator: estimator.fit(X, Y).partial_fit(masked(X), Y)),
        ("y", lambda estimator: estimator.fit(X, Y).partial_fit(X, masked(Y))),
    ],
)
def test_masked_values(make: Any, name: str, call: Any) -> None:
    with pytest.raises(
        DataError, match=f"expected {name} without masked values, got (3|24|1) masked"
    ):
        call(make())


@pytest.mark.parametrize("name", ["X", "y"])
def test_masked_values_in_a_search(name: str) -> None:
    rows = {"X": X, "y": Y}
    rows[name] = masked(rows[name])
    with pytest.raises(DataError, match=f"expected {name} without masked values"):
        SweepCV(classifier(), {"alpha": [0.1, 1.0]}, cv=2).fit(**rows)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_weights_that_leave_no_row(solver: str) -> None:
    for call in (
        lambda: classifier(solver=solver).fit(X, Y, np.zeros(24)),
        lambda: classifier(solver=solver, class_weight={0: 0, 1: 0}).fit(X, Y),
        lambda: classifier(solver=solver, class_weight={0: 0}).fit(X, Y, 1.0 - Y),
    ):
        with pytest.raises(ValueError, match=r"got none above 0|at least one non-zero number"):
            call()


@pytest.mark.parametrize("callbacks", [[print], (3,), np.ones(3), [(1, 2)]])
def test_what_is_no_callback_is_refused(callbacks: Any) -> None:
    estimator = MLPClassifier(callbacks=callbacks, device="cpu")
    with pytest.raises(
        ConfigError, match="expected callbacks to be a sequence of Callback objects"
    ):
        estimator.fit([[0.0], [1.0]], [0, 1])
