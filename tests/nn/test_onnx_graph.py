"""ONNX files of networks: what onnxruntime predicts with them is what `predict` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

import warpfit as wf
from support.layers import LAYERS
from support.training import Taped, mlp
from warpfit import nn
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.linear import LinearSpec

Array = npt.NDArray[Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.onnx"


def with_numbers(model: nn.Sequential) -> nn.Sequential:
    """Give all arrays, running statistics too, other numbers than those that they start with."""
    draws = np.random.default_rng(1)
    for holder in model.named_arrays().values():
        lowest = 0.1 if isinstance(holder, nn.Buffer) else -0.5
        holder.data[...] = draws.uniform(lowest, 0.5, holder.data.shape)
    return model


def run(path: Path, x: Array) -> Array:
    """Return what onnxruntime gives for a batch."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), (output,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("X", ["N", *x.shape[1:]])
    dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[given.type]
    (y,) = session.run(None, {"X": x.astype(dtype)})
    assert (output.name, output.shape) == ("Y", ["N", *y.shape[1:]])
    return y


def rows(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)


def assert_same(model: nn.Sequential, path: Path, x: Array) -> None:
    model.to_onnx(path, x.shape[1:])
    for batch in (x, x[:1]):
        np.testing.assert_allclose(run(path, batch), wf.predict(model, batch), atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name: str, path: Path) -> None:
    layer, shape = LAYERS[name]
    indices = np.arange(12).reshape(4, 3) % 7
    x = rows(shape) if layer.spec.num_indices is None else indices
    assert_same(with_numbers(nn.Sequential(layer)), path, x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(5), (3, 5)),
        (nn.GroupNorm(2, 6), (6,)),
        (nn.GroupNorm(3, 6, affine=False), (4, 6)),
        (nn.Flatten(2), (2, 3, 4)),
        (nn.Flatten(1, 2), (2, 3, 4)),
        (nn.AvgPool2d(3, stride=2, padding=1), (6, 5, 2)),
    ],
)
def test_other_settings_and_shapes(layer: nn.Layer, shape: tuple[int, ...], path: Path) -> None:
    assert_same(with_numbers(nn.Sequential(layer)), path, rows(shape))


def test_a_convolutional_network_turns_its_images_only_where_it_has_to(path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", seed=0),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(4, 6, 3, seed=1), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(24, 3, seed=2),
        nn.Softmax(),
    )
    assert_same(with_numbers(model), path, rows((8, 8, 2)))
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count("Transpose") == 2
    assert operators[-1] == "Identity"


def test_layers_in_the_middle_and_layers_that_stand_twice(path: Path) -> None:
    shared = nn.Linear(6, 6, seed=0)
    assert_same(nn.Sequential(shared, nn.Tanh(), shared, nn.SiLU()), path, rows((6,)))
    embedded = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2, seed=0))
    assert_same(embedded, path, np.arange(12).reshape(4, 3) % 7)


def test_a_network_of_float64_is_written_in_float32(path: Path) -> None:
    assert_same(mlp(6, 8, 3, dtype="float64"), path, rows((6,)))


def test_the_shape_of_rows_follows_from_a_first_linear_layer(path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 3, seed=0)))
    model.to_onnx(path)
    np.testing.assert_allclose(run(path, rows((5,))), wf.predict(model, rows((5,))), atol=1e-5)
    for other in (nn.Sequential(nn.Conv1d(2, 3, 1)), nn.Sequential()):
        with pytest.raises(ConfigError, match="expected the input_shape of one sample unless"):
            other.to_onnx(path)
    with pytest.raises(ShapeError, match=r"layer 0\.0: Linear: expected samples of shape \(5,\)"):
        model.to_onnx(path, (6,))


def test_writing_leaves_the_network_as_it_is(path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(), nn.Dropout(), nn.BatchNorm1d(5))
    before, specs = model.state_dict(), [layer.spec for layer in model]
    model.to_onnx(path)
    np.testing.assert_equal(model.state_dict(), before)
    assert [layer.spec for layer in model] == specs
    assert model.training


class Scaled(nn.Linear):
    """A user's layer on top of one of ours."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class Chain(nn.Sequential):
    """A subclass, which may have a forward of its own."""


@dataclass(frozen=True)
class NegatedSpec(LinearSpec):
    """y = -(x @ weight + bias): another formula than that whose operators it would inherit."""

    kind: ClassVar[str] = ""

    def vjp(self, ops: Any, arrays: Mapping[str, Any], x: Any, call: Any, **settings: Any) -> Any:
        y, pullback = super().vjp(ops, arrays, x, call, **settings)
        return ops.binary("mul", y, -1.0), pullback


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Taped(nn.Linear(5, 5)), "Taped"),
        (nn.Sequential(nn.Tanh(), Scaled(5, 5)), "Scaled"),
        (Chain(nn.Linear(5, 5)), "Chain"),
        (nn.Layer(NegatedSpec(5, 5)), "Negated"),
    ],
)
def test_what_has_no_form_in_onnx_is_refused(layer: nn.Module, name: str, path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^to_onnx: expected [^\n]*, got (one with )?{name}$"):
        nn.Sequential(nn.Linear(5, 5), layer).to_onnx(path)
    assert not path.exists()


def test_arrays_that_layers_share_are_refused(path: Path) -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    with pytest.raises(ConfigError, match="got one with layers that share an array"):
        nn.Sequential(first, second).to_onnx(path)
