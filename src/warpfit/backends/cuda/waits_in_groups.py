"""Who waits for whom in `one_launch_small_sm90.cu`: groups of four warps, warps that help them, and
the loader.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.backends.cuda.resident_config import SmallConfig
from warpfit.backends.cuda.waits import MEMORY, Arrive, Block, Event, Place, Protocol, Wait

COPIED = 33  # arrivals of a batch that is copied
HELPERS, GROUP_WARPS = 7, 4
WORD_BYTES, SUM_BYTES, BIAS_BYTES = 16 * 128, 32 * 128, 8 * 32


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
        self.config, self.are_several = config, self.cluster > 1
        self.meeting = Place(MEMORY, f"meeting of block {self.block}")
        tiles = [-(-units // 16) for units in config.widths[1:]]
        # Of each bundle, how many blocks update a tile.
        self.bundles = [
            min(self.cluster, own - first) for own in tiles for first in range(0, own, self.cluster)
        ]

    def join(self, protocol: Protocol, steps: int) -> None:
        groups, last = self.config.groups, len(self.bundles) - 1
        for name, number, count in (
            ("x_full", 1, COPIED),
            ("x_free", 1, HELPERS + GROUP_WARPS * groups),
            ("losses_full", 2, HELPERS),
            ("sums_full", self.are_several * (last + 1), 1),
            ("words_full", self.are_several, 1),
            ("biases_full", self.are_several * 2, 1),
        ):
            protocol.add(self.block, name, number, count)
        roles = {
            f"group {group}": self.train(range(group, last, groups), range(0), steps)
            for group in range(groups)
        }
        outputs = range(last, last + 1)
        roles[f"group {groups}"] = self.train(outputs, range(GROUP_WARPS), steps)
        for warp in range(GROUP_WARPS, HELPERS):
            roles[f"helper {warp}"] = self.train(range(0), range(warp, warp + 1), steps)
        protocol.add(MEMORY, self.meeting.name, 1, len(roles))
        for name, events in {**roles, "the loader": self.keep_books(steps)}.items():
            protocol.play(self.block, name, events)

    def meet(self, phase: int) -> Iterator[Event]:
        yield from (Arrive(self.meeting), Wait(self.meeting, phase))

    def train(self, own: range, helpers: range, steps: int) -> Iterator[Event]:
        """Have bundles, of which those that help have one or none."""
        yield from self.share(own)
        yield from self.receive(own, 0)
        yield from self.meet(0)
        for step in range(steps):
            if step:
                yield from self.leave_losses(helpers, step - 1)
            yield Wait(self.at("x_full"), step)
            yield Arrive(self.at("x_free"), len(helpers) or GROUP_WARPS)
            yield from self.meet(2 * step + 1)
            if self.are_several:
                yield from self.exchange_step(own, helpers, step)
            yield from self.meet(2 * step + 2)
        yield from self.leave_losses(helpers, steps - 1)

    def leave_losses(self, helpers: range, step: int) -> Iterator[Event]:
        if helpers:
            yield Arrive(self.at("losses_full", step % 2), len(helpers))

    def exchange_step(self, own: range, helpers: range, step: int) -> Iterator[Event]:
        layers = len(self.config.widths) - 1
        for warp in helpers:
            first = (warp + HELPERS - GROUP_WARPS) % HELPERS
            sent = BIAS_BYTES * len(range(first, layers, HELPERS))
            yield from self.send("biases_full", step % 2, sent)
        for bundle in own:
            for rank in range(self.bundles[bundle]):
                if rank != self.rank:
                    yield Arrive(self.at("sums_full", bundle, rank), 0, -SUM_BYTES)
        for bundle in reversed(own):
            if self.rank < self.bundles[bundle]:
                owed = (self.cluster - 1) * SUM_BYTES
                yield from self.await_bytes("sums_full", bundle, step, owed)
                yield from self.share(range(bundle, bundle + 1))
        yield from self.receive(own, step + 1)
        if 0 in helpers:
            owed = (self.cluster - 1) * layers * BIAS_BYTES
            yield Arrive(self.at("biases_full", step % 2), 1, owed)
        if helpers:
            yield Wait(self.at("biases_full", step % 2), step // 2)

    def share(self, own: range) -> Iterator[Event]:
        for bundle in own:
            if self.rank < self.bundles[bundle]:
                yield from self.send("words_full", 0, WORD_BYTES)

    def receive(self, own: range, phase: int) -> Iterator[Event]:
        """Group 0 waits for all weights that others have updated."""
        if self.are_several and 0 in own:
            tiles = sum(count - (self.rank < count) for count in self.bundles)
            yield from self.await_bytes("words_full", 0, phase, tiles * WORD_BYTES)

    def keep_books(self, steps: int) -> Iterator[Event]:
        yield Arrive(self.at("x_full"), COPIED)
        for step in range(steps):
            yield Wait(self.at("x_free"), step)
            if step + 1 < steps:
                yield Arrive(self.at("x_full"), COPIED)
            yield Wait(self.at("losses_full", step % 2), step // 2)
