"""Whether a kernel that trains whole networks can hang: who waits for whom.

`waits_specialized.py`, `waits_by_layers.py` and `waits_of_many.py` say, from the settings that a
kernel is compiled for, which barriers it has, and what each role waits for and arrives at over some
steps. None of that depends on numbers that are computed, so the same waits end in whatever order
warps run. `hang_of` runs the roles against each other and finds waits that do not end, or that end
a phase early or late: barriers tell even phases from odd ones only.

The tests let the emulator record each kernel's arrivals, bytes and waits, and compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MEMORY = -1
Role = tuple[int, str]  # its block, and its name


class Place(NamedTuple):
    """A barrier of a block; or, of block `MEMORY`, numbers that say themselves that they came."""

    block: int
    name: str
    idx: int = 0

    def __str__(self) -> str:
        where = "in memory" if self.block == MEMORY else f"of block {self.block}"
        return f"{self.name}[{self.idx}] {where}"


class Wait(NamedTuple):
    """Until a phase is complete; phase -1 always is."""

    place: Place
    phase: int


class Arrive(NamedTuple):
    """Arrivals, and bytes: those that are said to come, less those sent."""

    place: Place
    arrivals: int = 1
    owed: int = 0


Event = Wait | Arrive


@dataclass
class Protocol:
    """What a launch waits for, and what ends that.

    Attributes
    ----------
    counts : dict of Place to int
        Arrivals that make up a phase. A block's barriers are in the order in which it makes them.
    roles : dict of (block, name) to list of Event
        What the warps of a role do, in order.
    """

    counts: dict[Place, int] = field(default_factory=dict)
    roles: dict[Role, list[Event]] = field(default_factory=dict)

    def add(self, block: int, name: str, number: int, count: int) -> None:
        """Add barriers of one name."""
        self.counts.update((Place(block, name, idx), count) for idx in range(number))

    def play(self, block: int, name: str, events: Iterable[Event]) -> None:
        """Add a role."""
        self.roles[block, name] = list(events)


class Block:
    """What blocks of clusters do alike.

    Parameters
    ----------
    cluster, number, rank : int
        Blocks of a cluster, which cluster it is, and which of its blocks this is.
    """

    def __init__(self, cluster: int, number: int, rank: int) -> None:
        self.cluster, self.number, self.rank = cluster, number, rank
        self.block = self.at("").block

    def at(self, name: str, idx: int = 0, rank: int | None = None) -> Place:
        """Return a barrier of this block, or of another one of its cluster."""
        own = self.rank if rank is None else rank
        return Place(self.number * self.cluster + own, name, idx)

    def in_memory(self, name: str, idx: int = 0) -> Place:
        """Return a place that the blocks of this rank share."""
        return Place(MEMORY, f"{name} of rank {self.rank}", idx)

    def exchange(self, name: str, idx: int, phase: int) -> Iterator[Event]:
        """Leave numbers to the replicas, and wait for theirs."""
        yield Arrive(self.in_memory(name, idx))
        yield Wait(self.in_memory(name, idx), phase)

    def send(self, name: str, idx: int, sent: int) -> Iterator[Event]:
        """Send as many bytes to each other block of the cluster."""
        for rank in range(self.cluster):
            if rank != self.rank and sent:
                yield Arrive(self.at(name, idx, rank), 0, -sent)

    def await_bytes(self, name: str, idx: int, phase: int, owed: int) -> Iterator[Event]:
        """Say how many bytes are to come, and wait for them."""
        yield Arrive(self.at(name, idx), 1, owed)
        yield Wait(self.at(name, idx), phase)


class _State:
    """A place as a run goes on: the phase that is not complete, and what it has."""

    __slots__ = ("arrived", "count", "owed", "phase")

    def __init__(self, count: int) -> None:
        self.count, self.phase, self.arrived, self.owed = count, 0, 0, 0

    def take(self, event: Arrive) -> bool:
        """Count an arrival, and return whether the phase is complete with it."""
        self.arrived += event.arrivals
        self.owed += event.owed
        if self.arrived != self.count or self.owed:
            return False
        self.phase, self.arrived = self.phase + 1, 0
        return True


def hang_of(protocol: Protocol) -> str | None:
    """Return why a launch would hang, as the end of a sentence, or None.

    Each role runs as far as it can, the one that was woken first; in a second run the last. In
    others one of the first block is as late as may be: it takes a step where no other role can.
    """
    runs: list[tuple[int, Role | None]] = [(0, None), (-1, None)]
    runs += [(0, role) for role in protocol.roles if role[0] == 0]
    hangs = (_Run(protocol).hang(next_one, late) for next_one, late in runs)
    return next((hang for hang in hangs if hang), None)


class _Run:
    """The roles of a protocol, on their way."""

    def __init__(self, protocol: Protocol) -> None:
        self.roles = protocol.roles
        self.states = {place: _State(count) for place, count in protocol.counts.items()}
        self.at = dict.fromkeys(self.roles, 0)

    def hang(self, next_one: int, late: Role | None) -> str | None:
        ready, waiting = list(self.roles), dict[Place, list[Role]]()
        while ready:
            role = ready.pop(next_one)
            if role == late and ready:
                ready.append(role)
                role = ready.pop(next_one)
            for event in self.roles[role][self.at[role] :]:
                place = event.place
                if (state := self.states.get(place)) is None:
                    return f"{_text(role)} uses {place}, which there is not"
                if isinstance(event, Wait):
                    if state.phase == event.phase:
                        waiting.setdefault(place, []).append(role)
                        break
                    if state.phase != event.phase + 1:
                        may_be = f"when {state.phase} phases may be complete"
                        return f"{_text(role)} waits for phase {event.phase} of {place} {may_be}"
                elif state.take(event):
                    ready += waiting.pop(place, [])
                elif state.arrived > state.count:
                    return f"{place} gets more than {state.count} arrivals in a phase"
                self.at[role] += 1
                if role == late and ready:
                    ready.append(role)
                    break
        stuck = (role for role, at in self.at.items() if at < len(self.roles[role]))
        return next((self._chain(role) for role in stuck), None)

    def _chain(self, role: Role) -> str:
        """Return who waits for whom, until somebody comes again, or nobody is to arrive."""
        links: dict[Role, str] = {}
        while role not in links:
            place = self.roles[role][self.at[role]].place
            state = self.states[place]
            owed = f" and {state.owed} bytes to come" if state.owed else ""
            has = f"{state.arrived} of {state.count} arrivals{owed}"
            links[role] = f"{_text(role)} waits for {place}, which has {has}"
            later = (other for other in self.roles if self._comes_to(other, place))
            if (found := next(later, None)) is None:
                return "; ".join([*links.values(), "nobody is to arrive there"])
            role = found
        return "; ".join([*links.values(), f"and that is for {_text(role)} to do"])

    def _comes_to(self, role: Role, place: Place) -> bool:
        rest = self.roles[role][self.at[role] :]
        return any(isinstance(event, Arrive) and event.place == place for event in rest)


def _text(role: Role) -> str:
    return f"{role[1]} of block {role[0]}"
