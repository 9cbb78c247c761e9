"""Who waits for whom in kernels that train many networks, but for `many_networks.cu`, whose blocks
only meet themselves.

A block or a cluster that wants its next network at a rung waits until that has been decided
(`rungs.cuh`); who has a network never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

from warpfit.backends.cuda.resident_config import ManyClustersConfig
from warpfit.backends.cuda.table_config import TableConfig
from warpfit.backends.cuda.waits import MEMORY, Arrive, Block, Event, Place, Protocol, Wait

ROWS, WARP, WARPS, HELPERS, STAGES = 64, 32, 8, 4, 2


class Trained(NamedTuple):
    """Of a network's run: epochs, and batches of each, those of validation at its end."""

    epochs: int
    steps: int
    validated: int = 0


class _Batch(NamedTuple):
    """A batch's number and its epoch's among those of all networks, and the steps before it; where
    it is in its epoch.
    """

    number: int
    epoch: int
    step: int
    trains: bool
    is_first: bool
    is_last: bool


# What a warp does for a network's batches.
Task = Callable[[list[_Batch], int], Iterator[Event]]


def _batches(runs: Sequence[Trained]) -> Iterator[list[_Batch]]:
    """Yield the batches of each network."""
    numbers, epochs, steps = count(), count(), count()
    for run in runs:
        batches, each = list[_Batch](), run.steps + run.validated
        for epoch in islice(epochs, run.epochs):
            for idx in range(each):
                trains = idx < run.steps
                step = next(steps) if trains else 0
                ends = idx == 0, idx + 1 == each
                batches.append(_Batch(next(numbers), epoch, step, trains, *ends))
        yield batches


# -- clusters


def protocol_of_clusters(
    config: ManyClustersConfig, clusters: Sequence[Sequence[Trained]]
) -> Protocol:
    """Return what clusters do that train these networks each, one after the other."""
    protocol = Protocol()
    for number, runs in enumerate(clusters):
        for rank in range(config.cluster):
            _ClusterBlock(config, number, rank).join(protocol, list(_batches(runs)))
        protocol.add(MEMORY, f"barrier of cluster {number}", 1, 16 * config.cluster)
    return protocol


