"""Where tables are trained when the device is left open: by sizes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from warpfit import TabularRegressor
from warpfit.tabular import methods
from warpfit.tabular.place import predicted_on, trained_on
from warpfit.tabular.tabm import LIKELY_EPOCHS
from warpfit.training.place import expected_seconds, run_costs

WIDTHS = (40, 256, 256, 256, 2)
RUN: dict[str, int] = {"num_rows": 800, "num_validated": 200, "batch_size": 256}


@pytest.fixture(autouse=True)
def open_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARPFIT_DEVICE", raising=False)


def test_short_fits_stay_on_the_cpu_and_long_ones_do_not() -> None:
    assert trained_on("auto", WIDTHS, **RUN, epochs=4).device == "cpu"
    assert trained_on("auto", WIDTHS, **RUN, epochs=256).device == "auto"
    few = {**RUN, "num_rows": 100_000}
    assert trained_on("auto", WIDTHS, **few, epochs=4).device == "auto"


def test_all_networks_of_a_bag_count() -> None:
    most = max(
        epochs
        for epochs in range(1, 200)
        if trained_on("auto", WIDTHS, **RUN, epochs=epochs).device == "cpu"
    )
    assert trained_on("auto", WIDTHS, **RUN, epochs=8 * most).device == "auto"
    assert expected_seconds("cpu", run_costs(WIDTHS, 800, 256, most, 200)) < 1


def test_a_device_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained_on("cuda", WIDTHS, **RUN, epochs=1).device == "cuda"
    assert predicted_on("cuda", WIDTHS, 1) == "cuda"
    monkeypatch.setenv("WARPFIT_DEVICE", "cuda")
    assert trained_on("auto", WIDTHS, **RUN, epochs=1).device == "auto"


def test_few_rows_are_predicted_on_the_cpu() -> None:
    assert predicted_on("auto", WIDTHS, 1) == "cpu"
    assert predicted_on("auto", WIDTHS, 1_000_000) == "auto"


def test_an_estimator_trains_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def train(members: Any, training: Any) -> Any:
        asked.append(training.device)
        return known.train(members, replace(training, device="cpu"))

    known = methods.METHODS["realmlp"]
    monkeypatch.setitem(methods.METHODS, "realmlp", replace(known, train=train))
    x = np.random.default_rng(0).normal(size=(40, 2))
    settings = {"n_epochs": 1, "hidden_layer_sizes": 4, "random_state": 0}
    TabularRegressor(**settings).fit(x, x[:, 0])
    monkeypatch.setattr("warpfit.tabular.place.CPU_FACTOR", 1e6)
    monkeypatch.setattr("warpfit.tabular.estimator.predicted_on", lambda *_: "cpu")
    TabularRegressor(**settings).fit(x, x[:, 0])
    assert asked == ["cpu", "auto"]


@pytest.mark.parametrize(("asked", "priced"), [(None, LIKELY_EPOCHS), (1, 1)])
def test_epochs_that_patience_leaves_out_have_no_price(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, priced: int
) -> None:
    found: list[int] = []

    def noted(device: str, widths: Any, *, epochs: int, **sizes: int) -> Any:
        found.append(epochs)
        raise EndedError

    class EndedError(Exception):
        pass

    monkeypatch.setattr("warpfit.tabular.estimator.trained_on", noted)
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = TabularRegressor("tabm", n_epochs=asked, n_ensemble=3, random_state=0)
    with pytest.raises(EndedError):
        model.fit(x, x[:, 0])
    assert found == [3 * priced]
