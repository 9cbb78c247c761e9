from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative, assert_within_tolerance
from warpfit import Tensor
from warpfit.backends import Activation, NumpyBackend
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import Conv2d, Flatten, Layer, Linear, ReLU, Sequential
from warpfit.nn.conv import Conv2dSpec, conv2d
from warpfit.nn.spec import LayerSpec, ParameterSpec

OPS = NumpyBackend()
PAIRS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}


def operands() -> tuple[Any, Any, Any, Any]:
    """Return x, w, b and dy that fit PAIRS."""
    rng = np.random.default_rng(0)
    shapes = (2, 5, 6, 2), (3, 2, 2, 3), (3,), (2, 3, 4, 3)
    x, w, b, dy = (rng.standard_normal(shape) for shape in shapes)
    return x, w, b, dy


# -- the formula
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "tanh", "gelu"])
def test_every_gradient_is_the_derivative(name: str) -> None:
    x, w, b, dy = operands()
    activation = Activation(name)

    def value(x: Any, w: Any, b: Any) -> Any:
        return np.vdot(
            dy, OPS.activation_forward(activation, OPS.conv2d_forward(x, w, b, **PAIRS)[0])
        )

    y, backward = conv2d(OPS, x, w, b, activation, **PAIRS)
    assert_within_tolerance(np.vdot(dy, y), value(x, w, b))
    for _ in range(2):  # the gradient may be asked for twice
        dx, dw, db = backward(dy)
        assert_derivative(dx, lambda x: value(x, w, b), x)
        assert_derivative(dw, lambda w: value(x, w, b), w)
        assert_derivative(db, lambda b: value(x, w, b), b)


def test_what_is_not_needed_is_none() -> None:
    x, w, _, dy = operands()
    dx, dw, db = conv2d(OPS, x, w, **PAIRS, needs_dx=False)[1](dy)
    assert dx is None
    assert db is None
    assert dw.shape == w.shape


# -- the spec
# ----------------------------------------------------------------------------------------------


def test_spec_describes_its_arrays() -> None:
    spec = Conv2dSpec(3, 4, (5, 2))
    assert spec.parameters() == {
        "weight": ParameterSpec((5, 2, 3, 4), "weight", 30, 40),
        "bias": ParameterSpec((4,), "bias", 30, 40),
    }
    assert Conv2dSpec(3, 4, (5, 2), bias=False).parameters().keys() == {"weight"}
    assert spec.buffers() == {}


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (26, 27, 4)),
        ({"stride": (2, 3)}, (13, 9, 4)),
        ({"padding": (1, 0)}, (28, 27, 4)),
        ({"dilation": (4, 1)}, (20, 27, 4)),
    ],
)
def test_output_shape_is_that_of_the_output(
    settings: dict[str, Any], shape: tuple[int, ...]
) -> None:
    layer = Conv2d(3, 4, (3, 2), **settings)
    assert layer.spec.output_shape((28, 28, 3)) == shape
    assert layer(np.zeros((2, 28, 28, 3))).shape == (2, *shape)


@pytest.mark.parametrize(
    "spec",
    [
        Conv2dSpec(1, 2, (3, 3)),
        Conv2dSpec(1, 2, (3, 1), **PAIRS, bias=False, activation=Activation("relu")),
    ],
)
def test_spec_round_trip(spec: Conv2dSpec) -> None:
    description = spec.to_dict()
    description["kernel_size"] = list(spec.kernel_size)  # as JSON has it
    assert LayerSpec.from_dict(description) == spec
    layer = Layer.from_spec(spec, seed=0)
    assert type(layer) is Conv2d
    assert layer.arrays().keys() == spec.parameters().keys()


@pytest.mark.parametrize(
    "change", [{"kernel_size": [0, 3]}, {"stride": "2"}, {"in_channels": -1}, {"groups": 2}]
)
def test_spec_refuses_foreign_descriptions(change: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match="expected a description of a layer of kind conv2d"):
        LayerSpec.from_dict(Conv2dSpec(1, 2, (3, 3)).to_dict() | change)


@pytest.mark.parametrize("shape", [(), (28, 28), (28, 28, 1), (2, 28, 28, 3)])
def test_refuses_samples_of_another_shape(shape: tuple[int, ...]) -> None:
    for attempt in (
        Conv2dSpec(3, 4, (3, 3)).output_shape,
        lambda shape: Conv2d(3, 4, 3)(np.zeros((2, *shape))),
    ):
        with pytest.raises(
            ShapeError, match=r"Conv2d: expected samples of shape \(H, W, 3\), got \("
        ):
            attempt(shape)


def test_refuses_images_smaller_than_the_kernel() -> None:
    with pytest.raises(
        ShapeError, match=r"Conv2d: expected images of at least 3x3 with padding .* got 2x5"
    ):
        Conv2d(1, 4, 3)(np.zeros((1, 2, 5, 1)))


# -- the layer
# ---------------------------------------------------------------------------------------------


