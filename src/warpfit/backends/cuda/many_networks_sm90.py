"""Whole training runs of many networks with a hidden layer in one launch: a network at a time in each cluster.

`kernels/many_networks_sm90.cu` keeps the weights that meet the features in the registers of a cluster's blocks, 64
hidden units in each; this module says how large clusters are, and what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from warpfit.backends.base import Activation
from warpfit.backends.cuda.matmul import shared_bytes_of
from warpfit.backends.cuda.runtime import is_debugging
from warpfit.backends.cuda.trained_network import (
    CLUSTERS,
    TrainedNetwork,
    check_network,
    resident_clusters,
    up,
)
from warpfit.errors import ConfigError

__all__ = ["ManyClusters", "choose_clusters", "variants"]

ROWS, UNITS, MOST_OUTPUTS = 64, 64, 16
BOX_BYTES, SLICES_OF_BOX = 8192, 4
PASSED_BYTES = 16384
# Registers of a thread that may hold parameters and what is remembered of them.
MOST_HELD = 200
# Dynamic shared memory begins at a multiple of so many bytes.
ALIGNMENT = 1024


@dataclass(frozen=True)
class ManyClusters:
    """How a cluster trains a network; printable.

    Attributes
    ----------
    network : TrainedNetwork
        What all of them are.
    cluster : int
        Blocks, of 64 hidden units each.
    """

    network: TrainedNetwork
    cluster: int

    kernel = "many_networks_sm90"
    threads = 256

    @property
    def slices(self) -> int:
        """Slices of 16 features."""
        return -(-self.network.features // 16)

    @property
    def x_width(self) -> int:
        """Numbers of a row of x, filled up with zeros."""
        return 16 * self.slices

    @property
    def held(self) -> int:
        """Numbers that a thread holds: the hidden layer's weights, and what the optimizer remembers of them."""
        whole, tail = divmod(self.slices, SLICES_OF_BOX)
        boxes = whole + (tail > 0)
        first = boxes // 2
        own = max(SLICES_OF_BOX * first, self.slices - SLICES_OF_BOX * first)
        return 8 * own * (1 + self.network.slots)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        network, copies = self.network, 1 + self.network.slots
        whole, tail = divmod(self.slices, SLICES_OF_BOX)
        boxes = 2 * whole + 1 if tail in (1, 2) else 2 * (whole + (tail > 0))
        pairs = -(-network.outputs // 2)
        logits = max(1, (self.cluster - 1) * ROWS) * 2 * pairs * 4
        held = copies * (4 * UNITS * network.outputs + 4 * UNITS + 4 * 16)
        return up(
            boxes * BOX_BYTES
            + PASSED_BYTES
            + logits
            + 2 * 32 * ROWS
            + held
            + 8 * UNITS
            + 8 * ROWS
            + 64
            + 96
            + 32,
            16,
        )

    @property
    def num_parameters(self) -> int:
        """Numbers of a network's parameters, padding included."""
        features, hidden, outputs = self.network.widths
        return up((features + 1) * hidden, 4) + up((hidden + 1) * outputs, 4)

    @property
    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Where the weights and biases of each layer begin among a network's parameters, and their shapes."""
        features, hidden, outputs = self.network.widths
        last = up((features + 1) * hidden, 4)
        return [
            (0, (features, hidden)),
            (features * hidden, (hidden,)),
            (last, (hidden, outputs)),
            (last + hidden * outputs, (outputs,)),
        ]

    def groups(self, num_multiprocessors: int) -> int:
        """Return how many networks train at once."""
        return resident_clusters(self.cluster, num_multiprocessors)

    @property
    def defines(self) -> dict[str, Any]:
        """The kernel's defines."""
        network = self.network
        activation = network.activations[0]
        return {
            **network.defines,
            "FEATURES": network.features,
            "HIDDEN": network.widths[1],
            "OUTPUTS": network.outputs,
            "CLUSTER": self.cluster,
            "TARGET_WORDS": network.target_words,
            "ACTIVATION": activation.name,
            "SLOPE": float(activation.slope),
            "SHARED_BYTES": self.shared_bytes,
            "BOUNDED_WAITS": int(is_debugging()),
        }

    def __str__(self) -> str:
        blocks = "block" if self.cluster == 1 else f"cluster of {self.cluster} blocks"
        return f"a network in each {blocks}"


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    is_small = network.batch <= ROWS and network.outputs <= MOST_OUTPUTS
    return len(network.widths) == 3 and is_small and network.is_plain


@lru_cache(maxsize=256)
def choose_clusters(network: TrainedNetwork, arch: str, max_shared_bytes: int) -> ManyClusters:
    """Return how clusters train networks of this shape.

    Raises
    ------
    ConfigError
        If one does not fit, or the kernel is not for it.
    """
    check_network(network, arch)
    if arch != "sm_90a":
        raise ConfigError(f"expected sm_90a, whose warpgroups multiply, got {arch}")
    if not suits(network):
        raise ConfigError(
            f"expected a hidden layer, batches of at most {ROWS} rows, at most {MOST_OUTPUTS} outputs, and no dropout, "
            f"weights of rows or clipping, got {network}"
        )
    needed = -(-network.widths[1] // UNITS)
    cluster = next((size for size in CLUSTERS if size >= needed), None)
    if cluster is None:
        raise ConfigError(f"expected at most {CLUSTERS[-1] * UNITS} hidden units, got {network.widths[1]}")
    shape = ManyClusters(network, cluster)
    if shape.held > MOST_HELD:
        raise ConfigError(
            f"expected at most {MOST_HELD} numbers for the registers of a thread, got {shape.held}"
        )
    if shape.shared_bytes > max_shared_bytes:
        raise ConfigError(
            f"expected at most {max_shared_bytes} bytes of shared memory, got {shape.shared_bytes}"
        )
    return shape


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a choice of what sweeps compile."""
    relu = (Activation("relu"),)
    mnist = TrainedNetwork("float16", (784, 128, 10), relu, (False,), 64, "cross_entropy")
    networks = [
        mnist,
        replace(mnist, dtype="bfloat16", widths=(300, 64, 10)),
        replace(mnist, widths=(100, 50, 3), loss="mse", batch=32, optimizer="sgd", momentum=True, slots=1),
    ]
    for network in networks:
        shape = choose_clusters(network, "sm_90a", shared_bytes_of("sm_90a"))
        yield "many_networks_sm90", {name: str(value) for name, value in shape.defines.items()}
