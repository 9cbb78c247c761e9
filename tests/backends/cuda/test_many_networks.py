"""How blocks and clusters train many networks, and which they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from warpfit.backends.base import Activation
from warpfit.backends.cuda import many_networks, many_networks_sm90, many_small_networks_sm90
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import ConfigError, required

SHARED_BYTES = 227 << 10


def network(*widths: int, **changes: Any) -> TrainedNetwork:
    hidden = len(widths) - 2
    known: dict[str, Any] = {"dtype": "float16", "batch": 64, "loss": "cross_entropy"}
    known |= {"activations": (Activation("relu"),) * hidden, "drops": (False,) * hidden}
    return TrainedNetwork(widths=widths, **{**known, **changes})


TABULAR, MNIST = network(32, 64, 64, 2, batch=128), network(784, 128, 10)


def test_a_block_has_as_many_warps_as_rows_want() -> None:
    shape = many_networks.choose(TABULAR, "sm_90a", SHARED_BYTES)
    expected = (
        "a network in each block of 8 warps, its parameters in registers, one block a "
        "multiprocessor"
    )
    assert str(shape) == expected
    assert shape.groups(132) == 132
    assert shape.shared_bytes <= SHARED_BYTES
    assert shape.places[2] == (33 * 64, (64, 64))
    small = many_networks.choose(replace(TABULAR, batch=16), "sm_90a", SHARED_BYTES)
    assert small.blocks > 1
    assert small.groups(132) == 132 * small.blocks


@pytest.mark.parametrize(
    ("wide", "words"),
    [
        (MNIST, "bytes of shared memory for a network in a block"),
        (network(*[8] * 10), "expected at most 8 layers"),
        (
            network(64, 128, 128, 10),
            "expected at most 255 registers of a thread for a network in a block, got",
        ),
        (
            replace(TABULAR, penalized=True, weighted=True),
            "without clipping, or a penalty with weights",
        ),
        (replace(TABULAR, clips=True), "clipping"),
        (replace(TABULAR, terms=2), "expected at most 8 layers"),
        (network(32, 64, 200), "expected at most 128 outputs"),
    ],
)
def test_what_no_block_trains(wide: TrainedNetwork, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        required(many_networks.choose(wide, "sm_90a", SHARED_BYTES))


@pytest.mark.parametrize(
    ("features", "hidden", "cluster", "at_once", "shared_slices", "x_width"),
    [
        (200, 10, 1, 132, 0, 224),
        (784, 64, 2, 66, 0, 832),
        (256, 128, 1, 132, 1, 272),
        (784, 65, 2, 66, 9, 800),
        (784, 128, 2, 66, 9, 800),
    ],
)
def test_clusters_are_as_small_as_can_be(
    features: int, hidden: int, cluster: int, at_once: int, shared_slices: int, x_width: int
) -> None:
    shape = many_networks_sm90.choose_clusters(
        network(features, hidden, 10), "sm_90a", SHARED_BYTES
    )
    assert (shape.cluster, shape.groups(132)) == (cluster, at_once)
    assert (shape.shared_slices, shape.x_width) == (shared_slices, x_width)
    assert f"{cluster} blocks" in str(shape) or cluster == 1


def test_what_an_optimizer_remembers_needs_more_blocks() -> None:
    shape = many_networks_sm90.choose_clusters(
        replace(MNIST, optimizer="adam", slots=2), "sm_90a", SHARED_BYTES
    )
    assert shape.cluster == 8
    assert shape.groups(4) == 1


@pytest.mark.parametrize(
    ("wide", "arch", "words"),
    [
        (MNIST, "sm_80", "expected sm_90a"),
        (TABULAR, "sm_90a", "expected a hidden layer"),
        (replace(MNIST, batch=65), "sm_90a", "batches of at most 64 rows"),
        (network(784, 128, 17), "sm_90a", "at most 16 outputs"),
        (network(784, 129, 10), "sm_90a", "a hidden layer of at most 128 units"),
        (
            network(9000, 128, 10),
            "sm_90a",
            "bytes of shared memory, got [0-9]+ in each of 8 blocks",
        ),
    ],
)
def test_what_no_cluster_trains(wide: TrainedNetwork, arch: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        required(many_networks_sm90.choose_clusters(wide, arch, SHARED_BYTES))


def test_a_block_has_as_many_groups_as_registers_and_shared_memory_are_for() -> None:
    choose = many_small_networks_sm90.choose_small
    shape = choose(TABULAR, "sm_90a", SHARED_BYTES)
    assert str(shape) == "a network in each group of four warps, 3 in a block"
    assert (shape.threads, shape.groups(132), shape.blocks_of(7)) == (512, 396, 3)
    assert shape.shared_bytes <= SHARED_BYTES
    assert shape.places[2] == (33 * 64, (64, 64))
    assert choose(network(20, 32, 3), "sm_90a", SHARED_BYTES).in_block == 4
    assert choose(replace(TABULAR, optimizer="adam", slots=2), "sm_90a", SHARED_BYTES).in_block == 2


@pytest.mark.parametrize(
    ("wide", "arch", "words"),
    [
        (TABULAR, "sm_80", "expected sm_90a"),
        (network(65, 64, 2), "sm_90a", "at most 64 features"),
        (network(32, 65, 2), "sm_90a", "17 to 64 units"),
        (network(32, 16, 2), "sm_90a", "17 to 64 units"),
        (network(32, 64, 17), "sm_90a", "at most 16 outputs"),
        (replace(TABULAR, batch=129), "sm_90a", "batches of at most 128 rows"),
        (replace(TABULAR, activations=(Activation("gelu"),) * 2), "sm_90a", "activations whose"),
        (
            network(64, *[64] * 8, 2, batch=128),
            "sm_90a",
            "bytes of shared memory and 232 registers",
        ),
    ],
)
def test_what_no_group_trains(wide: TrainedNetwork, arch: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        required(many_small_networks_sm90.choose_small(wide, arch, SHARED_BYTES))
