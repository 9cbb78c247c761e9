"""Kernels of whole runs while one warp is late: as late as the barriers between warps and blocks
let it be.

Who reads what others may overwrite meanwhile, or writes what others may still read, comes to other
bits then. On a GPU that takes a warp that is held up for microseconds, as where several programs
share the card. Sweeps have such tests in test_many_networks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from conftest import on_emulator
from support.devices import assert_bits_when_late
from support.one_launch import ADAPTIVE, activated, data, fit, flat
from support.training import sgd
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch import choose

pytestmark = [on_emulator]

MULTIPROCESSORS = 132  # for replicas
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: sgd(model, 0.05, momentum=0.9),
    "adam": ADAPTIVE["adam"],
}


class Case(NamedTuple):
    """A network, how it is trained, and by how many clusters of how many blocks."""

    sizes: tuple[int, ...]
    batch_size: int
    cluster: int = 1
    replicas: int = 1
    optimizer: str = "sgd"
    ahead: bool = False
    dropout: float | None = None
    precision: str = "float16"
    activations: tuple[str, ...] = ("tanh",)

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def train(self, words: str) -> list[Any]:
        """Train by a launch whose reason has these words; return all losses and parameters."""
        x, y = data(self.sizes, num_rows=4 * self.batch_size + self.batch_size // 3 + 1)
        model = activated(self.sizes, self.activations, self.dropout)
        history = fit(
            model,
            x,
            y,
            OPTIMIZERS[self.optimizer](model),
            batch_size=self.batch_size,
            precision=self.precision,
        )
        assert words in history.plan.reason
        return [history.step_losses, flat(model.to("cpu"))]


SPECIALIZED = [
    Case((40, 37, 10), 80, 2, ahead=True),
    Case((40, 37, 10), 80, 2),
    Case((40, 37, 10), 48, 2, 3),
    Case((40, 60, 10), 64, 4, ahead=True),
    Case((33, 32, 3), 80, 1, ahead=True),
    Case((40, 60, 10), 40, 2, optimizer="adam"),
    Case((70, 3), 40, 4),
    Case((70, 3), 96, 2, 2),
    Case((70, 3), 40, 2, optimizer="adam"),
    Case((40, 60, 10), 272, 2),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(SPECIALIZED)],
    ids=str,
)
def test_warp_specialized(
    monkeypatch: pytest.MonkeyPatch, only_specialized_cluster: Callable[[int], None], case: Case
) -> None:
    only_specialized_cluster(case.cluster)
    monkeypatch.setattr(one_launch, "REPLICAS", ((0, case.replicas),))
    if case.ahead:
        monkeypatch.setattr(one_launch, "AHEAD_TILES", 1)
    choose.cache_clear()
    words = "a batch ahead" if case.ahead else "warps over features and units"
    assert_bits_when_late(
        monkeypatch,
        lambda: case.train(words),
        min(case.cluster * case.replicas, 3),
        warps=24,
        num_multiprocessors=MULTIPROCESSORS,
    )


BY_LAYERS = [
    Case((17, 33, 20, 5), 33, 2, optimizer="adam", dropout=0.3, activations=("gelu", "tanh")),
    Case((17, 33, 20, 5), 48, 2, 3, "adam"),
    Case((17, 33, 20, 5), 48, 1),
    Case((17, 33, 20, 5), 48, 4, 2),
    Case((6, 3), 50, 1, 4),
    Case((17, 33, 20, 5), 33, 2, precision="float32"),
    Case((17, 33, 20, 5), 48, 4, 2, precision="float32"),
]


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
        lambda: case.train("layer by layer"),
        min(case.cluster * case.replicas, 3),
        warps=8,
        num_multiprocessors=MULTIPROCESSORS,
    )


ON_A_CARD = [
    Case((20, 40, 33, 5), 32, 2, 2),
    Case((20, 40, 33, 5), 32, 1, 3, "adam"),
    Case((20, 40, 33, 5), 32, 4, 2, "adam"),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(ON_A_CARD)],
    ids=str,
)
def test_on_a_card(
    monkeypatch: pytest.MonkeyPatch, only_card: Callable[[int, int, int], None], case: Case
) -> None:
    only_card(case.replicas, case.cluster, 2)
    assert_bits_when_late(monkeypatch, lambda: case.train("weights"), blocks=3, warps=2)
