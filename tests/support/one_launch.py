"""Runs of the one_launch engine beside NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from math import prod
from typing import Any, NamedTuple

import numpy as np

import warpfit as wf
from support.training import mlp, sgd
from warpfit import losses, nn, optim
from warpfit.backends.activations import ACTIVATIONS as TABLE
from warpfit.backends.activations import Activation
from warpfit.nn.activations import ActivationSpec
from warpfit.optim.schedules import Progress, Schedule

NUM_ROWS, BATCH = 70, 16  # four batches of 16 and one of 6
# How far weights may be from NumPy's in float32, relative to how far they went.
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2}
FLOAT32_LIMIT = 2e-5
# By the table's names, but for the identity, which is no layer's.
ACTIVATIONS = {
    name: partial(nn.Layer.from_spec, ActivationSpec(Activation(name)))
    for name in TABLE
    if name != "identity"
}

MakeOptimizer = Callable[[nn.Module], wf.optim.Optimizer]
# With an eps near the gradients': else the first steps of Adam and RMSprop take their signs alone,
# and rounding turns those of the smallest.
ADAPTIVE: dict[str, MakeOptimizer] = {
    "adam": lambda model: optim.Adam(model.parameters(), 0.01, eps=0.05, weight_decay=0.01),
    "adamw": lambda model: optim.AdamW(
        model.parameters(), optim.Cosine(0.01), eps=0.05, weight_decay=0.1
    ),
    "adam, eps before": lambda model: optim.Adam(
        model.parameters(), 0.01, eps=0.05, eps_before_correction=True
    ),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), 0.01, eps=0.05, weight_decay=0.01),
    "rmsprop, momentum": lambda model: optim.RMSprop(
        model.parameters(), 0.003, eps=0.05, momentum=0.9
    ),
    "adagrad": lambda model: optim.Adagrad(
        model.parameters(), 0.03, lr_decay=0.01, eps=0.05, weight_decay=0.01
    ),
    "nadam": lambda model: optim.NAdam(
        model.parameters(), optim.Cosine(0.01), eps=0.05, momentum_decay=0.1, weight_decay=0.01
    ),
    "adadelta": lambda model: optim.Adadelta(model.parameters(), 0.3, eps=0.01, weight_decay=0.01),
}

# Its steps are signs: one that rounding turns moves a weight two steps away.
LIONS = 40.0


@dataclass(frozen=True)
class Spike(Schedule):
    """A rate that is larger at one step."""

    at: int = 0
    peak: float = 0.0

    def rate(self, progress: Progress) -> float:
        return self.peak if progress.step == self.at else self.lr

    @property
    def largest(self) -> float:
        return self.peak


def lion(model: nn.Module) -> wf.optim.Optimizer:
    """Return Lion, with decay."""
    return optim.Lion(model.parameters(), 0.002, weight_decay=0.1)


def fit(model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    """Train by the one_launch engine, unless `device` is the CPU."""
    settings = {"epochs": 2, "batch_size": BATCH, "seed": 5, "verbose": False, **settings}
    if settings.get("device") != "cpu":
        settings = {"device": "cuda", "engine": "one_launch", "precision": "float16", **settings}
    return wf.fit(model, x, y, optimizer=optimizer or sgd(model), **settings)


def data(
    sizes: tuple[int, ...], loss: str | losses.Loss = "cross_entropy", num_rows: int = NUM_ROWS
) -> tuple[Any, Any]:
    """Return rows for a network of these sizes, and targets for its loss."""
    rng, name = np.random.default_rng(0), losses.resolve(loss).name
    x = rng.standard_normal((num_rows, sizes[0])).astype("float32")
    if name == "cross_entropy":
        return x, rng.integers(0, sizes[-1], num_rows)
    y = rng.standard_normal((num_rows, sizes[-1])).astype("float32")
    return x, (y > 0).astype("float32") if name == "binary_cross_entropy" else y


def activated(
    sizes: tuple[int, ...], activations: tuple[str, ...], dropout: float | None = None
) -> nn.Sequential:
    """Return a network whose hidden layers take the activations in turns, each before a dropout if
    there is any.
    """
    layers: list[nn.Module] = []
    for idx, size in enumerate(sizes[1:]):
        layers.append(nn.Linear(sizes[idx], size, seed=idx))
        if idx < len(sizes) - 2:
            layers.append(ACTIVATIONS[activations[idx % len(activations)]]())
            layers += [] if dropout is None else [nn.Dropout(dropout)]
    return nn.Sequential(*layers)


def flat(model: nn.Module) -> Any:
    """Return all parameters as one vector."""
    return np.concatenate([array.ravel() for array in model.state_dict().values()]).astype(float)


def assert_follows_numpy(
    sizes: tuple[int, ...],
    *,
    loss: str | losses.Loss = "cross_entropy",
    precision: str = "float16",
    activation: Any = nn.ReLU,
    make: Callable[[], nn.Module] | None = None,
    optimizer: dict[str, Any] | MakeOptimizer | None = None,
    num_rows: int = NUM_ROWS,
    rows: tuple[Any, Any] | None = None,
    times_limit: float = 1.0,
    **settings: Any,
) -> wf.History:
    """Train on both, and compare the losses of all steps, and how far the weights went.

    `make` gives a network of these sizes that is not a multilayer perceptron with one activation;
    `optimizer` is SGD's settings, or makes one.
    """
    x, y = rows or data(sizes, loss, num_rows)
    make = make or partial(mlp, *sizes, activation=activation)
    optimizer_of = optimizer if callable(optimizer) else partial(sgd, **optimizer or {})
    on_cpu, on_device = make(), make()
    start = flat(on_cpu)
    settings = {"loss": loss, **settings}
    expected = fit(on_cpu, x, y, optimizer_of(on_cpu), device="cpu", **settings)
    history = fit(on_device, x, y, optimizer_of(on_device), precision=precision, **settings)
    limit = times_limit * LIMITS.get(precision, FLOAT32_LIMIT)
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=limit, atol=limit)
    moved = np.linalg.norm(flat(on_cpu) - start)
    assert np.linalg.norm(flat(on_device) - flat(on_cpu)) <= limit * moved
    return history


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.05),
    "momentum": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
    **ADAPTIVE,
}


class Case(NamedTuple):
    """A network of several layers, how it is trained, and on which blocks, as the kernel's fixture
    takes them.
    """

    sizes: tuple[int, ...]
    batch_size: int
    blocks: tuple[Any, ...]
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    activations: tuple[str, ...] = ("tanh",)
    precision: str = "float16"
    dropout: float | None = None

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def make(self) -> nn.Sequential:
        """Return the network."""
        return activated(self.sizes, self.activations, self.dropout)

    def assert_follows_numpy(self) -> None:
        """Train it beside NumPy, with a last batch that is shorter."""
        settings: dict[str, Any] = {"make": self.make, "optimizer": OPTIMIZERS[self.optimizer]}
        assert_follows_numpy(
            self.sizes,
            batch_size=self.batch_size,
            num_rows=4 * self.batch_size + self.batch_size // 3 + 1,
            loss=self.loss,
            precision=self.precision,
            **settings,
        )


class Images(NamedTuple):
    """A convolutional network of a few layers, by its name in `IMAGES_NETWORKS`, with activations
    that its layers take in turns, how it is trained, and on how many images a block, of how many
    blocks.

    The images follow from the seed. Where rounding changes which pixel of a window is the largest,
    a gradient goes to another one: in these that happens in no step.
    """

    network: str
    batch_size: int
    blocks: tuple[int, int]
    seed: int
    loss: str | losses.Loss = "cross_entropy"
    optimizer: str = "sgd"
    activations: tuple[str, ...] = ("tanh",)
    precision: str = "float16"

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels of what the network takes."""
        return IMAGES_NETWORKS[self.network][0]

    def make(self) -> nn.Sequential:
        """Return the network."""
        layers_of = IMAGES_NETWORKS[self.network][1]
        return nn.Sequential(*layers_of([ACTIVATIONS[name] for name in self.activations]))

    @property
    def rows(self) -> tuple[Any, Any]:
        """Four batches of images, and one that is shorter, with targets."""
        num_rows = 4 * self.batch_size + self.batch_size // 3 + 1
        _, y = data((prod(self.image), 4), self.loss, num_rows)
        x = np.random.default_rng(self.seed).standard_normal((num_rows, *self.image))
        return x.astype("float32"), y

    def assert_follows_numpy(self, times_limit: float = 1.0) -> None:
        """Train it beside NumPy."""
        assert_follows_numpy(
            (prod(self.image), 4),
            rows=self.rows,
            make=self.make,
            batch_size=self.batch_size,
            loss=self.loss,
            optimizer=lion if self.optimizer == "lion" else OPTIMIZERS[self.optimizer],
            precision=self.precision,
            times_limit=times_limit,
        )


