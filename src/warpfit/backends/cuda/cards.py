"""What a launch must know of a card, and the cards that need not be there to be planned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpfit.backends.cuda.jit import generation


@dataclass(frozen=True)
class Card:
    """A GPU, as far as the layout of a launch depends on it."""

    arch: str  # what kernels are compiled for: 'sm_90a', ...
    num_multiprocessors: int
    memory_bytes: int
    max_shared_bytes: int  # shared memory that one block may ask for


def card_of(runtime: Any) -> Card:
    """Return the card of an open device."""
    _, memory_bytes = runtime.memory_info()
    return Card(
        runtime.arch,
        runtime.num_multiprocessors,
        memory_bytes,
        runtime.max_shared_bytes,
    )


def shared_bytes_of(arch: str) -> int:
    """Return the shared memory that a block may ask for on an architecture such as ``'sm_90a'``."""
    kib = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227}
    return kib.get(generation(arch), 99) << 10


def _card(arch: str, num_multiprocessors: int, gigabytes: int) -> Card:
    return Card(arch, num_multiprocessors, gigabytes * 10**9, shared_bytes_of(arch))


# From NVIDIA's data sheets.
CARDS = {
    "t4": _card("sm_75", 40, 16),
    "a100": _card("sm_80", 108, 80),
    "rtx3090": _card("sm_86", 82, 24),
    "rtx4090": _card("sm_89", 128, 24),
    "h100": _card("sm_90a", 132, 80),
    "h200": _card("sm_90a", 132, 141),
}