def test_numbers_stand_for_pairs() -> None:
    spec = Conv2d(1, 2, 3, 2, 1, 4).spec
    assert spec == Conv2dSpec(1, 2, (3, 3), (2, 2), (1, 1), (4, 4))
    assert Conv2d(1, 2, [3, 1], np.int64(2)).spec == Conv2dSpec(1, 2, (3, 1), (2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_channels": -1}, "in_channels to be an integer of at least 1, got -1"),
        ({"out_channels": 1.5}, "out_channels to be an integer of at least 1, got 1.5"),
        ({"kernel_size": 0}, "kernel_size to be an integer of at least 1, got 0"),
        (
            {"kernel_size": (3, 3, 3)},
            r"kernel_size to be an integer or two of them, got \(3, 3, 3\)",
        ),
        ({"stride": (1, 0)}, "stride to be an integer of at least 1, got 0"),
        ({"padding": "around"}, "padding as integers, 'same' or 'valid', got 'around'"),
        ({"padding": "same", "stride": 2}, r"stride 1 for padding='same', got \(2, 2\)"),
        ({"padding": "same", "kernel_size": 2}, r"an odd kernel_size .* got \(2, 2\)"),
        ({"dilation": True}, "dilation to be an integer of at least 1, got True"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"Conv2d: expected {message}"):
        Conv2d(**{"in_channels": 1, "out_channels": 2, "kernel_size": 3, **settings})


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), ((1, 5), 1), (2, 2), (3, (2, 1))])
def test_same_padding_keeps_the_size(kernel: Any, dilation: Any) -> None:
    layer = Conv2d(2, 3, kernel, padding="same", dilation=dilation)
    assert layer(np.zeros((1, 7, 6, 2))).shape == (1, 7, 6, 3)
    assert Conv2d(2, 3, kernel, padding="valid").spec.padding == (0, 0)
    assert eval(repr(layer).rsplit(",", 1)[0] + ")").spec == layer.spec


def test_starts_within_the_bound_of_its_fan_in() -> None:
    layer = Conv2d(4, 50, 3, seed=0)
    for parameter in (layer.weight, layer.bias):
        assert 0.9 / 6 < np.abs(parameter.data).max() <= 1 / 6
    np.testing.assert_array_equal(Conv2d(4, 50, 3, seed=0).weight.data, layer.weight.data)
    assert Conv2d(4, 50, 3, seed=0, dtype="float64").weight.dtype == "float64"


def test_repr() -> None:
    assert repr(Conv2d(1, 32, 3)) == "Conv2d(1, 32, kernel_size=(3, 3), 320 parameters)"
    assert repr(Conv2d(1, 2, (3, 1), 2, 1, 3, bias=False)) == (
        "Conv2d(1, 2, kernel_size=(3, 1), stride=(2, 2), padding=(1, 1), dilation=(3, 3), "
        "bias=False, 6 parameters)"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(0, 2, 3), (1, 2, 3)])
def test_small_and_empty_shapes(rows: int, inputs: int, outputs: int, dtype: str) -> None:
    layer = Conv2d(inputs, outputs, 2, dtype=dtype)
    x = Tensor(np.ones((rows, 3, 3, inputs), dtype), requires_grad=True)
    y = layer(x)
    y.backward(np.ones(y.shape))
    assert y.shape == (rows, 2, 2, outputs)
    np.testing.assert_array_equal(layer.weight.grad, np.full((2, 2, inputs, outputs), 4 * rows))
    np.testing.assert_array_equal(layer.bias.grad, np.full(outputs, 4 * rows))
    assert x.grad.shape == x.shape
    assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == dtype


def test_in_a_network() -> None:
    model = Sequential(Conv2d(1, 2, 3), ReLU(), Flatten(), Linear(2 * 4 * 4, 3))
    network = model.spec((6, 6, 1))
    assert network is not None
    assert network.shapes == ((6, 6, 1), (4, 4, 2), (4, 4, 2), (32,), (3,))
    copy = Sequential.from_spec(network, model.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 1))
    np.testing.assert_array_equal(copy(x), model(x))


# -- groups
# ------------------------------------------------------------------------------------------------


def test_groups_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    layer = Conv2d(6, 9, (3, 2), 2, 1, groups=3, seed=0)
    theirs = torch.nn.Conv2d(6, 9, (3, 2), 2, 1, groups=3)
    with torch.no_grad():
        weight = np.ascontiguousarray(layer.weight.data.transpose(3, 2, 0, 1))
        theirs.weight.copy_(torch.from_numpy(weight))
        theirs.bias.copy_(torch.from_numpy(layer.bias.data))
    x = np.random.default_rng(0).standard_normal((2, 7, 6, 6)).astype(np.float32)
    expected = theirs(torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))))
    found = layer(x).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert layer.weight.shape == (3, 2, 2, 9)
    assert repr(layer).startswith(
        "Conv2d(6, 9, kernel_size=(3, 2), stride=(2, 2), padding=(1, 1), g"
    )


def test_depthwise_convolutions_have_a_form_in_onnx(tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference")
    model = Sequential(Conv2d(4, 4, 3, padding="same", groups=4, seed=1), ReLU(), Conv2d(4, 6, 1))
    x = np.random.default_rng(0).standard_normal((2, 5, 5, 4)).astype(np.float32)
    model.to_onnx(tmp_path / "model.onnx", (5, 5, 4))
    (found,) = reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"X": x})
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [0, 4, 1.5, "2"])
def test_groups_divide_channels_and_outputs(groups: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Conv2d: expected groups"):
        Conv2d(6, 4, 3, groups=groups)
