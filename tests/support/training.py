"""Small networks and data to train them on, and comparisons of what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import Callback, Run, nn, optim
from warpfit.nn import Module

Numbers = npt.NDArray[Any]


def mlp(
    *sizes: int, dtype: str = "float32", seed: int = 0, activation: Any = nn.ReLU
) -> nn.Sequential:
    """Return linear layers of these sizes with an activation between each two."""
    layers: list[Module] = []
    for idx, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [activation()] if layers else []
        layers.append(nn.Linear(inputs, outputs, dtype=dtype, seed=seed + idx))
    return nn.Sequential(*layers)


class Taped(Module):
    """A user's own module around another, which only the tape can run."""

    def __init__(self, inner: Module) -> None:
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def blobs(
    num_rows: int,
    num_features: int = 6,
    num_classes: int = 3,
    *,
    seed: int = 0,
    dtype: str = "float32",
) -> tuple[Numbers, Numbers]:
    """Return points around one centre a class, in [0, 1], and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows)
    centres = np.random.default_rng(99).uniform(0.2, 0.8, (num_classes, num_features))
    x = centres[labels] + rng.normal(0, 0.08, (num_rows, num_features))
    return np.clip(x, 0, 1).astype(dtype), labels


def adam(model: Module, lr: Any = 0.01, **settings: Any) -> optim.Adam:
    return optim.Adam(model.parameters(), lr, **settings)


def sgd(model: Module, lr: Any = 0.1, **settings: Any) -> optim.SGD:
    return optim.SGD(model.parameters(), lr, **settings)


def assert_same_weights(a: Module, b: Module) -> None:
    """Assert that two models of one architecture hold the same bits; names may differ."""
    for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def same_weights(a: Module, b: Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def relative_difference(a: Module, b: Module) -> float:
    """Return |a - b| / |b| over all parameters of two models as one vector."""
    one, other = (
        np.concatenate([p.ravel() for p in m.state_dict().values()]).astype(float) for m in (a, b)
    )
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@contextmanager
def unchanged(model: Module, optimizer: optim.base.Optimizer) -> Iterator[None]:
    """Assert that the block leaves model and optimizer as they are."""
    before = model.state_dict(), optimizer.state_dict()
    yield
    after = model.state_dict(), optimizer.state_dict()
    np.testing.assert_equal(after, before)


class Writing(Callback):
    """Writes into all that a run has after each epoch."""

    def on_epoch_end(self, run: Run) -> None:
        state, ops = run.state, run.ops
        for arrays in (state.arrays, *state.slots.values()):
            for array in arrays.values():
                ops.assign(array, ops.binary("mul", array, 0.9))
        state.step += 3
        run.scale_lr(0.5)


class InterruptAt(Callback):
    """Raises KeyboardInterrupt after a step of the run, as Ctrl-C does; counted from 1."""

    def __init__(self, step: int) -> None:
        self.remaining = step

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            raise KeyboardInterrupt
