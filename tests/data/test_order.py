from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from warpfit.data.order import (
    domain_bits,
    epoch_order,
    order_at,
    round_keys,
    round_keys_of,
    round_keys_of_runs,
)
from warpfit.errors import ConfigError
from warpfit.permutation import permutations

# With fixed seeds a statistic either passes for ever or tells of a flaw; this is how rare a flaw
# must look.
P_VALUE = 1e-4


def mix(word: int) -> int:
    """Return MurmurHash3's 32-bit finaliser, in Python's integers."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ word >> 16


def order_in_integers(position: int, num_rows: int, keys: list[int]) -> int:
    """Return the row at one position, after the text of the module."""
    bits = max(8, (num_rows - 1).bit_length())
    left_bits = bits // 2
    right_bits = bits - left_bits
    row = position
    while True:
        left, right = row >> right_bits, row % 2**right_bits
        for r, key in enumerate(keys):
            if r % 2 == 0:
                left ^= mix(right ^ key) % 2**left_bits
            else:
                right ^= mix(left ^ key) % 2**right_bits
        row = left << right_bits | right
        if row < num_rows:
            return row


# -- a bijection
# -------------------------------------------------------------------------------------------


def assert_permutation(order: Any, num_rows: int) -> None:
    assert (order.shape, order.dtype) == ((num_rows,), np.int64)
    np.testing.assert_array_equal(np.sort(order), np.arange(num_rows))


def test_every_small_number_of_rows() -> None:
    for num_rows in range(301):
        assert_permutation(epoch_order(num_rows, seed=5, epoch=num_rows), num_rows)


@pytest.mark.parametrize("bits", range(9, 18))
def test_around_powers_of_two(bits: int) -> None:
    for num_rows in (2**bits - 1, 2**bits, 2**bits + 1):
        assert_permutation(epoch_order(num_rows, seed=bits, epoch=0), num_rows)


@pytest.mark.parametrize("num_rows", [60_000, 1_000_003])
def test_many_rows(num_rows: int) -> None:
    assert_permutation(epoch_order(num_rows, seed=0, epoch=1), num_rows)


@pytest.mark.parametrize("num_rows", [0, 1, 150, 256, 257, 1797])
def test_orders_of_many_epochs_at_once(num_rows: int) -> None:
    found = permutations(num_rows, round_keys_of(3, range(70, 90)))
    each = [epoch_order(num_rows, seed=3, epoch=epoch) for epoch in range(70, 90)]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, each)


@given(
    num_rows=st.integers(0, 5000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32 - 1)
)
@settings(deadline=None)
def test_any_seed_and_epoch(num_rows: int, seed: int, epoch: int) -> None:
    assert_permutation(epoch_order(num_rows, seed, epoch), num_rows)


@pytest.mark.parametrize(
    ("num_rows", "bits"),
    [(0, 8), (1, 8), (256, 8), (257, 9), (60_000, 16), (65_536, 16), (65_537, 17), (2**31, 31)],
)
def test_bits_of_the_network(num_rows: int, bits: int) -> None:
    assert domain_bits(num_rows) == bits


# -- the same everywhere
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "epoch", "keys"),
    [
        (
            0,
            0,
            [
                *(0xD4ABEA56, 0xDD653103, 0x04E23B27, 0x74656F08),
                *(0x8DBF99B6, 0x35CD456A, 0x75D62396, 0x4C1ACEF0),
            ],
        ),
        (
            2**64 - 1,
            2**32 - 1,
            [
                *(0x2EED6CED, 0x10B7014D, 0xBF62F61A, 0x541943AF),
                *(0x785A7567, 0xAFF43DCE, 0xA6F11846, 0x44042203),
            ],
        ),
    ],
)
def test_golden_round_keys(seed: int, epoch: int, keys: list[int]) -> None:
    result = round_keys(seed, epoch)
    assert result.dtype == np.uint32
    assert result.tolist() == keys


def test_keys_of_many_epochs_are_those_of_each() -> None:
    found = round_keys_of(2**64 - 1, range(3, 8))
    assert (found.dtype, found.shape) == (np.uint32, (5, 8))
    np.testing.assert_array_equal(found, [round_keys(2**64 - 1, epoch) for epoch in range(3, 8)])


GOLDEN = [
    ((10, 0, 0), [2, 3, 9, 1, 7, 6, 0, 5, 8, 4]),
    ((10, 0, 1), [5, 3, 4, 6, 2, 9, 1, 0, 8, 7]),
    ((10, 1, 0), [9, 7, 1, 5, 0, 4, 6, 2, 8, 3]),
    ((300, 0, 0), [209, 103, 54, 147, 280, 141, 159, 165, 6, 1]),
    ((60_000, 0, 0), [17755, 56415, 44391, 4868, 27835, 52701, 4517, 20339, 30665, 39665]),
    ((60_000, 0, 9), [359, 7335, 18599, 53988, 8625, 33563, 9680, 21155, 31395, 23147]),
    (
        (60_000, 2**64 - 1, 3),
        [20300, 39765, 35264, 57315, 46331, 38558, 51344, 34339, 34786, 21608],
    ),
    (
        (1_000_003, 7, 2),
        [464388, 391487, 447752, 970323, 324779, 851400, 569299, 905632, 286079, 296125],
    ),
    (
        (2**31, 0, 0),
        [
            *(726125587, 1768207618, 1617655396, 1367965256, 1358435185),
            *(1711488972, 2035301757, 1204902835, 2110742108, 658537637),
        ],
    ),
]


@pytest.mark.parametrize(("arguments", "rows"), GOLDEN)
def test_golden_orders(arguments: tuple[int, int, int], rows: list[int]) -> None:
    assert order_at(np.arange(10), *arguments).tolist() == rows


@pytest.mark.parametrize("num_rows", [1, 2, 7, 255, 256, 257, 1000, 60_000, 2**31 - 5, 2**31])
def test_order_follows_its_description(num_rows: int) -> None:
    keys = round_keys(3, 4).tolist()
    positions = np.unique(np.linspace(0, num_rows - 1, 50).astype(np.int64))
    expected = [order_in_integers(int(position), num_rows, keys) for position in positions]
    assert order_at(positions, num_rows, seed=3, epoch=4).tolist() == expected


@pytest.mark.parametrize("num_rows", [1, 10, 257, 5000])
def test_any_position_can_be_computed_alone(num_rows: int) -> None:
    order = epoch_order(num_rows, seed=1, epoch=2)
    for position in range(0, num_rows, max(1, num_rows // 20)):
        assert order_at(position, num_rows, seed=1, epoch=2).tolist() == [order[position]]
    some = np.random.default_rng(0).integers(0, num_rows, 30)
    np.testing.assert_array_equal(order_at(some, num_rows, seed=1, epoch=2), order[some])
    np.testing.assert_array_equal(order_at(some.tolist(), num_rows, seed=1, epoch=2), order[some])
    shaped = some.reshape(5, 6)
    np.testing.assert_array_equal(order_at(shaped, num_rows, seed=1, epoch=2), order[some])


def test_no_positions() -> None:
    assert order_at([], 10, seed=0, epoch=0).tolist() == []


def test_positions_are_left_alone() -> None:
    positions = np.arange(20, dtype=np.uint32)
    order_at(positions, 20, seed=0, epoch=0)
    np.testing.assert_array_equal(positions, np.arange(20))


# -- at random
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [20, 256, 60_000])
def test_epochs_and_seeds_differ(num_rows: int) -> None:
    orders = [
        epoch_order(num_rows, seed, epoch)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for epoch in range(4)
    ]
    orders.append(np.arange(num_rows))
    assert len({order.tobytes() for order in orders}) == len(orders)


@pytest.mark.in_turns(10)
@pytest.mark.parametrize(
    ("num_rows", "epochs"), [(2, 500), (3, 500), (10, 500), (64, 1000), (257, 1500)]
)
def test_every_row_is_at_every_position_equally_often(num_rows: int, epochs: int) -> None:
    counts = np.zeros((num_rows, num_rows))
    for epoch in range(epochs):
        counts[np.arange(num_rows), epoch_order(num_rows, seed=0, epoch=epoch)] += 1
    expected = epochs / num_rows
    # Rows and columns of the table have fixed sums, which leaves (N-1)² degrees of freedom.
    statistic = np.sum((counts - expected) ** 2 / expected) * (num_rows - 1) / num_rows
    freedom = (num_rows - 1) ** 2
    assert P_VALUE < chi2.sf(statistic, freedom) < 1 - P_VALUE


@pytest.mark.parametrize("num_rows", [5000, 60_000])
def test_every_part_of_the_data_is_spread_over_the_epoch(num_rows: int) -> None:
    parts, epochs = 20, 20
    place = np.arange(num_rows) * parts // num_rows
    statistic = 0.0
    for epoch in range(epochs):
        counts = np.zeros((parts, parts))
        np.add.at(counts, (place, place[epoch_order(num_rows, seed=1, epoch=epoch)]), 1)
        expected = num_rows / parts**2
        statistic += np.sum((counts - expected) ** 2 / expected) * (num_rows - 1) / num_rows
    assert P_VALUE < chi2.sf(statistic, epochs * (parts - 1) ** 2) < 1 - P_VALUE


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("num_rows", [100, 257, 5000])
def test_neighbours_do_not_stay_together(num_rows: int) -> None:
    epochs = 400
    orders = [epoch_order(num_rows, seed=2, epoch=epoch) for epoch in range(epochs)]
    for step in (1, -1, 2):
        # In a random permutation close to one pair of neighbours an epoch differs by any given
        # step.
        together = sum(int(np.count_nonzero(np.diff(order) == step)) for order in orders)
        mean = epochs * (num_rows - abs(step)) / num_rows
        assert norm.sf(abs(together - mean) / np.sqrt(mean)) > P_VALUE


# -- errors
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [-1, 2**31 + 1])
def test_number_of_rows_out_of_range(num_rows: int) -> None:
    with pytest.raises(ConfigError, match=rf"number of rows .*, got {num_rows}"):
        order_at([], num_rows, seed=0, epoch=0)


@pytest.mark.parametrize("epoch", [-1, 2**32])
def test_epoch_out_of_range(epoch: int) -> None:
    with pytest.raises(ConfigError, match=rf"expected an epoch .*, got {epoch}"):
        epoch_order(10, seed=0, epoch=epoch)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, None])
def test_seed_out_of_range(seed: Any) -> None:
    with pytest.raises(ConfigError, match="expected a seed"):
        epoch_order(10, seed=seed, epoch=0)


@pytest.mark.parametrize(
    ("positions", "num_rows"), [([10], 10), ([0, 300], 10), ([3, -1], 10), (0, 0)]
)
def test_positions_out_of_range(positions: Any, num_rows: int) -> None:
    with pytest.raises(ConfigError, match=rf"expected positions in \[0, {num_rows}\), got"):
        order_at(positions, num_rows, seed=0, epoch=0)


def test_keys_of_several_runs() -> None:
    seeds, epochs = [3, 0, 2**64 - 1], [range(2), range(4, 5), range(0)]
    found = round_keys_of_runs(seeds, epochs)
    for own, seed, numbers in zip(found, seeds, epochs, strict=True):
        np.testing.assert_array_equal(own, round_keys_of(seed, numbers))
        assert own.shape == (len(numbers), 8)
    assert round_keys_of_runs([], []) == []
