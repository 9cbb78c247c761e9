"""How a network with no hidden layer or one is trained as one kernel, or what is in the way.

`one_launch_layout.py` says what blocks and warps of `one_launch.cu` have in a layout; this module
tries those that there are, and takes the best that fits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.one_launch_layout import WORKING_REGISTERS, OneLaunch, hidden_units
from warpfit.backends.cuda.resident_launch import too_heavy, too_large
from warpfit.backends.cuda.sizes import padded
from warpfit.backends.cuda.trained_network import (
    CLUSTERS,
    TrainedNetwork,
    most_blocks,
    replicas_with_rows,
    unsuited,
)
from warpfit.errors import Obstacle

# Warps of a block: those that hold weights; row warps and output warps, which together with the
# loader fill groups of four, as registers are given to warps.
WEIGHT_WARPS = (4, 8)
OTHER_WARPS = ((1, 2), (2, 1), (4, 3), (8, 3))
MOST_WARPS = 16
# Registers that a thread needs at least to multiply, where an adaptive optimizer's update needs
# more.
MULTIPLYING_REGISTERS = 12
# Tiles of rows that may wait between weight warps and row warps, and those that are multiplied
# together.
SUM_SLOTS = (8, 4, 2, 1)
GROUPS = (8, 4, 2, 1)
# Tiles of x that are fetched ahead where a batch is one.
MOST_AHEAD = 4
# Without a hidden layer, a block with fewer features costs more to talk to than it saves.
LEAST_FEATURES = 48
# To look ahead, a row warp can hold as many units of a block; and it pays where weight warps have
# as many tiles.
AHEAD_UNITS, AHEAD_TILES = 32, 4
# Blocks that divide the features multiply as many units by a warpgroup, of batches of so many tiles
# of rows. Row warps have registers for Gram matrices of 64 rows beside 32 units, or of 128 beside
# 16.
DIVIDED_UNITS, DIVIDED_TILES, DIVIDED_SLOTS, DIVIDED_ROWS = 64, (4, 8), 3, 2048
# Replicas that partition a batch of so many tiles; threads have registers for what so many send,
# and no more.
REPLICAS = ((32, 8), (12, 4), (0, 1))
MOST_REPLICAS = 8


@lru_cache(maxsize=256)
def choose(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> OneLaunch | Obstacle:
    """Return how to launch the training of a network with no hidden layer or one, or what is in the
    way.
    """
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if not suits(network):
        return Obstacle(
            "expected one or two layers, without dropout, sample weights and clipping, got "
            f"{network}"
        )
    tiles = -(-network.batch // 16)
    wanted = next(count for least, count in REPLICAS if tiles >= least)
    if network.is_adaptive:
        if wanted > 1:
            return Obstacle(
                f"expected {network.optimizer} with batches that replicas need not partition, got "
                f"{network.batch} rows"
            )
        return _best(network, arch, max_shared_bytes, num_multiprocessors, 1)
    for replicas in range(wanted, MOST_REPLICAS):  # more need less each
        found = _best(network, arch, max_shared_bytes, num_multiprocessors, replicas)
        if isinstance(found, OneLaunch):
            return found
    return _best(network, arch, max_shared_bytes, num_multiprocessors, MOST_REPLICAS)


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    return len(network.widths) <= 3 and network.is_plain and not network.rate_in_velocity


def _best(
    network: TrainedNetwork,
    arch: str,
    max_shared_bytes: int,
    num_multiprocessors: int,
    replicas: int,
) -> OneLaunch | Obstacle:
    """Return the best shape of so many replicas, or fewer, or what is in the way if none fits."""
    shapes = [
        shape
        for cluster in _clusters(network, arch)
        for shape in _shapes(
            network,
            cluster,
            arch,
            replicas_with_rows(network.batch, cluster, num_multiprocessors, replicas),
        )
    ]
    held = [shape for shape in shapes if shape.held + shape.working <= shape.registers[0]]
    if not held:
        least = min(shapes, key=lambda shape: shape.held + shape.working - shape.registers[0])
        threads = 32 * least.warps_k * least.warps_u
        most = 4 * max(0, least.registers[0] - least.working) * threads
        return too_heavy(most, 4 * least.held * threads)
    filled = [_filled(shape, max_shared_bytes) for shape in held]
    if any(filled):
        return max((shape for shape in filled if shape), key=_preference)
    return too_large(held, max_shared_bytes, "a batch and its units")


def _preference(shape: OneLaunch) -> Any:
    """Return what is larger for the better of two shapes that fit, as measured: see
    docs/one-launch.md.
    """
    is_worth_it = bool(shape.hidden) or shape.network.features >= LEAST_FEATURES * shape.cluster
    return (
        shape.cluster if is_worth_it else -shape.cluster,
        shape.feature_parts,
        shape.looks_ahead,
        -shape.tiles_of_warp,
        -shape.near_tiles,
        min(shape.row_warps, shape.row_tiles),
        -shape.threads,
        -shape.warps_k,
    )


def _filled(shape: OneLaunch, max_shared_bytes: int) -> OneLaunch | None:
    """Return the shape with as many slots as fit and make sense, or None if the least number does
    not fit.
    """
    if shape.feature_parts > 1:
        slots = range(DIVIDED_SLOTS, shape.least_slots - 1, -1)
        shapes = [replace(shape, x_slots=count) for count in slots]
        return next((own for own in shapes if own.shared_bytes <= max_shared_bytes), None)
    shapes = [
        own for sum_slots in SUM_SLOTS if (own := _with_sums(shape, sum_slots, max_shared_bytes))
    ]
    if not shapes:
        return None
    filled = shapes[0]
    # If tiles come twice, too few groups could be on their way: one by one, then.
    is_slow = not filled.kept and filled.x_slots < 3 * filled.group
    if shape.network.is_adaptive:
        # Its tiles are free again all at once, so that as many as possible of the next batch had
        # better be there, and the others be taken one by one as they come.
        filled = max(shapes, key=lambda own: own.x_slots)
        is_slow = filled.x_slots < 2 * filled.row_tiles
    return (
        _filled(replace(shape, group=1), max_shared_bytes)
        if is_slow and shape.group > 1
        else filled
    )


def _with_sums(shape: OneLaunch, sum_slots: int, max_shared_bytes: int) -> OneLaunch | None:
    """Return the shape with so many slots for sums and as many for x as fit, or None if these are
    too few.
    """
    row_tiles = shape.row_tiles
    if shape.looks_ahead:
        # With room for two batches and no more, tiles would come too late.
        least, most, least_sums = 2 * row_tiles + -(-row_tiles // 2), 3 * row_tiles, 1
    else:
        least, most, least_sums = (
            shape.least_slots,
            2 * row_tiles,
            max(shape.row_warps, shape.group),
        )
    most = max(MOST_AHEAD, most)
    is_needless = sum_slots > 1 and sum_slots >= 2 * row_tiles * (1 + shape.looks_ahead)
    if is_needless or sum_slots < least_sums:
        return None
    empty = replace(shape, sum_slots=sum_slots, x_slots=0)
    slots = min(most, (max_shared_bytes - empty.shared_bytes) // empty.slot_bytes)
    while slots >= least and replace(empty, x_slots=slots).shared_bytes > max_shared_bytes:
        slots -= 1
    # The most sums only where the next batch has room beside them.
    if slots == most or (slots >= least and sum_slots < max(SUM_SLOTS)):
        return replace(empty, x_slots=slots)
    return None


def _clusters(network: TrainedNetwork, arch: str) -> list[int]:
    """Return the numbers of blocks that have 16 units or features each."""
    parts = padded(hidden_units(network) or network.features) // 16
    return [size for size in CLUSTERS if size <= min(most_blocks(arch), max(1, parts))]


def _shapes(network: TrainedNetwork, cluster: int, arch: str, replicas: int) -> list[OneLaunch]:
    """Return the partitions of a block's work among warps, with the least shared memory."""
    shapes = []
    for weight_warps, warps_u, others in product(WEIGHT_WARPS, (1, 2, 4, 8), OTHER_WARPS):
        num_warps = weight_warps + sum(others) + 1
        if weight_warps % warps_u == 0 and num_warps <= MOST_WARPS:
            moves = generation(arch) >= 90 and num_warps > 8  # no thread can have more than 255
            warps_k = weight_warps // warps_u
            shape = OneLaunch(
                network, cluster, warps_k, warps_u, *others, moves, 1, False, 2, 1, replicas
            )
            if shape.block_units // 16 % warps_u == 0:
                shapes.append(_least(_held(shape)))
                if _may_divide(shape, arch):
                    shapes.append(_divided(shape))
                if _may_look_ahead(shape):
                    shapes.append(_least(replace(shape, looks_ahead=True)))
    return shapes


