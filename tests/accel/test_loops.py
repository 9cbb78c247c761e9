"""Searches, cross-validation, learning curves and ensembles over scikit-learn's own classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler, TargetEncoder
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from warpfit import accel

pytestmark = [
    pytest.mark.usefixtures("installed"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

X, Y = (part[:160] for part in load_digits(n_class=3, return_X_y=True))
X = X / 16
FEW = {"hidden_layer_sizes": (8,), "max_iter": 3, "random_state": 0, "batch_size": 32}
CLASSIFIER = MLPClassifier(**FEW)
GRID = {"alpha": [1e-3, 1.0], "learning_rate_init": [0.01]}


@pytest.fixture
def gpu(cuda: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let 'auto' be a GPU."""
    monkeypatch.setenv("WARPFIT_DEVICE", cuda)
    return "cuda:0"


def told() -> list[tuple[str, str, str]]:
    return [(call.name, call.where, call.why) for call in accel.report().calls]


def by_sklearn(function: Callable[[], Any]) -> Any:
    """Return what a function returns while scikit-learn's classes train as they were made."""
    accel.uninstall()
    found = function()
    accel.install()
    return found


def assert_near(found: Any, expected: Any) -> None:
    """Scores of few epochs with another order of rows: both have learned about as much."""
    np.testing.assert_allclose(found, expected, atol=0.25)
    assert np.shape(found) == np.shape(expected)


def test_a_search_trains_all_its_fits_together(gpu: str) -> None:
    def search() -> Any:
        return GridSearchCV(CLASSIFIER, GRID, cv=2, return_train_score=True).fit(X, Y)

    expected = by_sklearn(search)
    found = search()
    assert told()[0] == ("GridSearchCV", gpu, "4 fits")
    assert [name for name, *_ in told()] == ["GridSearchCV", "MLPClassifier.fit"]
    assert found.cv_results_.keys() == expected.cv_results_.keys()
    assert found.cv_results_["params"] == expected.cv_results_["params"]
    assert_near(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert type(found.best_estimator_) is MLPClassifier
    assert repr(found) == repr(expected)


def test_candidates_are_drawn_as_before(gpu: str) -> None:
    def search() -> Any:
        drawn = {"alpha": [1e-4, 1e-3, 1e-2, 1.0]}
        settings: dict[str, Any] = {"n_iter": 2, "random_state": 5, "cv": 2, "refit": False}
        return RandomizedSearchCV(CLASSIFIER, drawn, **settings).fit(X, Y)

    assert search().cv_results_["params"] == by_sklearn(search).cv_results_["params"]
    assert told() == [("RandomizedSearchCV", gpu, "4 fits")]


def test_cross_validation_returns_scikit_learns_estimators(gpu: str) -> None:
    settings: dict[str, Any] = {"cv": 2, "return_estimator": True, "return_train_score": True}
    found = cross_validate(CLASSIFIER, X, Y, scoring=["accuracy", "neg_log_loss"], **settings)
    assert told() == [("cross_validate", gpu, "2 fits")]
    assert {type(each) for each in found["estimator"]} == {MLPClassifier}
    first = found["estimator"][0]
    half = cross_validate(CLASSIFIER, X, Y, cv=2, return_indices=True)["indices"]["test"][0]
    assert first.score(X[half], Y[half]) == pytest.approx(found["test_accuracy"][0], abs=0.02)
    assert clone(first).get_params() == CLASSIFIER.get_params()
    assert found["train_neg_log_loss"].shape == (2,)


@pytest.mark.slow
def test_scores_and_curves(gpu: str) -> None:
    def scores() -> Any:
        return cross_val_score(CLASSIFIER, X, Y, cv=2, params={"sample_weight": np.ones(len(Y))})

    def curve() -> Any:
        return learning_curve(CLASSIFIER, X, Y, cv=2, train_sizes=[0.5, 1.0])[2]

    assert_near(scores(), by_sklearn(scores))
    assert_near(curve(), by_sklearn(curve))
    assert told() == [("cross_val_score", gpu, "2 fits"), ("learning_curve", gpu, "4 fits")]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    "ensemble",
    [BaggingClassifier(CLASSIFIER, 3, max_features=0.5, random_state=0), OneVsRestClassifier],
)
def test_the_members_of_an_ensemble_train_together(gpu: str, ensemble: Any) -> None:
    def fitted() -> Any:
        unfitted = ensemble(CLASSIFIER) if isinstance(ensemble, type) else clone(ensemble)
        return unfitted.fit(X, Y)

    expected = by_sklearn(fitted)
    found = fitted()
    assert told() == [(type(found).__name__, gpu, "3 fits")]
    for ours, theirs in zip(found.estimators_, expected.estimators_, strict=True):
        assert type(ours) is MLPClassifier
        assert (ours.n_iter_, ours.t_, ours.random_state) == (
            theirs.n_iter_,
            theirs.t_,
            theirs.random_state,
        )
        np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=0.1)
    assert_near(found.score(X, Y), expected.score(X, Y))


