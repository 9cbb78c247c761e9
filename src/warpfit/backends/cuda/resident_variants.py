"""How kernels of whole runs say what they compile, of which `variants` of each has a choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, Activation
from warpfit.backends.cuda.cards import CARDS
from warpfit.backends.cuda.many_launch import ManyLaunch
from warpfit.backends.cuda.resident_launch import ResidentLaunch
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import Obstacle, required

Launch = TypeVar("Launch", bound=ResidentLaunch)

MOMENTUM: dict[str, Any] = {"slots": 1, "momentum": True}
ADAM: dict[str, Any] = {"optimizer": "adam", "slots": 2}


def network_of(*widths: int, batch: int = 32, **settings: Any) -> TrainedNetwork:
    """Return a network of ReLU units in float16 that SGD trains, but for its settings."""
    hidden = len(widths) - 2
    activations, drops = (Activation("relu"),) * hidden, (False,) * hidden
    base = TrainedNetwork("float16", widths, activations, drops, batch, "cross_entropy")
    return replace(base, **settings)


def with_each_dtype(network: TrainedNetwork) -> list[TrainedNetwork]:
    """Return the network in each dtype of products."""
    return [replace(network, dtype=dtype) for dtype in HALF_DTYPES]


def with_each_activation(network: TrainedNetwork) -> list[TrainedNetwork]:
    """Return the network with each activation behind its first layer."""
    _, *others = network.activations
    return [replace(network, activations=(Activation(own), *others)) for own in ACTIVATIONS]


def launched(
    choose: Callable[[TrainedNetwork, str, int, int], Launch | Obstacle],
    networks: Iterable[TrainedNetwork],
    card: str = "h100",
) -> list[Launch]:
    """Return how each network is launched on a card of `CARDS`."""
    of = CARDS[card]
    limits = of.arch, of.max_shared_bytes, of.num_multiprocessors
    return [required(choose(network, *limits)) for network in dict.fromkeys(networks)]


def compiled(launches: Iterable[ResidentLaunch]) -> list[tuple[str, dict[str, str]]]:
    """Return the kernel of each launch, and its defines."""
    return [(launch.kernel, launch.config.settings()) for launch in launches]


def compiled_of_many(
    choose: Callable[[TrainedNetwork, str, int], ManyLaunch | Obstacle],
    networks: Sequence[TrainedNetwork],
    compared: Sequence[TrainedNetwork],
) -> list[tuple[str, dict[str, str]]]:
    """Return the kernels that train many of each network, and their defines; `compared` networks
    are halved, and their best are kept.
    """
    card, found = CARDS["h100"], []
    for network in (*networks, *compared):
        launch = required(choose(network, card.arch, card.max_shared_bytes))
        is_compared = network in compared
        config = replace(launch.config, keeps_best=is_compared, halves=is_compared)
        found.append((launch.kernel, config.settings()))
    return found