def _may_look_ahead(shape: OneLaunch) -> bool:
    """Return whether a shape can look ahead, and it pays: see docs/one-launch.md."""
    return _can_look_ahead(shape) and shape.tiles_of_warp >= AHEAD_TILES


def _can_look_ahead(shape: OneLaunch) -> bool:
    return (
        shape.hidden > 0
        and not shape.network.is_adaptive
        and not shape.network.is_cut
        and shape.replicas == 1
        and shape.row_tiles <= shape.row_warps
        and shape.block_units <= AHEAD_UNITS
    )


def _divided(shape: OneLaunch) -> OneLaunch:
    parts = DIVIDED_UNITS // shape.block_units
    return replace(shape, looks_ahead=True, feature_parts=parts, warps_k=1, warps_u=4, sum_slots=2)


def _may_divide(shape: OneLaunch, arch: str) -> bool:
    """Return whether blocks can divide the features in a shape, and it pays."""
    if generation(arch) != 90 or not _can_look_ahead(shape) or shape.network.slots:
        return False
    parts = DIVIDED_UNITS // shape.block_units
    return (
        shape.row_tiles in DIVIDED_TILES
        and shape.network.batch == 16 * shape.row_tiles
        and (shape.warps_k, shape.warps_u) == (4, 1)
        and DIVIDED_UNITS % shape.block_units == 0
        and shape.network.batch * shape.block_units <= DIVIDED_ROWS
        and parts > 1
        and shape.cluster % parts == 0
        and _divided(shape).tiles_of_features >= 2 * AHEAD_TILES
    )


