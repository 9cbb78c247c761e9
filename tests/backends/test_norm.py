from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import (
    DTYPES,
    LAYOUTS,
    assert_derivative,
    assert_within_tolerance,
    call,
    download,
    layouts,
    upload,
)
from warpfit.backends import Activation, Backend
from warpfit.errors import DTypeError, ShapeError

SHAPES = [(7, 3), (2, 3), (2, 4, 5, 3), (1, 2, 1, 3), (3, 4, 3)]
NO_PARAMETERS = {"weight": None, "bias": None}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def vectors(num_channels: int, dtype: str = "float64") -> dict[str, Any]:
    """Return weight, bias, running_mean and running_var."""
    rng = np.random.default_rng(9)
    names = ("weight", "bias", "running_mean", "running_var")
    return {name: rng.uniform(0.5, 2, num_channels).astype(dtype) for name in names}


def naive_normalise(values: Any, eps: float) -> Any:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return [(value - mean) / (variance + eps) ** 0.5 for value in values]


def naive_batch_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    channels = x.reshape(-1, x.shape[-1]).T.tolist()
    columns = [naive_normalise(column, eps) for column in channels]
    return (np.array(columns).T * weight + bias).reshape(x.shape)


def run_batch_norm(backend: Backend, x: Any, arrays: dict[str, Any], **settings: Any) -> Any:
    """Return y, what backward needs, and what the vectors are afterwards; the caller's stay as they
    are.
    """
    on_device = {
        name: upload(backend, None if a is None else a.copy()) for name, a in arrays.items()
    }
    y, saved = backend.batch_norm_forward(upload(backend, x), **on_device, **settings)
    after = {name: download(backend, array) for name, array in on_device.items()}
    return download(backend, y), saved, after


def batch_norm_gradients(backend: Backend, dy: Any, x: Any, training: bool, **arrays: Any) -> Any:
    _, saved, _ = run_batch_norm(backend, x, arrays, training=training)
    dy, x, weight = (upload(backend, array) for array in (dy, x, arrays["weight"]))
    return download(backend, backend.batch_norm_backward(dy, x, weight, saved, training=training))


# -- batch norm
# --------------------------------------------------------------------------------------------


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_in_training(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    x, arrays = normal(*shape).astype(dtype), vectors(3, dtype)
    before = {name: array.astype("float64") for name, array in arrays.items()}
    y, _, after = run_batch_norm(backend, x, arrays, training=True, momentum=0.3, eps=1e-3)
    precise = x.astype("float64")
    assert y.dtype == dtype
    assert_within_tolerance(
        y, naive_batch_norm(precise, before["weight"], before["bias"], eps=1e-3)
    )
    rows = precise.reshape(-1, 3)
    assert_within_tolerance(
        after["running_mean"], 0.7 * before["running_mean"] + 0.3 * rows.mean(axis=0)
    )
    unbiased = ((rows - rows.mean(axis=0)) ** 2).sum(axis=0) / (len(rows) - 1)
    assert_within_tolerance(after["running_var"], 0.7 * before["running_var"] + 0.3 * unbiased)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 3), (0, 3), (0, 4, 5, 3)])
def test_batch_norm_in_evaluation(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    x, arrays = normal(*shape).astype(dtype), vectors(3, dtype)
    y, _, after = run_batch_norm(backend, x, arrays, training=False)
    weight, bias, mean, variance = (array.astype("float64") for array in arrays.values())
    assert_within_tolerance(y, (x - mean) / np.sqrt(variance + 1e-5) * weight + bias, dtype)
    for name, array in arrays.items():
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_backward(backend: Backend, shape: tuple[int, ...], training: bool) -> None:
    x, dy, arrays = normal(*shape), normal(*shape, seed=1), vectors(3)
    dx, dweight, dbias = batch_norm_gradients(backend, dy, x, training, **arrays)

    def inner(x: Any = x, **changed: Any) -> Any:
        return np.sum(dy * run_batch_norm(backend, x, arrays | changed, training=training)[0])

    assert_derivative(dx, inner, x)
    assert_derivative(dweight, lambda value: inner(weight=value), arrays["weight"])
    assert_derivative(dbias, lambda value: inner(bias=value), arrays["bias"])


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "silu"])
def test_batch_norm_takes_an_activation(backend: Backend, name: str, training: bool) -> None:
    x, dy, arrays = normal(5, 4, 3), normal(5, 4, 3, seed=1), vectors(3)
    activation = Activation(name, 0.1)

    def y_of(x: Any = x, **changed: Any) -> Any:
        settings = {"training": training, "activation": activation}
        return run_batch_norm(backend, x, arrays | changed, **settings)

    z, _, _ = run_batch_norm(backend, x, arrays, training=training)
    y, saved, _ = y_of()
    expected = call(backend.activation_forward, activation, z)
    np.testing.assert_allclose(y, expected, rtol=1e-14, atol=1e-14)
    given = [upload(backend, array) for array in (dy, x, arrays["weight"])]
    settings = {"training": training, "activation": activation}
    bias = upload(backend, arrays["bias"])
    found = backend.batch_norm_backward(*given, saved, **settings, bias=bias)
    dx, dweight, dbias = download(backend, found)
    assert_derivative(dx, lambda value: np.sum(dy * y_of(value)[0]), x)
    for gradient, which in ((dweight, "weight"), (dbias, "bias")):
        assert_derivative(
            gradient,
            lambda value, which=which: np.sum(dy * y_of(**{which: value})[0]),
            arrays[which],
        )


