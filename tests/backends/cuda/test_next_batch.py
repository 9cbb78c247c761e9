"""next_batch: the numbers and rows of each step, copied to the same places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.next_batch import StepSource

NUM_ROWS, BATCH, STEPS = 23, 5, 5
SHAPES = {"vectors": (8,), "words": (3,), "bytes": (7,), "none": (0,), "one": (), "images": (3, 4, 2)}


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def table() -> Any:
    return np.random.default_rng(1).standard_normal((STEPS, 4))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_every_step_gets_its_own(ops: CudaBackend, name: str, dtype: str) -> None:
    rng, numbers = np.random.default_rng(0), table()
    hosts = [rng.integers(0, 200, (NUM_ROWS, *shape)).astype(dtype) for shape in (SHAPES[name], (2,), ())]
    source = StepSource(ops, [ops.asarray(host) for host in hosts], BATCH, ops.asarray(numbers))
    for first, offset in ((0, 0), (0, 3), (2, 1), (4, 0), (1, 0)):
        step = first + offset
        expected = [host[step * BATCH : (step + 1) * BATCH] for host in hosts]
        source.begin(first)
        arrays = source.take(offset, len(expected[0]), source.phase(step))
        np.testing.assert_array_equal(source.numbers.numpy(), numbers[step])
        for taken, host, rows in zip(arrays, hosts, expected, strict=True):
            np.testing.assert_array_equal(taken.numpy(), rows)
            assert taken.dtype == host.dtype
            assert taken.pointer % 16 == step * BATCH * host[0].nbytes % 16


@pytest.mark.parametrize("num_sources", [1, 2])
def test_fewer_rows_than_a_batch(ops: CudaBackend, num_sources: int) -> None:
    hosts = [np.arange(6, dtype="f4").reshape(3, 2)] * num_sources
    source = StepSource(ops, [ops.asarray(host) for host in hosts], 100, ops.asarray(table()))
    source.begin(0)
    arrays = source.take(0, 3, source.phase(0))
    assert [taken.shape for taken in arrays] == [(3, 2)] * num_sources
    for taken in arrays:
        np.testing.assert_array_equal(taken.numpy(), hosts[0])


def test_a_captured_step_goes_where_it_is_sent(ops: CudaBackend) -> None:
    host, numbers = np.arange(NUM_ROWS, dtype="f4"), table()
    rows, on_device = ops.asarray(host), ops.asarray(numbers)
    source = StepSource(ops, [rows], BATCH, on_device)
    source.begin(0)
    source.take(0, BATCH, (0,))
    with ops.runtime.capture() as graph:
        (taken,) = source.take(1, BATCH, (8,))
    for first in (0, 2, 1):
        source.begin(first)
        graph.launch()
        np.testing.assert_array_equal(source.numbers.numpy(), numbers[first + 1])
        np.testing.assert_array_equal(taken.numpy(), host[(first + 1) * BATCH :][:BATCH])
    ops.assign(rows, ops.asarray(-host))
    ops.assign(on_device, ops.asarray(2 * numbers))
    graph.launch()
    np.testing.assert_array_equal(source.numbers.numpy(), 2 * numbers[2])
    np.testing.assert_array_equal(taken.numpy(), -host[2 * BATCH : 3 * BATCH])
