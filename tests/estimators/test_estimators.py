"""Both estimators among scikit-learn's other things: copies, pipelines, searches, kinds of
input.
"""

from __future__ import annotations

import copy
import doctest
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import InvalidParameterError

from warpfit.estimators import MLPClassifier, MLPRegressor, classifier, mlp, regressor
from warpfit.training.callbacks import Callback

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "learning_rate_init": 0.03,
    "max_iter": 15,
    "random_state": 0,
}
KINDS = [MLPClassifier, MLPRegressor]


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    return make_classification(120, 6, random_state=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda estimator: pickle.loads(pickle.dumps(estimator))]
)
def test_copies_go_on_like_the_original(data: tuple[Array, Array], kind: Any, copied: Any) -> None:
    estimator = kind(**FEW).fit(*data)
    other = copied(estimator)
    np.testing.assert_array_equal(other.predict(data[0]), estimator.predict(data[0]))
    assert other.partial_fit(*data).loss_ == estimator.partial_fit(*data).loss_
    assert clone(estimator).fit(*data).loss_curve_ == estimator.fit(*data).loss_curve_


def test_pipeline_and_search(data: tuple[Array, Array]) -> None:
    pipeline = make_pipeline(StandardScaler(), MLPClassifier(**FEW))
    grid = {"mlpclassifier__alpha": [1e-4, 1.0], "mlpclassifier__activation": ["relu", "gelu"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(*data)
    assert search.best_score_ > 0.8
    assert cross_val_score(pipeline, *data, cv=2).mean() > 0.8


def test_meta_estimators(data: tuple[Array, Array]) -> None:
    X, y = data
    few = MLPClassifier(**FEW)
    assert CalibratedClassifierCV(few, cv=2).fit(X, y).score(X, y) > 0.8
    assert BaggingClassifier(few, n_estimators=2).fit(X, y).score(X, y) > 0.8
    assert permutation_importance(few.fit(X, y), X, y, n_repeats=1).importances_mean.max() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csc_matrix])
def test_sparse_input_means_dense_input(
    data: tuple[Array, Array], kind: Any, container: Any
) -> None:
    X = np.where(np.abs(data[0]) > 1, data[0], 0)
    dense, thin = kind(**FEW).fit(X, data[1]), kind(**FEW).fit(container(X), data[1])
    assert thin.loss_curve_ == dense.loss_curve_
    np.testing.assert_array_equal(thin.predict(container(X)), dense.predict(X))


def test_bytes_are_numbers_up_to_255() -> None:
    X = np.arange(100, dtype=np.uint8).reshape(20, 5)
    y = X.sum(axis=1) / 500.0
    of_bytes, of_floats = MLPRegressor(**FEW).fit(X, y), MLPRegressor(**FEW).fit(X.astype(float), y)
    assert of_bytes.loss_curve_ == of_floats.loss_curve_
    np.testing.assert_array_equal(of_bytes.predict(X), of_floats.predict(X.astype(float)))


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_scikit_learns(data: tuple[Array, Array], kind: Any) -> None:
    with pytest.raises(NotFittedError):
        kind().predict(data[0])
    for wrong in (
        {"solver": "magic"},
        {"alpha": -1},
        {"dropout": 1.0},
        {"activation": "swish"},
        {"device": 3},
    ):
        with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
            kind(**wrong).fit(*data)
    with pytest.raises(ValueError, match=r"hidden_layer_sizes must be > 0, got \[3, 0\]"):
        kind(hidden_layer_sizes=(3, 0)).fit(*data)
    assert not hasattr(kind(solver="lbfgs"), "partial_fit")


class Fails(Callback):
    def on_epoch_end(self, *arguments: Any) -> None:
        raise RuntimeError("no more")


@pytest.mark.parametrize(
    ("settings", "wide"),
    [
        ({"device": "cuda:99"}, True),
        ({"early_stopping": True, "validation_fraction": 0.0}, True),
        ({"callbacks": [Fails()]}, True),
        ({"callbacks": [Fails()], "warm_start": True}, False),
        ({"callbacks": [Fails()], "warm_start": True, "solver": "sgd"}, False),
    ],
)
def test_a_fit_that_fails_changes_nothing(
    data: tuple[Array, Array], settings: dict[str, Any], wide: bool
) -> None:
    x, y = data
    estimator = MLPClassifier(**FEW).fit(x, y)
    expected, state = estimator.predict_proba(x), copy.deepcopy(vars(estimator))
    estimator.set_params(**settings)
    rows, labels = (np.hstack([x, x]), np.where(y, "b", "a")) if wide else (x, y)
    with pytest.raises((ValueError, RuntimeError)):
        estimator.fit(rows, labels)
    np.testing.assert_array_equal(estimator.set_params(device="cpu").predict_proba(x), expected)
    assert estimator.classes_.tolist() == [0, 1]
    assert vars(estimator).keys() == state.keys()
    for name in ("loss_curve_", "n_iter_", "t_", "coefs_", "_optimizer_state"):
        np.testing.assert_equal(getattr(estimator, name), state[name], err_msg=name)
    first = MLPClassifier(**FEW).set_params(**settings)
    with pytest.raises((ValueError, RuntimeError)):
        first.fit(rows, labels)
    with pytest.raises(NotFittedError):
        first.predict(rows)


class FailsAtSecond(Callback):
    """Fails as the second network, or epoch, ends."""

    num_ended = 0

    def on_epoch_end(self, *arguments: Any) -> None:
        self.num_ended += 1
        if self.num_ended == 2:
            raise RuntimeError("no more")


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
@pytest.mark.parametrize("networks", [1, 2])
def test_a_partial_fit_that_fails_changes_nothing(
    data: tuple[Array, Array], kind: Any, networks: int
) -> None:
    x, y = data
    known = {"classes": [0, 1]} if kind is MLPClassifier else {}
    estimator = kind(**{**FEW, "n_ensemble": networks}).partial_fit(x, y, **known)
    expected = estimator.predict(x)
    members = [estimator, *getattr(estimator, "estimators_", ())]
    states = [copy.deepcopy(vars(each)) for each in members]
    failing = FailsAtSecond()
    failing.num_ended = 2 - networks
    with pytest.raises(RuntimeError):
        estimator.set_params(callbacks=[failing]).partial_fit(x, y)
    np.testing.assert_array_equal(estimator.predict(x), expected)
    for each, state in zip(members, states, strict=True):
        for name in ("loss_curve_", "n_iter_", "t_", "coefs_", "_optimizer_state"):
            np.testing.assert_equal(getattr(each, name), state[name], err_msg=name)


def test_names_of_features(data: tuple[Array, Array]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data[0], columns=list("abcdef"))
    fitted = MLPClassifier(**FEW).fit(frame, data[1])
    assert list(fitted.feature_names_in_) == list("abcdef")
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        fitted.predict(data[0])
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("module", [classifier, regressor, mlp])
def test_examples(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_a_fitted_one_loads_in_a_fresh_process(data: tuple[Array, Array], tmp_path: Any) -> None:
    fitted = MLPClassifier(**FEW).fit(*data)
    (tmp_path / "fitted.pickle").write_bytes(
        pickle.dumps((fitted, data[0], fitted.predict(data[0])))
    )
    code = (
        "import pickle, sys; e, X, y = pickle.load(open(sys.argv[1], 'rb')); assert "
        "(e.predict(X) == y).all()"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "fitted.pickle")], check=True, timeout=60
    )
