"""Counter-based random numbers: Philox4x32-10, the same on every backend.

A random number here is a pure function of a key and a counter, so any element can be computed
anywhere, in any order, on any device. Everything that a second implementation needs is fixed in
this file:

* the key of a stream is the first two words of ``philox((stream, 0, 0, 0), (seed low, seed
  high))``;
* the streams are ``ORDER`` (epoch order), ``INIT`` (initial values) and ``DROPOUT``;
* a word becomes a uniform number in [0, 1) by ``(word >> 8) * 2**-24`` (exact in float32);
* a pair of words becomes a standard normal number by Box-Muller, in float64.

References
----------
Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

import numpy as np
import numpy.typing as npt

from warpfit.checks import brief
from warpfit.errors import ConfigError

Words = npt.NDArray[np.uint32]
Key = tuple[int, int]

ORDER, INIT, DROPOUT = 0, 1, 2

ROUNDS = 10
# As many as caches hold with all that is between: in less than half the time.
COUNTERS_AT_ONCE = 8192
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HIGH_SHIFT = np.uint64(32)


def philox(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    key: tuple[npt.ArrayLike, npt.ArrayLike],
) -> list[Words]:
    """Return the four output words of Philox4x32-10 for every counter.

    Parameters
    ----------
    counter : four array_like of uint32, broadcast against each other
    key : two array_like of uint32, broadcast against the counters

    Returns
    -------
    list of four ndarray of uint32, of the broadcast shape
    """
    # Not broadcast before they mix: the first rounds are then of rows and columns alone.
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    for _ in range(ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HIGH_SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HIGH_SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return [word.astype(np.uint32) for word in (c0, c1, c2, c3)]


def philox_words(counter: tuple[int, int, int, int], key: Key) -> tuple[int, int, int, int]:
    """Return the four words of one counter, as `philox` does of many, without arrays."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(ROUNDS):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & 0xFFFFFFFF,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def check_seed(seed: int) -> int:
    """Return `seed` as an int, or raise ConfigError unless it is an integer in [0, 2**64)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ConfigError(f"expected a seed that is an integer in [0, 2**64), got {brief(seed)}")
    return int(seed)


def stream_key(seed: int, stream: int) -> Key:
    """Return the Philox key of one stream (``ORDER``, ``INIT`` or ``DROPOUT``) under a seed."""
    seed = check_seed(seed)
    return philox_words((stream, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[:2]


def stream_keys(seeds: Sequence[int], stream: int) -> tuple[Words, Words]:
    """Return the two words (seeds,) each of the keys of one stream under several seeds."""
    numbers = np.array([check_seed(seed) for seed in seeds], np.uint64)
    first, second, *_ = philox((stream, 0, 0, 0), (numbers & _LOW, numbers >> _HIGH_SHIFT))
    return first, second


def random_words(shape: tuple[int, ...], key: Key, tensor_idx: int = 0) -> Words:
    """Return words: element i takes word i % 4 of counter (tensor_idx, 0, 0, i // 4)."""
    size = int(np.prod(shape, dtype=np.int64))
    words = np.empty((-(-size // 4), 4), np.uint32)
    for first in range(0, len(words), COUNTERS_AT_ONCE):
        part = words[first : first + COUNTERS_AT_ONCE]
        counters = np.arange(first, first + len(part), dtype=np.uint64)
        np.stack(philox((tensor_idx, 0, 0, counters), key), axis=-1, out=part)
    return words.reshape(-1)[:size].reshape(shape)


def uniform(shape: tuple[int, ...], key: Key, tensor_idx: int = 0) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1), multiples of 2**-24."""
    words = random_words(shape, key, tensor_idx)
    words >>= np.uint32(8)
    return np.multiply(words, 2.0**-24, dtype=np.float64)


def normal(shape: tuple[int, ...], key: Key, tensor_idx: int = 0) -> npt.NDArray[np.float64]:
    """Return standard normal numbers by Box-Muller from two words each."""
    words = random_words((*shape, 2), key, tensor_idx)
    radius = np.sqrt(-2.0 * np.log((words[..., 0] + 1.0) * 2.0**-32))
    return radius * np.cos(2.0 * np.pi * 2.0**-32 * words[..., 1])


class _SeedSource:
    """Seeds of layers that were given none: the system's until `manual_seed` fixes them."""

    def __init__(self, seed: int) -> None:
        self.fix(seed)

    def fix(self, seed: int) -> None:
        self.key = stream_key(seed, INIT)
        self.numbers = count()

    def next(self) -> int:
        low, high, *_ = philox_words((next(self.numbers), 0, 0, 1), self.key)
        return low | high << 32


_seed_source: _SeedSource | None = None
# In place of it, in a block of `seeded`; other threads do not see it.
_source_of_block: ContextVar[_SeedSource | None] = ContextVar("seeds", default=None)


def _source() -> _SeedSource:
    global _seed_source
    if (source := _source_of_block.get()) is not None:
        return source
    if _seed_source is None:
        _seed_source = _SeedSource(secrets.randbits(64))
    return _seed_source


def manual_seed(seed: int) -> None:
    """Fix the seeds that layers created from now on take when they are given none.

    Examples
    --------
    >>> wf.manual_seed(0)
    >>> one = nn.Linear(2, 2)
    >>> wf.manual_seed(0)
    >>> np.array_equal(nn.Linear(2, 2).weight.data, one.weight.data)
    True
    """
    _source().fix(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let layers made in this block have seeds as after `manual_seed`; then all is as before."""
    token = _source_of_block.set(_SeedSource(seed))
    try:
        yield
    finally:
        _source_of_block.reset(token)


def next_seed() -> int:
    """Return the seed for the next layer that was given none."""
    return _source().next()