def test_candidates_that_scikit_learn_refuses_fail_there(gpu: str) -> None:
    grid = {"solver": ["adam", "adamw"]}  # the second is ours alone
    with (
        pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"),
        pytest.warns(UserWarning, match="One or more of the test scores are non-finite"),
    ):
        search = GridSearchCV(CLASSIFIER, grid, cv=2, refit=False).fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    names = {name: (where, why) for name, where, why in told()}
    assert names["GridSearchCV"][0] == "one by one"
    assert names["GridSearchCV"][1].startswith("InvalidParameterError: The 'solver' parameter")


def score_of_class(estimator: Any, X: Any, y: Any) -> float:
    assert type(estimator) is MLPClassifier
    return float(estimator.score(X, y))


@pytest.mark.parametrize(
    ("estimator", "settings", "why"),
    [
        (
            make_pipeline(StandardScaler(), CLASSIFIER),
            {"params": {"mlpclassifier__sample_weight": np.ones(len(Y))}},
            "a Pipeline whose fit or score is given more than rows",
        ),
        (make_pipeline(CLASSIFIER), {}, "a Pipeline of one step is fitted as a whole"),
        (
            make_pipeline(StandardScaler().set_output(transform="pandas"), CLASSIFIER),
            {},
            "TypeError: transformers return a DataFrame, no array of rows",
        ),
        (
            type("Pipeline", (Pipeline,), {})([("scale", StandardScaler()), ("mlp", CLASSIFIER)]),
            {},
            "a Pipeline is fitted as a whole",  # imbalanced-learn's trains on other rows
        ),
        (CLASSIFIER, {"scoring": score_of_class}, "scoring is a function of the estimator"),
    ],
    ids=["weights", "one-step", "table", "derived", "scoring"],
)
def test_what_is_fitted_one_by_one(gpu: str, estimator: Any, settings: Any, why: str) -> None:
    scores = cross_val_score(estimator, X, Y, cv=2, **settings)
    assert scores.shape == (2,)
    (fits, loop) = told()
    assert fits[0] == "MLPClassifier.fit"
    assert fits[1].startswith(gpu)
    assert loop[:2] == ("cross_val_score", "one by one")
    assert loop[2].startswith(why)


class Counting(StandardScaler):
    """Counts its fits."""

    count = 0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        Counting.count += 1
        return super().fit(X, y, sample_weight)


PIPELINE = Pipeline([("scale", Counting()), ("reduce", PCA(8)), ("mlp", CLASSIFIER)])


def test_the_perceptrons_of_pipelines_train_together(gpu: str) -> None:
    grid = {"reduce__n_components": [8, 12], "scale": [Counting(), None], "mlp__alpha": [0.1, 1.0]}

    def search() -> Any:
        search = GridSearchCV(PIPELINE, grid, cv=2, return_train_score=True, refit=False)
        return search.fit(X, Y)

    expected, Counting.count = by_sklearn(search), 0
    found = search()
    assert told()[0] == ("GridSearchCV", gpu, "16 fits; transformers fitted 8 times")
    assert Counting.count == 4  # for two folds with two reductions
    assert found.cv_results_.keys() == expected.cv_results_.keys()
    assert found.cv_results_["params"] == expected.cv_results_["params"]
    for key in ("mean_test_score", "mean_train_score"):
        assert_near(found.cv_results_[key], expected.cv_results_[key])
    assert len(set(found.cv_results_["mean_test_score"])) > 1