def _held(shape: OneLaunch) -> OneLaunch:
    """Return the shape with as much in registers of an adaptive optimizer's state as there is room
    for.
    """
    if not shape.network.is_adaptive:
        return shape
    shapes = [replace(shape, near_k=near) for near in range(shape.tiles_of_features + 1)]
    return next((own for own in shapes if own.held + own.working <= own.registers[0]), shapes[-1])


def _least(shape: OneLaunch) -> OneLaunch:
    """Return the shape with the least shared memory."""
    group = _group(shape)
    sum_slots = min(count for count in SUM_SLOTS if count >= max(shape.row_warps, group))
    shape = replace(shape, group=group, sum_slots=sum_slots)
    return replace(shape, x_slots=shape.least_slots)


def _group(shape: OneLaunch) -> int:
    """Return how many tiles weight warps multiply together: as many as their sums have
    registers.
    """
    left = shape.registers[0] - shape.held - WORKING_REGISTERS
    if shape.network.is_adaptive:
        left = shape.registers[0] - shape.held - 4 * shape.tiles_of_warp - MULTIPLYING_REGISTERS
    of_tile = 12 + 8 * max(1, shape.block_units // 16 // shape.warps_u)
    return next(
        (
            group
            for group in GROUPS
            if shape.row_tiles % group == 0
            and shape.row_warps % group == 0
            and group * of_tile <= left
        ),
        1,
    )
