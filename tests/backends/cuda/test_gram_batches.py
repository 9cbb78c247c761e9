"""gram_batches: products of each batch's rows with those of the batch before, as NumPy finds
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from warpfit.backends.cuda import CudaBackend


class Shape(NamedTuple):
    """Batches of rows whose features are divided among parts of `width`, of which `features`
    count.
    """

    num_batches: int
    batch: int
    parts: int
    width: int

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def row_tiles(self) -> int:
        return -(-self.batch // 16)

    @property
    def threads(self) -> int:
        own = 4 if self.row_tiles == 8 else 2 if self.row_tiles in (4, 6) else 1
        return 32 * self.row_tiles // own * -(-self.row_tiles // 4)


SHAPES = [
    Shape(3, 1, 1, 16),
    Shape(4, 33, 1, 48),
    Shape(2, 80, 3, 32),
    Shape(5, 16, 2, 64),
    Shape(3, 64, 1, 32),
    Shape(3, 96, 2, 48),
    Shape(3, 128, 2, 48),
]


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def gram_of(
    ops: CudaBackend,
    shape: Shape,
    batches: Any,
    dtype: str = "float16",
    blocks: int = 2,
    in_chunks: bool = False,
) -> tuple[Any, Any]:
    """Return the matrices (num_batches, rows, rows) of the device, without their scales, and
    these.
    """
    padded = np.zeros((*batches.shape[:-1], shape.width + 8), "f4")
    padded[..., : shape.width] = batches
    if in_chunks:
        chunks = batches.reshape(*batches.shape[:-1], shape.width // 8, 8)
        padded = np.ascontiguousarray(np.moveaxis(chunks, -2, -3))
    rows = 16 * shape.row_tiles
    words = ops.asarray(np.zeros((shape.num_batches, rows, rows), "f4"), dtype)
    scales = ops.asarray(np.zeros(shape.num_batches, "f4"))
    defines = {
        "DTYPE": dtype,
        "BATCH": shape.batch,
        "PARTS": shape.parts,
        "PART_WIDTH": shape.width,
        "CHUNK_ROWS": shape.batch if in_chunks else 0,
    }
    ops.kernel("gram_batches", **defines)(
        blocks, shape.threads, ops.asarray(padded, dtype), words, scales, shape.num_batches
    )
    return in_order(shape, ops.to_numpy(ops.asarray(words, "float32"))), ops.to_numpy(scales)


def in_order(shape: Shape, words: Any) -> Any:
    """Return what lanes have of fragments as matrices: of row 16 r + 8 b + l / 4, the columns
    16 s + 8 h + 2 (l % 4) + i.
    """
    tiles = shape.row_tiles
    fragments = words.reshape(
        shape.num_batches, tiles, tiles, 8, 4, 2, 2, 2
    )  # batch, r, s, l / 4, l % 4, h, b, i
    return fragments.transpose(0, 1, 6, 3, 2, 5, 4, 7).reshape(
        shape.num_batches, 16 * tiles, 16 * tiles
    )


def products(shape: Shape, batches: Any) -> Any:
    """Return 1 + the products of each batch with the one before, from the second on; rows that pad
    tiles have 1.
    """
    rows = np.moveaxis(batches, 1, 2).reshape(shape.num_batches, shape.batch, -1).astype("f8")
    rows = np.pad(rows, ((0, 0), (0, 16 * shape.row_tiles - shape.batch), (0, 0)))
    return 1 + rows[1:] @ rows[:-1].transpose(0, 2, 1)


def numbers(shape: Shape, largest: float = 4.0) -> Any:
    """Return batches (num_batches, parts, batch, width) of numbers that half precision holds
    exactly.
    """
    rng = np.random.default_rng(0)
    size = shape.num_batches, shape.parts, shape.batch, shape.width
    return rng.integers(-8, 9, size).astype("f4") * np.float32(largest / 8)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_with_the_batch_before(ops: CudaBackend, shape: Shape, dtype: str) -> None:
    batches = numbers(shape)
    found, scales = gram_of(ops, shape, batches, dtype)
    expected = products(shape, batches)
    relative = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    unscaled = found[1:] * scales[1:, None, None]
    np.testing.assert_allclose(
        unscaled, expected, rtol=relative, atol=1e-4 * np.abs(expected).max()
    )
    assert (np.log2(scales[1:]) % 1 == 0).all()
    assert scales[0] == 0
    assert not found[0].any()


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[4]], ids=str)
def test_rows_in_chunks(ops: CudaBackend, shape: Shape) -> None:
    batches = numbers(shape)
    found = gram_of(ops, shape, batches, in_chunks=True)
    for own, expected in zip(found, gram_of(ops, shape, batches), strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("largest", [2.0**-10, 1.0, 1024.0])
def test_no_product_leaves_the_range_of_float16(ops: CudaBackend, largest: float) -> None:
    shape = SHAPES[1]
    batches = numbers(shape, largest)
    found, scales = gram_of(ops, shape, batches)
    of_batches = np.abs(found[1:]).max(axis=(1, 2))
    assert (of_batches >= 2.0**13 - 8).all()
    assert (of_batches <= 2.0**14).all()
    expected = products(shape, batches)
    np.testing.assert_allclose(
        found[1:] * scales[1:, None, None], expected, atol=2.0**-11 * np.abs(expected).max()
    )


@pytest.mark.parametrize("blocks", [1, 7])
def test_any_number_of_blocks(ops: CudaBackend, blocks: int) -> None:
    batches = numbers(SHAPES[3])
    for found, expected in zip(
        gram_of(ops, SHAPES[3], batches, blocks=blocks),
        gram_of(ops, SHAPES[3], batches),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_what_is_not_finite_stays_so(ops: CudaBackend) -> None:
    batches = numbers(SHAPES[0])
    batches[1] = np.inf
    found, _ = gram_of(ops, SHAPES[0], batches)
    assert not np.isfinite(found[1, 0, 0])
