"""The one_launch engine on networks whose weights all blocks of a card share out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from support.one_launch import ACTIVATIONS, ADAPTIVE, MakeOptimizer, assert_follows_numpy
from warpfit import nn, optim

pytestmark = [pytest.mark.in_turns(3)]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.05),
    "momentum": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
    **ADAPTIVE,
}


class Case(NamedTuple):
    """A network, how it is trained, and by how many clusters of how many blocks of how many warps."""

    sizes: tuple[int, ...]
    batch_size: int
    blocks: tuple[int, int, int]
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    activations: tuple[str, ...] = ("tanh",)
    precision: str = "float16"

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def make(self) -> nn.Sequential:
        """Return the network; its layers take the activations in turns."""
        layers: list[nn.Module] = []
        for idx, size in enumerate(self.sizes[1:]):
            layers.append(nn.Linear(self.sizes[idx], size, seed=idx))
            if idx < len(self.sizes) - 2:
                layers.append(ACTIVATIONS[self.activations[idx % len(self.activations)]]())
        return nn.Sequential(*layers)


CASES = [
    Case((20, 40, 33, 5), 32, (2, 2, 2)),
    Case((20, 70, 3), 10, (2, 2, 1), "mse", "momentum", ("silu",), "bfloat16"),
    Case((100, 40, 90, 17, 33, 18), 33, (3, 4, 2), "cross_entropy", "adam", ("gelu", "tanh")),
    Case((17, 130, 70, 10), 64, (1, 8, 4), "binary_cross_entropy", "nesterov", ("sigmoid",)),
    Case((50, 300, 100), 80, (9, 8, 2), "huber", "rmsprop, momentum", ("tanh", "silu")),
    Case((9, 40, 40, 40, 4), 16, (2, 16, 1), "absolute_error", "adamw", ("gelu",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_numpy(cuda: str, only_card: Callable[[int, int, int], None], case: Case) -> None:
    only_card(*case.blocks)
    settings: dict[str, Any] = {"make": case.make, "optimizer": OPTIMIZERS[case.optimizer]}
    assert_follows_numpy(
        case.sizes,
        batch_size=case.batch_size,
        num_rows=4 * case.batch_size + case.batch_size // 3 + 1,
        loss=case.loss,
        precision=case.precision,
        **settings,
    )
