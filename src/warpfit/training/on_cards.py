"""What a step of a network of linear layers is expected to take on several cards that share each
batch, in half precision.

Products, updates and sums of gradients go along as `graph` starts them, at what a card computes,
what its memory and its links move, as ``benchmarks/scaling.py`` found it (``card_prices.json``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from warpfit.engines.parts import BUCKET_BYTES
from warpfit.errors import ConfigError

PRICES = Path(__file__).with_name("card_prices.json")
# Bytes of a parameter and of a number of its state, and of a copy in half precision.
FULL, HALF = 4, 2


class _Prices(NamedTuple):
    """What a card does in a second, and seconds that each sum and each product take besides."""

    flops: float
    memory_bytes: float
    link_bytes: float
    sum_seconds: float
    product_seconds: float


class OnCards(NamedTuple):
    """What is expected of a step.

    Attributes
    ----------
    alone : float
        Seconds on one card, of a card's rows.
    seconds : float
        On all.
    nbytes : int
        That each card sends.
    sums : float
        Seconds that sums of gradients take.
    """

    alone: float
    seconds: float
    nbytes: int
    sums: float

    @property
    def efficiency(self) -> float:
        """The time of one card over that of all."""
        return self.alone / self.seconds

    @property
    def hidden(self) -> float:
        """The share of the sums that takes no time, as a step that waits for them would."""
        waiting = self.seconds - self.alone
        return max(0.0, 1 - waiting / self.sums) if self.sums else 1.0


@cache
def read_prices() -> _Prices:
    """Return the file's prices."""
    return _Prices(**json.loads(PRICES.read_text(encoding="utf-8"))["prices"])


def expected_on_cards(
    widths: Sequence[int], batch_size: int, num_cards: int, num_slots: int
) -> OnCards:
    """Return what is expected of a step.

    Parameters
    ----------
    widths : sequence of int
        Of input, hidden layers and output.
    batch_size : int
        Rows of all cards together.
    num_cards : int
    num_slots : int
        Numbers of optimizer state that a parameter has.

    Raises
    ------
    ConfigError
        If a card would have no row.
    """
    if not 1 <= num_cards <= batch_size:
        raise ConfigError(
            f"expected cards from 1 to {batch_size}, a row of the batch for each, got {num_cards}"
        )
    prices, rows = read_prices(), -(-batch_size // num_cards)
    layers = [(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)]
    products = [
        2 * rows * fan_in * fan_out / prices.flops + prices.product_seconds
        for fan_in, fan_out in layers
    ]
    sizes = [fan_in * fan_out + fan_out for fan_in, fan_out in layers]
    state = 2 * FULL * (1 + num_slots) + HALF
    computed = 3 * sum(products) - products[0]
    alone = computed + sum(sizes) * state / prices.memory_bytes
    if num_cards == 1:
        return OnCards(alone, alone, 0, 0.0)
    # A gradient is written, and read by the update; copies are made of what that wrote.
    now, link_free, waiting, sent = sum(products), 0.0, 0, 0
    sums, early = 0.0, 0
    for idx in reversed(range(len(layers))):
        now += products[idx] + sizes[idx] * FULL / prices.memory_bytes
        waiting += sizes[idx]
        if waiting * FULL >= BUCKET_BYTES or not idx:
            before = link_free
            took = _seconds_of_sum(waiting * FULL, num_cards, prices)
            link_free = max(now, link_free) + took
            sums, early, waiting = sums + took, sent, 0
            sent = sum(sizes[idx:])
        now += products[idx] if idx else 0.0
    update = (state + 2 * FULL) / prices.memory_bytes
    now = max(now, before if early else 0.0) + early * update
    seconds = max(now, link_free) + (sent - early) * update
    nbytes = 2 * (num_cards - 1) * sum(sizes) * FULL // num_cards
    return OnCards(alone, seconds, nbytes, sums)


def _seconds_of_sum(nbytes: int, num_cards: int, prices: _Prices) -> float:
    """Return how long a sum over all cards takes: parts come, are added up, and go back."""
    of_others = nbytes * (num_cards - 1) / num_cards
    return (
        2 * of_others / prices.link_bytes + 3 * of_others / prices.memory_bytes + prices.sum_seconds
    )
