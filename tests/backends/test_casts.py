"""cast, cast_into, all_finite and epoch_order: what an engine needs between its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import DTYPES, call, owned
from warpfit.backends import Backend
from warpfit.data.order import epoch_order, round_keys
from warpfit.errors import DTypeError, ShapeError

SHAPES = ((0,), (), (1,), (7,), (8, 3), (1000,), (33, 65))


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(backend: Backend, rng: Any, shape: tuple[int, ...], source: str, target: str) -> None:
    x = rng.normal(size=shape).astype(source)
    result = call(backend.cast, x, target, 0.25)
    np.testing.assert_array_equal(result, (x * x.dtype.type(0.25)).astype(target))
    assert result.dtype == target


def test_cast_of_a_view(backend: Backend, rng: Any) -> None:
    x = rng.normal(size=(6, 8))
    on_device = backend.asarray(x)
    np.testing.assert_array_equal(
        backend.to_numpy(backend.cast(on_device[::2, 1:], "float32")), x[::2, 1:].astype("f4")
    )


def test_cast_refuses_integers(backend: Backend) -> None:
    with pytest.raises(DTypeError, match="cast: expected float32"):
        call(backend.cast, np.arange(3), "float32")


@pytest.mark.parametrize(("source", "target"), [("float64", "float32"), ("float32", "float64")])
def test_cast_into_fills_every_target(backend: Backend, rng: Any, source: str, target: str) -> None:
    sources = [rng.normal(size=shape).astype(source) for shape in SHAPES]
    targets = owned(backend, [np.full(shape, np.nan, target) for shape in SHAPES])
    backend.cast_into(targets, owned(backend, sources))
    for result, expected in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(result), expected.astype(target))


def test_cast_into_takes_more_tensors_than_one_launch(backend: Backend, rng: Any) -> None:
    sources = [rng.normal(size=(size % 5 + 1,)) for size in range(170)]
    targets = owned(backend, [np.zeros(source.shape, "f4") for source in sources])
    backend.cast_into(targets, owned(backend, sources))
    for result, expected in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(result), expected.astype("f4"))


def test_cast_into_takes_sources_of_several_dtypes(backend: Backend, rng: Any) -> None:
    sources = [rng.normal(size=5).astype(dtype) for dtype in ("f8", "f4", "f8")]
    targets = owned(backend, [np.zeros(5, dtype) for dtype in ("f4", "f8", "f8")])
    backend.cast_into(targets, owned(backend, sources))
    for result, expected in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(result), expected.astype(str(result.dtype)))


def test_cast_into_fills_views(backend: Backend, rng: Any) -> None:
    whole, source = backend.zeros((4, 6), "float32"), rng.normal(size=(2, 3))
    backend.cast_into([whole[::2, 1::2]], owned(backend, [source]))
    expected = np.zeros((4, 6), "f4")
    expected[::2, 1::2] = source
    np.testing.assert_array_equal(backend.to_numpy(whole), expected)


def test_arrays_that_were_cast_are_not_thereby_fit_for_an_update(backend: Backend) -> None:
    singles, doubles = backend.zeros((3,), "float32"), backend.zeros((3,), "float64")
    backend.cast_into([singles], [doubles])
    with pytest.raises(DTypeError, match="l2_penalty: expected operands of one dtype"):
        backend.l2_penalty([singles], [doubles], 0.5)


def test_cast_into_refuses_other_shapes(backend: Backend) -> None:
    with pytest.raises(ShapeError, match="cast_into: expected operands of the same shape"):
        backend.cast_into(owned(backend, [np.zeros(3, "f4")]), owned(backend, [np.zeros(4)]))
    with pytest.raises(ShapeError, match="cast_into: expected as many arrays"):
        backend.cast_into(owned(backend, [np.zeros(3, "f4")]), [])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_finds_one_bad_entry_anywhere(
    backend: Backend, rng: Any, dtype: str, bad: float
) -> None:
    arrays = [rng.normal(size=shape).astype(dtype) for shape in SHAPES]
    assert call(backend.all_finite, arrays)
    for idx, place in ((1, ()), (4, (7, 2)), (5, 999), (6, (0, 0)), (6, (32, 64))):
        kept = np.copy(arrays[idx])
        arrays[idx][place] = bad
        assert not call(backend.all_finite, arrays)
        arrays[idx] = kept
    assert call(backend.all_finite, [])


def test_all_finite_refuses_several_dtypes_and_integers(backend: Backend) -> None:
    with pytest.raises(DTypeError, match="all_finite: expected operands of one dtype"):
        call(backend.all_finite, [np.zeros(3), np.zeros(3, "f4")])
    with pytest.raises(DTypeError, match="all_finite: expected float32"):
        call(backend.all_finite, [np.arange(3)])


@pytest.mark.parametrize("num_rows", [0, 1, 5, 200, 257, 4099])
def test_epoch_order_is_that_of_data_order(backend: Backend, num_rows: int) -> None:
    order = backend.epoch_order(num_rows, round_keys(7, 3))
    np.testing.assert_array_equal(backend.to_numpy(order), epoch_order(num_rows, 7, 3))
    assert order.dtype == np.int64
