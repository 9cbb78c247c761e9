"""next_batch: the numbers and rows of each step, brought to the same places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.next_batch import OrderedRows, StepSource

NUM_ROWS, BATCH, STEPS = 23, 5, 5
SHAPES = {
    "vectors": (8,),
    "words": (3,),
    "none": (0,),
    "one": (),
    "images": (3, 4, 2),
    "long": (5000,),
}
# As stored, and as a step takes them.
DTYPES = [
    ("uint8", "uint8"),
    ("uint8", "float16"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float64", "float32"),
    ("int64", "int64"),
]


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def table() -> Any:
    return np.random.default_rng(1).standard_normal((STEPS, 4))


def orders() -> Any:
    return np.random.default_rng(2).permutation(NUM_ROWS)


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("stored", "taken_as"), DTYPES)
def test_every_step_gets_its_own(ops: CudaBackend, name: str, stored: str, taken_as: str) -> None:
    rng, numbers, order = np.random.default_rng(0), table(), orders()
    hosts = [
        rng.integers(0, 200, (NUM_ROWS, *shape)).astype(stored)
        for shape in (SHAPES[name], (2,), ())
    ]
    arrays = [ops.asarray(host) for host in hosts]
    dtypes = [taken_as, stored, stored]
    sources = list(zip(arrays, dtypes, strict=True))
    source = StepSource(ops, sources, ops.asarray(order), BATCH, ops.asarray(numbers))
    own = ops.empty((), taken_as).itemsize
    for first, offset, shifts in (
        (0, 0, (0, 0, 0)),
        (0, 3, (8, 0, 8)),
        (4, 0, (0, 8, 0)),
        (1, 0, (own, 0, 0)),
    ):
        step = first + offset
        rows = ops.asarray(order[step * BATCH : (step + 1) * BATCH])
        source.begin(first)
        taken = source.take(offset, len(rows), shifts)
        np.testing.assert_array_equal(source.numbers.numpy(), numbers[step])
        for got, array, dtype, shift in zip(taken, arrays, dtypes, shifts, strict=True):
            np.testing.assert_array_equal(got.numpy(), ops.gather_rows(array, rows, dtype).numpy())
            assert got.dtype == dtype
            assert got.pointer % 16 == shift


@pytest.mark.parametrize("num_sources", [1, 2])
def test_fewer_rows_than_a_batch(ops: CudaBackend, num_sources: int) -> None:
    host = np.arange(6, dtype="f4").reshape(3, 2)
    sources = [(ops.asarray(host), "float32")] * num_sources
    source = StepSource(ops, sources, ops.asarray(np.array([2, 0, 1])), 100, ops.asarray(table()))
    source.begin(0)
    arrays = source.take(0, 3, (0,) * num_sources)
    assert [taken.shape for taken in arrays] == [(3, 2)] * num_sources
    for taken in arrays:
        np.testing.assert_array_equal(taken.numpy(), host[[2, 0, 1]])


def test_a_captured_step_goes_where_it_is_sent(ops: CudaBackend) -> None:
    host, numbers, order = np.arange(NUM_ROWS, dtype="f4"), table(), orders()
    rows, places, on_device = ops.asarray(host), ops.asarray(order), ops.asarray(numbers)
    source = StepSource(ops, [(rows, "float32")], places, BATCH, on_device)
    source.begin(0)
    source.take(0, BATCH, (0,))
    with ops.runtime.capture() as graph:
        (taken,) = source.take(1, BATCH, (8,))
    for first in (0, 2, 1):
        source.begin(first)
        graph.launch()
        np.testing.assert_array_equal(source.numbers.numpy(), numbers[first + 1])
        np.testing.assert_array_equal(taken.numpy(), host[order[(first + 1) * BATCH :][:BATCH]])
    ops.assign(rows, ops.asarray(-host))
    ops.assign(places, ops.asarray(order[::-1].copy()))
    ops.assign(on_device, ops.asarray(2 * numbers))
    graph.launch()
    np.testing.assert_array_equal(source.numbers.numpy(), 2 * numbers[2])
    np.testing.assert_array_equal(taken.numpy(), -host[order[::-1][2 * BATCH : 3 * BATCH]])


def test_rows_that_stay_where_they_are(ops: CudaBackend) -> None:
    numbers, order = table(), orders()
    hosts = [np.arange(NUM_ROWS * size, dtype="f4").reshape(NUM_ROWS, size) for size in (3, 8, 1)]
    sources = [
        (ops.asarray(host), dtype)
        for host, dtype in zip(hosts, ("float16", "float32", "float32"), strict=True)
    ]
    source = StepSource(
        ops, sources, ops.asarray(order), BATCH, ops.asarray(numbers), in_place=(1,)
    )
    source.begin(3)
    x, y, weights = source.take(1, 3, (8, 4, 12))
    np.testing.assert_array_equal(source.numbers.numpy(), numbers[4])
    rows = order[4 * BATCH :][:3]
    np.testing.assert_array_equal(x.numpy(), hosts[0][rows].astype("f2"))
    np.testing.assert_array_equal(weights.numpy(), hosts[2][rows])
    assert (x.pointer % 16, weights.pointer % 16) == (8, 12)
    assert isinstance(y, OrderedRows)
    assert (y.array.pointer, y.shape, y.dtype) == (sources[1][0].pointer, (3, 8), "float32")
