"""The epoch order: a keyed bijection on 0..N-1, computed where it is needed.

Position i of an epoch holds row ``order(i)``. No permutation is stored, any position can be
computed alone, and every backend and engine sees the same batches. The bijection is
`warpfit.permutation`'s; its eight round keys are the words of Philox counters ``(epoch, 0, 0, 0)``
and ``(epoch, 1, 0, 0)`` under the key of the ``ORDER`` stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from warpfit.checks import check_count
from warpfit.errors import ConfigError
from warpfit.permutation import ROUNDS, permuted
from warpfit.permutation import domain_bits as domain_bits
from warpfit.random import ORDER, philox, stream_keys

MAX_ROWS = 2**31

Words = npt.NDArray[np.uint32]


def round_keys(seed: int, epoch: int) -> Words:
    """Return the eight round keys (8,) uint32 of one epoch."""
    return round_keys_of(seed, range(epoch, epoch + 1))[0]


def round_keys_of(seed: int, epochs: range) -> Words:
    """Return the eight round keys of each of some epochs, (epochs, 8) uint32."""
    return round_keys_of_runs([seed], [epochs])[0]


def round_keys_of_runs(seeds: Sequence[int], epochs: Sequence[range]) -> list[Words]:
    """Return what `round_keys_of` does of each of several runs, computed at once."""
    if not epochs:
        return []
    counts = [len(own) for own in epochs]
    numbers = np.concatenate([np.asarray(own, np.uint64) for own in epochs])
    keys = [np.repeat(words, counts)[:, None] for words in stream_keys(seeds, ORDER)]
    words = philox((numbers[:, None], np.arange(ROUNDS // 4), 0, 0), (keys[0], keys[1]))
    found = np.stack(words, axis=-1).reshape(len(numbers), ROUNDS)
    return np.split(found, np.cumsum(counts)[:-1])


def order_at(
    positions: npt.ArrayLike, num_rows: int, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """Return the rows (n,) at some positions in [0, num_rows), flattened, of an epoch's order.

    Raises
    ------
    ConfigError
        If `num_rows`, at most 2**31, `epoch`, from 0, or one of `positions` is out of range.
    """
    _check_rows(num_rows)
    if check_count("an epoch", epoch, 0) >= 2**32:
        raise ConfigError(f"expected an epoch in [0, 2**32), got {epoch}")
    positions = np.ravel(positions)
    # A position outside could walk a cycle that never comes below num_rows.
    if positions.size and not 0 <= positions.min() <= positions.max() < num_rows:
        raise ConfigError(
            f"expected positions in [0, {num_rows}), got {positions.min()} to {positions.max()}"
        )
    return permuted(positions, num_rows, round_keys(seed, epoch))


def epoch_order(num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the whole order of an epoch: a permutation (num_rows,) int64 of 0..num_rows-1.

    Parameters
    ----------
    num_rows : int
        At least 0.
    seed : int
        In [0, 2**64).
    epoch : int
        From 0.

    Raises
    ------
    ConfigError
        If one of them is something else.

    References
    ----------
    Black, Rogaway: Ciphers with Arbitrary Finite Domains (2002), of cycle walking.

    Examples
    --------
    >>> data.epoch_order(5, seed=0, epoch=1).tolist()
    [0, 3, 4, 1, 2]
    """
    _check_rows(num_rows)
    return order_at(np.arange(num_rows), num_rows, seed, epoch)


def _check_rows(num_rows: int) -> None:
    if check_count("a number of rows", num_rows, 0) > MAX_ROWS:
        raise ConfigError(f"expected a number of rows in [0, 2**31], got {num_rows}")
