"""How a small network is launched as one kernel: what the kernel asks of it, and what does not
fit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kernel_variants.runs import ADAM, MOMENTUM, network_of
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.one_launch_small_sm90 import SmallLaunch, choose_small
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import ConfigError, required

SHARED_BYTES = shared_bytes_of("sm_90a")
WIDTHS = [(1, 1, 1), (64, 64, 16), (17, 33, 5, 2), (64, 64, 64, 64, 1), (16, *(64,) * 4, 3)]


def chosen(network: TrainedNetwork) -> SmallLaunch:
    return required(choose_small(network, "sm_90a", SHARED_BYTES, 132))


def assert_can_be_launched(launch: SmallLaunch) -> None:
    """Assert what the kernel and the device ask of a shape, and that all rows and weights have a
    place.
    """
    assert launch.shared_bytes <= SHARED_BYTES
    assert launch.threads <= 1024
    assert launch.row_groups <= launch.groups
    assert launch.cluster * launch.block_rows >= launch.network.batch
    assert launch.cluster * launch.bundles >= sum(launch.tiles)
    assert launch.tiles_of_group * launch.groups >= launch.bundles - 1
    taken = launch.config.group_registers * launch.groups + 2 * launch.config.helper_registers
    assert taken <= launch.even_registers * (launch.groups + 2)


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: "-".join(map(str, widths)))
def test_every_shape_can_be_launched_or_says_what_is_in_the_way(widths: tuple[int, ...]) -> None:
    fitting = 0
    for batch, rule in product((1, 16, 33, 100, 256, 700, 769), ({}, MOMENTUM, ADAM)):
        try:
            launch = chosen(network_of(*widths, batch=batch, **rule))
        except ConfigError as error:
            message = str(error)
        else:
            assert_can_be_launched(launch)
            fitting += 1
            continue
        assert "expected what 4 small blocks have room for" in message
    assert fitting >= 3


@pytest.mark.parametrize(
    ("widths", "changes"),
    [
        ((64, 10), {}),
        ((65, 20, 3), {}),
        ((64, 20, 17), {}),
        ((64, 20, 3), {"terms": 2}),
        ((64, 20, 3), {"clips": True}),
        ((64, 20, 3), {**MOMENTUM, "rate_in_velocity": True}),
    ],
    ids=str,
)
def test_what_it_does_not_take(widths: tuple[int, ...], changes: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="expected Hopper's tensor cores, a hidden layer, at most"
    ):
        chosen(network_of(*widths, **changes))


def test_weights_that_no_register_has_room_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected what 4 small blocks have room for"):
        chosen(network_of(*(64,) * 9, 1, batch=16, loss="mse", **ADAM))


def test_other_architectures_do_not_take_it() -> None:
    found = choose_small(network_of(64, 20, 3), "sm_80", shared_bytes_of("sm_80"), 108)
    assert "Hopper's tensor cores" in str(found)


def test_a_plan_says_how_it_is_laid_out() -> None:
    launch = chosen(network_of(37, 53, 17, 3, batch=48, **ADAM))
    assert launch.groups == 1
    words = "one block of one group of four warps, rows taken through all layers by one group, "
    assert str(launch) == f"{words}{launch.shared_bytes} bytes of shared memory"
    words = "a cluster of 2 blocks that partition a batch, each of 3 groups of four warps, rows "
    assert f"{words}taken through all layers by 2 groups, " in str(
        replace(launch, network=replace(launch.network, batch=256), cluster=2, groups=3)
    )
