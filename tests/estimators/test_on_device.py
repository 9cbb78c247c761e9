"""Estimators on a CUDA device: the same runs to rounding, and nothing of the device in what is
fitted.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from joblib import parallel_config
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV

from conftest import on_gpu
from warpfit.estimators import MLPClassifier, MLPRegressor, SweepCV

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "batch_size": 16,
    "max_iter": 3,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    X, y = make_classification(48, 6, n_informative=4, n_classes=3, random_state=0)
    return X.astype(np.float32), y


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_the_same_run_on_a_device(
    cuda: str, data: tuple[Array, Array], kind: Any, solver: str
) -> None:
    X, y = data
    settings = {**FEW, "solver": solver, "precision": "float32", "engine": "layerwise"}
    here, there = (kind(device=device, **settings).fit(X, y) for device in ("cpu", cuda))
    np.testing.assert_allclose(there.loss_curve_, here.loss_curve_, rtol=1e-5)
    for own, expected in zip(there.coefs_, here.coefs_, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)
    np.testing.assert_allclose(there.predict(X), here.predict(X), atol=1e-4)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_one_launch_is_taken_where_it_can(
    cuda: str, data: tuple[Array, Array], early_stopping: bool
) -> None:
    X, y = data
    settings = {**FEW, "early_stopping": early_stopping, "validation_fraction": 0.25}
    # float64 as it comes from NumPy, in half precision on the device.
    there = MLPClassifier(device=cuda, engine="one_launch", **settings).fit(X.astype(np.float64), y)
    here = MLPClassifier(**settings).fit(X, y)
    np.testing.assert_allclose(there.loss_curve_, here.loss_curve_, rtol=1e-2)
    assert there.coefs_[0].dtype == np.float64


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("rate", ["constant", "invscaling", "adaptive"])
def test_graphs_have_the_bits_of_layerwise(
    cuda: str, data: tuple[Array, Array], early_stopping: bool, rate: str
) -> None:
    X, y = data
    settings = {**FEW, "solver": "sgd", "learning_rate": rate, "early_stopping": early_stopping}
    settings |= {
        "device": cuda,
        "precision": "float32",
        "max_iter": 6,
        "n_iter_no_change": 1,
        "tol": 0.1,
    }
    weights = np.linspace(0.5, 2, len(X))
    fitted = [
        MLPClassifier(engine=engine, **settings).fit(X, y, sample_weight=weights)
        for engine in ("layerwise", "graph")
    ]
    if not early_stopping:
        fitted = [one.partial_fit(X, y) for one in fitted]
    assert fitted[0].loss_curve_ == fitted[1].loss_curve_
    for one, other in zip(fitted[0].coefs_, fitted[1].coefs_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lbfgs_on_a_device(cuda: str, data: tuple[Array, Array]) -> None:
    X, y = data
    settings = {**FEW, "solver": "lbfgs", "max_iter": 2}
    here, there = (MLPClassifier(device=device, **settings).fit(X, y) for device in ("cpu", cuda))
    assert there.loss_ == pytest.approx(here.loss_, rel=1e-3)


def test_what_is_fitted_holds_nothing_of_the_device(cuda: str, data: tuple[Array, Array]) -> None:
    X, y = data
    fitted = MLPClassifier(device=cuda, **FEW).fit(X, y)
    copy = pickle.loads(pickle.dumps(fitted)).set_params(device="cpu")
    np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
    assert all(type(array) is np.ndarray for array in (*copy.coefs_, *copy.intercepts_))
    copy.partial_fit(X, y)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_workers_share_a_gpu(data: tuple[Array, Array], backend: str) -> None:
    grid = {"alpha": [1e-4, 1.0], "solver": ["adam", "sgd"], "activation": ["relu", "tanh"]}
    one, several = (
        GridSearchCV(MLPClassifier(device="cuda", **FEW), grid, cv=3, n_jobs=n) for n in (1, 4)
    )
    one.fit(*data)
    with parallel_config(backend):
        several.fit(*data)
    np.testing.assert_array_equal(
        several.cv_results_["mean_test_score"], one.cv_results_["mean_test_score"]
    )
    np.testing.assert_array_equal(several.predict_proba(data[0]), one.predict_proba(data[0]))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("engine", ["layerwise", "graph"])
def test_a_search_on_a_device_has_the_scores_of_single_fits(
    cuda: str, data: tuple[Array, Array], engine: str
) -> None:
    X, y = data
    settings = {**FEW, "max_iter": 2, "engine": engine, "device": cuda}
    grid = {"learning_rate_init": [0.01, 0.1], "n_ensemble": [1, 2]}
    theirs, ours = (
        kind(MLPClassifier(**settings), grid, cv=2, refit=False, n_jobs=1).fit(X, y)
        for kind in (GridSearchCV, SweepCV)
    )
    for split in range(2):
        name = f"split{split}_test_score"
        np.testing.assert_array_equal(ours.cv_results_[name], theirs.cv_results_[name])
