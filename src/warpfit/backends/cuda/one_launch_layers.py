"""How a network of any number of layers is trained as one kernel, or what is in the way.

`one_launch_layers_layout.py` says what blocks and warps of `one_launch_layers.cu` have in a layout;
this module tries those that there are, and takes the one that is expected to be the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import log2

from warpfit.backends.cuda.one_launch_layers_layout import CHUNK, WORKING_REGISTERS, LayersLaunch
from warpfit.backends.cuda.prices import expected_microseconds
from warpfit.backends.cuda.resident_launch import too_heavy, too_large
from warpfit.backends.cuda.trained_network import (
    CLUSTERS,
    TrainedNetwork,
    most_blocks,
    replicas_with_rows,
    unsuited,
)
from warpfit.errors import Obstacle

# Of two numbers of blocks that are expected to take as long, the larger one was the faster more
# often than not, without replicas.
LEANING = 0.98
X_SLOTS, UNIT_COPIES = (2, 1), (2, 1)
MOST_REPLICAS = 16


@lru_cache(maxsize=256)
def choose_layers(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> LayersLaunch | Obstacle:
    """Return how to launch a network's training, or what is in the way, with its bytes."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    shapes = [
        LayersLaunch(network, cluster, 1, 1, replicas=replicas)
        for cluster in _clusters(network, arch)
        for replicas in _numbers_of_replicas(network, cluster, num_multiprocessors)
    ]
    if not shapes:
        return Obstacle(
            f"expected more than {16 * network.cards} rows of a batch for {network.cards} cards, "
            f"got {network.batch}"
        )
    held = [shape for shape in shapes if shape.least_registers <= shape.registers]
    if not held:
        least = min(shapes, key=lambda shape: shape.least_registers * shape.threads)
        most, needed = (
            4 * (registers - WORKING_REGISTERS) * least.threads
            for registers in (least.registers, least.least_registers)
        )
        return too_heavy(most, needed)
    wider = [shape for narrow in held for shape in _wider(narrow)]
    filled = [
        shape.filled(max_shared_bytes) for shape in wider if shape.shared_bytes <= max_shared_bytes
    ]
    if not filled:
        return too_large(held, max_shared_bytes, "a batch and its units")
    return min(filled, key=_time)


def _wider(shape: LayersLaunch) -> Iterator[LayersLaunch]:
    """Yield a shape with all that it may have in shared memory, whether there is room or not."""
    for slots, copies in product(X_SLOTS, UNIT_COPIES):
        if copies == 1 or shape.may_keep_apart:
            yield replace(shape, x_slots=slots, unit_copies=copies)


def _numbers_of_replicas(
    network: TrainedNetwork, cluster: int, num_multiprocessors: int
) -> list[int]:
    """Return how many clusters of a card may partition a batch: one, unless there are several
    cards, or as many as leave each so many tiles of rows.
    """
    rows, least = -(-network.batch // network.cards), 1 if network.cards == 1 else 2
    numbers = {
        replicas_with_rows(rows, cluster, num_multiprocessors, wanted)
        for wanted in range(1, MOST_REPLICAS + 1)
    }
    return sorted(number for number in numbers if number >= least)


def _time(shape: LayersLaunch) -> float:
    """Return what is less for the faster of two shapes."""
    # Only layouts of this kernel are compared by how often blocks meet: with that among `costs`,
    # two of 6,000 random networks would go to another kernel, which no measurement has shown to be
    # faster.
    meetings = {"meeting": float(shape.unit_copies == 1)}
    costs = {**shape.costs, **shape.costs_of_cards, **meetings}
    expected = expected_microseconds(shape.kernel, costs)
    return float(expected * (LEANING ** log2(shape.cluster) if shape.replicas == 1 else 1))


def _clusters(network: TrainedNetwork, arch: str) -> list[int]:
    """Return the numbers of blocks that all have units of the widest layer."""
    widest = max(network.widths[1:-1], default=1)
    return [size for size in CLUSTERS if size <= min(most_blocks(arch), max(1, widest // CHUNK))]
