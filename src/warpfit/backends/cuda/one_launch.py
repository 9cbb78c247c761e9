"""How a whole training run is launched as one kernel: sizes, tiles, shared memory, and what does
not fit.

`one_launch.cu` is one block, or a cluster of them, that keeps a layer's weights in its registers;
this module says how blocks and warps share them, or what is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, Activation
from warpfit.backends.cuda.arrays import power_of_two
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.resident_arguments import LayerPlaces, OneLaunchArguments
from warpfit.backends.cuda.resident_config import OneLaunchConfig
from warpfit.backends.cuda.resident_launch import LaunchedRun, LaunchedSteps, ResidentLaunch
from warpfit.backends.cuda.trained_network import (
    CLUSTERS,
    TrainedNetwork,
    most_blocks,
    padded,
    replicas_with_rows,
    unsuited,
    up,
)
from warpfit.errors import Obstacle, required

__all__ = ["OneLaunch", "choose", "suits", "variants"]

# Warps of a block: those that hold weights; row warps and output warps, which together with the
# loader fill groups of four, as registers are given to warps.
WEIGHT_WARPS = (4, 8)
OTHER_WARPS = ((1, 2), (2, 1), (4, 3), (8, 3))
MOST_WARPS = 16
# Registers of a multiprocessor; those that a thread needs beside the weights that it holds, one
# that holds none, such a one where row warps look ahead, and the most that one can have.
REGISTERS = 65536
WORKING_REGISTERS, OTHER_REGISTERS, AHEAD_REGISTERS, MOST_REGISTERS = 44, 72, 104, 240
# Those that it needs at least to multiply, where an adaptive optimizer's update needs more.
MULTIPLYING_REGISTERS = 12
# Tiles of rows that may wait between weight warps and row warps, and those that are multiplied
# together.
SUM_SLOTS = (8, 4, 2, 1)
GROUPS = (8, 4, 2, 1)
# Tiles of x that are fetched ahead where a batch is one.
MOST_AHEAD = 4
# Without a hidden layer, a block with fewer features costs more to talk to than it saves.
LEAST_FEATURES = 48
# To look ahead, a row warp can hold as many units of a block; and it pays where weight warps have
# as many tiles.
AHEAD_UNITS, AHEAD_TILES = 32, 4
# Replicas that partition a batch of so many tiles; threads have registers for what so many send,
# and no more.
REPLICAS = ((32, 8), (12, 4), (0, 1))
MOST_REPLICAS = 8


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

    kernel = "one_launch"

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.cluster * self.replicas

    @property
    def hidden(self) -> int:
        """Units of the hidden layer, or 0 if there is none."""
        return _hidden(self.network)

    @property
    def activation(self) -> Activation:
        """The hidden layer's."""
        return self.network.activations[0] if self.network.activations else Activation("identity")

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows that a replica has of a batch."""
        return -(-self.network.batch // (16 * self.replicas))

    @property
    def least_slots(self) -> int:
        """Tiles of x without which it does not run: an adaptive optimizer takes the gradients of
        all rows at once.
        """
        return max(2, self.group, self.row_tiles if self.network.is_adaptive else 0)

    @property
    def kept(self) -> int:
        """Tiles of x that stay in shared memory until the backward pass; the others are fetched
        again.
        """
        return self.row_tiles if self.x_slots >= self.row_tiles else 0

    @property
    def own_of_tile(self) -> int:
        """Rows of a tile whose loss one block finds: a power of two."""
        return min(16, power_of_two(-(-16 * self.row_tiles // self.cluster)))

    @property
    def target_steps(self) -> int:
        """Steps whose targets are in shared memory at once."""
        loads = 2 * self.row_tiles - self.kept
        return -(-self.x_slots // loads) + (self.kept < self.row_tiles)

    @property
    def block_features(self) -> int:
        """Features that a block multiplies by, a multiple of 16."""
        return padded(
            self.network.features if self.hidden else -(-self.network.features // self.cluster)
        )

    @property
    def block_units(self) -> int:
        """Units of a block, a multiple of 16."""
        return padded(-(-self.hidden // self.cluster) if self.hidden else self.network.outputs)

    @property
    def parts(self) -> int:
        """Parts that a batch's features are divided among."""
        return 1 if self.hidden else self.cluster

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch of x in device memory."""
        return 2 * self.network.batch * self.parts * (self.block_features + 8)

    @property
    def gram_bytes(self) -> int:
        """Bytes of the Gram matrix of a batch and the one before."""
        return self.network.gram_bytes * self.looks_ahead

    @property
    def step_bytes(self) -> int:
        """Bytes of device memory for a step: batch, Gram matrix and scale, targets, rate and row of
        the record.
        """
        targets = 4 * self.network.batch * self.network.target_words
        record = 24 * self.replicas
        return (
            self.batch_bytes + self.gram_bytes + targets + record + (8 if self.looks_ahead else 4)
        )

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
        """Registers that a thread of the weight warps may have, and one of the others."""
        even = min(255, REGISTERS // self.threads // 8 * 8)
        if not self.moves_registers:
            return even, even
        whole = even * self.threads  # what the block starts with
        weight_threads = 32 * self.warps_k * self.warps_u
        other_threads = self.threads - weight_threads
        others = AHEAD_REGISTERS if self.looks_ahead else OTHER_REGISTERS
        own = min(MOST_REGISTERS, (whole - others * other_threads) // weight_threads // 8 * 8)
        return own, min(even, (whole - own * weight_threads) // other_threads // 8 * 8)

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
        return self.block_units // 16 // self.warps_u

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
        tiles.
        """
        if not self.network.is_adaptive:
            return WORKING_REGISTERS
        return (
            WORKING_REGISTERS
            + self.row_tiles * (4 * self.tiles_of_units + 1)
            + 16 * self.tiles_of_units
        )

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a tile of x."""
        return 16 * (self.block_features + 8) * 2

    @property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct Shared`` of the kernel."""
        network, units, outputs = self.network, self.block_units, padded(self.network.outputs)
        rows, own_tiles = 16 * self.row_tiles, -(-self.row_tiles // self.cluster)
        places = 1 + max(1, network.slots)  # of a bias, and of its optimizer state
        groups = self.row_tiles // self.group
        barriers = (
            self.x_slots // self.group + 1 + self.x_slots + self.sum_slots + own_tiles + groups + 5
        )
        barriers += 1 if self.looks_ahead or network.is_adaptive else groups
        barriers += 2 * self.row_tiles if self.looks_ahead else self.sum_slots
        # Without a hidden layer, or other blocks, there is room for a vector, or a row.
        hidden, hidden_rows = (units, rows) if self.hidden else (4, 1)
        remembered = hidden * network.slots or 1
        own_rows = own_tiles * self.own_of_tile if self.cluster > 1 else 1
        return {
            "tiles of x": self.x_slots * self.slot_bytes,
            "sums of the first product": 64 * self.sum_slots * self.warps_k * units,
            "gradients of outputs": 2 * rows * (outputs + 8),
            "biases of outputs": 4 * places * outputs,
            "losses": 16 * rows,
            "optimizer state": 64 * self.network.slots * units * self.near_tiles,
            "targets": 4 * self.target_steps * own_tiles * self.own_of_tile * network.target_words,
            "barriers": 8 * barriers,
            "hidden units and their gradients": 4 * hidden_rows * (units + 8),
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
        return {
            "step": 1,
            "exchange": self.cluster > 1,
            "tile of rows": 0 if self.looks_ahead else rows,
            "product": 0 if self.looks_ahead else rows * tiles,
            "product ahead": rows * tiles if self.looks_ahead else 0,
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
            replicas=self.replicas,
            warps_k=self.warps_k,
            warps_u=self.warps_u,
            row_warps=self.row_warps,
            output_warps=self.output_warps,
            weight_registers=self.registers[0] if self.moves_registers else 0,
            other_registers=self.registers[1] if self.moves_registers else 0,
            group=self.group,
            ahead=self.looks_ahead,
            x_slots=self.x_slots,
            kept=self.kept,
            near_tiles=self.near_tiles,
            sum_slots=self.sum_slots,
            own_of_tile=self.own_of_tile,
            shared_bytes=self.shared_bytes,
            exchange_bytes=self.exchange_bytes // self.cluster,
        )

    def gather_defines(self, source: str) -> dict[str, Any]:
        """Return the defines of the kernel that gathers the batches, from x of dtype `source`."""
        return self.network.gather_defines(source, self.parts, self.block_features)

    @property
    def gram_defines(self) -> dict[str, Any]:
        """The defines of the kernel that finds the Gram matrices."""
        return self.network.gram_defines(self.parts, self.block_features)

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
        return (
            f"{blocks} {self.warps_k}x{self.warps_u} warps over features and units, {self.x_slots} "
            f"tiles of rows in {self.shared_bytes} bytes of shared memory{ahead}"
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


@lru_cache(maxsize=256)
def choose(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> OneLaunch | Obstacle:
    """Return how to launch the training of a network with no hidden layer or one, or what is in the
    way.
    """
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if not suits(network):
        return Obstacle(
            "expected one or two layers, without dropout, sample weights and clipping, got "
            f"{network}"
        )
    tiles = -(-network.batch // 16)
    wanted = next(count for least, count in REPLICAS if tiles >= least)
    if network.is_adaptive:
        if wanted > 1:
            return Obstacle(
                f"expected {network.optimizer} with batches that replicas need not partition, got "
                f"{network.batch} rows"
            )
        return _best(network, arch, max_shared_bytes, num_multiprocessors, 1)
    for replicas in range(wanted, MOST_REPLICAS):  # more need less each
        found = _best(network, arch, max_shared_bytes, num_multiprocessors, replicas)
        if isinstance(found, OneLaunch):
            return found
    return _best(network, arch, max_shared_bytes, num_multiprocessors, MOST_REPLICAS)


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    return len(network.widths) <= 3 and network.is_plain and not network.rate_in_velocity


def _hidden(network: TrainedNetwork) -> int:
    """Return the units of a network's hidden layer, or 0 if it has none."""
    return network.widths[1] if len(network.widths) == 3 else 0


def _best(
    network: TrainedNetwork,
    arch: str,
    max_shared_bytes: int,
    num_multiprocessors: int,
    replicas: int,
) -> OneLaunch | Obstacle:
    """Return the best shape of so many replicas, or fewer, or what is in the way if none fits."""
    shapes = [
        shape
        for cluster in _clusters(network, arch)
        for shape in _shapes(
            network,
            cluster,
            arch,
            replicas_with_rows(network.batch, cluster, num_multiprocessors, replicas),
        )
    ]
    held = [shape for shape in shapes if shape.held + shape.working <= shape.registers[0]]
    if not held:
        least = min(shapes, key=lambda shape: shape.held + shape.working - shape.registers[0])
        threads = 32 * least.warps_k * least.warps_u
        most = 4 * max(0, least.registers[0] - least.working) * threads
        return Obstacle(
            f"expected at most {most} bytes of weights for the registers of a block, got "
            f"{4 * least.held * threads}"
        )
    filled = [_filled(shape, max_shared_bytes) for shape in held]
    if any(filled):
        return max((shape for shape in filled if shape), key=_preference)
    least = min(held, key=lambda shape: shape.shared_bytes)
    return Obstacle(
        f"expected at most {max_shared_bytes} bytes of shared memory for a batch and its units, "
        f"got {least.shared_bytes}"
    )


def _preference(shape: OneLaunch) -> Any:
    """Return what is larger for the better of two shapes that fit, as measured: see
    docs/one-launch.md.
    """
    is_worth_it = bool(shape.hidden) or shape.network.features >= LEAST_FEATURES * shape.cluster
    return (
        shape.cluster if is_worth_it else -shape.cluster,
        shape.looks_ahead,
        -shape.tiles_of_warp,
        -shape.near_tiles,
        min(shape.row_warps, shape.row_tiles),
        -shape.threads,
        -shape.warps_k,
    )


def _filled(shape: OneLaunch, max_shared_bytes: int) -> OneLaunch | None:
    """Return the shape with as many slots as fit and make sense, or None if the least number does
    not fit.
    """
    shapes = [
        own for sum_slots in SUM_SLOTS if (own := _with_sums(shape, sum_slots, max_shared_bytes))
    ]
    if not shapes:
        return None
    filled = shapes[0]
    # If tiles come twice, too few groups could be on their way: one by one, then.
    is_slow = not filled.kept and filled.x_slots < 3 * filled.group
    if shape.network.is_adaptive:
        # Its tiles are free again all at once, so that as many as possible of the next batch had
        # better be there, and the others be taken one by one as they come.
        filled = max(shapes, key=lambda own: own.x_slots)
        is_slow = filled.x_slots < 2 * filled.row_tiles
    return (
        _filled(replace(shape, group=1), max_shared_bytes)
        if is_slow and shape.group > 1
        else filled
    )


def _with_sums(shape: OneLaunch, sum_slots: int, max_shared_bytes: int) -> OneLaunch | None:
    """Return the shape with so many slots for sums and as many for x as fit, or None if these are
    too few.
    """
    row_tiles = shape.row_tiles
    if shape.looks_ahead:
        # With room for two batches and no more, tiles would come too late.
        least, most, least_sums = 2 * row_tiles + -(-row_tiles // 2), 3 * row_tiles, 1
    else:
        least, most, least_sums = (
            shape.least_slots,
            2 * row_tiles,
            max(shape.row_warps, shape.group),
        )
    most = max(MOST_AHEAD, most)
    is_needless = sum_slots > 1 and sum_slots >= 2 * row_tiles * (1 + shape.looks_ahead)
    if is_needless or sum_slots < least_sums:
        return None
    empty = replace(shape, sum_slots=sum_slots, x_slots=0)
    slots = min(most, (max_shared_bytes - empty.shared_bytes) // empty.slot_bytes)
    while slots >= least and replace(empty, x_slots=slots).shared_bytes > max_shared_bytes:
        slots -= 1
    # The most sums only where the next batch has room beside them.
    if slots == most or (slots >= least and sum_slots < max(SUM_SLOTS)):
        return replace(empty, x_slots=slots)
    return None


def _clusters(network: TrainedNetwork, arch: str) -> list[int]:
    """Return the numbers of blocks that have 16 units or features each."""
    parts = padded(_hidden(network) or network.features) // 16
    return [size for size in CLUSTERS if size <= min(most_blocks(arch), max(1, parts))]


def _shapes(network: TrainedNetwork, cluster: int, arch: str, replicas: int) -> list[OneLaunch]:
    """Return the ways to share a block's work out to warps, with the least shared memory."""
    shapes = []
    for weight_warps, warps_u, others in product(WEIGHT_WARPS, (1, 2, 4, 8), OTHER_WARPS):
        num_warps = weight_warps + sum(others) + 1
        if weight_warps % warps_u == 0 and num_warps <= MOST_WARPS:
            moves = generation(arch) >= 90 and num_warps > 8  # no thread can have more than 255
            warps_k = weight_warps // warps_u
            shape = OneLaunch(
                network, cluster, warps_k, warps_u, *others, moves, 1, False, 2, 1, replicas
            )
            if shape.block_units // 16 % warps_u == 0:
                shapes.append(_least(_held(shape)))
                if _may_look_ahead(shape):
                    shapes.append(_least(replace(shape, looks_ahead=True)))
    return shapes


def _may_look_ahead(shape: OneLaunch) -> bool:
    """Return whether a shape can look ahead, and it pays: see docs/one-launch.md."""
    can = (
        shape.hidden > 0
        and not shape.network.is_adaptive
        and not shape.network.is_cut
        and shape.replicas == 1
        and shape.row_tiles <= shape.row_warps
        and shape.block_units <= AHEAD_UNITS
    )
    return can and shape.tiles_of_warp >= AHEAD_TILES


def _held(shape: OneLaunch) -> OneLaunch:
    """Return the shape with as much in registers of an adaptive optimizer's state as there is room
    for.
    """
    if not shape.network.is_adaptive:
        return shape
    shapes = [replace(shape, near_k=near) for near in range(shape.tiles_of_features + 1)]
    return next((own for own in shapes if own.held + own.working <= own.registers[0]), shapes[-1])


def _least(shape: OneLaunch) -> OneLaunch:
    """Return the shape with the least shared memory."""
    group = _group(shape)
    sum_slots = min(count for count in SUM_SLOTS if count >= max(shape.row_warps, group))
    shape = replace(shape, group=group, sum_slots=sum_slots)
    return replace(shape, x_slots=shape.least_slots)


def _group(shape: OneLaunch) -> int:
    """Return how many tiles weight warps multiply together: as many as their sums have
    registers.
    """
    left = shape.registers[0] - shape.held - WORKING_REGISTERS
    if shape.network.is_adaptive:
        left = shape.registers[0] - shape.held - 4 * shape.tiles_of_warp - MULTIPLYING_REGISTERS
    of_tile = 12 + 8 * max(1, shape.block_units // 16 // shape.warps_u)
    return next(
        (
            group
            for group in GROUPS
            if shape.row_tiles % group == 0
            and shape.row_warps % group == 0
            and group * of_tile <= left
        ),
        1,
    )


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return a choice of what a run compiles: each network has its own kernel."""
    base = TrainedNetwork(
        "float16", (64, 64, 10), (Activation("relu"),), (False,), 32, "cross_entropy"
    )
    linear = replace(base, widths=(784, 10), activations=(), drops=(), batch=64)
    mnist = replace(base, widths=(784, 256, 10))
    halves = [replace(base, dtype=dtype) for dtype in HALF_DTYPES]
    networks = [*halves, *(replace(base, activations=(Activation(name),)) for name in ACTIVATIONS)]
    momentum: dict[str, Any] = {"momentum": True, "slots": 1}
    adam: dict[str, Any] = {"optimizer": "adam", "slots": 2}
    networks += [
        replace(base, **adam),
        replace(base, **adam, decays=True, dtype="bfloat16", loss="mse"),
        replace(base, optimizer="rmsprop", **momentum),
        replace(linear, **adam),
        replace(mnist, **adam, batch=64),
        replace(mnist, **adam, batch=96, decays=True),
        replace(base, **momentum),
        replace(base, **momentum, nesterov=True, loss="mse", widths=(64, 64, 1)),
        replace(base, smoothed=True),
        *(replace(base, loss=loss) for loss in ("absolute_error", "huber", "binary_cross_entropy")),
        linear,
        replace(linear, dtype="bfloat16", **momentum),
        replace(linear, batch=128),
        replace(mnist, batch=64),
        replace(mnist, batch=64, **momentum),
        replace(mnist, batch=8),
        replace(mnist, **momentum, nesterov=True),
        replace(mnist, batch=512),
        replace(mnist, batch=1024, **momentum),
        replace(linear, batch=1000),
    ]
    single_blocks = (
        *halves,
        replace(base, widths=(64, 10), activations=(), drops=()),
        replace(base, batch=512),
    )
    launches = [
        required(choose(network, "sm_90a", 227 << 10, 132)) for network in dict.fromkeys(networks)
    ]
    launches += [required(choose(network, "sm_80", 163 << 10, 108)) for network in single_blocks]
    found: list[tuple[str, dict[str, Any]]]
    found = [("gram_batches", launch.gram_defines) for launch in launches if launch.looks_ahead]
    found += [
        (
            "gather_batches",
            required(choose(network, "sm_90a", 227 << 10, 132)).gather_defines(source),
        )
        for network in (*halves, linear)
        for source in ("uint8", "float16", "float32", "float64")
    ]
    gathering = [(name, {key: str(own) for key, own in values.items()}) for name, values in found]
    return [*((launch.kernel, launch.config.settings()) for launch in launches), *gathering]
