"""What the benchmark of hops computes without a GPU: machine code, chains of waits, tables."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kernel_variants.runs import launched, network_of
from warpfit.backends.cuda import one_launch, one_launch_card, one_launch_layers

ROOT = Path(__file__).resolve().parents[1]
IN_BLOCK, IN_CLUSTER, IN_MEMORY, LOAD = 100.0, 200.0, 1000.0, 500.0


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("hops")


@pytest.fixture
def rows(hops: Any) -> list[dict[str, Any]]:
    """What might have been measured."""
    cycles = {"mbarrier": IN_BLOCK, "store_async_warp": IN_CLUSTER, "memory": IN_MEMORY}
    return [
        {
            "name": case.name,
            "cluster": case.cluster,
            "cycles": {"median": cycles.get(case.kind, LOAD)},
            "ns": {"median": cycles.get(case.kind, LOAD) / 2},
        }
        for case in hops.CASES
    ]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("kind", range(18))
def test_every_kind_compiles(hops: Any, kind: int) -> None:
    assert len(hops.KINDS) == 18
    case = next(case for case in reversed(hops.CASES) if case.kind == hops.KINDS[kind])
    assert len(hops.compiled(case, "sm_90a").code) > 1000


def test_a_step_ahead_waits_for_two_hops_of_the_cluster_and_one_of_the_block(
    hops: Any, rows: list[dict[str, Any]]
) -> None:
    launch = launched(one_launch.choose, [network_of(784, 256, 10, batch=8)])[0]
    chain = hops.chain_of(launch, rows)
    assert chain["cycles"] == 2 * IN_CLUSTER + IN_BLOCK
    assert {name: (hop["what"], hop["times"]) for name, hop in chain["hops"].items()} == {
        "parts_full": (hops.ACROSS, 1),
        "dz_full": (hops.ACROSS, 1),
        "dh_full": (hops.WITHIN, 1),
    }


@pytest.mark.slow
def test_layers_exchange_units_and_gradients(hops: Any, rows: list[dict[str, Any]]) -> None:
    three = network_of(784, 128, 128, 128, 10)
    by_layers = launched(one_launch_layers.choose_layers, [three])[0]
    assert hops.chain_of(by_layers, rows)["cycles"] == 5 * IN_CLUSTER
    on_card = launched(one_launch_card.choose_card, [network_of(784, 512, 512, 512, 10)])[0]
    # Parts of three layers' units, and gradients of two; two layers' units, their gradients, and
    # the outputs.
    assert hops.chain_of(on_card, rows)["cycles"] == 5 * IN_CLUSTER + 5 * IN_MEMORY


def test_tables_have_a_line_for_each_label_and_network(
    hops: Any, rows: list[dict[str, Any]]
) -> None:
    launch = launched(one_launch.choose, [network_of(784, 256, 10, batch=8)])[0]
    chain = {"case": "a/8", "kernel": launch.kernel, "us": {"median": 1.5}}
    results = {"rows": rows, "chains": [chain | hops.chain_of(launch, rows)]}
    header, lines = hops.rows_of_hops(results)
    assert header == ["cycles, in clusters of", "1", "2", "4", "8", "16"]
    assert [line[0] for line in lines] == list(hops.LABELS.values())
    assert all(any(cell != "-" for cell in line[1:]) for line in lines)
    header, [line] = hops.rows_of_chains(results)
    assert len(header) == len(line)
    links = "parts_full 200 + dz_full 200 + dh_full 100"
    assert line == ["a/8", "`one_launch`", links, "0.25", "1.50", "1.25", "17%"]
