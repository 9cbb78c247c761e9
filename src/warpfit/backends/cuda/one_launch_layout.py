"""How blocks and warps share a training run that is one kernel: tiles, registers, shared memory.

`one_launch.cu` is one block, or a cluster of them, that keeps a layer's weights in its registers;
this module says what each has in a layout, `one_launch.py` which layout a network gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpfit.backends.base import Activation
from warpfit.backends.cuda.arrays import power_of_two
from warpfit.backends.cuda.resident_arguments import LayerPlaces, OneLaunchArguments
from warpfit.backends.cuda.resident_config import OneLaunchConfig
from warpfit.backends.cuda.resident_launch import LaunchedRun, LaunchedSteps, ResidentLaunch
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import TrainedNetwork

# Registers of a multiprocessor; those that a thread needs beside the weights that it holds, one
# that holds none, such a one where row warps look ahead, and the most that one can have.
REGISTERS, WARPGROUP = 65536, 128
WORKING_REGISTERS, OTHER_REGISTERS, AHEAD_REGISTERS, MOST_REGISTERS = 44, 72, 104, 240


def hidden_units(network: TrainedNetwork) -> int:
    """Return the units of a network's hidden layer, or 0 if it has none."""
    return network.widths[1] if len(network.widths) == 3 else 0


