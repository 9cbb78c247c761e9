from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from support.strict import STRICT
from warpfit import manual_seed, no_grad
from warpfit.data import DataLoader
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.losses import MeanSquaredError, SoftmaxCrossEntropy
from warpfit.nn import Linear, Module, Parameter, ReLU, Sequential, backward, forward, parameters
from warpfit.optim import SGD

EXAMPLE = Path(__file__).parents[2] / "examples" / "explicit_style.py"


def images(rows: int = 320) -> tuple[Any, Any]:
    """Return flat images of 28 × 28 whose class is a pattern under noise."""
    rng = np.random.default_rng(0)
    patterns, y = rng.uniform(0, 1, (10, 784)), np.arange(rows) % 10
    return (0.5 * patterns[y] + 0.5 * rng.uniform(0, 1, (rows, 784))).astype("float32"), y


def small() -> list[Module]:
    return [Linear(3, 4, seed=0), ReLU(), Linear(4, 2, seed=1)]


def batch(rows: int = 5, width: int = 3) -> Any:
    return np.random.default_rng(0).standard_normal((rows, width)).astype("float32")


# -- the loop as docs/from-pytorch.md has it
# ----------------------------------------------------------------------


def train_chain(dataloader: DataLoader) -> tuple[list[float], Any]:
    losses = []
    model = Sequential(Linear(784, 256, "cpu"), ReLU(), Linear(256, 10, "cpu"))
    opt = SGD(model.parameters(), lr=0.01)
    for x, y in dataloader:
        logits = forward(model, x)
        loss, grad = SoftmaxCrossEntropy.forward_and_grad(logits, y)
        backward(model, grad)
        opt.step()
        losses.append(loss)
    return losses, model


def train_list(dataloader: DataLoader) -> tuple[list[float], Any]:
    losses = []
    model = [Linear(784, 256, "cpu"), ReLU(), Linear(256, 10, "cpu")]
    opt = SGD(parameters(model), lr=0.01)
    for x, y in dataloader:
        logits = forward(model, x)
        loss, grad = SoftmaxCrossEntropy.forward_and_grad(logits, y)
        backward(model, grad)
        opt.step()
        losses.append(loss)
    return losses, Sequential(*model)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("train", [train_chain, train_list])
def test_the_printed_loop_learns(train: Any) -> None:
    manual_seed(0)
    x, y = images()
    # One thread, because two wait for each other on a busy machine.
    with threadpool_limits(1):
        losses, model = train(DataLoader(np.tile(x, (30, 1)), np.tile(y, 30), batch_size=32))
        accuracy = (model(x).argmax(axis=1) == y).mean()
    assert np.mean(losses[:5]) > 2.2
    assert np.mean(losses[-5:]) < 1.3
    assert accuracy > 0.9


def test_a_list_of_layers_trains_as_its_chain_does() -> None:
    x, y = batch(8), np.arange(8) % 2
    layers, chain = small(), Sequential(*small())
    for model in (layers, chain):
        opt = SGD(parameters(model), lr=0.1)
        for _ in range(5):
            _, grad = SoftmaxCrossEntropy.forward_and_grad(forward(model, x), y)
            backward(model, grad)
            opt.step()
    for one, other in zip(parameters(layers), chain.parameters(), strict=True):
        np.testing.assert_array_equal(one.data, other.data)


def test_a_step_is_the_formula() -> None:
    x, y = batch(6), np.ones((6, 1), "float32")
    model = [Linear(3, 1, seed=0)]
    w, b = model[0].weight.data.copy(), model[0].bias.data.copy()
    opt = SGD(parameters(model), lr=0.5)
    for _ in range(3):
        loss, grad = MeanSquaredError.forward_and_grad(forward(model, x), y)
        backward(model, grad)
        opt.step()
        error = x @ w + b - y
        assert loss == pytest.approx(float((error**2).mean()), rel=1e-5)
        w, b = w - 0.5 * 2 / 6 * x.T @ error, b - 0.5 * 2 / 6 * error.sum(axis=0)
    np.testing.assert_allclose(model[0].weight.data, w, rtol=1e-5)
    np.testing.assert_allclose(model[0].bias.data, b, rtol=1e-5)


@pytest.mark.slow
def test_the_example_learns_digits() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *STRICT, EXAMPLE],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    *epochs, last = run.stdout.splitlines()
    losses = [float(line.split()[-1]) for line in epochs]
    assert [line.split()[:3] for line in epochs] == [
        ["epoch", str(n), "loss"] for n in range(1, 21)
    ]
    assert losses == sorted(losses, reverse=True)
    assert last.startswith("test accuracy ")
    assert float(last.split()[-1]) > 0.96


