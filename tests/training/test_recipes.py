"""From settings to models, optimizers, schedules, losses and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpfit import nn, optim
from warpfit.errors import ConfigError, DataError, ShapeError
from warpfit.losses import Huber, SoftmaxCrossEntropy
from warpfit.training.recipes import (
    make_loss,
    make_model,
    make_optimizer,
    make_schedule,
    mnist_or_digits,
    network_shape,
    open_data,
)
from warpfit.training.settings import TrainSettings


def resolved(*, has_classes: bool = True, **settings: Any) -> TrainSettings:
    return TrainSettings(**settings).resolved(num_rows=640, has_classes=has_classes)


def kinds(model: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in model]


def test_mlp_has_dense_layers_activations_and_dropout() -> None:
    model = make_model(resolved(hidden=(8, 4), activation="gelu_tanh", dropout=0.1), (5,), 3)
    assert kinds(model) == ["Linear", "GELU", "Dropout", "Linear", "GELU", "Dropout", "Linear"]
    assert model.num_parameters == (5 * 8 + 8) + (8 * 4 + 4) + (4 * 3 + 3)


def test_no_hidden_layer_is_softmax_regression() -> None:
    assert kinds(make_model(resolved(hidden=()), (5,), 3)) == ["Linear"]


def test_cnn_is_pytorchs_mnist_example() -> None:
    model = make_model(resolved(model="cnn"), (28, 28, 1), 10)
    assert model.num_parameters == 1_199_882  # as torch counts it
    shares = [layer.spec.p for layer in model if isinstance(layer, nn.Dropout)]
    assert shares == [0.25, 0.5]
    assert "Dropout" not in kinds(make_model(resolved(model="cnn", dropout=0.0), (8, 8, 3), 2))


def test_cnn_needs_room_for_its_convolutions() -> None:
    with pytest.raises(ShapeError):
        make_model(resolved(model="cnn"), (3, 3, 1), 10)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        ("mlp", (28, 28), (784,)),
        ("mlp", (5,), (5,)),
        ("cnn", (28, 28), (28, 28, 1)),
        ("cnn", (32, 32, 3), (32, 32, 3)),
    ],
)
def test_shape_for_the_network(
    model: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert network_shape(model, shape) == expected


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"momentum": 0.5, "nesterov": True}, optim.SGD),
        ({"optimizer": "adam"}, optim.Adam),
        ({"optimizer": "adamw"}, optim.AdamW),
        ({"optimizer": "rmsprop", "momentum": 0.5}, optim.RMSprop),
    ],
)
def test_optimizers(given: dict[str, Any], kind: type[optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = make_optimizer(resolved(**given, lr=0.25, clip_norm=2.0, weight_decay=0.5), model)
    assert type(optimizer) is kind
    assert (optimizer.spec.clip_norm, optimizer.spec.weight_decay) == (2.0, 0.5)
    assert optimizer.spec.lr == optim.Cosine(0.25)
    for name in given.keys() - {"optimizer"}:
        assert getattr(optimizer.spec, name) == given[name]


def test_clip_norm_0_is_none() -> None:
    assert make_optimizer(resolved(), nn.Sequential(nn.Linear(2, 2))).spec.clip_norm is None


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        ({"schedule": "constant"}, optim.Constant(0.5)),
        ({"schedule": "step", "epochs": 7}, optim.Step(0.5, every=3)),
        ({"schedule": "exponential"}, optim.Exponential(0.5)),
        ({"warmup_epochs": 2.0}, optim.Cosine(0.5, warmup_epochs=2.0)),
        ({"schedule": "one_cycle"}, optim.OneCycle(0.5)),
        ({"schedule": "reduce_on_plateau"}, optim.ReduceOnPlateau(0.5)),
    ],
)
def test_schedules(given: dict[str, Any], schedule: optim.Schedule) -> None:
    assert make_schedule(resolved(lr=0.5, **given)) == schedule


def test_losses() -> None:
    assert make_loss(resolved(label_smoothing=0.1)) == SoftmaxCrossEntropy(0.1)
    assert make_loss(resolved(loss="huber", has_classes=False)) == Huber()


def test_data_by_name_or_by_path(tmp_path: Path) -> None:
    assert open_data("digits").name == "digits"
    np.savez(tmp_path / "mine.npz", x=np.eye(4), y=np.arange(4) % 2)
    assert open_data(str(tmp_path / "mine.npz")).class_names == ("0", "1")
    with pytest.raises(ConfigError, match="unknown data 'digist'"):
        open_data("digist")


def test_mnist_if_it_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise DataError("no connection")

    monkeypatch.setattr("warpfit.data.registry.user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr("warpfit.data.registry.fetch", fail)
    assert mnist_or_digits() == "digits"
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        for content in ("images-idx3", "labels-idx1"):
            (tmp_path / "mnist" / f"{part}-{content}-ubyte").touch()
    assert mnist_or_digits(tmp_path) == "mnist"
