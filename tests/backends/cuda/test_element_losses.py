"""Elementwise activations and losses in every dtype of a device array, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.element_losses import ElementOperation
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend
from warpfit.errors import DTypeError, ShapeError

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MEAN_ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
LOSSES = [
    ("mse", {}),
    ("mse", {"half": True}),
    ("absolute_error", {}),
    ("huber", {"delta": 0.7}),
    ("binary_cross_entropy", {}),
    ("binary_cross_entropy", {"sum_outputs": True}),
]
numpy_ops: Any = NumpyBackend()


@pytest.fixture(scope="module")
def ops(kernel_runtime: Any) -> Any:
    return CudaBackend(kernel_runtime)


def device_array(ops: Any, values: Any, dtype: str) -> tuple[Any, Any]:
    """Return an array on the device, and what it holds in float64."""
    array = ops.asarray(ops.asarray(values), dtype)
    return array, array.numpy().astype(np.float64)


def assert_close(result: Any, expected: Any, limit: float) -> None:
    assert result.shape == np.shape(expected)
    error = np.abs(result.numpy() - expected) / np.maximum(1, np.abs(expected))
    assert error.max(initial=0) <= limit


# A single element, one block with a ragged end, and so many elements that the blocks go round more
# than once.
@pytest.mark.in_turns(48)
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (71, 1000)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "options"), LOSSES)
def test_losses(
    ops: Any, name: str, options: dict[str, Any], weighted: bool, shape: tuple[int, int], dtype: str
) -> None:
    rng = np.random.default_rng(0)
    p, p_values = device_array(ops, rng.standard_normal(shape), dtype)
    t, t_values = device_array(ops, rng.uniform(0, 1, shape), dtype)
    s, s_values = (
        device_array(ops, rng.uniform(0.5, 2, shape[0]), dtype) if weighted else (None, None)
    )
    loss, weight = ElementOperation(ops, name, "forward")(p, t, sample_weight=s, **options)
    expected = ElementOperation(numpy_ops, name, "forward")(
        p_values, t_values, sample_weight=s_values, **options
    )
    assert loss.dtype == weight.dtype == ("float64" if dtype == "float64" else "float32")
    assert_close(loss, expected[0], MEAN_ROUNDING[dtype])
    assert_close(weight, expected[1], MEAN_ROUNDING[dtype])
    gradient = ElementOperation(ops, name, "backward")(p, t, weight, sample_weight=s, **options)
    value = ElementOperation(numpy_ops, name, "backward")(
        p_values, t_values, np.float64(expected[1]), sample_weight=s_values, **options
    )
    assert gradient.dtype == dtype
    # Gradients are as small as 1 / (M N); the smallest step of float16 is 2^-24.
    size = np.abs(value).max()
    assert np.abs(gradient.numpy() - value).max() <= ROUNDING[dtype] * size + 2.0**-25 * (
        dtype == "float16"
    )


def test_losses_refuse_a_weight_of_another_dtype(ops: Any) -> None:
    p, one = ops.asarray(np.zeros((2, 3), "float32")), ops.asarray(np.ones(()))
    with pytest.raises(DTypeError, match="expected total_weight of dtype float32, got float64"):
        ElementOperation(ops, "mse", "backward")(p, p, one)
    with pytest.raises(ShapeError, match=r"expected total_weight of shape \(\), got \(1,\)"):
        ElementOperation(ops, "mse", "backward")(p, p, ops.zeros((1,), "float32"))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_activations_in_half_precision(ops: Any, name: str, dtype: str) -> None:
    activation, rng = Activation(name), np.random.default_rng(0)
    z, z_values = device_array(ops, rng.standard_normal((37, 11)), dtype)
    dy, dy_values = device_array(ops, rng.standard_normal((37, 11)), dtype)
    y = ops.activation_forward(activation, z)
    assert y.dtype == dtype
    assert_close(y, numpy_ops.activation_forward(activation, z_values), ROUNDING[dtype])
    y_values = y.numpy().astype(np.float64)
    dz = ops.activation_backward(activation, dy, y, z)
    expected = numpy_ops.activation_backward(activation, dy_values, y_values, z_values)
    assert_close(dz, expected, ROUNDING[dtype])


@pytest.mark.parametrize("num_rows", [3, 700])
def test_activation_into_any_layout(ops: Any, num_rows: int) -> None:
    relu, values = Activation("relu"), np.random.default_rng(0).standard_normal((num_rows, 7))
    z, out = ops.asarray(values)[:, 1:6], ops.zeros((num_rows, 7), "float64")
    part = out[:, 2:]
    assert ops.activation_forward(relu, z, part) is part
    expected = np.zeros((num_rows, 7))
    expected[:, 2:] = np.maximum(values[:, 1:6], 0)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("num_outputs", [0, 1, 3, 40, 300])
def test_count_correct_binary(ops: Any, num_outputs: int) -> None:
    target = np.random.default_rng(0).integers(0, 2, (2000, num_outputs)).astype("float32")
    z = np.where(target > 0, 1, -1).astype("float32")
    wrong = np.arange(1, 2000, 7)
    if num_outputs:
        z[wrong, wrong % num_outputs] *= -1
    count = ops.count_correct_binary(ops.asarray(z), ops.asarray(target)).item()
    assert count == 2000 - len(wrong) * bool(num_outputs)
