from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import DTYPES, LAYOUTS, call, layouts
from warpfit.backends import Backend
from warpfit.errors import DTypeError, ShapeError

MakeBackend = Callable[..., Backend]

# -- asarray
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_become_fractions_of_255(backend: Backend, dtype: str) -> None:
    every_byte = np.arange(256, dtype=np.uint8)
    result = backend.to_numpy(backend.asarray(every_byte, dtype))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, every_byte.astype(dtype) / np.dtype(dtype).type(255))
    assert (result[0], result[255]) == (0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float16_is_widened_exactly(backend: Backend, dtype: str) -> None:
    every_half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every_half = every_half[~np.isnan(every_half)]
    result = backend.to_numpy(backend.asarray(every_half, dtype))
    assert result.dtype == dtype
    np.testing.assert_array_equal(
        result.astype(np.float16).view(np.uint16), every_half.view(np.uint16)
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "value",
    [
        np.array([True, False]),
        np.array([-3, 2], np.int8),
        np.array([300, 7], np.uint16),
        np.array([-(2**20), 5], np.int64),
        np.array([1.5, -2.25], ">f4"),
        [1, 2.5],
        [[True], [False]],
        7,
        2.5,
        [],
    ],
)
def test_numbers_keep_their_values(backend: Backend, value: Any, dtype: str) -> None:
    result = backend.to_numpy(backend.asarray(value, dtype))
    assert result.dtype == dtype
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, np.asarray(value, np.float64))


def test_bytes_stay_bytes_unless_floats_are_asked_for(backend: Backend) -> None:
    pixels = np.array([0, 128, 255], np.uint8)
    for dtype in (None, "uint8", "int64"):
        result = backend.to_numpy(backend.asarray(pixels, dtype))
        assert result.dtype == (dtype or "uint8")
        np.testing.assert_array_equal(result, pixels)


@pytest.mark.parametrize("dtype", [None, *DTYPES])
@pytest.mark.parametrize(
    "value",
    [["1.0", "2"], "text", [b"1"], [1 + 2j], [None], [object()], np.array(["2020-01-01"], "M8[D]")],
)
def test_what_holds_no_real_numbers_is_refused(
    backend: Backend, value: Any, dtype: str | None
) -> None:
    with pytest.raises(DTypeError, match="expected numbers, got "):
        backend.asarray(value, dtype)


def test_no_copy_where_none_is_needed(backend: Backend) -> None:
    array = backend.asarray([1.0, 2.0], "float32")
    assert backend.asarray(array) is array
    assert backend.asarray(array, "float32") is array


@pytest.mark.parametrize("layout", LAYOUTS)
def test_asarray_takes_any_layout(backend: Backend, layout: str) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    result = call(backend.asarray, dict(layouts(pixels))[layout], "float64")
    np.testing.assert_array_equal(result, pixels / 255)


