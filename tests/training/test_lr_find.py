"""The learning-rate finder: what it measures, what it suggests, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import losses, nn
from warpfit.errors import ConfigError, ShapeError

X, LABELS = blobs(120)


def find(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.LRCurve:
    settings = {"batch_size": 16, "device": "cpu", **settings}
    return wf.lr_find(model, X, LABELS, optimizer=optimizer or sgd(model), **settings)


@pytest.fixture(scope="module")
def curve() -> wf.LRCurve:
    return find(mlp(6, 16, 3))


def test_it_suggests_a_rate_that_trains(curve: wf.LRCurve) -> None:
    assert curve.suggestion is not None
    assert curve.suggestion in curve.rates
    ends = []
    for rate in (curve.suggestion, curve.suggestion / 100):
        model = mlp(6, 16, 3)
        history = wf.fit(
            model, X, LABELS, optimizer=sgd(model, rate), epochs=5, batch_size=16, verbose=False
        )
        ends.append(history["loss"][-1])
    assert ends[0] < 0.8 * ends[1]


def test_losses_are_those_of_the_loop_written_out() -> None:
    found = find(mlp(6, 16, 3), min_lr=1e-3, max_lr=1.0, num_steps=20)
    model = mlp(6, 16, 3)
    optimizer = sgd(model)
    loader = wf.data.DataLoader(X, LABELS, 16)
    batches = [*loader, *loader, *loader][:20]
    rates = np.geomspace(1e-3, 1.0, 20)
    np.testing.assert_array_equal(found.rates, rates)
    for rate, (x, y), got in zip(rates, batches, found.losses, strict=True):
        loss = losses.SoftmaxCrossEntropy()(model(wf.tensor(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(rate)
        assert loss.item() == got


def test_an_optimizer_may_be_named() -> None:
    found, expected = (find(mlp(6, 16, 3), opt, num_steps=10) for opt in ("sgd", None))
    np.testing.assert_array_equal(found.losses, expected.losses)


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_model_and_optimizer_stay_as_they_are(optimizer: Any) -> None:
    model, untouched = mlp(6, 16, 3), mlp(6, 16, 3)
    opt = optimizer(model)
    model.eval()
    find(model, opt)
    assert_same_weights(model, untouched)
    assert opt.step_count == 0
    assert all(not array.any() for arrays in opt.make_slots().values() for array in arrays)
    assert (model.training, model.loss) == (False, None)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_ends_where_the_loss_explodes(curve: wf.LRCurve) -> None:
    found = find(mlp(6, 16, 3), max_lr=1e30)
    assert 10 < len(found.rates) == len(found.losses) == len(found.smoothed) < 200
    assert np.isfinite(found.losses).all()
    assert found.suggestion == pytest.approx(curve.suggestion, rel=20)


def test_without_a_fall_there_is_no_suggestion() -> None:
    found = find(mlp(6, 3), batch_size=120, min_lr=1e-30, max_lr=1e-29, num_steps=10)
    assert found.suggestion is None
    assert len(found.rates) == 10
    assert len(found.plot().axes[0].get_lines()) == 2


def test_weights_that_overflow_at_once_leave_nothing() -> None:
    model = mlp(6, 3)
    model[0].weight.data[...] = 3e38
    found = find(model)
    assert (len(found.rates), found.suggestion) == (0, None)
    assert repr(found) == "LRCurve(0 rates, none; suggestion None)"


def convolution() -> nn.Module:
    layers = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(32, 3))


def test_pixels_buffers_and_dropout() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 4, 4, 1), np.uint8)
    model = convolution()
    before = model.state_dict()
    labels = np.arange(64) % 3
    settings: Any = {"optimizer": adam(model, l2=1e-3), "num_steps": 12, "device": "cpu"}
    found = wf.lr_find(model, pixels, labels, **settings)
    assert len(found.rates) == 12
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_users_own_module_and_another_loss() -> None:
    model = Taped(mlp(6, 8, 1))
    settings: Any = {"optimizer": sgd(model), "device": "cpu", "num_steps": 50}
    found = wf.lr_find(model, X, X.sum(1), loss="mse", **settings)
    assert found.suggestion is not None


def test_on_a_device(cuda: str) -> None:
    settings: Any = {"num_steps": 10, "min_lr": 1e-2, "max_lr": 0.5}
    here, there = (find(mlp(6, 8, 3), device=device, **settings) for device in ("cpu", cuda))
    np.testing.assert_allclose(here.losses, there.losses, rtol=1e-4)


def test_the_picture(curve: wf.LRCurve, tmp_path: Path) -> None:
    figure = curve.plot(tmp_path / "rates.png", title="rates")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "learning rate")
    assert axes.get_lines()[-1].get_xdata()[0] == curve.suggestion
    assert axes.get_ylim()[1] < 2.5 * curve.losses[0]


def test_what_a_notebook_shows(curve: wf.LRCurve) -> None:
    shown = curve._repr_html_()
    assert f"suggestion {curve.suggestion:.3g}" in shown
    assert "data:image/png;base64," in shown


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"min_lr": 1.0, "max_lr": 0.1}, ConfigError, "expected 0 < min_lr < max_lr, got 1.0 and"),
        ({"min_lr": 0}, ConfigError, "expected 0 < min_lr < max_lr, got 0 and 10.0"),
        ({"max_lr": "high"}, ConfigError, "expected max_lr to be a number of at least 0, got"),
        ({"num_steps": 9}, ConfigError, "expected num_steps to be an integer of at least 10, got"),
        ({"batch_size": 0}, ConfigError, "expected batch_size to be an integer of at least 1"),
        ({"optimizer": 0.1}, ConfigError, "expected an optimizer of warpfit.optim, .* got 0.1"),
        ({"loss": "none"}, ConfigError, "none"),
    ],
)
def test_misuse(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        find(mlp(6, 3), **settings)


def test_what_does_not_fit_together() -> None:
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match="expected a model"):
        wf.lr_find("model", X, LABELS, optimizer=sgd(model))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="over the model's own parameters, got 2"):
        find(mlp(6, 3), sgd(model))
    with pytest.raises(ShapeError, match="expected as many rows in y as in x, got 119 and 120"):
        wf.lr_find(model, X, LABELS[1:], optimizer=sgd(model))
