"""Searches over estimators for tables, beside scikit-learn's."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, GroupKFold, RandomizedSearchCV
from threadpoolctl import threadpool_limits

import warpfit as wf
from conftest import on_emulator
from support.fake_nccl import open_cards
from support.searches import assert_same_search
from warpfit.backends.cuda import runtime
from warpfit.errors import ConfigError, DataError, TrainingWarning
from warpfit.estimators import search as searches
from warpfit.estimators.splits import Fits
from warpfit.tabular import launched
from warpfit.tabular.launched import Launched, Task

TINY: dict[str, Any] = {"n_epochs": 2, "batch_size": 16, "random_state": 0, "device": "cpu"}
SMALL: dict[str, Any] = {**TINY, "hidden_layer_sizes": 16}
NOT_FINITE = "ignore:One or more of the test scores are non-finite"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Give scikit-learn's search, which also scores, as many BLAS threads as ours has."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def table(num_rows: int = 60) -> tuple[pd.DataFrame, Any]:
    """Return a frame with missing cells, and labels of text."""
    random = np.random.default_rng(0)
    x = random.normal(size=num_rows)
    towns = [None if idx % 7 == 0 else f"town {idx % 3}" for idx in range(num_rows)]
    frame = pd.DataFrame({"x": x, "gap": np.where(x > 1, np.nan, -x), "town": towns})
    return frame, np.where(x + random.normal(size=num_rows) / 3 > 0, "high", "low")


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.in_turns(2)
@pytest.mark.parametrize("method", ["realmlp", "tabm"])
def test_a_space_is_searched_as_scikit_learn_does(method: str, n_jobs: int) -> None:
    frame, y = table()
    space = wf.tabular.search_space(method) | {"hidden_layer_sizes": [(8,), (4, 4)]}
    settings: dict[str, Any] = {"n_iter": 3, "cv": 2, "random_state": 0, "return_train_score": True}
    estimator = wf.TabularClassifier(method, **TINY)
    ours = wf.RandomizedSweepCV(estimator, space, n_jobs=n_jobs, **settings).fit(frame, y)
    theirs = RandomizedSearchCV(estimator, space, **settings).fit(frame, y)
    assert_same_search(ours, theirs)
    np.testing.assert_array_equal(ours.predict_proba(frame), theirs.predict_proba(frame))
    assert ours.feature_names_in_.tolist() == ["x", "gap", "town"]
    assert set(ours.best_params_) == set(space)


def pick_last(results: Any) -> int:
    return len(results["params"]) - 1


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"scoring": ["r2", "neg_mean_squared_error"], "refit": "r2"},
        {"refit": False},
        {"refit": pick_last},
    ],
)
def test_weights_groups_metrics_and_refitting(settings: dict[str, Any]) -> None:
    frame, _ = table()
    y = frame["x"].to_numpy() * 3
    given = {"sample_weight": np.linspace(0.1, 2, len(y)), "groups": np.arange(len(y)) % 5}
    grid = [{"lr": [0.1, 0.2]}, {"n_folds": [2], "n_ensemble": [2]}]
    estimator, cv = wf.TabularRegressor(**SMALL), GroupKFold(2)
    theirs = GridSearchCV(estimator, grid, cv=cv, **settings).fit(frame, y, **given)
    ours = wf.SweepCV(estimator, grid, cv=cv, n_jobs=1, **settings).fit(frame, y, **given)
    assert_same_search(ours, theirs)


@pytest.mark.filterwarnings(NOT_FINITE)
def test_fits_that_fail_do_so_alone() -> None:
    frame, y = table()
    grid = {"lr": [0.01, -1.0]}
    search = wf.SweepCV(wf.TabularClassifier(**SMALL), grid, cv=2, n_jobs=1)
    with pytest.warns(FitFailedWarning, match=r"2 fits failed out of a total of 4"):
        search.fit(frame, y)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    with pytest.raises(ValueError, match="The 'lr' parameter of TabularClassifier must be"):
        clone(search).set_params(error_score="raise").fit(frame, y)
    with pytest.raises(ValueError, match="Invalid parameter 'rate' for estimator"):
        wf.SweepCV(wf.TabularClassifier(**SMALL), {"rate": [1]}, cv=2, n_jobs=1).fit(frame, y)


def test_a_missing_class_is_no_mistake_in_cv() -> None:
    frame, y = table()
    y = y.astype(object)
    y[3] = None
    search = wf.SweepCV(wf.TabularClassifier(**SMALL), {"lr": [0.1]}, cv=2, n_jobs=1)
    with pytest.raises(DataError, match="got a missing one in row 4"):
        search.fit(frame, y)
    perceptron = wf.MLPClassifier(max_iter=1, device="cpu")
    with pytest.raises(TypeError, match="'<' not supported"):
        search.set_params(estimator=perceptron).fit(frame[["x"]], y)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return where the launches' networks come to be noted, by the rows of each."""
    found, init = list[list[int]](), Launched.__init__

    def noted(self: Launched, device: str, tasks: Sequence[Task], *rest: Any, **more: Any) -> None:
        found.append([len(task.rows.x) for task in tasks])
        init(self, device, tasks, *rest, **more)

    monkeypatch.setattr(Launched, "__init__", noted)
    return found


