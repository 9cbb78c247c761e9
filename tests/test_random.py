from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from warpfit import random
from warpfit.errors import ConfigError
from warpfit.random import (
    DROPOUT,
    INIT,
    ORDER,
    manual_seed,
    next_seed,
    normal,
    philox,
    philox_words,
    seeded,
    stream_key,
    stream_keys,
    uniform,
)

ALL = 2**32 - 1
WORD = st.integers(0, ALL)
# With fixed seeds a statistic either passes for ever or tells of a flaw; this is how rare a flaw
# must look.
P_VALUE = 1e-4


def hexadecimal(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def philox_in_integers(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Return Philox4x32-10 of one counter, in Python's integers, after the paper."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


# -- Philox
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    words = philox(hexadecimal(counter), hexadecimal(key))
    assert tuple(int(word) for word in words) == hexadecimal(expected)
    assert tuple(philox_in_integers(hexadecimal(counter), hexadecimal(key))) == hexadecimal(
        expected
    )


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
@settings(deadline=None)
def test_philox_of_any_counter_and_key(counter: Any, key: Any) -> None:
    assert [int(word) for word in philox(counter, key)] == philox_in_integers(counter, key)
    assert list(philox_words(counter, key)) == philox_in_integers(counter, key)


def test_keys_of_several_seeds() -> None:
    seeds = [0, 7, 2**64 - 1]
    keys = np.stack(stream_keys(seeds, INIT), axis=-1)
    assert keys.tolist() == [list(stream_key(seed, INIT)) for seed in seeds]
    with pytest.raises(ConfigError, match="expected a seed"):
        stream_keys([0, -1], INIT)


def test_counters_broadcast() -> None:
    rows, columns, key = np.arange(3)[:, None], np.array([0, 5, ALL, 7]), (1, 2)
    words = philox((rows, 9, columns, 0), key)
    for word in words:
        assert (word.shape, word.dtype) == ((3, 4), np.uint32)
    for (i, j), _ in np.ndenumerate(words[0]):
        expected = philox_in_integers((i, 9, int(columns[j]), 0), key)
        assert [int(word[i, j]) for word in words] == expected


def test_no_counters_no_words() -> None:
    assert [word.shape for word in philox((np.zeros((0, 3)), 0, 0, 0), (0, 0))] == [(0, 3)] * 4


def test_counters_are_left_alone() -> None:
    counter = np.arange(5, dtype=np.uint64)
    philox((counter, counter, counter, counter), (1, 2))
    np.testing.assert_array_equal(counter, np.arange(5))


# -- streams
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "stream", "key"),
    [
        (0, ORDER, (0x6627E8D5, 0xE169C58D)),
        (0, INIT, (0xF8E4CCA4, 0x5CB200DB)),
        (0, DROPOUT, (0x04FAA329, 0x51C732A6)),
        (42, ORDER, (0x9CEAF053, 0x77F5493B)),
        (2**32, INIT, (0xCCF3076A, 0x6306F434)),
        (2**64 - 1, INIT, (0x19FED511, 0x4B67E034)),
    ],
)
def test_keys_of_streams(seed: int, stream: int, key: tuple[int, int]) -> None:
    assert stream_key(seed, stream) == key
    assert tuple(philox_in_integers((stream, 0, 0, 0), (seed % 2**32, seed // 2**32))[:2]) == key


def test_streams_have_numbers_of_their_own() -> None:
    assert (ORDER, INIT, DROPOUT) == (0, 1, 2)


@pytest.mark.parametrize("seed", [np.int64(42), np.uint64(42), np.uint8(42)])
def test_numpy_integers_are_seeds(seed: Any) -> None:
    assert stream_key(seed, ORDER) == stream_key(42, ORDER)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True, np.True_, np.int64(-1)])
def test_seeds_out_of_range(seed: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a seed that is an integer in \[0, 2\*\*64\), got"
    ):
        stream_key(seed, ORDER)
    with pytest.raises(ConfigError, match="expected a seed"):
        manual_seed(seed)


# -- numbers
# -----------------------------------------------------------------------------------------------

KEY = stream_key(0, INIT)
WORDS = "be8c3333 c3c1120d a1fd3bfa 68197656 cc16fbde 531d22e4"
WORDS_OF_TENSOR_3 = "0ff1a4e1 fc8c522b a0721366 2c2b216f d75be5d6 24add8b1"


@pytest.mark.parametrize(("tensor_idx", "words"), [(0, WORDS), (3, WORDS_OF_TENSOR_3)])
def test_words_of_a_tensor(tensor_idx: int, words: str) -> None:
    result = random.random_words((2, 3), KEY, tensor_idx)
    assert result.dtype == np.uint32
    assert tuple(result.ravel().tolist()) == hexadecimal(words)
    blocks = [philox_in_integers((tensor_idx, 0, 0, block), KEY) for block in (0, 1)]
    assert (*blocks[0], *blocks[1][:2]) == hexadecimal(words)


def test_golden_uniform_numbers() -> None:
    expected = [
        float.fromhex(text)
        for text in (
            "0x1.7d1866p-1",
            "0x1.878224p-1",
            "0x1.43fa76p-1",
            "0x1.a065d8p-2",
            "0x1.982df6p-1",
        )
    ]
    assert uniform((5,), KEY).tolist() == expected
    assert expected == [(word >> 8) / 2**24 for word in hexadecimal(WORDS)[:5]]


def test_golden_normal_numbers() -> None:
    expected = [
        0.07070805773298736,
        -0.796771132847916,
        -0.30436919845998034,
        -1.2038851661545615,
        0.9145609865228187,
    ]
    np.testing.assert_allclose(normal((5,), KEY), expected, rtol=1e-14)
    first, second = hexadecimal(WORDS)[:2]
    radius = np.sqrt(-2 * np.log((first + 1) / 2**32))
    np.testing.assert_allclose(expected[0], radius * np.cos(2 * np.pi * second / 2**32), rtol=1e-14)


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (2, 3, 5)])
def test_shapes(draw: Any, shape: tuple[int, ...]) -> None:
    numbers = draw(shape, KEY)
    assert (numbers.shape, numbers.dtype) == (shape, np.float64)
    flat = draw((40,), KEY)
    np.testing.assert_array_equal(np.ravel(numbers), flat[: numbers.size])