class _ClusterBlock(Block):
    """Sizes are named as in `cluster_network.cuh`."""

    def __init__(self, config: ManyClustersConfig, number: int, rank: int) -> None:
        super().__init__(config.cluster, number, rank)
        self.config, self.tiles = config, 1 + (config.hidden > ROWS)
        self.parts_of_block = 2 // self.tiles
        self.parts = self.cluster * self.parts_of_block
        self.own_tiles = ROWS // self.parts // 8
        pairs = (ROWS // self.cluster // 8 + 1) // 2
        self.warps_with_rows = pairs * (2 if 2 * pairs <= HELPERS else 1)
        self.reuses_sums = self.parts == 2 and self.cluster == 1

    def join(self, protocol: Protocol, networks: list[list[_Batch]]) -> None:
        alone, block = self.cluster == 1, self.block
        for name, number, arrivals in (
            ("x_full", STAGES, HELPERS),
            ("x_free", STAGES, WARPS + HELPERS),
            ("h_full", 1, WARPS),
            ("h_free", 1, HELPERS),
            ("dz_full", 1, self.warps_with_rows),
            ("losses_met", 1, HELPERS),
            ("bringers_met", 1, HELPERS),
            ("z_full", 2, 4 if alone else 1),
            ("others_met", 1 + self.reuses_sums, 4 if alone else (self.cluster - 1) * HELPERS),
            ("dh_full", 4 * self.tiles, self.parts_of_block),
            ("w2_free", 1, WARPS),
            ("outputs_full", 1, HELPERS),
            ("sums_full", 1, HELPERS + self.config.penalized * WARPS if alone else 1),
            ("verdict_full", 2, 1),
            ("next_full", 1, 1),
        ):
            protocol.add(block, name, number, arrivals)
        protocol.add(MEMORY, f"next of block {block}", 1, 1)
        for kind, number, task in (
            ("unit", WARPS, self.train_units),
            ("loss", HELPERS, self.find_losses),
            ("batch", HELPERS, self.bring_batches),
        ):
            for warp in range(number):
                events = self.over_networks(networks, warp, task)
                protocol.play(block, f"{kind} warp {warp}", events)
        protocol.play(block, "who takes networks", self.take_networks(len(networks)))
        protocol.play(block, "the judge", self.judge(networks))

    # -- from network to network

    def take_networks(self, number: int) -> Iterator[Event]:
        for idx in range(number + 1):
            yield Wait(Place(MEMORY, f"barrier of cluster {self.number}"), idx)
            if self.cluster > 1:
                yield Arrive(self.at("next_full"), 1, 8)
                for rank in range(self.cluster) if self.rank == 0 else ():
                    yield Arrive(self.at("next_full", 0, rank), 0, -8)
                yield Wait(self.at("next_full"), idx)
            yield Arrive(Place(MEMORY, f"next of block {self.block}"))

    def over_networks(self, networks: list[list[_Batch]], warp: int, task: Task) -> Iterator[Event]:
        """Do a task for each network, once all know which is next; and know when there is none."""
        for idx, batches in enumerate([*networks, []]):
            yield Arrive(Place(MEMORY, f"barrier of cluster {self.number}"))
            yield Wait(Place(MEMORY, f"next of block {self.block}"), idx)
            yield from task(batches, warp)

    def judge(self, networks: list[list[_Batch]]) -> Iterator[Event]:
        for batch in (batch for batches in networks for batch in batches if batch.is_last):
            yield Wait(self.at("sums_full"), batch.epoch)
            yield Arrive(self.at("verdict_full", batch.epoch % 2))

    def verdict(self, epoch: int) -> Wait:
        return Wait(self.at("verdict_full", epoch % 2), epoch // 2)

    def x_full(self, batch: _Batch) -> Wait:
        return Wait(self.at("x_full", batch.number % STAGES), batch.number // STAGES)

    def free_x(self, batch: _Batch) -> Arrive:
        return Arrive(self.at("x_free", batch.number % STAGES))

    # -- those who bring batches

    def bring_batches(self, batches: list[_Batch], _: int) -> Iterator[Event]:
        for batch in batches:
            stage, turn = batch.number % STAGES, batch.number // STAGES
            yield Arrive(self.at("bringers_met"))
            yield Wait(self.at("bringers_met"), batch.number)
            yield Wait(self.at("x_free", stage), turn - 1)
            yield Arrive(self.at("x_full", stage))
            if batch.is_first and batch.epoch > batches[0].epoch:
                yield self.verdict(batch.epoch - 1)
        if batches:
            yield self.verdict(batches[-1].epoch)

    # -- those who have hidden units

    def train_units(self, batches: list[_Batch], warp: int) -> Iterator[Event]:
        for batch in batches:
            yield self.x_full(batch)
            if self.parts > 1:
                yield from self.exchange_sums(batch, warp)
            yield Wait(self.at("h_free"), batch.number - 1)
            yield Arrive(self.at("h_full"))
            yield Wait(self.at("dz_full"), batch.number)
            if batch.trains:
                yield Arrive(self.at("w2_free"))
            if self.parts > 1:
                yield from self.exchange_dh(batch, warp)
            yield self.free_x(batch)
            if batch.is_last:
                yield from self.send_penalty()
                yield self.verdict(batch.epoch)

    def exchange_sums(self, batch: _Batch, warp: int) -> Iterator[Event]:
        group, number, sent = warp // 4, batch.number, WARP * 16 * self.own_tiles
        if self.reuses_sums:
            if number:
                yield Wait(self.at("x_free", (number - 1) % STAGES), (number - 1) // STAGES)
            yield Wait(self.at("h_free"), number - 1)
        if self.cluster == 1:
            yield Arrive(self.at("z_full", 1 - group))
        elif warp % 4 == 0:
            yield Arrive(self.at("z_full", group), 1, (self.parts - 1) * 4 * sent)
        own = self.rank * self.parts_of_block + (0 if self.tiles > 1 else group)
        for part in range(self.parts) if self.cluster > 1 else ():
            to = group if self.tiles > 1 else part % self.parts_of_block
            if part != own:
                yield Arrive(self.at("z_full", to, part // self.parts_of_block), 0, -sent)
        yield Wait(self.at("z_full", group), number)
        if self.reuses_sums:
            yield Arrive(self.at("others_met", group))
            yield Wait(self.at("others_met", group), number)

    def exchange_dh(self, batch: _Batch, warp: int) -> Iterator[Event]:
        units = (warp if self.tiles > 1 else 0) // 4 * 4 + warp % 4
        sent = WARP * 8 * self.own_tiles if batch.trains else 8
        yield from self.send("dh_full", units, sent)
        yield from self.await_bytes("dh_full", units, batch.number, (self.cluster - 1) * sent)

    def send_penalty(self) -> Iterator[Event]:
        for rank in range(self.cluster) if self.config.penalized else ():
            alone = self.cluster == 1
            yield Arrive(self.at("sums_full", 0, rank), int(alone), 0 if alone else -8)

    # -- those who find losses

    def find_losses(self, batches: list[_Batch], warp: int) -> Iterator[Event]:
        for batch in batches:
            yield Arrive(self.at("losses_met"))
            yield Wait(self.at("losses_met"), batch.number)
            if warp < self.warps_with_rows:
                yield self.x_full(batch)
                yield Wait(self.at("h_full"), batch.number)
                yield Arrive(self.at("dz_full"))
            if batch.trains:
                yield Wait(self.at("dz_full"), batch.number)
                yield from self.update_outputs(batch, warp)
            else:
                yield Arrive(self.at("h_free"))
            yield self.free_x(batch)
            if batch.is_last:
                yield from self.send_losses(warp)
                yield self.verdict(batch.epoch)

    def update_outputs(self, batch: _Batch, warp: int) -> Iterator[Event]:
        first, others = 16 * self.tiles * warp, self.cluster - 1
        units = min(16 * self.tiles, max(0, self.config.hidden - first)) + (warp == HELPERS - 1)
        sent = 8 * units * ((self.config.outputs + 1) // 2)
        if others:
            if sent:
                yield Wait(self.at("others_met"), batch.step - 1)
            yield from self.send("outputs_full", 0, sent)
            yield Arrive(self.at("outputs_full"), 1, others * sent)
        yield Arrive(self.at("h_free"))
        if others:
            yield Wait(self.at("outputs_full"), batch.step)
        yield Wait(self.at("w2_free"), batch.step)
        for rank in range(self.cluster):
            if rank != self.rank:
                yield Arrive(self.at("others_met", 0, rank))

    def send_losses(self, warp: int) -> Iterator[Event]:
        if self.cluster == 1:
            yield Arrive(self.at("sums_full"))
            return
        if warp == 0:
            of_block = HELPERS * 32 + self.config.penalized * WARPS * 8
            yield Arrive(self.at("sums_full"), 1, self.cluster * of_block)
        for rank in range(self.cluster):
            yield Arrive(self.at("sums_full", 0, rank), 0, -32)


# -- groups of four warps


def protocol_of_groups(blocks: Sequence[Sequence[Sequence[Trained]]]) -> Protocol:
    """Return what the groups of some blocks do that train these networks each."""
    protocol = Protocol()
    for block, groups in enumerate(blocks):
        for group, runs in enumerate(groups):
            own, networks = _Group(block, group), list(_batches(runs))
            for name, number, arrivals in (
                ("batch_full", STAGES, 1),
                ("batch_free", STAGES, 4),
                ("network_full", 1, 1),
                ("verdict_full", 2, 1),
            ):
                protocol.add(block, own.at(name).name, number, arrivals)
            protocol.play(block, f"each warp of group {group}", own.train(networks))
            protocol.play(block, f"row warp {group}", own.bring_rows(networks))
    return protocol


class _Group(Block):
    """Four warps and the warp that brings their rows."""

    def __init__(self, block: int, group: int) -> None:
        self.group = group
        super().__init__(1, block, 0)

    def at(self, name: str, idx: int = 0, rank: int | None = None) -> Place:
        return super().at(f"{name} of group {self.group}", idx, rank)

    def train(self, networks: list[list[_Batch]]) -> Iterator[Event]:
        for batches in [*networks, []]:
            yield Arrive(self.at("network_full"))
            for batch in batches:
                yield Wait(self.at("batch_full", batch.number % STAGES), batch.number // STAGES)
                yield Arrive(self.at("batch_free", batch.number % STAGES), 4)
                if batch.is_last:
                    own_epoch = batch.epoch - batches[0].epoch
                    yield Arrive(self.at("verdict_full", own_epoch % 2))

    def bring_rows(self, networks: list[list[_Batch]]) -> Iterator[Event]:
        verdicts = [0, 0]
        for idx, batches in enumerate([*networks, []]):
            yield Wait(self.at("network_full"), idx)
            under_way: list[_Batch] = []
            judged = begun = batches[0].epoch if batches else 0
            for batch in [*batches, None]:
                awaited = begun if batch else begun + bool(batches)
                if judged < awaited or batch is None:
                    yield from self.hand_over(under_way)
                for epoch in range(judged, awaited):
                    odd = (epoch - batches[0].epoch) % 2
                    yield Wait(self.at("verdict_full", odd), verdicts[odd])
                    verdicts[odd] += 1
                judged = awaited
                if batch is not None:
                    yield from self.hand_over(under_way)
                    stage, turn = batch.number % STAGES, batch.number // STAGES
                    yield Wait(self.at("batch_free", stage), turn - 1)
                    under_way.append(batch)
                    begun = batch.epoch

    def hand_over(self, under_way: list[_Batch]) -> Iterator[Event]:
        """Hand over the batch that is in flight, if there is one."""
        for batch in under_way:
            yield Arrive(self.at("batch_full", batch.number % STAGES))
        under_way.clear()


# -- tables


def protocol_of_tables(config: TableConfig, blocks: int, epochs: Sequence[int]) -> Protocol:
    """Return what a grid of so many blocks does in epochs of so many steps: all counters lie in
    memory, and a phase of one is as many arrivals as the kernel waits for.
    """
    row_blocks = config.networks * -(-config.batch // (8 * config.row_tiles))
    early, tasks = (config.networks * number for number in _tasks(config))
    with_rows, apart = min(blocks, row_blocks), blocks >= 2 * row_blocks
    each = -(-tasks // (blocks - row_blocks)) if apart else 1
    protocol = Protocol()
    for name, arrivals in (
        ("gradients", with_rows),
        ("rows", with_rows),
        ("updates", min(blocks, -(-tasks // each))),
        ("validations", blocks),
    ):
        protocol.add(MEMORY, name, 1, arrivals)
    for block in range(blocks):
        first = (block - row_blocks) * each if apart else block
        last = min(tasks, first + each) if apart else tasks
        updates = (first < early, last > early) if 0 <= first < last else ()
        events = _table_block(block < row_blocks, updates, epochs)
        protocol.play(block, "each warp", events)
    return protocol


def _tasks(config: TableConfig) -> tuple[int, int]:
    """Return a network's tasks whose gradients come early, and all: `table_updates.cuh`."""
    inputs = 4 * config.numbers + config.indicators + 8 * config.codes
    of_inputs, of_hidden, of_outputs = (
        -(-size // 16) for size in (inputs, config.hidden, config.outputs)
    )
    vectors = 83 * config.numbers + 2 * config.hidden_layers * config.hidden
    vectors += config.outputs + inputs
    early = ((config.hidden_layers - 1) * of_hidden + of_outputs) * of_hidden
    return early, early + of_inputs * of_hidden + -(-vectors // 8) + config.num_codes


def _table_block(
    has_rows: bool, updates: tuple[bool, ...], epochs: Sequence[int]
) -> Iterator[Event]:
    def place(name: str) -> Place:
        return Place(MEMORY, name)

    done = 0
    yield from (Arrive(place("validations")), Wait(place("validations"), 0))
    for epoch, steps in enumerate(epochs):
        for _ in range(steps):
            if has_rows:
                yield Wait(place("updates"), done - 1)
                yield from (Arrive(place("gradients")), Arrive(place("rows")))
            for name, awaits in zip(("gradients", "rows"), updates, strict=False):
                if awaits:
                    yield Wait(place(name), done)
            if updates:
                yield Arrive(place("updates"))
            done += 1
        if has_rows:
            yield Wait(place("updates"), done - 1)
        yield from (Arrive(place("validations")), Wait(place("validations"), epoch + 1))
