"""How blocks and warps share a training run of many layers that is one kernel: tiles, registers,
shared memory.

`one_launch_layers.cu` is one block, or a cluster of them, that keeps all weights in its registers
and goes layer by layer; this module says what each has in a layout, `one_launch_layers.py` which
layout a network gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from warpfit.backends.cuda.prices import expected_microseconds
from warpfit.backends.cuda.resident_arguments import LayersArguments
from warpfit.backends.cuda.resident_config import LayersConfig
from warpfit.backends.cuda.resident_launch import (
    STOPPING_STATE_BYTES,
    LaunchedRun,
    LaunchedSteps,
    ResidentLaunch,
    passes_arguments_of,
)
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import TrainedNetwork, counted

# Warps of a block: all take part in everything. With the best number of blocks, 16 gain 4 % at most
# and lose up to 16.
WARPS = 8
REGISTERS, MOST_REGISTERS = 65536, 255
# What a thread needs beside its weights and their optimizer state.
WORKING_REGISTERS, UPDATING_REGISTERS = 80, 96
# Units lie, and go from block to block, in chunks of 16 bytes.
CHUNK = 8


@dataclass(frozen=True)
class Layer:
    """What a block has of a layer: ``struct Shape`` of the kernel."""

    units: int
    blocks: int  # that partition it
    has_own_gradients: bool

    @property
    def chunks(self) -> int:
        """Chunks of units."""
        return -(-self.units // CHUNK)

    @property
    def block_units(self) -> int:
        """Units of a block that has the most."""
        return self.units if self.blocks == 1 else CHUNK * -(-self.chunks // self.blocks)

    @property
    def is_in_all(self) -> bool:
        """Whether each block has units of it."""
        return self.chunks >= self.blocks

    @property
    def width(self) -> int:
        """Units, for tensor cores."""
        return padded(self.units)

    @property
    def block_width(self) -> int:
        """Units of the block, for tensor cores."""
        return padded(self.block_units)

    @property
    def reach(self) -> int:
        """Units in shared memory: tiles of 16 may begin at any chunk."""
        least, with_one_more = divmod(self.chunks, self.blocks)
        last = min(self.chunks, self.blocks) - 1
        return max(self.width, CHUNK * (last * least + min(last, with_one_more)) + self.block_width)

    @property
    def gradient_reach(self) -> int:
        """Gradients in shared memory."""
        return self.block_width if self.has_own_gradients else self.reach


@dataclass(frozen=True)
class LayersLaunch(ResidentLaunch):
    """How blocks and warps share a network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    cluster : int
        Blocks, which partition the units of each hidden layer.
    x_slots : int
        Batches in shared memory at once.
    unit_copies : int
        Places for the first layer's units; with one, blocks meet before they send them, as they
        must where some have none to send.
    near_tiles : int
        Tiles of weights of a warp of which shared memory holds the optimizer state.
    replicas : int
        Clusters, which partition the rows of a batch.
    validates : bool
        Whether it goes over validation data after each epoch that is reported.
    stops : bool
        Whether the kernel itself decides when the run is over.
    """

    network: TrainedNetwork
    cluster: int
    x_slots: int
    unit_copies: int
    near_tiles: int = 0
    replicas: int = 1
    validates: bool = False
    stops: bool = False

    kernel = "one_launch_layers"
    warps = WARPS
    talks, looks_ahead = True, False

    @property
    def cards(self) -> int:
        """Cards that partition a batch, with as many replicas each."""
        return self.network.cards

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows that a replica has of a batch."""
        return -(-self.network.batch // (16 * self.replicas * self.cards))

    @property
    def recorders(self) -> int:
        """Rows of the record of a step, which are added up."""
        return self.replicas * (self.cluster if self.network.penalized else 1)

    @cached_property
    def layers(self) -> list[Layer]:
        """What a block has of each layer."""
        *hidden, outputs = self.network.widths[1:]
        found = [
            Layer(units, self.cluster, self.cluster > 1 and idx == 0)
            for idx, units in enumerate(hidden)
        ]
        return [*found, Layer(outputs, 1, False)]

    @property
    def may_keep_apart(self) -> bool:
        """Whether all blocks have units of the first layer, which tell the others that they are
        done with a batch.
        """
        return self.layers[0].is_in_all

    @cached_property
    def matrices(self) -> list[tuple[int, int]]:
        """Tiles along features and units of all matrices that a block multiplies by."""
        layers = self.layers
        first = (padded(self.network.features), layers[0].block_width)
        forward = [(below.width, above.block_width) for below, above in pairwise(layers)]
        backward = [(above.width, below.block_width) for below, above in pairwise(layers)]
        return [(features // 16, units // 16) for features, units in (first, *forward, *backward)]

    def groups(self, feature_tiles: int, unit_tiles: int) -> tuple[int, int]:
        """Return how many groups of warps partition a matrix along features and units, as the
        kernel finds them.
        """

        def tiles_of_warp(groups: int) -> int:
            return -(-feature_tiles // (self.warps // groups)) * (unit_tiles // groups)

        sizes = [2**power for power in range(self.warps.bit_length())]
        along_units = min(
            (size for size in sizes if unit_tiles % size == 0),
            key=lambda size: (tiles_of_warp(size), -size),
        )
        return min(self.warps // along_units, feature_tiles), along_units

    @cached_property
    def tiles_of_matrices(self) -> list[int]:
        """Tiles of 16 by 16 weights that a warp holds of each of them."""
        tiles = []
        for feature_tiles, unit_tiles in self.matrices:
            along_features, along_units = self.groups(feature_tiles, unit_tiles)
            tiles.append(-(-feature_tiles // along_features) * (unit_tiles // along_units))
        return tiles

    @property
    def tiles_of_warp(self) -> int:
        """Tiles that a warp holds of all."""
        return sum(self.tiles_of_matrices)

    @property
    def forward_tiles(self) -> int:
        """Those of the forward pass."""
        return sum(self.tiles_of_matrices[: len(self.layers)])

    @property
    def own_quads(self) -> int:
        """Quads of weights that a thread of a replica updates, and has in float32."""
        return -(-2 * self.forward_tiles // self.replicas)

    @property
    def least_registers(self) -> int:
        """Registers without which a thread cannot hold its weights."""
        held = 8 * self.tiles_of_warp if self.replicas == 1 else self.registers_of_thread[1]
        return held + WORKING_REGISTERS

    @property
    def held_tiles(self) -> int:
        """Tiles of weights of a warp of which registers hold the optimizer state."""
        if not self.network.slots or self.replicas > 1:
            return 0
        left = max(0, self.registers - UPDATING_REGISTERS - 8 * self.tiles_of_warp)
        return min(self.tiles_of_warp, left // (8 * self.network.slots))

    @property
    def far_tiles(self) -> int:
        """Those of which neither registers nor shared memory have it."""
        if not self.network.slots or self.replicas > 1:
            return 0
        return self.tiles_of_warp - self.held_tiles - self.near_tiles

    @property
    def slot_bytes(self) -> int:
        """Bytes of the optimizer state of a tile of each warp."""
        return 4 * 8 * self.network.slots * self.threads

    @property
    def far_bytes(self) -> int:
        """Bytes of device memory for the optimizer state of the last tiles."""
        return self.cluster * self.far_tiles * self.slot_bytes

    @property
    def registers(self) -> int:
        """Registers that a thread may have."""
        return min(MOST_REGISTERS, REGISTERS // self.threads)

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, and those for weights and their optimizer state.

        Of replicas each weight's 16 bits, and in float32 what the thread owns, with its places on
        the backward pass.
        """
        slots = self.network.slots
        if self.replicas == 1:
            return self.registers, 8 * (self.tiles_of_warp + self.held_tiles * slots)
        sums = 4 * (self.network.clips or self.cards > 1)
        held = 4 * self.network.terms * self.tiles_of_warp
        return self.registers, held + (4 * (1 + slots) + 2 + sums) * self.own_quads

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @cached_property
    def sums(self) -> int:
        """Parts of 512 bytes that the warps leave of the largest product.

        Each is of 16 rows, for each group along the features, by 8 units.
        """
        parts, to_units = [], (*self.layers, *self.layers[:-1])
        for (features, unit_tiles), layer in zip(self.matrices, to_units, strict=True):
            along_features, along_units = self.groups(features, unit_tiles)
            chunks = -(-layer.block_units // CHUNK) if along_units == 1 else 2 * unit_tiles
            parts.append(along_features * self.row_tiles * chunks)
        return max(parts)

    @cached_property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct Shared`` of the kernel."""
        rows, slots = 16 * self.row_tiles, max(1, self.network.slots)
        numbers = 2 * self.network.terms * rows
        layers, hidden = self.layers, self.layers[:-1]
        reach = sum(
            layer.reach * (self.unit_copies if layer.has_own_gradients else 1) for layer in hidden
        )
        return {
            "batches of x": 2 * self.network.terms * self.x_slots * rows * self.x_stride,
            "parts of products": 512 * self.sums,
            "hidden units": numbers * reach,
            "gradients": numbers * sum(layer.gradient_reach for layer in layers),
            "derivatives": numbers * sum(up(layer.block_units, CHUNK) for layer in hidden),
            "biases": 4 * (1 + slots) * sum(layer.block_width for layer in layers),
            "optimizer state": self.near_tiles * self.slot_bytes,
            "losses and targets": 16 * rows
            + 4 * self.x_slots * self.target_rows * self.network.target_words,
            "dropout and norms": 16 * len(layers) + 4 * self.warps + 8 * self.cluster,
            "powers of two": up(24 * len(layers), 16) * (self.network.terms > 1),
            "class weights": (4 * padded(self.network.outputs) + 16) * self.network.class_weights,
            "early stopping": STOPPING_STATE_BYTES * self.stops,
            "barriers": 32 * len(hidden) + 8 + 8 * max(2, self.x_slots),
        }

    @property
    def target_rows(self) -> int:
        """Rows whose targets a block has: to weigh a batch, a replica sees those of all rows."""
        weighs = self.network.weighted or self.network.class_weights
        return 16 * self.row_tiles * (self.replicas * self.cards if weighs else 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return padded(sum(self.shared_parts.values()))

    @property
    def exchange_bytes(self) -> int:
        """Bytes of device memory beside those of the steps: of replicas, ``struct Exchange`` for
        each rank.
        """
        if self.replicas == 1:
            return self.far_bytes
        quads, back_quads = 2 * self.forward_tiles, 2 * (self.tiles_of_warp - self.forward_tiles)
        of_weights = 16 * self.threads * (quads * (self.replicas + 1) + 2 * max(1, back_quads))
        of_biases = 4 * 2 * self.replicas * sum(layer.block_width for layer in self.layers)
        return self.cluster * (of_weights + of_biases + 4 * 2 * up(self.replicas, 2))

    @property
    def card_sums_bytes(self) -> int:
        """Bytes in which each of several cards is left sums by all: ``struct CardSums`` for each
        rank.
        """
        if self.cards == 1:
            return 0
        quads = 16 * self.threads * 2 * self.forward_tiles
        biases = 4 * sum(layer.block_width for layer in self.layers)
        return self.cluster * 2 * self.cards * (quads + biases)

    @property
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps and blocks wait for each other."""
        network, layers = self.network, self.layers
        rows, groups = 16 * self.row_tiles, [self.groups(*matrix) for matrix in self.matrices]
        # A replica finds no gradient by inputs.
        multiplied: float = self.tiles_of_warp
        if self.replicas > 1:
            multiplied -= (self.tiles_of_warp - self.forward_tiles) / 2
        # What a warp adds up of the products to this block's units, in both passes.
        units = [layer.block_units for layer in (*layers, *layers[:-1])]
        pieces = [-(-rows // 8 * -(-count // CHUNK) // self.warps) for count in units]
        turns = -(-rows // 8 // self.warps)
        x_bytes = self.batch_bytes / (self.replicas * self.cards)
        sent = [layer.block_units * (1 if idx == 0 else 2) for idx, layer in enumerate(layers[:-1])]
        return {
            "matrix": len(self.matrices),
            "product": self.row_tiles * (1 if network.terms == 1 else 3) * multiplied,
            "sum": sum(count * along for count, (along, _) in zip(pieces, groups, strict=True)),
            "byte sent": 2 * network.terms * rows * (self.cluster - 1) * sum(sent),
            "output tile": turns * (padded(network.outputs) // 16),
            "remembered": (self.tiles_of_warp if self.replicas == 1 else self.own_quads / 2)
            * network.slots,
            "far": self.far_tiles * network.slots,
            "byte awaited": x_bytes if self.x_slots == 1 else 0,
            "replicas": int(self.replicas > 1),
            "replica": self.replicas if self.replicas > 1 else 0,
            "quad exchanged": self.quads_exchanged,
            "quad in memory": self.quads_exchanged * self.cluster * self.replicas,
        }

    @property
    def costs_of_cards(self) -> dict[str, float]:
        """How often it has those that one card has none of: see `prices`."""
        if self.cards == 1:
            return {}
        others = (self.cards - 1) / (2 * self.cards)
        return {"cards": 1, "byte between cards": self.card_sums_bytes * others}

    @property
    def microseconds(self) -> float:
        """What a step is expected to take on an H200, or several."""
        return expected_microseconds(self.kernel, {**self.costs, **self.costs_of_cards})

    @property
    def quads_exchanged(self) -> int:
        """Quads of weights or gradients that a thread of a replica sends and receives in a step."""
        if self.replicas == 1:
            return 0
        return 2 * self.forward_tiles + self.own_quads * self.replicas + 2 * self.tiles_of_warp

    @property
    def config(self) -> LayersConfig:
        """The kernel's settings."""
        network = self.network
        return LayersConfig(
            **network.settings,
            **network.layer_settings,
            **network.weight_settings,
            terms=network.terms,
            dropouts=network.dropouts,
            cluster=self.cluster,
            cards=self.cards,
            replicas=self.replicas,
            warps=self.warps,
            held_tiles=self.held_tiles if network.slots else self.tiles_of_warp,
            near_tiles=self.near_tiles,
            far_tiles=self.far_tiles,
            clips=network.clips,
            weighed_penalty=network.weighed_penalty,
            x_slots=self.x_slots,
            unit_copies=self.unit_copies,
            sums=self.sums,
            shared_bytes=self.shared_bytes,
            exchange_bytes=self.exchange_bytes // self.cluster if self.replicas > 1 else 0,
            card_sums_bytes=self.card_sums_bytes // self.cluster,
            validates=self.validates,
            stops=self.stops,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> LayersArguments:
        progress, answers, talk_every = steps.talk
        return LayersArguments(
            **passes_arguments_of(run, steps),
            largest_norm=run.clip_norm,
            penalty=run.l2,
            scales=run.scales,
            class_weights=run.class_weights,
            far_slots=run.empty(self.far_bytes),
            exchanges=run.zeros(self.exchange_bytes) if self.replicas > 1 else None,
            card=run.card,
            card_sums=run.card_sums,
            progress=progress,
            answers=answers,
            talk_every=talk_every,
        )

    def that_validates(self) -> LayersLaunch:
        return replace(self, validates=True)

    def that_stops(self, max_shared_bytes: int) -> LayersLaunch | None:
        if self.cards > 1:
            return None  # each knows the losses of its rows alone
        shape = replace(self, stops=True, near_tiles=0)
        return None if shape.shared_bytes > max_shared_bytes else shape.filled(max_shared_bytes)

    def filled(self, max_shared_bytes: int) -> LayersLaunch:
        """Return the layout with as much in shared memory of the optimizer state as there is room
        for.
        """
        if not self.far_tiles:
            return self
        room = (max_shared_bytes - self.shared_bytes) // self.slot_bytes
        return replace(self, near_tiles=min(self.far_tiles, room))

    def __str__(self) -> str:
        blocks = "one block" if self.cluster == 1 else f"a cluster of {self.cluster} blocks"
        if self.replicas > 1:
            whole = "blocks" if self.cluster == 1 else f"clusters of {self.cluster} blocks"
            of_cards = "" if self.cards == 1 else f" of each of {self.cards} cards"
            blocks = f"{self.replicas} {whole}{of_cards} that partition a batch, each"
        return (
            f"{blocks} of {self.warps} warps, layer by layer, "
            f"{counted(self.tiles_of_warp, 'tile')} of weights in a warp's registers, "
            f"{self.shared_bytes} bytes of shared memory"
        )