def on(device: str, **changes: Any) -> wf.TabularRegressor:
    return wf.TabularRegressor(**{**SMALL, "device": device, **changes})


def test_candidates_that_learn_alike_are_one_launch(cuda: str, launches: list[list[int]]) -> None:
    """Folds of 60 rows train on 24; a seed or an ensemble makes no other kind, and a rate does."""
    frame, _ = table()
    y, grid = frame["x"] * 3, [{"random_state": [0]}, {"n_ensemble": [2]}, {"lr": [0.1]}]
    search = wf.SweepCV(on(cuda), grid, cv=2, refit=False).fit(frame, y)
    assert launches == [[24] * 6, [24] * 2]
    slow = GridSearchCV(on("cpu"), grid, cv=2, refit=False).fit(frame, y)
    for name in ("split0_test_score", "split1_test_score"):
        np.testing.assert_allclose(
            search.cv_results_[name], slow.cv_results_[name], rtol=0.1, atol=0.05
        )
    assert (search.cv_results_["mean_fit_time"] > 0).all()


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_several_devices_take_fits_in_turn(devices: list[str]) -> None:
    frame, y = table()
    grid = {"lr": [0.1, 0.2], "random_state": [0, 1]}
    one = wf.SweepCV(wf.TabularClassifier(**SMALL), grid, cv=2, n_jobs=1).fit(frame, y)
    several = clone(one).set_params(estimator__device=devices).fit(frame, y)
    assert_same_search(several, one)
    np.testing.assert_array_equal(several.predict_proba(frame), one.predict_proba(frame))


def test_a_fit_alone_takes_one_device() -> None:
    with pytest.raises(ConfigError, match=r"expected one device, .* got \['cpu', 'cpu'\]"):
        wf.TabularClassifier(**{**SMALL, "device": ["cpu", "cpu"]}).fit(*table())


@on_emulator
def test_several_cards_take_launches_in_turn(
    monkeypatch: pytest.MonkeyPatch, launches: list[list[int]]
) -> None:
    open_cards(monkeypatch, 2)
    frame, _ = table()
    one, several = (
        wf.SweepCV(on(device, n_epochs=1), {"lr": [0.1, 0.2]}, cv=2, refit=False).fit(
            frame, frame["x"] * 3
        )
        for device in ("cuda:0", "cuda:all")
    )
    assert_same_search(several, one)
    assert sorted(map(len, launches)) == [2, 2, 2, 2]
    assert all("table_networks" in runtime._OPEN[index].launched for index in range(2))


