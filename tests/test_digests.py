"""The short tables, of results that nobody measured."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "gpu": "a card",
    "commit": "0123456789abcdef",
    "date": "today",
    "cores": 2,
    "cpu": "a processor",
}


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which lives beside the benchmarks and imports them by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("digests")


def us(median: float) -> dict[str, Any]:
    return {"us": {"median": median, "min": median, "max": median}}


def test_widths_are_those_of_three_layers(digests: Any) -> None:
    programs = {
        "warpfit float16": us(5.25),
        "jax_scan_8 bfloat16": us(40.0),
        "torch_graph bfloat16": us(123.4),
    }
    row = {"plan": "one_launch runs it", "programs": programs, "ratio": {"float16": 7.62}}
    lines = digests.widths_short(
        {"environment": ENVIRONMENT, "rows": {"h=128": row, "4x1024": row}}
    ).splitlines()
    assert lines[2:] == [
        "| 128 | one_launch | 5.2 | 40.0 | 123 | **7.6** |",
        "",
        "a card, commit 0123456789ab, today.",
    ]


def test_the_ladder_leaves_out_what_did_not_run(digests: Any) -> None:
    record = {"title": "NumPy", "is_peer": False, "ms_per_epoch": 900.0, "is_scaled": False, "reason": ""}
    record |= {"gain": None, "gain_over_first": None, "device_ms": None}
    quick = {**record, "title": "one launch", "ms_per_epoch": 9.0, "gain": 2.0, "gain_over_first": 100.0}
    quick |= {"device_ms": 8.0}
    peer = {**quick, "title": "PyTorch", "is_peer": True, "is_scaled": True, "gain": None, "device_ms": None}
    missing = {**record, "title": "JAX", "reason": "it is not installed"}
    found = {"network": "6-2", "batch": 8, "data": "data", "records": [record, quick, peer, missing]}
    text = digests.ladder_short({"environment": ENVIRONMENT, "networks": {"mlp": found}})
    assert text.startswith(
        "![Milliseconds an epoch, rung by rung](docs/images/ladder.png)\n\n| 6-2, batch 8, data |"
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:7]]
    assert [row[0] for row in rows] == ["NumPy", "one launch", "*PyTorch*"]
    assert [row[1].endswith("*") for row in rows] == [False, False, True]
    assert "JAX" not in text


def test_an_epoch_has_its_last_batch(digests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {"float16": {"median": 200.0}, "numpy": {"median": 1000.0}}
    monkeypatch.setattr(
        digests,
        "_other",
        lambda name: {"environment": ENVIRONMENT, "mlp": {str(b): layer for b in digests.BATCHES}},
    )
    rows = {f"784-256-10/{batch}": {"programs": {"warpfit float16": us(2.0)}} for batch in digests.BATCHES}
    results = {"environment": ENVIRONMENT, "rows": rows}
    assert "| 64 | 938 | 2.00 | 31 | 1.9 ms | 0.19 s | 0.94 s |" in digests.batch_sizes(results)
    assert "| 8 | 2.00 | 200 | **100** |" in digests.engines(results)


def test_without_a_gpu_the_processor_is_named(digests: Any) -> None:
    cpu = {name: value for name, value in ENVIRONMENT.items() if name != "gpu"}
    assert digests._card({"environment": cpu}).startswith("\n2 cores of an a processor (shared machine)")
