"""The epoch order: a keyed bijection on 0..N-1, computed where it is needed.

Position i of an epoch holds row ``order(i)``. The bijection is a Feistel network on ``bits`` bits, the
smallest number of bits (at least 8) that holds N; a result of N or more goes through the network again
("cycle walking") until it lies below N. No permutation is stored, any position can be computed alone, and
every backend and engine sees the same batches.

Everything a second implementation needs is here: the halves are ``left`` (the upper ``bits // 2`` bits) and
``right`` (the rest); round r (of 8) replaces left by ``left ^ mix(right ^ key[r])`` when r is even and right
by ``right ^ mix(left ^ key[r])`` when r is odd, each cut to its half's bits; ``mix`` is MurmurHash3's 32-bit
finaliser; the eight round keys are the words of Philox counters ``(epoch, 0, 0, 0)`` and ``(epoch, 1, 0, 0)``
under the key of the ``ORDER`` stream.

References
----------
Black, Rogaway: Ciphers with Arbitrary Finite Domains (CT-RSA 2002).
Mitchell, Stokes, Frank, Holmes: Bandwidth-Optimal Random Shuffling for GPUs (2021).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError
from warpfit.random import ORDER, philox, stream_key

__all__ = ["epoch_order", "order_at", "round_keys"]

ROUNDS = 8
MIN_BITS = 8
MAX_ROWS = 2**31

Words = npt.NDArray[np.uint32]


def round_keys(seed: int, epoch: int) -> Words:
    """Return the eight round keys (8,) uint32 of one epoch."""
    words = philox((epoch, np.arange(ROUNDS // 4), 0, 0), stream_key(seed, ORDER))
    return np.stack(words, axis=-1).reshape(-1)


def domain_bits(num_rows: int) -> int:
    """Return how many bits the Feistel network works on for `num_rows` rows."""
    return max(MIN_BITS, (num_rows - 1).bit_length())


def _mix(word: Words) -> Words:
    word ^= word >> np.uint32(16)
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> np.uint32(13)
    word *= np.uint32(0xC2B2AE35)
    word ^= word >> np.uint32(16)
    return word


def _feistel(values: Words, bits: int, keys: Words) -> Words:
    right_bits = np.uint32(bits - bits // 2)
    left_mask = np.uint32((1 << bits // 2) - 1)
    right_mask = np.uint32((1 << int(right_bits)) - 1)
    left, right = values >> right_bits, values & right_mask
    for r in range(ROUNDS):
        if r % 2 == 0:
            left ^= _mix(right ^ keys[r]) & left_mask
        else:
            right ^= _mix(left ^ keys[r]) & right_mask
    return left << right_bits | right


def _permutation(bits: int, keys: Words) -> Callable[[Words], Words]:
    """Return the network as a function: of few bits, whose walks are long, a table of all its values."""
    if bits > MIN_BITS:
        return lambda values: _feistel(values, bits, keys)
    return _feistel(np.arange(1 << bits, dtype=np.uint32), bits, keys).take


def order_at(positions: npt.ArrayLike, num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the rows at some positions of an epoch's order.

    Parameters
    ----------
    positions : array_like of int, each in [0, num_rows); flattened
    num_rows : int
        Rows in the data, at most 2**31.
    seed, epoch : int
        The run's seed, and the epoch counted from 0.

    Returns
    -------
    ndarray of int64, one-dimensional

    Raises
    ------
    ConfigError
        If `num_rows`, `epoch` or one of `positions` is out of range.
    """
    if not 0 <= num_rows <= MAX_ROWS:
        raise ConfigError(f"expected a number of rows in [0, 2**31], got {num_rows}")
    if not 0 <= epoch < 2**32:
        raise ConfigError(f"expected an epoch in [0, 2**32), got {epoch}")
    positions = np.ravel(positions)
    # A position outside could walk a cycle that never comes below num_rows.
    if positions.size and not 0 <= positions.min() <= positions.max() < num_rows:
        raise ConfigError(
            f"expected positions in [0, {num_rows}), got {positions.min()} to {positions.max()}"
        )
    permute = _permutation(domain_bits(num_rows), round_keys(seed, epoch))
    rows = permute(positions.astype(np.uint32))
    outside = np.flatnonzero(rows >= num_rows)
    while outside.size:
        rows[outside] = permute(rows[outside])
        outside = outside[rows[outside] >= num_rows]
    return rows.astype(np.int64)


def epoch_order(num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the whole order of an epoch: a permutation (num_rows,) int64 of 0..num_rows-1."""
    return order_at(np.arange(num_rows), num_rows, seed, epoch)
