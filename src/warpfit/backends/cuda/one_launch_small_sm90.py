"""How a small network is trained as one kernel in a block, or few that partition a batch; or what
is in the way.

In `one_launch_small_sm90.cu` a warp takes 16 rows through all layers and back, and waits for
nobody; then all warps update. This module says how many groups of warps and blocks do so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.resident_arguments import SmallArguments
from warpfit.backends.cuda.resident_config import SmallConfig
from warpfit.backends.cuda.resident_launch import (
    LaunchedRun,
    LaunchedSteps,
    ResidentLaunch,
    arguments_of,
)
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import TrainedNetwork, counted
from warpfit.errors import Obstacle

CLUSTERS, UNITS, MOST_OUTPUTS = (1, 2, 4), 64, 16
GROUP_ROWS, GROUP_THREADS, MOST_GROUPS = 64, 128, 3
HELPING_GROUPS = 2  # of warps; the last one keeps the record
# Of a multiprocessor; the least of a thread that helps; the most of one that holds weights, and
# those that it needs beside these and their optimizer state.
REGISTERS, LEAST_REGISTERS, MOST_REGISTERS, WORKING_REGISTERS = 65536, 80, 240, 88


@dataclass(frozen=True)
class SmallLaunch(ResidentLaunch):
    """How blocks and warps share a network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    cluster : int
        Blocks, which partition the rows of a batch.
    groups : int
        Of four warps each, which hold weights; the first take 64 rows each.
    """

    network: TrainedNetwork
    cluster: int
    groups: int

    kernel = "one_launch_small_sm90"
    replicas = 1
    looks_ahead = False

    @property
    def recorders(self) -> int:
        return self.cluster

    @property
    def block_rows(self) -> int:
        """Rows of a batch that a block has."""
        return padded(-(-self.network.batch // self.cluster))

    @property
    def row_groups(self) -> int:
        """Groups that take 64 of these each."""
        return -(-self.block_rows // GROUP_ROWS)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP_THREADS * (self.groups + HELPING_GROUPS)

    @property
    def tiles(self) -> list[int]:
        """Tiles of 16 units of each layer."""
        return [padded(units) // 16 for units in self.network.widths[1:]]

    @property
    def bundles(self) -> int:
        """Bundles of these: a tile of a layer for each block."""
        return sum(-(-tiles // self.cluster) for tiles in self.tiles)

    @property
    def tiles_of_group(self) -> int:
        """Tiles that a group has the weights of; one that helps has the outputs'."""
        return -(-(self.bundles - 1) // self.groups)

    @property
    def even_registers(self) -> int:
        """Registers that a thread is launched with."""
        return REGISTERS // self.threads // 8 * 8

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, as those that help leave some; and those for weights
        and their optimizer state.
        """
        left = HELPING_GROUPS * (self.even_registers - LEAST_REGISTERS) // self.groups
        most = min(MOST_REGISTERS, (self.even_registers + left) // 8 * 8)
        return most, 8 * (1 + self.network.slots) * self.tiles_of_group

    @property
    def helper_registers(self) -> int:
        """Registers that these leave a thread that helps."""
        taken = self.groups * (self.registers_of_thread[0] - self.even_registers)
        return (self.even_registers - taken // HELPING_GROUPS) // 8 * 8

    @property
    def room(self) -> int:
        """Registers that a thread has for weights and their optimizer state beside its rows, and
        sums of others.
        """
        sums = 8 * self.tiles_of_group if self.cluster > 1 else 0
        return self.registers_of_thread[0] - sums - WORKING_REGISTERS

    @cached_property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct SmallShared`` of the kernel."""
        network, rows, layers = self.network, GROUP_ROWS * self.row_groups, len(self.tiles)
        return {
            "inputs and gradients of layers": 2 * layers * rows * 128,
            "weights": layers * UNITS * 128,
            "batch": 2 * rows * self.x_stride,
            "settings": 2 * 16,
            "targets": 4 * rows * network.target_words,
            "losses": 160 * rows + 16 * padded(self.block_rows),
            "biases": 4 * (1 + network.slots) * layers * UNITS,
            "barriers": 4 * 8,
        }

    @property
    def received_bytes(self) -> int:
        """Bytes of ``struct Exchange`` of the kernel."""
        if self.cluster == 1:
            return 0
        sums = self.cluster * 32 * self.bundles * GROUP_THREADS
        biases = 2 * self.cluster * 256 * len(self.tiles)
        return sums + biases + 8 * (self.bundles + 3)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return up(up(sum(self.shared_parts.values()), 1024) + self.received_bytes, 1024)

    def fits(self, max_shared_bytes: int) -> bool:
        """Return whether all rows have a group, weights have registers, and the rest has shared
        memory.
        """
        has_registers = self.registers_of_thread[1] <= self.room
        has_groups = self.row_groups <= self.groups
        return has_groups and has_registers and self.shared_bytes <= max_shared_bytes

    @property
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps wait for each other."""
        layers, row_tiles = len(self.tiles) - 1, self.block_rows // 16
        return {
            "step": 1,
            "tile of rows": row_tiles,
            "tile behind another": max(0, row_tiles - GROUP_ROWS // 16),
            "tile of units": sum(self.tiles[:-1]),
            "layer of quotients": layers * self.network.is_adaptive,
            "group": self.groups,
            "other block": self.cluster - 1,
            "bundle exchanged": (self.bundles - 1) * (self.cluster > 1),
        }

    @property
    def config(self) -> SmallConfig:
        """The kernel's settings."""
        return SmallConfig(
            **self.network.settings,
            **self.network.layer_settings,
            cluster=self.cluster,
            groups=self.groups,
            group_registers=self.registers_of_thread[0],
            helper_registers=self.helper_registers,
            shared_bytes=self.shared_bytes,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> SmallArguments:
        return SmallArguments(**arguments_of(run, steps))

    def __str__(self) -> str:
        several = f"a cluster of {self.cluster} blocks that partition a batch, each of"
        blocks = several if self.cluster > 1 else "one block of"
        return (
            f"{blocks} {counted(self.groups, 'group')} of four warps, rows taken through all "
            f"layers by {counted(self.row_groups, 'group')}, {self.shared_bytes} bytes of shared "
            "memory"
        )


@lru_cache(maxsize=256)
def choose_small(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> SmallLaunch | Obstacle:
    """Return how to launch a small network's training, or what is in the way."""
    is_small = max(network.widths[:-1]) <= UNITS and network.outputs <= MOST_OUTPUTS
    is_plain = network.is_plain and not network.rate_in_velocity
    if generation(arch) != 90 or len(network.widths) < 3 or not is_small or not is_plain:
        return Obstacle(
            f"expected Hopper's tensor cores, a hidden layer, at most {UNITS} units a layer and "
            f"{MOST_OUTPUTS} outputs, half precision, no dropout, weights, penalty, clipping or "
            f"rate in velocities, got {network} on {arch}"
        )
    shapes = (
        SmallLaunch(network, cluster, groups)
        for cluster, groups in product(CLUSTERS, range(1, MOST_GROUPS + 1))
        if cluster <= -(-network.batch // 16)
    )
    fitting = [shape for shape in shapes if shape.fits(max_shared_bytes)]
    return min(
        fitting,
        key=lambda shape: shape.microseconds,
        default=Obstacle(f"expected what {CLUSTERS[-1]} small blocks have room for, got {network}"),
    )