@pytest.mark.parametrize("name", ["identity", "relu"])
def test_batch_norm_adds_before_the_activation(backend: Backend, name: str) -> None:
    x, other, arrays = normal(7, 5, 3), normal(7, 5, 3, seed=1), vectors(3)
    z, _, _ = run_batch_norm(backend, x, arrays, training=True)
    settings = {"activation": Activation(name), "added": upload(backend, other)}
    y, _, _ = run_batch_norm(backend, x, arrays, training=True, **settings)
    expected = z + other if name == "identity" else np.maximum(z + other, 0)
    np.testing.assert_allclose(y, expected, rtol=1e-14, atol=1e-14)
    settings["added"] = upload(backend, other[:2])
    with pytest.raises(ShapeError, match=r"batch_norm_forward: expected added of shape"):
        run_batch_norm(backend, x, arrays, training=True, **settings)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_parameters(backend: Backend, training: bool) -> None:
    x, dy = normal(6, 3), normal(6, 3, seed=1)
    ones = vectors(3) | {"weight": np.ones(3), "bias": np.zeros(3)}
    expected = batch_norm_gradients(backend, dy, x, training, **ones)
    results = batch_norm_gradients(backend, dy, x, training, **(ones | NO_PARAMETERS))
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward_in_float32(backend: Backend, training: bool) -> None:
    x, dy = normal(20, 4, 4, 3), normal(20, 4, 4, 3, seed=1)
    precise = batch_norm_gradients(backend, dy, x, training, **vectors(3))
    single = batch_norm_gradients(
        backend, dy.astype("float32"), x.astype("float32"), training, **vectors(3, "float32")
    )
    for result, reference in zip(single, precise, strict=True):
        assert result.dtype == np.float32
        assert_within_tolerance(result, reference)


def test_batch_norm_backward_of_no_rows_in_evaluation(backend: Backend) -> None:
    x = np.zeros((0, 3))
    dx, dweight, dbias = batch_norm_gradients(backend, x, x, False, **vectors(3))
    assert dx.shape == x.shape
    assert dweight.tolist() == dbias.tolist() == [0, 0, 0]


def test_batch_norm_of_large_means(backend: Backend) -> None:
    x = (1e4 + normal(500, 3)).astype("float32")
    dy = normal(500, 3, seed=1).astype("float32")
    arrays = vectors(3, "float32")
    y, _, _ = run_batch_norm(backend, x, arrays, training=True)
    expected = naive_batch_norm(x.astype("float64"), arrays["weight"], arrays["bias"])
    assert_within_tolerance(y, expected, "float32")
    single = batch_norm_gradients(backend, dy, x, True, **arrays)
    precise = batch_norm_gradients(
        backend, dy.astype("float64"), x.astype("float64"), True, **vectors(3)
    )
    for result, reference in zip(single, precise, strict=True):
        assert_within_tolerance(result, reference, "float32")


def test_batch_norm_of_a_constant(backend: Backend) -> None:
    y, _, _ = run_batch_norm(backend, np.full((5, 2), 3.7), vectors(2), training=True)
    np.testing.assert_allclose(y, np.broadcast_to(vectors(2)["bias"], (5, 2)))


