"""Small networks that each kernel of whole runs trains in all of its ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from support.one_launch import ADAPTIVE, activated, data, fit, flat
from support.training import sgd
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch import choose

__all__ = ["BY_LAYERS", "IN_GROUPS", "ON_A_CARD", "SPECIALIZED", "Case"]

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: sgd(model, 0.05, momentum=0.9),
    "plain sgd": sgd,
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
    apart: str = ""
    validated: int = 0  # rows

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def specialize(
        self, monkeypatch: pytest.MonkeyPatch, only_specialized_cluster: Callable[[int], None]
    ) -> str:
        """Let the warp-specialized kernel train it; return words of the reason."""
        only_specialized_cluster(self.cluster)
        monkeypatch.setattr(one_launch, "REPLICAS", ((0, self.replicas),))
        if self.ahead:
            monkeypatch.setattr(one_launch, "AHEAD_TILES", 1)
        choose.cache_clear()
        return "a batch ahead" if self.ahead else "warps over features and units"

    def take_a_card(self, only_card: Callable[..., None]) -> None:
        """Let the kernel for a whole card train it; `apart` says where weights are if ranks are."""
        if self.apart:
            only_card(self.replicas, self.cluster, 8, True, self.apart)
        else:
            only_card(self.replicas, self.cluster, 2)

    def train(self, words: str, epochs: int = 2) -> list[Any]:
        """Train by launches whose reason has these words; return all losses and parameters."""
        x, y = data(self.sizes, num_rows=4 * self.batch_size + self.batch_size // 3 + 1)
        model = activated(self.sizes, self.activations, self.dropout)
        history = fit(
            model,
            x,
            y,
            OPTIMIZERS[self.optimizer](model),
            epochs=epochs,
            batch_size=self.batch_size,
            precision=self.precision,
            validation_data=data(self.sizes, num_rows=self.validated) if self.validated else None,
        )
        assert words in history.plan.reason
        return [history.step_losses, history["val_loss"], flat(model.to("cpu"))]


SPECIALIZED = [
    Case((40, 37, 10), 80, 2, ahead=True),
    Case((100, 60, 10), 64, 4, optimizer="plain sgd", ahead=True),
    Case((100, 60, 10), 128, 4, optimizer="plain sgd", ahead=True),
    Case((100, 120, 10), 64, 4, optimizer="plain sgd", ahead=True),
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

BY_LAYERS = [
    Case((17, 33, 20, 5), 33, 2, optimizer="adam", dropout=0.3, activations=("gelu", "tanh")),
    Case((17, 33, 20, 5), 48, 2, 3, "adam"),
    Case((17, 33, 20, 5), 48, 1),
    Case((17, 33, 20, 5), 48, 4, 2),
    Case((6, 3), 50, 1, 4),
    Case((17, 33, 20, 5), 33, 2, precision="float32"),
    Case((17, 33, 20, 5), 48, 4, 2, precision="float32"),
]

ON_A_CARD = [
    Case((20, 40, 33, 5), 32, 2, 2),
    Case((20, 40, 33, 5), 32, 1, 3, "adam"),
    Case((20, 40, 33, 5), 32, 4, 2, "adam", dropout=0.3),
    Case((20, 70, 33, 5), 16, 2, 2, apart="near"),
    Case((70, 140, 130, 5), 16, 2, 2, "plain sgd", apart="streamed"),
    Case((20, 40, 33, 5), 32, 2, 2, dropout=0.3, validated=70),
    Case((70, 140, 130, 5), 16, 2, 2, "plain sgd", apart="streamed", validated=17),
]

IN_GROUPS = [
    Case((17, 33, 20, 5), 48, 2, optimizer="adam"),
    Case((17, 33, 20, 5), 80, 1),
    Case((40, 60, 10), 100, 4),
]
