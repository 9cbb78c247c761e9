from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit.backends.cuda import CudaBackend

# One block, several tiles of columns, several parts of rows, columns by the thousand.
SHAPES = [
    (64, 10),
    (1, 1),
    (0, 5),
    (5, 0),
    (3000, 10),
    (5000, 1),
    (601, 3),
    (900, 257),
    (2, 70000),
    (7, 2003),
    (3, 5000),
]
ROUNDING = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(scope="module")
def ops(kernel_runtime: Any) -> Any:
    return CudaBackend(kernel_runtime)


@pytest.mark.parametrize("shape", [(3, 70000), (40, 24)])
def test_sums_are_of_the_type_that_is_asked_for(ops: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(-4, 5, shape).astype("float32")
    sums = ops.column_sums(ops.asarray(x), "float16")
    assert sums.dtype == "float16"
    np.testing.assert_array_equal(sums.numpy(), x.sum(axis=0))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", SHAPES)
def test_sum_columns(ops: Any, shape: tuple[int, int], dtype: str) -> None:
    x = ops.asarray(ops.asarray(np.random.default_rng(0).standard_normal(shape)), dtype)
    result = ops.sum_columns(x)
    assert (result.shape, result.dtype) == (shape[1:], dtype)
    scale = np.abs(x.numpy()).sum(axis=0, dtype=np.float64)
    error = np.abs(result.numpy() - x.numpy().sum(axis=0, dtype=np.float64))
    assert (error <= ROUNDING[dtype] * scale).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_in_float32(ops: Any, dtype: str) -> None:
    x = ops.asarray(ops.asarray(np.random.default_rng(0).standard_normal((700, 33))), dtype)
    result = ops.column_sums(x, "float32", 0.5)
    assert result.dtype == "float32"
    expected = x.numpy().sum(axis=0, dtype=np.float64) / 2
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


@on_emulator
@pytest.mark.parametrize("shape", [(3000, 10), (600, 300)])
def test_sums_do_not_depend_on_the_order_of_blocks(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    first, second = (CudaBackend(EmulatedRuntime(reverse=reverse)) for reverse in (False, True))
    np.testing.assert_array_equal(
        *(ops.sum_columns(ops.asarray(x)).numpy() for ops in (first, second))
    )
