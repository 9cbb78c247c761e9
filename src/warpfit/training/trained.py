"""A model as ``warpfit train`` stores it: with a card that says what its inputs and outputs mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.data import Dataset
from warpfit.errors import ConfigError, DataError, FileFormatError, ShapeError, WarpfitError
from warpfit.losses import SoftmaxCrossEntropy
from warpfit.nn.network import Sequential
from warpfit.training.evaluate import Evaluation, evaluate, loss_of, network_of, predict
from warpfit.training.storage import load, load_metadata, save

__all__ = ["ClassScore", "ModelCard", "Score", "TrainedModel", "class_scores", "load_trained"]

PathLike = str | os.PathLike[str]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ModelCard:
    """What a model file says of the data that the model was trained on.

    Parameters
    ----------
    data : str
        Name of the dataset, or path of the user's data.
    label_column : str or None
    input_shape : tuple of int
        Shape of one sample as the data have it.
    network_shape : tuple of int
        The shape that it takes for the network.
    class_names : tuple of str
        Empty for regression.
    scale : int or None
        The pixel value that became 1: 255 if the samples lie in [0, 1], else unknown.
    """

    data: str
    label_column: str | None
    input_shape: tuple[int, ...]
    network_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    scale: int | None

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> ModelCard:
        """Return the card in a model file's metadata, or raise FileFormatError."""
        try:
            card = cls(**{**metadata, **{name: tuple(metadata[name]) for name in _TUPLES}})
        except (KeyError, TypeError):
            card = None
        if card is None or not card._is_sound():
            raise FileFormatError("expected a model that `warpfit train` wrote, found one without its card")
        return card

    def _is_sound(self) -> bool:
        sizes = (*self.input_shape, *self.network_shape)
        return (
            isinstance(self.data, str)
            and isinstance(self.label_column, str | None)
            and all(isinstance(size, int) and size >= 0 for size in sizes)
            and prod(self.input_shape) == prod(self.network_shape)
            and all(isinstance(name, str) for name in self.class_names)
            and self.scale in (None, 255)
        )


SPLITS = ("test", "train", "all")

_TUPLES = ("input_shape", "network_shape", "class_names")


@dataclass(frozen=True)
class Score:
    """How a model does on rows whose targets are known.

    Attributes
    ----------
    evaluation : Evaluation
    labels, predicted : ndarray (N,) int64, or None for regression
    """

    evaluation: Evaluation
    labels: Array | None
    predicted: Array | None


@dataclass(frozen=True)
class ClassScore:
    """How one class does: its rows, the share of them that was found, and the share right of those named so.

    `precision` is None for a class that no row was taken for, `recall` for one without rows.
    """

    name: str
    num_rows: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class TrainedModel:
    """A model and its card."""

    model: Sequential
    card: ModelCard

    def save(self, path: PathLike) -> None:
        """Write both to a file; see `warpfit.save`."""
        save(self.model, path, metadata=asdict(self.card))

    def inputs(self, x: Array) -> Array:
        """Return samples x (N, *input_shape) as the network takes them, or raise ShapeError."""
        if x.shape[1:] != self.card.input_shape:
            raise ShapeError(
                f"expected samples of shape {self.card.input_shape}, as the model was trained on, "
                f"got {x.shape[1:]}"
            )
        return x.reshape(len(x), *self.card.network_shape)

    def predictions(self, x: Array) -> Array:
        """Return what it predicts for samples x: the probability of each class, (N, C), or (N, ...) target values."""
        loss = loss_of(self.model) or SoftmaxCrossEntropy()
        found = predict(self.model, self.inputs(x), kind="probabilities" if loss.counts_correct else "values")
        is_of_second = len(self.card.class_names) == 2 and found.shape[1:] == (1,)
        return np.hstack([1 - found, found]) if is_of_second else found

    def labels(self, y: Array, class_names: Sequence[str]) -> Array:
        """Return targets whose classes are numbered as the model's, by their names.

        Raises
        ------
        DataError
            If a class is none of the model's, or one has classes and the other has not.
        """
        ours = self.card.class_names
        if bool(ours) != bool(class_names):
            kinds = ("labels of classes", "float targets")
            raise DataError(
                f"expected {kinds[not ours]}, as the model was trained on, got {kinds[not class_names]}"
            )
        foreign = [name for name in class_names if name not in ours]
        if foreign:
            raise DataError(f"expected classes of the model ({', '.join(ours)}), got {', '.join(foreign)}")
        return np.array([ours.index(name) for name in class_names])[y] if class_names else y

    def test(self, x: Array, y: Array) -> Score:
        """Return how the model does on samples x (N, *input_shape) with targets y, numbered as its classes."""
        rows = self.inputs(x)
        evaluation = evaluate(self.model, rows, y)
        if not self.card.class_names:
            return Score(evaluation, None, None)
        return Score(evaluation, y, predict(self.model, rows, kind="labels"))

    def test_on(self, dataset: Dataset, split: str = "test") -> Score:
        """Return how the model does on a part of a dataset: ``'test'``, ``'train'`` or ``'all'``.

        Raises
        ------
        ConfigError
            If there is no such part.
        DataError, ShapeError
            If it has no rows, or they are not what the model was trained on.
        """
        if split not in SPLITS:
            raise ConfigError(f"expected split among {', '.join(SPLITS)}, got {split!r}")
        x, y = _rows_of(dataset, split)
        if not len(x):
            raise DataError(f"{dataset.name} has no {split} rows")
        return self.test(x, self.labels(y, dataset.class_names))


def _rows_of(dataset: Dataset, split: str) -> tuple[Array, Array]:
    if split == "train":
        return dataset.x_train, dataset.y_train
    if split == "test":
        return dataset.x_test, dataset.y_test
    return (
        np.concatenate([dataset.x_train, dataset.x_test]),
        np.concatenate([dataset.y_train, dataset.y_test]),
    )


def class_scores(result: Score, class_names: Sequence[str]) -> list[ClassScore]:
    """Return the scores of every class, none for regression."""
    if result.labels is None or result.predicted is None:
        return []
    rows, named, right = (
        np.bincount(labels, minlength=len(class_names)).tolist()
        for labels in (result.labels, result.predicted, result.labels[result.labels == result.predicted])
    )
    return [
        ClassScore(name, rows[i], _share(right[i], rows[i]), _share(right[i], named[i]))
        for i, name in enumerate(class_names)
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def load_trained(path: PathLike, *, device: str = "cpu") -> TrainedModel:
    """Return the model in a file that ``warpfit train`` wrote, with its arrays on a device.

    Raises
    ------
    FileFormatError
        If it is no whole model file, or has no card that fits the model.
    DeviceError, ConfigError
        If there is no such device.
    """
    model, metadata = load(path), load_metadata(path)
    former = metadata.pop("loss", None)  # where it stood before models knew their loss
    model.loss = former if model.loss is None else model.loss
    try:
        card = ModelCard.from_metadata(metadata)
        outputs = network_of(model, card.network_shape).output_shape
        loss, names = loss_of(model) or SoftmaxCrossEntropy(), card.class_names
        expected = (loss.num_outputs(len(names)),) if names else outputs
    except WarpfitError as error:
        raise FileFormatError(f"{path}: {error}") from error
    if outputs != expected:
        raise FileFormatError(
            f"{path}: expected {expected[0]} outputs for {len(names)} classes, found {outputs}"
        )
    return TrainedModel(model.to(device), card)
