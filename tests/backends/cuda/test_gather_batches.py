"""gather_batches: rows in the order of an epoch, rounded to half precision and divided among
blocks, as by NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from support.rounded import rounded
from warpfit.backends.cuda import CudaBackend
from warpfit.data.order import domain_bits, epoch_order, round_keys_of

pytestmark = pytest.mark.in_turns(3)

SEED = 7
SOURCES = ("uint8", "float16", "float32", "float64")
THREADS = 256


class Shape(NamedTuple):
    """Sizes of what is gathered: the width of a part is a multiple of 16, and all parts hold the
    features.
    """

    num_rows: int
    features: int
    batch: int
    parts: int = 1
    width: int = 16
    epochs: int = 1
    chunk_rows: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def steps(self) -> int:
        return -(-self.num_rows // self.batch)


SHAPES = [
    Shape(1, 1, 1),
    Shape(70, 6, 16, epochs=3),  # 5 batches, the last of 6 rows
    Shape(50, 24, 33, width=32, epochs=2),  # whole pieces of 8
    Shape(37, 100, 8, parts=4, width=32),  # a part of 4 features
    Shape(40, 64, 20, parts=2, width=32, epochs=2),  # no padding, no short batch
    Shape(19, 129, 7, parts=16, width=16),  # parts without any
    Shape(50, 100, 32, parts=4, width=32, chunk_rows=32),  # 8 features each of all rows
    Shape(70, 40, 48, width=48, epochs=2, chunk_rows=16),  # of 16 rows
]


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def numbers(shape: Shape, source: str) -> Any:
    rng = np.random.default_rng(0)
    size = shape.num_rows, shape.features
    return (
        rng.integers(0, 256, size, "u1")
        if source == "uint8"
        else rng.standard_normal(size).astype(source)
    )


def in_half(values: Any, dtype: str) -> Any:
    """Return numbers rounded to the dtype, as float32; bytes are divided by 255."""
    return rounded(np.float32(values) / np.float32(255 if values.dtype == np.uint8 else 1), dtype)


def orders(shape: Shape, shuffle: bool, first_epoch: int) -> list[Any]:
    epochs = range(first_epoch, first_epoch + shape.epochs)
    return [
        epoch_order(shape.num_rows, SEED, k) if shuffle else np.arange(shape.num_rows)
        for k in epochs
    ]


def in_batches(shape: Shape, rows: Any, shuffle: bool, first_epoch: int) -> Any:
    """Return rows (N, ...) as batches (epochs, steps, batch, ...), with zeros for rows that are
    missing.
    """
    found = np.zeros((shape.epochs, shape.steps * shape.batch, *rows.shape[1:]), rows.dtype)
    for epoch, order in enumerate(orders(shape, shuffle, first_epoch)):
        found[epoch, : shape.num_rows] = rows[order]
    return found.reshape(shape.epochs, shape.steps, shape.batch, *rows.shape[1:])


def in_parts(shape: Shape, batches: Any) -> Any:
    """Return batches (..., batch, features) as (..., parts, batch, width), with zeros for missing
    features.
    """
    padding = [(0, 0)] * (batches.ndim - 1) + [(0, shape.parts * shape.width - shape.features)]
    padded = np.pad(batches, padding).reshape(*batches.shape[:-1], shape.parts, shape.width)
    return np.moveaxis(padded, -2, -3)


def gathered(
    ops: CudaBackend,
    shape: Shape,
    x: Any,
    targets: Any,
    dtype: str = "float16",
    *,
    shuffle: bool = True,
    first_epoch: int = 0,
    blocks: int = 3,
    sample_weight: Any = None,
    terms: int = 1,
) -> tuple[Any, Any]:
    """Return the batches (epochs, steps, parts, batch, width) and the words of their targets, from
    the device.

    Of several terms, their sums.
    """
    is_labels = targets.dtype == np.int64
    is_weighted = sample_weight is not None
    words = 1 if is_labels else targets.shape[1]
    defines = {"SOURCE": x.dtype.name, "DTYPE": dtype, "TERMS": terms}
    defines |= {"FEATURES": shape.features, "BATCH": shape.batch}
    defines |= {"PARTS": shape.parts, "PART_WIDTH": shape.width}
    defines |= {"CHUNK_ROWS": shape.chunk_rows}
    defines |= {"TARGET_WORDS": words, "TARGET_STRIDE": 2 if is_labels else words}
    defines |= {"WEIGHTED": int(is_weighted)}
    outer = shape.epochs, shape.steps
    stride = shape.width + (0 if shape.chunk_rows else 8)
    batches = ops.empty((*outer, shape.parts, terms, shape.batch, stride), dtype)
    batch_targets = ops.empty((*outer, shape.batch, words + is_weighted), "float32")
    keys = round_keys_of(SEED, range(first_epoch, first_epoch + shape.epochs))
    ops.kernel("gather_batches", **defines)(
        blocks,
        THREADS,
        ops.asarray(x),
        ops.asarray(targets),
        None if sample_weight is None else ops.asarray(sample_weight),
        ops.asarray(keys) if shuffle else None,
        batches,
        batch_targets,
        1.0,
        shape.num_rows,
        domain_bits(shape.num_rows),
        shape.epochs,
    )
    found = batches.numpy()
    if shape.chunk_rows:
        chunks = found.reshape(*found.shape[:4], -1, shape.width // 8, shape.chunk_rows, 8)
        found = np.moveaxis(chunks, -3, -2).reshape(found.shape)
    found = found[..., : shape.width]
    return found.sum(
        axis=3, dtype=found.dtype if terms == 1 else np.float32
    ), batch_targets.numpy().view(np.uint32)


def assert_gathers(
    ops: CudaBackend, shape: Shape, source: str, dtype: str, **settings: Any
) -> None:
    x = numbers(shape, source)
    labels = np.random.default_rng(1).integers(0, 10, shape.num_rows)
    batches, targets = gathered(ops, shape, x, labels, dtype, **settings)
    how = settings.get("shuffle", True), settings.get("first_epoch", 0)
    np.testing.assert_array_equal(
        batches, in_parts(shape, in_batches(shape, in_half(x, dtype), *how))
    )
    np.testing.assert_array_equal(targets[..., 0], in_batches(shape, labels, *how))


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_rows_come_rounded(ops: CudaBackend, shape: Shape, source: str, dtype: str) -> None:
    assert_gathers(ops, shape, source, dtype)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_come_in_batches_and_parts(ops: CudaBackend, shape: Shape) -> None:
    assert_gathers(ops, shape, "float32", "float16", first_epoch=4)


@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_rows_in_their_own_order(ops: CudaBackend, shape: Shape) -> None:
    assert_gathers(ops, shape, "float32", "float16", shuffle=False)


@pytest.mark.parametrize("blocks", [1, 2, 100])
def test_any_number_of_blocks(ops: CudaBackend, blocks: int) -> None:
    assert_gathers(ops, SHAPES[1], "float32", "float16", blocks=blocks)


@pytest.mark.parametrize("outputs", [1, 5, 33])
def test_targets_of_several_outputs(ops: CudaBackend, outputs: int) -> None:
    shape = SHAPES[1]
    targets = np.random.default_rng(2).standard_normal((shape.num_rows, outputs)).astype("f4")
    _, found = gathered(ops, shape, numbers(shape, "float32"), targets)
    np.testing.assert_array_equal(found.view(np.float32), in_batches(shape, targets, True, 0))


def test_labels_beyond_a_byte(ops: CudaBackend) -> None:
    shape = SHAPES[1]
    labels = np.arange(shape.num_rows) * 1000
    _, found = gathered(ops, shape, numbers(shape, "uint8"), labels)
    np.testing.assert_array_equal(found[..., 0], in_batches(shape, labels, True, 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halfway_numbers_round_to_even(ops: CudaBackend, dtype: str) -> None:
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    x = (1 + ulp * (np.arange(70 * 6) / 4)).astype("f4").reshape(70, 6)
    batches, _ = gathered(ops, SHAPES[1], x, np.zeros(70, "i8"), dtype, shuffle=False)
    expected = in_batches(SHAPES[1], np.round(x / ulp) * ulp, False, 0)
    np.testing.assert_array_equal(batches[..., 0, :, :6], expected)


@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_weights_follow_the_targets(ops: CudaBackend, shape: Shape) -> None:
    rng = np.random.default_rng(2)
    x, labels = numbers(shape, "float32"), rng.integers(0, 4, shape.num_rows)
    weights = rng.random(shape.num_rows).astype("f4")
    _, targets = gathered(ops, shape, x, labels, sample_weight=weights)
    np.testing.assert_array_equal(targets[..., 0], in_batches(shape, labels, True, 0))
    np.testing.assert_array_equal(targets[..., 1].view("f4"), in_batches(shape, weights, True, 0))


def test_weights_follow_targets_that_are_numbers(ops: CudaBackend) -> None:
    shape, rng = SHAPES[1], np.random.default_rng(2)
    y = rng.standard_normal((shape.num_rows, 3)).astype("f4")
    weights = rng.random(shape.num_rows).astype("f4")
    _, targets = gathered(ops, shape, numbers(shape, "float32"), y, sample_weight=weights)
    expected = in_batches(shape, np.column_stack([y, weights]), True, 0)
    np.testing.assert_array_equal(targets.view("f4"), expected)


@pytest.mark.parametrize("source", ["float32", "uint8"])
def test_numbers_as_sums_of_two(ops: CudaBackend, source: str) -> None:
    shape = SHAPES[2]
    x, labels = numbers(shape, source), np.zeros(shape.num_rows, np.int64)
    batches, _ = gathered(ops, shape, x, labels, terms=2)
    exact = np.float32(x) / np.float32(255 if source == "uint8" else 1)
    expected = in_parts(shape, in_batches(shape, exact, True, 0))
    np.testing.assert_allclose(batches, expected, rtol=2.0**-21, atol=2.0**-25)
