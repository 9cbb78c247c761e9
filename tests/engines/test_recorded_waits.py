"""Who waits for whom in kernels of whole runs: what the host knows of it is what they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from emulator.recording import ARRIVAL, WAIT, Launch, events_of, recorded
from support.devices import open_emulated
from support.one_launch import Images, fit
from support.resident_cases import BY_LAYERS, IN_GROUPS, ON_A_CARD, SPECIALIZED, Case
from warpfit import nn, optim
from warpfit.backends.cuda.many_networks_sm90 import ManyClusters, with_shared_slices
from warpfit.backends.cuda.many_small_networks_sm90 import ManySmallNetworks
from warpfit.backends.cuda.resident_config import CONFIGS, OneLaunchConfig
from warpfit.backends.cuda.waits import MEMORY, Place, Protocol, Wait
from warpfit.backends.cuda.waits_by_layers import (
    protocol_by_layers,
    protocol_of_images,
    protocol_on_card,
)
from warpfit.backends.cuda.waits_in_groups import protocol_in_groups
from warpfit.backends.cuda.waits_of_many import Trained, protocol_of_clusters, protocol_of_groups
from warpfit.backends.cuda.waits_specialized import specialized_protocol
from warpfit.engines import many_networks

pytestmark = [on_emulator]

MULTIPROCESSORS = 132
STEPS = 5  # of an epoch of each case
WARP = 32


def some(cases: list[Case], places: Sequence[int]) -> list[Any]:
    """Return the cases, of which all but those at some places are for when there is time."""
    return [
        pytest.param(case, marks=() if place in places else pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


# A role's waits, each as (place, parity), and what it does before the first, between them and after
# the last: arrivals, and bytes that it owes, by place.
Owed = dict[Place, tuple[int, int]]
Played = tuple[list[tuple[Place, int]], list[Owed]]
# Whether a wait, or an arrival, at a place of a name is what a role does.
Chooser = Callable[[str, bool], bool]
# A wait's place and parity, or an arrival's place, number and bytes.
Noted = tuple[Place, int] | tuple[Place, int, int]


def add(total: Owed, place: Place, count: int, nbytes: int) -> None:
    known, owed = total.get(place, (0, 0))
    total[place] = known + count, owed + nbytes


def without_zeros(total: Owed) -> Owed:
    return {at: pair for at, pair in total.items() if any(pair)}


def played(events: Iterable[Noted]) -> Played:
    """Sum up what comes between waits. A wait that has ended once is over."""
    waits: list[tuple[Place, int]] = []
    between: list[Owed] = [{}]
    last: dict[Place, int] = {}
    for place, number, *owed in events:
        if owed:
            add(between[-1], place, number, *owed)
        elif last.get(place) != number:
            last[place] = number
            waits.append((place, number))
            between.append({})
    return waits, [without_zeros(own) for own in between]


def known(protocol: Protocol, role: tuple[int, str]) -> Played:
    """Return what the host knows of a role, but for what goes through memory."""
    return played(
        (event.place, event.phase % 2) if isinstance(event, Wait) else tuple(event)
        for event in protocol.roles[role]
        if event.place.block != MEMORY
    )


def noted(events: bytes, places: dict[int, list[Place]], is_of_role: Chooser) -> Iterator[Noted]:
    """Give what a thread did in a role."""
    for what, owner, barrier, number in events_of(events):
        place = places[owner][barrier]
        if not is_of_role(place.name, what == WAIT):
            continue
        if what == WAIT:
            yield place, number
        else:
            counts = what == ARRIVAL
            yield place, int(counts), number if counts else -number


def seen(
    of_threads: Iterable[bytes], places: dict[int, list[Place]], is_of_role: Chooser
) -> Played:
    """Return what threads of one block did together in a role, all of which wait for the same."""
    waits: list[tuple[Place, int]] | None = None
    totals: list[Owed] = []
    for events, num_threads in Counter(of_threads).items():  # most do the same
        own_waits, between = played(noted(events, places, is_of_role))
        if waits is None:
            waits, totals = own_waits, [{} for _ in between]
        assert own_waits == waits
        for total, own in zip(totals, between, strict=True):
            for place, (count, nbytes) in own.items():
                add(total, place, num_threads * count, num_threads * nbytes)
    assert waits is not None
    return waits, [without_zeros(total) for total in totals]


def assert_known(
    launch: Launch,
    protocol: Protocol,
    threads_of: Callable[[str], range],
    chooser_of: Callable[[str], Chooser] = lambda _: lambda *_: True,
) -> None:
    """Assert that barriers are made with the counts that the host knows, and that all roles wait
    and arrive as it says. What a thread does that has two roles is of that which `chooser_of` says.
    """
    places: dict[int, list[Place]] = {}
    for place in protocol.counts:
        if place.block != MEMORY:
            places.setdefault(place.block, []).append(place)
    made = {places[record.owner][record.barrier]: record.number for record in launch.made}
    assert made == {at: count for at, count in protocol.counts.items() if at.block != MEMORY}
    for block, name in protocol.roles:
        of_threads = [launch.events.get((block, thread), b"") for thread in threads_of(name)]
        waits, between = seen(of_threads, places, chooser_of(name))
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


@pytest.mark.parametrize("case", some(SPECIALIZED, (0, 1)), ids=str)
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


@pytest.mark.parametrize("case", some(BY_LAYERS, (0, 1)), ids=str)
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


@pytest.mark.parametrize("case", some(ON_A_CARD, (0, 5, 6)), ids=str)
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
        validated = -(-case.validated // case.batch_size)
        passes = [*[True] * STEPS, *[False] * validated] * epochs
        protocol = protocol_on_card(config, passes)
        assert_known(launch, protocol, lambda _, own=launch: range(own.threads))


@pytest.mark.parametrize(
    "case",
    [
        Images("pooled", 5, (2, 6), 1),
        pytest.param(Images("uneven", 3, (1, 4), 1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_images(
    monkeypatch: pytest.MonkeyPatch,
    only_images: Callable[[int, int], None],
    launches: list[int],
    case: Images,
) -> None:
    only_images(*case.blocks)
    open_emulated(monkeypatch)
    with recorded(("one_launch_images",)) as found:
        fit(case.make(), *case.rows, batch_size=case.batch_size)
    assert len(found) == len(launches) > 0
    for launch, epochs in zip(found, launches, strict=True):
        config = CONFIGS[launch.kernel].of(launch.settings)
        assert -(-config.batch // config.images) < config.blocks  # some have no images
        protocol = protocol_of_images(config, STEPS * epochs)
        assert_known(launch, protocol, lambda _, own=launch: range(own.threads))


@pytest.mark.parametrize("case", some(IN_GROUPS, (0, 2)), ids=str)
def test_in_groups_of_warps(
    monkeypatch: pytest.MonkeyPatch,
    only_small: Callable[[int, int], None],
    launches: list[int],
    case: Case,
) -> None:
    only_small(case.cluster, 2)
    open_emulated(monkeypatch)
    with recorded(("one_launch_small_sm90",)) as found:
        case.train("groups of four warps")
    assert len(found) == len(launches) > 0

    def threads_of(name: str) -> range:
        kind, number = name.split()
        if kind == "group":
            return range(int(number) * 4 * WARP, (int(number) + 1) * 4 * WARP)
        first = 2 * 4 + int(number) if kind == "helper" else (2 + 2) * 4 - 1
        return range(first * WARP, (first + 1) * WARP)

    for launch, epochs in zip(found, launches, strict=True):
        config = CONFIGS[launch.kernel].of(launch.settings)
        assert_known(launch, protocol_in_groups(config, STEPS * epochs), threads_of)


# -- many networks


def train_many(
    monkeypatch: pytest.MonkeyPatch, launch_of: Callable[[Any], Any], **settings: Any
) -> Launch:
    """Train networks as `launch_of` says, with validation, and return their launch."""
    sizes, count = settings["sizes"], settings["count"]
    monkeypatch.setattr(many_networks, "launch_of_many", lambda network, _: launch_of(network))
    open_emulated(monkeypatch, num_multiprocessors=MULTIPROCESSORS)
    x = np.random.default_rng(0).standard_normal((70, sizes[0])).astype(np.float32)
    y = np.arange(70) % sizes[-1]

    def build(candidate: dict[str, Any]) -> tuple[nn.Sequential, optim.Optimizer]:
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
        model = nn.Sequential(*layers[:-1])
        return model, optim.SGD(model.parameters(), lr=candidate["lr"])

    with recorded(("many_networks_sm90", "many_small_networks_sm90")) as found:
        wf.fit_many(
            build,
            x,
            y,
            candidates=[{"lr": 0.01 * (1 + i)} for i in range(count)],
            validation_data=(x[:20], y[:20]),
            epochs=3,
            batch_size=30,
            precision="float16",
            device="cuda:0",
            n_jobs=1,
            verbose=False,
        )
    (launch,) = found
    return launch


RUN = Trained(epochs=3, steps=3, validated=1)


def cluster_threads(name: str) -> range:
    """Return the threads of a role of `many_networks_sm90.cu`."""
    if name == "who takes networks":
        return range(1)
    if name == "the judge":
        return range(8 * WARP, 8 * WARP + 1)
    kind, _, number = name.split()
    first = {"unit": 0, "loss": 8, "batch": 12}[kind] + int(number)
    return range(first * WARP, (first + 1) * WARP)


def cluster_chooser(name: str) -> Chooser:
    """Return what is done by the thread that takes networks, the one that judges, and the rest."""

    def is_of_role(place: str, waits: bool) -> bool:
        judges = place == ("sums_full" if waits else "verdict_full")
        of = "the judge" if judges else "who takes networks" if place == "next_full" else ""
        return of == (name if name in ("the judge", "who takes networks") else "")

    return is_of_role


@pytest.mark.parametrize(
    ("cluster", "sizes", "count"),
    [
        (1, (260, 40, 10), 1),
        pytest.param(1, (100, 100, 10), 2, marks=pytest.mark.slow),
        (2, (200, 128, 10), 3),
        pytest.param(4, (90, 30, 7), 1, marks=pytest.mark.slow),
    ],
)
def test_clusters_of_many(
    monkeypatch: pytest.MonkeyPatch, cluster: int, sizes: tuple[int, ...], count: int
) -> None:
    monkeypatch.setattr(ManyClusters, "blocks_of", lambda *_: cluster)  # one trains all
    launch = train_many(
        monkeypatch,
        lambda network: with_shared_slices(ManyClusters(network, cluster)),
        sizes=sizes,
        count=count,
    )
    config = CONFIGS[launch.kernel].of(launch.settings)
    assert_known(
        launch, protocol_of_clusters(config, [[RUN] * count]), cluster_threads, cluster_chooser
    )


@pytest.mark.parametrize(
    "sizes", [(20, 30, 12, 3), pytest.param((12, 40, 5), marks=pytest.mark.slow)]
)
def test_groups_of_many(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    launch = train_many(
        monkeypatch,
        lambda network: ManySmallNetworks(network, in_block=2),
        sizes=sizes,
        count=2,
    )
    config = CONFIGS[launch.kernel].of(launch.settings)

    def threads_of(name: str) -> range:
        *_, kind, number = name.split()
        if kind == "group":
            return range(int(number) * 4 * WARP, (int(number) + 1) * 4 * WARP)
        first = config.groups * 4 + int(number)
        return range(first * WARP, (first + 1) * WARP)

    assert_known(launch, protocol_of_groups([[[RUN], [RUN]]]), threads_of)
