"""How a small network is trained as one kernel in one block, or what is in the way.

In `one_launch_block.cu` a warp takes 16 rows through all layers and back, and waits for nobody;
then all warps update.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from warpfit.backends.cuda.resident_arguments import BlockArguments
from warpfit.backends.cuda.resident_config import BlockConfig
from warpfit.backends.cuda.resident_launch import (
    LaunchedRun,
    LaunchedSteps,
    ResidentLaunch,
    too_large,
)
from warpfit.backends.cuda.trained_network import TrainedNetwork, padded, unsuited
from warpfit.errors import Obstacle

MOST_LAYERS, MOST_WARPS = 8, 16
# Numbers between two tiles of x.
GAP = 16
REGISTERS, MOST_REGISTERS = 65536, 255


@dataclass(frozen=True)
class BlockLaunch(ResidentLaunch):
    """How a block's warps share a network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    warps : int
        Of the block.
    """

    network: TrainedNetwork
    warps: int

    kernel = "one_launch_block"
    cluster = replicas = 1
    looks_ahead = False

    @property
    def row_warps(self) -> int:
        """Warps that take 16 rows each."""
        return padded(self.network.batch) // 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def tiles(self) -> int:
        """Tiles of 16 inputs by 8 units, and of biases."""
        return sum(
            (padded(inputs) // 16 + 1) * -(-units // 8)
            for inputs, units in pairwise(self.network.widths)
        )

    @property
    def tiles_of_warp(self) -> int:
        """Tiles of a warp."""
        return -(-self.tiles // self.warps)

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, and those for parameters and their optimizer state."""
        most = min(MOST_REGISTERS, REGISTERS // self.threads)
        return most, 4 * (1 + self.network.slots) * self.tiles_of_warp

    @cached_property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part."""
        widths, rows = self.network.widths, 16 * self.row_warps
        strides = [padded(width) + 8 for width in widths]
        return {
            "weights": 2 * sum(padded(width) * stride for width, stride in zip(widths, strides[1:])),
            "batches": 2 * 2 * (rows * strides[0] + GAP),
            "units": 2 * rows * sum(strides[1:-1]),
            "gradients": 2 * rows * sum(strides[1:]),
            "biases": 2 * sum(map(padded, widths[1:])),
        }

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return padded(sum(self.shared_parts.values()))

    @property
    def static_bytes(self) -> int:
        """Bytes of ``struct BlockShared``."""
        return 48 + 16 * self.row_warps * (8 * self.network.target_words + 8)

    @property
    def exchange_bytes(self) -> int:
        return 0

    @property
    def costs(self) -> dict[str, float]:
        return {"step": 1}

    @property
    def microseconds(self) -> float:
        return 0.1

    @property
    def config(self) -> BlockConfig:
        """The kernel's settings."""
        return BlockConfig(
            **self.network.settings,
            **self.network.layer_settings,
            dropouts=self.network.dropouts,
            gathers=False,
            x_stages=2,
            warps=self.warps,
            row_warps=self.row_warps,
            blocks=1,
            piece_m=1,
            piece_n=1,
            shared_numbers=self.shared_bytes // 2,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> BlockArguments:
        return BlockArguments(
            batches=steps.batches,
            targets=steps.targets,
            settings=steps.settings,
            places=run.places,
            record=steps.record,
            num_rows=steps.num_rows,
            num_epochs=steps.epochs,
            scale=run.loss_scale,
            rule=run.rule,
            loss=run.loss,
        )

    def __str__(self) -> str:
        return (
            f"one block of {self.warps} warps, of which {self.row_warps} take 16 rows each through "
            f"all layers, {self.shared_bytes} bytes of shared memory"
        )


@lru_cache(maxsize=256)
def choose_block(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> BlockLaunch | Obstacle:
    """Return how to launch a network's training in one block, or what is in the way."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if not network.is_plain or len(network.widths) - 1 > MOST_LAYERS:
        return Obstacle(
            f"expected at most {MOST_LAYERS} layers, without dropout, weights, penalties and "
            "clipping, for a network in one block"
        )
    rows = padded(network.batch) // 16
    if rows > MOST_WARPS:
        return Obstacle(
            f"expected batches of at most {16 * MOST_WARPS} rows for a network in one block, got "
            f"{network.batch}"
        )
    launch = BlockLaunch(network, max(rows, 12))
    if launch.shared_bytes + launch.static_bytes > max_shared_bytes:
        return too_large([launch], max_shared_bytes, "a batch and its units in one block")
    most, held = launch.registers_of_thread
    return launch
