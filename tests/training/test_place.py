"""Where a run of device 'auto' is trained, and where an estimator predicts."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import warpfit as wf
from support.devices import no_gpu
from support.sweeps import build
from support.training import Taped, adam, blobs, mlp, sgd
from warpfit import backends, nn
from warpfit.errors import WarpfitError
from warpfit.training.place import (
    RunCosts,
    expected_seconds,
    place_of,
    place_of_many,
    predicting_place,
    read_prices,
    run_costs,
    widths_of,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHORT: dict[str, Any] = {"num_rows": 150, "batch_size": 150, "epochs": 100}
X, LABELS = blobs(50)


@pytest.fixture
def open_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 'auto' be chosen, and fail where it is asked whether there is a GPU."""
    monkeypatch.delenv("WARPFIT_DEVICE")

    def asked() -> str:
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr(backends, "_found_device", asked)


@pytest.mark.usefixtures("open_choice")
class TestChosen:
    def test_short_runs_stay_on_the_cpu_and_say_why(self) -> None:
        place = place_of("auto", (4, 100, 3), **SHORT)
        assert place.device == "cpu"
        assert re.fullmatch(
            r"device 'auto': 0\.0\d+ s are expected on a CPU, and 1 s on a GPU, compilation "
            r"included",
            place.reason,
        )

    @pytest.mark.parametrize(
        ("widths", "changes"),
        [
            ((784, 256, 10), {"num_rows": 60_000, "batch_size": 128, "epochs": 10}),
            ((4, 100, 3), {"epochs": 100_000}),
            ((4, 100, 3), {"num_validated": 1_000_000}),
            ((4, 100, 3), {"engine": "one_launch"}),
            ((4, 100, 3), {"precision": "bfloat16"}),
            (None, {}),
        ],
    )
    def test_others_go_where_they_went(self, widths: Any, changes: dict[str, Any]) -> None:
        assert place_of("auto", widths, **{**SHORT, **changes}) == ("auto", "")

    @pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
    def test_a_device_that_is_named_stays(self, device: str) -> None:
        assert place_of(device, (4, 100, 3), **SHORT) == (device, "")

    def test_the_environment_names_one_as_well(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WARPFIT_DEVICE", "cuda:1")
        assert place_of("auto", (4, 100, 3), **SHORT) == ("auto", "")

    def test_auto_in_the_environment_leaves_it_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = place_of("auto", (4, 100, 3), **SHORT)
        monkeypatch.setenv("WARPFIT_DEVICE", "auto")
        assert place_of("auto", (4, 100, 3), **SHORT) == expected
        assert expected.device == "cpu"

    def test_few_rows_are_predicted_on_the_cpu(self) -> None:
        assert predicting_place("auto", (64, 100, 10), 1797) == "cpu"
        assert predicting_place("auto", (784, 256, 10), 60_000) == "auto"
        assert predicting_place("cuda", (64, 100, 10), 1) == "cuda"

    def test_fit_tells_it_in_its_plan(self) -> None:
        model = mlp(6, 8, 3)
        plan = wf.fit(model, X, LABELS, optimizer=adam(model), epochs=1, verbose=False).plan
        assert (plan.device, plan.engine) == ("cpu", "layerwise")
        assert plan.reason.startswith("device 'auto': ")

    def test_runs_with_checkpoints_have_the_place_of_long_ones(self, tmp_path: Path) -> None:
        model = mlp(6, 8, 3)
        settings: dict[str, Any] = {"optimizer": adam(model), "epochs": 1, "verbose": False}
        with pytest.raises(AssertionError, match="asked for a GPU"):
            wf.fit(model, X, LABELS, callbacks=[wf.Checkpoint(tmp_path / "c")], **settings)
        with pytest.raises(AssertionError, match="asked for a GPU"):
            wf.fit(model, X, LABELS, resume_from=tmp_path / "c", **settings)

    def test_rows_to_validate_on_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def seen(device: str, widths: Any, **settings: Any) -> Any:
            asked.update(settings, widths=widths)
            return place_of("cpu", widths, **settings)

        monkeypatch.setattr(import_module("warpfit.training.fit"), "place_of", seen)
        model = mlp(6, 8, 3)
        settings: dict[str, Any] = {"optimizer": adam(model), "epochs": 3, "verbose": False}
        wf.fit(model, X, LABELS, validation_data=(X[:7], LABELS[:7]), **settings)
        assert asked["widths"] == (6, 8, 3)
        assert (asked["num_rows"], asked["num_validated"], asked["epochs"]) == (50, 7, 3)

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_an_estimator_fits_predicts_and_scores_without_a_gpu(self) -> None:
        rows, labels = load_iris(return_X_y=True)
        for settings in ({}, {"solver": "lbfgs"}):
            model = wf.MLPClassifier((8,), max_iter=50, random_state=0, **settings)
            model.fit(rows, labels)
            asked = wf.MLPClassifier(**{**model.get_params(), "device": "cpu"}).fit(rows, labels)
            for own, expected in zip(model.coefs_, asked.coefs_, strict=True):
                np.testing.assert_array_equal(own, expected)
            assert model.coefs_[0].dtype == np.float64
            assert model.score(rows, labels) == asked.score(rows, labels)

    def test_a_partial_fit_counts_as_one_of_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows, labels = np.zeros((3000, 60), np.float32), np.arange(3000) % 2
        model = wf.MLPClassifier((200, 200))
        with pytest.raises(AssertionError, match="asked for a GPU"):
            model.partial_fit(rows, labels, classes=[0, 1])
        assert model.set_params(max_iter=1).partial_fit(rows, labels, classes=[0, 1]).n_iter_ == 1

    @pytest.mark.parametrize(
        ("num_runs", "num_processes", "chosen", "where"),
        [
            (3, 1, 1, "on a CPU, and 1.8 s"),
            (3, 16, 1, "on a CPU, and 1.8 s"),
            (40, 16, 16, "in 16 processes of the CPU, and 11 s"),
        ],
    )
    def test_many_runs_stay_on_the_cpu_before_their_kernels_are_compiled(
        self, num_runs: int, num_processes: int, chosen: int, where: str
    ) -> None:
        costs = run_costs((64, 100, 10), 1200, 200, 100)
        runs = [RunCosts(costs, idx) for idx in range(num_runs)]
        place = place_of_many("auto", runs, num_processes)
        assert place[::2] == ("cpu", chosen)
        assert where in place.reason
        kernels = f"compilation of {num_runs} kernels included"
        assert place.reason.startswith("device 'auto': ")
        assert place.reason.endswith(kernels)

    def test_many_runs_of_a_kernel_go_to_the_gpu(self) -> None:
        run = RunCosts(run_costs((64, 100, 10), 1200, 200, 100), "one kernel")
        for device, runs in (
            ("auto", [run] * 200),
            ("auto", []),
            ("auto", [run, None]),
            ("cuda", [run]),
            ("cpu", [run]),
        ):
            assert place_of_many(device, runs, 16) == (device, "", 0)

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_a_search_weighs_all_of_its_fits(self) -> None:
        rows, labels = load_iris(return_X_y=True)
        grid = {"hidden_layer_sizes": [(4,), (8,)]}
        settings: dict[str, Any] = {"max_iter": 5, "random_state": 0}
        found = wf.SweepCV(wf.MLPClassifier(**settings), grid, cv=2, n_jobs=1).fit(rows, labels)
        assert found.place_.startswith("device 'auto': ")
        assert found.place_.endswith("compilation of 2 kernels included")
        assert found.estimator.device == "auto"
        here = wf.MLPClassifier(device="cpu", **settings)
        asked = wf.SweepCV(here, grid, cv=2, n_jobs=1).fit(rows, labels)
        assert asked.place_ == ""
        for name in ("split0_test_score", "split1_test_score"):
            np.testing.assert_array_equal(found.cv_results_[name], asked.cv_results_[name])
        for changes in ({"max_iter": 100_000}, {"engine": "one_launch"}, {"solver": "lbfgs"}):
            long = wf.MLPClassifier(**{**settings, **changes})
            search = wf.SweepCV(long, grid, cv=2, n_jobs=1, error_score="raise")
            with pytest.raises(AssertionError, match="asked for a GPU"):
                search.fit(rows, labels)

    def test_fit_many_weighs_all_networks(self) -> None:
        settings: dict[str, Any] = {"folds": 2, "n_jobs": 1, "verbose": False}
        grid = {"width": [4, 8], "lr": [0.1, 0.2]}
        sweep = wf.fit_many(build, X, LABELS, grid=grid, epochs=2, **settings)
        assert sweep.plan.device == "cpu"
        assert sweep.plan.reason.startswith("device 'auto': ")
        assert "compilation of 2 kernels included; one network after" in sweep.plan.reason
        by_layer = {"layer": [nn.ReLU(), nn.Tanh(), nn.Dropout(0.1), nn.Dropout(0.2)]}
        of_kinds = wf.fit_many(of_layer, X, LABELS, grid=by_layer, epochs=1, **settings)
        assert "compilation of 3 kernels included" in of_kinds.plan.reason
        asked = wf.fit_many(build, X, LABELS, grid=grid, epochs=2, device="cpu", **settings)
        assert [r["val_loss"] for r in sweep.records] == [r["val_loss"] for r in asked.records]
        for changes in ({"epochs": 100_000}, {"engine": "one_launch"}):
            with pytest.raises(AssertionError, match="asked for a GPU"):
                wf.fit_many(build, X, LABELS, grid=grid, **settings, **changes)

    def test_networks_that_are_trained_together_go_where_they_went(self) -> None:
        rows, labels = load_iris(return_X_y=True)
        with pytest.raises(AssertionError, match="asked for a GPU"):
            wf.MLPClassifier((8,), n_ensemble=2, max_iter=2).fit(rows, labels)


def test_a_long_run_without_a_gpu_is_on_the_cpu_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_gpu(monkeypatch)
    model = mlp(6, 8, 3)
    with pytest.warns(wf.errors.DeviceWarning, match="device 'auto' is the CPU"):
        plan = wf.fit(
            model,
            X,
            LABELS,
            optimizer=adam(model),
            epochs=100_000,
            callbacks=[StopsAtOnce()],
            verbose=False,
        ).plan
    assert plan.reason == "on the CPU there is one engine, layerwise"


def of_layer(candidate: dict[str, Any]) -> Any:
    return nn.Sequential(nn.Linear(6, 8), candidate["layer"], nn.Linear(8, 3)), "adam"


class StopsAtOnce(wf.Callback):
    def on_epoch_end(self, run: wf.Run) -> None:
        run.stop("seen enough")


# -- costs and prices ------------------------------------------------------------------------------


def test_widths_of_chains_of_linear_layers() -> None:
    assert widths_of(mlp(6, 8, 3).spec((6,))) == (6, 8, 3)
    dropping = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 2))
    assert widths_of(dropping.spec((4,))) == (4, 5, 2)
    for model in (
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 5)),
    ):
        assert widths_of(model.spec((4,))) is None
    assert widths_of(Taped) is None


