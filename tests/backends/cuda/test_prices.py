"""Prices of a step's costs: a file for each card, by which plans choose, and the script that fits
it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_variants.runs import ADAM, MOMENTUM, images_of, lenet, network_of
from warpfit.backends import Activation
from warpfit.backends.cuda.cards import CARDS
from warpfit.backends.cuda.image_shapes import Convolution
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.backends.cuda.one_launch_layers_layout import LayersLaunch
from warpfit.backends.cuda.one_launch_small_sm90 import SmallLaunch
from warpfit.backends.cuda.prices import CARD, expected_microseconds, read_prices
from warpfit.backends.cuda.resident_launch import ResidentLaunch
from warpfit.engines.launch_plan import _chosen
from warpfit.errors import ConfigError

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
KERNELS = {
    "one_launch": (784, 64, 10),
    "one_launch_layers": (784, 64, 64, 10),
    "one_launch_card": (784, 512, 512, 512, 10),
    "one_launch_small_sm90": (37, 53, 17, 3),
    "one_launch_images": (),
}


def launch_of(widths: tuple[int, ...]) -> ResidentLaunch:
    """Return the launch of a network, LeNet-5 of no widths, on an H200."""
    found = _chosen(network_of(*widths) if widths else lenet(), CARDS["h200"], False)
    assert isinstance(found, ResidentLaunch)
    return found


def test_the_file_says_of_which_card_and_when() -> None:
    found = read_prices(CARD)
    assert found["card"] == "NVIDIA H200"
    assert (BENCHMARKS.parent / found["script"].split()[0]).is_file()
    assert found["kernels"].keys() == KERNELS.keys()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", own["date"]) for own in found["kernels"].values())


def test_several_cards_cost_more_than_their_rows() -> None:
    network = network_of(*KERNELS["one_launch_layers"])
    alone, shared = (
        choose_layers(replace(network, batch=512 * cards, cards=cards), "sm_90a", 232448, 132)
        for cards in (1, 2)
    )
    assert isinstance(alone, LayersLaunch)
    assert isinstance(shared, LayersLaunch)
    assert alone.costs_of_cards == {}
    assert shared.costs_of_cards.keys() == {"cards", "byte between cards"}
    assert shared.microseconds > expected_microseconds(shared.kernel, shared.costs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_cost_has_a_price(kernel: str) -> None:
    launch = launch_of(KERNELS[kernel])
    assert launch.kernel == kernel
    known = read_prices()["kernels"][kernel]["nanoseconds"]
    more = {"meeting", "cards", "byte between cards"} if kernel == "one_launch_layers" else set()
    assert launch.costs.keys() | more == known.keys()
    expected = sum(known[name] * count for name, count in launch.costs.items()) / 1000
    assert (
        launch.microseconds
        == expected_microseconds(kernel, launch.costs)
        == pytest.approx(expected)
    )


def test_the_script_finds_the_prices_that_steps_were_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script, path = import_module("launch_costs"), tmp_path / "h200.json"
    prices, rng, rows = {"step": 600.0, "product": 40.0, "byte": 0.25}, np.random.default_rng(0), []
    for _ in range(12):
        costs = {
            "step": 1.0,
            "product": float(rng.integers(1, 99)),
            "byte": float(rng.integers(1, 9999)),
        }
        least = sum(prices[name] * count for name, count in costs.items()) / 1000
        rows.append({"kernel": "one_launch", "costs": costs, "microseconds": {"min": least}})
    other = {"date": "2026-11-22", "nanoseconds": {"matrix": 72.3}}
    before: dict[str, Any] = {
        "one_launch": {"nanoseconds": {"meeting": 3.0}},
        "one_launch_layers": other,
    }
    path.write_text(json.dumps({"kernels": before}))
    environment = {"gpu": "NVIDIA H200", "date": "2026-12-01 10:00 UTC"}
    rows += [{**row, "kernel": "one_launch_layers"} for row in rows]
    script.write_prices({"environment": environment, "rows": rows}, ["one_launch"], path)
    found = json.loads(path.read_text())
    assert found["card"] == "NVIDIA H200"
    assert found["kernels"]["one_launch_layers"] == other
    own = found["kernels"]["one_launch"]
    assert own["date"] == "2026-12-01"
    assert own["nanoseconds"] == pytest.approx({"meeting": 3.0, **prices})


def test_a_kernel_without_results_is_not_fitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script, path = import_module("launch_costs"), tmp_path / "h200.json"
    environment = {"gpu": "NVIDIA H200", "date": "2026-12-01 10:00 UTC"}
    with pytest.raises(ConfigError, match=r"^expected results of one_launch_images, got none$"):
        script.write_prices({"environment": environment, "rows": []}, ["one_launch_images"], path)
    assert not path.exists()


def test_prices_of_all_kernels_that_are_measured_can_be_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert set(import_module("launch_costs").KERNELS) == set(KERNELS)


def test_runs_on_a_gpu_are_fitted_to_rows_of_plain_networks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    launches, runs = import_module("launch_costs"), import_module("run_costs")
    cases = [launches.IN_ROLES[0], launches.IN_GROUPS[0], launches.OF_IMAGES[0]]
    kernels = ["one_launch", "one_launch_small_sm90", "one_launch_images"]
    rows = [
        {"case": case.name, "kernel": kernel, "microseconds": {"min": 2.0}}
        for case, kernel in zip(cases, kernels, strict=True)
    ]
    (tmp_path / "launch_costs.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    assert len(runs.steps_of_launches()) == 1


def test_cases_that_do_not_tell_prices_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = import_module("launch_costs")
    costs = [{"step": 1.0, "group": 1.0, "product": float(count)} for count in range(1, 9)]
    rows = [{"kernel": "small", "costs": own, "microseconds": {"min": 1.0}} for own in costs]
    with pytest.raises(ConfigError, match="small that tell 3 prices apart, got 8 that tell 2"):
        script.prices_of(rows)


def test_the_cases_of_the_script_tell_prices_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script, found = import_module("launch_costs"), dict[str, list[dict[str, float]]]()
    settings = {"momentum": MOMENTUM, "adam": ADAM, "adamw": {**ADAM, "decays": True}}
    settings |= {"sgd": {}, "rmsprop": {"optimizer": "rmsprop", "slots": 1}}
    for case in script.CASES:
        network = network_of(*case.sizes, batch=case.batch, **settings[case.optimizer])
        if case.image:
            convolutions = [
                Convolution(
                    (kernel, kernel), (padding, padding), channels, Activation("relu"), pool
                )
                for kernel, padding, channels, pool in case.convolutions
            ]
            own = images_of(case.image, convolutions, *case.sizes[1:])
            assert own.widths == network.widths
            network = replace(network, image=own.image, convolutions=own.convolutions)
        launch = _chosen(network, CARDS["h200"], False)
        if case.layout is not None:
            launch = SmallLaunch(network, *case.layout)
            assert launch.fits(CARDS["h200"].max_shared_bytes)
        if isinstance(launch, ResidentLaunch):
            found.setdefault(launch.kernel, []).append(launch.costs)
    for kernel, costs in found.items():
        rows = [{"kernel": kernel, "costs": own, "microseconds": {"min": 1.0}} for own in costs]
        assert script.prices_of(rows).keys() == {kernel}
