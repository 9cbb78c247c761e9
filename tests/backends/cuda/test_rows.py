"""Operations along rows on the ways that a row can take through the kernels, against NumPy in
float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from support.element_losses import ElementOperation
from warpfit.backends import NumpyBackend
from warpfit.backends.cuda import CudaBackend

# A row in a lane, in a few, in a warp (8 and 16 entries a lane), in a block's registers, and in
# several rounds of a block, which keeps some of them; of whole vectors and not.
SHAPES = [
    (300, 3),
    (64, 10),
    (33, 8),
    (9, 40),
    (3, 255),
    (5, 511),
    (4, 512),
    (3, 513),
    (2, 1024),
    (2, 7003),
    (2, 7008),
    (2, 33001),
    (1, 33008),
]
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MEAN_ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
numpy_ops: Any = NumpyBackend()

# The ways of a row differ in code, not in dtype: all are seen in two dtypes, the others at length
# in `make test-all`.
each_shape_and_dtype = pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(
            shape,
            dtype,
            marks=[] if dtype in ("float32", "float16") or shape == (2, 7003) else pytest.mark.slow,
        )
        for shape in SHAPES
        for dtype in ROUNDING
    ],
    ids=str,
)


class SmallRuntime(EmulatedRuntime):
    """A device whose shared memory takes one round of a long row only."""

    def __init__(self) -> None:
        super().__init__()
        self.max_shared_bytes = 60 << 10


@pytest.fixture(scope="module")
def ops(kernel_runtime: Any) -> Any:
    emulated = isinstance(kernel_runtime, EmulatedRuntime)
    return CudaBackend(SmallRuntime() if emulated else kernel_runtime)


def device_array(ops: Any, values: Any, dtype: str) -> tuple[Any, Any]:
    """Return an array on the device, and what it holds in float64."""
    array = ops.asarray(ops.asarray(values), dtype)
    return array, array.numpy().astype(np.float64)


def assert_close(result: Any, expected: Any, limit: float) -> None:
    assert result.shape == np.shape(expected)
    error = np.abs(result.numpy() - expected) / np.maximum(1, np.abs(expected))
    assert error.max(initial=0) <= limit


def logits(shape: tuple[int, int]) -> Any:
    return 3 * np.random.default_rng(0).standard_normal(shape)


@pytest.mark.in_turns(27)
@each_shape_and_dtype
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(ops: Any, name: str, shape: tuple[int, int], dtype: str) -> None:
    z, z_values = device_array(ops, logits(shape), dtype)
    y = getattr(ops, f"{name}_forward")(z)
    assert y.dtype == dtype
    assert_close(y, getattr(numpy_ops, f"{name}_forward")(z_values), ROUNDING[dtype])
    dy, dy_values = device_array(ops, np.random.default_rng(1).standard_normal(shape), dtype)
    dz = getattr(ops, f"{name}_backward")(dy, y)
    expected = getattr(numpy_ops, f"{name}_backward")(dy_values, y.numpy().astype(np.float64))
    assert_close(dz, expected, ROUNDING[dtype])


@pytest.mark.in_turns(27)
@each_shape_and_dtype
@pytest.mark.parametrize("weighted", [False, True])
def test_softmax_cross_entropy(
    ops: Any, shape: tuple[int, int], dtype: str, weighted: bool
) -> None:
    rng = np.random.default_rng(2)
    z, z_values = device_array(ops, logits(shape), dtype)
    labels = rng.integers(0, shape[1], shape[0])
    options, values = {}, {}
    if weighted:
        for name, size in (("class_weight", shape[1]), ("sample_weight", shape[0])):
            options[name], values[name] = device_array(ops, rng.uniform(0.5, 2, size), dtype)
        options["label_smoothing"] = values["label_smoothing"] = 0.1
    results = ops.softmax_cross_entropy_forward(z, ops.asarray(labels), **options)
    expected = numpy_ops.softmax_cross_entropy_forward(z_values, labels, **values)
    for result, value in zip(results[:2], expected[:2], strict=True):
        assert result.dtype == ("float64" if dtype == "float64" else "float32")
        assert_close(result, value, MEAN_ROUNDING[dtype])
    assert_close(results[2], expected[2], ROUNDING[dtype])
    gradient = ops.softmax_cross_entropy_backward(
        results[2], ops.asarray(labels), results[1], **options
    )
    probabilities = results[2].numpy().astype(np.float64)
    total_weight = np.float64(results[1].item())
    value = numpy_ops.softmax_cross_entropy_backward(probabilities, labels, total_weight, **values)
    assert_close(gradient, value, ROUNDING[dtype])


@pytest.mark.in_turns(12)
@each_shape_and_dtype
def test_count_correct(ops: Any, shape: tuple[int, int], dtype: str) -> None:
    z, values = device_array(ops, logits(shape), dtype)
    best = np.argmax(values, axis=1)
    assert ops.count_correct(z, ops.asarray(best)).item() == shape[0]
    some = np.where(np.arange(shape[0]) % 3 == 0, best, (best + 1) % shape[1])
    assert ops.count_correct(z, ops.asarray(some)).item() == -(-shape[0] // 3)


@pytest.mark.parametrize("num_columns", [5, 600])
def test_count_correct_as_argmax(ops: Any, num_columns: int) -> None:
    z = np.random.default_rng(0).standard_normal((8, num_columns))
    z[1, 2] = z[2, 1] = z[2, 3] = np.nan
    z[3], z[4, 0], z[5] = 1.0, np.inf, -np.inf
    for label in (-1, 0, 1, 2, 3, num_columns - 1, num_columns):
        labels = np.full(8, label)
        count = ops.count_correct(ops.asarray(z), ops.asarray(labels)).item()
        assert count == np.count_nonzero(np.argmax(z, axis=1) == label)


@pytest.mark.parametrize("num_columns", [7, 700, 9000])
def test_softmax_of_infinite_rows(ops: Any, num_columns: int) -> None:
    z = logits((5, num_columns))
    z[0, 3], z[1], z[2, 0], z[3, ::2] = np.inf, -np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = numpy_ops.softmax_forward(z)
    result = ops.softmax_forward(ops.asarray(z)).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert np.isnan(result[:3]).all()
    assert (result[3, ::2] == 0).all()


def test_rows_that_begin_anywhere(ops: Any) -> None:
    for num_columns in (6, 8, 601, 33001):
        values = logits((5, num_columns)).astype("float32")
        z = ops.asarray(values)[1:, :]
        np.testing.assert_array_equal(
            ops.softmax_forward(z).numpy(), ops.softmax_forward(ops.copy(z)).numpy()
        )


@pytest.mark.in_turns(2)
@on_emulator
@pytest.mark.parametrize("shape", [(3000, 10), (2500, 700)])
def test_means_do_not_depend_on_the_order_of_blocks(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    values, labels = (
        rng.standard_normal(shape).astype("float32"),
        rng.integers(0, shape[1], shape[0]),
    )
    losses = []
    for reverse in (False, True):
        ops = CudaBackend(EmulatedRuntime(reverse=reverse))
        z = ops.asarray(values)
        losses.append([ops.softmax_cross_entropy_forward(z, ops.asarray(labels))[0].item()])
        square = ElementOperation(ops, "mse", "forward")
        losses[-1].append(square(z, ops.asarray(values[::-1]))[0].item())
    assert losses[0] == losses[1]
