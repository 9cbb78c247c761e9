"""What all rungs train: a network from the same initial values, over the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import data as datasets
from warpfit import nn
from warpfit.checks import check_count
from warpfit.data.dataset import is_table
from warpfit.errors import ConfigError, DataError, ShapeError
from warpfit.files import PathLike
from warpfit.nn.module import Module
from warpfit.training.recipes import mnist_or_digits, open_data

DEFAULT_HIDDEN = 128


@dataclass(frozen=True)
class Network:
    """A network that the ladder trains, and how."""

    name: str
    hidden: tuple[int, ...] | None  # widths; None is three of the width that is asked for
    batch: int  # rows a step
    lr: float


NETWORKS = {
    network.name: network
    for network in (
        Network("softmax-regression", (), 128, 0.1),
        Network("mlp", (256,), 64, 0.01),
        Network("deep", None, 32, 0.1),
    )
}


@dataclass(frozen=True, eq=False)
class Task:
    """One training that every rung does, by plain SGD."""

    sizes: tuple[int, ...]  # of the layers, from the inputs to the outputs
    batch: int  # rows a step; the last, shorter batch of an epoch counts
    lr: float
    x: npt.NDArray[np.float32]  # (N, sizes[0])
    y: npt.NDArray[np.int64]  # (N,)
    data: str = "data"  # what the rows are called
    seed: int = 0  # of initial values and of the epochs' orders

    @property
    def title(self) -> str:
        """The network and its data, in a few words."""
        return (
            f"{'-'.join(map(str, self.sizes))}, batch {self.batch}, {len(self.x):,} rows of "
            f"{self.data}"
        )

    @cached_property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.x) // self.batch)

    def model(self) -> nn.Sequential:
        """Return the network with its initial values, which are the same each time."""
        layers: list[Module] = []
        for idx, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            layers += [nn.ReLU()] if layers else []
            layers.append(nn.Linear(inputs, outputs, seed=self.seed + idx))
        return nn.Sequential(*layers)


def make_task(
    network: str = "mlp",
    *,
    hidden: int = DEFAULT_HIDDEN,
    data: str | tuple[Any, Any] | None = None,
    data_dir: PathLike | None = None,
    rows: int = 0,
    lr: float | None = None,
    seed: int = 0,
) -> Task:
    """Return the task of one of `NETWORKS`, `hidden` being the width of ``'deep'``.

    The data are a dataset's name or a path, as ``warpfit train --data`` takes them, or rows (N,
    ...) and labels (N,); None is MNIST, or digits where that cannot be had. Of its rows the first
    are taken, 0 for all. A rate may stand for the network's own.

    Raises
    ------
    ConfigError, DataError, ShapeError
        If there is no such network, a number is out of range, or the data has no classes.
    """
    if network not in NETWORKS:
        raise ConfigError(f"expected a network among {', '.join(NETWORKS)}, got {network!r}")
    kind = NETWORKS[network]
    check_count("hidden", hidden, 1)
    check_count("the number of rows", rows, 0)
    rate = kind.lr if lr is None else lr
    if not rate > 0:
        raise ConfigError(f"expected a learning rate above 0, got {rate!r}")
    x, y, num_classes, name = _rows(data, data_dir)
    widths = (hidden,) * 3 if kind.hidden is None else kind.hidden
    limit = rows or len(x)
    sizes = (x.shape[1], *widths, num_classes)
    return Task(sizes, kind.batch, float(rate), x[:limit], y[:limit], name, seed)


def _rows(data: str | tuple[Any, Any] | None, data_dir: Any) -> tuple[Any, Any, int, str]:
    """Return rows (N, features) float32, labels (N,) int64, the number of classes, and a name."""
    if isinstance(data, tuple):
        x, y = (np.asarray(array) for array in data)
        if len(x) != len(y) or not len(x):
            raise ShapeError(
                f"expected as many rows as labels, at least one, got {len(x)} and {len(y)}"
            )
        name, num_classes = "the given data", int(y.max()) + 1
    else:
        dataset = open_data(data or mnist_or_digits(data_dir), data_dir=data_dir)
        if not dataset.class_names:
            raise DataError(
                f"expected data with classes, got {dataset.name}, whose targets are numbers"
            )
        x, y = dataset.x_train, dataset.y_train
        name, num_classes = dataset.name, dataset.num_classes
        if is_table(x):
            x = datasets.TablePreprocessor().fit_transform(x)
    flat = x.reshape(len(x), -1)
    floats = flat.astype(np.float32) / np.float32(255) if flat.dtype == np.uint8 else flat
    return np.ascontiguousarray(floats, np.float32), y.astype(np.int64), num_classes, name
