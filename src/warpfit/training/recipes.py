"""From settings to objects: data, model, optimizer, loss."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from warpfit import data as datasets
from warpfit import losses, nn, optim
from warpfit.backends import Activation
from warpfit.data import Dataset
from warpfit.data.csv_tables import KnownCategories
from warpfit.errors import ConfigError, DataError, ShapeError
from warpfit.files import PathLike
from warpfit.losses import Loss
from warpfit.nn.activations import ActivationSpec
from warpfit.nn.layer import Layer
from warpfit.nn.module import Module
from warpfit.optim.schedules import Schedule, as_schedule
from warpfit.training.evaluate import network_of
from warpfit.training.settings import TrainSettings

Shape = tuple[int, ...]


def open_data(
    source: str,
    *,
    data_dir: PathLike | None = None,
    label_column: str | None = None,
    task: str = "auto",
    image_size: tuple[int, int] | None = None,
    categories: KnownCategories | None = None,
) -> Dataset:
    """Return a known dataset by its name, or the user's own data by their path.

    Raises
    ------
    ConfigError
        If `source` is no known name nor looks like a path, or another argument does not apply.
    DataError
        As `load_dataset` and `load_user_data`.
    """
    if source in datasets.dataset_names():
        for name, value, what in (
            ("label_column", label_column, "a column of a .csv file"),
            ("image_size", image_size, "the size of a folder's images"),
        ):
            if value is not None:
                raise ConfigError(f"{name} names {what}; {source} is a known dataset")
        return datasets.load_dataset(source, data_dir=data_dir)
    path = Path(source).expanduser()
    if not path.exists() and not path.suffix and path.name == source:
        raise ConfigError(
            f"unknown data {source!r}: expected a dataset among "
            f"{', '.join(datasets.dataset_names())}, or the path of an .npz file, a .csv file or a "
            "folder of images; there is no such file here either"
        )
    return datasets.load_user_data(
        source,
        label_column=label_column,
        task=task,
        image_size=image_size,
        categories=categories,
    )


def mnist_or_digits(data_dir: PathLike | None = None) -> str:
    """Return ``'mnist'``, or ``'digits'`` where MNIST is neither found nor can be downloaded."""
    found = {listing.name: listing.location for listing in datasets.available_datasets(data_dir)}
    if found["mnist"] is None:
        try:
            datasets.load_dataset("mnist", data_dir=data_dir)
        except DataError:
            return "digits"
    return "mnist"


def network_shape(model: str, input_shape: Shape) -> Shape:
    """Return the shape that samples of `input_shape` take for a model: flat for an mlp, with
    channels for a cnn.

    Raises
    ------
    ShapeError
        If the samples are no images and the model needs some.
    """
    if model == "mlp":
        return (prod(input_shape),)
    if len(input_shape) not in (2, 3):
        raise ShapeError(
            f"expected images (H, W) or (H, W, C) for a cnn, got samples of shape {input_shape}"
        )
    return input_shape if len(input_shape) == 3 else (*input_shape, 1)


def make_model(settings: TrainSettings, input_shape: Shape, num_outputs: int) -> nn.Sequential:
    """Return the network of resolved settings for samples of `input_shape`, with initial values.

    An mlp is dense layers with the activation, and dropout after each if asked for. A cnn is
    PyTorch's MNIST example: 3×3 convolutions to 32 and to 64 channels, 2×2 maximum, dense layers;
    dropout p is the example's two dropouts, p/2 after the maximum and p after each dense layer.

    Parameters
    ----------
    settings : TrainSettings
    input_shape : tuple of int
        From `network_shape`.
    num_outputs : int
    """
    if settings.model == "mlp":
        return nn.Sequential(*_dense(settings, input_shape[0], num_outputs))
    channels = input_shape[-1]
    front: list[Module] = [
        nn.Conv2d(channels, 32, 3),
        _activation(settings.activation),
        nn.Conv2d(32, 64, 3),
        _activation(settings.activation),
        nn.MaxPool2d(2),
        *_dropout((settings.dropout or 0.0) / 2),
        nn.Flatten(),
    ]
    (width,) = network_of(nn.Sequential(*front), input_shape).output_shape
    return nn.Sequential(*front, *_dense(settings, width, num_outputs))


def _dense(settings: TrainSettings, width: int, num_outputs: int) -> list[Module]:
    layers: list[Module] = []
    for hidden in settings.hidden or ():
        layers += [
            nn.Linear(width, hidden),
            _activation(settings.activation),
            *_dropout(settings.dropout or 0.0),
        ]
        width = hidden
    return [*layers, nn.Linear(width, num_outputs)]


def _activation(name: str) -> Module:
    return Layer.from_spec(ActivationSpec(Activation(name)))


def _dropout(share: float) -> list[Module]:
    return [nn.Dropout(share)] if share else []


def make_schedule(settings: TrainSettings) -> Schedule:
    """Return the schedule of resolved settings; ``step`` takes a tenth after each third."""
    details: dict[str, Any] = {}
    if settings.schedule == optim.Cosine.name:
        details["warmup_epochs"] = settings.warmup_epochs
    if settings.schedule == optim.Step.name:
        details["every"] = -(-(settings.epochs or 1) // 3)
    return as_schedule({"name": settings.schedule, "lr": settings.lr, **details})


def make_optimizer(settings: TrainSettings, model: nn.Sequential) -> optim.Optimizer:
    """Return the optimizer of resolved settings over a model's parameters."""
    details: dict[str, Any] = {
        "lr": make_schedule(settings),
        "weight_decay": settings.weight_decay,
        "clip_norm": settings.clip_norm or None,
    }
    if settings.momentum is not None:
        details["momentum"] = settings.momentum
    if settings.nesterov:
        details["nesterov"] = True
    kind: Callable[..., optim.Optimizer] = optim.Optimizer.by_name[settings.optimizer]
    return kind(model.parameters(), **details)


def make_loss(settings: TrainSettings) -> Loss:
    """Return the loss of resolved settings."""
    if settings.label_smoothing:
        return losses.SoftmaxCrossEntropy(settings.label_smoothing)
    return losses.resolve(settings.loss)
