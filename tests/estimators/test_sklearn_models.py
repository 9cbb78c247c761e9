"""Fitted estimators from scikit-learn to us and back: they predict the same, and go on the same."""

from __future__ import annotations

import doctest
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.neural_network as theirs
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import warpfit
from warpfit import estimators as ours
from warpfit import losses, optim
from warpfit.errors import ConfigError
from warpfit.estimators import from_sklearn, sklearn_models

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (12, 6),
    "learning_rate_init": 0.01,
    "max_iter": 4,
    "random_state": 1,
    "shuffle": False,
    "batch_size": 50,
}
X, DIGITS = load_digits(return_X_y=True)
X, DIGITS = X[:200] / 16, DIGITS[:200]
TOPICS = make_multilabel_classification(200, 5, n_classes=4, random_state=0)[1]

TASKS: dict[str, tuple[str, Array]] = {
    "digits": ("MLPClassifier", DIGITS),
    "two names": ("MLPClassifier", np.array(["even", "odd"])[DIGITS % 2]),
    "several labels": ("MLPClassifier", TOPICS),
    "one number": ("MLPRegressor", scale(DIGITS)),
    "numbers": ("MLPRegressor", TOPICS * 1.0),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"solver": "sgd", "learning_rate_init": 0.05},
    "plain sgd": {"solver": "sgd", "momentum": 0, "activation": "tanh"},
    "invscaling": {"solver": "sgd", "learning_rate": "invscaling", "learning_rate_init": 0.5},
    "adaptive": {
        "solver": "sgd",
        "learning_rate": "adaptive",
        "tol": 0.3,
        "n_iter_no_change": 1,
        "max_iter": 9,
    },
}


def predictions(fitted: Any) -> Array:
    return fitted.predict_proba(X) if hasattr(fitted, "predict_proba") else fitted.predict(X)


