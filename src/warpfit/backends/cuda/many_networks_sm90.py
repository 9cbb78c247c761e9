"""Whole training runs of many networks with a hidden layer in one launch: a network at a time in
each cluster.

`many_networks_sm90.cu` keeps the weights that meet the features in registers and shared memory of a
cluster's blocks, which partition the features; this module says how large clusters are, and what
does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from warpfit.backends.cuda.many_launch import ManyLaunch
from warpfit.backends.cuda.resident_arguments import ManyClustersArguments
from warpfit.backends.cuda.resident_config import ManyClustersConfig
from warpfit.backends.cuda.sizes import up
from warpfit.backends.cuda.trained_network import TrainedNetwork, unsuited
from warpfit.errors import Obstacle

ROWS, UNITS, MOST_HIDDEN, MOST_OUTPUTS, MOST_PARTS = 64, 64, 128, 16, 8
BOX_BYTES, SLICES_OF_BOX, STAGES = 8192, 4, 2
GROUPS, GROUP_THREADS, HELPERS, OUT_STRIDE = 2, 128, 4, 24
# Numbers of a thread's weights, and of their optimizer state, that fit registers.
MOST_HELD = 128
# Registers of a thread of the warpgroups that have weights, of that which finds losses, and of that
# which brings batches: without optimizer state, and with it.
REGISTERS = ((200, 88, 24), (192, 104, 24))
# Dynamic shared memory begins at a multiple of so many bytes.
ALIGNMENT = 1024


@dataclass(frozen=True)
class ManyClusters(ManyLaunch):
    """How a cluster trains a network; printable."""

    network: TrainedNetwork  # what all of them are
    cluster: int  # blocks
    # Of a part's slices of 16 features, those whose weights lie in shared memory; the others' lie
    # in registers.
    shared_slices: int = 0

    kernel = "many_networks_sm90"
    arguments = ManyClustersArguments
    has_ones = True
    weighs_targets = True

    @property
    def threads(self) -> int:
        return (GROUPS + 2) * GROUP_THREADS

    @property
    def unit_tiles(self) -> int:
        """Tiles of 64 hidden units."""
        return ceil(self.network.widths[1] / UNITS)

    @property
    def parts_of_block(self) -> int:
        """Parts of the features that lie in a block."""
        return GROUPS // self.unit_tiles

    @property
    def parts(self) -> int:
        """Parts of the features."""
        return self.cluster * self.parts_of_block

    @property
    def slices(self) -> int:
        """Slices of 16 features, and of a bias after them, that a part has."""
        return ceil(ceil((self.network.features + 1) / 16) / self.parts)

    @property
    def x_width(self) -> int:
        """Numbers of a row of x: features, a one, and zeros."""
        return 16 * self.slices * self.parts

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, as the kernel's struct has it."""
        network, copies = self.network, 1 + self.network.slots
        units, rows = UNITS * self.unit_tiles, ROWS // self.cluster
        pairs, has_weights = ceil(network.outputs / 2), network.weighted or network.class_weights
        threads = GROUPS * GROUP_THREADS if self.shared_slices else 1
        arrays = {  # bytes, and of what they are a multiple
            "x": (self.x_boxes * BOX_BYTES, ALIGNMENT),
            "passed": (self.passed_bytes, 1),
            "weights": (16 * max(1, self.shared_slices) * copies * 2 * threads, 16),
            "dz, w2": (
                2 * OUT_STRIDE * (max(16, rows) + 8 * (self.parts == MOST_PARTS) + units),
                2,
            ),
            "of_outputs": (8 * self.cluster * (network.widths[1] + 1) * pairs, 8),
            "sums, next": (8 * self.cluster * HELPERS * 4, 16),
            "output_bias": (4 * copies * MOST_OUTPUTS, 4),
            "settings, rows": (16 * STAGES + 4 * STAGES * ROWS, 16),
            "targets": (4 * STAGES * rows * network.target_words, 4),
            "network, run": (96 + 32, 16),
            "barriers": (8 * (18 + self.reuses_sums + 4 * self.unit_tiles), 8),
            "penalties": (64 * self.cluster * network.penalized, 16),
            "weights of batches": (4 * STAGES * has_weights, 16),
        }
        end = 0
        for size, alignment in arrays.values():
            end = up(end, alignment) + size
        return up(end, 16)

    @property
    def x_boxes(self) -> int:
        """Boxes of 64 rows and 64 features that a block has of x."""
        whole, tail = divmod(self.slices, SLICES_OF_BOX)
        tails = STAGES * self.parts_of_block if tail else 0
        return STAGES * self.parts_of_block * whole + (
            ceil(tails / (SLICES_OF_BOX // tail)) if tail else 0
        )

    @property
    def reuses_sums(self) -> bool:
        """Whether what warpgroups pass to each other shares its place in a block."""
        return self.parts == GROUPS and self.cluster == 1

    @property
    def passed_bytes(self) -> int:
        """Shared memory for what warpgroups pass to each other."""
        rows = ROWS // self.parts
        sums = (self.parts - 1) * UNITS * rows * 4
        if self.reuses_sums:
            return GROUPS * sums
        own_stays = self.unit_tiles > 1 and rows > 8
        sent = UNITS * (ROWS - own_stays * rows) * 2
        return self.unit_tiles * sent + GROUPS * (sums + UNITS * rows * 2)

    @property
    def num_parameters(self) -> int:
        """Numbers of a network's parameters, padding included."""
        features, hidden, outputs = self.network.widths
        return up((features + 1) * hidden, 4) + up((hidden + 1) * outputs, 4)

    @property
    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Where layers' weights and biases begin among a network's parameters; their shapes."""
        features, hidden, outputs = self.network.widths
        last = up((features + 1) * hidden, 4)
        return [
            (0, (features, hidden)),
            (features * hidden, (hidden,)),
            (last, (hidden, outputs)),
            (last + hidden * outputs, (outputs,)),
        ]

    def groups(self, num_multiprocessors: int) -> int:
        """Return how many networks train at once, at most."""
        return max(1, num_multiprocessors // self.cluster)

    def blocks_of(self, num_networks: int) -> int:
        """Return how many blocks train so many networks at once."""
        return self.cluster * num_networks

    @property
    def config(self) -> ManyClustersConfig:
        """The kernel's settings."""
        network = self.network
        activation = network.activations[0]
        of_units, of_losses, of_batches = REGISTERS[network.slots > 0]
        return ManyClustersConfig(
            **network.settings,
            **network.weight_settings,
            features=network.features,
            hidden=network.widths[1],
            activation=activation.name,
            slope=float(activation.slope),
            drops=network.drops[0],
            cluster=self.cluster,
            shared_slices=self.shared_slices,
            unit_registers=of_units,
            loss_registers=of_losses,
            batch_registers=of_batches,
            target_words=network.target_words,
            shared_bytes=self.shared_bytes,
        )

    def __str__(self) -> str:
        blocks = "block" if self.cluster == 1 else f"cluster of {self.cluster} blocks"
        return f"a network in each {blocks}"


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    is_small = network.batch <= ROWS and network.outputs <= MOST_OUTPUTS
    return (
        len(network.widths) == 3
        and is_small
        and network.widths[1] <= MOST_HIDDEN
        and network.is_for_sweeps
    )


def with_shared_slices(shape: ManyClusters) -> ManyClusters:
    """Return the shape with as many slices in shared memory as registers are not for."""
    in_registers = max(1, MOST_HELD // (8 * (1 + shape.network.slots)))
    return replace(shape, shared_slices=max(0, shape.slices - in_registers))


@lru_cache(maxsize=256)
def choose_clusters(
    network: TrainedNetwork, arch: str, max_shared_bytes: int
) -> ManyClusters | Obstacle:
    """Return how clusters, as small as can be, train such networks, or what is in the way."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if arch != "sm_90a":
        return Obstacle(f"expected sm_90a, whose warpgroups multiply, got {arch}")
    if not suits(network):
        return Obstacle(
            f"expected a hidden layer of at most {MOST_HIDDEN} units, batches of at most {ROWS} "
            "rows, at most "
            f"{MOST_OUTPUTS} outputs, and no clipping, or penalty with weights, got {network}"
        )
    shape = with_shared_slices(ManyClusters(network, 1))
    while shape.shared_bytes > max_shared_bytes and shape.parts < MOST_PARTS:
        shape = with_shared_slices(ManyClusters(network, 2 * shape.cluster))
    if shape.shared_bytes > max_shared_bytes:
        return Obstacle(
            f"expected at most {max_shared_bytes} bytes of shared memory, got {shape.shared_bytes} "
            f"in each of {shape.cluster} blocks"
        )
    return shape
