"""Whole training runs of many small networks of one shape in one launch: a network in each group of
four warps.

`many_small_networks_sm90.cu` multiplies by warpgroup, with parameters in the registers of
accumulators; this module says how many groups a block has, and what does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil

from warpfit.backends.cuda.many_launch import ManyLaunch
from warpfit.backends.cuda.resident_arguments import ManySmallArguments
from warpfit.backends.cuda.resident_config import ManySmallConfig
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import TrainedNetwork, unsuited
from warpfit.errors import Obstacle

UNITS, MOST_ROWS, MOST_OUTPUTS, LINE_BYTES, GROUP_THREADS, WARPS = 64, 128, 16, 128, 128, 4
# Registers of a multiprocessor; of a thread that brings rows, of one that trains the most that it
# can have, and what it needs, about, beside parameters and a tile of sums.
REGISTERS, ROW_REGISTERS, MOST_REGISTERS, OTHER_REGISTERS = 65536, 56, 232, 14
MOST_GROUPS = 4
# Dynamic shared memory begins at a multiple of so many bytes, and so does a group's.
ALIGNMENT = 1024
# Numbers of rows that are found ahead, for each group.
ORDER_RING = 512
# Narrower networks are trained as fast by `many_networks.cu`, which multiplies tiles of 16 units.
LEAST_UNITS = 17


@dataclass(frozen=True)
class ManySmallNetworks(ManyLaunch):
    """How a block trains networks; printable."""

    network: TrainedNetwork  # what all of them are
    in_block: int = 1  # groups of a block, each of which trains a network
    # Whether the first layer's weights lie in shared memory, as registers do not suffice.
    shares_first: bool = False

    kernel = "many_small_networks_sm90"
    arguments = ManySmallArguments
    cluster = 1
    is_for_plain_networks = True

    def groups(self, num_multiprocessors: int) -> int:
        """Return how many networks train at once."""
        return self.in_block * num_multiprocessors

    def blocks_of(self, num_networks: int) -> int:
        """Return how many blocks train so many networks at once."""
        return ceil(num_networks / self.in_block)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.in_block + 1) * GROUP_THREADS

    @property
    def group_registers(self) -> int:
        """Registers of a thread that trains: the block's less those of threads that bring rows."""
        at_launch = min(REGISTERS // self.threads, 255) // 8 * 8
        of_all = at_launch * (self.in_block + 1) - ROW_REGISTERS
        return min(MOST_REGISTERS, of_all // self.in_block // 8 * 8)

    @property
    def rows(self) -> int:
        """Rows of a batch, filled up."""
        return next(rows for rows in (16, 32, 64, 128) if rows >= self.network.batch)

    @property
    def x_width(self) -> int:
        """Numbers of a row of x: features, and zeros."""
        return padded(self.network.features)

    @property
    def register_slots(self) -> int:
        """How much of the optimizer state lies in registers; the rest lies in shared memory."""
        return min(1, self.network.slots)

    @property
    def first(self) -> int:
        """Weights of the first layer that a thread has."""
        return self.x_width // 2

    @property
    def own(self) -> int:
        """Parameters that a thread has."""
        *inputs, outputs = self.network.widths
        tiles = ceil(outputs / 8)
        return sum(padded(width) // 2 + 2 for width in inputs[:-1]) + 6 * tiles

    @property
    def registers(self) -> int:
        """Registers that a thread that trains needs, about."""
        slices = max(padded(width) // 16 for width in self.network.widths[:-1])
        return (
            self.own * (1 + self.register_slots)
            - self.shares_first * self.first
            + self.rows // 2
            + 4 * slices
            + OTHER_REGISTERS
        )

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.in_block * self.group_bytes

    @property
    def group_bytes(self) -> int:
        """Shared memory of a group, as the kernel's struct has it."""
        network, hidden = self.network, len(self.network.widths) - 2
        tile, out_tiles = self.rows * LINE_BYTES, ceil(network.outputs / 8)
        shared_slots = network.slots - self.register_slots
        arrays = {  # bytes, and of what they are a multiple
            "x": (tile * (1 if 2 * self.x_width <= UNITS else 2), ALIGNMENT),
            "h": (hidden * tile, 1),
            "weights": ((hidden - 1) * UNITS * LINE_BYTES if hidden > 1 else 16, 1),
            "first": (4 * self.first * GROUP_THREADS if self.shares_first else 16, 16),
            "out_weights": (16 * out_tiles * UNITS, 2),
            "dz": (16 * out_tiles * self.rows, 2),
            "slots": (4 * shared_slots * self.own * GROUP_THREADS if shared_slots else 4, 4),
            "logits": (8 * self.rows * ceil(network.outputs / 2), 8),
            "targets": (8 * self.rows * network.target_words, 4),
            "order": (4 * ORDER_RING, 4),
            "rounds": (8 * 256, 1),
            "settings, network": (2 * 16 + 96, 16),
            "sums": (WARPS * 2 * 8, 8),
            "run": (8 * 4 + 32, 8),
            "barriers": (7 * 8, 8),
        }
        end = 0
        for size, alignment in arrays.values():
            end = up(end, alignment) + size
        return up(end, ALIGNMENT)

    @property
    def num_parameters(self) -> int:
        """Numbers of a network's parameters, padding included."""
        return sum(
            up((inputs + 1) * outputs, 4) for inputs, outputs in pairwise(self.network.widths)
        )

    @property
    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Where layers' weights and biases begin among a network's parameters; their shapes."""
        found: list[tuple[int, tuple[int, ...]]] = []
        first = 0
        for inputs, outputs in pairwise(self.network.widths):
            found += [(first, (inputs, outputs)), (first + inputs * outputs, (outputs,))]
            first += up((inputs + 1) * outputs, 4)
        return found

    @property
    def config(self) -> ManySmallConfig:
        """The kernel's settings."""
        return ManySmallConfig(
            **self.network.settings,
            **self.network.layer_settings,
            **self.network.weight_settings,
            target_words=self.network.target_words,
            groups=self.in_block,
            register_slots=self.register_slots,
            shares_first=self.shares_first,
            group_registers=self.group_registers,
            row_registers=ROW_REGISTERS,
            order_ring=ORDER_RING,
            shared_bytes=self.shared_bytes,
        )

    def __str__(self) -> str:
        return f"a network in each group of four warps, {self.in_block} in a block"


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    *widths, outputs = network.widths
    is_small = max(widths) <= UNITS and outputs <= MOST_OUTPUTS and network.batch <= MOST_ROWS
    keeps_input = any(activation.needs_input for activation in network.activations)
    return (
        len(widths) > 1
        and max(widths[1:]) >= LEAST_UNITS
        and is_small
        and not keeps_input
        and network.is_plain
    )


@lru_cache(maxsize=256)
def choose_small(
    network: TrainedNetwork, arch: str, max_shared_bytes: int
) -> ManySmallNetworks | Obstacle:
    """Return how blocks of a warpgroup train networks of this shape, or what is in the way."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if arch != "sm_90a":
        return Obstacle(f"expected sm_90a, whose warpgroups multiply, got {arch}")
    if not suits(network):
        return Obstacle(
            f"expected at most {UNITS} features, a hidden layer of {LEAST_UNITS} to {UNITS} units "
            f"and none of more, at most {MOST_OUTPUTS} outputs, batches of at most {MOST_ROWS} "
            "rows, activations whose derivatives follow from their values, and no dropout, sample "
            f"weights, penalty or clipping, got {network}"
        )
    shapes = [
        ManySmallNetworks(network, in_block, shares_first)
        for in_block in range(MOST_GROUPS, 0, -1)
        for shares_first in (False, True)
    ]
    for shape in shapes:
        if shape.shared_bytes <= max_shared_bytes and shape.registers <= shape.group_registers:
            return shape
    return Obstacle(
        f"expected at most {max_shared_bytes} bytes of shared memory and {MOST_REGISTERS} "
        "registers of a thread for a "
        f"network in a group, got {shapes[-1].shared_bytes} and {shapes[-1].registers}"
    )
