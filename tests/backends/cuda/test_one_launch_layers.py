"""How a training run of many layers is launched as one kernel: what the kernel asks of it, and what
does not fit.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from kernel_variants import variants_of
from warpfit.backends import Activation
from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda import one_launch_layers
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.one_launch_layers import CLUSTERS, LayersLaunch
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import ConfigError, required

SHARED_BYTES = shared_bytes_of("sm_90a")
WIDTHS = [
    (1, 1),
    (6, 3),
    (784, 10),
    (1, 1, 1, 1),
    (17, 33, 5, 2),
    (64, 64, 64, 64, 1),
    (784, 128, 128, 128, 10),
]
WIDTHS += [(784, 256, 256, 256, 10), (32, 256, 256, 256, 8), (300, 20, 100, 128)]
OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"slots": 1, "momentum": True},
    {"optimizer": "adam", "slots": 2},
    {"optimizer": "rmsprop", "slots": 1},
]


def choose_layers(*given: Any) -> LayersLaunch:
    """Return the launch of a network, or raise what is in the way."""
    return required(one_launch_layers.choose_layers(*given))


def network(*widths: int, **changes: Any) -> TrainedNetwork:
    hidden = len(widths) - 2
    known: dict[str, Any] = {"dtype": "float16", "batch": 32, "loss": "cross_entropy"}
    known |= {"activations": (Activation("relu"),) * hidden, "drops": (False,) * hidden}
    return TrainedNetwork(widths=widths, **{**known, **changes})


def assert_can_be_launched(launch: LayersLaunch, arch: str, limit: int) -> None:
    """Assert what the kernel and the device ask of a shape, and that all weights have a place."""
    assert launch.shared_bytes <= limit
    assert launch.cluster in (CLUSTERS if generation(arch) >= 90 else (1,))
    assert launch.registers * launch.threads <= 65536
    assert launch.unit_copies == 1 or launch.may_keep_apart
    most, in_registers = launch.registers_of_thread
    assert in_registers < most <= 255
    assert launch.cluster * launch.replicas <= 132
    assert 16 * launch.row_tiles * launch.replicas >= launch.network.batch
    assert 16 * launch.row_tiles * (launch.replicas - 1) < launch.network.batch
    assert min(launch.held_tiles, launch.near_tiles, launch.far_tiles) >= 0
    if launch.network.slots and launch.replicas == 1:
        assert launch.held_tiles + launch.near_tiles + launch.far_tiles == launch.tiles_of_warp
    for features, units in launch.matrices:
        along_features, along_units = launch.groups(features, units)
        assert along_features * along_units <= launch.warps
        assert units % along_units == 0
    for layer in launch.layers:
        blocks = launch.cluster if layer is not launch.layers[-1] else 1
        assert blocks * layer.block_units >= layer.units
        assert layer.reach >= layer.width


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: "-".join(map(str, widths)))
def test_every_shape_can_be_launched_or_says_what_is_in_the_way(
    widths: tuple[int, ...], arch: str
) -> None:
    limit, fitting = shared_bytes_of(arch), 0
    for batch, rule in product((1, 16, 33, 64, 512), OPTIMIZERS):
        wanted = network(*widths, batch=batch, **rule)
        try:
            launch = choose_layers(wanted, arch, limit, 132)
        except ConfigError as error:
            message = str(error)
        else:
            assert_can_be_launched(launch, arch, limit)
            fitting += 1
            continue
        found = re.search(
            r"expected at most (\d+) bytes of (weights|shared).*, got (\d+)$", message
        )
        assert found, message
        assert int(found[3]) > int(found[1])
    if arch == "sm_90a":
        assert fitting >= 8
    elif max(widths) < 64:
        assert fitting >= 12


def test_blocks_partition_the_units_of_hidden_layers_in_chunks() -> None:
    launch = choose_layers(network(784, 128, 100, 10), "sm_90a", SHARED_BYTES, 132)
    assert launch.cluster == 16
    assert [layer.block_units for layer in launch.layers] == [8, 8, 10]
    # 8 units in a tile of 16, and of the last layer all: once by units, and from the second on by
    # inputs.
    assert launch.matrices == [(49, 1), (8, 1), (7, 1), (7, 1), (1, 1)]
    # The 49 tiles of the first layer leave 7 to one of 8 warps, and the others one each.
    assert launch.tiles_of_warp == 7 + 1 + 1 + 1 + 1


def test_blocks_meet_where_some_have_no_units_of_the_first_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_launch_layers, "CLUSTERS", (16,))
    choose = one_launch_layers.choose_layers.__wrapped__
    one_each, none_for_some = (
        choose(network(64, units, 128, 10), "sm_90a", SHARED_BYTES, 132) for units in (128, 72)
    )
    assert (one_each.cluster, one_each.unit_copies, one_each.may_keep_apart) == (16, 2, True)
    assert (none_for_some.cluster, none_for_some.unit_copies, none_for_some.may_keep_apart) == (
        16,
        1,
        False,
    )


def test_some_blocks_have_a_chunk_more() -> None:
    first = LayersLaunch(network(64, 100, 100, 10), 8, 2, 2).layers[0]
    # 13 chunks: two for each of five blocks, one for three; the tile of the last begins at chunk
    # 12.
    assert (first.block_units, first.is_in_all, first.reach) == (16, True, 8 * 12 + 16)


def test_replicas_partition_the_rows_of_long_batches() -> None:
    wanted = network(32, 256, 256, 256, 8, batch=256, **OPTIMIZERS[2])
    launch = choose_layers(wanted, "sm_90a", SHARED_BYTES, 132)
    assert launch.replicas > 1
    assert launch.row_tiles * launch.replicas >= 16
    assert str(launch).startswith(
        f"{launch.replicas} clusters of {launch.cluster} blocks that partition a batch, each of 8 "
        "warps"
    )
    # A thread has every so many of its quads of weights in float32.
    assert launch.own_quads == -(-2 * launch.forward_tiles // launch.replicas)
    assert (
        launch.exchange_bytes
        > launch.cluster * 16 * 256 * 2 * launch.forward_tiles * launch.replicas
    )


def test_what_an_optimizer_remembers_goes_where_there_is_room() -> None:
    small = choose_layers(network(64, 64, 64, 10, **OPTIMIZERS[2]), "sm_90a", SHARED_BYTES, 132)
    large = choose_layers(network(784, 256, 256, 10, **OPTIMIZERS[2]), "sm_90a", SHARED_BYTES, 132)
    assert (small.near_tiles + small.far_tiles <= 1, small.far_tiles, small.exchange_bytes) == (
        True,
        0,
        0,
    )
    assert min(large.near_tiles, large.far_tiles) > 0
    # Two numbers for each of 256 weights of a tile of each of 8 warps, in 16 blocks.
    assert large.exchange_bytes == large.far_bytes == 16 * large.far_tiles * 8 * 256 * 2 * 4


@pytest.mark.parametrize(
    ("widths", "changes", "what"),
    [
        ((784, 512, 512, 512, 10), {}, "weights for the registers of a block"),
        ((784, 128, 128, 10), {"batch": 4096}, "shared memory for a batch and its units"),
    ],
    ids=str,
)
def test_what_does_not_fit_names_its_bytes(
    widths: tuple[int, ...], changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=rf"expected at most \d+ bytes of {what}, got \d+"):
        choose_layers(network(*widths, **changes), "sm_90a", SHARED_BYTES, 132)


@pytest.mark.parametrize(
    ("wanted", "arch", "words"),
    [
        (network(6, 5, 3, dtype="bfloat16"), "sm_75", "tensor cores multiply bfloat16, got sm_75"),
        (network(6, 5, 129), "sm_90a", "at most 128 outputs, got 129"),
    ],
)
def test_what_is_not_run_at_all(wanted: TrainedNetwork, arch: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_layers(wanted, arch, SHARED_BYTES, 132)


def test_a_shape_says_its_numbers() -> None:
    launch = choose_layers(network(784, 128, 128, 10), "sm_90a", SHARED_BYTES, 132)
    assert str(launch) == (
        f"a cluster of 16 blocks of 8 warps, layer by layer, {launch.tiles_of_warp} tiles of "
        f"weights in a warp's registers, {launch.shared_bytes} bytes of shared memory"
    )
    assert str(choose_layers(network(6, 3), "sm_90a", SHARED_BYTES, 132)).startswith(
        "one block of 8 warps, layer by layer, one tile of weights in a warp's registers, "
    )


def test_variants_are_of_all_dtypes_and_optimizers() -> None:
    found = [defines for _, defines in variants_of("one_launch_layers")]
    assert {defines["DTYPE"] for defines in found} == {*HALF_DTYPES}
    assert {defines["OPTIMIZER"] for defines in found} == {
        "SgdRule",
        "AdamRule",
        "RmspropRule",
    }
    assert all(isinstance(value, str) for defines in found for value in defines.values())
