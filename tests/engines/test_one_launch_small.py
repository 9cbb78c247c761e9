"""The one_launch engine on small networks that one block trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.one_launch import (
    ADAPTIVE,
    LIONS,
    MakeOptimizer,
    activated,
    assert_follows_numpy,
    data,
    fit,
    lion,
)
from support.training import assert_same_weights, mlp
from warpfit import nn, optim

pytestmark = [pytest.mark.in_turns(6)]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.05),
    "momentum": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
    **ADAPTIVE,
}


class Case(NamedTuple):
    """A network, how it is trained, and by how many blocks of how many
    groups of four warps."""

    sizes: tuple[int, ...]
    batch_size: int
    blocks: tuple[int, int]
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    activations: tuple[str, ...] = ("tanh",)
    precision: str = "float16"

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def make(self) -> nn.Sequential:
        """Return the network."""
        return activated(self.sizes, self.activations)


CASES = [
    Case((20, 40, 33, 5), 32, (1, 2)),
    Case((20, 40, 3), 10, (1, 1), "mse", "momentum", ("silu",), "bfloat16"),
    Case((30, 40, 50, 17, 13), 33, (2, 3), "cross_entropy", "adam", ("gelu", "tanh")),
    Case((17, 64, 10), 130, (1, 4), "binary_cross_entropy", "nesterov", ("sigmoid",)),
    Case((64, 64, 64, 1), 80, (2, 1), "huber", "rmsprop, momentum", ("tanh",)),
    Case((9, 24, 24, 24, 4), 50, (4, 2), "absolute_error", "adamw", ("gelu", "selu")),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_numpy(cuda: str, only_small: Callable[[int, int], None], case: Case) -> None:
    only_small(*case.blocks)
    settings: dict[str, Any] = {"make": case.make, "optimizer": OPTIMIZERS[case.optimizer]}
    assert_follows_numpy(
        case.sizes,
        batch_size=case.batch_size,
        num_rows=4 * case.batch_size + case.batch_size // 3 + 1,
        loss=case.loss,
        precision=case.precision,
        **settings,
    )
