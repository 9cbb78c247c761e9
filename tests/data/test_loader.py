"""DataLoader: the batches of each epoch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from warpfit.data import DataLoader, epoch_order
from warpfit.errors import ConfigError, ShapeError


def rows_of(loader: DataLoader) -> list[int]:
    return np.concatenate([y for _, y in loader]).tolist()


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(23 * 4, dtype=np.float32).reshape(23, 4)


def test_batches_follow_the_epoch_order(x: np.ndarray) -> None:
    loader = DataLoader(x, np.arange(23), batch_size=5, seed=7)
    for epoch in range(3):
        order = epoch_order(23, 7, epoch)
        for index, (batch_x, batch_y) in enumerate(loader):
            rows = order[5 * index : 5 * index + 5]
            np.testing.assert_array_equal(batch_y, rows)
            np.testing.assert_array_equal(batch_x, x[rows])
    assert loader.epoch == 3


def test_the_last_batch_is_shorter_unless_dropped(x: np.ndarray) -> None:
    for drop_last, sizes in ((False, [5, 5, 5, 5, 3]), (True, [5, 5, 5, 5])):
        loader = DataLoader(x, x, batch_size=5, drop_last=drop_last)
        assert [len(y) for _, y in loader] == sizes
        assert len(loader) == len(sizes)


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1] * 23), (23, [23]), (100, [23]), (np.int64(12), [12, 11])]
)
def test_batch_sizes(x: np.ndarray, batch_size: int, sizes: list[int]) -> None:
    assert [len(y) for _, y in DataLoader(x, x, batch_size)] == sizes


def test_a_batch_size_that_divides_has_no_short_batch(x: np.ndarray) -> None:
    assert [len(y) for _, y in DataLoader(x[:20], x[:20], 5)] == [5, 5, 5, 5]


def test_without_shuffling_rows_keep_their_order(x: np.ndarray) -> None:
    loader = DataLoader(x, np.arange(23), batch_size=4, shuffle=False)
    assert rows_of(loader) == rows_of(loader) == list(range(23))


def test_the_epoch_can_be_set_and_the_seed_matters(x: np.ndarray) -> None:
    loader = DataLoader(x, np.arange(23), batch_size=4)
    epochs = [rows_of(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.epoch = 1
    assert rows_of(loader) == epochs[1]
    assert rows_of(DataLoader(x, np.arange(23), batch_size=4, seed=1)) != epochs[0]


def test_an_epoch_counts_when_iteration_begins(x: np.ndarray) -> None:
    loader = DataLoader(x, np.arange(23), batch_size=4)
    first, second = iter(loader), iter(loader)
    assert loader.epoch == 2
    np.testing.assert_array_equal(next(first)[1], epoch_order(23, 0, 0)[:4])
    np.testing.assert_array_equal(next(second)[1], epoch_order(23, 0, 1)[:4])


def test_uint8_becomes_unit_floats_and_other_dtypes_are_kept() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    ((batch, labels),) = DataLoader(pixels, pixels, batch_size=16, shuffle=False)
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch, (pixels / 255).astype(np.float32))
    assert labels.dtype == np.uint8
    for dtype in ("float64", "float16", "int8"):
        assert next(iter(DataLoader(pixels.astype(dtype), pixels)))[0].dtype == dtype


def test_strided_read_only_and_list_input(x: np.ndarray) -> None:
    strided = np.repeat(x, 2, axis=1)[::-1, ::2][::-1]
    strided.setflags(write=False)
    for given in (strided, x.tolist()):
        batch = next(iter(DataLoader(given, range(23), batch_size=23, shuffle=False)))[0]
        np.testing.assert_array_equal(batch, x)
    batch[:] = 0  # a batch is the caller's own
    assert strided[0, 1] == 1


def test_no_rows_no_batches() -> None:
    loader = DataLoader(np.zeros((0, 3)), np.zeros(0))
    assert len(loader) == 0
    assert list(loader) == []


def test_repr(x: np.ndarray) -> None:
    assert repr(DataLoader(x, x, 8)) == "DataLoader(23 rows, batch_size=8, epoch=0)"


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, 8.0, True, None, "8"])
def test_batch_sizes_that_are_none(x: np.ndarray, batch_size: object) -> None:
    with pytest.raises(
        ConfigError, match="expected batch_size to be an integer of at least 1, got"
    ):
        DataLoader(x, x, batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x_shape", "y_shape"), [((3, 2), (4,)), ((3, 2), ()), ((), ()), ((0, 2), (1,))]
)
def test_rows_that_do_not_match(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="as many rows; got shapes"):
        DataLoader(np.zeros(x_shape), np.zeros(y_shape))


def test_many_epochs_see_every_row_once(x: np.ndarray) -> None:
    loader = DataLoader(x, np.arange(23), batch_size=6)
    for _ in itertools.repeat(None, 10):
        assert sorted(rows_of(loader)) == list(range(23))
