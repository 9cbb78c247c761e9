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


def test_how_fast_has_the_best_peer_of_each_row(
    digests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(network: str, batch: int, ours: float, theirs: float, **more: Any) -> dict[str, Any]:
        programs = {
            "warpfit float16": us(ours) | {"first_call": 0.1},
            "jax_scan_8 bfloat16": us(theirs) | {"first_call": 3.0},
            "torch_graph tf32": us(30.0) | {"first_call": 2.0},
            "torch_eager tf32": {"reason": "no time left", "first_call": 0.0},
        }
        best = {"best_peer": "jax_scan_8 bfloat16", "ratio": {"float16": theirs / ours}}
        return {"network": network, "batch": batch, "programs": programs, **best, **more}

    spread = {"median": 0.9798}
    fit = {
        "warpfit_seconds": {"median": 0.2},
        "sklearn_seconds": {"median": 29.93},
        "sklearn_epochs": 10,
    }
    many = row("784-128-10", 64, 0.08, 0.8, networks=1024, best_peer="jax_vmap bfloat16")
    many["programs"]["jax_vmap bfloat16"] = us(0.8)
    files = {
        "widths": {"rows": {"h=4096": row("784-4096-10", 32, 187.4, 220.9)}},
        "sweep": {"rows": {"784-128-10/64x1024": many}},
        "estimators": {
            "parts": {
                "gpu": {
                    "environment": ENVIRONMENT,
                    "rows": {"adam": fit | {"speed": {"median": 149.2}}},
                }
            }
        },
        "tables": {
            "tables": {
                "magic": {
                    name: {"wall_s": {"median": seconds}}
                    for name, seconds in (
                        ("warpfit realmlp", 0.34),
                        ("lightgbm", 0.9),
                        ("xgboost", 0.722),
                        ("catboost", 2.45),
                        ("scikit-learn hist", 0.8),
                    )
                }
            }
        },
        "scaling": {
            "8 devices": {
                "fast": {"resnet/512": {"8": {"us": 619.7}}},
                "peers": {
                    "resnet/512 on 8": {
                        "one": {"us": 1693.0},
                        "eager": {"us": 1988.4},
                        "compile": {"us": 2829.6},
                    }
                },
            }
        },
        "prompt": {
            "command": "warpfit train --epochs 4 --batch-size 64",
            "accuracy": spread,
            "caches": {
                "empty": {"seconds": {"median": 1.377}},
                "warm": {"seconds": {"median": 0.925}},
            },
        },
    }
    monkeypatch.setattr(digests, "_other", lambda name: {"environment": ENVIRONMENT, **files[name]})
    results = {
        "environment": ENVIRONMENT,
        "rows": {"784-256-10/64": row("784-256-10", 64, 3.264, 22.78)},
    }
    assert digests.how_fast(results).splitlines()[2:] == [
        "| small network | 784-256-10, batch 64, a step | 3.26 µs | 22.8 µs | "
        "JAX scan, unroll=8, bfloat16 | **7.0** |",
        "| wide network | 784-4096-10, batch 32, a step | 187 µs | 221 µs | "
        "JAX scan, unroll=8, bfloat16 | **1.2** |",
        "| sweep | 1,024 times 784-128-10, batch 64, a step | 0.0800 µs | 0.800 µs | "
        "JAX vmap over scan, bfloat16 | **10.0** |",
        "| estimators | `MLPClassifier`, Adam, 10 epochs of MNIST | 0.200 s | 29.9 s | "
        "scikit-learn, 2 CPU cores | **149** |",
        "| tables | RealMLP, 12,172 rows, 256 epochs | 0.340 s | 0.722 s | "
        "XGBoost, 1,000 trees, 2 CPU cores | **2.1** |",
        "| 8 GPUs | ResNet-18-like, 4,096 images, a step | 620 µs | 1,988 µs | PyTorch DDP "
        "| **3.2** |",
        # Of 2.0 s and 4 x 938 steps of 30 µs 2.11 s; never told as more than it is.
        "| prompt to model | MNIST, 97.98%, cold (warm 0.925 s) | 1.38 s | "
        "over 2.1 s | PyTorch compile + CUDA graph, tf32 | **over 1.5** |",
        "",
        "a card, today to today; medians.",
    ]


def test_one_epoch_stands_beside_itself(digests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"NumPy float32": 1.0613, "one_launch float16": 0.00304}
    rows = {
        name: {"mean": {"epoch_seconds": {"median": seconds}}} for name, seconds in report.items()
    }
    ladder = {"numpy": 500.0, "torch-preloaded": 768.0, "one-launch": 2.5}
    records = [{"name": name, "ms_per_epoch": ms} for name, ms in ladder.items()]
    train = {
        "warpfit NumPy float32": 0.6,
        "torch_eager float32": 0.9,
        "warpfit one_launch float16": 0.003,
    }
    programs = {name: {"epoch_seconds": seconds} for name, seconds in train.items()}
    ours = {"torch_eager float32": us(1400.0), "warpfit float16": us(3.2)}
    files = {
        "layerwise": {
            "mlp": {"64": {"numpy": {"median": 1000.0}, "torch_eager": {"median": 900.0}}}
        },
        "train": {"rows": {"64": {"programs": programs}}},
        "ladder": {"networks": {"mlp": {"records": records}}},
        "one_launch": {"rows": {"784-256-10/64": {"programs": ours}}},
    }
    monkeypatch.setattr(digests, "_other", lambda name: {"environment": ENVIRONMENT, **files[name]})
    table = digests.one_epoch({"environment": ENVIRONMENT, "rows": rows})
    assert table.splitlines()[2:] == [
        "| `warpfit bench layerwise` | today | 938 ms | 844 ms | - | - |",
        "| `warpfit bench one-launch` | today | - | 1,313 ms | 3.00 ms | - |",
        "| `warpfit bench report-run` | today | 1,061 ms | - | 3.04 ms | 349 |",
        "| `warpfit bench train` | today | 600 ms | 900 ms | 3.00 ms | 200 |",
        "| `warpfit bench ladder` | today | 500 ms | 768 ms | 2.50 ms | 200 |",
    ]


def test_an_epoch_has_its_last_batch(digests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {"float16": {"median": 200.0}, "numpy": {"median": 1000.0}}
    monkeypatch.setattr(
        digests,
        "_other",
        lambda name: {"environment": ENVIRONMENT, "mlp": {str(b): layer for b in digests.BATCHES}},
    )
    rows = {
        f"784-256-10/{batch}": {"programs": {"warpfit float16": us(2.0)}}
        for batch in digests.BATCHES
    }
    results = {"environment": ENVIRONMENT, "rows": rows}
    assert "| 64 | 938 | 2.00 | 31 | 1.9 ms | 0.19 s | 0.94 s |" in digests.batch_sizes(results)
    assert "| 8 | 2.00 | 200 | **100** |" in digests.engines(results)


def test_without_a_gpu_the_processor_is_named(digests: Any) -> None:
    cpu = {name: value for name, value in ENVIRONMENT.items() if name != "gpu"}
    assert digests._card({"environment": cpu}).startswith(
        "\n2 cores of an a processor (shared machine)"
    )
