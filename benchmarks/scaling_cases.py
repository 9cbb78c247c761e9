"""The networks that scaling.py measures, with as many rows on every card, and their training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import residual
import warpfit as wf
from layerwise import our_cnn
from warpfit import nn, optim
from warpfit.training.on_cards import expected_on_cards


@dataclass(frozen=True)
class Case:
    """A network, and its rows on each card.

    Attributes
    ----------
    sizes : tuple of int
        Of linear layers; empty for a network that `make` makes.
    steps_per_epoch : int
        More where they are short, so that no host counts.
    """

    rows_of_card: int
    sizes: tuple[int, ...] = ()
    kind: str = ""
    make: Callable[[], nn.Sequential] | None = None
    images: Callable[[int], tuple[Any, Any]] | None = None
    steps_per_epoch: int = 4

    @property
    def name(self) -> str:
        return f"{self.kind or self._widths}/{self.rows_of_card}"

    @property
    def _widths(self) -> str:
        first, *hidden, last = self.sizes
        if len(set(self.sizes)) == 1:
            return f"{len(hidden) + 1}x{first}"
        return f"{first}-{hidden[0]}x{len(hidden)}-{last}"

    @property
    def of_peer(self) -> str:
        """What PyTorch's script calls it."""
        return f"{self.kind or ','.join(map(str, self.sizes))}/{self.rows_of_card}"

    def model(self) -> nn.Sequential:
        return self.make() if self.make else network(self.sizes)

    def rows(self, num_rows: int) -> tuple[Any, Any]:
        return self.images(num_rows) if self.images else rows_of(self.sizes, num_rows)

    def expected(self, count: int) -> float | None:
        """Return the microseconds that a step is expected to take on so many cards."""
        if not self.sizes:
            return None
        found = expected_on_cards(self.sizes, self.rows_of_card * count, count, num_slots=1)
        return found.seconds * 1e6


def digits(num_rows: int) -> tuple[Any, Any]:
    """Return rows of 28 by 28 bytes, and labels."""
    x, y = rows_of((784, 10), num_rows)
    return x.reshape(-1, 28, 28, 1), y


def network(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for idx, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(inputs, outputs, seed=idx))
    return nn.Sequential(*layers)


def rows_of(sizes: Sequence[int], num_rows: int) -> tuple[Any, Any]:
    """Return rows of bytes, of which a block is repeated, and labels."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, (min(num_rows, 4096), sizes[0]), np.uint8)
    return np.resize(block, (num_rows, sizes[0])), rng.integers(0, sizes[-1], num_rows)


def trained(
    sizes: Sequence[int],
    x: Any,
    y: Any,
    devices: str | Sequence[str],
    model: nn.Sequential | None = None,
    **settings: Any,
) -> tuple[nn.Sequential, wf.History]:
    model = network(sizes) if model is None else model
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    history = wf.fit(model, x, y, optimizer=opt, device=devices, verbose=False, **settings)
    return model, history


CASES = (
    Case(8192, (4096,) * 5),
    Case(8192, (784, 8192, 8192, 8192, 10)),
    Case(8192, (1024,) * 5, steps_per_epoch=16),
    Case(512, kind="cnn", make=our_cnn, images=digits, steps_per_epoch=16),
    Case(
        512,
        kind="resnet",
        make=residual.our_resnet,
        images=residual.made_up_images,
        steps_per_epoch=16,
    ),
)
