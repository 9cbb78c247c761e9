"""Estimators and their searches on several devices: CPU ranks, and cards on the emulator."""

from __future__ import annotations

import pickle
from collections import Counter
from signal import SIGINT, pthread_kill
from threading import Event, main_thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import FitFailedWarning

import warpfit as wf
from conftest import on_emulator
from support.fake_nccl import open_cards
from support.searches import assert_same_search
from warpfit.backends.cuda import runtime
from warpfit.errors import ConfigError
from warpfit.sweep import elsewhere

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DIGITS = load_digits(return_X_y=True)
X, Y = DIGITS[0][:120].astype(np.float32) / 16, DIGITS[1][:120]
FEW: dict[str, Any] = {"max_iter": 3, "learning_rate_init": 0.02, "random_state": 0}
GRID = {"alpha": [1e-4, 1.0], "solver": ["adam", "sgd", "lbfgs"]}


def classifier(device: Any, **settings: Any) -> wf.MLPClassifier:
    return wf.MLPClassifier(8, device=device, **(FEW | settings))


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"solver": "lbfgs"}])
@pytest.mark.parametrize("devices", [["cpu"], ("cpu", "cpu", "cpu")])
def test_a_fit_on_several_has_the_numbers_of_one(devices: Any, settings: dict[str, Any]) -> None:
    one, several = (classifier(on, **settings).fit(X, Y) for on in ("cpu", devices))
    np.testing.assert_allclose(several.predict_proba(X), one.predict_proba(X), rtol=1e-4, atol=1e-6)
    assert several.n_iter_ == one.n_iter_
    assert clone(several).get_params()["device"] == devices
    again = pickle.loads(pickle.dumps(several))
    np.testing.assert_array_equal(again.predict_proba(X), several.predict_proba(X))


def test_what_no_device_takes_is_told() -> None:
    with pytest.raises(ConfigError, match="engine 'graph': expected a CUDA device"):
        classifier(["cpu", "cpu"], n_ensemble=2, engine="graph").fit(X, Y)


class Noting(wf.Callback):
    """Notes the devices of each run; a clone notes in the same list."""

    needs_run = False

    def __init__(self, found: list[tuple[str, ...]]) -> None:
        self.found = found

    def __deepcopy__(self, memo: Any) -> Noting:
        return self

    def on_start(self, run: Any) -> None:
        self.found.append(run.plan.devices)


def test_a_network_is_on_all_devices_and_those_of_a_search_on_one_each() -> None:
    found: list[tuple[str, ...]] = []
    estimator = classifier(["cpu", "cpu"], callbacks=[Noting(found)]).fit(X, Y)
    assert found == [("cpu", "cpu")]
    wf.SweepCV(estimator, {"alpha": [1e-3]}, cv=2).fit(X, Y)
    assert found[1:] == [()] * 3


def test_a_regressor_and_what_goes_on() -> None:
    one, several = (
        wf.MLPRegressor(hidden_layer_sizes=8, device=on, warm_start=True, **FEW).fit(X, Y / 10)
        for on in ("cpu", ["cpu", "cpu"])
    )
    for estimator in (one, several):
        estimator.fit(X, Y / 10).partial_fit(X, Y / 10)
    np.testing.assert_allclose(several.predict(X), one.predict(X), rtol=1e-3, atol=1e-5)


def test_an_ensemble_is_distributed_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = classifier("cpu", n_ensemble=3).fit(X, Y)
    trained: Counter[str] = Counter()
    run_shard = elsewhere.run_shard

    def counting(tasks: Any, device: str) -> Any:
        trained[device] += len(tasks)
        return run_shard(tasks, device)

    monkeypatch.setattr(elsewhere, "run_shard", counting)
    several = classifier(["cpu", "cpu"], n_ensemble=3).fit(X, Y)
    np.testing.assert_array_equal(several.predict_proba(X), one.predict_proba(X))
    assert trained == {"cpu": 3}


@pytest.mark.parametrize("settings", [{}, {"scoring": "f1_macro", "return_train_score": True}])
def test_a_search_over_several_has_the_bits_of_one(settings: dict[str, Any]) -> None:
    one, several = (
        wf.SweepCV(classifier(on), GRID, cv=2, n_jobs=1, **settings).fit(X, Y)
        for on in ("cpu", ["cpu", "cpu"])
    )
    assert_same_search(several, one)
    np.testing.assert_array_equal(several.predict_proba(X), one.predict_proba(X))
    assert several.best_estimator_.device == "cpu"
    assert clone(several).estimator.device == ["cpu", "cpu"]


@pytest.mark.parametrize(
    "device", ["processes", "cpu,cpu", b"cpu", None, 3, np.array(["cpu", "cpu"])]
)
def test_a_search_says_at_once_what_is_no_device(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected (one device|a device or several), .*got"):
        wf.SweepCV(classifier(device), {"alpha": [1e-3]}, cv=2, n_jobs=1).fit(X, Y)


def test_a_fit_that_fails_is_the_only_one() -> None:
    search = wf.RandomizedSweepCV(
        classifier(["cpu", "cpu"]), [{"alpha": [1e-3]}, {"alpha": [-1]}], n_iter=2, cv=2
    )
    with pytest.warns(FitFailedWarning), pytest.warns(UserWarning, match="non-finite"):
        search.fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"]).sum() == 1


class CtrlC(wf.Callback):
    """Interrupts the main thread, as a terminal does, once."""

    def __init__(self) -> None:
        self.has_come = Event()

    def __deepcopy__(self, memo: Any) -> CtrlC:
        return self

    def on_start(self, run: Any) -> None:
        if not self.has_come.is_set():
            self.has_come.set()
            ident = main_thread().ident
            assert ident is not None
            pthread_kill(ident, SIGINT)
            sleep(0.2)


@pytest.mark.parametrize("is_search", [False, True])
def test_ctrl_c_ends_all(is_search: bool) -> None:
    ended = classifier(["cpu", "cpu"], n_ensemble=2, callbacks=[CtrlC()])
    fitted = wf.SweepCV(ended, {"alpha": [1e-3, 1e-2]}, cv=2, refit=False) if is_search else ended
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X, Y)


@on_emulator
@pytest.mark.parametrize(
    "settings", [pytest.param({}, marks=pytest.mark.slow), {"engine": "graph"}]
)
def test_two_cards_fit_one_network(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    open_cards(monkeypatch, 2)
    settings = {"precision": "float32", "batch_size": 32, **settings}
    one, two = (classifier(on, **settings).fit(X, Y) for on in ("cuda:0", "cuda:all"))
    np.testing.assert_allclose(two.predict_proba(X), one.predict_proba(X), rtol=1e-3, atol=1e-5)
    assert two.get_params()["device"] == "cuda:all"


@pytest.mark.slow
@on_emulator
def test_two_cards_search_with_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    open_cards(monkeypatch, 2)
    grid = {"alpha": [1e-4, 1.0], "activation": ["relu", "tanh"]}
    one = wf.SweepCV(classifier("cuda:0", batch_size=32), grid, cv=2).fit(X, Y)
    for index in range(2):
        runtime._OPEN[index].launched.clear()
    two = wf.SweepCV(classifier(["cuda:0", "cuda:1"], batch_size=32), grid, cv=2).fit(X, Y)
    assert_same_search(two, one)
    np.testing.assert_array_equal(two.predict_proba(X), one.predict_proba(X))
    names = [runtime._OPEN[index].launched for index in range(2)]
    assert all(any("many" in name for name in each) for each in names)
