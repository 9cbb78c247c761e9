"""SweepCV and RandomizedSweepCV beside scikit-learn's searches."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    RandomizedSearchCV,
    ShuffleSplit,
    cross_val_score,
)
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from support.searches import assert_same_search
from support.training import InterruptAt
from warpfit import MLPClassifier, MLPRegressor, RandomizedSweepCV, SweepCV, TabularClassifier
from warpfit.errors import ConfigError, DataError, DeviceError
from warpfit.estimators import predictions
from warpfit.sweep import together

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DIGITS = load_digits(return_X_y=True)
X, Y = DIGITS[0][:150] / 16, DIGITS[1][:150]
FEW: dict[str, Any] = {
    "max_iter": 3,
    "learning_rate_init": 0.02,
    "random_state": 0,
    "device": "cpu",
}
CLASSIFIER = MLPClassifier(8, **FEW)
GRID = {"alpha": [1e-4, 1.0], "solver": ["adam", "sgd", "lbfgs"]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Give scikit-learn's search as many BLAS threads as ours has."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_scores_are_grid_search_cvs(n_jobs: int) -> None:
    theirs = GridSearchCV(CLASSIFIER, GRID, cv=3, return_train_score=True).fit(X, Y)
    ours = SweepCV(CLASSIFIER, GRID, cv=3, return_train_score=True, n_jobs=n_jobs).fit(X, Y)
    assert_same_search(ours, theirs)
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert ours.score(X, Y) == theirs.score(X, Y)
    assert (ours.cv_results_["mean_fit_time"] > 0).all()
    assert ours.refit_time_ > 0


def test_ensembles_and_early_stopping_are_searched_too() -> None:
    grid = {"n_ensemble": [1, 2], "early_stopping": [False, True]}
    theirs = GridSearchCV(CLASSIFIER, grid, cv=2).fit(X, Y)
    assert_same_search(SweepCV(CLASSIFIER, grid, cv=2, n_jobs=1).fit(X, Y), theirs)


def test_regressors_metrics_and_splitters() -> None:
    rows, targets = load_diabetes(return_X_y=True)
    rows, targets = rows[:100], targets[:100] / 100
    settings: dict[str, Any] = {
        "cv": ShuffleSplit(2, random_state=0),
        "scoring": ["r2", "neg_mean_squared_error"],
        "refit": "r2",
    }
    regressor = MLPRegressor(hidden_layer_sizes=8, **FEW)
    grid = [{"alpha": [0.1]}, {"activation": ["tanh", "relu"]}]
    theirs = GridSearchCV(regressor, grid, **settings).fit(rows, targets)
    assert_same_search(SweepCV(regressor, grid, n_jobs=1, **settings).fit(rows, targets), theirs)


def test_candidates_are_drawn_as_randomized_search_cv_does() -> None:
    distributions = {"alpha": loguniform(1e-4, 1), "hidden_layer_sizes": [(4,), (8, 4)]}
    settings: dict[str, Any] = {"n_iter": 3, "random_state": 5, "cv": 2}
    theirs = RandomizedSearchCV(CLASSIFIER, distributions, **settings).fit(X, Y)
    assert_same_search(
        RandomizedSweepCV(CLASSIFIER, distributions, n_jobs=1, **settings).fit(X, Y), theirs
    )


def test_weights_and_groups_are_taken_apart_with_the_rows() -> None:
    grid, groups = {"alpha": [1e-3, 1.0]}, np.arange(len(X)) % 5
    given = {"sample_weight": np.linspace(0.1, 2, len(X)), "groups": groups}
    theirs = GridSearchCV(CLASSIFIER, grid, cv=GroupKFold(2)).fit(X, Y, **given)
    assert_same_search(
        SweepCV(CLASSIFIER, grid, cv=GroupKFold(2), n_jobs=1).fit(X, Y, **given), theirs
    )


def pick_first(results: Any) -> int:
    return 0


def both(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    return {"right": estimator.score(X, y), "rows": float(len(y))}


@pytest.mark.parametrize(
    "settings",
    [
        {"refit": False},
        {"refit": pick_first},
        {"scoring": make_scorer(accuracy_score)},
        {"scoring": both, "refit": "right"},
        {"scoring": ["accuracy", "f1_macro"], "refit": False},
    ],
)
def test_every_kind_of_scoring_and_refitting(settings: dict[str, Any]) -> None:
    grid = {"alpha": [1e-3, 1.0]}
    theirs = GridSearchCV(CLASSIFIER, grid, cv=2, **settings).fit(X, Y)
    assert_same_search(SweepCV(CLASSIFIER, grid, cv=2, n_jobs=1, **settings).fit(X, Y), theirs)


NOT_FINITE = "ignore:One or more of the test scores are non-finite"


@pytest.mark.filterwarnings(NOT_FINITE, NOT_FINITE.replace("test", "train"))
@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fits_that_fail_have_the_error_score_and_a_warning(n_jobs: int) -> None:
    grid = {"learning_rate_init": [0.01, -1.0], "solver": ["adam"]}
    search = SweepCV(CLASSIFIER, grid, cv=2, n_jobs=n_jobs, return_train_score=True)
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search.fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    assert search.best_params_["learning_rate_init"] == 0.01
    with pytest.raises(ValueError, match="learning_rate_init"):
        clone(search).set_params(error_score="raise").fit(X, Y)
    with pytest.raises(ValueError, match="All the 2 fits failed"):
        SweepCV(CLASSIFIER, {"alpha": [-1]}, cv=2, n_jobs=n_jobs).fit(X, Y)


@pytest.mark.parametrize("rows", [[0, 1, 100_000], [0.5, 1.0]])
def test_splits_that_index_no_rows_are_refused(rows: list[Any]) -> None:
    search = SweepCV(CLASSIFIER, {"alpha": [1e-4]}, cv=[(np.arange(20), np.array(rows))], n_jobs=1)
    with pytest.raises(DataError, match=f"expected splits of cv to index {len(X)} rows: "):
        search.fit(X, Y)


def test_splits_may_be_any_sequences() -> None:
    even, odd = range(0, len(X), 2), tuple(range(1, len(X), 2))
    grid = {"alpha": [1e-4, 1e-2]}
    theirs = GridSearchCV(CLASSIFIER, grid, cv=[(even, odd), (odd, even)]).fit(X, Y)
    ours = SweepCV(CLASSIFIER, grid, cv=[(even, odd), (odd, even)], n_jobs=1).fit(X, Y)
    assert_same_search(ours, theirs)


@pytest.mark.filterwarnings(NOT_FINITE)
def test_a_network_that_diverges_fails_alone() -> None:
    grid = {"learning_rate_init": [0.01, 1e30], "solver": ["sgd"]}
    search = SweepCV(MLPRegressor(hidden_layer_sizes=8, **FEW), grid, cv=2, n_jobs=1)
    with pytest.warns(FitFailedWarning, match="non-finite parameter weights"):
        search.fit(X, Y.astype(float))
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]


def test_an_executors_workers_give_the_same() -> None:
    one = SweepCV(CLASSIFIER, GRID, cv=2, n_jobs=1).fit(X, Y)
    with ThreadPoolExecutor(1) as executor:
        for num_shards in (-1, 3):
            search = SweepCV(CLASSIFIER, GRID, cv=2, executor=executor, n_jobs=num_shards)
            assert_same_search(search.fit(X, Y), one)


def test_rows_that_are_scored_on_are_checked_once_for_all_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[int] = []
    check = predictions.check_features
    monkeypatch.setattr(
        predictions, "check_features", lambda own, X: checked.append(len(X)) or check(own, X)
    )
    SweepCV(CLASSIFIER, GRID, cv=3, return_train_score=True, refit=False, n_jobs=1).fit(X, Y)
    assert checked == [50, 100] * 3


def spoiling(estimator: Any, X: Any, y: Any) -> float:
    """Return what a column matters, as a scorer that changes its rows does."""
    before = estimator.score(X, y)
    X[:, 20] += 5.0
    return float(before - estimator.score(X, y))


def test_scorers_may_change_their_rows() -> None:
    rows, grid = X.copy(), {"alpha": [1e-4, 1e-3, 1.0]}
    theirs = GridSearchCV(CLASSIFIER, grid, cv=2, scoring=spoiling, return_train_score=True).fit(
        rows, Y
    )
    ours = SweepCV(CLASSIFIER, grid, cv=2, scoring=spoiling, return_train_score=True, n_jobs=1).fit(
        rows, Y
    )
    assert_same_search(ours, theirs)
    assert ours.cv_results_["mean_test_score"].any()
    np.testing.assert_array_equal(rows, X)


def test_parameters_that_are_none_are_said_at_once() -> None:
    with pytest.raises(ValueError, match="Invalid parameter 'alpah'"):
        SweepCV(CLASSIFIER, [{"alpha": [0.1]}, {"alpah": [0.1]}], cv=2, n_jobs=1).fit(X, Y)


def test_splits_that_are_used_up() -> None:
    with pytest.raises(ConfigError, match="at least one split and one candidate, got 0 and 6"):
        SweepCV(CLASSIFIER, GRID, cv=[]).fit(X, Y)


def test_workers_that_are_gone_are_an_error_of_ours() -> None:
    with ThreadPoolExecutor(1) as executor:
        search = SweepCV(CLASSIFIER, GRID, cv=2, executor=executor)
    with pytest.raises(DeviceError, match="a worker of ThreadPoolExecutor ended with RuntimeError"):
        search.fit(X, Y)


def test_clones_have_the_executor_and_pickles_have_not() -> None:
    with ThreadPoolExecutor(2) as executor:
        search = SweepCV(CLASSIFIER, {"alpha": [0.1, 1.0]}, cv=2, executor=executor)
        assert clone(search).executor is executor
        scores = cross_val_score(search, X, Y, cv=2)
        search.fit(X, Y)
    restored = pickle.loads(pickle.dumps(search))
    assert search.executor is executor
    assert restored.executor is None
    np.testing.assert_array_equal(restored.predict(X), search.predict(X))
    np.testing.assert_array_equal(
        scores, cross_val_score(restored.set_params(n_jobs=1), X, Y, cv=2)
    )


def test_scorings_that_cannot_be_sent_are_said() -> None:
    def local(estimator: Any, X: Any, y: Any) -> float:
        return 1.0

    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor,
        pytest.raises(ConfigError, match=r"estimator and scoring that can be pickled, .*local"),
    ):
        SweepCV(CLASSIFIER, {"alpha": [0.1]}, cv=2, scoring=local, executor=executor).fit(X, Y)


@pytest.mark.filterwarnings(NOT_FINITE)
def test_a_plan_that_fails_is_the_fits_own(cuda: str) -> None:
    grid = {"precision": ["auto", "float64"], "engine": ["one_launch"]}
    classifier = MLPClassifier(8, solver="sgd", **{**FEW, "device": cuda})
    search = SweepCV(classifier, grid, cv=2, refit=False)
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search.fit(X[:60], Y[:60])
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]


def test_ctrl_c_before_any_trains_ends_the_search(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(together.GroupRows, "of", interrupted)
    classifier = MLPClassifier(8, solver="sgd", **{**FEW, "device": cuda})
    with pytest.raises(KeyboardInterrupt):
        SweepCV(classifier, {"alpha": [0.1, 1.0]}, cv=2).fit(X[:60], Y[:60])
    with pytest.raises(KeyboardInterrupt):
        clone(classifier).set_params(n_ensemble=2).fit(X[:60], Y[:60])


def test_ctrl_c_ends_the_search() -> None:
    class Interrupting(InterruptAt):
        def __deepcopy__(self, memo: Any) -> Any:  # clones share it
            return self

    classifier = clone(CLASSIFIER).set_params(callbacks=[Interrupting(5)])
    with pytest.raises(KeyboardInterrupt):
        SweepCV(classifier, GRID, cv=2, n_jobs=1).fit(X, Y)


def test_other_estimators_are_scikit_learns_business() -> None:
    with pytest.raises(
        ConfigError, match="expected one of warpfit's classifiers or regressors, got Ridge"
    ):
        SweepCV(Ridge(), {"alpha": [1]}).fit(X, Y)


@pytest.mark.parametrize("kind", [MLPClassifier, TabularClassifier])
def test_a_subclass_with_a_fit_of_its_own_is_not_passed_over(kind: Any) -> None:
    own = type("Own", (kind,), {"fit": lambda self, X, y: super(own, self).fit(X, y)})
    with pytest.raises(ConfigError, match="got Own, which overrides fit; scikit-learn's GridS"):
        SweepCV(own(), {"random_state": [1]}).fit(X, Y)


def test_parameters_are_checked_and_cloned() -> None:
    search = SweepCV(CLASSIFIER, GRID, cv=2, n_jobs=1)
    assert clone(search).get_params()["estimator__max_iter"] == 3
    with pytest.raises(ValueError, match="The 'executor' parameter of SweepCV"):
        SweepCV(CLASSIFIER, GRID, executor=3).fit(X, Y)
    assert "SweepCV" in repr(search)


def test_how_many_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    SweepCV(CLASSIFIER, GRID, cv=2, n_jobs=1, verbose=1).fit(X, Y)
    assert capsys.readouterr().out.startswith(
        "Fitting 2 folds for each of 6 candidates, totalling 12 fits"
    )


def test_networks_that_are_not_done_are_still_warned_of() -> None:
    with pytest.warns(ConvergenceWarning, match="Maximum iterations"):
        SweepCV(CLASSIFIER, {"alpha": [0.1]}, cv=2, n_jobs=1, refit=False).fit(X, Y)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_each_fit_warns_once_at_the_line_that_searches(n_jobs: int) -> None:
    search = SweepCV(CLASSIFIER, {"alpha": [0.1, 0.2]}, cv=2, n_jobs=n_jobs, refit=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        search.fit(X, Y)
    assert [each.category for each in caught] == [ConvergenceWarning] * 4
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_filters_of_warnings_hold_in_processes(
    action: str, capfd: pytest.CaptureFixture[str]
) -> None:
    search = SweepCV(CLASSIFIER, {"alpha": [0.1]}, cv=2, n_jobs=2, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter(action, ConvergenceWarning)
        with (
            pytest.raises(ValueError, match="All the 2 fits failed")
            if action == "error"
            else (nullcontext())
        ):
            search.fit(X, Y)
    assert "ConvergenceWarning: " not in capfd.readouterr().err


# With a state, because the checks set that of the search only.
SMALL: dict[str, Any] = {
    "hidden_layer_sizes": 8,
    "learning_rate_init": 0.03,
    "max_iter": 60,
    "random_state": 0,
    "device": "cpu",
}


@pytest.mark.filterwarnings(
    "ignore:invalid value encountered in cast"
)  # by the splitter, of y with inf
@pytest.mark.in_turns(48)
@parametrize_with_checks(
    [
        SweepCV(
            MLPClassifier(**SMALL), {"alpha": [1e-4, 1e-3]}, cv=2, error_score="raise", n_jobs=1
        ),
        RandomizedSweepCV(
            MLPRegressor(**SMALL),
            {"alpha": [1e-4, 1e-3]},
            n_iter=2,
            cv=2,
            error_score="raise",
            n_jobs=1,
        ),
    ]
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)
