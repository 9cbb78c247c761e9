from __future__ import annotations

from math import erf, exp, expm1, log, log1p, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative, assert_within_tolerance
from warpfit import Tensor
from warpfit.autograd.formulas import activate, log_softmax, softmax
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.base import ACTIVATIONS
from warpfit.errors import ConfigError
from warpfit.nn import (
    GELU,
    SELU,
    Identity,
    Layer,
    LeakyReLU,
    LogSoftmax,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from warpfit.nn.activations import ActivationSpec, SoftmaxSpec

OPS = NumpyBackend()

# Each activation, and its formula for one number.
ELEMENTWISE: list[tuple[Layer, Any]] = [
    (Identity(), lambda x: x),
    (ReLU(), lambda x: max(x, 0)),
    (LeakyReLU(), lambda x: x if x > 0 else 0.01 * x),
    (LeakyReLU(0.3), lambda x: x if x > 0 else 0.3 * x),
    (Tanh(), tanh),
    (Sigmoid(), lambda x: 1 / (1 + exp(-x))),
    (GELU(), lambda x: x * (1 + erf(x / sqrt(2))) / 2),
    (GELU("tanh"), lambda x: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))),
    (SiLU(), lambda x: x / (1 + exp(-x))),
    (SELU(), lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * expm1(x))),
    (Mish(), lambda x: x * tanh(log1p(exp(x)))),
]
# Each normalisation, and its formula for one row.
ROWWISE: list[tuple[Layer, Any]] = [
    (Softmax(), lambda row: [exp(x) / sum(map(exp, row)) for x in row]),
    (LogSoftmax(), lambda row: [x - log(sum(map(exp, row))) for x in row]),
]
LAYERS = [layer for layer, _ in ELEMENTWISE + ROWWISE]


def batch(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-4, 4, shape)


@pytest.mark.parametrize(
    ("layer", "formula"), ELEMENTWISE, ids=[repr(layer) for layer, _ in ELEMENTWISE]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value(layer: Layer, formula: Any, dtype: str) -> None:
    x = batch(5, 3).astype(dtype)
    y = layer(Tensor(x)).data
    assert y.dtype == dtype
    assert_within_tolerance(y, np.vectorize(formula)(x.astype("float64")))


@pytest.mark.parametrize(("layer", "formula"), ROWWISE, ids=["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_along_the_last_axis(layer: Layer, formula: Any, dtype: str) -> None:
    x = batch(2, 5, 3).astype(dtype)
    y = layer(Tensor(x)).data
    assert y.dtype == dtype
    assert_within_tolerance(y, [[formula(row) for row in rows] for rows in x.astype("float64")])


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_gradient(layer: Layer) -> None:
    x, dy = batch(5, 3), batch(5, 3, seed=1)
    tensor = Tensor(x, requires_grad=True)
    layer(tensor).backward(dy)
    assert_derivative(tensor.grad, lambda x: np.vdot(dy, layer(Tensor(x)).data), x)


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_gradient_is_left_out_where_it_is_not_needed(layer: Layer) -> None:
    x, dy = batch(5, 3), batch(5, 3, seed=1)
    y, pullback = layer.spec.vjp(OPS, {}, x, layer.call(), needs_dx=False)
    np.testing.assert_array_equal(y, layer(Tensor(x)).data)
    assert pullback(dy) == (None, {})
    assert not layer(Tensor(x)).requires_grad


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (3, 0), (0, 0), (2, 3, 4)])
def test_shapes(layer: Layer, shape: tuple[int, ...]) -> None:
    x = Tensor(batch(*shape), requires_grad=True)
    y = layer(x)
    y.backward(np.ones(shape))
    assert y.shape == x.grad.shape == shape
    assert layer.spec.output_shape(shape[1:]) == shape[1:]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_large_inputs_stay_finite(layer: Layer) -> None:
    x = Tensor(np.array([[-1e4, 0, 1e4]], "float32"), requires_grad=True)
    y = layer(x)
    y.backward(np.ones((1, 3), "float32"))
    assert np.isfinite(y.data).all()
    assert np.isfinite(x.grad).all()


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_activations_have_no_state(layer: Layer) -> None:
    assert layer.parameters() == []
    assert layer.state_dict() == {}


def test_softmax_rows_add_up_to_one() -> None:
    np.testing.assert_allclose(Softmax()(batch(6, 4)).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(LogSoftmax()(batch(6, 4))), Softmax()(batch(6, 4)), rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activate_gives_the_pullback(name: str) -> None:
    z, dy = batch(5, 3), batch(5, 3, seed=1)
    y, backward = activate(OPS, z, activation=Activation(name))
    np.testing.assert_array_equal(y, OPS.activation_forward(Activation(name), z))
    (dz,) = backward(dy)
    assert_derivative(dz, lambda z: np.vdot(dy, OPS.activation_forward(Activation(name), z)), z)


@pytest.mark.parametrize(
    ("formula", "op"), [(softmax, OPS.softmax_forward), (log_softmax, OPS.log_softmax_forward)]
)
def test_softmaxes_give_their_pullbacks(formula: Any, op: Any) -> None:
    z, dy = batch(5, 3), batch(5, 3, seed=1)
    y, backward = formula(OPS, z)
    np.testing.assert_array_equal(y, op(z))
    (dz,) = backward(dy)
    assert_derivative(dz, lambda z: np.vdot(dy, op(z)), z)


def test_specs() -> None:
    assert ReLU().spec == ActivationSpec(Activation("relu"))
    assert LeakyReLU(0.2).spec == ActivationSpec(Activation("leaky_relu", 0.2))
    assert GELU().spec.activation.name == "gelu"
    assert GELU("tanh").spec.activation.name == "gelu_tanh"
    assert Softmax().spec == SoftmaxSpec(log=False)
    assert LogSoftmax().spec == SoftmaxSpec(log=True)


def test_reprs() -> None:
    assert [repr(layer) for layer in LAYERS] == [
        "Identity()",
        "ReLU()",
        "LeakyReLU(negative_slope=0.01)",
        "LeakyReLU(negative_slope=0.3)",
        "Tanh()",
        "Sigmoid()",
        "GELU()",
        "GELU(approximate='tanh')",
        "SiLU()",
        "SELU()",
        "Mish()",
        "Softmax()",
        "LogSoftmax()",
    ]


def test_gelu_refuses_other_approximations() -> None:
    with pytest.raises(ConfigError, match="GELU: expected approximate 'none' or 'tanh', got 'erf'"):
        GELU("erf")


@pytest.mark.parametrize("slope", [-0.1, float("nan")])
def test_leaky_relu_refuses_slopes(slope: float) -> None:
    with pytest.raises(
        ConfigError, match="expected a leaky_relu slope to be a number of at least 0, got"
    ):
        LeakyReLU(slope)
