"""Kernels that would hang are refused before there is machine code of them, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_variants import variants_of
from kernel_variants.runs import ADAM, MOMENTUM, images_of, launched, lenet, network_of
from warpfit.backends import Activation
from warpfit.backends.cuda import (
    jit,
    one_launch,
    one_launch_card,
    one_launch_images,
    one_launch_layers,
    one_launch_small_sm90,
)
from warpfit.backends.cuda.image_shapes import Convolution
from warpfit.backends.cuda.many_networks_sm90 import choose_clusters
from warpfit.backends.cuda.many_small_networks_sm90 import choose_small
from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.backends.cuda.waits import Arrive, Event, Place, Protocol, Wait, hang_of
from warpfit.backends.cuda.waits_of_kernels import PROTOCOLS, check_waits
from warpfit.errors import CompileError, Obstacle, required

LAUNCHES = {
    "one_launch": launched(one_launch.choose, [network_of(784, 256, 10, batch=64, **MOMENTUM)])[0],
    "one_launch_card": launched(one_launch_card.choose_card, [network_of(99, 512, 512, 512, 10)])[
        0
    ],
    "one_launch_images": launched(one_launch_images.choose_images, [lenet(batch=20)])[0],
    "one_launch_layers": launched(
        one_launch_layers.choose_layers, [network_of(784, 128, 128, 10, clips=True)]
    )[0],
    "one_launch_small_sm90": launched(
        one_launch_small_sm90.choose_small,
        [network_of(64, 64, 64, 64, 1, batch=256, loss="mse", **ADAM)],
    )[0],
}
CARD = "sm_90a", 227 << 10
MANY = {
    "many_networks_sm90": choose_clusters(network_of(784, 128, 10, batch=64), *CARD),
    "many_small_networks_sm90": choose_small(network_of(32, 64, 64, 2, batch=128), *CARD),
}
CONFIGURED = {kernel: required(launch).config for kernel, launch in (LAUNCHES | MANY).items()}
CONFIGURED |= {
    name: CONFIGS[name].of(defines) for name, defines in variants_of("table_networks")[:1]
}
AHEAD = launched(one_launch.choose, [network_of(784, 256, 10, batch=32)])[0]
DIVIDED = launched(
    one_launch.choose, [network_of(784, 256, 10, batch=batch) for batch in (64, 128)]
)
LIMITS = ("sm_90a", 232448, 132)


# -- planted


def without(name: str, role: str = "") -> Callable[[Protocol], None]:
    """Let a role of the first block arrive nowhere of a name."""

    def plant(protocol: Protocol) -> None:
        for (block, own), events in protocol.roles.items():
            if block == 0 and own.startswith(role):
                events[:] = [
                    event
                    for event in events
                    if isinstance(event, Wait) or not event.place.name.startswith(name)
                ]

    return plant


def counted(name: str, more: int) -> Callable[[Protocol], None]:
    """Let barriers of a name count more arrivals, or fewer."""

    def plant(protocol: Protocol) -> None:
        for place in protocol.counts:
            if place.name.startswith(name):
                protocol.counts[place] += more

    return plant


def changed(name: str, **changes: int) -> Callable[[Protocol], None]:
    """Change what the first block does at places of a name, by as much."""

    def change(event: Any) -> Event:
        of_kind = {field: by for field, by in changes.items() if field in event._fields}
        return event._replace(
            **{field: getattr(event, field) + by for field, by in of_kind.items()}
        )

    def plant(protocol: Protocol) -> None:
        for (block, _), events in protocol.roles.items():
            if block == 0:
                events[:] = [
                    change(event) if event.place.name.startswith(name) else event
                    for event in events
                ]

    return plant


def wait_first(name: str) -> Callable[[Protocol], None]:
    """Let all wait for what comes from others before they send the same to these."""

    def plant(protocol: Protocol) -> None:
        for events in protocol.roles.values():
            last = -1
            for idx, event in enumerate(events):
                if not event.place.name.startswith(name):
                    last = idx
                elif isinstance(event, Wait):
                    events.insert(last + 1, events.pop(idx))
                    last = idx

    return plant


def in_places(name: str, number: int) -> Callable[[Protocol], None]:
    """Let places of a name, which all use once a step, be so many."""

    def plant(protocol: Protocol) -> None:
        for events in protocol.roles.values():
            own = [idx for idx, event in enumerate(events) if event.place.name == name]
            for use, idx in enumerate(own):
                event, place = events[idx], events[idx].place._replace(idx=use % number)
                if isinstance(event, Wait):
                    events[idx] = Wait(place, use // number)
                else:
                    events[idx] = Arrive(place, event.arrivals, event.owed)

    return plant


PLANTED: list[tuple[str, str, Callable[[Protocol], None] | dict[str, Any]]] = [
    ("one_launch", "fewer slots of x than a group", {"x_slots": 1}),
    ("one_launch", "tiles stay for which there are no slots", {"x_slots": 3}),
    ("one_launch", "tiles that stay in part", {"kept": 1}),
    ("one_launch", "fewer sums than row warps", {"sum_slots": 1}),
    ("one_launch", "no row warps", {"row_warps": 0}),
    ("one_launch", "rows without an owner", {"own_of_tile": 2}),
    ("one_launch", "an owner of too many rows", {"own_of_tile": 6}),
    ("one_launch", "look-ahead without room", {"ahead": True}),
    ("one_launch", "groups of part of the tiles", {"group": 3}),
    ("one_launch", "no output warps", {"output_warps": 0}),
    ("one_launch", "a tile that is not freed", without("x_empty", "each weight")),
    ("one_launch", "dz that is not sent", without("dz_full", "row warp 0")),
    ("one_launch", "a count too high", counted("dh_full", 1)),
    ("one_launch", "a count too low", counted("outputs_ready", -1)),
    ("one_launch", "bytes that do not come", changed("losses_full", owed=8)),
    ("one_launch_layers", "units awaited before they are sent", wait_first("y_full of layer 0")),
    ("one_launch_layers", "squares of one block missing", without("squares_full")),
    ("one_launch_layers", "a batch that is not loaded", without("x_full")),
    ("one_launch_card", "outputs awaited before they are left", wait_first("outputs")),
    ("one_launch_card", "gradients of a wrong phase", changed("gradients_full", phase=1)),
    ("one_launch_images", "a block that does not update", without("updates")),
    ("one_launch_images", "a block with images more", counted("rows", 1)),
    ("one_launch_images", "rows before the weights that they take", changed("updates", phase=1)),
    ("one_launch_images", "weights that nobody copies", without("full")),
    ("one_launch_images", "weights that are copied in part", changed("full", owed=16)),
    ("one_launch_images", "weights of a wrong phase", changed("full", phase=1)),
    ("one_launch_images", "weights that each warp copies", counted("full", 15)),
    ("one_launch_small_sm90", "a batch that is not left", without("x_free", "helper 5")),
    ("one_launch_small_sm90", "words of a wrong phase", changed("words_full", phase=1)),
    ("one_launch_small_sm90", "words awaited before they are sent", wait_first("words_full")),
    ("one_launch_small_sm90", "losses of one step", in_places("losses_full", 1)),
    ("one_launch_small_sm90", "sums that do not come", changed("biases_full", owed=8)),
    ("many_networks_sm90", "z that is not sent", changed("z_full", owed=16)),
    ("many_networks_sm90", "dh awaited before it is sent", wait_first("dh_full")),
    ("many_networks_sm90", "outputs that are not freed", without("others_met", "loss warp 2")),
    ("many_networks_sm90", "a next network for one block", without("next_full", "who takes")),
    ("many_networks_sm90", "a verdict of a wrong phase", changed("verdict_full", phase=1)),
    ("many_small_networks_sm90", "a batch that is not freed", without("batch_free of group 0")),
    ("many_small_networks_sm90", "a count too high", counted("verdict_full of group 1", 1)),
    ("table_networks", "rows that nobody tells of", without("rows")),
    ("table_networks", "an updater more", counted("updates", 1)),
]


@pytest.mark.parametrize("launch", DIVIDED, ids=["64", "128"])
@pytest.mark.parametrize(
    "planted",
    [
        without("divided sums_full", "each weight"),
        without("divided dh_full", "output warp 1"),
        changed("divided dh_full", owed=16),
        counted("divided sums_full", 1),
    ],
)
def test_planted_hangs_of_blocks_that_divide_the_features(
    launch: Any, planted: Callable[[Protocol], None]
) -> None:
    protocol = PROTOCOLS["one_launch"](launch.config)
    assert hang_of(protocol) is None
    planted(protocol)
    assert hang_of(protocol) is not None


@pytest.mark.parametrize(
    ("kernel", "what", "planted"), PLANTED, ids=[f"{row[0]}: {row[1]}" for row in PLANTED]
)
def test_planted_hangs_are_refused(
    monkeypatch: pytest.MonkeyPatch, kernel: str, what: str, planted: Any
) -> None:
    config = CONFIGURED[kernel]
    if isinstance(planted, dict):
        config = replace(config, **planted)
    else:
        right = PROTOCOLS[kernel]

        def wrong(config: Any) -> Protocol:
            protocol = right(config)
            planted(protocol)
            return protocol

        monkeypatch.setitem(PROTOCOLS, kernel, wrong)
    monkeypatch.setattr(jit, "compiled", lambda *_: (b"", ""))
    with pytest.raises(CompileError, match=rf"every wait of {kernel} ends, got .* would hang: "):
        jit.compile_kernel(kernel, tuple(config.settings().items()), "sm_90a")


def test_says_who_waits_for_whom() -> None:
    protocol = Protocol()
    for name in ("ping", "pong"):
        protocol.add(0, name, 1, 1)
    ping, pong = Place(0, "ping"), Place(0, "pong")
    protocol.play(0, "one", iter([Wait(ping, 0), Arrive(pong)]))
    protocol.play(0, "other", iter([Wait(pong, 0), Arrive(ping)]))
    assert hang_of(protocol) == (
        "one of block 0 waits for ping[0] of block 0, which has 0 of 1 arrivals; other of block 0 "
        "waits for pong[0] of block 0, which has 0 of 1 arrivals; and that is for one of block 0 "
        "to do"
    )
    protocol.play(0, "other", iter([Wait(pong, 0)]))
    assert str(hang_of(protocol)).endswith("nobody is to arrive there")
    protocol.play(0, "one", iter([Arrive(pong), Arrive(pong), Arrive(pong)]))
    assert "phase 0 of pong[0]" in str(hang_of(protocol))
    protocol.counts[pong] = 3
    assert hang_of(protocol) is None


def test_any_role_may_be_late() -> None:
    """As when batches come two steps ahead, but losses of no more than two steps have a place."""
    protocol = Protocol()
    for name in ("full", "free", "losses"):
        protocol.add(0, name, 2, 1)
    work: list[Event] = []
    books: list[Event] = [Arrive(Place(0, "full", idx)) for idx in range(2)]
    for step in range(4):
        full, free, losses = (Place(0, name, step % 2) for name in ("full", "free", "losses"))
        work += [Wait(full, step // 2), Arrive(free), Arrive(losses)]
        books += [Wait(free, step // 2), *[Arrive(full)] * (step < 2), Wait(losses, step // 2)]
    protocol.play(0, "who works", work)
    protocol.play(0, "the loader", books)
    assert hang_of(protocol) == (
        "the loader of block 0 waits for phase 0 of losses[0] of block 0 when 2 phases may be "
        "complete"
    )


# -- plans


def random_plans(number: int) -> dict[str, int]:
    """Check so many plans of random networks, and return how many there were of each kernel."""
    random, found = np.random.default_rng(0), dict.fromkeys(LAUNCHES | MANY, 0)

    def network(inputs: float, hidden: list[int], outputs: float, batch: float) -> TrainedNetwork:
        settings: dict[str, Any] = [{}, MOMENTUM, ADAM][random.integers(3)]
        sizes = (int(2 ** random.uniform(0, most)) for most in (inputs, outputs, batch))
        features, last, rows = sizes
        return network_of(features, *hidden, last, batch=rows, **settings)

    def images(batch: float) -> TrainedNetwork:
        height, width, window, channels = random.integers(3, 20, 4).tolist()
        kernel = min(height, window), min(width, window)
        convolution = Convolution(kernel, (1, 0), channels, Activation("relu"))
        sizes = random.integers(1, 50, 2).tolist()
        rows = int(2 ** random.uniform(0, batch))
        return images_of((height, width, 2), [convolution], *sizes, batch=rows, **MOMENTUM)

    def units(widest: float, most: int, least: int = 0) -> list[int]:
        number = random.integers(least, most + 1)
        return random.integers(1, int(2 ** random.uniform(1, widest)) + 1, number).tolist()

    while sum(found.values()) < number:
        alone = network(10, units(9.5, 4), 7, 11)
        launches = {
            "one_launch": one_launch.choose(alone, *LIMITS),
            "one_launch_layers": one_launch_layers.choose_layers(alone, *LIMITS),
            "one_launch_card": one_launch_card.choose_card(alone, *LIMITS),
            "one_launch_images": one_launch_images.choose_images(images(10), *LIMITS),
            "one_launch_small_sm90": one_launch_small_sm90.choose_small(
                network(6, units(6, 4, 1), 4, 10), *LIMITS
            ),
            "many_networks_sm90": choose_clusters(network(10, units(7, 1, 1), 4, 6), *CARD),
            "many_small_networks_sm90": choose_small(network(6, units(6, 4, 1), 4, 7), *CARD),
        }
        for kernel, launch in launches.items():
            if not isinstance(launch, Obstacle):
                check_waits(kernel, launch.config.settings())
                found[kernel] += 1
    return found


@pytest.mark.parametrize("number", [60, pytest.param(5000, marks=pytest.mark.slow)])
def test_plans_do_not_hang(number: int) -> None:
    found = random_plans(number)
    assert min(found.values()) >= number // 20


def test_reads_the_settings_back() -> None:
    for kernel, config in CONFIGURED.items():
        settings = config.settings()
        assert CONFIGS[kernel].of(settings).settings() == settings