def assert_same(one: BaseEstimator, other: BaseEstimator) -> None:
    """Assert that two estimators, of either package, have the same attributes and predict the
    same.
    """
    np.testing.assert_allclose(predictions(one), predictions(other), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(one.predict(X).dtype, other.predict(X).dtype)
    y = TOPICS if one.n_outputs_ == 4 else DIGITS
    if one.predict(X).dtype.kind in "if":
        assert one.score(X, y) == pytest.approx(other.score(X, y))
    for name in ("n_iter_", "n_layers_", "n_outputs_", "out_activation_", "t_", "n_features_in_"):
        assert getattr(one, name) == getattr(other, name), name
    names = ["loss_"]
    if one.solver != "lbfgs":
        names += ["loss_curve_", "best_loss_", "best_validation_score_", "validation_scores_"]
        assert one._no_improvement_count == other._no_improvement_count
    for name in names:
        own, expected = getattr(one, name), getattr(other, name)
        assert (own is None) is (expected is None), name
        if own is not None:
            np.testing.assert_allclose(own, expected, rtol=1e-9)


def assert_same_from_here(one: BaseEstimator, other: BaseEstimator, y: Array) -> None:
    """Assert that two estimators go on the same, by partial fits, and then by a warm start."""
    for part in np.array_split(np.arange(len(X)), 3):
        for estimator in (one, other):
            estimator.partial_fit(X[part], y[part])
        assert_same(one, other)
    for estimator in (one, other):
        estimator.set_params(warm_start=True).fit(X, y)
    assert_same(one, other)


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("task", TASKS)
def test_from_scikit_learn(task: str, settings: str) -> None:
    kind, y = TASKS[task]
    fitted = getattr(theirs, kind)(**{**FEW, **SETTINGS[settings]}).fit(X, y)
    taken = from_sklearn(fitted)
    assert type(taken) is getattr(ours, kind)
    assert taken.get_params() | fitted.get_params() == taken.get_params()
    assert_same(taken, fitted)
    assert_same_from_here(taken, fitted, y)


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("task", TASKS)
def test_to_scikit_learn(task: str, settings: str) -> None:
    kind, y = TASKS[task]
    fitted = getattr(ours, kind)(**{**FEW, **SETTINGS[settings]}).fit(X, y)
    given = fitted.to_sklearn()
    assert type(given) is getattr(theirs, kind)
    assert_same(given, fitted)
    assert_same_from_here(given, fitted, y)


def test_adaptive_rates_have_fallen() -> None:
    """Else the tests above would say nothing of them."""
    kind, y = TASKS["digits"]
    fitted = getattr(theirs, kind)(**{**FEW, **SETTINGS["adaptive"]}).fit(X, y)
    assert fitted._optimizer.learning_rate < fitted.learning_rate_init
    assert from_sklearn(fitted)._rate_scale == pytest.approx(fitted._optimizer.learning_rate / 0.01)


@pytest.mark.parametrize("kind", ["MLPClassifier", "MLPRegressor"])
def test_early_stopping_goes_on(kind: str) -> None:
    settings = {**FEW, "early_stopping": True, "warm_start": True, "validation_fraction": 0.2}
    fitted = getattr(theirs, kind)(**settings).fit(X, DIGITS)
    taken = from_sklearn(fitted)
    assert_same(taken, fitted)
    assert len(taken.validation_loss_curve_) == len(taken.validation_scores_)
    assert_same(taken.fit(X, DIGITS), fitted.fit(X, DIGITS))
    given = taken.to_sklearn()
    assert_same(given.fit(X, DIGITS), taken.fit(X, DIGITS))


@pytest.mark.parametrize("task", TASKS)
def test_lbfgs(task: str) -> None:
    kind, y = TASKS[task]
    settings = {**FEW, "solver": "lbfgs", "batch_size": "auto"}
    fitted = getattr(theirs, kind)(**settings).fit(X, y)
    taken = from_sklearn(fitted)
    assert_same(taken, fitted)
    assert_same(taken.to_sklearn(), fitted)


def test_poisson() -> None:
    fitted = theirs.MLPRegressor("poisson", **FEW).fit(X, DIGITS)
    assert_same(from_sklearn(fitted), fitted)
    assert_same(from_sklearn(fitted).to_sklearn(), fitted)


def test_nothing_is_shared() -> None:
    fitted = theirs.MLPClassifier(**FEW).fit(X, DIGITS)
    before = predictions(fitted)
    taken = from_sklearn(fitted)
    given = taken.to_sklearn()
    taken.partial_fit(X, DIGITS)
    given.partial_fit(X[:50], DIGITS[:50])
    np.testing.assert_array_equal(predictions(fitted), before)
    assert not np.array_equal(predictions(taken), predictions(given))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_names_of_features_go_along() -> None:
    fitted = theirs.MLPClassifier(**FEW).fit(X, DIGITS)
    fitted.feature_names_in_ = np.array([f"pixel{idx}" for idx in range(64)], object)
    assert list(from_sklearn(fitted).to_sklearn().feature_names_in_) == list(
        fitted.feature_names_in_
    )


def test_what_scikit_learn_cannot_predict_is_refused() -> None:
    for settings, message in (
        ({"activation": "gelu"}, "an activation that scikit-learn has, .* got 'gelu'"),
        ({"n_ensemble": 2}, "expected n_ensemble=1, .* got 2"),
    ):
        fitted = ours.MLPClassifier(**FEW, **settings).fit(X, DIGITS)
        with pytest.raises(ConfigError, match=f"^to_sklearn: .*{message}"):
            fitted.to_sklearn()
    assert_same(fitted.estimators_[1].to_sklearn(), fitted.estimators_[1])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"dropout": 0.5, "device": "cpu", "callbacks": []}, "dropout=0.5"),
        ({"solver": "adamw", "weight_decay": 0.1}, "solver='adamw', weight_decay=0.1"),
        ({"learning_rate": "cosine", "solver": "sgd"}, "learning_rate='cosine'"),
        ({"learning_rate": optim.Cosine(0.1)}, r"learning_rate=Cosine\(lr=0.1.*"),
        ({"loss": "huber"}, "loss='huber'"),
        ({"loss": losses.Poisson()}, r"loss=Poisson\(\)"),
    ],
)
def test_what_scikit_learn_cannot_train_is_named(settings: dict[str, Any], named: str) -> None:
    fitted = ours.MLPRegressor(**{**FEW, **settings}).fit(X, DIGITS)
    with pytest.warns(
        UserWarning, match=f"^to_sklearn: .* would train differently, as it has no {named}$"
    ) as caught:
        given = fitted.to_sklearn()
    assert caught[0].filename == __file__
    assert_same(given, fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given.partial_fit(X, DIGITS)


def test_what_is_no_perceptron_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="expected scikit-learn's MLPClassifier or MLPRegressor, got Logistic"
    ):
        from_sklearn(LogisticRegression())
    with pytest.raises(NotFittedError):
        from_sklearn(theirs.MLPClassifier())
    with pytest.raises(NotFittedError):
        ours.MLPClassifier().to_sklearn()


def test_it_is_there_under_the_package() -> None:
    assert warpfit.from_sklearn is from_sklearn
    assert doctest.testmod(sklearn_models).failed == 0
