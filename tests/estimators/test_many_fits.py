"""Fits of a search, or networks of an ensemble, that a GPU trains in one launch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from warpfit import backends
from warpfit.backends import is_device_array
from warpfit.backends.cuda.array import DeviceArray
from warpfit.engines import many_parameters
from warpfit.engines.many_parameters import PackedParameters
from warpfit.errors import DeviceError
from warpfit.estimators import (
    MLPClassifier,
    MLPRegressor,
    SweepCV,
    many_fits,
    predictions,
    splits,
)
from warpfit.estimators.fitted import Drawn
from warpfit.estimators.fitting import prepare
from warpfit.estimators.many_fits import _Started
from warpfit.estimators.predictions import PredictedRows, predicting, share_of_right
from warpfit.sweep import together
from warpfit.training import inputs
from warpfit.training.callbacks import Callback
from warpfit.training.evaluate import rows_at_once

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "learning_rate_init": 0.05,
    "alpha": 0.0,
    "batch_size": 16,
    "max_iter": 3,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    X, y = make_classification(60, 6, n_informative=4, n_classes=3, random_state=0)
    return X.astype(np.float32), y


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many networks were trained in each launch, and among how many rows."""
    found: list[tuple[int, int]] = []
    launch = together.start_many

    def counted(members: Any, rows: Any, *rungs: Any) -> Any:
        found.append((len(members), len(rows.x)))
        return launch(members, rows, *rungs)

    monkeypatch.setattr(together, "start_many", counted)
    return found


def searched(
    kind: Any, grid: dict[str, Any], X: Any, y: Any, estimator: Any, **settings: Any
) -> Any:
    return kind(estimator, grid, cv=2, refit=False, n_jobs=1, **settings).fit(X, y)


def assert_same_scores(ours: Any, theirs: Any, limit: float) -> None:
    for split in range(2):
        name = f"split{split}_test_score"
        np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], atol=limit)


