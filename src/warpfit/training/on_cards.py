"""What a step of a network of linear layers is expected to take on several GPUs that share each
batch, in half precision.

Products, updates and sums of gradients take what ``benchmarks/scaling.py`` found on H200s
(``card_prices.json``). Sums count in full: products beside them wait as long for multiprocessors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from warpfit.errors import ConfigError

PRICES = Path(__file__).with_name("card_prices.json")
# Bytes of a parameter and of a number of its state, and of a copy in half precision.
FULL, HALF = 4, 2


class OnCards(NamedTuple):
    """What is expected of a step."""

    alone: float  # seconds on one GPU, of a GPU's rows
    seconds: float  # on all
    nbytes: int  # that each GPU sends
    sums: float  # seconds that sums of gradients take

    @property
    def efficiency(self) -> float:
        """The time of one GPU over that of all."""
        return self.alone / self.seconds


@cache
def read_prices() -> dict[str, float]:
    """Return what a GPU computes, its memory moves and its links send in a second; which share of
    the sums' time a step is longer by; and seconds that each product, and all sums together, take
    beside that.
    """
    prices: dict[str, float] = json.loads(PRICES.read_text(encoding="utf-8"))["prices"]
    return prices


def expected_on_cards(
    widths: Sequence[int], batch_size: int, num_cards: int, num_slots: int
) -> OnCards:
    """Return what is expected of a step.

    Parameters
    ----------
    widths : sequence of int
        Of input, hidden layers and output.
    batch_size : int
        Rows of all GPUs together.
    num_cards : int
    num_slots : int
        Numbers of optimizer state that a parameter has.

    Raises
    ------
    ConfigError
        If a GPU would have no row.
    """
    if not 1 <= num_cards <= batch_size:
        raise ConfigError(
            f"expected cards from 1 to {batch_size}, a row of the batch for each, got {num_cards}"
        )
    prices, rows = read_prices(), -(-batch_size // num_cards)
    layers = [(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)]
    products = [
        2 * rows * fan_in * fan_out / prices["flops"] + prices["of_product"]
        for fan_in, fan_out in layers
    ]
    num_parameters = sum(fan_in * fan_out + fan_out for fan_in, fan_out in layers)
    changed = 2 * FULL * (1 + num_slots) + HALF
    alone = 3 * sum(products) - products[0] + num_parameters * changed / prices["memory_bytes"]
    nbytes = 2 * (num_cards - 1) * num_parameters * FULL // num_cards
    sums = nbytes / prices["link_bytes"]
    # Gradients are arrays then, which products write and updates read.
    more = 2 * FULL * num_parameters / prices["memory_bytes"] + prices["of_sums"] if nbytes else 0.0
    return OnCards(alone, alone + more + sums * prices["waited_for"], nbytes, sums)