# -- allocation and copying
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3)])
def test_full(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    for value in (0.0, 1.5):
        found = backend.to_numpy(backend.full(shape, value, dtype))
        np.testing.assert_array_equal(found, np.full(shape, value, dtype))
        assert found.dtype == dtype


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)])
def test_zeros(make_backend: MakeBackend, shape: tuple[int, ...], reuse: bool) -> None:
    backend = make_backend(reuse=reuse)
    first = backend.zeros(shape, "float32")
    backend.begin_step()
    second = backend.zeros(shape, "float32")
    assert first is not second
    result = backend.to_numpy(first)
    assert (result.shape, result.dtype) == (shape, np.float32)
    assert not result.any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_is_contiguous_and_belongs_to_the_caller(backend: Backend, layout: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    array = backend.asarray(dict(layouts(values))[layout])
    copy = backend.copy(array)
    backend.assign(copy, backend.asarray(np.full((2, 3), 7.0)))
    np.testing.assert_array_equal(backend.to_numpy(array), values)
    np.testing.assert_array_equal(backend.to_numpy(copy), np.full((2, 3), 7.0))
    assert backend.to_numpy(copy).flags.c_contiguous


@pytest.mark.parametrize("layout", LAYOUTS)
def test_assign_writes_into_the_target(backend: Backend, layout: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    target = backend.zeros((2, 3), "float64")
    backend.assign(target, backend.asarray(dict(layouts(values))[layout]))
    np.testing.assert_array_equal(backend.to_numpy(target), values)


def test_assign_refuses_another_shape(backend: Backend) -> None:
    target = backend.zeros((2, 3), "float32")
    with pytest.raises(ShapeError, match=r"assign: .* got \(2, 3\) and \(3,\)"):
        backend.assign(target, backend.zeros((3,), "float32"))
    assert not backend.to_numpy(target).any()


# -- buffers of a step
# -------------------------------------------------------------------------------------


def test_without_reuse_every_array_is_new(make_backend: MakeBackend) -> None:
    backend = make_backend(reuse=False)
    first = backend.empty((2, 3), "float32")
    backend.begin_step()
    assert backend.empty((2, 3), "float32") is not first


def test_a_step_hands_out_the_buffers_of_the_step_before(make_backend: MakeBackend) -> None:
    backend = make_backend(reuse=True)
    shapes = [(2, 3), (2, 3), (4,), ()]
    backend.begin_step()
    first = [backend.empty(shape, "float32") for shape in shapes]
    assert len({id(buffer) for buffer in first}) == len(shapes)
    for _ in range(3):
        backend.begin_step()
        assert [id(backend.empty(shape, "float32")) for shape in shapes] == [
            id(buffer) for buffer in first
        ]


def test_buffers_follow_a_shape_or_dtype_that_changes(make_backend: MakeBackend) -> None:
    backend = make_backend(reuse=True)
    before = [backend.empty((8, 3), "float32"), backend.empty((8,), "float32")]
    backend.begin_step()
    shorter = backend.empty((5, 3), "float32")
    same = backend.empty((8,), "float32")
    assert (shorter.shape, same is before[1]) == ((5, 3), True)
    backend.begin_step()
    wider = backend.empty((5, 3), "float64")
    assert (wider.shape, str(wider.dtype)) == ((5, 3), "float64")


def test_results_stay_valid_until_the_next_step(make_backend: MakeBackend) -> None:
    backend = make_backend(reuse=True)
    for step in range(3):
        backend.begin_step()
        results = [
            backend.sum_columns(backend.asarray(np.full((2, 3), 10.0 * step + i))) for i in range(4)
        ]
        for i, result in enumerate(results):
            np.testing.assert_array_equal(backend.to_numpy(result), np.full(3, 20.0 * step + 2 * i))


# -- the record of a run
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("correct", "penalty", "row"),
    [
        (None, None, [0.5, 8, 0]),
        (5, None, [0.5, 8, 5]),
        (None, 0.25, [0.75, 8, 0]),
        (5, 0.25, [0.75, 8, 5]),
    ],
)
def test_record_step(
    backend: Backend, correct: Any, penalty: Any, row: list[float], dtype: str
) -> None:
    record = backend.zeros((3, 3), "float64")
    loss, weight = (backend.asarray(np.asarray(value, dtype)) for value in (0.5, 8))
    correct = None if correct is None else backend.asarray(np.asarray(correct))
    penalty = None if penalty is None else backend.asarray(np.asarray(penalty))
    backend.record_step(record, 1, loss, weight, correct, penalty)
    np.testing.assert_array_equal(backend.to_numpy(record), [[0, 0, 0], row, [0, 0, 0]])


def test_record_step_finds_its_row_on_the_device(backend: Backend) -> None:
    record, row = backend.zeros((3, 3), "float64"), backend.asarray(np.asarray(2.0))
    loss, weight = (backend.asarray(np.asarray(value, "float32")) for value in (0.5, 8))
    backend.record_step(record, row, loss, weight, None, None)
    backend.assign(row, backend.asarray(np.asarray(0.0)))
    backend.record_step(record, row, weight, loss, None, None)
    np.testing.assert_array_equal(backend.to_numpy(record), [[8, 0.5, 0], [0, 0, 0], [0.5, 8, 0]])


def test_record_step_refuses_a_row_that_is_not_there(backend: Backend) -> None:
    record, loss = backend.zeros((3, 3), "float64"), backend.zeros((), "float32")
    with pytest.raises(IndexError):
        backend.record_step(record, 3, loss, loss, None, None)


# -- gather_rows
# -------------------------------------------------------------------------------------------


@given(
    num_rows=st.integers(1, 20),
    sample=st.sampled_from([(), (3,), (2, 3), (0,)]),
    stored=st.sampled_from(["uint8", "float16", "float32", "float64", "int32", "int64", "bool"]),
    wanted=st.sampled_from(["float32", "float64", "int64"]),
    data=st.data(),
)
@settings(deadline=None)
def test_gather_rows(
    backend: Backend,
    num_rows: int,
    sample: tuple[int, ...],
    stored: str,
    wanted: str,
    data: st.DataObject,
) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=30)), np.int64)
    x = np.random.default_rng(num_rows).integers(0, 256, (num_rows, *sample)).astype(stored)
    expected = np.asarray(x, np.float64)[rows]
    if stored == "uint8" and wanted != "int64":
        expected = x[rows] / np.dtype(wanted).type(255)
    result = call(backend.gather_rows, x, rows, wanted)
    assert result.dtype == wanted
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stored", ["uint8", "float32", "float64"])
def test_gather_rows_takes_any_layout(backend: Backend, stored: str, layout: str) -> None:
    x, rows = np.arange(12).reshape(4, 3).astype(stored), np.array([3, 0, 3])
    result = call(backend.gather_rows, dict(layouts(x))[layout], rows, "float32")
    np.testing.assert_array_equal(result, call(backend.gather_rows, x, rows, "float32"))


