"""Predictions and scores of few rows take a short way: to the same bits, with the same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.metrics import accuracy_score, r2_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils._param_validation import InvalidParameterError

from warpfit import MLPClassifier, MLPRegressor
from warpfit.estimators import predictions, rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
SETTINGS: dict[str, Any] = {"max_iter": 3, "random_state": 0, "device": "cpu"}


@pytest.fixture
def the_long_way(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a test send all rows through scikit-learn's checks and a model, by its `undo`."""
    monkeypatch.setattr(predictions, "FEW_PRODUCTS", 0)
    monkeypatch.setattr(rows, "FEW_NUMBERS", 0)
    return monkeypatch


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "identity"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_have_the_bits_of_the_network(
    activation: str, dtype: str, num_classes: int, the_long_way: pytest.MonkeyPatch
) -> None:
    y = np.arange(60) % num_classes
    sizes = (7, 6)
    fitted = MLPClassifier(sizes, activation, **SETTINGS).fit(X.astype(dtype), y)
    some = X[:10].astype(dtype)
    expected, labels = fitted.predict_proba(some), fitted.predict(some)
    the_long_way.undo()
    found = fitted.predict_proba(some)
    np.testing.assert_array_equal(found, expected, strict=True)
    np.testing.assert_array_equal(fitted.predict(some), labels, strict=True)
    np.testing.assert_array_equal(
        labels, LabelBinarizer().fit(y).inverse_transform(found if num_classes > 2 else found[:, 1])
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scores_are_those_of_scikit_learn() -> None:
    y = (X[:, 0] > 0).astype(int)
    classifier = MLPClassifier((7,), **SETTINGS).fit(X, y)
    assert classifier.score(X, y) == accuracy_score(y, classifier.predict(X))
    assert classifier.score(X, y.tolist()) == classifier.score(X, y)
    weight = np.arange(60.0)
    expected = accuracy_score(y, classifier.predict(X), sample_weight=weight)
    assert classifier.score(X, y, weight) == expected
    regressor = MLPRegressor(hidden_layer_sizes=(7,), **SETTINGS).fit(X, X[:, 0])
    assert regressor.score(X, X[:, 0]) == r2_score(X[:, 0], regressor.predict(X))
    narrow, few = MLPRegressor(hidden_layer_sizes=(7,), **SETTINGS), X.astype(np.float32)
    narrow.fit(few, X[:, 0])
    assert narrow.predict(few).dtype == np.float32
    assert narrow.score(few, X[:, 0]) == r2_score(X[:, 0], narrow.predict(few))
    equal = np.ones(60)
    assert regressor.score(X, equal) == r2_score(equal, regressor.predict(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X[:, :4], "X has 4 features, but MLPClassifier is expecting 5 features"),
        (X[0], "Expected 2D array, got 1D array"),
        (X[:0], r"Found array with 0 sample\(s\)"),
        (np.where(X > 1, np.nan, X), "Input X contains NaN"),
        (np.where(X > 1, np.inf, X), "Input X contains infinity"),
    ],
)
def test_errors_are_those_of_scikit_learn(given: Any, message: str) -> None:
    fitted = MLPClassifier((7,), **SETTINGS).fit(X, np.arange(60) % 2)
    with pytest.raises(ValueError, match=message):
        fitted.predict(given)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scores_of_other_lengths_or_targets_are_errors() -> None:
    fitted = MLPClassifier((7,), **SETTINGS).fit(X, np.arange(60) % 2)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.score(X, np.zeros(59, int))
    regressor = MLPRegressor(hidden_layer_sizes=(7,), **SETTINGS).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="contains NaN"):
        regressor.score(X, np.full(60, np.nan))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("kind", "y"),
    [
        (MLPClassifier, np.arange(60) % 3),
        (MLPClassifier, np.arange(60) % 2 == 0),
        (MLPRegressor, np.linspace(-1, 1, 60)),
        (MLPRegressor, np.linspace(-1, 1, 60, dtype=np.float32)),
    ],
)
def test_few_rows_are_fitted_as_scikit_learns_checks_leave_them(
    kind: Any, y: Any, the_long_way: pytest.MonkeyPatch
) -> None:
    expected = kind(hidden_layer_sizes=(5,), **SETTINGS).fit(X, y)
    the_long_way.undo()
    found = kind(hidden_layer_sizes=(5,), **SETTINGS).fit(X, y)
    assert vars(found).keys() == vars(expected).keys()
    assert found.n_features_in_ == X.shape[1]
    for ours, theirs in zip(found.coefs_, expected.coefs_, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_array_makes_a_fit_forget_the_names_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    regressor = MLPRegressor(hidden_layer_sizes=(5,), **SETTINGS)
    regressor.fit(pandas.DataFrame(X).rename(columns=str), X[:, 0])
    assert list(regressor.feature_names_in_) == [str(idx) for idx in range(X.shape[1])]
    assert not hasattr(regressor.fit(X, X[:, 0]), "feature_names_in_")


@pytest.mark.parametrize(
    ("rows", "y", "message"),
    [
        (np.full_like(X, np.nan), np.arange(60) % 2, "contains NaN"),
        (X, np.arange(59) % 2, "inconsistent numbers of samples"),
        (X[:0], np.arange(0), "0 sample"),
        (X[:, :0], np.arange(60) % 2, "0 feature"),
    ],
)
def test_few_rows_that_do_not_go_together_are_refused_as_there(
    rows: Any, y: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MLPClassifier(**SETTINGS).fit(rows, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parameters_are_validated_where_scikit_learn_does() -> None:
    y = np.arange(60) % 2
    classifier = MLPClassifier((5,), **SETTINGS).partial_fit(X, y, classes=[0, 1])
    classifier.set_params(tol=-1.0).partial_fit(X, y)
    with pytest.raises(InvalidParameterError, match="'tol'"):
        classifier.fit(X, y)
    with config_context(skip_parameter_validation=True):
        classifier.fit(X, y)