def test_batch_norm_against_torch(backend: Backend, torch: Any) -> None:
    x, dy, arrays = normal(4, 3, 2, 3), normal(4, 3, 2, 3, seed=1), vectors(3)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    for name in ("weight", "bias"):
        tensors[name].requires_grad_()
    x_torch = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
    expected = torch.nn.functional.batch_norm(x_torch, **tensors, training=True)
    expected.backward(torch.tensor(dy.transpose(0, 3, 1, 2)))
    dx, dweight, dbias = batch_norm_gradients(backend, dy, x, True, **arrays)
    y, _, after = run_batch_norm(backend, x, arrays, training=True)
    assert_within_tolerance(y.transpose(0, 3, 1, 2), expected.detach().numpy())
    assert_within_tolerance(dx.transpose(0, 3, 1, 2), x_torch.grad.numpy())
    assert_within_tolerance(dweight, tensors["weight"].grad.numpy())
    assert_within_tolerance(dbias, tensors["bias"].grad.numpy())
    for name in ("running_mean", "running_var"):
        assert_within_tolerance(after[name], tensors[name].numpy())


def test_batch_norm_of_no_channels(backend: Backend) -> None:
    x = np.zeros((4, 0))
    for result in batch_norm_gradients(backend, x, x, True, **vectors(0)):
        assert result.size == 0


@pytest.mark.parametrize("shape", [(1, 3), (0, 3), (0, 4, 5, 3), (1, 1, 1, 3)])
def test_batch_norm_refuses_too_few_values_in_training(
    backend: Backend, shape: tuple[int, ...]
) -> None:
    arrays = {name: upload(backend, array) for name, array in vectors(3).items()}
    with pytest.raises(ShapeError, match=r"at least 2 values a channel in training, got [01] "):
        backend.batch_norm_forward(upload(backend, np.zeros(shape)), **arrays, training=True)
    np.testing.assert_array_equal(
        backend.to_numpy(arrays["running_mean"]), vectors(3)["running_mean"]
    )


@pytest.mark.parametrize("name", vectors(3))
def test_batch_norm_refuses_vectors(backend: Backend, name: str) -> None:
    with pytest.raises(
        ShapeError, match=rf"batch_norm_forward: expected {name} of shape \(3,\), got \(2,\)"
    ):
        run_batch_norm(backend, np.zeros((4, 3)), vectors(3) | {name: np.ones(2)}, training=True)
    arrays = vectors(3) | {name: np.ones(3, "float32")}
    with pytest.raises(DTypeError, match="batch_norm_forward: expected operands of one dtype"):
        run_batch_norm(backend, np.zeros((4, 3)), arrays, training=True)


def test_batch_norm_refuses_other_operands(backend: Backend) -> None:
    with pytest.raises(
        ShapeError, match=r"expected x of shape \(M, C\) or \(M, H, W, C\), got \(3,\)"
    ):
        run_batch_norm(backend, np.zeros(3), vectors(3), training=False)
    x = upload(backend, np.zeros((4, 3)))
    _, saved, _ = run_batch_norm(backend, np.zeros((4, 3)), vectors(3), training=True)
    with pytest.raises(
        ShapeError, match="batch_norm_backward: expected operands of the same shape"
    ):
        backend.batch_norm_backward(x[:2], x, None, saved, training=True)
    with pytest.raises(
        ShapeError, match=r"batch_norm_backward: expected weight of shape \(3,\), got \(1,\)"
    ):
        backend.batch_norm_backward(x, x, x[0, :1], saved, training=True)
    single = backend.asarray(x, "float32")
    with pytest.raises(DTypeError, match="batch_norm_backward: expected operands of one dtype"):
        backend.batch_norm_backward(single, x, None, saved, training=True)


# -- layer norm
# --------------------------------------------------------------------------------------------


def layer_norm_gradients(
    backend: Backend, dy: Any, x: Any, weight: Any, bias: Any, num_axes: int
) -> Any:
    dy, x, weight, bias = (upload(backend, array) for array in (dy, x, weight, bias))
    _, saved = backend.layer_norm_forward(x, weight, bias, num_axes=num_axes)
    return download(backend, backend.layer_norm_backward(dy, x, weight, saved, num_axes=num_axes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "num_axes"), [((4, 5), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), 3), ((5,), 1)]
)
def test_layer_norm_forward(
    backend: Backend, shape: tuple[int, ...], num_axes: int, dtype: str
) -> None:
    own = shape[len(shape) - num_axes :]
    x, weight, bias = (normal(*s, seed=i).astype(dtype) for i, s in enumerate((shape, own, own)))
    y, _ = call(backend.layer_norm_forward, x, weight, bias, num_axes=num_axes, eps=1e-3)
    rows = x.astype("float64").reshape(-1, int(np.prod(own))).tolist()
    normalised = np.array([naive_normalise(row, 1e-3) for row in rows]).reshape(shape)
    assert y.dtype == dtype
    assert_within_tolerance(y, normalised * weight.astype("float64") + bias.astype("float64"))