def test_costs_of_a_run() -> None:
    assert run_costs((4, 10, 3), num_rows=25, batch_size=10, epochs=2, num_validated=30) == {
        "epoch": 2,
        "step": 6,
        "layer": 12,
        "parameter": pytest.approx(6 * (40 + 10 + 30 + 3) / 1e3),
        "number": pytest.approx(2 * 35 * 17 / 1e3),
        "product": pytest.approx(2 * 35 * 6 * 70 / 1e6),
    }


def test_each_cost_has_a_price_of_a_day_and_a_machine() -> None:
    costs = run_costs((4, 10, 3), 25, 10, 2).keys()
    found = read_prices()
    assert (BENCHMARKS.parent / found["script"].split()[0]).is_file()
    assert found["cpu"]["microseconds"].keys() == {*costs, "processes"}
    assert found["gpu"]["microseconds"].keys() == {*costs, "call", "compilation", "kernel"}
    for own in (found["cpu"], found["gpu"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", own["date"])
        assert own["of"]
        assert all(price >= 0 for price in own["microseconds"].values())
    prices = found["cpu"]["microseconds"]
    expected = (2 * prices["epoch"] + 3 * prices["layer"]) / 1e6
    assert expected_seconds("cpu", {"epoch": 2, "layer": 3}) == pytest.approx(expected)


def test_the_script_finds_the_prices_that_runs_were_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = import_module("run_costs")
    prices = dict(zip(run_costs((1, 1), 1, 1, 1), (300.0, 7.0, 90.0, 4.0, 3.0, 5.0), strict=True))
    rows = []
    for case in script.CASES:
        costs = run_costs(case.sizes, case.rows, case.batch, case.epochs)
        seconds = sum(prices[name] * count for name, count in costs.items()) / 1e6
        rows.append({"seconds": seconds, "costs": costs})
    path = tmp_path / "prices.json"
    monkeypatch.setattr("warpfit.training.place.PRICES", path)
    environment = {"cpu": "of some kind", "date": "2026-12-01 10:00 UTC"}
    script.write_prices({"environment": environment, "rows": rows})
    found = json.loads(path.read_text())
    assert (found["cpu"]["of"], found["cpu"]["date"]) == ("of some kind", "2026-12-01")
    assert found["cpu"]["microseconds"] == pytest.approx(
        {**prices, **script.OF_MANY["cpu"]}, rel=1e-3
    )
    assert found["gpu"]["microseconds"]["compilation"] == script.OF_A_FIT["compilation"]


@pytest.mark.parametrize("name", ["device", "engine", "precision"])
@pytest.mark.parametrize("value", [np.empty(0), np.zeros(2), 3])
def test_what_is_no_name_is_refused_by_what_checks_it(name: str, value: Any) -> None:
    model = mlp(6, 8, 3)
    with pytest.raises(WarpfitError):
        wf.fit(model, *blobs(20), optimizer=sgd(model), verbose=False, **{name: value})
