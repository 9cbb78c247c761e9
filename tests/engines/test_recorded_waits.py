"""Who waits for whom in kernels of whole runs: what the host knows of it is what they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from conftest import on_emulator
from emulator.recording import ARRIVAL, MADE, WAIT, Launch, Record, recorded
from support.devices import open_emulated
from support.resident_cases import BY_LAYERS, ON_A_CARD, SPECIALIZED, Case
from warpfit.backends.cuda.resident_config import CONFIGS, OneLaunchConfig
from warpfit.backends.cuda.waits import MEMORY, Place, Protocol, Wait
from warpfit.backends.cuda.waits_by_layers import protocol_by_layers, protocol_on_card
from warpfit.backends.cuda.waits_specialized import specialized_protocol

pytestmark = [on_emulator]

MULTIPROCESSORS = 132
STEPS = 5  # of an epoch of each case
WARP = 32


def some(cases: list[Case]) -> list[Any]:
    """Return the cases, of which most are for when there is time."""
    return [
        pytest.param(case, marks=pytest.mark.slow if i > 2 else ()) for i, case in enumerate(cases)
    ]


# A role's waits, each as (place, parity), and what it does before the first, between them and after
# the last: arrivals, and bytes that it owes, by place.
Played = tuple[list[tuple[Place, int]], list[dict[Place, tuple[int, int]]]]
# A wait's place and parity, or an arrival's place, number and bytes.
Noted = tuple[Place, int] | tuple[Place, int, int]


def played(events: Iterable[Noted]) -> Played:
    """Sum up what comes between waits. A wait that has ended once is over."""
    waits: list[tuple[Place, int]] = []
    between: list[Counter[Any]] = [Counter()]
    last: dict[Place, int] = {}
    for place, number, *owed in events:
        if owed:
            between[-1].update({(place, 0): number, (place, 1): owed[0]})
        elif last.get(place) != number:
            last[place] = number
            waits.append((place, number))
            between.append(Counter())
    pairs = [{at: (own[at, 0], own[at, 1]) for at, _ in own} for own in between]
    return waits, [{at: pair for at, pair in own.items() if any(pair)} for own in pairs]


def known(protocol: Protocol, role: tuple[int, str]) -> Played:
    """Return what the host knows of a role, but for what goes through memory."""
    return played(
        (event.place, event.phase % 2) if isinstance(event, Wait) else tuple(event)
        for event in protocol.roles[role]
        if event.place.block != MEMORY
    )


def seen(records: list[Record], places: dict[int, list[Place]], threads: range) -> Played:
    """Return what threads of one block did together, all of which wait for the same."""
    by_thread: dict[int, list[Noted]] = {thread: [] for thread in threads}
    for record in records:
        if record.thread in threads and record.what != MADE:
            place = places[record.owner][record.barrier]
            counts = record.what == ARRIVAL
            sign = 1 if counts else -1
            is_wait = record.what == WAIT
            by_thread[record.thread].append(
                (place, record.number) if is_wait else (place, int(counts), sign * record.number)
            )
    found = [played(events) for events in by_thread.values()]
    waits, totals = found[0][0], [Counter[Any]() for _ in found[0][1]]
    for own_waits, between in found:
        assert own_waits == waits
        for total, own in zip(totals, between, strict=True):
            for place, (count, owed) in own.items():
                total.update({(place, 0): count, (place, 1): owed})
    pairs = [{at: (own[at, 0], own[at, 1]) for at, _ in own} for own in totals]
    return waits, [{at: pair for at, pair in own.items() if any(pair)} for own in pairs]


def assert_known(launch: Launch, protocol: Protocol, threads_of: Callable[[str], range]) -> None:
    """Assert that barriers are made with the counts that the host knows, and that all roles wait
    and arrive as it says.
    """
    places: dict[int, list[Place]] = {}
    for place in protocol.counts:
        if place.block != MEMORY:
            places.setdefault(place.block, []).append(place)
    made = {
        places[record.owner][record.barrier]: record.number
        for record in launch.records
        if record.what == MADE
    }
    assert made == {at: count for at, count in protocol.counts.items() if at.block != MEMORY}
    for block, name in protocol.roles:
        records = [record for record in launch.records if record.block == block]
        waits, between = seen(records, places, threads_of(name))
        expected_waits, expected = known(protocol, (block, name))
        assert waits == expected_waits, (block, name)
        assert between == expected, (block, name)


def specialized_threads(config: OneLaunchConfig) -> Callable[[str], range]:
    """Return the threads of each role."""
    weights = config.warps_k * config.warps_u
    first = {"row": weights, "output": weights + config.row_warps}

    def threads_of(name: str) -> range:
        kind, *_, number = name.split()
        if name == "each weight warp":
            return range(weights * WARP)
        loader = weights + config.row_warps + config.output_warps
        warp = loader if name == "the loader" else first[kind] + int(number)
        return range(warp * WARP, (warp + 1) * WARP)

    return threads_of


@pytest.mark.parametrize("case", some(SPECIALIZED), ids=str)
def test_warp_specialized(
    monkeypatch: pytest.MonkeyPatch,
    only_specialized_cluster: Callable[[int], None],
    launches: list[int],
    case: Case,
) -> None:
    words = case.specialize(monkeypatch, only_specialized_cluster)
    open_emulated(monkeypatch, num_multiprocessors=MULTIPROCESSORS)
    with recorded(("one_launch",)) as found:
        case.train(words)
    assert len(found) == len(launches) > 0
    for launch, epochs in zip(found, launches, strict=True):
        config = CONFIGS[launch.kernel].of(launch.settings)
        protocol = specialized_protocol(config, STEPS, epochs, config.replicas)
        assert_known(launch, protocol, specialized_threads(config))


@pytest.mark.parametrize("case", some(BY_LAYERS), ids=str)
@pytest.mark.usefixtures("by_layers")
def test_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    launches: list[int],
    case: Case,
) -> None:
    only_cluster(case.cluster)
    only_replicas(case.replicas)
    open_emulated(monkeypatch, num_multiprocessors=MULTIPROCESSORS)
    with recorded(("one_launch_layers",)) as found:
        case.train("layer by layer")
    assert len(found) == len(launches) > 0
    for launch, epochs in zip(found, launches, strict=True):
        config = CONFIGS[launch.kernel].of(launch.settings)
        protocol = protocol_by_layers(config, STEPS * epochs, 0, config.replicas)
        assert_known(launch, protocol, lambda _, own=launch: range(own.threads))


@pytest.mark.parametrize("case", some(ON_A_CARD), ids=str)
def test_on_a_card(
    monkeypatch: pytest.MonkeyPatch,
    only_card: Callable[..., None],
    launches: list[int],
    case: Case,
) -> None:
    case.take_a_card(only_card)
    open_emulated(monkeypatch)
    with recorded(("one_launch_card",)) as found:
        case.train("weights")
    assert len(found) == len(launches) > 0
    for launch, epochs in zip(found, launches, strict=True):
        config = CONFIGS[launch.kernel].of(launch.settings)
        protocol = protocol_on_card(config, STEPS * epochs)
        assert_known(launch, protocol, lambda _, own=launch: range(own.threads))
