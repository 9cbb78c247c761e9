"""Losses of a user's own by `forward`, or by a function: the tape has their derivative."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import warpfit as wf
from support.numeric import assert_derivative
from support.training import (
    Taped,
    adam,
    assert_same_weights,
    blobs,
    mlp,
    relative_difference,
    unchanged,
)
from warpfit import Tensor, losses, nn
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.losses import Loss, MeanSquaredError, resolve
from warpfit.losses.base import FunctionLoss

RNG = np.random.default_rng(0)
OUTPUTS, TARGETS = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
WEIGHTS = RNG.uniform(0.5, 2, 6)
X, LABELS = blobs(40)
Y = X[:, :2]


class OfElements(Loss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) ** 2


class OfRows(Loss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean(axis=1)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets) ** 2


def mean_of_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return squares(outputs, targets).mean()


def likelihood(outputs: Tensor, labels: Tensor) -> Tensor:
    return -nn.LogSoftmax()(outputs)[np.arange(len(outputs)), labels.data]


EVERY: list[Any] = [OfElements(), OfRows(), resolve(squares), resolve(mean_of_squares)]
WEIGHED = EVERY[:3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_a_formula_of_tensors_has_the_values_of_the_packages_loss(loss: Loss, dtype: str) -> None:
    outputs, targets = OUTPUTS.astype(dtype), TARGETS.astype(dtype)
    weights = [None, WEIGHTS.astype(dtype)] if loss in WEIGHED else [None]
    for sample_weight in weights:
        arguments = {"sample_weight": sample_weight}
        value, gradient = loss.forward_and_grad(outputs, targets, **arguments)
        expected = MeanSquaredError().forward_and_grad(outputs, targets, **arguments)
        rtol = 1e-6 if dtype == "float32" else 1e-14
        assert value == pytest.approx(expected[0], rel=rtol)
        np.testing.assert_allclose(gradient, expected[1], rtol=10 * rtol)
        assert gradient.dtype == dtype
        assert loss(outputs, targets, **arguments) == value
        ops = wf.backends.get("cpu")
        total = loss.vjp(ops, outputs, targets, **arguments)[1]
        assert total == pytest.approx(6 if sample_weight is None else WEIGHTS.sum())


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_gradient_of_a_classes_formula(weights: Any) -> None:
    labels, loss = RNG.integers(0, 4, 6), resolve(likelihood)
    value, gradient = loss.forward_and_grad(OUTPUTS, labels, sample_weight=weights)
    entropy = losses.SoftmaxCrossEntropy()
    assert value == pytest.approx(entropy(OUTPUTS, labels, sample_weight=weights))
    assert_derivative(gradient, lambda z: loss(z, labels, sample_weight=weights), OUTPUTS)


def test_the_gradient_is_the_same_when_asked_for_again_and_joins_a_tape() -> None:
    _, _, pullback = OfRows().vjp(wf.backends.get("cpu"), OUTPUTS, TARGETS)
    np.testing.assert_array_equal(pullback(), pullback())
    z = Tensor(OUTPUTS, requires_grad=True)
    (OfRows()(z, TARGETS) * 3).backward()
    np.testing.assert_allclose(z.grad, 3 * np.asarray(pullback()))


@pytest.mark.parametrize("loss", WEIGHED, ids=repr)
def test_a_batch_without_weight_has_loss_0(loss: Loss) -> None:
    value, gradient = loss.forward_and_grad(OUTPUTS, TARGETS, sample_weight=np.zeros(6))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


# -- names
# ------------------------------------------------------------------------------------------------


def test_a_function_has_its_name_and_is_in_no_registry() -> None:
    before = dict(Loss.by_name)
    loss = resolve(squares)
    assert loss == FunctionLoss(squares) != resolve(mean_of_squares)
    assert resolve(loss) is loss
    assert json.loads(json.dumps(loss.to_dict())) == {"name": f"{__name__}.squares"}
    assert resolve(partial(squares)).name == "functools.partial"
    assert Loss.by_name == before


@pytest.mark.parametrize("loss", [MeanSquaredError, OfRows])
def test_a_class_is_no_loss(loss: Any) -> None:
    with pytest.raises(
        ConfigError, match="a Loss or a function of outputs and targets, got the class"
    ):
        resolve(loss)


def test_a_function_takes_outputs_and_targets() -> None:
    for function in (len, lambda outputs: outputs, lambda outputs, targets, *, weight: outputs):
        with pytest.raises(ConfigError, match=r"expected a loss\(outputs, targets\), but of .*arg"):
            resolve(function)  # type: ignore[call-overload]


def test_a_decorator_may_add_what_a_function_takes_besides() -> None:
    @wraps(squares)
    def decorated(*given: Tensor) -> Tensor:
        return squares(*given)

    def scaled(outputs: Tensor, targets: Tensor, scale: float) -> Tensor:
        return squares(outputs, targets) * scale

    decorated.__wrapped__ = scaled  # type: ignore[attr-defined]
    assert resolve(decorated).name.endswith("squares")


def test_a_saved_model_remembers_the_name_of_its_function(tmp_path: Path) -> None:
    model = mlp(6, 2)
    wf.fit(model, X, Y, loss=squares, optimizer="adam", epochs=1, verbose=False)
    assert model.loss == resolve(squares)
    assert wf.evaluate(model, X, Y).loss == pytest.approx(wf.evaluate(model, X, Y, loss="mse").loss)
    np.testing.assert_array_equal(wf.predict(model, X, kind="values"), wf.predict(model, X))
    wf.save(model, tmp_path / "model.safetensors")
    loaded = wf.load(tmp_path / "model.safetensors")
    assert loaded.loss == {"name": f"{__name__}.squares"}
    with pytest.raises(ConfigError, match=r"give loss=: expected a loss among .*squares"):
        wf.evaluate(loaded, X, Y)
    assert wf.evaluate(loaded, X, Y, loss=squares).loss == wf.evaluate(model, X, Y).loss


# -- training
# ------------------------------------------------------------------------------------------------


def fit(model: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 3, "batch_size": 16, "verbose": False, **settings}
    return wf.fit(model, X, y, optimizer=optimizer or adam(model), **settings)


@pytest.mark.parametrize("wrap", [lambda model: model, Taped], ids=["layers", "module"])
@pytest.mark.parametrize(
    "loss", [squares, mean_of_squares, OfRows()], ids=["rows", "mean", "class"]
)
def test_training_by_a_formula_is_training_by_the_packages_loss(loss: Any, wrap: Any) -> None:
    model, expected = wrap(mlp(6, 5, 2)), wrap(mlp(6, 5, 2))
    history = fit(model, Y, loss=loss, validation_data=(X, Y))
    known = fit(expected, Y, loss="mse", validation_data=(X, Y))
    assert relative_difference(model, expected) < 1e-5
    np.testing.assert_allclose(history["val_loss"], known["val_loss"], rtol=1e-5)


def test_sample_weights_and_one_output() -> None:
    weights, models = np.linspace(0.5, 2, 40), [mlp(6, 1), mlp(6, 1)]
    for model, loss in zip(models, (squares, "mse"), strict=True):
        fit(model, X[:, 0], loss=loss, sample_weight=weights)  # (N,), which is no (N, N)
    assert relative_difference(*models) < 1e-5


def test_labels_come_as_they_are() -> None:
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    for model, loss in zip(models, (likelihood, "cross_entropy"), strict=True):
        fit(model, LABELS, loss=loss, epochs=10)
    assert relative_difference(*models) < 1e-4
    assert wf.evaluate(models[0], X, LABELS, loss="cross_entropy").accuracy > 0.5


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    fit(mlp(6, 2), Y, loss=squares, epochs=2, callbacks=[wf.Checkpoint(path)])
    resumed, whole = mlp(6, 2), mlp(6, 2)
    fit(resumed, Y, loss=squares, epochs=4, resume_from=path)
    fit(whole, Y, loss=squares, epochs=4)
    assert_same_weights(resumed, whole)
    with pytest.raises(ConfigError, match=r"differs in .*loss"):
        fit(mlp(6, 2), Y, loss=mean_of_squares, epochs=4, resume_from=path)


@pytest.mark.parametrize("loss", [squares, OfRows()], ids=["function", "class"])
def test_on_a_gpu_the_engine_that_can_take_it_does(cuda: str, loss: Any) -> None:
    model, expected = mlp(6, 2), mlp(6, 2)
    history = fit(model, Y, loss=loss, epochs=2, device=cuda)
    fit(expected, Y, loss="mse", epochs=2, device="cpu")
    assert relative_difference(model, expected) < 1e-4
    assert history.plan.engine == "layerwise"
    for engine in ("one_launch", "graph"):
        assert f"{engine}: expected a loss" in history.plan.reason
        with pytest.raises(ConfigError, match=f"engine '{engine}': expected a loss"):
            fit(mlp(6, 2), Y, loss=loss, device=cuda, engine=engine)


# -- what is refused
# ------------------------------------------------------------------------------------------------


def on_the_host(outputs: Tensor, targets: Tensor) -> Any:
    return Tensor(np.abs(outputs.numpy() - targets.numpy()))


@pytest.mark.parametrize(
    ("loss", "settings", "error", "match"),
    [
        (lambda z, t: float((z - t).sum()), {}, DTypeError, r"a tensor of shape \(\).* got float"),
        (lambda z, t: (z - t).sum(axis=0), {}, ShapeError, r"\(16, ...\) of .*, got shape \(2,\)"),
        (
            mean_of_squares,
            {"sample_weight": np.ones(40)},
            ConfigError,
            r"which sample weights need, got shape \(\)",
        ),
        (on_the_host, {}, ConfigError, "on_the_host: expected a loss computed from the outputs as"),
        (squares, {"class_weight": "balanced"}, ConfigError, "expected no class_weight"),
    ],
)
def test_what_is_no_loss_is_refused(
    loss: Any, settings: dict[str, Any], error: type[Exception], match: str
) -> None:
    model = mlp(6, 2)
    optimizer = adam(model)
    with unchanged(model, optimizer), pytest.raises(error, match=match):
        fit(model, Y, optimizer, loss=loss, **settings)


def test_a_loss_without_a_formula() -> None:
    with pytest.raises(NotImplementedError, match="Loss defines neither forward nor vjp"):
        Loss()(OUTPUTS, TARGETS)


def test_another_formula_takes_the_place_of_the_bases() -> None:
    @dataclass(frozen=True)
    class FourthPower(MeanSquaredError):  # noqa: N818  (its base's name)
        name: ClassVar[str] = ""

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets) ** 4

    expected = ((OUTPUTS - TARGETS) ** 4).mean()
    assert FourthPower()(OUTPUTS, TARGETS) == pytest.approx(expected)
    assert FourthPower.train_step is Loss.train_step
    assert not FourthPower().has_terms


def test_candidates_are_compared_by_a_function() -> None:
    def build(candidate: Any) -> Any:
        model = mlp(6, 2)
        return model, adam(model, candidate["lr"])

    settings = {"epochs": 2, "n_jobs": 1, "device": "cpu", "validation_data": (X, Y)}
    grid = {"lr": [0.001, 0.01]}
    found, known = (
        wf.fit_many(build, X, Y, grid=grid, loss=loss, **settings) for loss in (squares, "mse")
    )
    val_losses = [[record["val_loss"] for record in sweep] for sweep in (found, known)]
    np.testing.assert_allclose(*val_losses, rtol=1e-5)
