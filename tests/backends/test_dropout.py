from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import DTYPES, LAYOUTS, call, layouts
from warpfit.backends import Backend
from warpfit.backends.numpy import dropout
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.random import DROPOUT, philox, stream_key

PLACE = {"seed": 7, "step": 3, "layer_idx": 1}


def naive_mask(shape: tuple[int, ...], p: float, seed: int, step: int, layer_idx: int) -> Any:
    """Apply the contract's rule unit by unit."""
    mask = np.zeros((shape[0], int(np.prod(shape[1:]))))
    key = stream_key(seed, DROPOUT)
    for row, unit in np.ndindex(mask.shape):
        word = philox((step, layer_idx, row, unit // 4), key)[unit % 4]
        mask[row, unit] = 1 / (1 - p) if int(word) >= round(p * 2**32) else 0
    return mask.reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(3, 10), (5,), (2, 3, 1, 3), (1, 4)])
def test_mask_follows_the_rule(
    backend: Backend, shape: tuple[int, ...], p: float, dtype: str
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y, mask = call(backend.dropout_forward, x, p=p, **PLACE)
    expected = naive_mask(shape, p, **PLACE).astype(dtype)
    assert (y.dtype, mask.dtype) == (dtype, dtype)
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(y, x * expected)
    np.testing.assert_array_equal(call(backend.dropout_backward, x, mask), x * expected)


def test_golden_mask(backend: Backend) -> None:
    _, mask = call(backend.dropout_forward, np.ones((2, 8)), p=0.5, seed=0, step=0, layer_idx=0)
    assert mask.tolist() == [[2, 0, 2, 2, 2, 0, 2, 0], [2, 0, 2, 2, 0, 0, 0, 0]]


def test_rows_of_a_batch_have_their_masks_whichever_rank_has_them(backend: Backend) -> None:
    x = np.ones((7, 10))
    _, whole = call(backend.dropout_forward, x, p=0.5, **PLACE)
    _, part = call(backend.dropout_forward, x[3:], p=0.5, first_row=3, **PLACE)
    np.testing.assert_array_equal(part, whole[3:])


def test_share_of_kept_units_and_mean(backend: Backend) -> None:
    _, mask = call(backend.dropout_forward, np.ones((200, 500), "float32"), p=0.3, **PLACE)
    assert np.unique(mask).tolist() == [0, np.float32(1 / 0.7)]
    # Five standard deviations of the mean of 100,000 units.
    assert abs((mask > 0).mean() - 0.7) < 5 * (0.3 * 0.7 / 1e5) ** 0.5


@pytest.mark.parametrize("changed", [{"seed": 8}, {"step": 4}, {"layer_idx": 0}])
def test_every_word_of_the_counter_and_key_matters(
    backend: Backend, changed: dict[str, int]
) -> None:
    x = np.ones((8, 64))
    _, mask = call(backend.dropout_forward, x, p=0.5, **PLACE)
    _, other = call(backend.dropout_forward, x, p=0.5, **(PLACE | changed))
    assert 0.3 < (mask != other).mean() < 0.7


def test_a_row_keeps_its_mask_in_a_shorter_batch_and_in_any_block(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((9, 21))
    _, mask = call(backend.dropout_forward, x, p=0.5, **PLACE)
    np.testing.assert_array_equal(call(backend.dropout_forward, x[:4], p=0.5, **PLACE)[1], mask[:4])
    monkeypatch.setattr(dropout, "COUNTERS_PER_BLOCK", 13)
    np.testing.assert_array_equal(call(backend.dropout_forward, x, p=0.5, **PLACE)[1], mask)


def test_p_next_to_one_keeps_nothing(backend: Backend) -> None:
    y, _ = call(backend.dropout_forward, np.ones((3, 100)), p=1 - 2**-40, **PLACE)
    assert not y.any()


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    p=st.floats(0, 0.99),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 2**64 - 1),
)
@settings(deadline=None, max_examples=60)
def test_any_shape_and_layout(
    backend: Backend, shape: list[int], p: float, layout: str, seed: int
) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    before = x.copy()
    y, mask = call(
        backend.dropout_forward, dict(layouts(x))[layout], p=p, seed=seed, step=0, layer_idx=0
    )
    expected = naive_mask(tuple(shape), p, seed, 0, 0)
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(y, x * expected)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_refuses_p(backend: Backend, p: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout_forward: expected p in \[0, 1\), got"):
        backend.dropout_forward(np.ones((2, 2)), p=p, **PLACE)


def test_refuses_operands(backend: Backend) -> None:
    with pytest.raises(
        ShapeError, match=r"dropout_forward: expected a batch of rows, got shape \(\)"
    ):
        backend.dropout_forward(np.ones(()), p=0.5, **PLACE)
    with pytest.raises(
        DTypeError, match=r"dropout_forward: expected float32 or float64.*, got int64"
    ):
        backend.dropout_forward(np.ones((2, 2), "int64"), p=0.5, **PLACE)
    with pytest.raises(ShapeError, match="dropout_backward: expected operands of the same shape"):
        backend.dropout_backward(np.ones((2, 2)), np.ones((2, 3)))
    with pytest.raises(DTypeError, match="dropout_backward: expected operands of one dtype"):
        backend.dropout_backward(np.ones((2, 2)), np.ones((2, 2), "float32"))
    with pytest.raises(ConfigError, match="expected a seed"):
        backend.dropout_forward(np.ones((2, 2)), p=0.5, seed=-1, step=0, layer_idx=0)


def test_a_step_on_the_device_decides_as_its_number_does(backend: Backend) -> None:
    x = np.ones((5, 12), "float32")
    number = backend.asarray(np.asarray(0.0))
    for step in (0, 1, 12345, 2**32 - 1):
        backend.assign(number, backend.asarray(np.asarray(float(step))))
        _, mask = backend.dropout_forward(
            backend.asarray(x), p=0.5, seed=3, step=number, layer_idx=1
        )
        _, expected = backend.dropout_forward(
            backend.asarray(x), p=0.5, seed=3, step=step, layer_idx=1
        )
        np.testing.assert_array_equal(backend.to_numpy(mask), backend.to_numpy(expected))
