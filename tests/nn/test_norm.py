from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative, assert_within_tolerance
from warpfit import Tensor
from warpfit.backends import NumpyBackend
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import BatchNorm1d, BatchNorm2d, Layer, LayerNorm, Linear, Sequential
from warpfit.nn.layer import calling
from warpfit.nn.norm import BatchNormSpec, LayerNormSpec, batch_norm, layer_norm
from warpfit.nn.spec import Call, LayerSpec, ParameterSpec

OPS = NumpyBackend()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# -- the formulas
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_batch_norm_are_the_derivatives(training: bool) -> None:
    x, dy, weight, bias = (
        normal(*s, seed=i) for i, s in enumerate([(4, 2, 3), (4, 2, 3), (3,), (3,)])
    )

    def run(x: Any, weight: Any, bias: Any) -> Any:
        return batch_norm(OPS, x, weight, bias, np.full(3, 0.5), np.full(3, 2.0), training=training)

    dx, dweight, dbias = run(x, weight, bias)[1](dy)
    assert_derivative(dx, lambda x: np.vdot(dy, run(x, weight, bias)[0]), x)
    assert_derivative(dweight, lambda weight: np.vdot(dy, run(x, weight, bias)[0]), weight)
    assert_derivative(dbias, lambda bias: np.vdot(dy, run(x, weight, bias)[0]), bias)


def test_gradients_of_layer_norm_are_the_derivatives() -> None:
    x, dy, weight, bias = (
        normal(*s, seed=i) for i, s in enumerate([(4, 2, 3), (4, 2, 3), (2, 3), (2, 3)])
    )
    dx, dweight, dbias = layer_norm(OPS, x, weight, bias, num_axes=2)[1](dy)
    assert_derivative(dx, lambda x: np.vdot(dy, layer_norm(OPS, x, weight, bias, num_axes=2)[0]), x)
    assert_derivative(
        dweight, lambda w: np.vdot(dy, layer_norm(OPS, x, w, bias, num_axes=2)[0]), weight
    )
    assert_derivative(
        dbias, lambda b: np.vdot(dy, layer_norm(OPS, x, weight, b, num_axes=2)[0]), bias
    )


# -- batch norm
# --------------------------------------------------------------------------------------------


def test_training_normalises_and_moves_the_running_statistics() -> None:
    layer = BatchNorm2d(3, momentum=0.25, dtype="float64")
    x = 5 + 2 * normal(6, 4, 4, 3)
    y = layer(x)
    np.testing.assert_allclose(y.mean(axis=(0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=(0, 1, 2)), 1, atol=1e-4)
    np.testing.assert_allclose(layer.running_mean.data, 0.25 * x.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(layer.running_var.data, 0.75 + 0.25 * x.var(axis=(0, 1, 2), ddof=1))


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    layer = BatchNorm1d(2, dtype="float64").eval()
    layer.load_state_dict(
        {
            "weight": [1, 2],
            "bias": [0, 1],
            "running_mean": [3, 4],
            "running_var": [4 - 1e-5, 1 - 1e-5],
        }
    )
    before = layer.state_dict()
    np.testing.assert_allclose(layer([[5, 5]]), [[1, 3]])
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_the_call_decides_the_mode() -> None:
    layer, x = BatchNorm1d(2, dtype="float64"), normal(5, 2)
    with calling(Call(training=False)):
        np.testing.assert_allclose(layer(x), x / np.sqrt(1 + 1e-5))
    np.testing.assert_array_equal(layer.running_mean.data, [0, 0])


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_on_the_tape(affine: bool) -> None:
    layer = BatchNorm1d(3, affine=affine, dtype="float64")
    x, dy = Tensor(normal(5, 3), requires_grad=True), normal(5, 3, seed=1)
    layer(x).backward(dy)
    assert_derivative(x.grad, lambda x: np.vdot(dy, layer(Tensor(x)).data), x.data)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"][: 2 * affine]
    assert [name for name, _ in layer.named_buffers()] == ["running_mean", "running_var"]
    if affine:
        np.testing.assert_allclose(layer.bias.grad, dy.sum(axis=0))


def test_batch_norm_takes_sequences() -> None:
    assert BatchNorm1d(3)(normal(4, 5, 3)).shape == (4, 5, 3)


def test_state_survives_a_copy() -> None:
    model = Sequential(Linear(3, 3), BatchNorm1d(3))
    model(normal(8, 3))
    network = model.spec((3,))
    assert network is not None
    copy = Sequential.from_spec(network, model.state_dict())
    x = normal(2, 3, seed=1)
    np.testing.assert_array_equal(copy.eval()(x), model.eval()(x))


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (BatchNorm1d(3), (4, 2), r"\(3,\) or \(L, 3\), got \(2,\)"),
        (BatchNorm1d(3), (4, 2, 2, 3), r"\(3,\) or \(L, 3\), got \(2, 2, 3\)"),
        (BatchNorm1d(3), (), r"\(3,\) or \(L, 3\), got \(\)"),
        (BatchNorm2d(3), (4, 2, 2, 1), r"\(H, W, 3\), got \(2, 2, 1\)"),
        (BatchNorm2d(3), (4, 3), r"\(H, W, 3\), got \(3,\)"),
    ],
)
def test_batch_norm_refuses_batches_of_another_shape(
    layer: Any, shape: tuple[int, ...], expected: str
) -> None:
    name = type(layer).__name__
    with pytest.raises(ShapeError, match=f"{name}: expected samples of shape {expected}"):
        layer(np.zeros(shape))


