"""initial_values: what many networks begin with, drawn on the device, has the bits of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.initial_values import draw_initial_values
from warpfit.nn.init import initial_values, uniform_bound
from warpfit.nn.spec import ParameterSpec
from warpfit.random import INIT, stream_keys

SEEDS = [0, 1, 2**64 - 1, 12345]
INITS = ["default", "kaiming_uniform", "xavier_uniform", "lecun_uniform"]


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (20, 64), (33, 100)])
@pytest.mark.parametrize("start", ["weight", "bias", "zeros"])
def test_every_bit_is_numpys(ops: CudaBackend, shape: tuple[int, int], start: str) -> None:
    parameter = ParameterSpec(shape if start == "weight" else shape[1:], start, *shape)
    size, first, tensor_idx = int(np.prod(parameter.shape)), 3, 1
    out: Any = ops.full((len(SEEDS), 2, 1700), 7.0, "float32")
    keys = np.stack(stream_keys(SEEDS, INIT), axis=-1)
    bounds = np.array([uniform_bound(parameter, init) for init in INITS], np.float64)
    draw_initial_values(ops, out, first, size, keys, bounds, tensor_idx)
    found = ops.to_numpy(out).reshape(len(SEEDS), -1)
    for own, seed, init in zip(found, SEEDS, INITS, strict=True):
        expected = initial_values(parameter, init, seed, tensor_idx).astype(np.float32).ravel()
        drawn = own[first : first + size] + np.float32(0)  # -0 is 0
        np.testing.assert_array_equal(drawn.view(np.uint32), (expected + 0).view(np.uint32))
        np.testing.assert_array_equal(own[:first], 7)
        np.testing.assert_array_equal(own[first + size :], 7)


def test_those_that_are_normal_have_no_bound() -> None:
    weight = ParameterSpec((3, 4), "weight", 3, 4)
    assert uniform_bound(weight, "kaiming_normal") is None
    assert uniform_bound(ParameterSpec((4,), "bias", 3, 4), "kaiming_normal") is not None
    assert uniform_bound(ParameterSpec((4,), "ones"), "default") is None
