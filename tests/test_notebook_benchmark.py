"""The benchmark of the demo notebook, at positions of the sliders that take no time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from warpfit.apps.notebook import DemoSettings, Trainer
from warpfit.apps.notebook.trainer import FEW_ROWS, MANY_ROWS, Choices

ROOT = Path(__file__).resolve().parents[1]
QUICK = Choices(widths=(8, 16), batch_sizes=(64, 128), largest_depth=2, epochs=1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module, which lives beside the others and imports them by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("notebook")


@pytest.mark.parametrize("choices", [FEW_ROWS, MANY_ROWS])
def test_every_slider_is_moved_to_its_ends(bench: Any, choices: Choices) -> None:
    settings = bench.settings_of(choices).values()
    assert {choices.widths[0], choices.widths[-1]} < {each.width for each in settings}
    assert {choices.batch_sizes[0], choices.batch_sizes[-1]} < {
        each.batch_size for each in settings
    }
    assert {0, choices.largest_depth} < {each.depth for each in settings}


def test_what_is_measured_becomes_a_table(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TIMES", 2)
    trainer = Trainer(device="cpu", choices=QUICK)
    rows = {
        "small": bench.measure(trainer, DemoSettings(width=8)),
        "wild": bench.measure(trainer, DemoSettings(lr=1e30)),
    }
    assert rows["small"]["steps"] == 23
    assert rows["small"]["seconds"]["min"] <= rows["small"]["seconds"]["max"]
    part = {"environment": bench.environment(), "data": "digits", "rows": rows}
    table = import_module("digests").notebook({"devices": {"cpu": part}}).splitlines()
    assert table[2].startswith("| small | 64-8-10 | layerwise | 23 | ")
    assert table[3].startswith("| wild | the loss or a weight is not finite in epoch 1")
    assert {line.count("|") for line in table[:4]} == {8}