@pytest.mark.parametrize(
    ("shape", "num_axes"), [((4, 5), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 1), 1)]
)
def test_layer_norm_backward(backend: Backend, shape: tuple[int, ...], num_axes: int) -> None:
    own = shape[len(shape) - num_axes :]
    x, dy, weight, bias = (normal(*s, seed=i) for i, s in enumerate((shape, shape, own, own)))
    dx, dweight, dbias = layer_norm_gradients(backend, dy, x, weight, bias, num_axes)

    def inner(x: Any = x, weight: Any = weight, bias: Any = bias) -> Any:
        return np.sum(dy * call(backend.layer_norm_forward, x, weight, bias, num_axes=num_axes)[0])

    assert_derivative(dx, inner, x)
    assert_derivative(dweight, lambda value: inner(weight=value), weight)
    assert_derivative(dbias, lambda value: inner(bias=value), bias)


def test_layer_norm_without_parameters(backend: Backend) -> None:
    x, dy = normal(4, 5), normal(4, 5, seed=1)
    expected = layer_norm_gradients(backend, dy, x, np.ones(5), np.zeros(5), 1)
    for result, value in zip(
        layer_norm_gradients(backend, dy, x, None, None, 1), expected, strict=True
    ):
        np.testing.assert_array_equal(result, value)


def test_layer_norm_of_large_means_in_float32(backend: Backend) -> None:
    x, dy = (1e4 + normal(6, 300)).astype("float32"), normal(6, 300, seed=1).astype("float32")
    y, _ = call(backend.layer_norm_forward, x, None, None)
    expected = np.array([naive_normalise(row, 1e-5) for row in x.astype("float64").tolist()])
    assert_within_tolerance(y, expected, "float32")
    single = layer_norm_gradients(backend, dy, x, None, None, 1)
    precise = layer_norm_gradients(
        backend, dy.astype("float64"), x.astype("float64"), None, None, 1
    )
    for result, reference in zip(single, precise, strict=True):
        assert result.dtype == np.float32
        assert_within_tolerance(result, reference)


def test_layer_norm_against_torch(backend: Backend, torch: Any) -> None:
    x, dy, weight, bias = (normal(*s, seed=i) for i, s in enumerate([(3, 4, 5)] * 2 + [(4, 5)] * 2))
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, weight, bias)]
    expected = torch.nn.functional.layer_norm(tensors[0], (4, 5), *tensors[1:])
    expected.backward(torch.tensor(dy))
    y, _ = call(backend.layer_norm_forward, x, weight, bias, num_axes=2)
    assert_within_tolerance(y, expected.detach().numpy())
    for result, tensor in zip(
        layer_norm_gradients(backend, dy, x, weight, bias, 2), tensors, strict=True
    ):
        assert_within_tolerance(result, tensor.grad.numpy())


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_layer_norm_of_nothing(backend: Backend, shape: tuple[int, int]) -> None:
    x = np.zeros(shape)
    dx, dweight, dbias = layer_norm_gradients(
        backend, x, x, np.ones(shape[1]), np.ones(shape[1]), 1
    )
    assert (dx.shape, dweight.tolist(), dbias.tolist()) == (shape, [0] * shape[1], [0] * shape[1])


@pytest.mark.parametrize("num_axes", [0, 3, -1])
def test_layer_norm_refuses_num_axes(backend: Backend, num_axes: int) -> None:
    with pytest.raises(
        ShapeError, match=f"layer_norm_forward: expected num_axes from 1 to 2 .* got {num_axes}"
    ):
        call(backend.layer_norm_forward, np.zeros((2, 3)), None, None, num_axes=num_axes)


def test_layer_norm_refuses_other_operands(backend: Backend) -> None:
    x = np.zeros((2, 3))
    with pytest.raises(
        ShapeError, match=r"layer_norm_forward: expected weight of shape \(3,\), got \(2,\)"
    ):
        call(backend.layer_norm_forward, x, np.ones(2), None)
    with pytest.raises(
        ShapeError, match=r"layer_norm_forward: expected bias of shape \(2, 3\), got \(3,\)"
    ):
        call(backend.layer_norm_forward, x, None, np.ones(3), num_axes=2)
    with pytest.raises(DTypeError, match="layer_norm_forward: expected operands of one dtype"):
        call(backend.layer_norm_forward, x, np.ones(3, "float32"), None)
    on_device = upload(backend, x)
    _, saved = backend.layer_norm_forward(on_device, None, None)
    with pytest.raises(
        ShapeError, match="layer_norm_backward: expected operands of the same shape"
    ):
        backend.layer_norm_backward(on_device[:1], on_device, None, saved)


# -- both
# --------------------------------------------------------------------------------------------------


