from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import Conv1d, Conv2d, Flatten, Layer, Linear, ReLU, Sequential
from warpfit.nn.conv1d import Conv1dSpec
from warpfit.nn.spec import LayerSpec, ParameterSpec


def test_it_is_a_convolution_of_images_one_pixel_high() -> None:
    settings: dict[str, Any] = {"bias": True, "seed": 3, "dtype": "float64"}
    layer = Conv1d(2, 3, 4, 2, 1, 2, **settings)
    image = Conv2d(2, 3, (1, 4), (1, 2), (0, 1), (1, 2), **settings)
    x = np.random.default_rng(0).standard_normal((2, 11, 2))
    np.testing.assert_array_equal(layer(x), image(x[:, None])[:, 0])
    assert layer.spec.output_shape((11, 2)) == layer(x).shape[1:]
    assert layer(np.zeros((0, 11, 2))).shape == (0, 4, 3)


def test_spec_describes_its_arrays_and_goes_through_json() -> None:
    spec = Conv1d(3, 4, 5, padding="same").spec
    assert spec.parameters() == {
        "weight": ParameterSpec((5, 3, 4), "weight", 15, 20),
        "bias": ParameterSpec((4,), "bias", 15, 20),
    }
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    assert type(Layer.from_spec(spec)) is Conv1d
    with pytest.raises(FileFormatError, match="a layer of kind conv1d"):
        LayerSpec.from_dict({**spec.to_dict(), "kernel_size": [2, 5]})


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 1, 5, 2)])
def test_refuses_samples_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"Conv1d: expected samples of shape \(L, 2\), got"):
        Conv1d(2, 3, 3)(np.zeros(shape))


def test_refuses_sequences_shorter_than_the_kernel() -> None:
    with pytest.raises(ShapeError, match="Conv1d: expected images of at least 1x3"):
        Conv1d(2, 3, 3)(np.zeros((1, 2, 2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": (3, 3)}, "kernel_size to be an integer of at least 1"),
        ({"stride": 0}, "stride to be an integer of at least 1, got 0"),
        ({"padding": -1}, "padding to be an integer of at least 0, got -1"),
        ({"padding": "same", "kernel_size": 4}, "an odd kernel_size for padding='same'"),
        ({"in_channels": 0}, "in_channels to be an integer of at least 1, got 0"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"Conv1d: expected {message}"):
        Conv1d(**{"in_channels": 1, "out_channels": 2, "kernel_size": 3, **settings})


def test_activations_join_it_in_a_network() -> None:
    model = Sequential(Conv1d(1, 2, 3), ReLU(), Flatten(), Linear(8, 3))
    network = model.spec((6, 1))
    assert network is not None
    assert network.shapes == ((6, 1), (4, 2), (4, 2), (8,), (3,))
    joined = network.fused.layers[0][1]
    assert isinstance(joined, Conv1dSpec)
    assert joined.activation.name == "relu"


def test_repr() -> None:
    assert repr(Conv1d(1, 2, 3)) == "Conv1d(1, 2, kernel_size=3, 8 parameters)"
    assert repr(Conv1d(1, 2, 3, 2, 1, 4, bias=False)) == (
        "Conv1d(1, 2, kernel_size=3, stride=2, padding=1, dilation=4, bias=False, 6 parameters)"
    )