@dataclass(frozen=True)
class OneLaunch(ResidentLaunch):
    """How blocks and warps share a network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    cluster : int
        Blocks, which partition the units of a hidden layer, or the features if there is none.
    warps_k, warps_u : int
        Groups of weight warps along a block's features, and along its units of the layer that takes
        them.
    row_warps, output_warps : int
        Warps that take tiles of 16 rows through the loss, and that update the output layer. One
        more fetches tiles.
    moves_registers : bool
        Whether weight warps take registers that the others leave.
    group : int
        Tiles that warps wait for together.
    looks_ahead : bool
        Whether products with a batch are found beside the step before.
    x_slots, sum_slots : int
        Tiles of x in shared memory at once, and of sums between weight warps and row warps.
    replicas : int
        Such clusters, which partition the rows of a batch and add up their gradients.
    feature_parts : int
        Blocks that divide the features, and multiply the units of all of them by wgmma, a whole
        batch at once. Slots of x are batches then.
    near_k : int
        Tiles of a weight warp along the features of which shared memory holds an adaptive
        optimizer's state.
    """

    network: TrainedNetwork
    cluster: int
    warps_k: int
    warps_u: int
    row_warps: int
    output_warps: int
    moves_registers: bool
    group: int
    looks_ahead: bool
    x_slots: int
    sum_slots: int
    replicas: int = 1
    near_k: int = 0
    feature_parts: int = 1

    kernel = "one_launch"

    @property
    def hidden(self) -> int:
        """Units of the hidden layer, or 0 if there is none."""
        return hidden_units(self.network)

    @property
    def activation(self) -> Activation:
        """The hidden layer's."""
        return self.network.activations[0] if self.network.activations else Activation("identity")

    @property
    def least_slots(self) -> int:
        """Tiles of x without which it does not run: an adaptive optimizer takes the gradients of
        all rows at once.
        """
        if self.feature_parts > 1:
            return 2
        return max(2, self.group, self.row_tiles if self.network.is_adaptive else 0)

    @property
    def kept(self) -> int:
        """Tiles of x that stay in shared memory until the backward pass; the others are fetched
        again.
        """
        keeps = self.feature_parts > 1 or self.x_slots >= self.row_tiles
        return self.row_tiles if keeps else 0

    @property
    def own_of_tile(self) -> int:
        """Rows of a tile whose loss one block finds: a power of two."""
        return min(16, power_of_two(-(-16 * self.row_tiles // self.cluster)))

    @property
    def target_steps(self) -> int:
        """Steps whose targets are in shared memory at once."""
        if self.feature_parts > 1:
            return self.x_slots
        loads = 2 * self.row_tiles - self.kept
        return -(-self.x_slots // loads) + (self.kept < self.row_tiles)

    @property
    def block_features(self) -> int:
        """Features that a block multiplies by, a multiple of 16."""
        return padded(-(-self.network.features // self.parts))

    @property
    def block_units(self) -> int:
        """Units of a block, a multiple of 16."""
        return padded(-(-self.hidden // self.cluster) if self.hidden else self.network.outputs)

    @property
    def parts(self) -> int:
        """Parts that a batch's features are divided among."""
        return self.feature_parts if self.hidden else self.cluster

    @property
    def chunk_rows(self) -> int:
        return 16 * self.row_tiles * (self.feature_parts > 1)

    @property
    def gram_bytes(self) -> int:
        """Bytes of the Gram matrix of a batch and the one before."""
        return self.network.gram_bytes * self.looks_ahead

    @property
    def settings_bytes(self) -> int:
        """Bytes of device memory for a step's settings: its rate, or all that an adaptive rule
        takes, and the scale of its Gram matrix.
        """
        return (16 if self.network.is_adaptive else 4) + 4 * self.looks_ahead

    @property
    def step_bytes(self) -> int:
        """Bytes of device memory for a step: batch, targets, settings, row of the record, and Gram
        matrix.
        """
        return super().step_bytes + self.gram_bytes

    @property
    def exchange_bytes(self) -> int:
        """Bytes of device memory for what replicas exchange: ``struct Exchange`` for each rank."""
        if self.replicas == 1:
            return 0
        weight_threads = 32 * self.warps_k * self.warps_u
        of_weights = 2 * self.tiles_of_warp * (self.replicas + 1) * weight_threads
        units, outputs = self.block_units // 16, padded(self.network.outputs) // 16
        of_outputs = units * (3 * outputs + 1) if self.hidden else outputs
        return 16 * (of_weights + 2 * self.replicas * of_outputs * 32) * self.cluster

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps_k * self.warps_u + self.row_warps + self.output_warps + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers that a thread of the weight warps may have, and one of the others, but for row
        warps that are groups of four.
        """
        even = min(255, REGISTERS // self.threads // 8 * 8)
        if not self.moves_registers:
            return even, even
        if self.has_row_groups:
            left = even * self.threads - AHEAD_REGISTERS * 32 * self.row_warps
            return min(MOST_REGISTERS, left // WARPGROUP - OTHER_REGISTERS), OTHER_REGISTERS
        whole = even * self.threads  # what the block starts with
        weight_threads = 32 * self.warps_k * self.warps_u
        other_threads = self.threads - weight_threads
        others = AHEAD_REGISTERS if self.looks_ahead else OTHER_REGISTERS
        own = min(MOST_REGISTERS, (whole - others * other_threads) // weight_threads // 8 * 8)
        return own, min(even, (whole - own * weight_threads) // other_threads // 8 * 8)

    @property
    def has_row_groups(self) -> bool:
        """Whether row warps have registers of their own."""
        return self.feature_parts > 1 and self.row_warps % 4 == 0

    @property
    def row_registers(self) -> int:
        """Registers that a thread of the row warps may have."""
        if not self.has_row_groups:
            return self.registers[1]
        even = min(255, REGISTERS // self.threads // 8 * 8)
        left = even * self.threads - WARPGROUP * sum(self.registers)
        return min(even, left // (32 * self.row_warps) // 8 * 8)

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread of the weight warps may have, and those for weights."""
        return self.registers[0], self.held

    @property
    def tiles_of_features(self) -> int:
        """Tiles along the features that a warp has."""
        return -(-(self.block_features // 16) // self.warps_k)

    @property
    def tiles_of_units(self) -> int:
        """Tiles along the units that a warp has of each."""
        return self.block_units * self.feature_parts // 16 // self.warps_u

    @property
    def tiles_of_warp(self) -> int:
        """Tiles of 16 by 16 weights that a warp holds."""
        return self.tiles_of_features * self.tiles_of_units

    @property
    def near_tiles(self) -> int:
        """Tiles along the features of which shared memory holds an adaptive optimizer's state."""
        held = (self.tiles_of_features - self.near_k) * self.warps_k
        return max(0, self.block_features // 16 - held)

    @property
    def held(self) -> int:
        """Registers of a thread for weights, their optimizer state, and their copies in half
        precision.

        Of replicas each has a part of the weights and velocities, but all of the gradient. With an
        adaptive optimizer registers have copies only while they need no more for `working`.
        """
        if self.network.is_adaptive:
            remembered = self.tiles_of_units * (self.tiles_of_features - self.near_k)
            return 8 * (self.tiles_of_warp + self.network.slots * remembered)
        in_float32 = 1 + self.network.slots
        if self.replicas == 1:
            return self.tiles_of_warp * (8 * in_float32 + 4)
        return self.tiles_of_warp * (8 + 4) + 8 * in_float32 * -(
            -self.tiles_of_warp // self.replicas
        )

    @property
    def working(self) -> int:
        """Registers of a thread of the weight warps beside those for weights.

        An adaptive optimizer's update has the gradients of all rows at once, and the sums of two
        tiles. Blocks that divide the features have the sums of all rows at once.
        """
        if not self.network.is_adaptive:
            return WORKING_REGISTERS + 4 * self.row_tiles * (self.feature_parts > 1)
        return (
            WORKING_REGISTERS
            + self.row_tiles * (4 * self.tiles_of_units + 1)
            + 16 * self.tiles_of_units
        )

    @property
    def pieces(self) -> int:
        """Parts of a slot that are fetched and given back one by one."""
        return -(-self.block_features // 64) if self.feature_parts > 1 else 1

    @property
    def sent_slots(self) -> int:
        """Steps of which blocks that divide the features leave sums for each other at once: memory
        has no room for more of a long batch.
        """
        return 2 if self.row_tiles <= 4 else 1

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a tile of x, or of a batch where blocks divide the features."""
        rows = 16 if self.feature_parts == 1 else 16 * self.row_tiles
        return rows * self.x_stride * 2

    @property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct Shared`` of the kernel."""
        network, units, outputs = self.network, self.block_units, padded(self.network.outputs)
        rows, own_tiles = 16 * self.row_tiles, -(-self.row_tiles // self.cluster)
        places = 1 + max(1, network.slots)  # of a bias, and of its optimizer state
        groups = self.row_tiles // self.group
        ring = self.x_slots * self.pieces
        barriers = ring // self.group + 1 + ring + self.sum_slots + own_tiles + groups + 5
        barriers += 1 if self.looks_ahead or network.is_adaptive else groups
        barriers += 2 * self.row_tiles if self.looks_ahead else self.sum_slots
        # Without a hidden layer, or other blocks, there is room for a vector, or a row.
        hidden, hidden_rows = (units, rows) if self.hidden else (4, 1)
        of_sums, of_units = (
            64 * self.sum_slots * self.warps_k * units,
            4 * hidden_rows * (units + 8),
        )
        if self.feature_parts > 1:
            barriers += 2 + self.sum_slots
            others = self.feature_parts - 1
            slots = self.sum_slots * self.feature_parts + self.sent_slots * others
            of_sums = 2 * self.sum_slots * units + 3 * rows * units * slots
            of_units = 2 * rows * units * (1 + 2 * self.feature_parts) + 16
        remembered = hidden * network.slots or 1
        own_rows = own_tiles * self.own_of_tile if self.cluster > 1 else 1
        return {
            "tiles of x": self.x_slots * self.slot_bytes,
            "sums of the first product": of_sums,
            "gradients of outputs": 2 * rows * (outputs + 8),
            "biases of outputs": 4 * places * outputs,
            "losses": 16 * rows,
            "optimizer state": 64 * self.network.slots * units * self.near_tiles,
            "targets": 4 * self.target_steps * own_tiles * self.own_of_tile * network.target_words,
            "barriers": 8 * barriers,
            "hidden units and their gradients": of_units,
            "output layer": 4 * hidden * (outputs + 8) + 4 * (hidden + remembered) * outputs,
            "hidden biases": 4 * places * hidden,
            "parts of outputs": 4 * own_rows * self.cluster * outputs,
        }

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; barriers begin at a multiple of 8 bytes."""
        return padded(sum(up(size, 8) for size in self.shared_parts.values()))

    @property
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps and blocks wait for each other."""
        tiles, rows, are_many = self.tiles_of_warp, self.row_tiles, self.replicas > 1
        is_divided = self.feature_parts > 1
        return {
            "step": 1,
            "exchange": self.cluster > 1,
            "tile of rows": 0 if self.looks_ahead else rows,
            "product": 0 if self.looks_ahead else rows * tiles,
            # A warpgroup's wgmma takes less time; of many rows x and sums of others come late.
            "product ahead": rows * tiles * self.looks_ahead * (rows / 12 if is_divided else 1),
            "tile of weights": tiles,
            "velocity": tiles * self.network.momentum,
            "tile of quotients": tiles * self.network.is_adaptive,
            "unit tile": rows * (self.block_units // 16) if self.hidden else 0,
            "byte fetched again": 0 if self.kept else 2 * rows * self.slot_bytes,
            "byte gathered": 6 * self.network.batch * self.network.features,
            "replicas": are_many,
            "weights exchanged": tiles * are_many,
            "gradients exchanged": tiles * self.replicas * are_many,
        }

    @property
    def config(self) -> OneLaunchConfig:
        """The kernel's settings."""
        return OneLaunchConfig(
            **self.network.settings,
            features=self.network.features,
            hidden=self.hidden,
            activation=self.activation.name,
            cluster=self.cluster,
            feature_parts=self.feature_parts,
            replicas=self.replicas,
            warps_k=self.warps_k,
            warps_u=self.warps_u,
            row_warps=self.row_warps,
            output_warps=self.output_warps,
            weight_registers=self.registers[0] if self.moves_registers else 0,
            row_registers=self.row_registers if self.moves_registers else 0,
            other_registers=self.registers[1] if self.moves_registers else 0,
            group=self.group,
            ahead=self.looks_ahead,
            x_slots=self.x_slots,
            kept=self.kept,
            near_tiles=self.near_tiles,
            sum_slots=self.sum_slots,
            sent_slots=self.sent_slots,
            own_of_tile=self.own_of_tile,
            shared_bytes=self.shared_bytes,
            exchange_bytes=self.exchange_bytes // self.cluster,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> OneLaunchArguments:
        is_adaptive = self.network.is_adaptive
        gram, gram_scales = steps.gram
        return OneLaunchArguments(
            batches=steps.batches,
            targets=steps.targets,
            rules=steps.settings if is_adaptive else steps.rates,
            first=_layer_arrays(run, 0),
            last=_layer_arrays(run, 1),
            record=steps.record,
            gram=gram,
            gram_scales=gram_scales,
            exchanges=run.zeros(self.exchange_bytes) if self.replicas > 1 else None,
            num_rows=steps.num_rows,
            num_epochs=steps.epochs,
            scale=run.loss_scale if is_adaptive else run.scale_of_weights,
            rule=run.rule,
            slope=self.activation.slope,
            loss=run.loss,
        )

    def __str__(self) -> str:
        blocks = (
            "one block," if self.cluster == 1 else f"a cluster of {self.cluster} blocks, in each"
        )
        if self.replicas > 1:
            whole, each = (
                ("blocks", "each")
                if self.cluster == 1
                else (f"clusters of {self.cluster} blocks", "each block")
            )
            blocks = f"{self.replicas} {whole} that partition a batch, in {each}"
        ahead = ", products of a batch ahead" if self.looks_ahead else ""
        warps, kept = (
            f"{self.warps_k}x{self.warps_u} warps over features and units",
            "tiles of rows",
        )
        if self.feature_parts > 1:
            share = "half" if self.feature_parts == 2 else "a quarter"
            warps, kept = f"{warps}, {share} of the features by wgmma", "batches"
        return (
            f"{blocks} {warps}, {self.x_slots} {kept} in {self.shared_bytes} bytes of shared "
            f"memory{ahead}"
        )


def _layer_arrays(run: LaunchedRun, layer: int) -> LayerPlaces:
    """Return where a layer's weights and biases lie, and two slots of each; None for what there is
    not.
    """
    groups = [
        group[2 * layer : 2 * layer + 2] or [None, None] for group in (run.parameters, *run.slots)
    ]
    (w, b), (w_slot, b_slot), (w_slot2, b_slot2) = [*groups, [None, None], [None, None]][:3]
    return w, b, w_slot, w_slot2, b_slot, b_slot2