CASES: dict[str, dict[str, Any]] = {
    "as it comes": {"alpha": 1e-4, "batch_size": "auto", "learning_rate_init": 0.001},
    "penalty": {"alpha": 1.0, "solver": "sgd"},
    "loss": {"solver": "sgd", "momentum": 0.0},
    "early stopping": {"early_stopping": True, "validation_fraction": 0.3, "batch_size": "auto"},
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", CASES)
def test_all_candidates_and_folds_are_one_launch_over_one_copy_of_the_rows(
    cuda: str, data: tuple[Array, Array], launches: list[tuple[int, int]], name: str
) -> None:
    estimator = MLPClassifier(device=cuda, **(FEW | CASES[name]))
    grid = {"learning_rate_init": [0.02, 0.2, 1e-4]}
    ours = searched(SweepCV, grid, *data, estimator)
    assert launches == [(6, 60)]
    theirs = searched(GridSearchCV, grid, *data, estimator)
    assert len(launches) == 1
    # A row of a fold may come to the other side of a border.
    assert_same_scores(ours, theirs, 1.5 / 30)
    assert ours.best_params_ == theirs.best_params_


def test_rows_are_predicted_where_they_were_copied_to_once(
    cuda: str, data: tuple[Array, Array]
) -> None:
    X, y = data
    first, second = (
        MLPClassifier(device=cuda, **(FEW | {"learning_rate_init": rate})).fit(X, y)
        for rate in (0.02, 0.1)
    )
    expected = [estimator.predict_proba(X) for estimator in (first, second)]
    rows = PredictedRows(X)
    assert rows.of(first) is rows.of(second)
    assert is_device_array(rows.of(first))
    for estimator, probabilities in zip((first, second), expected, strict=True):
        with predicting(estimator, rows):
            np.testing.assert_array_equal(estimator.predict_proba(X), probabilities)
            np.testing.assert_array_equal(estimator.predict_proba(X[:7]), probabilities[:7])
        assert "_predicted_rows" not in vars(estimator)


def test_rows_without_room_on_the_device_are_predicted_from_the_host(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data
    estimator = MLPClassifier(device=cuda, **FEW).fit(X, y)
    expected, rows = estimator.predict(X), PredictedRows(X)

    def no_room(value: Any, dtype: Any = None) -> Any:
        raise DeviceError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(backends.get(cuda), "asarray", no_room)
        assert isinstance(rows.of(estimator), np.ndarray)
    with predicting(estimator, rows):
        np.testing.assert_array_equal(estimator.predict(X), expected)


def test_rows_are_checked_and_converted_once(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data[0].astype(np.float64), data[1]
    estimators = [MLPClassifier(device=cuda, **(FEW | {"max_iter": n})).fit(X, y) for n in (1, 2)]
    expected, rows = [estimator.predict_proba(X) for estimator in estimators], PredictedRows(X)
    assert rows.of(estimators[0]).dtype == np.float32
    monkeypatch.setattr(inputs, "_check_finite_on_host", None)
    for estimator, probabilities in zip(estimators, expected, strict=True):
        with predicting(estimator, rows):
            np.testing.assert_array_equal(estimator.predict_proba(X), probabilities)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("num_rows", [60, 1500])
@pytest.mark.parametrize("names", [np.array([3, 5, 9]), np.array(["a", "bc", "d"])])
def test_rows_that_are_right_are_counted_on_the_device(
    cuda: str, num_rows: int, names: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = sys.modules[rows_at_once.__module__]
    monkeypatch.setattr(home, "NUMBERS_ON_DEVICE", 1)  # two batches of 1500 rows
    X, y = make_classification(num_rows, 6, n_informative=4, n_classes=3, random_state=1)
    targets = names[y]
    rows, found = PredictedRows(X, targets), []
    for rate in (0.01, 0.05, 0.3):
        settings = FEW | {"learning_rate_init": rate}
        estimator = MLPClassifier(device=cuda, **settings).fit(X[:60], targets[:60])
        with predicting(estimator, rows), monkeypatch.context() as patch:
            patch.setattr(predictions, "predict_network", None)  # no outputs are asked for
            found.append(estimator.score(X, targets))
        assert found[-1] == accuracy_score(targets, estimator.predict(X))
    assert len(set(found)) > 1


def test_what_predictions_are_to_tell_is_not_counted(cuda: str, data: tuple[Array, Array]) -> None:
    X, y = data
    one = MLPClassifier(device=cuda, **FEW).fit(X, y)
    two = MLPClassifier(device=cuda, n_ensemble=2, **FEW).fit(X, y)
    here = MLPClassifier(device="cpu", **FEW).fit(X, y)
    binary = MLPClassifier(device=cuda, **FEW).fit(X, y % 2)
    cases = [(one, y + 1), (one, y.tolist()), (one, y + 0.0), (two, y), (here, y), (binary, y % 2)]
    for estimator, targets in cases:
        with predicting(estimator, PredictedRows(X, targets)):
            assert share_of_right(estimator, X, targets) is None
            assert estimator.score(X, targets) == accuracy_score(targets, estimator.predict(X))
    with predicting(one, PredictedRows(X, y)):
        assert share_of_right(one, X, y.copy()) is None
        assert share_of_right(one, X.copy(), y) is None
        assert share_of_right(one, X, y) is not None
    assert share_of_right(one, X, y) is None


def test_a_prediction_of_ones_own_is_scored(cuda: str, data: tuple[Array, Array]) -> None:
    class First(MLPClassifier):
        def predict(self, X: Any) -> Array:
            return np.zeros(len(X), int)

    X, y = data
    search = searched(SweepCV, {"alpha": [0.1]}, X, y, First(device=cuda, **FEW))
    assert search.best_score_ == np.mean(
        [np.mean(y[test] == 0) for _, test in StratifiedKFold(2).split(X, y)]
    )


STAYING: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "counted": (MLPClassifier, {}, {"return_train_score": True}),
    "not aligned": (MLPClassifier, {"hidden_layer_sizes": (7,), "solver": "sgd"}, {}),
    "metrics": (MLPClassifier, {}, {"scoring": ["accuracy", "neg_log_loss"]}),
    "numbers": (MLPRegressor, {}, {"return_train_score": True}),
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", STAYING)
def test_weights_that_only_predict_stay_on_the_device(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, own, settings = STAYING[name]
    settings |= {"error_score": "raise"}
    X, y = data if name == "not aligned" else (data[0].astype(np.float64), data[1])
    estimator, grid = kind(device=cuda, **(FEW | own)), {"learning_rate_init": [0.02, 0.2]}
    downloads: list[Any] = []
    download = DeviceArray.numpy

    def unasked(*_: Any) -> None:
        raise AssertionError

    def counted(self: DeviceArray) -> Any:
        downloads.append(self.dtype)
        return download(self)

    with monkeypatch.context() as patch:
        patch.setattr(PackedParameters, "fetch", unasked)
        patch.setattr(PackedParameters, "_arrays_of", unasked)
        patch.setattr(DeviceArray, "numpy", counted)
        ours = searched(SweepCV, grid, X, y, estimator, **settings).cv_results_
    assert downloads.count(np.int64) == (name in ("counted", "not aligned"))
    monkeypatch.setattr(_Started, "is_only_scored", False)
    theirs = searched(SweepCV, grid, X, y, estimator, **settings).cv_results_
    scores = [name for name in ours if "_test_" in name or "_train_" in name]
    assert len(scores) >= 5
    for name in scores:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_who_asks_for_weights_has_arrays_of_the_host(cuda: str, data: tuple[Array, Array]) -> None:
    class Watch(Callback):
        needs_run = needs_model = needs_step_losses = False

    def first_weight(estimator: Any, X: Array, y: Array) -> float:
        assert type(estimator.coefs_[0]) is np.ndarray
        assert estimator._optimizer_state["step_count"] == 6
        return float(estimator.coefs_[0][0, 0])

    for own in ({}, {"callbacks": [Watch()]}):
        estimator, rates = MLPClassifier(device=cuda, **FEW, **own), [0.02, 0.2]
        ours = searched(
            SweepCV, {"learning_rate_init": rates}, *data, estimator, scoring=first_weight
        )
        assert len({*ours.cv_results_["mean_test_score"]}) == 2


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_weights_that_are_not_finite_at_the_end_fail_alone(
    cuda: str, data: tuple[Array, Array]
) -> None:
    last = {"solver": "sgd", "max_iter": 1, "batch_size": 30}
    estimator = MLPClassifier(device=cuda, **(FEW | last))
    rates = {"learning_rate_init": [0.02, 3e38]}
    with pytest.warns(FitFailedWarning, match="non-finite parameter weights"):
        ours = searched(SweepCV, rates, 100 * data[0], data[1], estimator)
    assert np.isfinite(ours.cv_results_["mean_test_score"]).tolist() == [True, False]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_equal_initial_values_come_to_the_device_once(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    came: list[int] = []
    packed = PackedParameters._packed

    def counted(self: PackedParameters, members: Any) -> Any:
        came.append(len(members))
        return packed(self, members)

    monkeypatch.setattr(PackedParameters, "_packed", counted)
    estimator = MLPClassifier(device=cuda, **(FEW | {"solver": solver}))
    grid = {"learning_rate_init": [0.02, 0.2, 0.05], "random_state": [1, 2]}
    ours = searched(SweepCV, grid, *data, estimator)
    monkeypatch.setattr(many_parameters, "_begin_of", lambda member: (id(member),))
    theirs = searched(SweepCV, grid, *data, estimator)
    assert came == [2, 12]
    assert_same_scores(ours, theirs, 0.0)


@pytest.mark.parametrize("room", [4, 2])
def test_weights_stay_while_others_wait_if_there_is_room(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    fetched, launched = [], []
    fetch, launch = PackedParameters.fetch, together.start_many

    def counted(self: PackedParameters) -> None:
        fetched.append(len(self.array))
        fetch(self)

    def seen(members: Any, rows: Any, *rungs: Any) -> Any:
        launched.append(len(members))
        return launch(members, rows, *rungs)

    monkeypatch.setattr(PackedParameters, "fetch", counted)
    monkeypatch.setattr(together, "start_many", seen)
    monkeypatch.setattr(together.Together, "_most", lambda self, launch: room)
    monkeypatch.setattr(
        together._Queue, "take", lambda self: [self.tasks.pop(0), self.tasks.pop(0)]
    )
    estimator = MLPClassifier(device=cuda, **FEW)
    searched(SweepCV, {"learning_rate_init": [0.02, 0.2]}, *data, estimator)
    assert launched == [2, 2]
    assert fetched == ([] if room == 4 else [2])


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_parameters_are_validated_once_for_all_folds(
    data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = []
    validate = MLPClassifier._validate_params

    def counted(self: Any) -> None:
        validated.append(self.alpha)
        validate(self)

    monkeypatch.setattr(MLPClassifier, "_validate_params", counted)
    estimator = MLPClassifier(device="cpu", **FEW)
    with pytest.warns(FitFailedWarning, match="2 fits failed"):
        search = searched(SweepCV, {"alpha": [0.1, -1.0, 0.2]}, *data, estimator)
    assert validated == [0.1, -1.0, -1.0, 0.2]
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True, False]


def test_rows_of_all_folds_are_checked_once_and_stay_where_they_are(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    check = splits.check_whole
    monkeypatch.setattr(
        splits, "check_whole", lambda own, X, y: checked.append(len(X)) or check(own, X, y)
    )
    monkeypatch.delattr(splits.Side, "X")  # nobody asks for copies
    estimator, grid = MLPClassifier(device=cuda, **FEW), {"learning_rate_init": [0.02, 0.2]}
    found = searched(SweepCV, grid, *data, estimator, return_train_score=True)
    assert checked == [60]
    theirs = searched(GridSearchCV, grid, *data, estimator, return_train_score=True)
    assert_same_scores(found, theirs, 1.5 / 30)
    difference = found.cv_results_["mean_train_score"] - theirs.cv_results_["mean_train_score"]
    assert abs(difference).max() < 1.5 / 30


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_a_row_that_is_refused_fails_the_fits_that_have_it(data: tuple[Array, Array]) -> None:
    X, y = data[0].copy(), data[1]
    X[3, 0] = np.nan
    rows = np.arange(60)
    cv = [(rows[10:40], rows[40:]), (rows[:40], rows[40:])]
    estimator = MLPClassifier(device="cpu", **FEW)
    search = SweepCV(estimator, {"alpha": [0.1]}, cv=cv, refit=False, n_jobs=1)
    with pytest.warns(FitFailedWarning, match="1 fits failed"):
        search.fit(X, y)
    assert np.isfinite(search.cv_results_["split0_test_score"]).all()
    assert np.isnan(search.cv_results_["split1_test_score"]).all()


def test_fits_share_no_parameter_that_one_can_change() -> None:
    rates = np.float64(0.1), (16, 8), "tanh", None, True
    names = "alpha", "hidden_layer_sizes", "activation", "random_state", "shuffle"
    plain = MLPClassifier(**dict(zip(names, rates, strict=True)))
    made = many_fits._like(plain)
    assert made is not plain
    assert made.get_params() == plain.get_params()
    assert made.alpha is plain.alpha
    for name, value in (
        ("random_state", np.random.RandomState(0)),
        ("hidden_layer_sizes", [8]),
        ("callbacks", [Callback()]),
    ):
        one = MLPClassifier(**{name: value})
        assert getattr(many_fits._like(one), name) is not value


def test_numbers_of_a_regression(cuda: str, launches: list[tuple[int, int]]) -> None:
    X, y = make_regression(60, 5, random_state=0)
    estimator = MLPRegressor(device=cuda, **FEW)
    found = [
        searched(kind, {"learning_rate_init": [0.02, 0.1]}, X, y / 50, estimator)
        for kind in (SweepCV, GridSearchCV)
    ]
    assert launches == [(4, 60)]
    assert_same_scores(*found, 5e-3)


def test_a_fold_that_lacks_a_class_has_its_own_rows(
    cuda: str, data: tuple[Array, Array], launches: list[tuple[int, int]]
) -> None:
    X, y = data
    first, second = np.flatnonzero(y < 2), np.arange(40)
    pairs = [(second, np.arange(40, 60)), (first, second)]
    settings: dict[str, Any] = {"cv": pairs, "refit": False, "n_jobs": 1}
    estimator, grid = MLPClassifier(device=cuda, **FEW), {"learning_rate_init": [0.02, 0.1]}
    ours = SweepCV(estimator, grid, **settings).fit(X, y)
    assert sorted(launches) == [(2, len(first)), (2, 60)]
    assert_same_scores(ours, GridSearchCV(estimator, grid, **settings).fit(X, y), 1.5 / 20)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        (
            {"solver": "sgd", "learning_rate": "invscaling", "shuffle": False},
            ["fit", "partial_fit"],
        ),
        ({"precision": "bfloat16", "warm_start": True, "epsilon": 0.05}, ["fit", "fit"]),
        (
            {"solver": "adamw", "learning_rate": "cosine", "activation": "tanh"},
            ["fit", "partial_fit"],
        ),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_ensembles_come_out_as_layer_by_layer(
    cuda: str,
    data: tuple[Array, Array],
    launches: list[tuple[int, int]],
    settings: Any,
    calls: list[str],
) -> None:
    X, y = data[0].astype(np.float64), data[1]
    limit = 0.02 if "precision" in settings else 2e-3
    own = FEW | {"alpha": 0.1, "n_ensemble": 2, "device": cuda} | settings
    together = MLPClassifier(**own)
    apart = MLPClassifier(**(own | {"engine": "layerwise", "precision": "float32"}))
    for call in calls:
        for estimator in (together, apart):
            getattr(estimator, call)(X, y)
    assert [count for count, _ in launches] == [2, 2]
    for one, other in zip(together.estimators_, apart.estimators_, strict=True):
        np.testing.assert_allclose(one.loss_curve_, other.loss_curve_, rtol=limit)
        np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=limit)
        assert one.coefs_[0].dtype == np.float64


def stops_after(watched: list[float], tol: float, patience: int, is_score: bool) -> int | None:
    """Return the epoch after which scikit-learn ends a fit, as `_update_no_improvement_count` says
    it.
    """
    best, count = -np.inf if is_score else np.inf, 0
    for epoch, value in enumerate(watched, 1):
        has_improved = value >= best + tol if is_score else value <= best - tol
        count = 0 if has_improved else count + 1
        best = max(best, value) if is_score else min(best, value)
        if count > patience:
            return epoch
    return None


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_kernels_end_fits_where_scikit_learn_would(
    cuda: str, data: tuple[Array, Array], launches: list[tuple[int, int]], early_stopping: bool
) -> None:
    tol = 0.06 if early_stopping else 0.03  # a row of those held out is no improvement
    rule = {
        "tol": tol,
        "n_iter_no_change": 2,
        "early_stopping": early_stopping,
        "validation_fraction": 0.3,
    }
    settings = FEW | {"max_iter": 30, "n_ensemble": 4, "device": cuda, "learning_rate_init": 0.1}
    stopped = MLPClassifier(**(settings | rule)).fit(*data).estimators_
    through = (
        MLPClassifier(**(settings | rule | {"n_iter_no_change": np.inf})).fit(*data).estimators_
    )
    assert [count for count, _ in launches] == [4, 4]
    for one, other in zip(stopped, through, strict=True):
        watched = other.validation_scores_ if early_stopping else other.loss_curve_
        assert one.n_iter_ == stops_after(watched, tol, 2, early_stopping)
        assert one.loss_curve_ == other.loss_curve_[: one.n_iter_]
        if early_stopping:
            best = int(np.argmax(one.validation_scores_))
            assert one.best_validation_score_ == one.validation_scores_[best]
    assert len({one.n_iter_ for one in stopped}) > 1


def test_best_weights_are_those_of_the_best_score(cuda: str, data: tuple[Array, Array]) -> None:
    settings = FEW | {
        "max_iter": 12,
        "n_ensemble": 2,
        "device": cuda,
        "learning_rate_init": 0.3,
        "early_stopping": True,
    }
    X, y = data
    fitted = MLPClassifier(**settings).fit(X, y, X_val=X[:20], y_val=y[:20])
    for member in fitted.estimators_:
        assert int(np.argmax(member.validation_scores_)) < member.n_iter_ - 1
        assert abs(member.score(X[:20], y[:20]) - member.best_validation_score_) <= 0.05


def test_ctrl_c_in_a_launch(
    cuda: str, data: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "start_many", interrupted)
    several = MLPClassifier(device=cuda, n_ensemble=2, **FEW)
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        several.fit(*data)
    assert [member.n_iter_ for member in several.estimators_] == [0, 0]
    with pytest.raises(KeyboardInterrupt):
        searched(SweepCV, {"alpha": [0.1, 1.0]}, *data, MLPClassifier(device=cuda, **FEW))


def test_rates_that_adapt_are_trained_one_after_the_other(
    cuda: str, data: tuple[Array, Array], launches: list[tuple[int, int]]
) -> None:
    settings = FEW | {"solver": "sgd", "learning_rate": "adaptive", "n_ensemble": 2, "device": cuda}
    MLPClassifier(**settings).fit(*data)
    assert not launches


@pytest.mark.parametrize("n_ensemble", [1, 2])
def test_values_that_equal_seeds_draw_serve_again(
    data: tuple[Array, Array], n_ensemble: int
) -> None:
    drawn: Drawn = {}
    settings = FEW | {"n_ensemble": n_ensemble, "device": "cpu"}
    prepared = [
        prepare(MLPClassifier(**settings), *data, drawn=own) for own in (drawn, drawn, None)
    ]
    first, again, alone = (
        [(*network.holder.coefs_, *network.holder.intercepts_) for network in each.networks]
        for each in prepared
    )
    assert len(drawn) == n_ensemble
    for one, other, third in zip(first, again, alone, strict=True):
        for a, b, c in zip(one, other, third, strict=True):
            assert a is b
            np.testing.assert_array_equal(b, c)
    seeds = [[network.arguments["seed"] for network in each.networks] for each in prepared]
    assert seeds[0] == seeds[1] == seeds[2]
