from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative
from warpfit import Tensor
from warpfit.backends import NumpyBackend
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import AvgPool2d, GlobalAvgPool2d, GlobalMaxPool2d, Layer, MaxPool2d
from warpfit.nn.pooling import AvgPool2dSpec, MaxPool2dSpec, avg_pool2d, max_pool2d
from warpfit.nn.spec import LayerSpec

OPS = NumpyBackend()
LAYERS = [MaxPool2d, AvgPool2d]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("pool", [max_pool2d, avg_pool2d])
def test_gradient_is_the_derivative(pool: Any) -> None:
    x, dy = normal(2, 5, 6, 2), normal(2, 2, 6, 2, seed=1)
    _, backward = pool(OPS, x, (3, 2), (2, 1), (0, 1))
    with pytest.raises(ShapeError, match="expected dy of shape"):
        backward(dy)
    dy = normal(2, 2, 7, 2, seed=1)
    for _ in range(2):  # the gradient may be asked for twice
        assert_derivative(
            backward(dy), lambda x: np.vdot(dy, pool(OPS, x, (3, 2), (2, 1), (0, 1))[0]), x
        )


def test_values() -> None:
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    assert MaxPool2d(2)(x)[0, :, :, 0].tolist() == [[5, 7], [13, 15]]
    assert AvgPool2d(2)(x)[0, :, :, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert MaxPool2d(2, 1)(x).shape == (1, 3, 3, 1)
    assert MaxPool2d(2, padding=1)(-x)[0, :, :, 0].tolist() == [
        [0, -1, -3],
        [-4, -5, -7],
        [-12, -13, -15],
    ]
    assert AvgPool2d(2, padding=1)(x)[0, 0, :, 0].tolist() == [0, 0.75, 0.75]


def test_stride_is_the_kernel_by_default() -> None:
    assert MaxPool2d((3, 2)).spec == MaxPool2dSpec((3, 2), (3, 2), (0, 0))
    assert AvgPool2d(3, (2, 1), 1).spec == AvgPool2dSpec((3, 3), (2, 1), (1, 1))


@pytest.mark.parametrize("layer_class", LAYERS)
def test_output_shape_is_that_of_the_output(layer_class: Any) -> None:
    layer = layer_class((3, 2), (2, 1), (1, 0))
    assert layer.spec.output_shape((8, 7, 4)) == (4, 6, 4)
    assert layer(np.zeros((2, 8, 7, 4))).shape == (2, 4, 6, 4)
    assert layer(np.zeros((0, 8, 7, 4))).shape == (0, 4, 6, 4)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_gradient_on_the_tape(layer_class: Any) -> None:
    x = Tensor(normal(1, 4, 4, 2), requires_grad=True)
    layer_class(2)(x).sum().backward()
    assert x.grad.shape == x.shape
    np.testing.assert_allclose(x.grad.sum(), 8)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_spec_round_trip(layer_class: Any) -> None:
    spec = layer_class((3, 2), 2, 1).spec
    description = {**spec.to_dict(), "kernel_size": [3, 2]}  # as JSON has it
    assert LayerSpec.from_dict(description) == spec
    assert type(Layer.from_spec(spec)) is layer_class
    assert (spec.parameters(), spec.buffers()) == ({}, {})
    for change in ({"stride": [0, 1]}, {"padding": [9, 9]}, {"ceil_mode": True}):
        with pytest.raises(
            FileFormatError, match=f"expected a description of a layer of kind {spec.kind}"
        ):
            LayerSpec.from_dict(description | change)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_refuses_settings(layer_class: Any) -> None:
    name = layer_class.__name__
    with pytest.raises(
        ConfigError, match=f"{name}: expected kernel_size to be an integer of at least 1, got 0"
    ):
        layer_class(0)
    with pytest.raises(
        ConfigError, match=f"{name}: expected stride to be an integer or two of them, got"
    ):
        layer_class(2, (1, 2, 3))
    with pytest.raises(
        ConfigError, match=rf"{name}: expected padding of at most half the kernel \(3, 3\), got"
    ):
        layer_class(3, padding=2)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_refuses_batches_of_another_shape(layer_class: Any) -> None:
    for shape in ((2, 8, 8), (2,), ()):
        with pytest.raises(
            ShapeError, match=rf"{layer_class.__name__}: expected samples of shape \(H, W, C\)"
        ):
            layer_class(2)(np.zeros(shape))
    with pytest.raises(
        ShapeError, match=f"{layer_class.__name__}: expected images of at least 3x3"
    ):
        layer_class(3)(np.zeros((1, 2, 8, 1)))


def test_repr() -> None:
    assert repr(MaxPool2d(2)) == "MaxPool2d(kernel_size=(2, 2), stride=(2, 2))"
    assert (
        repr(AvgPool2d(3, 1, (1, 0)))
        == "AvgPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 0))"
    )


# -- of whole images
# ---------------------------------------------------------------------------------------

GLOBAL = {GlobalAvgPool2d: np.mean, GlobalMaxPool2d: np.max}


@pytest.mark.parametrize("layer_class", GLOBAL)
def test_global_pooling(layer_class: Any) -> None:
    layer, x, dy = layer_class(), normal(3, 4, 5, 2), normal(3, 2, seed=1)
    expected = GLOBAL[layer_class]
    np.testing.assert_allclose(layer(x), expected(x, axis=(1, 2)), rtol=1e-6)
    assert layer.spec.output_shape((4, 5, 2)) == (2,)
    held = Tensor(x, requires_grad=True)
    layer(held).backward(dy)
    assert_derivative(held.grad, lambda x: np.vdot(dy, expected(x, axis=(1, 2))), x)
    assert layer(np.zeros((0, 4, 5, 2))).shape == (0, 2)
    assert repr(layer) == f"{layer_class.__name__}()"
    assert type(Layer.from_spec(LayerSpec.from_dict(layer.spec.to_dict()))) is layer_class


@pytest.mark.parametrize("layer_class", GLOBAL)
@pytest.mark.parametrize("shape", [(2, 3), (2, 0, 3, 1), (2, 4, 0, 1), (2, 4, 4)])
def test_global_pooling_refuses_batches_of_another_shape(layer_class: Any, shape: Any) -> None:
    with pytest.raises(ShapeError, match=rf"{layer_class.__name__}: expected samples of shape"):
        layer_class()(np.zeros(shape))