def test_the_pipelines_that_come_back_are_fitted(gpu: str) -> None:
    found = cross_validate(PIPELINE, X, Y, cv=2, return_estimator=True, return_indices=True)
    assert told() == [("cross_validate", gpu, "2 fits; transformers fitted 2 times")]
    for fold, fitted in enumerate(found["estimator"]):
        half = found["indices"]["test"][fold]
        assert fitted.score(X[half], Y[half]) == pytest.approx(found["test_score"][fold], abs=0.02)
        assert type(fitted[-1]) is MLPClassifier
    means = [fitted["scale"].mean_ for fitted in found["estimator"]]
    assert not np.array_equal(*means)


@pytest.mark.slow
def test_pipelines_by_processes_have_the_scores_of_one_by_one() -> None:
    def scores(**jobs: Any) -> Any:
        grid = {"scale__with_std": [True, False], "mlp__alpha": [0.1, 1.0]}
        settings: dict[str, Any] = {"cv": 2, "refit": False, **jobs}
        found = GridSearchCV(PIPELINE, grid, **settings).fit(X, Y)
        return found.cv_results_["mean_test_score"]

    with threadpool_limits(1):
        one_by_one = scores()
    np.testing.assert_array_equal(scores(n_jobs=2), one_by_one)
    assert told()[-1] == (
        "GridSearchCV",
        "cpu, 2 processes",
        "8 fits; transformers fitted 4 times",
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("grid", "why"),
    [
        ({"mlp": [CLASSIFIER, LinearSVC(random_state=0)]}, "a candidate has another perceptron"),
        ({"reduce": [TargetEncoder()]}, "transformers make other rows of those"),
    ],
    ids=["other", "encoder"],
)
def test_pipelines_that_train_one_by_one(gpu: str, grid: Any, why: str) -> None:
    search = GridSearchCV(PIPELINE, grid, cv=2, refit=False, return_train_score=True).fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    where, words = {name: told for name, *told in told()}["GridSearchCV"]
    assert (where, words.partition(": ")[2][: len(why)]) == ("one by one", why)


def test_transformers_that_drop_rows_are_scikit_learns_error(gpu: str) -> None:
    drop = FunctionTransformer(lambda rows: rows[::2])
    scores = partial(cross_val_score, make_pipeline(drop, CLASSIFIER), X, Y, cv=2)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        scores(error_score="raise")
    assert told()[-1][1:] == ("one by one", "ValueError: transformers return 40 rows of 80")


@pytest.mark.slow
def test_processes_on_the_cpu() -> None:
    def scores() -> Any:
        return cross_val_score(CLASSIFIER, X, Y, cv=2, n_jobs=2)

    assert_near(scores(), by_sklearn(scores))
    BaggingClassifier(CLASSIFIER, 2, n_jobs=2).fit(X, Y)
    assert told() == [
        ("cross_val_score", "cpu, 2 processes", "2 fits"),
        ("BaggingClassifier", "scikit-learn", "its processes have scikit-learn's own classes"),
    ]


def test_other_estimators_are_left_alone() -> None:
    def scores() -> Any:
        return cross_val_score(LinearSVC(random_state=0), X, Y, cv=3)

    np.testing.assert_array_equal(scores(), by_sklearn(scores))
    assert told() == []


def test_outputs_are_within_the_noise_of_scikit_learns_own_seeds() -> None:
    def scores() -> Any:
        return [
            clone(CLASSIFIER).set_params(max_iter=15, random_state=seed).fit(X, Y).loss_
            for seed in range(6)
        ]

    found, expected = scores(), by_sklearn(scores)
    noise = np.std(expected, ddof=1)
    assert abs(np.mean(found) - np.mean(expected)) < 3 * noise / np.sqrt(3)
