"""Kernels on architectures that lack some instructions: what stands in for these gives the same
numbers.

The operands are small whole numbers, so that every product and sum is exact in every type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend

RELU = Activation("relu")
MODES = {"float16": "float32", "bfloat16": "float32", "float32": "tf32", "float64": "float32"}

pytestmark = on_emulator


def before_sm80(precision: str) -> CudaBackend:
    return CudaBackend(EmulatedRuntime(arch="sm_75"), precision=precision)


def numbers(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(-1, 2, shape).astype("float64") for shape in shapes]


def assert_same(ops: CudaBackend, results: Any, references: Any) -> None:
    for result, reference in zip(results, references, strict=True):
        np.testing.assert_array_equal(ops.cast(result, "float32").numpy(), reference)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("shape", [(40, 48, 64), (17, 5, 9)])
@pytest.mark.parametrize("dtype", MODES)
def test_products_before_sm80(dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x, w, b, dz = numbers((m, k), (k, n), (n,), (m, n))
    ops, exact = before_sm80(MODES[dtype]), NumpyBackend()
    here = [ops.asarray(array, dtype) for array in (x, w, b, dz)]
    assert_same(
        ops, ops.linear_forward(*here[:3], RELU)[:1], exact.linear_forward(x, w, b, RELU)[:1]
    )
    assert_same(ops, ops.linear_backward(here[3], *here[:2]), exact.linear_backward(dz, x, w))


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("dtype", MODES)
def test_convolutions_before_sm80(dtype: str, channels: int) -> None:
    x, w, dz = numbers((2, 7, 6, channels), (3, 3, channels, 8), (2, 5, 4, 8))
    ops, exact = before_sm80(MODES[dtype]), NumpyBackend()
    here = [ops.asarray(array, dtype) for array in (x, w, dz)]
    assert_same(ops, ops.conv2d_forward(*here[:2], None)[:1], exact.conv2d_forward(x, w, None)[:1])
    found = ops.conv2d_backward_input(here[2], here[1], x.shape)
    assert_same(ops, [found], [exact.conv2d_backward_input(dz, w, x.shape)])
    found = ops.conv2d_backward_weight(here[2], here[0], (3, 3))
    assert_same(ops, found, exact.conv2d_backward_weight(dz, x, (3, 3)))


def test_rounding_to_bfloat16_before_sm80() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4000, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    special = np.array([0, 1 << 31, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0xFF800001], np.uint32)
    values = np.concatenate([bits, ties, special]).view(np.float32)
    old, new = before_sm80("float32"), CudaBackend(EmulatedRuntime())
    results = [
        ops.cast(ops.cast(ops.asarray(values), "bfloat16"), "float32").numpy() for ops in (old, new)
    ]
    np.testing.assert_array_equal(*results)
