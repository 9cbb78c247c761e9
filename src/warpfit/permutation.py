"""A keyed bijection on 0..N-1, any value of which can be computed alone.

It is a Feistel network on ``bits`` bits, the smallest number of bits (at least 8) that holds N; a
result of N or more goes through the network again ("cycle walking") until it lies below N.

Everything a second implementation needs is here: the halves are ``left`` (the upper ``bits // 2``
bits) and ``right`` (the rest); round r (of 8) replaces left by ``left ^ mix(right ^ key[r])`` when
r is even and right by ``right ^ mix(left ^ key[r])`` when r is odd, each cut to its half's bits;
``mix`` is MurmurHash3's 32-bit finaliser.

References
----------
Black, Rogaway: Ciphers with Arbitrary Finite Domains (CT-RSA 2002).
Mitchell, Stokes, Frank, Holmes: Bandwidth-Optimal Random Shuffling for GPUs (2021).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

ROUNDS = 8
MIN_BITS = 8

Words = npt.NDArray[np.uint32]

_SHIFTS = (np.uint32(16), np.uint32(13))
_MULTIPLIERS = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


def domain_bits(count: int) -> int:
    """Return how many bits the network works on for `count` values."""
    return max(MIN_BITS, (count - 1).bit_length())


def permuted(positions: npt.NDArray[np.integer], count: int, keys: Words) -> npt.NDArray[np.int64]:
    """Return the bijection's values at some positions.

    Parameters
    ----------
    positions : ndarray of int, each in [0, count)
        What lies outside could walk a cycle that never comes below `count`.
    count : int
        Number of values, at most 2**31.
    keys : ndarray (8,) uint32
    """
    permute = _permutation(domain_bits(count), keys, positions.size)
    values = permute(positions.astype(np.uint32))
    outside = np.flatnonzero(values >= count)
    while outside.size:
        values[outside] = permute(values[outside])
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)


def permutations(count: int, keys: Words) -> npt.NDArray[np.int64]:
    """Return all values of some bijections at once, (bijections, count), as `permuted` gives them.

    Of few values that takes hardly longer than one bijection's.

    Parameters
    ----------
    count : int
        Number of values, at most 2**31.
    keys : ndarray (bijections, 8) uint32
    """
    bits = domain_bits(count)
    table = _feistel(np.arange(1 << bits, dtype=np.uint32), bits, keys.T[..., None])
    values = table[:, :count].copy()
    rows, places = np.nonzero(values >= count)
    while rows.size:
        found = table[rows, values[rows, places]]
        values[rows, places] = found
        rows, places = rows[found >= count], places[found >= count]
    return values.astype(np.int64)


def _mix(word: Words) -> Words:
    word ^= word >> _SHIFTS[0]
    word *= _MULTIPLIERS[0]
    word ^= word >> _SHIFTS[1]
    word *= _MULTIPLIERS[1]
    word ^= word >> _SHIFTS[0]
    return word


def _feistel(values: Words, bits: int, keys: Words) -> Words:
    """Return what the network makes of values (n,), by keys (8, bijections, 1) of each."""
    right_bits = np.uint32(bits - bits // 2)
    left_mask = np.uint32((1 << bits // 2) - 1)
    right_mask = np.uint32((1 << int(right_bits)) - 1)
    left, right = values >> right_bits, values & right_mask
    for r in range(ROUNDS):
        if r % 2 == 0:
            left = left ^ _mix(right ^ keys[r]) & left_mask
        else:
            right = right ^ _mix(left ^ keys[r]) & right_mask
    return left << right_bits | right


def _permutation(bits: int, keys: Words, num_asked: int) -> Callable[[Words], Words]:
    """Return the network as a function: a table of all its values, if at least half of them are
    asked for.

    So is a network of few bits, whose walks are long. A whole order's walks come to as many values
    as there are.
    """
    if bits > MIN_BITS and num_asked < 1 << (bits - 1):
        return lambda values: _feistel(values, bits, keys)
    return _feistel(np.arange(1 << bits, dtype=np.uint32), bits, keys).take
