from __future__ import annotations

import numpy as np
import pytest

from warpfit import Tensor
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import Flatten, Layer
from warpfit.nn.flatten import FlattenSpec
from warpfit.nn.spec import LayerSpec


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Flatten(), (2, 3, 4, 5), (2, 60)),
        (Flatten(), (2, 3), (2, 3)),
        (Flatten(2), (2, 3, 4, 5), (2, 3, 20)),
        (Flatten(1, 2), (2, 3, 4, 5), (2, 12, 5)),
        (Flatten(-2), (2, 3, 4, 5), (2, 3, 20)),
        (Flatten(), (0, 3, 4), (0, 12)),
        (Flatten(), (2, 0, 4), (2, 0)),
    ],
)
def test_flatten(layer: Flatten, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = Tensor(
        np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape), requires_grad=True
    )
    y = layer(x)
    assert y.shape == (shape[0], *layer.spec.output_shape(shape[1:])) == expected
    np.testing.assert_array_equal(y.data.ravel(), x.data.ravel())
    y.backward(y.data)
    np.testing.assert_array_equal(x.grad, x.data)


def test_no_gradient_where_none_is_needed() -> None:
    x = np.zeros((2, 3, 4))
    _, pullback = FlattenSpec().vjp(Flatten().backend, {}, x, Flatten().call(), needs_dx=False)
    assert pullback(np.zeros((2, 12))) == (None, {})


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Flatten(), (2,)),
        (Flatten(2), (2, 3)),
        (Flatten(1, 3), (2, 3, 4)),
        (Flatten(2, 1), (2, 3, 4)),
        (Flatten(-3), (2, 3, 4)),
    ],
)
def test_refuses_batches_without_the_axes(layer: Flatten, shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ShapeError, match=r"Flatten: expected samples with axes .* got samples of shape \("
    ):
        layer(np.zeros(shape))


def test_the_batch_stays() -> None:
    with pytest.raises(ConfigError, match="Flatten: expected start_dim of a sample's axis, got 0"):
        Flatten(0)


def test_spec_and_repr() -> None:
    spec = FlattenSpec(2, -1)
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    assert type(Layer.from_spec(spec)) is Flatten
    assert repr(Flatten()) == "Flatten()"
    assert repr(Flatten(2)) == "Flatten(start_dim=2, end_dim=-1)"
    with pytest.raises(FileFormatError, match="expected a description of a layer of kind flatten"):
        LayerSpec.from_dict({"kind": "flatten", "axis": 1})