def test_uniform_numbers_are_uniform() -> None:
    numbers = uniform((200_000,), stream_key(1, INIT))
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    np.testing.assert_array_equal(numbers.astype(np.float32), numbers)
    assert kstest(numbers, "uniform").pvalue > P_VALUE
    counts = np.bincount((numbers * 1000).astype(int), minlength=1000)
    assert chi2.sf(np.sum((counts - 200) ** 2 / 200), 999) > P_VALUE


def test_normal_numbers_are_normal() -> None:
    numbers = normal((200_000,), stream_key(1, INIT))
    assert kstest(numbers, "norm").pvalue > P_VALUE
    for power, moment, spread in (
        (1, 0, 1),
        (2, 1, np.sqrt(2)),
        (3, 0, np.sqrt(15)),
        (4, 3, np.sqrt(96)),
    ):
        assert abs(np.mean(numbers**power) - moment) < 4 * spread / np.sqrt(len(numbers))


def test_extreme_words_give_finite_normal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([[0, 0], [ALL, 0], [0, 2**31], [ALL, ALL]], np.uint32)
    monkeypatch.setattr(random, "random_words", lambda *_: words)
    largest = np.sqrt(64 * np.log(2))
    np.testing.assert_allclose(normal((4,), KEY), [largest, 0, -largest, 0], atol=1e-15)


@pytest.mark.parametrize(
    ("key", "tensor_idx"),
    [(stream_key(1, INIT), 1), (stream_key(2, INIT), 0), (stream_key(1, DROPOUT), 0)],
)
def test_other_keys_and_tensors_give_independent_numbers(key: Any, tensor_idx: int) -> None:
    first, second = normal((50_000,), stream_key(1, INIT)), normal((50_000,), key, tensor_idx)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(50_000)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 28 * 28])
def test_neighbours_are_independent(lag: int) -> None:
    for numbers in (uniform((100_000,), KEY), normal((100_000,), KEY)):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 4 / np.sqrt(100_000)


# -- seeds for those who give none
# -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _own_seed_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_seed_source", None)


def test_manual_seed_fixes_the_seeds_that_follow() -> None:
    manual_seed(0)
    assert [next_seed() for _ in range(3)] == [
        5988981445544573918,
        2385086469483466287,
        7704463834677000890,
    ]
    manual_seed(7)
    assert [next_seed() for _ in range(2)] == [3134183194601251541, 5951048880753096049]


def test_seeds_that_follow_are_seeds() -> None:
    manual_seed(3)
    seeds = [next_seed() for _ in range(100)]
    assert len(set(seeds)) == 100
    assert max(seeds) > 2**63
    for seed in seeds:
        assert random.check_seed(seed) == seed


def test_without_manual_seed_every_process_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next_seed()
    monkeypatch.setattr(random, "_seed_source", None)
    assert next_seed() != first


def test_a_seeded_block_has_seeds_of_its_own_and_leaves_the_others_as_they_were() -> None:
    manual_seed(5)
    first, expected = next_seed(), next_seed()
    manual_seed(5)
    assert next_seed() == first
    with seeded(9):
        inside = [next_seed(), next_seed()]
    assert next_seed() == expected
    manual_seed(9)
    assert [next_seed(), next_seed()] == inside
