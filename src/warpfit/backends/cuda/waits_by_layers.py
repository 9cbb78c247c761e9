"""Who waits for whom in `one_launch_layers.cu`, `one_launch_card.cu` and `one_launch_images.cu`,
whose warps all do the same: a block is one role.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.backends.cuda.image_shapes import shapes_in
from warpfit.backends.cuda.resident_config import CardConfig, ImagesConfig, LayersConfig
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.waits import MEMORY, Arrive, Block, Event, Place, Protocol, Wait

CHUNK_UNITS, HALF_BYTES, FLOAT_BYTES = 8, 2, 4
COPIED = 33  # arrivals of a batch of x that is copied


def protocol_by_layers(config: LayersConfig, steps: int, validated: int, replicas: int) -> Protocol:
    """Return what the blocks of some replicas do in some steps, after each of which come passes
    over validation data, if the kernel validates.
    """
    protocol, passes = Protocol(), [True, *[False] * validated * config.validates] * steps
    for replica in range(replicas):
        for rank in range(config.cluster):
            _LayersBlock(config, replica, rank, replicas).join(protocol, passes)
        protocol.add(MEMORY, f"meeting of replica {replica}", 1, config.cluster)
    return protocol


class _LayersBlock(Block):
    """Sizes are named as in `layer_shapes.cuh`."""

    def __init__(self, config: LayersConfig, replica: int, rank: int, replicas: int) -> None:
        super().__init__(config.cluster, replica, rank)
        self.config, self.replicas = config, replicas
        self.hidden, self.slots = range(config.layers - 1), config.x_slots
        self.rows = 16 * -(-config.batch // (16 * config.replicas * config.cards))

    def join(self, protocol: Protocol, passes: list[bool]) -> None:
        for layer in self.hidden:
            protocol.add(self.block, f"y_full of layer {layer}", 2, 1)
            protocol.add(self.block, f"dz_full of layer {layer}", 1, 1)
        protocol.add(self.block, "x_full", max(2, self.slots), COPIED)
        protocol.add(self.block, "squares_full", 1, 1)
        for name, number in (("gradients", 1), ("weights", 1), ("biases", 2), ("squares", 2)):
            protocol.add(MEMORY, self.in_memory(name).name, number, self.replicas)
        protocol.play(self.block, "each warp", self.run(passes))

    def run(self, passes: list[bool]) -> Iterator[Event]:
        """Do passes, of which some train."""
        step, has_replicas = 0, self.replicas > 1
        if has_replicas:
            yield Arrive(self.in_memory("weights"))
        yield self.load(0)
        for idx, trains in enumerate(passes):
            if has_replicas and (trains or passes[idx - 1]):
                yield Wait(self.in_memory("weights"), step)
            yield Wait(self.at("x_full", idx % self.slots), idx // self.slots)
            has_next = idx + 1 < len(passes)
            yield from self.go_forward(idx, loads=has_next and self.slots > 1)
            if trains:
                yield from self.go_back(step)
                yield from self.finish(step)
                step += 1
            if has_next and self.slots == 1:
                yield self.load(idx + 1)

    def load(self, idx: int) -> Event:
        return Arrive(self.at("x_full", idx % self.slots), COPIED)

    def go_forward(self, idx: int, *, loads: bool) -> Iterator[Event]:
        meets = self.cluster > 1 and self.config.unit_copies == 1
        for layer in range(self.config.layers):
            name, copies = f"y_full of layer {layer}", 1 if layer else self.config.unit_copies
            if layer in self.hidden:
                if layer == 0 and meets:
                    meeting = Place(MEMORY, f"meeting of replica {self.number}")
                    yield from (Arrive(meeting), Wait(meeting, idx))
                yield from self.send(name, idx % copies, self.bytes_of(layer, self.rank))
            if layer == 0 and loads:
                yield self.load(idx + 1)
            if layer in self.hidden:
                yield from self.await_others(layer, name, idx % copies, idx // copies)

    def go_back(self, step: int) -> Iterator[Event]:
        for layer in reversed(self.hidden[1:]):
            name = f"dz_full of layer {layer}"
            yield from self.send(name, 0, self.bytes_of(layer, self.rank))
            yield from self.await_others(layer, name, 0, step)

    def finish(self, step: int) -> Iterator[Event]:
        turn, even = divmod(step, 2)
        if self.replicas > 1:
            yield from self.exchange("gradients", 0, step)
            yield from self.exchange("biases", even, turn)
        if self.config.clips and self.cluster > 1:
            for rank in range(self.cluster):
                yield Arrive(self.at("squares_full", 0, rank), 0, -8)
            yield from self.await_bytes("squares_full", 0, step, 8 * self.cluster)
        if self.config.clips and self.replicas > 1:
            yield from self.exchange("squares", even, turn)
        if self.replicas > 1:
            yield Arrive(self.in_memory("weights"))

    def await_others(self, layer: int, name: str, idx: int, phase: int) -> Iterator[Event]:
        if self.cluster > 1:
            others = (rank for rank in range(self.cluster) if rank != self.rank)
            owed = sum(self.bytes_of(layer, rank) for rank in others)
            yield from self.await_bytes(name, idx, phase, owed)

    def bytes_of(self, layer: int, rank: int) -> int:
        """Return the bytes of the units of a rank."""
        chunks = -(-self.config.widths[layer + 1] // CHUNK_UNITS)
        least, more = divmod(chunks, self.cluster)
        row_bytes = HALF_BYTES * CHUNK_UNITS * self.config.terms
        return (least + (rank < more)) * self.rows * row_bytes


def protocol_on_card(config: CardConfig, passes: list[bool]) -> Protocol:
    """Return what all blocks do in passes, of which some train."""
    protocol, is_apart = Protocol(), config.cluster < config.ranks
    for block in range(config.clusters * config.ranks):
        if not is_apart:
            for name, number in (("parts_full", 2), ("gradients_full", 2), ("last_full", 1)):
                protocol.add(block, name, number, 1)
        own = _CardBlock(config, *divmod(block, config.ranks))
        protocol.play(block, "each warp", own.run(passes))
    for layer in range(config.layers - 1):
        for name in ("units", "parts", "sent gradients"):
            protocol.add(MEMORY, f"{name} of layer {layer}", 2 * config.clusters, config.ranks)
        protocol.add(MEMORY, f"gradients of layer {layer}", 2 * config.ranks, config.clusters)
    protocol.add(MEMORY, "outputs", 2 * config.clusters, config.ranks)
    return protocol


class _CardBlock(Block):
    """Sizes are named as in `card_shapes.cuh`; places in memory are those of a cluster's units, or
    of a rank's inputs, for even passes or steps, and odd ones.
    """

    def __init__(self, config: CardConfig, number: int, rank: int) -> None:
        super().__init__(config.ranks, number, rank)
        self.config, self.hidden = config, config.layers - 1
        self.is_apart = config.cluster < config.ranks
        self.tile = 64 if self.is_apart else 16

    def units(self, layer: int) -> int:
        """Return the units of a layer that a cluster has."""
        return up(-(-self.config.widths[layer + 1] // self.config.clusters), self.tile)

    def inputs(self, layer: int) -> int:
        """Return the inputs of a hidden layer that a rank has."""
        return up(-(-self.config.widths[layer] // self.cluster), self.tile)

    def piece(self, layer: int) -> int:
        """Return how many numbers of units a rank finds."""
        return padded(self.config.batch) // self.cluster * self.units(layer)

    def run(self, passes: list[bool]) -> Iterator[Event]:
        for idx, trains in enumerate(passes):
            step = sum(passes[:idx])
            yield from self.go_forward(idx, step, trains)
            if trains:
                yield from self.go_back(step)

    def go_forward(self, idx: int, step: int, trains: bool) -> Iterator[Event]:
        """Find the outputs in a pass; in a step, with units that only it takes."""
        for layer in range(self.hidden):
            yield from self.find_units(layer, idx)
            if layer + 1 < self.hidden:
                sources = self.overlaps(layer, self.rank, self.inputs(layer + 1), self.units(layer))
                yield from self.share(f"units of layer {layer}", self.number, sources, idx)
        last = f"units of layer {self.hidden - 1}"
        if trains and self.is_apart:
            yield from self.leave(last, self.number, step)
        elif trains:
            yield from self.send("last_full", 0, self.last_sent)
        yield from self.leave("outputs", self.number, idx)
        if trains and self.is_apart:
            yield from self.find(last, self.own_cluster, step)
        yield from self.find("outputs", range(self.config.clusters), idx)

    @property
    def last_sent(self) -> int:
        """Bytes of units of the last hidden layer, and their derivatives, that a rank sends."""
        return 2 * HALF_BYTES * self.piece(self.hidden - 1)

    def go_back(self, step: int) -> Iterator[Event]:
        if not self.is_apart:
            sent = self.last_sent
            yield from self.await_bytes("last_full", 0, step, (self.cluster - 1) * sent)
        for layer in reversed(range(self.hidden - 1)):
            ranks = self.overlaps(layer, self.number, self.units(layer), self.inputs(layer + 1))
            yield from self.share(f"gradients of layer {layer}", self.rank, ranks, step)
            yield from self.send_gradients(layer, step)

    @property
    def own_cluster(self) -> range:
        return range(self.number, self.number + 1)

    def find_units(self, layer: int, idx: int) -> Iterator[Event]:
        if self.is_apart:
            yield from self.share(f"parts of layer {layer}", self.number, self.own_cluster, idx)
            return
        part = FLOAT_BYTES * self.piece(layer)
        for rank in range(self.cluster):
            yield Arrive(self.at("parts_full", layer % 2, rank), 0, -part)
        phase = idx * _phases(layer, self.hidden) + layer // 2
        yield from self.await_bytes("parts_full", layer % 2, phase, self.cluster * part)

    def send_gradients(self, layer: int, step: int) -> Iterator[Event]:
        if self.is_apart:
            name = f"sent gradients of layer {layer}"
            yield from self.share(name, self.number, self.own_cluster, step)
            return
        sent, inner = HALF_BYTES * self.piece(layer), self.hidden - 1
        phase, owed = step * _phases(layer, inner), (self.cluster - 1) * sent
        phase += (inner - 1 - layer) // 2
        yield from self.send("gradients_full", layer % 2, sent)
        yield from self.await_bytes("gradients_full", layer % 2, phase, owed)

    def share(self, name: str, own: int, others: range, step: int) -> Iterator[Event]:
        """Leave numbers in memory, and wait for what others leave there."""
        yield from self.leave(name, own, step)
        yield from self.find(name, others, step)

    def leave(self, name: str, own: int, step: int) -> Iterator[Event]:
        yield Arrive(Place(MEMORY, name, 2 * own + step % 2))

    def find(self, name: str, others: range, step: int) -> Iterator[Event]:
        for other in others:
            yield Wait(Place(MEMORY, name, 2 * other + step % 2), step // 2)

    def overlaps(self, layer: int, own: int, size: int, of_others: int) -> range:
        """Return who has parts of `of_others` units in what is this one's of a layer's units."""
        end = min((own + 1) * size, padded(self.config.widths[layer + 1]))
        return (
            range(own * size // of_others, -(-end // of_others)) if own * size < end else range(0)
        )


def _phases(layer: int, layers: int) -> int:
    """Return how many of some layers have the parity of one: those share a barrier."""
    return (layers - layer % 2 + 1) // 2


def protocol_of_images(config: ImagesConfig, steps: int) -> Protocol:
    """Return what all blocks do in some steps, from Hopper on. Before, threads copy the rounded
    weights by themselves, and no block has barriers.
    """
    protocol, with_images = Protocol(), -(-config.batch // config.images)
    rows, updates = Place(MEMORY, "rows"), Place(MEMORY, "updates")
    protocol.counts.update({rows: with_images, updates: config.blocks})
    copies = _rounded_copies(config)
    for block in range(config.blocks):
        protocol.add(block, "full", len(copies), 1)
        events: list[Event] = [Arrive(updates)]  # of weights, which are rounded first
        for step in range(steps):
            if block < with_images:
                events += [Wait(updates, step), *_load_rounded(block, copies, step), Arrive(rows)]
            events += [Wait(rows, step), Arrive(updates)]
        protocol.play(block, "each warp", events)
    return protocol


def _load_rounded(block: int, copies: list[list[int]], step: int) -> Iterator[Event]:
    """Say how many bytes are to come to each barrier, copy them, and wait for them."""
    full = [(Place(block, "full", idx), own) for idx, own in enumerate(copies)]
    yield from (Arrive(at, 1, sum(own)) for at, own in full)
    yield from (Arrive(at, 0, -nbytes) for at, own in full for nbytes in own)
    yield from (Wait(at, step) for at, _ in full)


def _rounded_copies(config: ImagesConfig) -> list[list[int]]:
    """Return the bytes of each copy of `load_rounded`, by the barrier that counts it."""
    convolutions, layers = shapes_in(config)
    biases = sum(own.units for own in convolutions) + sum(own.units for own in layers)
    of_convolutions = HALF_BYTES * sum(own.weights for own in convolutions)
    of_layers = HALF_BYTES * sum(own.weights for own in layers)
    return [[of_convolutions, FLOAT_BYTES * biases], [of_layers]]