# -- forward
# -----------------------------------------------------------------------------------------------


def test_forward_gives_the_models_outputs() -> None:
    model = Sequential(*small())
    for x in (batch(), batch().tolist(), batch().astype("float64")):
        y = forward(model, x)
        assert type(y) is np.ndarray
        assert y.dtype == "float32"
        np.testing.assert_array_equal(y, model(x))


def test_forward_takes_bytes_as_parts_of_255() -> None:
    x = np.array([[0, 51, 255]], "uint8")
    np.testing.assert_array_equal(forward(small(), x), forward(small(), [[0, 0.2, 1]]))


def test_forward_refuses_a_model_without_parameters() -> None:
    for model in ([ReLU()], [], Sequential(ReLU())):
        with pytest.raises(
            ConfigError, match="forward: expected a model with parameters, got none"
        ):
            forward(model, batch())


def test_forward_refuses_what_is_no_layer() -> None:
    with pytest.raises(ConfigError, match=r"Sequential: expected layers, .* got 'relu'"):
        forward(["relu"], batch())  # type: ignore[list-item]


def test_parameters_of_a_list_come_once() -> None:
    layer = Linear(3, 3)
    assert parameters([layer, ReLU(), layer]) == [layer.weight, layer.bias]
    assert parameters(layer) == [layer.weight, layer.bias]
    assert parameters([]) == []


# -- backward
# ----------------------------------------------------------------------------------------------


def test_backward_needs_a_forward() -> None:
    model = small()
    with pytest.raises(
        ConfigError, match=r"backward: expected a forward\(model, x\) before it, got none"
    ):
        backward(model, np.ones((5, 2)))
    with pytest.raises(ConfigError, match="got none"):
        backward([ReLU()], np.ones((5, 2)))


def test_backward_takes_its_forward() -> None:
    model = small()
    forward(model, batch())
    backward(model, np.ones((5, 2)))
    assert all(parameter.last_output is None for parameter in parameters(model))
    with pytest.raises(ConfigError, match="got none"):
        backward(model, np.ones((5, 2)))


def test_backward_after_a_forward_that_recorded_nothing() -> None:
    model = small()
    with no_grad():
        forward(model, batch())
    with pytest.raises(ConfigError, match="backward: expected a tensor"):
        backward(model, np.ones((5, 2)))


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (5,), (), (5, 2, 1)])
def test_backward_refuses_a_gradient_of_another_shape(shape: Any) -> None:
    model = small()
    forward(model, batch())
    with pytest.raises(ShapeError, match=r"expected a gradient of shape \(5, 2\), got \("):
        backward(model, np.ones(shape))


def test_backward_refuses_what_holds_no_numbers() -> None:
    model = small()
    forward(model, batch())
    with pytest.raises(DTypeError, match="expected numbers"):
        backward(model, np.full((5, 2), "a"))


def test_gradients_are_replaced_not_added_to() -> None:
    model = small()
    for scale in (1, 10, 2):
        forward(model, batch())
        backward(model, np.full((5, 2), scale))
    np.testing.assert_array_equal(model[2].bias.grad, [10, 10])


def test_a_parameter_that_is_not_used_has_no_gradient() -> None:
    class Spare(Module):
        def __init__(self) -> None:
            self.layer, self.spare = Linear(3, 2), Parameter(np.ones(2, "float32"))

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    model = Spare()
    model.spare.grad = np.ones(2, "float32")
    forward(model, batch())
    backward(model, np.ones((5, 2)))
    assert model.spare.grad is None
    assert model.layer.weight.grad is not None


def test_the_last_forward_counts() -> None:
    model = small()
    forward(model, batch(rows=7))
    forward(model, batch(rows=5))
    backward(model, np.ones((5, 2)))
    np.testing.assert_array_equal(model[2].bias.grad, [5, 5])


@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches(rows: int) -> None:
    model = small()
    logits = forward(model, batch(rows))
    loss, grad = SoftmaxCrossEntropy.forward_and_grad(logits, np.zeros(rows, int))
    backward(model, grad)
    assert logits.shape == grad.shape == (rows, 2)
    assert np.isfinite(loss)
    assert [parameter.grad.shape for parameter in parameters(model)] == [
        p.shape for p in parameters(model)
    ]
    if rows == 0:
        assert loss == 0
        assert all((parameter.grad == 0).all() for parameter in parameters(model))
