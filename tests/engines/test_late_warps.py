"""Kernels of whole runs while one warp is late: as late as the barriers between warps and blocks
let it be.

Who reads what others may overwrite meanwhile, or writes what others may still read, comes to other
bits then. On a GPU that takes a warp that is held up for microseconds, as where several programs
share the card. One epoch is one launch: more would be the same kernel again. Sweeps have such
tests in test_many_networks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conftest import on_emulator
from support.devices import assert_bits_when_late
from support.one_launch import OPTIMIZERS, Images, fit, flat
from support.resident_cases import BY_LAYERS, IN_GROUPS, ON_A_CARD, SPECIALIZED, Case

pytestmark = [on_emulator]

MULTIPROCESSORS = 132  # for replicas


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(SPECIALIZED)],
    ids=str,
)
def test_warp_specialized(
    monkeypatch: pytest.MonkeyPatch, only_specialized_cluster: Callable[[int], None], case: Case
) -> None:
    words = case.specialize(monkeypatch, only_specialized_cluster)
    assert_bits_when_late(
        monkeypatch,
        lambda: case.train(words, epochs=1),
        min(case.cluster * case.replicas, 3),
        warps=24,
        num_multiprocessors=MULTIPROCESSORS,
    )


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(BY_LAYERS)],
    ids=str,
)
@pytest.mark.usefixtures("by_layers")
def test_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    case: Case,
) -> None:
    only_cluster(case.cluster)
    only_replicas(case.replicas)
    assert_bits_when_late(
        monkeypatch,
        lambda: case.train("layer by layer", epochs=1),
        min(case.cluster * case.replicas, 3),
        warps=8,
        num_multiprocessors=MULTIPROCESSORS,
    )


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(ON_A_CARD)],
    ids=str,
)
def test_on_a_card(
    monkeypatch: pytest.MonkeyPatch, only_card: Callable[..., None], case: Case
) -> None:
    case.take_a_card(only_card)
    assert_bits_when_late(monkeypatch, lambda: case.train("weights", epochs=1), blocks=3, warps=2)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(IN_GROUPS)],
    ids=str,
)
def test_in_groups_of_warps(
    monkeypatch: pytest.MonkeyPatch, only_small: Callable[[int, int], None], case: Case
) -> None:
    only_small(case.cluster, 2)
    assert_bits_when_late(
        monkeypatch,
        lambda: case.train("groups of four warps", epochs=1),
        min(case.cluster, 3),
        warps=16,
    )


@pytest.mark.parametrize(
    ("case", "arch"),
    [
        (Images("pooled", 5, (2, 4), 1), "sm_90a"),
        pytest.param(Images("pooled", 5, (2, 4), 1), "sm_80", marks=pytest.mark.slow),
        pytest.param(
            Images("uneven", 3, (1, 4), 1, "mse", "adam"), "sm_90a", marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_images(
    monkeypatch: pytest.MonkeyPatch,
    only_images: Callable[[int, int], None],
    case: Images,
    arch: str,
) -> None:
    only_images(*case.blocks)
    x, y = case.rows

    def train() -> list[Any]:
        model = case.make()
        optimizer = OPTIMIZERS[case.optimizer](model)
        settings: dict[str, Any] = {"loss": case.loss, "batch_size": case.batch_size, "epochs": 1}
        history = fit(model, x, y, optimizer, **settings)
        return [history.step_losses, flat(model.to("cpu"))]

    assert_bits_when_late(monkeypatch, train, blocks=4, warps=16, arch=arch)