@pytest.mark.parametrize("wanted", ["float32", "float64", "int64"])
def test_gather_rows_gives_the_dtype_wanted(backend: Backend, wanted: str) -> None:
    x, rows = np.arange(12, dtype=np.int64).reshape(4, 3), np.array([3, 0, 3])
    result = call(backend.gather_rows, x, rows, wanted)
    assert result.dtype == wanted
    np.testing.assert_array_equal(result, x[rows])


def test_gather_rows_of_no_rows(backend: Backend) -> None:
    none = np.zeros(0, np.int64)
    assert call(backend.gather_rows, np.zeros((0, 3), np.uint8), none, "float32").shape == (0, 3)
    assert call(backend.gather_rows, np.zeros((4, 3), np.float32), none, "float32").shape == (0, 3)


def test_gathered_rows_are_a_copy(backend: Backend) -> None:
    x = backend.asarray(np.arange(6.0).reshape(3, 2))
    gathered = backend.gather_rows(x, backend.asarray(np.arange(3)), "float64")
    backend.assign(gathered, backend.zeros((3, 2), "float64"))
    np.testing.assert_array_equal(backend.to_numpy(x), np.arange(6.0).reshape(3, 2))


def test_gather_rows_reuses_its_buffer(make_backend: MakeBackend) -> None:
    backend = make_backend(reuse=True)
    x, batches = backend.asarray(np.arange(12, dtype=np.uint8).reshape(6, 2)), [[0, 1], [4, 5], [3]]
    buffers = []
    for rows in batches:
        backend.begin_step()
        buffers.append(backend.gather_rows(x, backend.asarray(np.array(rows)), "float32"))
        expected = np.arange(12, dtype=np.float32).reshape(6, 2)[rows] / np.float32(255)
        np.testing.assert_array_equal(backend.to_numpy(buffers[-1]), expected)
    assert buffers[0] is buffers[1]
    assert buffers[2].shape == (1, 2)
