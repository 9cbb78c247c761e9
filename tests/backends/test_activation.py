from __future__ import annotations

from math import erf, erfc, exp, expm1, log1p, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from support.numeric import (
    DTYPES,
    assert_derivative,
    assert_within_tolerance,
    call,
    download,
    upload,
)
from warpfit.backends import Activation, Backend
from warpfit.backends.base import ACTIVATIONS
from warpfit.errors import ConfigError, ShapeError

SLOPE = 0.2
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z)) if z > -700 else 0.0


FORMULAS = {
    "identity": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "leaky_relu": lambda z: z if z > 0 else SLOPE * z,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "gelu": lambda z: z * 0.5 * (1 + erf(z / sqrt(2))),
    "gelu_tanh": lambda z: z * 0.5 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z * sigmoid(z),
    "selu": lambda z: SELU_SCALE * (z if z > 0 else SELU_ALPHA * expm1(z)),
    "mish": lambda z: z * tanh(log1p(exp(z))),
}

# What y and dy/dz tend to far out, as multiples of z and of 1, at -1e4 and at +1e4.
FAR_VALUES = {
    "identity": (-1e4, 1e4),
    "leaky_relu": (-SLOPE * 1e4, 1e4),
    "tanh": (-1, 1),
    "sigmoid": (0, 1),
    "selu": (-SELU_SCALE * SELU_ALPHA, SELU_SCALE * 1e4),
}
FAR_SLOPES = {
    "identity": (1, 1),
    "leaky_relu": (SLOPE, 1),
    "tanh": (0, 0),
    "sigmoid": (0, 0),
    "selu": (0, SELU_SCALE),
}


def normal(*shape: int, seed: int = 0) -> Any:
    return 2 * np.random.default_rng(seed).standard_normal(shape)


# -- elementwise
# -------------------------------------------------------------------------------------------


def test_every_activation_is_tested() -> None:
    assert list(FORMULAS) == list(ACTIVATIONS)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_forward(backend: Backend, name: str, dtype: str) -> None:
    z = np.append(np.linspace(-12, 12, 241), [0.0, -0.0]).astype(dtype)
    y = call(backend.activation_forward, Activation(name, SLOPE), z)
    assert y.dtype == dtype
    assert_within_tolerance(y, [FORMULAS[name](float(value)) for value in z])