def test_launches_have_a_largest_size(
    cuda: str, launches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpfit.estimators.joint_fits.MOST_NETWORKS", 3)
    frame, _ = table()
    grid = [{"random_state": [0]}, {"n_ensemble": [2]}]
    wf.SweepCV(on(cuda, n_epochs=1), grid, cv=2, refit=False).fit(frame, frame["x"])
    assert list(map(len, launches)) == [3, 3]


def test_folds_that_differ_are_launched_apart(cuda: str, launches: list[list[int]]) -> None:
    """Of 61 rows 40 are trained on, or twice 41, less those set aside: 32 of all, or 31 and 32,
    which are a batch and two. A town of the last row makes other shapes.
    """
    frame, _ = table(61)
    numbers, y = frame[["x", "gap"]], frame["x"] * 3
    wf.SweepCV(on(cuda), {"lr": [0.1]}, cv=3, refit=False).fit(numbers, y)
    assert launches == [[32, 32, 32]]
    launches.clear()
    wf.SweepCV(on(cuda, validation_fraction=0.21), {"lr": [0.1]}, cv=3, refit=False).fit(numbers, y)
    assert launches == [[31], [32, 32]]
    launches.clear()
    wf.SweepCV(on(cuda), {"n_folds": [None, 2]}, cv=2, refit=False).fit(numbers[:60], y[:60])
    assert launches == [[24, 24], [15, 15, 15, 15]]
    launches.clear()
    frame.loc[60, "town"] = "elsewhere"
    wf.SweepCV(on(cuda), {"random_state": [0, 1]}, cv=3, refit=False).fit(frame, y)
    assert sorted(map(len, launches)) == [2, 4]


@pytest.mark.filterwarnings(NOT_FINITE)
def test_a_network_that_diverges_among_others_fails_alone(
    cuda: str, launches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, _ = table()
    far = frame["x"].to_numpy() * 3
    begun = wf.tabular.realmlp._begun  # type: ignore[attr-defined]

    def spoilt(member: Any, *rest: Any) -> Any:
        network = begun(member, *rest)
        if member.seed == 1:
            network.linears[0].bias.data[:] = np.nan
        return network

    monkeypatch.setattr("warpfit.tabular.realmlp._begun", spoilt)
    search = wf.SweepCV(on(cuda), {"random_state": [0, 1]}, cv=2, refit=False)
    with pytest.warns(FitFailedWarning, match=r"(?s)2 fits failed.*of 4.*DivergedError"):
        search.fit(frame, far)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    assert [len(each) for each in launches] == [4, 1, 1, 1, 1]


def test_fits_with_a_time_limit_train_alone(
    cuda: str, launches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched, "STEPS_AT_ONCE", 1)
    frame, _ = table()
    search = wf.SweepCV(on(cuda, time_limit=1e-9, n_folds=2), {"lr": [0.1]}, cv=2, refit=False)
    with pytest.warns(TrainingWarning, match="1 of 2 epochs"):
        search.fit(frame, frame["x"])
    assert [len(each) for each in launches] == [2, 2]


def test_ctrl_c_ends_the_search(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Launched) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Launched, "epochs", interrupted)
    frame, _ = table()
    with pytest.raises(KeyboardInterrupt):
        wf.SweepCV(on(cuda), {"lr": [0.1]}, cv=2, refit=False).fit(frame, frame["x"])


def four_fits(device: str) -> Fits:
    """Return what a search of two candidates by two folds has done."""
    frame, _ = table()
    found: list[Fits] = []
    search = wf.SweepCV(on(device), {"random_state": [0, 1]}, cv=2, n_jobs=1, refit=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "fit_together", lambda fits: found.append(fits) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search.fit(frame, frame["x"])
    return found[0]


def test_threads_that_are_told_to_stop_end_the_search() -> None:
    fits, stop = four_fits("cpu"), Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        searches.fit_together(fits, stop)
    assert len(searches.fit_together(fits)) == 4


@pytest.mark.parametrize("is_stopped", [False, True])
def test_fits_with_no_memory_for_all_train_alone_until_a_stop(
    cuda: str, launches: list[list[int]], monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    fits, stop, init = four_fits(cuda), Event(), Launched.__init__

    def crowded(
        self: Launched, device: str, tasks: Sequence[Task], *rest: Any, **more: Any
    ) -> None:
        if len(tasks) > 1:
            stop.set()
            raise MemoryError
        init(self, device, tasks, *rest, **more)

    monkeypatch.setattr(Launched, "__init__", crowded)
    if is_stopped:
        with pytest.raises(KeyboardInterrupt):
            searches.fit_together(fits, stop)
        assert not launches
    else:
        results = searches.fit_together(fits)
        assert [each["fit_error"] for each in results] == [None] * 4
        assert launches == [[24]] * 4


def test_rows_of_few_folds_are_in_memory_at_once() -> None:
    frame, alive = table()[0], list[int]()

    def counted(estimator: Any, X: Any, y: Any) -> float:
        gc.collect()
        frames = (each for each in gc.get_objects() if isinstance(each, pd.DataFrame))
        alive.append(sum(len(each) == 50 for each in frames))
        return 0.0

    estimator = on("cpu", n_epochs=1, hidden_layer_sizes=4)
    search = wf.SweepCV(estimator, {"lr": [0.1]}, cv=6, scoring=counted, n_jobs=1, refit=False)
    search.fit(frame, frame["x"])
    assert alive
    assert max(alive) <= 2


def test_an_executors_workers_give_the_same() -> None:
    frame, y = table()
    search = wf.SweepCV(wf.TabularClassifier(**SMALL), {"lr": [0.02, 0.1]}, cv=2, n_jobs=1)
    one = clone(search).fit(frame, y)
    with ThreadPoolExecutor(1) as executor:
        assert_same_search(search.set_params(executor=executor, n_jobs=2).fit(frame, y), one)


@pytest.mark.filterwarnings(NOT_FINITE)
def test_a_short_search_stays_on_the_cpu_and_a_long_one_is_on_a_gpu_as_a_whole(
    cuda: str, launches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WARPFIT_DEVICE")
    frame, _ = table()
    search = wf.SweepCV(on("auto"), {"lr": [0.1]}, cv=2, n_jobs=1).fit(frame, frame["x"])
    assert "s are expected on a CPU, and" in search.place_
    assert search.best_estimator_.device == "auto"
    assert not launches
    named = wf.SweepCV(on("auto"), {"device": ["cpu"]}, cv=2, n_jobs=1, refit=False)
    assert named.fit(frame, frame["x"]).place_ == ""
    assert not launches
    monkeypatch.setattr("warpfit.tabular.searching.CPU_FACTOR", 1e6)
    assert search.set_params(refit=False).fit(frame, frame["x"]).place_ == ""
    assert launches == [[24] * 2]
    launches.clear()
    search.set_params(param_grid={"n_ensemble": [1, "x"]})
    with pytest.warns(FitFailedWarning, match=r"2 fits failed out of a total of 4"):
        search.fit(frame, frame["x"])
    assert launches == [[24] * 2]
