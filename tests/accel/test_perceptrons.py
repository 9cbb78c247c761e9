"""Fits of scikit-learn's own classes, which are trained here, and what falls back."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits, make_regression
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

import warpfit
from support.devices import no_gpu
from warpfit import accel, backends
from warpfit.accel import perceptrons
from warpfit.errors import DeviceWarning

pytestmark = [
    pytest.mark.usefixtures("installed"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

X, Y = (part[:300] for part in load_digits(return_X_y=True))
X = X / 16
FEW = {"hidden_layer_sizes": (12,), "max_iter": 4, "random_state": 0}
HERE = "cpu, layerwise, float64"

ROWS, NUMBERS = make_regression(120, 5, noise=1.0, random_state=0)
CASES = [
    (MLPClassifier, {"solver": "adam"}),
    (MLPClassifier, {"solver": "sgd", "learning_rate": "adaptive", "early_stopping": True}),
    (MLPClassifier, {"solver": "lbfgs"}),
    (MLPRegressor, {"solver": "sgd", "learning_rate": "invscaling", "learning_rate_init": 1e-3}),
    (MLPRegressor, {"solver": "adam", "activation": "tanh"}),
]


def data_of(kind: type) -> tuple[Any, Any]:
    return (X, Y) if kind is MLPClassifier else (ROWS, NUMBERS / 100)


def places() -> list[tuple[str, str]]:
    return [(call.name, call.where) for call in accel.report().calls]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_fit_is_scikit_learns_but_for_rounding(kind: Any, settings: Any) -> None:
    settings = {**FEW, **settings, "shuffle": False}
    here = kind(**settings).fit(*data_of(kind))
    assert len(accel.report().calls) == 1
    assert not accel.report().calls[0].fell_back
    accel.uninstall()
    there = kind(**settings).fit(*data_of(kind))
    assert vars(here).keys() >= vars(there).keys() - {
        "_random_state",  # each of them for the length of a fit
        "_coef_indptr",
        "_intercept_indptr",
    }
    if settings["solver"] == "lbfgs":  # whose searches along a line end at other places
        assert here.loss_ == pytest.approx(there.loss_, rel=0.01)
    else:
        for ours, theirs in zip(here.coefs_, there.coefs_, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(here.loss_curve_, there.loss_curve_, rtol=1e-9)
    if settings["solver"] == "sgd":  # Adam's is that of its last step
        assert here._optimizer.learning_rate == pytest.approx(there._optimizer.learning_rate)


def test_the_class_is_scikit_learns() -> None:
    before = MLPClassifier.__doc__, MLPClassifier.fit.__doc__, MLPClassifier.__module__
    fitted = MLPClassifier(**FEW).fit(X, Y)
    assert type(fitted) is MLPClassifier
    assert is_classifier(fitted)
    accel.uninstall()
    assert before == (MLPClassifier.__doc__, MLPClassifier.fit.__doc__, MLPClassifier.__module__)
    assert repr(fitted) == repr(MLPClassifier(**FEW))
    assert clone(fitted).get_params() == MLPClassifier(**FEW).get_params()


def test_the_replaced_methods_are_put_back() -> None:
    base: Any = MLPClassifier.__mro__[2]
    assert base._fit.__wrapped__
    accel.install()  # a second time
    accel.uninstall()
    assert not hasattr(base._fit, "__wrapped__")
    MLPClassifier(**FEW).fit(X, Y)
    assert places() == []


def test_training_goes_on_from_either_side() -> None:
    fitted = MLPClassifier(**FEW, shuffle=False, warm_start=True)
    expected = clone(fitted)
    fitted.fit(X, Y)
    accel.uninstall()
    expected.fit(X, Y)
    for _ in range(2):
        expected.fit(X, Y)
    fitted.fit(X, Y)
    accel.install()
    fitted.fit(X, Y)
    assert places() == [("MLPClassifier.fit", HERE)] * 2
    np.testing.assert_allclose(fitted.loss_curve_, expected.loss_curve_, rtol=1e-9)
    assert fitted.t_ == expected.t_


def test_a_machine_without_a_gpu_is_told_of_by_our_own_functions_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_gpu(monkeypatch)
    MLPClassifier(**{**FEW, "solver": "lbfgs", "max_iter": 10**7}).fit(X[:40], Y[:40])
    BaggingClassifier(MLPClassifier(**FEW), 2).fit(X, Y)
    cross_val_score(MLPClassifier(**FEW), X, Y, cv=2)
    with pytest.warns(DeviceWarning, match="device 'auto' is the CPU"):
        assert backends.resolve_device("auto") == "cpu"


PLAIN = """
import pickle, sys
import numpy as np
path, rows = sys.argv[1:]
fitted = pickle.load(open(path, "rb"))
fitted.partial_fit(np.load(rows), np.zeros(300, int))
pickle.dump((fitted, fitted.predict_proba(np.load(rows))), open(path, "wb"))
assert not [name for name in sys.modules if name.startswith("warpfit")]
"""


def test_pickles_are_read_where_this_package_is_not_and_come_back(tmp_path: Path) -> None:
    fitted = MLPClassifier(**FEW).fit(X, Y)
    path, rows = tmp_path / "fitted.pickle", tmp_path / "rows.npy"
    path.write_bytes(pickle.dumps(fitted))
    np.save(rows, X)
    command = [sys.executable, "-c", PLAIN, str(path), str(rows)]
    subprocess.run(command, check=True, timeout=60)
    again, probabilities = pickle.loads(path.read_bytes())
    np.testing.assert_allclose(again.predict_proba(X), probabilities)
    again.set_params(warm_start=True).fit(X, Y)
    assert places() == [("MLPClassifier.fit", HERE)] * 2


def test_inner_methods_that_a_subclass_overrides_are_called() -> None:
    class Counting(MLPClassifier):
        count = 0

        def _backprop(self, *arguments: Any) -> Any:
            self.count += 1
            return super()._backprop(*arguments)

    fitted = Counting(**FEW).fit(X, Y)
    assert fitted.count == 2 * FEW["max_iter"]  # type: ignore[operator]
    (call,) = accel.report().calls
    assert call.fell_back
    assert (call.name, call.why) == ("Counting.fit", "Counting overrides _backprop")


def test_a_subclass_that_overrides_none_is_trained_here() -> None:
    class Named(MLPClassifier):
        def __init__(self, dropout: str = "none", max_iter: int = 2) -> None:
            super().__init__(max_iter=max_iter)
            self.dropout = dropout  # a parameter of ours, by chance

    assert Named().fit(X, Y).n_iter_ == 2
    assert places() == [("Named.fit", HERE)]


def test_sparse_rows_that_would_take_all_memory_stay_sparse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(perceptrons, "MOST_DENSE", 8 * X.size - 1)
    MLPClassifier(**FEW).fit(sparse.csr_array(X), Y)
    (call,) = accel.report().calls
    assert call.fell_back
    assert call.why == "X is sparse, and would take 0.0 GiB as a dense array"
    accel.forget()
    monkeypatch.setattr(perceptrons, "MOST_DENSE", 8 * X.size)
    MLPClassifier(**FEW).fit(sparse.csr_array(X), Y)
    assert places() == [("MLPClassifier.fit", HERE)]


def test_errors_are_scikit_learns_own() -> None:
    with pytest.raises(ValueError, match="Input X contains NaN") as caught:
        MLPClassifier(**FEW).fit(np.full_like(X, np.nan), Y)
    assert "warpfit" not in str(caught.value)
    (call,) = accel.report().calls
    assert call.fell_back
    assert call.why.startswith("ValueError: Input X contains NaN")


def test_random_numbers_that_an_attempt_drew_are_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {**FEW, "random_state": None}
    accel.uninstall()
    expected = MLPClassifier(**settings).set_params(random_state=np.random.RandomState(3))
    expected.fit(X, Y)
    accel.install()

    def fail(*arguments: Any) -> None:
        raise MemoryError("there is none")

    monkeypatch.setattr("warpfit.estimators.fitting.train", fail)
    fitted = MLPClassifier(**settings).set_params(random_state=np.random.RandomState(3))
    fitted.fit(X, Y)
    assert accel.report().calls[0].why == "MemoryError: there is none"
    np.testing.assert_array_equal(fitted.coefs_[0], expected.coefs_[0])


def test_an_attempt_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = MLPClassifier(**FEW, warm_start=True).fit(X, Y)

    def fail(prepared: Any) -> None:
        prepared.estimator.loss_curve_.append(0.0)
        raise MemoryError("there is none")

    monkeypatch.setattr("warpfit.estimators.fitting.train", fail)
    fitted.fit(X, Y)
    assert len(fitted.loss_curve_) == 8
    assert 0.0 not in fitted.loss_curve_


def test_a_loss_that_is_not_finite_is_not_trained_once_more() -> None:
    regressor = MLPRegressor(solver="sgd", learning_rate_init=1e3, random_state=0)
    with pytest.raises(ValueError, match="non-finite parameter weights"):
        regressor.fit(1e6 * ROWS, NUMBERS)
    assert places() == [("MLPRegressor.fit", HERE)]


def test_short_partial_fits_are_scikit_learns() -> None:
    MLPClassifier(**FEW).partial_fit(X, Y, classes=range(10))
    (call,) = accel.report().calls
    assert call.fell_back
    assert call.why.startswith("a partial fit on the CPU")


def test_partial_fits_and_predictions_on_a_gpu(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPFIT_DEVICE", cuda)
    monkeypatch.setattr(perceptrons, "FEW_PRODUCTS", 1)
    fitted = MLPClassifier(**FEW, shuffle=False, solver="sgd")
    expected = clone(fitted)
    for _ in range(2):
        fitted.partial_fit(X[:64], Y[:64], classes=range(10))
    found = fitted.predict_proba(X)
    names = [name for name, place in places() if place.startswith("cuda:0")]
    assert names == ["MLPClassifier.partial_fit", "MLPClassifier.predict"]
    assert (found.dtype, found.shape) == (X.dtype, (300, 10))
    accel.uninstall()
    np.testing.assert_allclose(fitted.predict_proba(X), found, atol=1e-5)
    for _ in range(2):
        expected.partial_fit(X[:64], Y[:64], classes=range(10))
    np.testing.assert_allclose(fitted.coefs_[0], expected.coefs_[0], atol=2e-3)
    np.testing.assert_allclose(
        fitted._optimizer.velocities[0], expected._optimizer.velocities[0], atol=2e-3
    )


def test_our_own_estimators_stay_ours() -> None:
    warpfit.MLPClassifier(**FEW).fit(X, Y)
    assert places() == []


def test_the_report_is_a_table() -> None:
    assert str(accel.report()) == "warpfit.accel: no perceptron was trained"
    for _ in range(2):
        MLPClassifier(**FEW).fit(X, Y)
    (call,) = accel.report().calls
    assert (call.calls, call.line.partition(":")[0]) == (2, "test_perceptrons.py")
    head, header, line = str(accel.report()).splitlines()
    assert head == "warpfit.accel: 0 calls fell back to scikit-learn"
    assert header.split() == ["call", "line", "where", "calls", "seconds", "why"]
    assert line.startswith("MLPClassifier.fit  test_perceptrons.py:")