def test_gelu_far_below_zero_is_exact_enough(backend: Backend) -> None:
    z = np.linspace(-6, -3, 61, dtype="float32")
    y = call(backend.activation_forward, Activation("gelu"), z)
    exact = [float(value) * 0.5 * erfc(-float(value) / sqrt(2)) for value in z]
    np.testing.assert_allclose(y, exact, rtol=4e-6)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_take_any_shape(
    backend: Backend, name: str, shape: tuple[int, ...], dtype: str
) -> None:
    activation, z = Activation(name), np.asarray(normal(*shape), dtype)
    y = call(backend.activation_forward, activation, z)
    dz = call(backend.activation_backward, activation, np.ones_like(z), y, z)
    for result in (y, dz):
        assert (result.shape, result.dtype) == (shape, dtype)
    np.testing.assert_array_equal(
        y.ravel(), call(backend.activation_forward, activation, z.ravel())
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_in_place(backend: Backend, name: str) -> None:
    activation, values = Activation(name), normal(4, 3)
    z = backend.copy(backend.asarray(values))
    assert backend.activation_forward(activation, z, out=z) is z
    expected = call(backend.activation_forward, activation, values)
    np.testing.assert_array_equal(backend.to_numpy(z), expected)
    out = backend.zeros((4, 3), "float64")
    assert backend.activation_forward(activation, backend.asarray(values), out) is out
    np.testing.assert_array_equal(backend.to_numpy(out), expected)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_backward_is_the_derivative(backend: Backend, name: str) -> None:
    activation, z, dy = Activation(name, SLOPE), normal(6, 5), normal(6, 5, seed=1)
    y = call(backend.activation_forward, activation, z)
    dz = call(backend.activation_backward, activation, dy, y, z)
    assert_derivative(
        dz, lambda value: np.sum(dy * call(backend.activation_forward, activation, value)), z
    )
    if not activation.needs_input:
        np.testing.assert_array_equal(
            call(backend.activation_backward, activation, dy, y, None), dz
        )


@pytest.mark.parametrize("name", ["identity", "relu", "gelu"])
def test_activation_backward_adds_two_gradients(backend: Backend, name: str) -> None:
    activation, rng = Activation(name), np.random.default_rng(0)
    z, dy, plus = (rng.standard_normal((3, 5)) for _ in range(3))
    y = call(backend.activation_forward, activation, z)
    on_device = [upload(backend, array) for array in (dy, y, z)]
    found = backend.activation_backward(activation, *on_device, plus=upload(backend, plus))
    expected = call(backend.activation_backward, activation, dy + plus, y, z)
    np.testing.assert_array_equal(download(backend, found), expected)
    with pytest.raises(ShapeError, match=r"activation_backward: expected plus of shape \(3, 5\)"):
        backend.activation_backward(activation, *on_device, plus=upload(backend, plus[:2]))


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_backward_in_float32(backend: Backend, name: str) -> None:
    activation, z, dy = Activation(name, SLOPE), normal(50, 7), normal(50, 7, seed=1)
    results = []
    for dtype in DTYPES:
        z_here = z.astype("float32").astype(dtype)
        y = call(backend.activation_forward, activation, z_here)
        results.append(call(backend.activation_backward, activation, dy.astype(dtype), y, z_here))
    precise, single = sorted(results, key=lambda result: -result.itemsize)
    assert single.dtype == np.float32
    assert_within_tolerance(single, precise)


@pytest.mark.parametrize(
    ("name", "at_zero"), [("relu", 0.0), ("leaky_relu", SLOPE), ("selu", SELU_SCALE * SELU_ALPHA)]
)
def test_slope_at_zero(backend: Backend, name: str, at_zero: float) -> None:
    zero = np.zeros(1)
    dz = call(backend.activation_backward, Activation(name, SLOPE), np.ones(1), zero, zero)
    np.testing.assert_array_equal(dz, [at_zero])


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_out(backend: Backend, name: str, dtype: str) -> None:
    activation, z = Activation(name, SLOPE), np.array([-1e4, 1e4], dtype)
    y = call(backend.activation_forward, activation, z)
    dz = call(backend.activation_backward, activation, np.ones_like(z), y, z)
    np.testing.assert_allclose(y, FAR_VALUES.get(name, (0, 1e4)), rtol=1e-6)
    np.testing.assert_allclose(dz, FAR_SLOPES.get(name, (0, 1)), rtol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_is_not_hidden(backend: Backend, name: str) -> None:
    assert np.isnan(call(backend.activation_forward, Activation(name), np.array([np.nan])))


def test_activations_refuse_shapes(backend: Backend) -> None:
    relu, z = Activation("relu"), np.zeros((2, 3))
    with pytest.raises(ShapeError, match=r"activation_forward: .* got \(2, 3\) and \(3,\)"):
        call(backend.activation_forward, relu, z, np.zeros(3))
    with pytest.raises(ShapeError, match=r"activation_backward: .* got \(3,\) and \(2, 3\)"):
        call(backend.activation_backward, relu, np.zeros(3), z, None)
    gelu = Activation("gelu")
    with pytest.raises(ShapeError, match=r"activation_backward: .* got \(2, 2\) and \(2, 3\)"):
        call(backend.activation_backward, gelu, z, z, np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="activation_backward: expected z for gelu, got None"):
        call(backend.activation_backward, gelu, z, z, None)


# -- softmax
# -----------------------------------------------------------------------------------------------

SOFTMAX = {"softmax": softmax, "log_softmax": log_softmax}


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5), (1, 1), (4,), (2, 3, 4), (0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_forward(backend: Backend, name: str, shape: tuple[int, ...], dtype: str) -> None:
    z = normal(*shape).astype(dtype)
    y = call(getattr(backend, f"{name}_forward"), z)
    assert y.dtype == dtype
    expected = SOFTMAX[name](z.astype("float64"), axis=-1) if z.size else np.zeros(shape)
    assert_within_tolerance(y, expected)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("shape", [(6, 5), (4,), (2, 3, 4), (3, 1)])
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_backward_is_the_derivative(
    backend: Backend, name: str, shape: tuple[int, ...]
) -> None:
    forward, backward = (getattr(backend, f"{name}_{way}") for way in ("forward", "backward"))
    z, dy = normal(*shape), normal(*shape, seed=1)
    dz = call(backward, dy, call(forward, z))
    assert_derivative(dz, lambda value: np.sum(dy * call(forward, value)), z)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_backward_refuses_shapes(backend: Backend, name: str) -> None:
    with pytest.raises(ShapeError, match=rf"{name}_backward: .* got \(3,\) and \(2, 3\)"):
        call(getattr(backend, f"{name}_backward"), np.zeros(3), np.zeros((2, 3)))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [-1e4, 0, 1e4])
def test_softmax_is_stable(backend: Backend, offset: float, dtype: str) -> None:
    z = np.array([[offset, offset + 1, offset], [-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype)
    e = np.e
    expected = np.array([[1 / (2 + e), e / (2 + e), 1 / (2 + e)], [0, 1, 0], [0.5, 0.5, 0]])
    assert_within_tolerance(call(backend.softmax_forward, z), expected)
    log_expected = [
        np.log(expected[0]),
        [-2e4, 0, -1e4],
        [np.log(0.5), np.log(0.5), -2e4 + np.log(0.5)],
    ]
    assert_within_tolerance(call(backend.log_softmax_forward, z), log_expected)
    for way in ("softmax", "log_softmax"):
        y = call(getattr(backend, f"{way}_forward"), z)
        assert np.isfinite(call(getattr(backend, f"{way}_backward"), np.ones_like(z), y)).all()


def test_softmax_of_infinities(backend: Backend) -> None:
    inf, nan = np.inf, np.nan
    masked = np.array([[0.0, -inf, 0.0]])
    np.testing.assert_array_equal(call(backend.softmax_forward, masked), [[0.5, 0, 0.5]])
    log_half = np.log(0.5)
    np.testing.assert_array_equal(
        call(backend.log_softmax_forward, masked), [[log_half, -inf, log_half]]
    )
    undefined = np.array([[inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 0], [1, 1, 1]])
    with np.errstate(invalid="ignore"):
        for op in (backend.softmax_forward, backend.log_softmax_forward):
            expected = np.repeat([[True], [True], [True], [False]], 3, axis=1)
            np.testing.assert_array_equal(np.isnan(call(op, undefined)), expected)


def test_a_masked_entry_gets_no_gradient(backend: Backend) -> None:
    masked, dy = np.array([[0.0, -np.inf, 1.0]]), np.array([[1.0, 2.0, 3.0]])
    dz = call(backend.softmax_backward, dy, call(backend.softmax_forward, masked))
    kept = call(backend.softmax_forward, masked[:, ::2])
    np.testing.assert_allclose(dz[:, ::2], call(backend.softmax_backward, dy[:, ::2], kept))
    assert dz[0, 1] == 0


# -- against PyTorch
# ---------------------------------------------------------------------------------------


def torch_functions(torch: Any) -> dict[str, Any]:
    f = torch.nn.functional
    return {
        "relu": f.relu,
        "leaky_relu": lambda z: f.leaky_relu(z, SLOPE),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "gelu": f.gelu,
        "gelu_tanh": lambda z: f.gelu(z, approximate="tanh"),
        "silu": f.silu,
        "selu": f.selu,
        "mish": f.mish,
    }


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "identity"])
def test_activations_are_pytorchs(backend: Backend, torch: Any, name: str) -> None:
    activation, values, dy = Activation(name, SLOPE), np.append(normal(60), 0.0), normal(61, seed=1)
    z = torch.tensor(values, requires_grad=True)
    expected = torch_functions(torch)[name](z)
    expected.backward(torch.tensor(dy))
    y = call(backend.activation_forward, activation, values)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12, atol=1e-14)
    dz = call(backend.activation_backward, activation, dy, y, values)
    np.testing.assert_allclose(dz, z.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_is_pytorchs(backend: Backend, torch: Any, name: str) -> None:
    values, dy = normal(6, 5), normal(6, 5, seed=1)
    z = torch.tensor(values, requires_grad=True)
    expected = getattr(torch, name)(z, dim=-1)
    expected.backward(torch.tensor(dy))
    y = call(getattr(backend, f"{name}_forward"), values)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12)
    dz = call(getattr(backend, f"{name}_backward"), dy, y)
    np.testing.assert_allclose(dz, z.grad.numpy(), rtol=1e-11, atol=1e-14)
