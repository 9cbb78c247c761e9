"""Trains small networks on digits, and looks at what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from time import perf_counter
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.checks import Array, check_count
from warpfit.data import Dataset, load_dataset
from warpfit.errors import ConfigError, WarpfitError
from warpfit.optim import Optimizer
from warpfit.random import manual_seed
from warpfit.training import History, fit, predict
from warpfit.training.recipes import make_model, make_optimizer, mnist_or_digits
from warpfit.training.settings import TrainSettings

# What the demo calls an optimizer, and what `TrainSettings` does.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer": "sgd", "momentum": 0.0},
    "SGD, momentum 0.9": {"optimizer": "sgd", "momentum": 0.9},
    **{
        kind.__name__: {"optimizer": name}
        for name, kind in Optimizer.by_name.items()
        if name != "sgd"
    },
}


@dataclass(frozen=True)
class DemoSettings:
    """A network and how it is trained; ConfigError if a value is unknown or out of range."""

    width: int = 128  # units of each hidden layer
    depth: int = 1  # hidden layers; 0 is softmax regression, whatever the width
    lr: float = 0.1  # constant
    batch_size: int = 64
    optimizer: str = "SGD"  # one of `OPTIMIZERS`

    def __post_init__(self) -> None:
        check_count("width", self.width, 1)
        check_count("depth", self.depth, 0)
        check_count("batch_size", self.batch_size, 1)
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"expected lr to be a positive number, got {self.lr!r}")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"expected optimizer among {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            )

    def train_settings(self, num_rows: int) -> TrainSettings:
        """Return these as the settings of ``warpfit train``."""
        return TrainSettings(
            hidden=(self.width,) * self.depth,
            lr=self.lr,
            batch_size=self.batch_size,
            schedule="constant",
            **OPTIMIZERS[self.optimizer],
        ).resolved(num_rows=num_rows, has_classes=True)


@dataclass(frozen=True)
class Choices:
    """What can be chosen so that a training takes no longer than one cares to wait."""

    widths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    largest_depth: int
    epochs: int


MANY_ROWS = Choices((8, 16, 32, 64, 128, 256, 512), (32, 64, 128, 256, 512), 3, epochs=3)
FEW_ROWS = Choices((8, 16, 32, 64, 128, 256), (16, 32, 64, 128, 256), 3, epochs=20)


ARE_MANY = 10_000


@dataclass(frozen=True, eq=False)
class DemoRun:
    """What came out of a training."""

    settings: DemoSettings
    sizes: tuple[int, ...]  # features, hidden units, classes
    error: str | None = None  # why there is no result; everything below is empty then
    seconds: float = 0.0  # of `fit`, everything included
    history: History = field(default_factory=History)
    accuracy: float = 0.0  # share of the test samples that were right
    # Test samples (C, C), by true class and by what they were taken for.
    confusion: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    # Rows (S,) of the test set: the first of each class, then the most surely wrong.
    samples: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    # What the network says of these, (S, C).
    probabilities: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    # What the first units of the first layer multiply the pixels by, (U, H, W).
    weights: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the network."""
        return sum(
            (inputs + 1) * units for inputs, units in zip(self.sizes, self.sizes[1:], strict=False)
        )


class Trainer:
    """Trains networks on one data set, which stays on the device; equal settings and seeds give
    equal runs.

    The data set is of square images in one colour, in classes. None is MNIST on a GPU, as far as it
    can be had, else scikit-learn's digits. Choices of None are what suits the number of rows.

    Raises
    ------
    ConfigError, DeviceError
        If the data set has other samples, or there is no such device.
    """

    MISTAKES = 5
    UNITS = 32

    def __init__(
        self,
        dataset: Dataset | None = None,
        *,
        device: str = "auto",
        choices: Choices | None = None,
        seed: int = 0,
    ) -> None:
        self.device = backends.resolve_device(device)
        self.seed = seed
        if dataset is None:
            dataset = load_dataset("digits" if self.device == "cpu" else mnist_or_digits())
        self.dataset = dataset
        self.choices = choices or (MANY_ROWS if len(dataset.x_train) >= ARE_MANY else FEW_ROWS)
        self.side = _side_of(dataset)
        ops = backends.get(self.device)
        self._x_train, self._x_test = (
            ops.asarray(x.reshape(len(x), -1)) for x in (dataset.x_train, dataset.x_test)
        )

    @property
    def device_name(self) -> str:
        """The device in words: ``'CPU'``, or the card's name."""
        if self.device == "cpu":
            return "CPU"
        return str(backends.get(self.device).runtime.card)  # type: ignore[attr-defined]

    def image(self, row: int) -> Array:
        """Return a test sample as an image, (H, W)."""
        return self.dataset.x_test[row].reshape(self.side, self.side)

    def train(self, settings: DemoSettings) -> DemoRun:
        """Train a network from new initial values, and return the result, or why there is none."""
        hidden = (settings.width,) * settings.depth
        sizes = (self.side**2, *hidden, self.dataset.num_classes)
        try:
            return self._trained(settings, sizes)
        except WarpfitError as error:
            return DemoRun(settings, sizes, error=" ".join(str(error).split()))

    def _trained(self, settings: DemoSettings, sizes: tuple[int, ...]) -> DemoRun:
        manual_seed(self.seed)
        resolved = settings.train_settings(len(self._x_train))
        model = make_model(resolved, sizes[:1], sizes[-1])
        data = self.dataset
        start = perf_counter()
        history = fit(
            model,
            self._x_train,
            data.y_train,
            optimizer=make_optimizer(resolved, model),
            epochs=self.choices.epochs,
            batch_size=settings.batch_size,
            validation_data=(self._x_test, data.y_test),
            device=self.device,
            seed=self.seed,
            verbose=False,
        )
        seconds = perf_counter() - start
        probabilities = predict(model, self._x_test, kind="probabilities")
        labels = probabilities.argmax(axis=1)
        samples = self._samples(probabilities)
        weights = next(iter(model.parameters())).numpy()[:, : self.UNITS]
        return DemoRun(
            settings=settings,
            sizes=sizes,
            seconds=seconds,
            history=history,
            accuracy=float(np.mean(labels == data.y_test)),
            confusion=_confusion(data.y_test, labels, data.num_classes),
            samples=samples,
            probabilities=probabilities[samples],
            weights=weights.T.reshape(-1, self.side, self.side),
        )

    def _samples(self, probabilities: Array) -> Array:
        """Return the first row of each class, and the worst mistakes, the worst first."""
        y = self.dataset.y_test
        _, first = np.unique(y, return_index=True)
        wrong = np.flatnonzero(probabilities.argmax(axis=1) != y)
        surest = np.argsort(-probabilities[wrong].max(axis=1), kind="stable")[: self.MISTAKES]
        return np.concatenate([first, wrong[surest]])


def _side_of(dataset: Dataset) -> int:
    """Return height and width of a data set's images, (N, H, W) or flat, or raise ConfigError."""
    shape = dataset.x_train.shape[1:]
    side = isqrt(int(np.prod(shape)))
    if shape not in ((side, side), (side * side,)) or not dataset.class_names:
        raise ConfigError(
            f"expected a data set of square images in one colour, in classes, got {dataset}"
        )
    return side


def _confusion(labels: Array, predicted: Array, num_classes: int) -> Array:
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)
