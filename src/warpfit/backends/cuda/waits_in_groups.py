"""Who waits for whom in `one_launch_small_sm90.cu`: groups of four warps, warps that help them, and
the clerk, for whom alone nobody waits but at barriers in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.backends.cuda.resident_config import SmallConfig
from warpfit.backends.cuda.waits import MEMORY, Arrive, Block, Event, Place, Protocol, Wait

COPIED = 33  # arrivals of a batch that is copied
HELPERS, GROUP_WARPS = 7, 4
WORD_BYTES, SUM_BYTES, PAIR_BYTES = 16 * 128, 32 * 128, 8 * 32


def protocol_in_groups(config: SmallConfig, steps: int) -> Protocol:
    """Return what the warps of all blocks do in some steps."""
    protocol = Protocol()
    for rank in range(config.cluster):
        _GroupsBlock(config, rank).join(protocol, steps)
    return protocol


class _GroupsBlock(Block):
    """Sizes are named as in `group_network.cuh`."""

    def __init__(self, config: SmallConfig, rank: int) -> None:
        super().__init__(config.cluster, 0, rank)
        self.groups = config.groups
        *inputs, outputs = config.widths
        tiles = [-(-units // 16) for units in inputs[1:]]
        # Of each bundle, how many blocks update a tile.
        self.bundles = [
            min(self.cluster, count - first)
            for count in tiles
            for first in range(0, count, self.cluster)
        ]
        out_tiles = -(-outputs // 8)
        # Pairs of sums of each item that helpers update.
        self.pairs = [1] * len(tiles) + [3 * out_tiles] + [2 * out_tiles] * (tiles[-1] - 1)

    def join(self, protocol: Protocol, steps: int) -> None:
        at_work, several = HELPERS + GROUP_WARPS * self.groups, self.cluster > 1
        for name, number, count in (
            ("x_full", 1, COPIED),
            ("x_free", 1, at_work),
            ("losses_full", 2, HELPERS),
            ("sums_full", several * len(self.bundles), 1),
            ("words_full", several * len(self.bundles), 1),
            ("rest_full", several * 2, 1),
        ):
            protocol.add(self.block, name, number, count)
        protocol.add(MEMORY, self.meeting.name, 1, HELPERS + self.groups)
        for group in range(self.groups):
            protocol.play(self.block, f"group {group}", self.train(group, steps))
        for warp in range(HELPERS):
            protocol.play(self.block, f"helper {warp}", self.help(warp, steps))
        protocol.play(self.block, "the clerk", self.keep_books(steps))

    @property
    def meeting(self) -> Place:
        return Place(MEMORY, f"meeting of block {self.block}")

    def meet(self, phase: int) -> Iterator[Event]:
        yield from (Arrive(self.meeting), Wait(self.meeting, phase))

    def begin(self, step: int, warps: int) -> Iterator[Event]:
        """Wait for a batch, leave it, and hand over what it became."""
        yield Wait(self.at("x_full"), step)
        yield Arrive(self.at("x_free"), warps)
        yield from self.meet(2 * step + 1)

    # -- groups

    def train(self, group: int, steps: int) -> Iterator[Event]:
        own = range(group, len(self.bundles), self.groups)
        for bundle in own:
            yield from self.share(bundle)
        yield from self.receive(own, 0)
        yield from self.meet(0)
        for step in range(steps):
            yield from self.begin(step, GROUP_WARPS)
            for bundle in own:
                for rank in range(self.bundles[bundle]):
                    if rank != self.rank:
                        yield Arrive(self.at("sums_full", bundle, rank), 0, -SUM_BYTES)
            for bundle in own if self.cluster > 1 else ():
                if self.rank < self.bundles[bundle]:
                    owed = (self.cluster - 1) * SUM_BYTES
                    yield from self.await_bytes("sums_full", bundle, step, owed)
                    yield from self.share(bundle)
            yield from self.receive(own, step + 1)
            yield from self.meet(2 * step + 2)

    def share(self, bundle: int) -> Iterator[Event]:
        if self.rank < self.bundles[bundle]:
            yield from self.send("words_full", bundle, WORD_BYTES)

    def receive(self, bundles: range, phase: int) -> Iterator[Event]:
        for bundle in bundles if self.cluster > 1 else ():
            tiles = self.bundles[bundle]
            others = tiles - (self.rank < tiles)
            yield from self.await_bytes("words_full", bundle, phase, others * WORD_BYTES)

    # -- those who help

    def help(self, warp: int, steps: int) -> Iterator[Event]:
        yield from self.meet(0)
        for step in range(steps):
            if step:
                yield self.leave_losses(step - 1)
            yield from self.begin(step, 1)
            if self.cluster > 1:
                yield from self.exchange_rest(warp, step)
            yield from self.meet(2 * step + 2)
        yield self.leave_losses(steps - 1)

    def exchange_rest(self, warp: int, step: int) -> Iterator[Event]:
        for pairs in self.pairs[warp::HELPERS]:
            yield from self.send("rest_full", step % 2, pairs * PAIR_BYTES)
        if warp == 0:
            owed = (self.cluster - 1) * sum(self.pairs) * PAIR_BYTES
            yield Arrive(self.at("rest_full", step % 2), 1, owed)
        yield Wait(self.at("rest_full", step % 2), step // 2)

    def leave_losses(self, step: int) -> Event:
        return Arrive(self.at("losses_full", step % 2))

    def keep_books(self, steps: int) -> Iterator[Event]:
        yield Arrive(self.at("x_full"), COPIED)
        for step in range(steps):
            yield Wait(self.at("x_free"), step)
            if step + 1 < steps:
                yield Arrive(self.at("x_full"), COPIED)
            yield Wait(self.at("losses_full", step % 2), step // 2)
