from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative, assert_within_tolerance
from warpfit import Tensor
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.base import ACTIVATIONS
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.nn import Linear
from warpfit.nn.linear import LinearSpec, linear
from warpfit.nn.spec import ParameterSpec

OPS = NumpyBackend()


def operands(rows: int = 4, inner: int = 3, outputs: int = 2) -> tuple[Any, Any, Any, Any]:
    """Return x, w, b and dy."""
    rng = np.random.default_rng(0)
    shapes = (rows, inner), (inner, outputs), (outputs,), (rows, outputs)
    x, w, b, dy = (rng.standard_normal(shape) for shape in shapes)
    return x, w, b, dy


# -- the formula
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_gradient_is_the_derivative(name: str) -> None:
    x, w, b, dy = operands()
    activation = Activation(name)

    def value(x: Any, w: Any, b: Any) -> Any:
        return np.vdot(dy, OPS.activation_forward(activation, x @ w + b))

    y, backward = linear(OPS, x, w, b, activation)
    assert_within_tolerance(y, OPS.activation_forward(activation, x @ w + b))
    dx, dw, db = backward(dy)
    assert_derivative(dx, lambda x: value(x, w, b), x)
    assert_derivative(dw, lambda w: value(x, w, b), w)
    assert_derivative(db, lambda b: value(x, w, b), b)


def test_what_is_not_needed_is_none() -> None:
    x, w, b, dy = operands()
    dx, dw, db = linear(OPS, x, w, None, needs_dx=False)[1](dy)
    assert dx is None
    assert db is None
    np.testing.assert_array_equal(dw, linear(OPS, x, w, b)[1](dy)[1])


def test_the_gradient_may_be_asked_for_twice() -> None:
    x, w, b, dy = operands()
    _, backward = linear(OPS, x, w, b, Activation("tanh"))
    for once, again in zip(backward(dy), backward(dy), strict=True):
        np.testing.assert_array_equal(once, again)


# -- the spec
# ----------------------------------------------------------------------------------------------


def test_spec_describes_its_arrays() -> None:
    assert LinearSpec(3, 2).parameters() == {
        "weight": ParameterSpec((3, 2), "weight", 3, 2),
        "bias": ParameterSpec((2,), "bias", 3, 2),
    }
    assert LinearSpec(3, 2, bias=False).parameters().keys() == {"weight"}
    assert LinearSpec(3, 2).buffers() == {}


def test_spec_takes_numpys_integers() -> None:
    spec = LinearSpec(np.int64(3), np.uint8(2))  # type: ignore[arg-type]
    assert spec == LinearSpec(3, 2)
    assert type(spec.in_features) is type(spec.out_features) is int


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", None, True])
@pytest.mark.parametrize("name", ["in_features", "out_features"])
def test_spec_refuses_sizes(name: str, size: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"Linear: expected {name} to be an integer of at least 1, got {size!r}"
    ):
        LinearSpec(**{"in_features": 3, "out_features": 2, name: size})


@pytest.mark.parametrize("shape", [(2,), (), (3, 3), (4, 3)])
def test_spec_refuses_samples_of_another_shape(shape: Any) -> None:
    with pytest.raises(ShapeError, match=r"Linear: expected samples of shape \(3,\), got \("):
        LinearSpec(3, 2).output_shape(shape)
    assert LinearSpec(3, 2).output_shape((3,)) == (2,)


# -- the layer
# ---------------------------------------------------------------------------------------------


def test_weights_are_in_out() -> None:
    layer = Linear(3, 2)
    assert layer.weight.shape == (3, 2)
    assert layer.bias.shape == (2,)
    layer.load_state_dict({"weight": [[1, 10], [2, 20], [3, 30]], "bias": [0.5, -0.5]})
    np.testing.assert_array_equal(layer([[1, 1, 1], [1, 0, 0]]), [[6.5, 59.5], [1.5, 9.5]])


def test_without_bias() -> None:
    layer = Linear(3, 2, bias=False)
    assert layer.state_dict().keys() == {"weight"}
    np.testing.assert_array_equal(layer(np.zeros((1, 3))), np.zeros((1, 2)))
    layer(Tensor(np.ones((4, 3), "float32"))).backward(np.ones((4, 2)))
    np.testing.assert_array_equal(layer.weight.grad, np.full((3, 2), 4))


def test_repr() -> None:
    assert repr(Linear(3, 2, "cpu")) == "Linear(3, 2, 8 parameters)"
    assert repr(Linear(3, 2, bias=False)) == "Linear(3, 2, bias=False, 6 parameters)"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "inner", "outputs"), [(0, 3, 2), (1, 3, 2), (1, 1, 1)])
def test_small_and_empty_shapes(rows: int, inner: int, outputs: int, dtype: str) -> None:
    layer = Linear(inner, outputs, dtype=dtype)
    x = Tensor(np.ones((rows, inner), dtype), requires_grad=True)
    y = layer(x)
    y.backward(np.ones((rows, outputs)))
    assert y.shape == (rows, outputs)
    np.testing.assert_array_equal(layer.weight.grad, np.full((inner, outputs), rows, dtype))
    np.testing.assert_array_equal(layer.bias.grad, np.full(outputs, rows, dtype))
    np.testing.assert_allclose(x.grad, np.tile(layer.weight.data.sum(axis=1), (rows, 1)), rtol=1e-6)
    assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == dtype


@pytest.mark.parametrize("shape", [(4, 2), (3,), (), (2, 4, 3)])
def test_refuses_batches_of_another_shape(shape: Any) -> None:
    with pytest.raises(ShapeError):
        Linear(3, 2)(np.ones(shape))


def test_refuses_tensors_of_another_dtype() -> None:
    with pytest.raises(DTypeError, match="expected operands of one dtype, got float32, float64"):
        Linear(3, 2)(Tensor(np.ones((1, 3))))
