from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import Tensor
from warpfit.backends import NumpyBackend
from warpfit.errors import ConfigError, FileFormatError
from warpfit.nn import Dropout, Layer, ReLU, Sequential
from warpfit.nn.dropout import DropoutSpec, dropout
from warpfit.nn.layer import calling
from warpfit.nn.spec import Call, LayerSpec

X = np.ones((16, 32), "float32")


def mask_of(layer: Any, call: Call | None = None) -> Any:
    if call is None:
        return layer(X) > 0
    with calling(call):
        return layer(X) > 0


def test_the_gradient_takes_the_mask() -> None:
    dy = np.random.default_rng(0).standard_normal((4, 6))
    y, backward = dropout(NumpyBackend(), np.ones((4, 6)), 0.25, seed=1, step=2, layer_idx=3)
    assert set(np.unique(y)) == {0, 1 / 0.75}
    np.testing.assert_array_equal(backward(dy), dy * y)


def test_training_drops_and_evaluation_does_not() -> None:
    layer = Dropout(0.25, seed=0)
    assert np.unique(layer(X)).tolist() == [0, np.float32(1 / 0.75)]
    np.testing.assert_array_equal(layer.eval()(X), X)
    np.testing.assert_array_equal(Dropout(0)(X), X)


def test_evaluation_passes_the_gradient_on() -> None:
    x = Tensor(X, requires_grad=True)
    Dropout().eval()(x).backward(2 * X)
    np.testing.assert_array_equal(x.grad, 2 * X)


def test_training_on_the_tape() -> None:
    x = Tensor(X, requires_grad=True)
    y = Dropout()(x)
    y.backward(X)
    np.testing.assert_array_equal(x.grad, y.data)


def test_the_call_decides_the_mask() -> None:
    one, other = Dropout(seed=1), Dropout(seed=2)
    call = Call(training=True, step=3, seed=4)
    np.testing.assert_array_equal(mask_of(one, call), mask_of(other, call))
    for changed in (Call(True, 4, 4), Call(True, 3, 5)):
        assert (mask_of(one, call) != mask_of(one, changed)).any()
    assert mask_of(one, Call(training=False)).all()


def test_every_call_outside_of_a_run_has_another_mask() -> None:
    layer = Dropout(seed=1)
    first, second = mask_of(layer), mask_of(layer)
    assert (first != second).any()
    again = Dropout(seed=1)
    np.testing.assert_array_equal(mask_of(again), first)
    np.testing.assert_array_equal(mask_of(again), second)
    assert (mask_of(Dropout(seed=2)) != first).any()


def test_evaluation_uses_up_no_mask() -> None:
    layer, other = Dropout(seed=1), Dropout(seed=1)
    layer.eval()(X)
    np.testing.assert_array_equal(mask_of(layer.train()), mask_of(other))


def test_manual_seed_fixes_the_masks() -> None:
    wf.manual_seed(5)
    first = mask_of(Dropout())
    assert (mask_of(Dropout()) != first).any()
    wf.manual_seed(5)
    np.testing.assert_array_equal(mask_of(Dropout()), first)


def test_a_copy_goes_on_as_its_original() -> None:
    layer = Dropout(seed=1)
    layer(X)
    copy = deepcopy(layer)
    np.testing.assert_array_equal(mask_of(copy), mask_of(layer))


def test_dropouts_of_a_network_differ() -> None:
    model = Sequential(Dropout(), ReLU(), Sequential(Dropout()))
    layers = [layer for _, layer in model.flat_layers() or []]
    assert [layers[0].spec.layer_idx, layers[2].spec.layer_idx] == [0, 1]
    call = Call(training=True)
    assert (mask_of(layers[0], call) != mask_of(layers[2], call)).any()


def test_spec() -> None:
    spec = DropoutSpec(0.25, layer_idx=3)
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    layer = Layer.from_spec(spec)
    assert type(layer) is Dropout
    assert (mask_of(layer) != mask_of(layer)).any()
    assert spec.output_shape((3, 4)) == (3, 4)
    assert (spec.parameters(), spec.buffers()) == ({}, {})
    for change in ({"p": "half"}, {"p": 1.5}, {"rate": 0.5}):
        with pytest.raises(
            FileFormatError, match="expected a description of a layer of kind dropout"
        ):
            LayerSpec.from_dict(spec.to_dict() | change)


@pytest.mark.parametrize("p", [-0.1, 1, float("nan")])
def test_refuses_p(p: float) -> None:
    with pytest.raises(ConfigError, match=r"Dropout: expected p in \[0, 1\), got"):
        Dropout(p)


def test_refuses_seeds() -> None:
    with pytest.raises(ConfigError, match="expected a seed"):
        Dropout(seed=-1)


def test_empty_batches_and_repr() -> None:
    assert Dropout()(np.zeros((0, 3))).shape == (0, 3)
    assert repr(Dropout(0.2)) == "Dropout(p=0.2)"