@given(
    rows=st.integers(2, 20),
    channels=st.integers(1, 8),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    offset=st.sampled_from([0, -3, 100]),
)
@settings(deadline=None, max_examples=60)
def test_any_shape_and_layout(
    backend: Backend, rows: int, channels: int, dtype: str, layout: str, offset: float
) -> None:
    x = (normal(rows, channels) + offset).astype(dtype)
    before = x.copy()
    laid = dict(layouts(x))[layout]
    ones = np.ones(channels, dtype)
    y, _ = call(
        backend.batch_norm_forward, laid, ones, ones, ones.copy(), ones.copy(), training=True
    )
    assert_within_tolerance(y, naive_batch_norm(x.astype("float64"), 1, 1), dtype)
    y, _ = call(backend.layer_norm_forward, laid, None, None)
    assert_within_tolerance(y, naive_batch_norm(x.astype("float64").T, 1, 0).T, dtype)
    np.testing.assert_array_equal(x, before)


def precise_norm(x: Any, dy: Any, weight: Any, axis: int, eps: float = 1e-5) -> tuple[Any, ...]:
    """Return x̂ · weight, dx, dweight and dbias by the formulas, in float64; statistics along
    `axis` of a matrix.
    """
    x, dy, weight = (array.astype("float64") for array in (x, dy, weight))
    mean = x.mean(axis, keepdims=True)
    inverse_std = 1 / np.sqrt(((x - mean) ** 2).mean(axis, keepdims=True) + eps)
    x_hat, g = (x - mean) * inverse_std, dy * weight
    dx = inverse_std * (
        g - g.mean(axis, keepdims=True) - x_hat * (g * x_hat).mean(axis, keepdims=True)
    )
    return x_hat * weight, dx, (dy * x_hat).sum(axis=0), dy.sum(axis=0)


# Many rows; several tiles of columns, with and without vectors.
@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1201, 1), (611, 3), (300, 8), (9, 1030), (9, 1032)])
def test_batch_norm_of_larger_matrices(
    backend: Backend, shape: tuple[int, int], dtype: str
) -> None:
    x, dy = (2 + normal(*shape)).astype(dtype), normal(*shape, seed=1).astype(dtype)
    arrays = vectors(shape[1], dtype) | {"bias": None}
    y, _, _ = run_batch_norm(backend, x, arrays, training=True)
    results = (y, *batch_norm_gradients(backend, dy, x, True, **arrays))
    for result, expected in zip(
        results, precise_norm(x, dy, arrays["weight"], axis=0), strict=True
    ):
        assert_within_tolerance(result, expected, dtype)


# A warp for every row, a block for every row, and rows longer than what a block's threads keep.
@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 17), (9, 1030), (9, 1032), (3, 8201)])
def test_layer_norm_of_larger_matrices(
    backend: Backend, shape: tuple[int, int], dtype: str
) -> None:
    x, dy = (2 + normal(*shape)).astype(dtype), normal(*shape, seed=1).astype(dtype)
    weight = vectors(shape[1], dtype)["weight"]
    y, _ = call(backend.layer_norm_forward, x, weight, None)
    results = (y, *layer_norm_gradients(backend, dy, x, weight, None, 1))
    for result, expected in zip(results, precise_norm(x, dy, weight, axis=1), strict=True):
        assert_within_tolerance(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, -1])
def test_batch_norm_with_an_outlier(backend: Backend, place: int, dtype: str) -> None:
    x, dy = normal(400, 2).astype(dtype), normal(400, 2, seed=1).astype(dtype)
    x[place] = 1e4
    arrays = vectors(2, dtype) | NO_PARAMETERS
    y, _, after = run_batch_norm(backend, x, arrays, training=True, momentum=1.0)
    expected, *_ = precise_norm(x, dy, np.ones(2), axis=0)
    assert_within_tolerance(y, expected, dtype)
    assert_within_tolerance(after["running_mean"], x.astype("float64").mean(axis=0), dtype)
    assert_within_tolerance(after["running_var"], x.astype("float64").var(axis=0, ddof=1), dtype)


def test_running_statistics_reach_into_views(backend: Backend) -> None:
    x, arrays = normal(6, 3), vectors(3)
    _, _, expected = run_batch_norm(backend, x, arrays, training=True)
    bases = {name: upload(backend, np.repeat(array, 2)) for name, array in arrays.items()}
    views = {name: base[::2] for name, base in bases.items()}
    backend.batch_norm_forward(upload(backend, x), **views, training=True)
    for name, base in bases.items():
        np.testing.assert_array_equal(backend.to_numpy(base)[::2], expected[name])
        np.testing.assert_array_equal(backend.to_numpy(base)[1::2], arrays[name])
