"""The recipe airbench: its network, its optimizer, and its way from data to a score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import nn
from warpfit.errors import ConfigError, DataError, ShapeError
from warpfit.training import airbench, recipe_jobs
from warpfit.training.settings import TrainSettings, merged_settings

RNG = np.random.default_rng(0)


def pictures(count: int, side: int = 25, channels: int = 3) -> tuple[Any, Any]:
    """Return bytes whose bright rows say the class."""
    labels = RNG.integers(0, 2, count)
    images = RNG.integers(0, 60, (count, side, side, channels)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[8 * label + 4 : 8 * label + 10] += 150
    return images, labels


@pytest.fixture
def data(tmp_path: Path) -> str:
    (x, y), (x_test, y_test) = pictures(16), pictures(4)
    path = tmp_path / "pictures.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return str(path)


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(**{"recipe": "airbench", "device": "cpu", "quiet": True, **given})


def test_the_network_is_the_published_one() -> None:
    model = airbench.network(3, 10, 25)
    trained = sum(p.data.size for p in model.parameters() if p.requires_grad)
    assert model.num_parameters == 1_972_792
    assert trained == 1_972_792 - 2 * (64 + 256 + 256)  # weights of batch norms stay 1
    assert model.spec((32, 32, 3)).output_shape == (10,)  # type: ignore[union-attr]
    head = model[-1].weight.data  # type: ignore[attr-defined]
    assert head.std() == pytest.approx(1 / 256)


def test_first_filters_repeat_the_inputs() -> None:
    convolution: Any = airbench.network(3, 10, 25)[4]
    x = RNG.standard_normal((2, 6, 6, 24)).astype("float32")
    np.testing.assert_array_equal(convolution(x)[..., :24], x)


def test_whitened_patches_have_unit_variance() -> None:
    images = np.cumsum(RNG.standard_normal((50, 25, 25, 3)), axis=2)
    images = (0.5 + 0.1 * images / images.std()).astype("float32")
    model = airbench.network(3, 10, 25)
    first: Any = model[2]
    before = first.bias.data.copy()
    airbench.whiten(model, images)
    found = (first(images) - before).reshape(-1, 24)[:, :12].astype("float64")
    variance = found.T @ found / len(found)
    np.testing.assert_allclose(variance - np.diag(np.diag(variance)), 0, atol=1e-3)
    assert (np.diag(variance) < 1.0001).all()
    assert np.diag(variance).max() > 0.99
    np.testing.assert_allclose(first.weight.data[..., 12:], -first.weight.data[..., :12])
    assert [p.requires_grad for p in (first.weight, first.bias)] == [False, True]


def test_rates_are_those_of_a_sum_over_the_batch() -> None:
    model = airbench.network(3, 10, 25)
    airbench.whiten(model, pictures(4)[0] / np.float32(255))
    groups = airbench.optimizer_of(model).spec.groups
    assert [group.size for group in groups] == [6, 1, 6, 1]
    filters, first, biases, head = groups
    assert filters.lr == 0.24
    assert biases.lr == pytest.approx(0.053 * 2000)
    assert first.lr == pytest.approx(biases.lr * 3 / 8)
    assert head.lr == pytest.approx(0.67 * 2000 / 256**2)
    for group in (biases, head):  # what a step takes from a weight by itself
        assert group.lr * (group.weight_decay or 0) == pytest.approx(2e-6 * 2000)


def test_half_of_the_images_are_mirrored() -> None:
    images = pictures(400, side=3)[0]
    found = airbench.mirrored_half(images, 1)
    mirrored = (found == images[:, :, ::-1]).all(axis=(1, 2, 3))
    kept = (found == images).all(axis=(1, 2, 3))
    assert (mirrored | kept).all()
    assert 150 < mirrored.sum() < 250
    np.testing.assert_array_equal(found, airbench.mirrored_half(images, 1))
    assert (found != airbench.mirrored_half(images, 2)).any()


def test_views_are_mirrored_and_moved_by_a_pixel() -> None:
    class Corner(nn.Module):
        def forward(self, x: wf.Tensor) -> wf.Tensor:
            return x[:, 0, 0]

    x = np.arange(32.0, dtype="float32").reshape(1, 4, 4, 2)
    views = {(0, 0): 0.25, (0, 3): 0.25, (1, 1): 0.25, (1, 2): 0.25}
    expected = sum(share * x[:, row, column] for (row, column), share in views.items())
    np.testing.assert_allclose(airbench.outputs_of_views(Corner(), x), expected)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="expected images"):
        airbench.outputs_of_views(Corner(), x[0])  # type: ignore[arg-type]


def test_a_job_trains_tests_and_is_repeated_by_its_file(data: str, tmp_path: Path) -> None:
    job = recipe_jobs.prepare(settings(data=data, epochs=2, batch_size=8))
    outcome = job.run(tmp_path / "run", verbose=False)
    assert outcome.history["loss"][-1] < outcome.history["loss"][0]
    assert outcome.test is not None
    assert "by the mean over mirrored and moved views" in outcome.notes[-1]
    again = merged_settings({}, tmp_path / "run" / "config.toml")
    assert (again.recipe, again.epochs, again.batch_size) == ("airbench", 2, 8)
    repeated = recipe_jobs.prepare(again).run(tmp_path / "again", verbose=False)
    assert repeated.history["loss"] == outcome.history["loss"]
    loaded = wf.load_trained(tmp_path / "run" / "model.safetensors")
    assert loaded.card.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 0.1}, "expected lr to be left to the recipe airbench, got 0.1"),
        ({"model": "cnn"}, "expected model to be left to the recipe airbench, got 'cnn'"),
        ({"early_stopping": 3}, "expected early_stopping to be left to the recipe airbench"),
        ({"recipe": "resnet"}, "expected a recipe among airbench, got 'resnet'"),
    ],
)
def test_refuses_what_the_recipe_decides(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**given)


@pytest.mark.parametrize("flags", [{"model": "mlp"}, {"nesterov": False}, {"optimizer": "sgd"}])
def test_refuses_defaults_that_are_named(flags: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(settings().to_toml())
    assert merged_settings({}, config) == replace(settings(), quiet=False)
    (name,) = flags
    with pytest.raises(ConfigError, match=f"expected {name} to be left to the recipe airbench"):
        merged_settings(flags, config)


@pytest.mark.parametrize(("asked", "found"), [(64, 64), (None, 80)])
def test_a_batch_size_that_is_named_wins(tmp_path: Path, asked: int | None, found: int) -> None:
    x, y = pictures(80)
    test = {"x_test": x[:8], "y_test": y[:8]}
    np.savez(tmp_path / "pictures.npz", x_train=x, y_train=y, **test)
    job = recipe_jobs.prepare(settings(data=str(tmp_path / "pictures.npz"), batch_size=asked))
    assert job.settings.batch_size == found


def test_refuses_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ShapeError, match=r"25 to 48 pixels a side .*, got samples of shape \(8, 8"):
        recipe_jobs.prepare(settings(data="digits"))
    np.savez(tmp_path / "values.npz", x=RNG.random((9, 32, 32)), y=RNG.random(9))
    with pytest.raises(ConfigError, match="expected data with classes for the recipe airbench"):
        recipe_jobs.prepare(settings(data=str(tmp_path / "values.npz")))
    monkeypatch.setattr("warpfit.data.registry.fetch", no_network)
    with pytest.raises(DataError, match=r"put cifar-10-binary\.tar\.gz into a folder .*/cifar10"):
        recipe_jobs.prepare(settings(data_dir=str(tmp_path)))


def no_network(*_: Any) -> Any:
    raise DataError("there is no network")
