"""Who waits for whom in `one_launch_layers.cu` and `one_launch_card.cu`, whose warps do all the
same: a block is one role.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.backends.cuda.resident_config import CardConfig, LayersConfig
from warpfit.backends.cuda.waits import MEMORY, Arrive, Event, Place, Protocol, Wait

__all__ = ["protocol_by_layers", "protocol_on_card"]

CHUNK_UNITS, HALF_BYTES = 8, 2


def padded(size: int) -> int:
    return -(-size // 16) * 16


def protocol_by_layers(config: LayersConfig, steps: int, validated: int, replicas: int) -> Protocol:
    """Return what all blocks do in some steps and, if the kernel validates, passes after each."""
    protocol = Protocol()
    for replica in range(replicas):
        for rank in range(config.cluster):
            block = _LayersBlock(config, replica, rank)
            block.add_barriers(protocol)
            passes = ["t", *"v" * (validated * config.validates)] * steps
            protocol.play(block.block, "each warp", block.run(passes, replicas))
        protocol.add(MEMORY, f"meeting of replica {replica}", 1, config.cluster)
    for rank in range(config.cluster if replicas > 1 else 0):
        for name, number in (("gradients", 1), ("weights", 1), ("biases", 2), ("squares", 2)):
            protocol.add(MEMORY, f"{name} of rank {rank}", number, replicas)
    return protocol


class _LayersBlock:
    """A block of `one_launch_layers`; sizes are named as in `layer_shapes.cuh`."""

    def __init__(self, config: LayersConfig, replica: int, rank: int) -> None:
        self.config, self.replica, self.rank = config, replica, rank
        self.first = replica * config.cluster
        self.block, self.hidden = self.first + rank, config.layers - 1
        self.rows = 16 * -(-config.batch // (16 * config.replicas))
        self.meetings = 0

    def at(self, name: str, idx: int = 0, rank: int | None = None) -> Place:
        return Place(self.first + (self.rank if rank is None else rank), name, idx)

    def add_barriers(self, protocol: Protocol) -> None:
        """Add this block's, in the order in which it makes them."""
        for layer in range(self.hidden):
            protocol.add(self.block, f"y_full of layer {layer}", 2, 1)
            protocol.add(self.block, f"dz_full of layer {layer}", 1, 1)
        protocol.add(self.block, "x_full", max(2, self.config.x_slots), 33)
        protocol.add(self.block, "squares_full", 1, 1)

    def run(self, passes: list[str], replicas: int) -> Iterator[Event]:
        slots, step = self.config.x_slots, 0
        if replicas > 1:
            yield Arrive(Place(MEMORY, f"weights of rank {self.rank}"))
        yield Arrive(self.at("x_full"), 33)
        for idx, kind in enumerate(passes):
            if replicas > 1 and (kind == "t" or passes[idx - 1] == "t"):
                yield Wait(Place(MEMORY, f"weights of rank {self.rank}"), step)
            yield Wait(self.at("x_full", idx % slots), idx // slots)
            following = self.at("x_full", (idx + 1) % slots) if idx + 1 < len(passes) else None
            yield from self.go_forward(idx, following if slots > 1 else None)
            if kind == "t":
                yield from self.go_back(step)
                yield from self.finish(step, replicas)
                step += 1
            if slots == 1 and following is not None:
                yield Arrive(following, 33)

    def go_forward(self, idx: int, following: Place | None) -> Iterator[Event]:
        for layer in range(self.config.layers):
            copies = self.config.unit_copies if layer == 0 else 1
            full = f"y_full of layer {layer}"
            if layer < self.hidden:
                if layer == 0 and copies == 1 and self.config.cluster > 1:
                    yield from self.meet()
                yield from self.broadcast(layer, full, idx % copies)
            if layer == 0 and following is not None:
                yield Arrive(following, 33)
            if layer < self.hidden:
                yield from self.await_others(layer, full, idx % copies, idx // copies)

    def go_back(self, step: int) -> Iterator[Event]:
        for layer in range(self.hidden - 1, 0, -1):
            yield from self.broadcast(layer, f"dz_full of layer {layer}", 0)
            yield from self.await_others(layer, f"dz_full of layer {layer}", 0, step)

    def finish(self, step: int, replicas: int) -> Iterator[Event]:
        if replicas > 1:
            yield from self.exchange("gradients", 0, step)
            yield from self.exchange("biases", step % 2, step // 2)
        if self.config.clips:
            if self.config.cluster > 1:
                for rank in range(self.config.cluster):
                    yield Arrive(self.at("squares_full", 0, rank), 0, -8)
                yield Arrive(self.at("squares_full"), 1, 8 * self.config.cluster)
                yield Wait(self.at("squares_full"), step)
            if replicas > 1:
                yield from self.exchange("squares", step % 2, step // 2)
        if replicas > 1:
            yield Arrive(Place(MEMORY, f"weights of rank {self.rank}"))

    def exchange(self, name: str, slot: int, phase: int) -> Iterator[Event]:
        place = Place(MEMORY, f"{name} of rank {self.rank}", slot)
        yield Arrive(place)
        yield Wait(place, phase)

    def meet(self) -> Iterator[Event]:
        place = Place(MEMORY, f"meeting of replica {self.replica}")
        yield Arrive(place)
        yield Wait(place, self.meetings)
        self.meetings += 1

    def bytes_of(self, layer: int, rank: int) -> int:
        """Return the bytes of the units of a rank."""
        chunks = -(-self.config.widths[layer + 1] // CHUNK_UNITS)
        least, more = divmod(chunks, self.config.cluster)
        row_bytes = HALF_BYTES * CHUNK_UNITS * self.config.terms
        return (least + (rank < more)) * self.rows * row_bytes

    def broadcast(self, layer: int, name: str, idx: int) -> Iterator[Event]:
        for rank in range(self.config.cluster):
            if rank != self.rank and (sent := self.bytes_of(layer, self.rank)):
                yield Arrive(self.at(name, idx, rank), 0, -sent)

    def await_others(self, layer: int, name: str, idx: int, phase: int) -> Iterator[Event]:
        ranks = range(self.config.cluster)
        if len(ranks) > 1:
            owed = sum(self.bytes_of(layer, rank) for rank in ranks if rank != self.rank)
            yield Arrive(self.at(name, idx), 1, owed)
            yield Wait(self.at(name, idx), phase)


def protocol_on_card(config: CardConfig, steps: int) -> Protocol:
    """Return what all blocks do in some steps."""
    protocol, hidden = Protocol(), config.layers - 1
    for block in range(config.clusters * config.cluster):
        for name in ("parts_full", "gradients_full"):
            protocol.add(block, name, 2, 1)
        protocol.add(block, "last_full", 1, 1)
        own = _CardBlock(config, *divmod(block, config.cluster))
        events = (event for step in range(steps) for event in own.take_step(step))
        protocol.play(block, "each warp", events)
    for layer in range(hidden - 1):
        protocol.add(MEMORY, f"units of layer {layer}", 2 * config.clusters, config.cluster)
        protocol.add(MEMORY, f"gradients of layer {layer}", 2 * config.cluster, config.clusters)
    protocol.add(MEMORY, "outputs", 2 * config.clusters, config.cluster)
    return protocol


class _CardBlock:
    """A block of `one_launch_card`; sizes are named as in `card_shapes.cuh`."""

    def __init__(self, config: CardConfig, cluster: int, rank: int) -> None:
        self.config, self.own, self.rank = config, cluster, rank
        self.hidden, self.piece_rows = config.layers - 1, padded(config.batch) // config.cluster

    def at(self, name: str, idx: int = 0, rank: int | None = None) -> Place:
        rank = self.rank if rank is None else rank
        return Place(self.own * self.config.cluster + rank, name, idx)

    def units(self, layer: int) -> int:
        """Return the units of a layer that a cluster has."""
        return padded(-(-self.config.widths[layer + 1] // self.config.clusters))

    def inputs(self, layer: int) -> int:
        """Return the inputs of a hidden layer that a rank has."""
        return padded(-(-self.config.widths[layer] // self.config.cluster))

    def piece(self, layer: int) -> int:
        """Return the units' numbers that a rank finds."""
        return self.piece_rows * self.units(layer)

    def phase(self, layer: int, layers: int, before: int, step: int) -> int:
        """Return the phase of a barrier that layers of one parity share, of so many."""
        return step * ((layers - layer % 2 + 1) // 2) + before // 2

    def take_step(self, step: int) -> Iterator[Event]:
        turn, even = divmod(step, 2)
        for layer in range(self.hidden):
            yield from self.go_forward(layer, step)
            if layer + 1 < self.hidden:
                yield Arrive(Place(MEMORY, f"units of layer {layer}", 2 * self.own + even))
                for cluster in self.clusters_of_inputs(layer + 1):
                    yield Wait(Place(MEMORY, f"units of layer {layer}", 2 * cluster + even), turn)
        sent = 2 * HALF_BYTES * self.piece(self.hidden - 1)  # units and derivatives
        yield from self.send("last_full", 0, sent)
        yield Arrive(Place(MEMORY, "outputs", 2 * self.own + even))
        for cluster in range(self.config.clusters):
            yield Wait(Place(MEMORY, "outputs", 2 * cluster + even), turn)
        yield from self.await_others("last_full", 0, step, sent)
        for layer in range(self.hidden - 2, -1, -1):
            yield from self.go_back(layer, step)

    def go_forward(self, layer: int, step: int) -> Iterator[Event]:
        part, ranks = 4 * self.piece(layer), range(self.config.cluster)
        for rank in ranks:
            yield Arrive(self.at("parts_full", layer % 2, rank), 0, -part)
        yield Arrive(self.at("parts_full", layer % 2), 1, len(ranks) * part)
        phase = self.phase(layer, self.hidden, layer, step)
        yield Wait(self.at("parts_full", layer % 2), phase)

    def go_back(self, layer: int, step: int) -> Iterator[Event]:
        (turn, even), name = divmod(step, 2), f"gradients of layer {layer}"
        yield Arrive(Place(MEMORY, name, 2 * self.rank + even))
        for rank in self.ranks_of_units(layer):
            yield Wait(Place(MEMORY, name, 2 * rank + even), turn)
        sent = HALF_BYTES * self.piece(layer)
        yield from self.send("gradients_full", layer % 2, sent)
        phase = self.phase(layer, self.hidden - 1, self.hidden - 2 - layer, step)
        yield from self.await_others("gradients_full", layer % 2, phase, sent)

    def clusters_of_inputs(self, layer: int) -> range:
        """Return the clusters whose units a layer takes in this rank."""
        units, inputs = self.units(layer - 1), self.inputs(layer)
        first, width = self.rank * inputs, padded(self.config.widths[layer])
        end = min(first + inputs, width)
        return range(first // units, -(-end // units)) if first < end else range(0)

    def ranks_of_units(self, layer: int) -> range:
        """Return the ranks that take this cluster's units as inputs."""
        units, inputs = self.units(layer), self.inputs(layer + 1)
        first, width = self.own * units, padded(self.config.widths[layer + 1])
        end = min(first + units, width)
        return range(first // inputs, -(-end // inputs)) if first < end else range(0)

    def send(self, name: str, idx: int, sent: int) -> Iterator[Event]:
        """Send as many bytes to each of the cluster's other ranks."""
        for rank in range(self.config.cluster):
            if rank != self.rank:
                yield Arrive(self.at(name, idx, rank), 0, -sent)

    def await_others(self, name: str, idx: int, phase: int, sent: int) -> Iterator[Event]:
        yield Arrive(self.at(name, idx), 1, (self.config.cluster - 1) * sent)
        yield Wait(self.at(name, idx), phase)