def _pooled(activations: Sequence[Any]) -> list[nn.Module]:
    first, second, third = islice(cycle(activations), 3)
    return [
        nn.Conv2d(1, 5, 3, seed=0),
        first(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 6, 3, seed=1),
        second(),
        nn.Flatten(),
        nn.Linear(54, 20, seed=2),
        third(),
        nn.Linear(20, 4, seed=3),
    ]


def _padded(activations: Sequence[Any]) -> list[nn.Module]:
    return [
        nn.Conv2d(3, 7, 3, padding=1, seed=0),
        activations[0](),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(63, 4, seed=1),
    ]


def _uneven(activations: Sequence[Any]) -> list[nn.Module]:
    first, second = islice(cycle(activations), 2)
    return [
        nn.Conv2d(9, 18, (2, 3), padding=(0, 1), seed=0),
        first(),
        nn.Conv2d(18, 3, (1, 2), padding=(0, 1), seed=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 17, seed=2),
        second(),
        nn.Linear(17, 4, seed=3),
    ]


def _pixel(activations: Sequence[Any]) -> list[nn.Module]:
    return [nn.Conv2d(1, 1, 1, seed=0), activations[0](), nn.Flatten(), nn.Linear(1, 4, seed=1)]


def _wide(activations: Sequence[Any]) -> list[nn.Module]:
    """Return layers of more than 8 pieces of channels, more than 32 slices of k, forward and back,
    and padding as wide as the windows.
    """
    first, second, third = islice(cycle(activations), 3)
    return [
        nn.Conv2d(9, 72, 3, padding=3, seed=0),
        first(),
        nn.Conv2d(72, 8, 1, padding=1, seed=1),
        second(),
        nn.Conv2d(8, 6, (13, 5), padding=(13, 0), seed=2),
        third(),
        nn.Flatten(),
        nn.Linear(660, 4, seed=3),
    ]


def _globally_pooled(activations: Sequence[Any]) -> list[nn.Module]:
    return [
        nn.Conv2d(2, 34, 1, padding=1, seed=0),
        activations[0](),
        nn.Conv2d(34, 8, 1, padding=1, seed=1),
        nn.MaxPool2d(8),
        nn.Flatten(),
        nn.Linear(8, 4, seed=2),
    ]


# Height, width and channels of images, and the layers.
IMAGES_NETWORKS: dict[
    str, tuple[tuple[int, int, int], Callable[[Sequence[Any]], list[nn.Module]]]
] = {
    "pooled": ((12, 12, 1), _pooled),
    "padded": ((9, 9, 3), _padded),
    "uneven": ((5, 7, 9), _uneven),
    "pixel": ((1, 1, 1), _pixel),
    "wide": ((2, 3, 9), _wide),
    "globally pooled": ((4, 4, 2), _globally_pooled),
}
