"""How a training run is launched as one kernel on most of a card: tiles, shared memory, and what
does not fit.

`one_launch_card.cu` is some clusters of blocks, of which each has a tile of each layer's weights;
this module says how large they are, or what is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf
from typing import Any

from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.resident_arguments import CardArguments
from warpfit.backends.cuda.resident_config import CardConfig
from warpfit.backends.cuda.resident_launch import (
    STOPPING_STATE_BYTES,
    LaunchedRun,
    LaunchedSteps,
    ResidentLaunch,
    passes_arguments_of,
    too_large,
)
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import (
    TrainedNetwork,
    counted,
    lacking,
    resident_clusters,
    unknown_settings,
    unsuited,
)
from warpfit.errors import Obstacle

WARPS = 16
# Blocks of a cluster: ranks, which partition the inputs of each layer.
CLUSTERS = (8, 4)
# Ranks that are apart.
RANKS_APART = 8
MOST_ROWS = 128
REGISTERS, MOST_REGISTERS = 65536, 255
# Of ranks that are apart, whose threads have more registers: so many of each for low halves of
# weights.
WARPS_APART, MOST_HELD = 8, 160
# Numbers of a row that lie together where wgmma takes them, and bytes of eight rows of these.
PANEL, ATOM_BYTES = 64, 1024
# Units of a piece of streamed weights, pieces in shared memory, and bytes of a weight that are read
# or written in a step.
PIECE_UNITS, PIECES, STREAMED_BYTES = 128, 6, 10
MOST_OF, MOST_STREAMED_ROWS = 0.9, 32


def share(size: int, sharers: int, tile: int = 16) -> int:
    """Return what each has of something that is partitioned in tiles."""
    return up(-(-size // sharers), tile)


@dataclass(frozen=True)
class Tile:
    """What a block has of a layer's weights: ``struct WeightTile`` of the kernel."""

    inputs: int
    units: int
    sent_units: int
    slots: int

    @property
    def fragments(self) -> int:
        """Tiles of 16 by 8 weights."""
        return self.inputs // 16 * self.units // 8

    def held_registers(self, warps: int) -> int:
        """Return how many registers of a thread low halves would take: ``struct Gradients`` of the
        kernel.
        """
        rows, columns = self.inputs // 16, self.units // 8
        in_a_row = min(columns, -(-self.fragments // warps))
        while columns % in_a_row:
            in_a_row += 1
        return 2 * in_a_row * -(-rows * (columns // in_a_row) // warps)

    @property
    def other_bytes(self) -> int:
        """Bytes of what else there is of the weights: low halves, and optimizer state."""
        return self.fragments * (256 + 512 * self.slots)


@dataclass(frozen=True)
class CardLaunch(ResidentLaunch):
    """How clusters and blocks share a network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    ranks : int
        Blocks of a cluster, which partition the inputs of each layer.
    clusters : int
        They partition the units of each hidden layer.
    far : tuple of bool
        Whether what weights of each layer have beside their rounded ones, with their optimizer
        state, lies in device memory.
    held : tuple of bool
        Whether it lies in registers.
    warps : int
        Of a block.
    is_apart : bool
        Whether no cluster of the hardware holds the ranks, so that they exchange all numbers
        through memory.
    is_streamed : bool
        Whether the weights of hidden layers lie in device memory, and come in pieces.
    validates : bool
        Whether it goes over validation data after each epoch that is reported.
    stops : bool
        Whether the kernel itself decides when the run is over.
    """

    network: TrainedNetwork
    ranks: int
    clusters: int
    far: tuple[bool, ...]
    held: tuple[bool, ...]
    warps: int = WARPS
    is_apart: bool = False
    is_streamed: bool = False
    validates: bool = False
    stops: bool = False

    kernel = "one_launch_card"

    takes_a_card = True
    replicas = 1
    looks_ahead = False

    @property
    def is_cooperative(self) -> bool:
        return True

    @property
    def cluster(self) -> int:  # type: ignore[override]
        """Blocks of a cluster of the hardware."""
        return 1 if self.is_apart else self.ranks

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.ranks * self.clusters

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of a batch, for tensor cores."""
        if not self.is_apart:
            return padded(self.network.batch)
        rows = max(16, 4 * self.ranks)
        while rows < self.network.batch:
            rows *= 2
        return rows

    @cached_property
    def tiles(self) -> list[Tile]:
        """What a block has of each layer."""
        (features, *widths, outputs), slots = self.network.widths, self.network.slots
        size = PANEL if self.is_apart else 16
        inputs = [share(features, self.ranks, PANEL if self.is_streamed else 16)]
        inputs += [share(width, self.ranks, size) for width in widths[:-1]]
        units = [share(width, self.clusters, self.unit_tile) for width in widths]
        hidden = [
            Tile(height, columns, padded(width), slots)
            for height, columns, width in zip(inputs, units, widths, strict=True)
        ]
        return [*hidden, Tile(units[-1], padded(outputs), up(outputs, 4), slots)]

    @property
    def unit_tile(self) -> int:
        """What units of a block are a multiple of."""
        return PIECE_UNITS if self.is_streamed else PANEL if self.is_apart else 16

    def matrix_bytes(self, height: int, width: int, *, in_panels: bool) -> int:
        """Return the bytes of a matrix in shared memory: ``struct Matrix`` of the kernel."""
        return 2 * height * (up(width, PANEL) if in_panels else width + 8)

    @cached_property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct Shared`` of the kernel."""
        tiles, rows = self.tiles, self.rows
        widest, outputs = max(tile.units for tile in tiles[:-1]), padded(self.network.outputs)
        panels = [self.is_apart] * (len(tiles) - 1) + [False]
        weights = [
            self.matrix_bytes(tile.inputs, tile.units, in_panels=own)
            for tile, own in zip(tiles, panels, strict=True)
            if not (own and self.is_streamed)
        ]
        inputs = [
            self.matrix_bytes(rows, tile.inputs, in_panels=own)
            for tile, own in zip(tiles, panels, strict=True)
        ]
        return {
            "weights": sum(weights),
            "low halves of weights": sum(
                tile.other_bytes
                for tile, *elsewhere in zip(tiles, self.far, self.held, strict=True)
                if not any(elsewhere)
            ),
            "pieces of weights": PIECES * 2 * PANEL * PIECE_UNITS if self.is_streamed else 0,
            "biases": sum(4 * (1 + tile.slots) * tile.units for tile in tiles),
            "batches of x and units": sum(inputs) + (0 if self.is_apart else inputs[0]),
            "beside panels": -(weights[-1] + inputs[-1]) % ATOM_BYTES if self.is_apart else 0,
            "parts of sums": 0 if self.is_apart else 2 * 4 * rows * widest,
            "gradients and derivatives": (1 if self.is_apart else 3)
            * self.matrix_bytes(rows, widest, in_panels=self.is_apart),
            "outputs and losses": rows * (2 * (outputs + 8) + 4 * outputs + 8),
            "targets": 2 * 4 * rows * self.network.target_words,
            "barriers": 5 * 8,
            "early stopping": (8 + STOPPING_STATE_BYTES) * self.stops,  # behind a whole 16 bytes
        }

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return up(sum(self.shared_parts.values()), ATOM_BYTES if self.is_apart else 16)

    @property
    def far_bytes(self) -> int:
        """Bytes of device memory for weights that are far."""
        tiles = zip(self.tiles, self.far, strict=True)
        of_block = sum(tile.other_bytes for tile, is_far in tiles if is_far)
        return self.blocks * (
            of_block + sum(tile.inputs * tile.units * 2 for tile in self.streamed)
        )

    @property
    def streamed(self) -> list[Tile]:
        """Those whose rounded weights lie in device memory, too."""
        return self.tiles[:-1] if self.is_streamed else []

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of device memory in which blocks leave each other numbers."""
        *hidden, last = self.tiles
        words = sum((1 + self.clusters) * tile.sent_units for tile in hidden[:-1])
        if self.is_apart:
            words += sum(tile.sent_units + self.blocks * tile.units for tile in hidden)
        return 2 * 4 * self.rows * (words + self.clusters * last.sent_units)

    @property
    def exchange_bytes(self) -> int:
        """Bytes of device memory beside those of the steps."""
        return self.exchanged_bytes + self.far_bytes

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, and those for weights."""
        held = zip(self.tiles, self.held, strict=True)
        return min(MOST_REGISTERS, REGISTERS // self.threads), sum(
            tile.held_registers(self.warps) for tile, is_held in held if is_held
        )

    @property
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps and blocks wait for each other."""
        *hidden, last = self.tiles
        row_tiles, inner, to_others = (
            self.rows // 16,
            hidden[:-1],
            (self.ranks - 1) / self.ranks,
        )

        streamed = self.blocks * sum(tile.inputs * tile.units for tile in self.streamed)

        def turns(tiles: int) -> int:
            return -(-tiles // self.warps)

        forward = sum(turns(row_tiles * tile.units // 16) * tile.inputs // 16 for tile in hidden)
        back = sum(turns(row_tiles * tile.inputs // 16) * tile.units // 16 for tile in hidden[1:])
        sums = self.clusters * sum(tile.units for tile in inner) / self.ranks
        return {
            "step": 1,
            "layer": len(hidden),
            "product": forward + back,
            "gradient": sum(turns(tile.fragments) for tile in hidden) * (row_tiles + 1),
            "remembered": sum(turns(tile.fragments) for tile in self.tiles) * self.network.slots,
            "byte of outputs": 4 * self.rows * last.sent_units * self.clusters,
            "byte received": 4 * self.rows * (sum(tile.inputs for tile in hidden[1:]) + sums),
            "byte sent": (4 + 2) * self.rows * to_others * sum(tile.units for tile in hidden),
            "far byte": 2 * (self.far_bytes - 4 * streamed),
            "streamed byte": STREAMED_BYTES * streamed,
        }

    @property
    def config(self) -> CardConfig:
        """The kernel's settings."""
        return CardConfig(
            **self.network.settings,
            **self.network.layer_settings,
            dropouts=self.network.dropouts,
            far_layers=self.far,
            held_layers=self.held,
            streamed=self.is_streamed,
            cluster=self.cluster,
            ranks=self.ranks,
            clusters=self.clusters,
            warps=self.warps,
            shared_bytes=self.shared_bytes,
            exchange_bytes=self.exchanged_bytes,
            validates=self.validates,
            stops=self.stops,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> CardArguments:
        return CardArguments(
            **passes_arguments_of(run, steps),
            words=run.zeros(self.exchanged_bytes),
            far=run.empty(self.far_bytes),
        )

    def that_validates(self) -> CardLaunch:
        return replace(self, validates=True)

    def that_stops(self, max_shared_bytes: int) -> CardLaunch | None:
        shape = replace(self, stops=True)
        return None if shape.shared_bytes > max_shared_bytes else shape

    def __str__(self) -> str:
        places = (("registers", sum(self.held)), ("device memory", sum(self.far)))
        halves = [f"of {counted(layers, 'layer')} in {place}" for place, layers in places if layers]
        return (
            f"{counted(self.clusters, 'cluster')} of {self.ranks} blocks of {self.warps} warps "
            f"that partition all weights, {self.shared_bytes} bytes of shared memory"
            f"{', low halves ' if halves else ''}{' and '.join(halves)}"
            f"{', weights of hidden layers in device memory' if self.is_streamed else ''}"
        )


def _in_the_way(network: TrainedNetwork, arch: str) -> Obstacle | None:
    """Return what the kernel does not do."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if generation(arch) < 90:
        return Obstacle(f"expected an architecture with clusters, sm_90 or later, got {arch}")
    expected = {
        "a hidden layer": len(network.widths) < 3,
        **unknown_settings(network),
        f"batches of at most {MOST_ROWS} rows": network.batch > MOST_ROWS,
    }
    return lacking(expected, "weights that no cluster holds, which all blocks partition")


def excess_of_settings(network: TrainedNetwork, *limits: Any) -> float:
    """Return how many times as many rows a batch has as it may, at least 1, if only settings are in
    the way of a network; infinity otherwise.
    """
    off: dict[str, Any] = dict.fromkeys(("weighted", "class_weights", "clips", "penalized"), False)
    batch = min(network.batch, MOST_ROWS)
    plain = choose_card(replace(network, terms=1, batch=batch, **off), *limits)
    return inf if isinstance(plain, Obstacle) else max(1.0, network.batch / MOST_ROWS)


@lru_cache(maxsize=256)
def choose_card(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> CardLaunch | Obstacle:
    """Return how to launch a network's training on most of a card, or what is in the way."""
    if (obstacle := _in_the_way(network, arch)) is not None:
        return obstacle
    sizes = [cluster for cluster in CLUSTERS if cluster <= num_multiprocessors]
    if not sizes:
        return Obstacle(
            f"expected {min(CLUSTERS)} multiprocessors or more, got {num_multiprocessors}"
        )
    in_clusters = [
        _shape(network, cluster, resident_clusters(cluster, num_multiprocessors))
        for cluster in sizes
    ]
    apart, streamed = [], []
    if arch == "sm_90a" and network.slots == 0 and num_multiprocessors >= RANKS_APART:
        most = num_multiprocessors // RANKS_APART
        apart = [_shape(network, RANKS_APART, most, PANEL)]
        streamed = [_shape(network, RANKS_APART, most, PIECE_UNITS)]
        streamed = [shape for shape in streamed if _is_worth_it(shape, num_multiprocessors)]
    # Messages of clusters are faster, so that ranks are apart only where these have no room, and
    # weights are read from memory where ranks that are apart have none.
    for shapes in (in_clusters, apart, streamed):
        placed = [_placed(shape, max_shared_bytes) for shape in shapes]
        fitting = [shape for shape in placed if shape.shared_bytes <= max_shared_bytes]
        if fitting:
            return min(fitting, key=lambda shape: shape.microseconds)
    return too_large([*in_clusters, *apart, *streamed], max_shared_bytes, "a tile of each layer")


def _is_worth_it(shape: CardLaunch, num_multiprocessors: int) -> bool:
    """Return whether passes over streamed weights keep a card as busy as those that were measured,
    which took nine tenths of the graph's time: by tiles with little padding on all multiprocessors,
    and batches of few rows.
    """
    weights = sum(inputs * units for inputs, units in pairwise(shape.network.widths[:-1]))
    room = num_multiprocessors * sum(tile.inputs * tile.units for tile in shape.streamed)
    return weights >= MOST_OF * room and shape.network.batch <= MOST_STREAMED_ROWS


def _shape(network: TrainedNetwork, ranks: int, most: int, unit_tile: int = 16) -> CardLaunch:
    """Return the shape of as many clusters of a size as have units of the widest layer, with all
    layers far.

    Units of a block that are a multiple of `PANEL` are those of ranks that are apart, and of
    `PIECE_UNITS` those of streamed weights.
    """
    widest = max(network.widths[1:-1])
    clusters = -(-widest // share(widest, most, unit_tile))
    all_layers = len(network.widths) - 1
    is_apart, is_streamed = unit_tile >= PANEL, unit_tile == PIECE_UNITS
    far, held = (True,) * all_layers, (False,) * all_layers
    warps = WARPS_APART if is_apart else WARPS
    return CardLaunch(network, ranks, clusters, far, held, warps, is_apart, is_streamed)


def _placed(shape: CardLaunch, max_shared_bytes: int) -> CardLaunch:
    """Return the shape with as many layers in shared memory, and then in registers, as there is
    room for.

    The first layer comes first, as its update delays the next step; the others' have time while
    gradients are on their way.
    """
    first = len(shape.far) - 1 if shape.is_streamed else 0
    for idx in range(first, len(shape.far)):
        nearer = replace(shape, far=_changed(shape.far, idx))
        if nearer.shared_bytes <= max_shared_bytes:
            shape = nearer
    registers = [tile.held_registers(shape.warps) for tile in shape.tiles]
    holds = shape.is_apart and not shape.is_streamed and shape.network.slots == 0
    left = MOST_HELD if holds else 0
    for idx in sorted(range(len(registers)), key=lambda idx: -registers[idx]):
        if shape.far[idx] and registers[idx] <= left:
            left -= registers[idx]
            shape = replace(shape, far=_changed(shape.far, idx), held=_changed(shape.held, idx))
    return shape


def _changed(flags: tuple[bool, ...], idx: int) -> tuple[bool, ...]:
    return (*flags[:idx], not flags[idx], *flags[idx + 1 :])
