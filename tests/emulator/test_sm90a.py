"""The twins of Hopper's tensor copies and products: what they do, as late as they may, and what
they refuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.build import gxx_missing
from emulator.device import ORDERS, Device, Mapped
from emulator.runtime import EmulatedRuntime
from emulator.sanitized import run_sanitized, sanitizer_missing
from warpfit.errors import DeviceError

pytestmark = [
    pytest.mark.skipif(gxx_missing() is not None, reason=str(gxx_missing())),
    pytest.mark.in_turns(3),
]

# --------------------------------------------------------------------------------------------------
# tensor copies

# A matrix, in rows of which more follows, and boxes of 16 lines of 128 bytes.
ROWS, COLUMNS, LEADING_DIMENSION, BOX_ROWS = 40, 100, 136, 16


def box_at(matrix: np.ndarray, row: int, column: int, line: int) -> np.ndarray:
    """Return a box of a matrix, with zeros outside of it."""
    margin = 200
    around = np.zeros((ROWS + 2 * margin, COLUMNS + 2 * margin), matrix.dtype)
    around[margin : margin + ROWS, margin : margin + COLUMNS] = matrix
    first_row, first_column = row + margin, column + margin
    return around[first_row : first_row + BOX_ROWS, first_column : first_column + line]


def swizzled(box: np.ndarray) -> np.ndarray:
    """Return lines whose 16-byte pieces change places: piece c of line i goes to piece c ^ (i %
    8).
    """
    pieces = np.ascontiguousarray(box).view(np.uint8).reshape(len(box), 8, 16)
    lines = np.empty_like(pieces)
    for i, c in np.ndindex(len(box), 8):
        lines[i, c ^ (i % 8)] = pieces[i, c]
    return lines


def copy_box(
    bug: str = "NONE",
    *,
    row: int = 8,
    column: int = 16,
    dtype: str = "float16",
    cluster: int = 1,
    blocks: int = 1,
    shared: int = 0,
    **settings: Any,
) -> dict[str, np.ndarray]:
    """Run boxes.cu; return the source and the target, whole, and each block's lines."""
    source = np.random.default_rng(0).standard_normal((ROWS, LEADING_DIMENSION)).astype(dtype)
    target, lines = np.full_like(source, 7), np.zeros((cluster, BOX_ROWS, 8, 16), np.uint8)
    maps = [
        Mapped(array, COLUMNS, (BOX_ROWS, 128 // source.itemsize)) for array in (source, target)
    ]
    Device(**settings).run(
        "boxes",
        *maps,
        lines,
        row,
        column,
        grid=cluster,
        shared=shared or BOX_ROWS * 128 + 16,
        cluster=cluster,
        BUG=bug,
        CLUSTER=str(cluster),
        BLOCKS=str(blocks),
        ROWS=str(BOX_ROWS),
        REPLICAS="1",
    )
    return {"source": source, "target": target, "lines": lines}


def assert_copied(found: dict[str, np.ndarray], row: int, column: int) -> None:
    """Check the lines of block 0, and what it stored."""
    matrix = found["source"][:, :COLUMNS]
    box = box_at(matrix, row, column, 128 // matrix.itemsize)
    np.testing.assert_array_equal(found["lines"][0], swizzled(box))
    expected = np.full_like(found["source"], 7)
    part = (
        slice(max(row, 0), max(row + BOX_ROWS, 0)),
        slice(max(column, 0), max(column + box.shape[1], 0)),
    )
    expected[:, :COLUMNS][part] = matrix[part]
    np.testing.assert_array_equal(found["target"], expected)


@ORDERS
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("row", "column"),
    [
        (0, 0),
        (8, 16),
        (3, 5),
        (-3, -7),
        (30, 60),
        (39, 99),
        (40, 0),
        (0, 100),
        (-16, 0),
        (-200, 150),
    ],
)
def test_boxes_are_swizzled_and_end_with_their_matrix(
    dtype: str, row: int, column: int, reverse: bool
) -> None:
    assert_copied(copy_box(row=row, column=column, dtype=dtype, reverse=reverse), row, column)


@ORDERS
@pytest.mark.parametrize("blocks", [0b01, 0b11, 0b1111, 0b1011])
def test_copies_to_blocks_of_a_cluster(blocks: int, reverse: bool) -> None:
    cluster = max(2, blocks.bit_length())
    found = copy_box(cluster=cluster, blocks=blocks, reverse=reverse)
    assert_copied(found, 8, 16)
    for rank in range(cluster):
        expected = found["lines"][0] if blocks >> rank & 1 else np.zeros_like(found["lines"][0])
        np.testing.assert_array_equal(found["lines"][rank], expected)


@ORDERS
@pytest.mark.parametrize("cluster", [1, 2])
def test_a_box_that_is_read_too_early_is_poison(cluster: int, reverse: bool) -> None:
    found = copy_box("READS_EARLY", cluster=cluster, blocks=2**cluster - 1, reverse=reverse)
    assert (found["lines"][0] == 0xFF).all()


@ORDERS
@pytest.mark.parametrize(
    ("bug", "cluster", "message"),
    [
        (
            "WRITES_EARLY",
            1,
            r"bulk_wait_read: expected the 2048 bytes from byte 0 of dynamic shared memory on to "
            r"stay as they are",
        ),
        (
            "NO_WAIT",
            1,
            r"the thread leaves while 1 of its stores of boxes have still to read shared memory",
        ),
        (
            "NO_COMMIT",
            1,
            r"the thread leaves while 1 of its stores of boxes have still to read shared memory",
        ),
        (
            "NO_FENCE",
            1,
            r"store_tensor: expected fence_async after what was written to the 2048 bytes",
        ),
        ("NO_MAP", 1, r"copy_tensor: expected a tensor map, got other bytes at 0x"),
        (
            "MISALIGNED",
            1,
            r"copy_tensor: expected an address aligned to 128 bytes, got byte 64 of dynamic",
        ),
        (
            "NOT_SHARED",
            1,
            r"copy_tensor: expected 2048 bytes of dynamic shared memory, got \(nil\)",
        ),
        ("PAST_THE_END", 1, r"copy_tensor: expected 2048 bytes of dynamic shared memory, got 0x"),
        (
            "TWICE",
            1,
            r"copy_tensor: something is on its way already to the 2048 bytes from byte 0 of "
            r"dynamic",
        ),
        (
            "TOO_FEW_BYTES",
            1,
            r"copy_tensor: expected 1024 bytes in a phase of the barrier at byte 2048 .*, got 2048",
        ),
        (
            "LEAVES",
            1,
            r"the block leaves while 2048 bytes are on their way to it, for which nobody waits",
        ),
        (
            "TOO_FEW_BYTES",
            2,
            r"copy_tensor_to_cluster: expected 1024 bytes .* (of block 1 of the cluster)?.*, got "
            r"2048",
        ),
        (
            "NO_BLOCK",
            2,
            r"copy_tensor_to_cluster: expected at least one block of the cluster, got none",
        ),
        (
            "NO_SUCH_BLOCK",
            2,
            r"copy_tensor_to_cluster: expected a block below 2 of the cluster, got 2",
        ),
    ],
)
def test_boxes_used_wrongly(bug: str, cluster: int, message: str, reverse: bool) -> None:
    settings = {"cluster": cluster, "blocks": 2**cluster - 1, "reverse": reverse}
    with pytest.raises(DeviceError, match=r"^kernel boxes, block \(\d, 0, 0\).*: " + message):
        copy_box(bug, shared=BOX_ROWS * 128 + 128, **settings)
    assert_copied(copy_box(**settings), 8, 16)  # the next launch runs


def test_a_box_of_less_than_a_line_is_refused() -> None:
    runtime = EmulatedRuntime()
    memory = runtime.allocate(4096)
    assert len(runtime.tensor_map(memory.pointer, "float16", 8, 64, 64, 8, 64)) == 128
    matrix = np.zeros((8, 64), np.float16)
    maps = [Mapped(matrix, 64, (8, 32))] * 2
    with pytest.raises(
        DeviceError, match="copy_tensor: expected boxes with 128 bytes in a row, got 32 numbers"
    ):
        Device().run(
            "boxes", *maps, np.zeros(4096, np.uint8), 0, 0, shared=1040, BUG="NONE",
            CLUSTER="1", BLOCKS="1",
            ROWS="8", REPLICAS="1",
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# products

ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
NUM_ROWS = 64


def as_kind(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 numbers as they are stored, and as a product sees them."""
    if kind == "f16":
        return x.astype(np.float16), x.astype(np.float16).astype(np.float64)
    if kind == "bf16":
        words = (x.view(np.uint32) >> 16).astype(np.uint16)
        return words, (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x, (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


def operand_lines(stored: np.ndarray, across: bool) -> np.ndarray:
    """Return the bytes of the first slice of a tile of rows (rows, k), as tensor copies would leave
    it.

    Along k, a row of the tile is a line, of which the slice is the first 32 bytes; the rest is NaN.
    Across, a line is a k, with the rows of one panel side by side.
    """
    rows, k = stored.shape
    line = 128 // stored.itemsize
    if across:
        panels = [stored[first : first + line].T for first in range(0, rows, line)]
        return swizzled(np.concatenate(panels)).ravel()
    rest = np.full((rows, 128 - k * stored.itemsize), 0xFF, np.uint8)
    return swizzled(
        np.concatenate([np.ascontiguousarray(stored).view(np.uint8), rest], axis=1)
    ).ravel()


def operand_planes(stored: np.ndarray, across: bool) -> tuple[np.ndarray, int, int]:
    """Return the bytes of a slice of a tile of rows (rows, k) in planes of 16 bytes, from the
    fourth piece of a plane on, and the bytes from eight of k, and from eight rows, to the next.

    A plane has every row if k lies side by side, every k across; the rest of it is NaN.
    """
    pieces = np.ascontiguousarray(stored.T if across else stored).view(np.uint8)
    pieces = pieces.reshape(len(pieces), -1, 16).transpose(1, 0, 2)
    planes = np.full((len(pieces), pieces.shape[1] + 5, 16), 0xFF, np.uint8)
    planes[:, 3:-2] = pieces
    of_plane = planes[0].nbytes
    return planes.ravel(), *((128, of_plane) if across else (of_plane, 128))


def multiply_group(
    bug: str = "NONE",
    *,
    kind: str = "f16",
    columns: int = 64,
    a_across: bool = False,
    b_across: bool = False,
    a_in_registers: bool = False,
    in_planes: bool = False,
    sums_in_halves: bool = False,
    block: int = 128,
    **settings: Any,
) -> dict[str, np.ndarray]:
    """Run group_product.cu; return both products, what was added to the first, and the exact
    one.
    """
    rng, k = np.random.default_rng(0), 32 // ITEM_BYTES[kind]
    a, exact_a = as_kind(rng.standard_normal((NUM_ROWS, k)).astype(np.float32), kind)
    b, exact_b = as_kind(rng.standard_normal((columns, k)).astype(np.float32), kind)
    panel_bytes = 16 * 128  # across, of the one slice that is there
    of_a, of_b = (
        operand_planes(stored, across)
        if in_planes
        else (operand_lines(stored, across), panel_bytes, 0)
        for stored, across in ((a, a_across), (b, b_across))
    )
    a_lines, b_lines = of_a[0], of_b[0]
    c = rng.standard_normal((NUM_ROWS, columns)).astype(np.float32)
    first, second = np.zeros_like(c), np.zeros_like(c)
    Device(**settings).run(
        "group_product",
        a_lines,
        b_lines,
        c,
        first,
        second,
        block=block,
        shared=a_lines.nbytes + b_lines.nbytes,
        BUG=bug,
        KIND=kind,
        COLUMNS=str(columns),
        ACROSS_A=str(int(a_across)),
        ACROSS_B=str(int(b_across)),
        A_IN_REGISTERS=str(int(a_in_registers)),
        A_BYTES=str(a_lines.nbytes),
        B_BYTES=str(b_lines.nbytes),
        IN_PLANES=str(int(in_planes)),
        SUMS_IN_HALVES=str(int(sums_in_halves)),
        PANEL_BYTES_A=str(of_a[1]),
        PANEL_BYTES_B=str(of_b[1]),
        ROW_STEP_A=str(of_a[2]),
        ROW_STEP_B=str(of_b[2]),
    )
    return {"c": c, "first": first, "second": second, "exact": exact_a @ exact_b.T}


def assert_multiplied(found: dict[str, np.ndarray], rtol: float = 1e-6) -> None:
    limits = {"rtol": rtol, "atol": 2 * rtol}
    np.testing.assert_allclose(found["first"], found["c"] + found["exact"], **limits)
    np.testing.assert_allclose(found["second"], found["exact"], **limits)


@ORDERS
@pytest.mark.parametrize(
    ("kind", "columns", "a_across", "b_across"),
    [
        ("f16", 64, False, False),
        ("f16", 64, True, False),
        ("f16", 128, False, True),
        ("f16", 256, True, True),
        ("bf16", 32, False, False),
        ("bf16", 192, True, True),
        ("tf32", 64, False, False),
        ("tf32", 256, False, False),
    ],
)
def test_products_of_four_warps(
    kind: str, columns: int, a_across: bool, b_across: bool, reverse: bool
) -> None:
    settings = {"kind": kind, "columns": columns, "a_across": a_across, "b_across": b_across}
    assert_multiplied(multiply_group(reverse=reverse, **settings))


@ORDERS
@pytest.mark.parametrize(
    ("kind", "columns", "a_across", "b_across"),
    [
        ("f16", 64, False, True),
        ("f16", 32, True, False),
        ("bf16", 16, False, False),
        ("bf16", 48, True, True),
    ],
)
def test_products_of_planes_from_any_row_on(
    kind: str, columns: int, a_across: bool, b_across: bool, reverse: bool
) -> None:
    settings = {"kind": kind, "columns": columns, "a_across": a_across, "b_across": b_across}
    assert_multiplied(multiply_group(reverse=reverse, in_planes=True, **settings))


@ORDERS
@pytest.mark.parametrize(("columns", "a_across"), [(16, False), (128, True)])
def test_products_with_sums_of_half_precision(columns: int, a_across: bool, reverse: bool) -> None:
    settings = {"columns": columns, "a_across": a_across, "sums_in_halves": True}
    assert_multiplied(multiply_group(reverse=reverse, **settings), rtol=2**-10)
    found = multiply_group("READS_SECOND_EARLY", reverse=reverse, **settings)
    assert np.isnan(found["second"]).all()


@ORDERS
@pytest.mark.parametrize("columns", [32, 128])
def test_products_with_one_operand_in_registers(columns: int, reverse: bool) -> None:
    settings = {"kind": "tf32", "columns": columns, "a_in_registers": True}
    assert_multiplied(multiply_group(reverse=reverse, **settings))
    with pytest.raises(
        DeviceError, match="wgmma_wait: expected the operands of a product to stay as they are"
    ):
        multiply_group("WRITES_A_REGISTERS", reverse=reverse, **settings)
    with pytest.raises(
        DeviceError, match="wgmma_tf32_of_registers: expected wgmma_fence before a product"
    ):
        multiply_group("NO_FENCE", reverse=reverse, **settings)


@ORDERS
def test_a_product_that_is_read_too_early_is_poison(reverse: bool) -> None:
    found = multiply_group("READS_FIRST_EARLY", reverse=reverse)
    assert np.isnan(found["first"]).all()
    found = multiply_group("READS_SECOND_EARLY", reverse=reverse)
    np.testing.assert_allclose(found["first"], found["c"] + found["exact"], rtol=1e-6, atol=1e-6)
    assert np.isnan(found["second"]).all()


@ORDERS
@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (
            "WRITES_REGISTERS",
            r"wgmma_wait: expected the registers of a product to stay as they are until then",
        ),
        (
            "NO_FENCE",
            r"wgmma_f16: expected wgmma_fence before a product with registers that the thread "
            r"used, got",
        ),
        (
            "NO_COMMIT",
            r"the thread leaves while \d products of its group of warps are under way, for which "
            r"it has not",
        ),
        ("NO_WAIT", r"the thread leaves while 1 products of its group of warps are under way"),
        (
            "ONE_WARP",
            r"wgmma: expected as many products of all four warps of a group, got 2 of threads "
            r"0-31 and 0 of threads "
            r"32-63",
        ),
        (
            "OTHER_LANE",
            r"wgmma_f16: expected the same product in all lanes of the warp, got another in lane 7",
        ),
        (
            "OTHER_FLAG",
            r"wgmma_f16: expected a descriptor of a with no flag but its swizzle's, got 0x40",
        ),
        (
            "OTHER_ATOMS",
            r"wgmma_f16: expected the atoms of a at multiples of 1024 bytes, got address 1152",
        ),
        ("PAST_THE_END", r"wgmma_f16: expected all of a in dynamic shared memory, got address"),
    ],
)
def test_products_used_wrongly(bug: str, message: str, reverse: bool) -> None:
    with pytest.raises(
        DeviceError, match=r"^kernel group_product, block \(0, 0, 0\).*: " + message
    ):
        multiply_group(bug, reverse=reverse)
    assert_multiplied(multiply_group(reverse=reverse))  # the next launch runs


def test_products_demand_four_whole_warps() -> None:
    with pytest.raises(
        DeviceError, match="wgmma_fence: expected a group of four whole warps, got one of 96"
    ):
        multiply_group(block=96)


# --------------------------------------------------------------------------------------------------
# sanitizer

SOUND = """
from emulator.test_sm90a import *
for reverse in (False, True):
    for row, column in ((8, 16), (-3, -7), (39, 99)):
        test_boxes_are_swizzled_and_end_with_their_matrix("float16", row, column, reverse)
    test_copies_to_blocks_of_a_cluster(0b11, reverse)
    test_products_of_four_warps("f16", 128, False, True, reverse)
    test_boxes_used_wrongly("NO_WAIT", 1, "the thread leaves", reverse)
    test_products_used_wrongly("NO_WAIT", "the thread leaves", reverse)
print("came to its end")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    gxx_missing() is None and sanitizer_missing() is not None,
    reason="this g++ comes without libasan",
)
def test_sound_kernels_pass_the_sanitizer() -> None:
    result = run_sanitized(["-c", SOUND], timeout=120)
    assert result.returncode == 0, result.stderr
    assert "came to its end" in result.stdout
