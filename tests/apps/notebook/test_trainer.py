"""The demo's trainings: what comes out of them, and what is said of those that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.apps.notebook.trainer import (
    FEW_ROWS,
    MANY_ROWS,
    OPTIMIZERS,
    Choices,
    DemoSettings,
    Trainer,
)
from warpfit.data import Dataset, load_dataset
from warpfit.errors import ConfigError, DeviceError

QUICK = Choices(widths=(8, 16), batch_sizes=(16, 64), largest_depth=2, epochs=4)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(device="cpu", choices=QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "expected width to be an integer of at least 1, got 0"),
        ({"depth": -1}, "expected depth to be an integer of at least 0, got -1"),
        ({"batch_size": 2.5}, r"expected batch_size to be an integer of at least 1, got 2\.5"),
        ({"lr": 0.0}, "expected lr to be a positive number, got 0.0"),
        ({"lr": float("nan")}, "expected lr to be a positive number, got nan"),
        ({"optimizer": "adam"}, "expected optimizer among SGD, .*, RMSprop, got 'adam'"),
    ],
)
def test_settings_that_are_none(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DemoSettings(**change)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(trainer: Trainer, name: str) -> None:
    lr = {"SGD": 0.1, "Adadelta": 1.0}.get(name.split(",")[0], 0.01)
    run = trainer.train(DemoSettings(width=16, lr=lr, batch_size=16, optimizer=name))
    assert run.error is None
    assert run.accuracy > 0.8
    assert run.history.plan.optimizer.lr.lr == lr
    assert len(run.history) == QUICK.epochs


def test_what_comes_out(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(width=8, depth=2, batch_size=16))
    y = trainer.dataset.y_test
    assert run.sizes == (64, 8, 8, 10)
    assert run.num_parameters == 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10
    assert (
        run.accuracy
        == np.trace(run.confusion) / run.confusion.sum()
        == run.history["val_accuracy"][-1]
    )
    assert np.array_equal(run.confusion.sum(axis=1), np.bincount(y))
    assert run.weights.shape == (8, 8, 8)
    assert run.seconds > 0
    assert np.allclose(run.probabilities.sum(axis=1), 1, atol=1e-5)


def test_the_samples_are_one_of_each_class_and_the_worst_mistakes(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(width=8, batch_size=64))
    y = trainer.dataset.y_test[run.samples]
    predicted, surest = run.probabilities.argmax(axis=1), run.probabilities.max(axis=1)
    assert list(y[:10]) == list(range(10))
    assert len(run.samples) == 10 + Trainer.MISTAKES
    assert (predicted[10:] != y[10:]).all()
    assert (np.diff(surest[10:]) <= 0).all()


def test_equal_settings_give_equal_runs(trainer: Trainer) -> None:
    first, second = (trainer.train(DemoSettings(width=8)) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)
    assert np.array_equal(first.history.step_losses, second.history.step_losses)


def test_without_a_hidden_layer_each_class_has_its_weights(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(depth=0))
    assert run.sizes == (64, 10)
    assert run.weights.shape == (10, 8, 8)


def test_a_training_that_diverges_is_one_sentence(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(lr=1e30))
    assert run.error is not None
    assert run.error.startswith("the loss or a weight is not finite in epoch 1")
    assert "\n" not in run.error
    assert not len(run.history)
    assert run.samples.size == 0


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError):
        Trainer(device="cuda:99")


@pytest.mark.parametrize("shape", [(6,), (4, 5), (4, 4, 3)])
def test_data_that_are_no_square_images(shape: tuple[int, ...]) -> None:
    x, y = np.zeros((4, *shape), np.float32), np.arange(4)
    with pytest.raises(ConfigError, match="expected a data set of square images in one colour"):
        Trainer(Dataset("others", x, y, x, y, tuple("abcd")), device="cpu")


def test_regression_has_no_classes_to_show() -> None:
    x, y = np.zeros((4, 4, 4), np.float32), np.zeros(4, np.float32)
    with pytest.raises(ConfigError, match="in classes, got Dataset"):
        Trainer(Dataset("numbers", x, y, x, y, ()), device="cpu")


@pytest.mark.slow
def test_a_few_digits_on_a_device(cuda: str) -> None:
    digits = load_dataset("digits")
    few = Dataset(
        "few",
        digits.x_train[:96],
        digits.y_train[:96],
        digits.x_test[:40],
        digits.y_test[:40],
        digits.class_names,
    )
    choices = Choices(widths=(16,), batch_sizes=(32,), largest_depth=1, epochs=2)
    trainer = Trainer(few, device=cuda, choices=choices)
    run = trainer.train(DemoSettings(width=16, batch_size=32, lr=0.1))
    assert run.error is None
    assert run.history.plan.device == "cuda:0"
    assert run.history["loss"][1] < run.history["loss"][0]
    assert run.weights.shape == (16, 8, 8)
    assert trainer.device_name != "CPU"


def test_the_choices_suit_the_rows() -> None:
    digits = load_dataset("digits")
    x, y = np.repeat(digits.x_train, 7, axis=0), np.repeat(digits.y_train, 7)
    many = Dataset("many", x, y, digits.x_test, digits.y_test, digits.class_names)
    assert Trainer(device="cpu").choices is FEW_ROWS
    assert Trainer(many, device="cpu").choices is MANY_ROWS
    defaults = DemoSettings()
    for choices in (FEW_ROWS, MANY_ROWS):
        assert defaults.width in choices.widths
        assert defaults.batch_size in choices.batch_sizes
        assert defaults.depth <= choices.largest_depth
