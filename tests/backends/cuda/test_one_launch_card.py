"""How a training run on most of a card is launched as one kernel: what the kernel asks of it, and
what does not fit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from warpfit.backends import Activation
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.one_launch_card import CardLaunch, choose_card, share
from warpfit.backends.cuda.trained_network import TrainedNetwork, resident_clusters
from warpfit.errors import ConfigError, required

SHARED_BYTES = shared_bytes_of("sm_90a")
WIDTHS = [
    (1, 1, 1),
    (784, 512, 10),
    (17, 33, 5, 2),
    (784, 300, 300, 300, 10),
    (784, 512, 512, 512, 10),
    (784, 1024, 1024, 1024, 10),
    (784, 2000, 10),
    (64, 1200, 900, 128),
]
OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"slots": 1, "momentum": True},
    {"optimizer": "adam", "slots": 2},
]


def network(*widths: int, **changes: Any) -> TrainedNetwork:
    hidden = len(widths) - 2
    known: dict[str, Any] = {"dtype": "float16", "batch": 32, "loss": "cross_entropy"}
    known |= {"activations": (Activation("relu"),) * hidden, "drops": (False,) * hidden}
    return TrainedNetwork(widths=widths, **{**known, **changes})


def chosen(wanted: TrainedNetwork, num_multiprocessors: int = 132) -> CardLaunch:
    return required(choose_card(wanted, "sm_90a", SHARED_BYTES, num_multiprocessors))


def assert_can_be_launched(launch: CardLaunch, num_multiprocessors: int) -> None:
    """Assert what the kernel and the device ask of a shape, and that all weights have a place."""
    assert launch.shared_bytes <= SHARED_BYTES
    resident = resident_clusters(launch.ranks, num_multiprocessors)
    if launch.is_apart:
        resident, tile = num_multiprocessors // launch.ranks, 64
        assert launch.rows % (4 * launch.ranks) == launch.warps % 4 == 0
    else:
        tile = 16
    assert launch.clusters <= resident
    assert launch.rows % launch.ranks == 0
    *hidden, last = launch.tiles
    for own, inputs, units in zip(
        hidden, launch.network.widths, launch.network.widths[1:], strict=False
    ):
        assert own.inputs * launch.ranks >= inputs
        assert own.units * launch.clusters >= units
        assert own.inputs % 16 == own.sent_units % 16 == own.units % tile == 0
    assert last.inputs * launch.clusters >= launch.network.widths[-2]
    assert last.inputs == hidden[-1].units


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: "-".join(map(str, widths)))
def test_every_shape_can_be_launched_or_says_what_is_in_the_way(widths: tuple[int, ...]) -> None:
    fitting = 0
    for batch, rule, number in product((1, 16, 33, 64, 128), OPTIMIZERS, (132, 78, 114)):
        try:
            launch = chosen(network(*widths, batch=batch, **rule), number)
        except ConfigError as error:
            message = str(error)
        else:
            assert_can_be_launched(launch, number)
            fitting += 1
            continue
        found = re.search(
            r"at most (\d+) bytes of shared memory for a tile of each layer, got (\d+)$", message
        )
        assert found, message
        assert int(found[2]) > int(found[1])
    assert fitting >= 12


def test_clusters_partition_units_and_blocks_inputs() -> None:
    launch = chosen(network(784, 512, 512, 10))
    assert (launch.cluster, launch.clusters, launch.blocks) == (8, 11, 88)
    assert [(tile.inputs, tile.units, tile.sent_units) for tile in launch.tiles] == [
        (112, 48, 512),
        (64, 48, 512),
        (48, 16, 12),
    ]
    assert share(512, 14) == 48


def test_rests_of_weights_go_where_there_is_room_the_first_layer_first() -> None:
    near, some, more = (
        chosen(network(784, h, h, h, 10, **rule))
        for h, rule in ((1024, {}), (1200, {}), (1024, OPTIMIZERS[2]))
    )
    assert not any(near.far)
    assert near.far_bytes == 0
    assert some.far == (False, True, True, False)
    assert some.far_bytes == some.blocks * 2 * 2 * 160 * 96
    assert sum(more.far) > 1
    nearer = replace(some, far=(False, False, True, False))
    assert nearer.shared_bytes > SHARED_BYTES
    assert nearer.shared_bytes - some.shared_bytes == 2 * 160 * 96


def test_ranks_are_apart_where_no_clusters_have_room() -> None:
    launch = chosen(network(784, 2048, 2048, 2048, 10))
    assert (launch.ranks, launch.clusters, launch.blocks) == (8, 16, 128)
    assert launch.is_apart
    assert launch.cluster == 1
    assert launch.held == (True, True, True, False)
    assert launch.far == (False, False, False, True)
    assert launch.registers_of_thread == (255, 2 * 16 * (1 + 2 + 2))
    assert_can_be_launched(launch, 132)
    with pytest.raises(ConfigError, match="bytes of shared memory"):
        chosen(network(784, 2048, 2048, 2048, 10, **OPTIMIZERS[1]))


def test_weights_are_streamed_where_they_keep_the_card_busy() -> None:
    launch = chosen(network(784, 4096, 4096, 4096, 10))
    assert launch.is_streamed
    assert (launch.ranks, launch.clusters) == (8, 16)
    assert launch.far_bytes == 128 * (4 * (128 + 2 * 512) * 256 + 2 * 256 * 16)
    assert_can_be_launched(launch, 132)
    for changes in ({"batch": 33}, OPTIMIZERS[1], {"widths": (784, 3072, 3072, 3072, 10)}):
        with pytest.raises(ConfigError, match="bytes of shared memory"):
            chosen(replace(network(784, 4096, 4096, 4096, 10), **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weighted": True}, "no sample or class weights"),
        ({"class_weights": True}, "no sample or class weights"),
        ({"clips": True}, "no clipping"),
        ({"penalized": True}, "no penalty"),
        ({"terms": 2}, "products in half precision"),
        ({"batch": 129}, "at most 128 rows"),
        ({"widths": (5, 3), "activations": (), "drops": ()}, "a hidden layer"),
        ({"widths": (5, 4, 129)}, "at most 128 outputs"),
        ({"widths": (784, 8192, 8192, 10)}, r"at most \d+ bytes of shared memory"),
    ],
    ids=str,
)
def test_what_is_not_run_says_so(changes: dict[str, Any], words: str) -> None:
    wanted = replace(network(5, 4, 3), **changes)
    with pytest.raises(ConfigError, match=words):
        chosen(wanted)


@pytest.mark.parametrize(("arch", "number"), [("sm_80", 108), ("sm_90a", 3)])
def test_cards_without_enough_clusters_are_refused(arch: str, number: int) -> None:
    with pytest.raises(
        ConfigError, match=r"expected an architecture with clusters|multiprocessors or more"
    ):
        required(choose_card(network(5, 4, 3), arch, SHARED_BYTES, number))


def test_a_shape_says_its_numbers() -> None:
    launch = chosen(network(784, 1024, 1024, 1024, 10))
    assert str(launch) == (
        f"13 clusters of 8 blocks of 16 warps that partition all weights, {launch.shared_bytes} "
        "bytes of shared memory"
    )
    assert str(chosen(network(784, 2048, 2048, 2048, 10))).endswith(
        "shared memory, low halves of 3 layers in registers and of one layer in device memory"
    )
    by_adam = network(784, 1024, 1024, 10, batch=1, optimizer="adam", slots=2)
    assert str(chosen(by_adam)).endswith(
        "bytes of shared memory, low halves of one layer in device memory"
    )


def test_more_work_is_expected_to_take_longer() -> None:
    times = [chosen(network(784, *(h,) * 3, 10)).microseconds for h in (128, 256, 512, 1024)]
    assert times == sorted(times)
    assert 5 < times[0] < times[-1] < 25
