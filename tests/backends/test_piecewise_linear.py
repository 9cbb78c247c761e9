"""Piecewise-linear embeddings of numbers, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import DTYPES, assert_within_tolerance, call
from warpfit.backends import Backend
from warpfit.errors import DTypeError, ShapeError

SIZE = 16
SHAPES = [(7, 3, 5), (150, 2, 70), (300, 1, 1), (0, 2, 3), (5, 2, 0)]


def operands(shape: tuple[int, int, int]) -> tuple[Any, ...]:
    """Return x, weight, bias, pieces and bins, some of which have no limits."""
    rows, features, bins = shape
    random = np.random.default_rng(0)
    of_bins = [random.normal(size=(features, 1, bins)) for _ in range(2)]
    limits = [np.zeros((features, 1, bins)), np.ones((features, 1, bins))]
    for limit, each in zip((-1e30, 1e30), limits, strict=True):
        each[random.random(each.shape) < 0.2] = limit
    vectors = [random.normal(size=(features, SIZE)) for _ in range(2)]
    pieces = random.normal(size=(features, bins, SIZE)) / max(1, bins)
    return random.normal(size=(rows, features)), *vectors, pieces, [*of_bins, *limits]


def shares_of(x: Any, bins: Any) -> Any:
    """Return shares (rows, features, bins)."""
    factor, offset, low, high = (each[:, 0] for each in bins)
    return np.clip(x[:, :, None] * factor + offset, low, high)


def converted(values: Any, dtype: str) -> Any:
    if isinstance(values, list):
        return [each.astype(dtype) for each in values]
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(backend: Backend, shape: tuple[int, int, int], dtype: str) -> None:
    x, weight, bias, pieces, bins = operands(shape)
    given = [converted(each, dtype) for each in (x, weight, bias, pieces, bins)]
    found = call(backend.piecewise_linear_forward, *given)
    assert found.dtype == dtype
    expected = np.einsum("mfb,fbs->mfs", shares_of(x, bins), pieces)
    expected += x[:, :, None] * weight + bias
    assert_within_tolerance(found, expected.reshape(shape[0], shape[1] * SIZE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(backend: Backend, shape: tuple[int, int, int], dtype: str) -> None:
    x, *_, bins = operands(shape)
    rows, features, _ = shape
    dy = np.random.default_rng(1).normal(size=(rows, features, SIZE)) / max(1, rows)
    given = [converted(each, dtype) for each in (dy.reshape(rows, features * SIZE), x, bins)]
    dweight, dbias, dpieces = call(backend.piecewise_linear_backward, *given)
    assert_within_tolerance(dweight, np.einsum("mf,mfs->fs", x, dy))
    assert_within_tolerance(dbias, dy.sum(axis=0))
    assert_within_tolerance(dpieces, np.einsum("mfb,mfs->fbs", shares_of(x, bins), dy))


def test_nan_stays_in_its_row(backend: Backend) -> None:
    x, *others = operands((3, 2, 4))
    x[1, 0] = np.nan
    found = call(backend.piecewise_linear_forward, x, *others)
    assert np.isnan(found[1, :SIZE]).all()
    assert np.isfinite(found[1, SIZE:]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_operands_are_checked(backend: Backend) -> None:
    x, weight, bias, pieces, bins = operands((3, 2, 4))
    with pytest.raises(ShapeError, match=r"expected pieces of shape \(2, 4, 16\), got"):
        backend.piecewise_linear_forward(x, weight, bias, pieces[:, :3], bins)
    with pytest.raises(ShapeError, match=r"expected offset of shape \(2, 1, 4\), got"):
        backend.piecewise_linear_forward(x, weight, bias, pieces, [bins[0], bins[1][:1], *bins[2:]])
    with pytest.raises(ShapeError, match=r"expected x of shape \(M, F\), F at least 1, got"):
        backend.piecewise_linear_backward(x, x[0], bins)
    with pytest.raises(DTypeError, match="expected operands of one dtype"):
        backend.piecewise_linear_forward(x.astype("float32"), weight, bias, pieces, bins)
