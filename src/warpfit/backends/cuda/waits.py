"""Whether a kernel that trains whole networks can hang: who waits for whom.

A module for each kernel (`waits_in_roles.py`, `waits_by_layers.py`) says, from the settings that
the kernel is compiled for, which barriers there are, and what each role waits for and arrives at
over some steps. None of that depends on numbers that are computed. So whatever the order in which
warps run, the same waits end: `hang_of` runs the roles against each other and finds those that do
not, or that end one phase early or late, as a barrier tells even phases from odd ones only.

The tests let the emulator record every kernel's waits, arrivals and bytes, and compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Arrive", "Event", "Place", "Protocol", "Wait", "hang_of"]


class Place(NamedTuple):
    """A barrier, or numbers in memory that say themselves that they have come.

    Attributes
    ----------
    block : int
        In whose shared memory it is; `MEMORY` if in none.
    name : str
    idx : int
    """

    block: int
    name: str
    idx: int = 0


MEMORY = -1


class Wait(NamedTuple):
    """Until a phase is complete; phase -1 always is."""

    place: Place
    phase: int


class Arrive(NamedTuple):
    """Arrivals of a role's warps, and bytes: those that they say are to come, less those sent."""

    place: Place
    arrivals: int = 1
    owed: int = 0


Event = Wait | Arrive
Role = tuple[int, str]  # its block and its name


@dataclass
class Protocol:
    """What a launch waits for, and what ends that.

    Attributes
    ----------
    counts : dict of Place to int
        Arrivals that make up a phase.
    roles : dict of (block, name) to list of Event
        What the warps of a role do, in order.
    """

    counts: dict[Place, int] = field(default_factory=dict)
    roles: dict[Role, list[Event]] = field(default_factory=dict)

    def add(self, block: int, name: str, number: int, count: int) -> None:
        """Add barriers of one name."""
        self.counts.update((Place(block, name, idx), count) for idx in range(number))

    def play(self, block: int, name: str, events: Iterator[Event]) -> None:
        """Add a role."""
        self.roles[block, name] = list(events)


class _State:
    """A place as a run goes on: the phase under way, and what it has."""

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

    Roles run as far as they can, the one that was woken first, and in a second run the last.
    """
    for first in (True, False):
        if (reason := _Run(protocol).reason(first=first)) is not None:
            return reason
    return None


class _Run:
    """The roles of a protocol, on their way."""

    def __init__(self, protocol: Protocol) -> None:
        self.roles = protocol.roles
        self.states = {place: _State(count) for place, count in protocol.counts.items()}
        self.at = dict.fromkeys(self.roles, 0)

    def reason(self, *, first: bool) -> str | None:
        """Return why not all roles come to their end."""
        ready, waiting = list(self.roles), dict[Place, list[Role]]()
        while ready:
            role = ready.pop(0 if first else -1)
            events = self.roles[role]
            for idx in range(self.at[role], len(events)):
                self.at[role], event = idx, events[idx]
                if (state := self.states.get(event.place)) is None:
                    return f"{_of(role)} uses {_text(event.place)}, which there is not"
                if isinstance(event, Wait):
                    if state.phase == event.phase:
                        waiting.setdefault(event.place, []).append(role)
                        break
                    if state.phase != event.phase + 1:
                        return (
                            f"{_of(role)} waits for phase {event.phase} of {_text(event.place)} "
                            f"when {state.phase} phases may be complete"
                        )
                elif state.take(event):
                    ready += waiting.pop(event.place, [])
                elif state.arrived > state.count:
                    return f"{_text(event.place)} gets more than {state.count} arrivals in a phase"
            else:
                self.at[role] = len(events)
        stuck = next((role for role, at in self.at.items() if at < len(self.roles[role])), None)
        return None if stuck is None else self._chain(stuck)

    def _chain(self, role: Role) -> str:
        """Return who waits for whom, from a role that waits to one that was named or to nobody."""
        links, seen = list[str](), set[Role]()
        while role not in seen:
            seen.add(role)
            place = self.roles[role][self.at[role]].place
            state = self.states[place]
            owed = f" and {state.owed} bytes" if state.owed else ""
            links.append(
                f"{_of(role)} waits for {_text(place)}, which has {state.arrived} of {state.count} "
                f"arrivals{owed}"
            )
            later = (other for other in self.roles if self._comes_to(other, place))
            if (found := next(later, None)) is None:
                return "; ".join([*links, "nobody is to arrive there"])
            role = found
        return "; ".join([*links, f"and that is for {_of(role)} to do"])

    def _comes_to(self, role: Role, place: Place) -> bool:
        """Return whether a role would arrive somewhere, or send bytes to it, if it went on."""
        return any(
            isinstance(event, Arrive) and event.place == place
            for event in self.roles[role][self.at[role] :]
        )


def _of(role: Role) -> str:
    return f"{role[1]} of block {role[0]}"


def _text(place: Place) -> str:
    where = "in memory" if place.block == MEMORY else f"of block {place.block}"
    return f"{place.name}[{place.idx}] {where}"
