"""What each of several ranks has of a batch, and how their gradients become one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from warpfit.backends import Array, Backend
from warpfit.backends.contract.communicator import Communicator

# Gradients are added up over the ranks by so many bytes, or more: fewer cost more to start than to
# send.
BUCKET_BYTES = 16 << 20
# Stands for a total weight of 0.
TINY = 1e-30


class Part(NamedTuple):
    """A rank's `rows` of the `whole` batch, from its row `first` on."""

    first: int
    rows: int
    whole: int

    @property
    def share(self) -> float:
        """How much of the batch it is."""
        return self.rows / self.whole


def part_of(whole: int, ranks: Communicator) -> Part:
    """Return a rank's part of a batch of so many rows: the first ranks may have one more."""
    each, left = divmod(whole, ranks.size)
    first = ranks.rank * each + min(ranks.rank, left)
    return Part(first, each + (ranks.rank < left), whole)


def own_rows(ops: Backend, order: Array, batch_size: int, ranks: Communicator) -> Array:
    """Return those rows (n,) of an epoch's order that a rank has, batch by batch."""
    num_rows = len(order)
    batch, rest = part_of(batch_size, ranks), part_of(num_rows % batch_size, ranks)
    steps = num_rows // batch_size
    own = ops.zeros((steps * batch.rows + rest.rows,), "int64")
    if steps:
        batches = ops.reshape(order[: steps * batch_size], (steps, batch_size))
        target = ops.reshape(own[: steps * batch.rows], (steps, batch.rows))
        ops.assign(target, batches[:, batch.first : batch.first + batch.rows])
    if rest.rows:
        first = steps * batch_size + rest.first
        ops.assign(own[steps * batch.rows :], order[first : first + rest.rows])
    return own


class Reduction:
    """Gradients of a step that are added up over all ranks while others are still computed.

    Parameters
    ----------
    ranks : Communicator
    names : collection of str
        Of the parameters whose gradients are wanted.
    """

    def __init__(self, ranks: Communicator, names: Collection[str]) -> None:
        self._ranks, self._names = ranks, names
        self._waiting: dict[str, Array] = {}
        self._buckets: list[list[str]] = []
        self._num_bytes = 0

    def add(self, name: str, gradient: Array) -> None:
        """Take a gradient that is whole on this rank."""
        if name not in self._names:
            return
        self._waiting[name] = gradient
        self._num_bytes += int(gradient.nbytes)
        if self._num_bytes >= BUCKET_BYTES:
            self._send()

    def ends(self) -> Iterator[list[str]]:
        """Let what is started later find sums, and yield the names of their parameters: first all
        but those of the last bucket, which is still in flight, then these.
        """
        self._send()
        *first, last = self._buckets
        if first:
            self._ranks.join(but=1)
            yield [name for names in first for name in names]
        self._ranks.join()
        yield last

    def _send(self) -> None:
        if self._waiting:
            self._ranks.all_reduce(list(self._waiting.values()))
            self._buckets.append(list(self._waiting))
        self._waiting, self._num_bytes = {}, 0


def share_of(ops: Backend, weight: Array, ranks: Communicator) -> tuple[Array, Array]:
    """Return a rank's share of the weight () of a batch, and that of all ranks together."""
    total = ops.empty((), weight.dtype)
    ops.assign(total, weight)
    ranks.all_reduce([total])
    ranks.join()
    return ops.binary("div", weight, ops.binary("maximum", total, TINY)), total
