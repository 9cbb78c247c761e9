"""Without shuffling, in float64, ours and scikit-learn's are the same run: curves, weights, when it
ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.neural_network as theirs
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes, load_digits, make_multilabel_classification
from sklearn.preprocessing import scale

from warpfit import estimators as ours

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]


class Task(NamedTuple):
    kind: str
    X: Array
    y: Array
    settings: dict[str, Any] = {}  # noqa: RUF012


def tasks() -> dict[str, Task]:
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = pixels[:240] / 16, digits[:240]
    patients, progress = load_diabetes(return_X_y=True)
    patients, progress = scale(patients), scale(progress)
    texts, topics = make_multilabel_classification(200, random_state=0)
    return {
        "multiclass": Task("MLPClassifier", pixels, digits),
        "binary": Task("MLPClassifier", pixels, digits % 2),
        "multilabel": Task("MLPClassifier", scale(texts), topics),
        "regression": Task("MLPRegressor", patients, progress),
        "two outputs": Task("MLPRegressor", patients, np.stack([progress, progress**2], axis=1)),
        "poisson": Task("MLPRegressor", patients, np.abs(progress), {"loss": "poisson"}),
    }


TASKS = tasks()

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "invscaling": {"learning_rate": "invscaling", "power_t": 0.3},
    "adaptive": {"learning_rate": "adaptive", "tol": 0.02, "n_iter_no_change": 2},
    "early stopping": {"early_stopping": True, "validation_fraction": 0.2, "n_iter_no_change": 3},
    "plain momentum": {"nesterovs_momentum": False, "alpha": 0.1},
    "all momentum": {"momentum": 1, "max_iter": 4},
    "no momentum": {"momentum": 0, "activation": "logistic"},
    "two hidden layers": {"activation": "tanh", "batch_size": 64, "hidden_layer_sizes": (20, 10)},
    "tolerance": {"tol": 0.05, "n_iter_no_change": 1, "activation": "identity"},
}


def pair(task: Task, **settings: Any) -> tuple[BaseEstimator, BaseEstimator]:
    """Return scikit-learn's and our estimator, not yet fitted."""
    few = {"random_state": 3, "shuffle": False, "max_iter": 20, "hidden_layer_sizes": (24,)}
    all_settings = few | task.settings | settings
    expected: BaseEstimator = getattr(theirs, task.kind)(**all_settings)
    return expected, getattr(ours, task.kind)(**all_settings)


def assert_same_run(ours: BaseEstimator, theirs: BaseEstimator) -> None:
    """Assert that curves agree to 1e-9 (the promise is 1e-6), and all else that the two runs
    left.
    """
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-9)
    for name in (
        "n_iter_",
        "t_",
        "n_layers_",
        "n_outputs_",
        "out_activation_",
        "_no_improvement_count",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("loss_", "best_loss_", "best_validation_score_", "validation_scores_"):
        expected = getattr(theirs, name)
        if expected is None:
            assert getattr(ours, name) is None
        else:
            np.testing.assert_allclose(getattr(ours, name), expected, rtol=1e-9)
    for name in ("coefs_", "intercepts_"):
        for own, expected in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-9)
            assert own.dtype == expected.dtype


@pytest.mark.in_turns(30)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize("task", TASKS)
def test_the_same_run(task: str, solver: str, settings: str) -> None:
    theirs, ours = pair(TASKS[task], solver=solver, learning_rate_init=0.005, **SETTINGS[settings])
    X, y = TASKS[task].X, TASKS[task].y
    assert_same_run(ours.fit(X, y), theirs.fit(X, y))
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6, atol=1e-9)
    if hasattr(theirs, "predict_proba"):
        np.testing.assert_allclose(
            ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("task", ["multiclass", "two outputs"])
def test_the_same_run_with_sample_weights(task: str, early_stopping: bool) -> None:
    theirs, ours = pair(TASKS[task], alpha=0.1, early_stopping=early_stopping)
    X, y = TASKS[task].X, TASKS[task].y
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    assert_same_run(ours.fit(X, y, weights), theirs.fit(X, y, weights))


@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize("learning_rate", ["constant", "invscaling", "adaptive"])
def test_the_same_partial_fits(solver: str, learning_rate: str) -> None:
    X, y = TASKS["regression"].X, TASKS["regression"].y
    theirs, ours = pair(
        TASKS["regression"],
        solver=solver,
        learning_rate=learning_rate,
        tol=0.05,
        n_iter_no_change=2,
    )
    for part in np.array_split(np.arange(len(X)), 12):
        assert_same_run(ours.partial_fit(X[part], y[part]), theirs.partial_fit(X[part], y[part]))


@pytest.mark.parametrize("settings", ["defaults", "invscaling", "early stopping"])
def test_the_same_warm_start(settings: str) -> None:
    X, y = TASKS["binary"].X, TASKS["binary"].y
    theirs, ours = pair(
        TASKS["binary"],
        solver="sgd",
        warm_start=True,
        max_iter=4,
        learning_rate_init=0.05,
        **SETTINGS[settings],
    )
    for _ in range(3):
        assert_same_run(ours.fit(X, y), theirs.fit(X, y))


def test_the_same_partial_fit_after_fit() -> None:
    X, y = TASKS["multiclass"].X, TASKS["multiclass"].y
    theirs, ours = pair(TASKS["multiclass"], max_iter=3)
    for estimator in (theirs, ours):
        estimator.fit(X, y)
        estimator.partial_fit(X[:100], y[:100])
    assert_same_run(ours, theirs)


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("task", ["multiclass", "multilabel", "two outputs", "poisson"])
def test_lbfgs_finds_the_same(task: str, activation: str) -> None:
    theirs, ours = pair(
        TASKS[task],
        solver="lbfgs",
        max_iter=12,
        activation=activation,
        hidden_layer_sizes=12,
        alpha=0.01,
    )
    X, y = TASKS[task].X, TASKS[task].y
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    theirs.fit(X, y, weights)
    ours.fit(X, y, weights)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(ours.loss_, theirs.loss_, rtol=1e-9)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6, atol=1e-6)


def test_defaults_are_theirs() -> None:
    for kind in ("MLPClassifier", "MLPRegressor"):
        theirs_, ours_ = getattr(theirs, kind)().get_params(), getattr(ours, kind)().get_params()
        assert {name: ours_[name] for name in theirs_} == theirs_


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_are_theirs(dtype: str) -> None:
    X, y = TASKS["multiclass"].X.astype(dtype), TASKS["multiclass"].y
    theirs, ours = pair(
        TASKS["multiclass"],
        solver="sgd",
        learning_rate_init=1e-30,
        max_iter=1,
        hidden_layer_sizes=(9, 7),
    )
    theirs.fit(X, y)
    ours.fit(X, y)
    for own, expected in zip(
        ours.coefs_ + ours.intercepts_, theirs.coefs_ + theirs.intercepts_, strict=True
    ):
        np.testing.assert_array_equal(own, expected, strict=True)


def test_verbose_prints_what_theirs_prints(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = TASKS["binary"].X, TASKS["binary"].y
    texts = []
    for settings in (SETTINGS["adaptive"], SETTINGS["early stopping"]):
        for estimator in pair(TASKS["binary"], solver="sgd", verbose=True, max_iter=40, **settings):
            estimator.fit(X, y)
            texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert "Setting learning rate to 0.000200" in texts[0]
