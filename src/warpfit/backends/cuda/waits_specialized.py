"""Who waits for whom in `one_launch.cu`."""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.backends.cuda.resident_config import OneLaunchConfig
from warpfit.backends.cuda.waits import MEMORY, Arrive, Block, Event, Place, Protocol, Wait

COPIED = 33  # arrivals of tiles of x that are copied in a turn


def specialized_protocol(
    config: OneLaunchConfig, steps: int, epochs: int, replicas: int
) -> Protocol:
    """Return what the warps of all blocks of some replicas do in some epochs of some steps."""
    protocol = Protocol()
    for replica in range(replicas):
        for rank in range(config.cluster):
            _Block(config, replica, rank).join(protocol, steps, epochs, replicas)
    return protocol


class _Block(Block):
    """Sizes are named as in `trained_block.cuh`."""

    def __init__(self, config: OneLaunchConfig, replica: int, rank: int) -> None:
        super().__init__(config.cluster, replica, rank)
        self.config, self.group = config, config.group
        self.tiles = tiles = -(-config.batch // (16 * config.replicas))
        self.own_tiles = -(-tiles // config.cluster)
        self.own_rows = self.own_tiles * 16 if self.own_tiles > 1 else config.own_of_tile
        self.parts = config.feature_parts
        self.is_divided = self.parts > 1
        features = -(-config.features // (self.parts if config.hidden else config.cluster))
        pieces = -(-features // 64) if self.is_divided else 1
        self.ring = config.x_slots * pieces
        self.loads = pieces if self.is_divided else 2 * tiles - config.kept
        self.turn = 1 if config.x_slots % self.group else self.group
        together = config.adaptive or (config.ahead and tiles <= 4)
        self.back_group = tiles if together else self.group
        self.hidden_group = tiles if config.ahead or config.adaptive else self.group
        self.sum_places = 2 * tiles if config.ahead else tiles
        self.sum_barriers = self.sum_places if config.ahead else config.sum_slots
        self.groups, self.groups_ahead = tiles // self.group, self.ring // self.group + 1
        self.rows_read_dh = config.ahead and self.group < tiles and not self.is_divided
        self.sent_units = 4 // self.parts  # tiles that blocks which divide the features send
        self.weight_warps = config.warps_k * config.warps_u
        columns = [min(16, config.outputs - first) for first in range(0, config.outputs, 16)]
        self.output_bytes = 16 * sum(min(4, (count + 1) // 2) for count in columns)
        self.gradient_bytes = 16 * sum((count + 7) // 8 for count in columns)
        unit_tiles = (config.hidden + 16 * config.cluster - 1) // (16 * config.cluster)
        self.output_tiles = unit_tiles * len(columns)
        self.bias_tiles = unit_tiles if config.hidden else len(columns)

    def join(self, protocol: Protocol, steps: int, epochs: int, replicas: int) -> None:
        self.epoch, self.steps, self.replicas = steps, steps * epochs, replicas
        config = self.config
        for name, number, count in (
            ("x_full", self.groups_ahead, COPIED * self.group // self.turn),
            ("x_empty", self.ring, self.weight_warps),
            ("sums_empty", config.sum_slots, 1),
            ("sums_full", self.sum_barriers, self.weight_warps),
            ("parts_full", self.own_tiles, 1),
            ("dz_full", self.groups, self.group),
            ("dh_full", self.tiles // self.hidden_group, self.hidden_group),
            ("dh_empty", 1, self.weight_warps + self.rows_read_dh * self.tiles),
            ("divided sums_full", config.sum_slots * self.is_divided, self.sent_units),
            ("divided dh_full", 2 * self.is_divided, 1),
            ("outputs_ready", 1, config.output_warps),
            ("biases_ready", 1, config.output_warps),
            ("losses_full", 2, 1),
        ):
            protocol.add(self.block, name, number, count)
        for name, number in (
            ("gradients", 1),
            ("weights", 1),
            ("outputs", 2 * config.output_warps),
        ):
            protocol.add(MEMORY, self.in_memory(name).name, number, replicas)
        protocol.play(self.block, "the loader", self.load())
        protocol.play(self.block, "each weight warp", self.train_weights())
        rows = self.look_ahead if config.ahead else self.pass_tiles
        for warp in range(config.row_warps):
            protocol.play(self.block, f"row warp {warp}", rows(warp))
        for warp in range(config.output_warps):
            protocol.play(self.block, f"output warp {warp}", self.train_outputs(warp))

    def is_last_of_epoch(self, step: int) -> bool:
        return step % self.epoch == self.epoch - 1

    # -- the loader, and the weight warps, which do all the same

    def load(self) -> Iterator[Event]:
        loads, slots = self.steps * self.loads, self.ring
        for load in range(loads + slots):
            yield Wait(self.at("x_empty", load % slots), load // slots - 1)
            if load < loads and load % self.turn == self.turn - 1:
                yield Arrive(self.x_full(load), COPIED)

    def x_full(self, load: int) -> Place:
        return self.at("x_full", load // self.group % self.groups_ahead)

    def await_x(self, load: int) -> Wait:
        return Wait(self.x_full(load), load // self.group // self.groups_ahead)

    def free_x(self, load: int) -> Arrive:
        return Arrive(self.at("x_empty", load % self.ring), self.weight_warps)

    def train_weights(self) -> Iterator[Event]:
        following = 0
        for step in range(self.steps):
            ahead = self.config.ahead and not self.is_last_of_epoch(step)
            while following <= step + ahead:
                if self.is_divided:
                    yield from self.multiply_divided(following, step)
                else:
                    yield from self.multiply(following)
                following += 1
            yield from self.take_gradients(step)
            if self.replicas > 1:
                yield from self.exchange("gradients", 0, step)
                yield from self.exchange("weights", 0, step)

    def multiply(self, step: int) -> Iterator[Event]:
        for tile in range(self.tiles):
            load, place = step * self.loads + tile, step * self.tiles + tile
            if tile % self.group == 0:
                yield self.await_x(load)
            slot = place % self.config.sum_slots
            if self.config.sum_slots < self.sum_places:
                yield Wait(self.at("sums_empty", slot), place // self.config.sum_slots - 1)
            yield Arrive(self.at("sums_full", place % self.sum_barriers), self.weight_warps)
            if self.config.kept == 0:
                yield self.free_x(load)

    def multiply_divided(self, step: int, now: int) -> Iterator[Event]:
        if self.config.sent_slots == 1 and step > now and now % self.epoch == 0:
            yield from self.await_all("dz_full", self.groups, now)
        for piece in range(self.loads):
            yield self.await_x(step * self.loads + piece)
        sent = self.sent_units * self.tiles * 16 * 16 * 3
        full = self.at("divided sums_full", step % self.config.sum_slots)
        yield Arrive(full, self.sent_units, (self.parts - 1) * sent)
        yield from self.send_divided(full, sent)

    def send_divided(self, full: Place, sent: int) -> Iterator[Event]:
        """Send as many bytes to each of the blocks that divide the features with this one."""
        first = self.rank - self.rank % self.parts
        for rank in range(first, first + self.parts):
            if rank != self.rank:
                yield Arrive(self.at(full.name, full.idx, rank), 0, -sent)

    def take_gradients(self, step: int) -> Iterator[Event]:
        if self.is_divided:
            yield Wait(self.at("divided dh_full", step % 2), step // 2)
            for piece in range(self.loads):
                yield self.free_x(step * self.loads + piece)
            yield Arrive(self.at("dh_empty"), self.weight_warps)
            return
        first_load, group = step * self.loads + self.tiles - self.config.kept, self.group
        for first in range(0, self.tiles, self.back_group):
            if self.config.kept == 0:
                yield self.await_x(first_load + first)
            if not self.config.hidden:
                for tile in range(first, first + self.back_group, group):
                    yield Wait(self.at("dz_full", tile // group), step)
            elif first % self.hidden_group == 0:
                yield Wait(self.at("dh_full", first // self.hidden_group), step)
            for tile in range(first, first + self.back_group):
                yield self.free_x(first_load + tile)
        if self.config.ahead:
            yield Arrive(self.at("dh_empty"), self.weight_warps)

    # -- row warps

    def pass_tiles(self, warp: int) -> Iterator[Event]:
        warps = self.config.row_warps
        for step in range(self.steps):
            for tile in range(warp, self.tiles + 2 * warps, warps):
                if tile < self.tiles:
                    yield Wait(self.at("outputs_ready"), step - 1)
                    yield from self.take_sums(step, tile)
                    yield from self.begin_tile(tile)
                if 0 <= tile - warps < self.tiles:
                    yield from self.finish_rows(step, tile - warps)
                if self.config.hidden and tile >= 2 * warps:
                    yield from self.find_unit_gradients(step, tile - 2 * warps)

    def look_ahead(self, tile: int) -> Iterator[Event]:
        for step in range(self.steps) if tile < self.tiles else ():
            if step % self.epoch == 0:
                yield Wait(self.at("biases_ready"), step - 1)
                yield from self.take_sums(step, tile)
            yield Wait(self.at("outputs_ready"), step - 1)
            yield from self.begin_tile(tile)
            yield Wait(self.at("biases_ready"), step - 1)
            yield from self.finish_rows(step, tile)
            has_next = not self.is_last_of_epoch(step)
            if has_next and not self.is_divided:
                yield from self.take_sums(step + 1, tile)
            yield Wait(self.at("dh_empty"), step - 1)
            yield from self.find_unit_gradients(step, tile)
            if has_next and self.is_divided:
                yield from self.take_sums(step + 1, tile)
            if has_next:
                yield Wait(self.at("dh_full"), step)
            if self.rows_read_dh:
                yield Arrive(self.at("dh_empty"))

    def take_sums(self, step: int, tile: int) -> Iterator[Event]:
        if self.is_divided:
            slots = self.config.sum_slots
            yield Wait(self.at("divided sums_full", step % slots), step // slots)
            return
        place = step * self.tiles + tile
        full = self.at("sums_full", place % self.sum_barriers)
        yield Wait(full, place // self.sum_barriers)
        if self.config.sum_slots < self.sum_places:
            yield Arrive(self.at("sums_empty", place % self.config.sum_slots))

    def begin_tile(self, tile: int) -> Iterator[Event]:
        full = self.at("dz_full", tile // self.group)
        if self.cluster == 1:
            yield Arrive(full)
            return
        rows = min(16, self.own_rows)
        for row in range(tile * 16, tile * 16 + 16, rows):
            owner, own = divmod(row, self.own_rows)
            yield Arrive(self.at("parts_full", own // 16, owner), 0, -rows * self.output_bytes)
        yield Arrive(full, 1, 16 * self.gradient_bytes)

    def finish_rows(self, step: int, tile: int) -> Iterator[Event]:
        """Find losses of this block's rows of a tile, if it has any."""
        first, cluster = self.rank * self.own_rows // 16, self.cluster
        if cluster == 1 or not first <= tile < first + self.own_tiles:
            return
        rows, full = self.config.own_of_tile, self.at("parts_full", tile - first)
        yield Arrive(full, 1, cluster * rows * self.output_bytes)
        yield Wait(full, step)
        for rank in range(cluster):
            to = self.at("dz_full", tile // self.group, rank)
            yield Arrive(to, 0, -rows * self.gradient_bytes)
        yield Arrive(self.at("losses_full", step % 2, 0), 0, -8 * rows)

    def find_unit_gradients(self, step: int, tile: int) -> Iterator[Event]:
        yield Wait(self.at("dz_full", tile // self.group), step)
        yield Arrive(self.at("dh_full", tile // self.hidden_group))

    # -- output warps

    def train_outputs(self, warp: int) -> Iterator[Event]:
        config, warps = self.config, self.config.output_warps
        has_tiles, has_record = warp < self.output_tiles, self.rank == 0 and warp == warps - 1
        has_biases = (warp - self.output_tiles) % warps < self.bias_tiles
        for step in range(self.steps):
            if has_tiles:
                yield from self.await_all("dz_full", self.groups, step)
            if has_biases and not config.ahead:
                yield from self.await_biases(step)
            if self.replicas > 1 and (has_tiles or has_biases):
                yield from self.exchange("outputs", warp * 2 + step % 2, step // 2)
            yield from self.await_all("dz_full", self.groups, step)
            if has_record and self.cluster > 1:
                yield Arrive(self.at("losses_full", step % 2), 1, 8 * 16 * self.tiles)
            yield Arrive(self.at("outputs_ready"))
            if self.is_divided and warp == 1:
                yield Wait(self.at("dh_full"), step)
                if config.sent_slots == 1 and not self.is_last_of_epoch(step):
                    yield from self.take_sums(step + 1, 0)
                full = self.at("divided dh_full", step % 2)
                sent = 2 * 16 * self.sent_units * 16 * self.tiles
                yield Arrive(full, 1, (self.parts - 1) * sent)
                yield from self.send_divided(full, sent)
            if config.ahead:
                yield from self.await_biases(step)
                yield Arrive(self.at("biases_ready"))
            if has_record and self.cluster > 1:
                yield Wait(self.at("losses_full", step % 2), step // 2)

    def await_biases(self, step: int) -> Iterator[Event]:
        """Await the gradients that those of the first layer's biases are sums of."""
        if self.config.hidden:
            yield from self.await_all("dh_full", self.tiles // self.hidden_group, step)
        else:
            yield from self.await_all("dz_full", self.groups, step)

    def await_all(self, name: str, number: int, step: int) -> Iterator[Event]:
        for idx in range(number):
            yield Wait(self.at(name, idx), step)