@pytest.mark.parametrize("rows", [0, 1])
def test_batch_norm_refuses_a_batch_without_a_variance(rows: int) -> None:
    layer = BatchNorm1d(3)
    with pytest.raises(ShapeError, match=f"at least 2 values a channel in training, got {rows}"):
        layer(np.zeros((rows, 3)))
    assert layer.eval()(np.zeros((rows, 3))).shape == (rows, 3)


def test_batch_norm_spec() -> None:
    spec = BatchNorm2d(3, 1e-3, 0.2, False).spec
    assert spec == BatchNormSpec(3, 2, 1e-3, 0.2, False)
    assert spec.parameters() == {}
    assert BatchNormSpec(3, 1).parameters() == {
        "weight": ParameterSpec((3,), "ones"),
        "bias": ParameterSpec((3,), "zeros"),
    }
    assert BatchNormSpec(3, 1).output_shape((3,)) == (3,)
    for each, layer_class in ((spec, BatchNorm2d), (BatchNormSpec(3, 1), BatchNorm1d)):
        assert LayerSpec.from_dict(each.to_dict()) == each
        assert type(Layer.from_spec(each)) is layer_class


# -- layer norm
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized_shape", [4, (3, 4), [4]])
def test_layer_norm_normalises_every_sample(normalized_shape: Any) -> None:
    layer = LayerNorm(normalized_shape, dtype="float64")
    y = layer(3 + normal(5, 3, 4))
    axes = (1, 2) if normalized_shape == (3, 4) else 2
    np.testing.assert_allclose(y.mean(axis=axes), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=axes), 1, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "names"),
    [({}, ["weight", "bias"]), ({"bias": False}, ["weight"]), ({"elementwise_affine": False}, [])],
)
def test_layer_norm_on_the_tape(settings: dict[str, bool], names: list[str]) -> None:
    layer = LayerNorm(3, **settings, dtype="float64")  # type: ignore[arg-type]
    x, dy = Tensor(normal(5, 3), requires_grad=True), normal(5, 3, seed=1)
    layer(x).backward(dy)
    assert_derivative(x.grad, lambda x: np.vdot(dy, layer(Tensor(x)).data), x.data)
    assert [name for name, _ in layer.named_parameters()] == names
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_layer_norm_is_the_same_in_training_and_evaluation() -> None:
    layer, x = LayerNorm(3), normal(5, 3)
    assert_within_tolerance(layer(x), layer.eval()(x))


def test_layer_norm_refuses_batches_of_another_shape() -> None:
    for shape in ((5, 4, 3), (5, 3), (5,), ()):
        with pytest.raises(
            ShapeError, match=r"LayerNorm: expected samples whose shape ends in \(3, 4\), got \("
        ):
            LayerNorm((3, 4))(np.zeros(shape))


def test_layer_norm_spec() -> None:
    spec = LayerNorm([3, np.int64(4)], 1e-3, bias=False).spec
    assert spec == LayerNormSpec((3, 4), 1e-3, True, False)
    assert LayerSpec.from_dict({**spec.to_dict(), "normalized_shape": [3, 4]}) == spec
    assert type(Layer.from_spec(spec)) is LayerNorm
    assert spec.output_shape((2, 3, 4)) == (2, 3, 4)


# -- settings
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BatchNorm1d(-1),
            "BatchNorm1d: expected num_features to be an integer of at least 1, got -1",
        ),
        (lambda: BatchNorm2d(2, eps=-1), "BatchNorm2d: expected eps of at least 0, got -1"),
        (
            lambda: BatchNorm2d(2, momentum=1.5),
            r"BatchNorm2d: expected momentum in \[0, 1\], got 1.5",
        ),
        (lambda: BatchNormSpec(2, 3), "BatchNorm: expected num_dims 1 or 2, got 3"),
        (
            lambda: LayerNorm(2.0),
            "LayerNorm: expected normalized_shape to be an integer of at least 1, got 2.0",
        ),  # type: ignore[arg-type]
        (
            lambda: LayerNorm(()),
            r"LayerNorm: expected normalized_shape of at least one axis, got \(\)",
        ),
        (lambda: LayerNorm(2, eps=float("nan")), "LayerNorm: expected eps of at least 0, got nan"),
    ],
)
def test_refuses_settings(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("spec", [BatchNormSpec(2, 1), LayerNormSpec((2,))])
def test_refuses_foreign_descriptions(spec: LayerSpec) -> None:
    for change in ({"eps": "small"}, {"axis": 1}):
        with pytest.raises(
            FileFormatError, match=f"expected a description of a layer of kind {spec.kind}"
        ):
            LayerSpec.from_dict(spec.to_dict() | change)


def test_repr() -> None:
    assert repr(BatchNorm1d(3)) == "BatchNorm1d(3, eps=1e-05, momentum=0.1, 6 parameters)"
    assert (
        repr(BatchNorm2d(3, affine=False))
        == "BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=False)"
    )
    assert repr(LayerNorm(3)) == "LayerNorm((3,), eps=1e-05, 6 parameters)"
    assert (
        repr(LayerNorm((3, 2), bias=False))
        == "LayerNorm((3, 2), eps=1e-05, bias=False, 6 parameters)"
    )
    assert (
        repr(LayerNorm(3, elementwise_affine=False))
        == "LayerNorm((3,), eps=1e-05, elementwise_affine=False)"
    )
