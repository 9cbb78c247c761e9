"""How a training run is launched as one kernel: what the kernel asks of its shape, and what does
not fit.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from kernel_variants import is_supported, variants_of
from warpfit.backends import Activation
from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda import jit, one_launch
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.one_launch import CLUSTERS, OneLaunch
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import ConfigError, required

SHARED_BYTES = shared_bytes_of("sm_90a")
MULTIPROCESSORS = 132
SIZES = [
    (1, 1, 1),
    (6, 0, 3),
    (17, 33, 2),
    (64, 64, 10),
    (784, 0, 10),
    (129, 0, 128),
    (784, 256, 10),
]
BATCHES = (1, 16, 33, 64, 272, 512, 1024)


def choose(*given: Any) -> OneLaunch:
    """Return the launch of a network, or raise what is in the way."""
    return required(one_launch.choose(*given))


def network(**changes: Any) -> TrainedNetwork:
    sizes = {"features": 64, "hidden": 64, "outputs": 10}
    sizes |= {name: changes.pop(name) for name in sizes if name in changes}
    hidden = [sizes["hidden"]] if sizes["hidden"] else []
    known: dict[str, Any] = {"dtype": "float16", "batch": 64, "loss": "cross_entropy"}
    known |= {"widths": (sizes["features"], *hidden, sizes["outputs"])}
    known |= {"activations": (Activation("relu"),) * len(hidden), "drops": (False,) * len(hidden)}
    known["slots"] = int(changes.get("momentum", False))
    return TrainedNetwork(**{**known, **changes})


ADAM: dict[str, Any] = {"optimizer": "adam", "slots": 2}


def of_size(size: tuple[int, int, int], **changes: Any) -> TrainedNetwork:
    return network(**dict(zip(("features", "hidden", "outputs"), size, strict=True)), **changes)


def bytes_in_the_way(
    network: TrainedNetwork,
    arch: str,
    limit: int,
    what: str,
    multiprocessors: int = MULTIPROCESSORS,
) -> tuple[int, int]:
    """Return what there is at most, and what would be needed, as the error names them."""
    with pytest.raises(ConfigError) as error:
        choose(network, arch, limit, multiprocessors)
    found = re.search(rf"expected at most (\d+) bytes of {what}.*, got (\d+)$", str(error.value))
    assert found, error.value
    return int(found[1]), int(found[2])


# -- what fits
# -----------------------------------------------------------------------------------------------


def assert_can_be_launched(launch: OneLaunch, arch: str, limit: int) -> None:
    """Assert what the kernel and the device ask of a shape."""
    weight_warps = launch.warps_k * launch.warps_u
    others = launch.row_warps + launch.output_warps + 1  # that fetches
    assert launch.threads == 32 * (weight_warps + others) <= 1024
    assert min(weight_warps, launch.row_warps, launch.output_warps) >= 1
    assert launch.shared_bytes <= limit
    assert launch.cluster in (CLUSTERS if generation(arch) >= 90 else (1,))
    own, other = launch.registers
    assert 32 * (own * weight_warps + other * others) <= 65536
    assert launch.held < own <= 255
    if launch.moves_registers:  # four warps at once, in eights
        assert weight_warps % 4 == others % 4 == own % 8 == other % 8 == 0
    assert launch.kept in (0, launch.row_tiles)
    assert launch.row_tiles % launch.group == launch.row_warps % launch.group == 0
    assert launch.sum_slots & (launch.sum_slots - 1) == 0
    if launch.looks_ahead:
        assert launch.hidden
        assert launch.row_warps >= launch.row_tiles
        assert launch.x_slots >= (2 if launch.feature_parts > 1 else 2 * launch.row_tiles + 1)
    else:
        assert launch.x_slots >= max(2, launch.group)
        assert launch.sum_slots >= max(launch.row_warps, launch.group)


def assert_covers(launch: OneLaunch) -> None:
    """Assert that blocks have room for the network, warps for a block's weights, and owners for all
    rows.
    """
    network = launch.network
    if launch.hidden:
        assert launch.cluster * launch.block_units >= launch.hidden
        assert launch.parts * launch.block_features >= network.features
    else:
        assert launch.parts == launch.cluster
        assert launch.cluster * launch.block_features >= network.features
        assert launch.block_units >= network.outputs
    weights = launch.warps_k * launch.warps_u * launch.tiles_of_warp * 256
    assert weights >= launch.block_features * launch.block_units
    assert launch.own_of_tile == 16 or launch.own_of_tile * launch.cluster >= 16 * launch.row_tiles


@pytest.mark.in_turns(36)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("multiprocessors", [20, MULTIPROCESSORS])
def test_every_shape_can_be_launched_or_says_what_is_in_the_way(
    size: tuple[int, int, int], arch: str, multiprocessors: int
) -> None:
    limit, fitting = shared_bytes_of(arch), 0
    for batch, momentum, loss in product(BATCHES, (False, True), ("cross_entropy", "mse")):
        wanted = of_size(size, batch=batch, momentum=momentum, loss=loss)
        try:
            launch = choose(wanted, arch, limit, multiprocessors)
        except ConfigError:
            what = "(?:weights for the registers|shared memory)"
            most, got = bytes_in_the_way(wanted, arch, limit, what, multiprocessors)
            assert got > most
            continue
        assert_can_be_launched(launch, arch, limit)
        assert_covers(launch)
        assert launch.replicas == 1 or launch.cluster * launch.replicas <= 8 / 9 * multiprocessors
        fitting += 1
    if arch in (
        "sm_90a",
        "sm_100a",
    ):  # where all fit, or without replicas all but the longest batches
        assert fitting >= (28 if multiprocessors == MULTIPROCESSORS else 18)
    elif size != (784, 256, 10):
        assert fitting >= 7


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_with_adam_a_batch_is_there_as_a_whole(size: tuple[int, int, int], arch: str) -> None:
    limit, fitting = shared_bytes_of(arch), 0
    for batch, slots in product((1, 16, 33, 64, 176), (1, 2)):
        wanted = of_size(size, batch=batch, optimizer="adam", slots=slots)
        try:
            launch = choose(wanted, arch, limit, MULTIPROCESSORS)
        except ConfigError:
            most, got = bytes_in_the_way(
                wanted, arch, limit, "(?:weights for the registers|shared memory)"
            )
            assert got > most
            continue
        assert_can_be_launched(launch, arch, limit)
        assert_covers(launch)
        assert (launch.replicas, launch.looks_ahead, launch.kept) == (1, False, launch.row_tiles)
        assert launch.held + launch.working <= launch.registers[0]
        held = (launch.tiles_of_features - launch.near_k) * launch.warps_k
        assert launch.near_tiles == 0 or held + launch.near_tiles == launch.block_features // 16
        fitting += 1
    assert fitting >= (8 if arch == "sm_90a" else 0)


def test_where_adam_remembers() -> None:
    launch = choose(of_size((784, 256, 10), **ADAM), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    # Of 49 tiles along the features, each of 8 warps has five with their optimizer state, and one
    # or two more.
    assert (launch.cluster, launch.warps_k, launch.near_k, launch.near_tiles) == (
        16,
        8,
        2,
        49 - 5 * 8,
    )
    assert launch.held == 8 * (7 + 2 * 5)
    assert launch.shared_parts["optimizer state"] == 9 * 256 * 2 * 4
    assert launch.registers == (216, 72)
    assert launch.x_slots == 7


def test_batches_that_replicas_would_partition_are_not_for_adam() -> None:
    assert (
        choose(
            of_size((6, 8, 3), batch=176, **ADAM), "sm_90a", SHARED_BYTES, MULTIPROCESSORS
        ).replicas
        == 1
    )
    with pytest.raises(
        ConfigError, match="adam with batches that replicas need not partition, got 177 rows"
    ):
        choose(of_size((6, 8, 3), batch=177, **ADAM), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("size", [(40, 37, 10), (784, 256, 10), (784, 0, 10)], ids=str)
@pytest.mark.parametrize("momentum", [False, True])
def test_no_shape_takes_more_shared_memory_than_there_is(
    size: tuple[int, int, int], momentum: bool
) -> None:
    wanted, kept = of_size(size, batch=128, momentum=momentum), set()
    for limit in range(SHARED_BYTES, 0, -2048):
        try:
            launch = choose(wanted, "sm_90a", limit, 1)
        except ConfigError:
            break
        assert_can_be_launched(launch, "sm_90a", limit)
        kept.add(launch.kept)
    assert kept == ({0} if size == (784, 256, 10) and momentum else {0, 8})


def test_weights_are_shared_out_evenly() -> None:
    launch = choose(of_size((784, 256, 10), batch=32), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    assert (launch.cluster, launch.block_features, launch.block_units) == (16, 784, 16)
    # 49 tiles of 16 by 16 weights over 8 warps: one has 7, of 4 bytes in float32 and 2 in half
    # precision each.
    assert (launch.warps_k, launch.warps_u, launch.tiles_of_warp, launch.held) == (8, 1, 7, 7 * 12)
    with_momentum = choose(
        of_size((784, 256, 10), momentum=True), "sm_90a", SHARED_BYTES, MULTIPROCESSORS
    )
    assert with_momentum.held == 7 * 20


@pytest.mark.parametrize(
    ("size", "changes", "parts"),
    [
        ((784, 256, 10), {}, 4),
        ((784, 256, 10), {"batch": 128}, 4),
        ((400, 512, 10), {}, 2),  # of 32 units a block
        ((480, 512, 10), {}, 2),
        ((512, 512, 10), {}, 1),  # whose halves registers do not hold, beside sums of 64 rows
        ((784, 512, 10), {}, 1),
        ((400, 512, 10), {"batch": 128}, 1),  # two tiles of units, and a Gram matrix of 128 rows
        ((784, 256, 10), {"batch": 63}, 1),
        ((784, 256, 10), {"batch": 256}, 1),
        ((784, 256, 10), {"momentum": True}, 1),
        ((784, 256, 10), {"is_cut": True}, 1),
        ((256, 256, 10), {}, 1),
        ((784, 16, 10), {}, 1),
    ],
)
def test_which_blocks_divide_the_features(
    size: tuple[int, int, int], changes: dict[str, Any], parts: int
) -> None:
    launch = choose(of_size(size, **changes), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    assert launch.feature_parts == parts
    if parts > 1:
        features = 16 * -(-size[0] // parts // 16)
        assert (launch.block_features, launch.chunk_rows) == (features, launch.network.batch)
        rows = 32 * launch.row_warps * launch.row_registers
        others = 128 * sum(launch.registers)
        assert rows + others <= 65536
        assert launch.held < launch.registers[0]


def test_only_hopper_takes_blocks_that_divide_the_features() -> None:
    launch = choose(of_size((784, 256, 10)), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    archs = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
    taken = [is_supported("one_launch", launch.config.settings(), arch) for arch in archs]
    assert taken == [False, True, False, False]


@pytest.mark.parametrize(
    ("size", "changes", "looks_ahead"),
    [
        ((784, 256, 10), {"batch": 1}, True),
        ((784, 256, 10), {"batch": 48}, True),
        # Room for two batches, but not for half of a third.
        ((784, 256, 10), {"batch": 64, "momentum": True}, False),
        ((784, 256, 10), {"batch": 64}, True),  # of a quarter of the features
        ((784, 256, 10), {"batch": 32, "momentum": True}, True),
        ((784, 512, 10), {"batch": 32}, True),
        ((64, 256, 10), {"batch": 16}, False),  # whose products take no time
        ((784, 0, 10), {"batch": 16}, False),
    ],
)
def test_which_networks_look_ahead(
    size: tuple[int, int, int], changes: dict[str, Any], looks_ahead: bool
) -> None:
    launch = choose(of_size(size, **changes), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    assert launch.looks_ahead == looks_ahead
    assert launch.replicas == 1
    rows = 16 * launch.row_tiles
    assert launch.gram_bytes == (2 * rows**2 if looks_ahead else 0)
    assert str(launch).endswith(
        ", products of a batch ahead" if looks_ahead else " of shared memory"
    )


@pytest.mark.parametrize(
    ("size", "batch", "multiprocessors", "cluster", "replicas"),
    [
        ((784, 256, 10), 176, 132, 16, 1),
        ((784, 256, 10), 192, 132, 16, 4),
        ((784, 256, 10), 512, 132, 16, 7),  # more are not resident
        ((784, 256, 10), 512, 60, 16, 3),
        ((784, 256, 10), 512, 20, 16, 1),
        ((784, 64, 10), 512, 132, 4, 8),
        ((64, 64, 1), 256, 132, 4, 4),
        ((784, 0, 10), 208, 132, 16, 4),  # 13 tiles: 4, 4, 4 and 1
        ((784, 0, 10), 528, 132, 16, 7),  # 33 tiles: 5 each, and 3
        ((784, 0, 128), 100, 132, 16, 1),
        ((784, 256, 128), 160, 132, 16, 2),  # which alone would have no room
    ],
)
def test_how_many_replicas_partition_a_batch(
    size: tuple[int, int, int], batch: int, multiprocessors: int, cluster: int, replicas: int
) -> None:
    launch = choose(of_size(size, batch=batch), "sm_90a", SHARED_BYTES, multiprocessors)
    assert (launch.cluster, launch.replicas) == (cluster, replicas)
    assert launch.row_tiles * (replicas - 1) < -(-batch // 16) <= launch.row_tiles * replicas
    assert bool(launch.exchange_bytes) == (replicas > 1)


@pytest.mark.parametrize(
    ("clusters", "batch", "words"),
    [
        ((1,), 64, "one block, "),
        ((4,), 64, "a cluster of 4 blocks, in each "),
        ((1,), 256, "4 blocks that partition a batch, in each "),
        ((4,), 256, "4 clusters of 4 blocks that partition a batch, in each block "),
    ],
)
def test_a_shape_says_its_numbers(
    monkeypatch: pytest.MonkeyPatch, clusters: tuple[int, ...], batch: int, words: str
) -> None:
    monkeypatch.setattr(one_launch, "CLUSTERS", clusters)
    one_launch.choose.cache_clear()
    launch = choose(network(batch=batch), "sm_90a", SHARED_BYTES, MULTIPROCESSORS)
    one_launch.choose.cache_clear()
    assert str(launch) == (
        f"{words}{launch.warps_k}x{launch.warps_u} warps over features and units, {launch.x_slots} "
        f"tiles of rows in {launch.shared_bytes} bytes of shared memory"
    )


def test_architectures_without_clusters_have_one_block() -> None:
    for arch in jit.ARCHITECTURES:
        launch = choose(network(batch=512), arch, shared_bytes_of(arch), MULTIPROCESSORS)
        assert (launch.cluster == 1) == (generation(arch) < 90)
        assert launch.replicas == 8


# -- what does not fit
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"hidden": 1024}, {"hidden": 512, "momentum": True}, {"hidden": 0, "features": 10**5}],
    ids=str,
)
def test_weights_that_registers_do_not_hold_name_their_bytes(changes: dict[str, Any]) -> None:
    wanted = network(**{"features": 784, **changes})
    most, got = bytes_in_the_way(
        wanted, "sm_90a", SHARED_BYTES, "weights for the registers of a block", 1
    )
    # In float32 and in half precision, and a velocity of each.
    own = wanted.features * (changes.get("hidden", 64) or 16) // 16 * (10 if wanted.momentum else 6)
    assert most < own <= got < 1.2 * own
    assert most < 4 * 65536


@pytest.mark.parametrize(
    "wanted",
    [network(batch=1024), of_size((784, 256, 10), batch=1024), of_size((784, 0, 10), batch=4096)],
    ids=lambda wanted: "-".join(map(str, wanted.widths)),
)
def test_batches_that_shared_memory_does_not_hold_name_their_bytes(wanted: TrainedNetwork) -> None:
    most, got = bytes_in_the_way(wanted, "sm_90a", SHARED_BYTES, "shared memory", 1)
    assert most == SHARED_BYTES < got
    assert choose(wanted, "sm_90a", got, 1).shared_bytes == got
    with pytest.raises(ConfigError):
        choose(wanted, "sm_90a", got - 1, 1)
    assert choose(wanted, "sm_90a", SHARED_BYTES, MULTIPROCESSORS).replicas > 1


@pytest.mark.parametrize(
    ("changes", "arch", "words"),
    [
        ({"dtype": "bfloat16"}, "sm_75", "tensor cores multiply bfloat16, got sm_75"),
        ({"outputs": 129}, "sm_90a", "at most 128 outputs, got 129"),
    ],
)
def test_what_is_not_run_at_all(changes: dict[str, Any], arch: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(network(**changes), arch, SHARED_BYTES, MULTIPROCESSORS)


def test_variants_are_of_all_kernels() -> None:
    found = variants_of("one_launch")
    assert {(name, defines["DTYPE"]) for name, defines in found} == {
        *product(("one_launch", "gather_batches"), HALF_DTYPES),
        ("gram_batches", "float16"),
    }
    assert all(isinstance(value, str) for _, defines in found for value in defines.values())
