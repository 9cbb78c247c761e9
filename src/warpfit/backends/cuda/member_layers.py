"""Ensembles whose members share weights: all layers forward as one kernel, and back as another, on
Hopper's tensor cores.

`member_layers_forward_sm90.cu` takes rows of a member through all layers in shared memory;
`member_layers_backward_sm90.cu` brings gradients back. Those of the shared weights are products of
what both leave in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpfit.backends.base import (
    Array,
    MemberHead,
    MemberLayer,
    MemberLayers,
    MemberUpdate,
    Number,
)
from warpfit.backends.checks import check_float, check_shape
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.dense import DenseOps
from warpfit.backends.cuda.dropout import check_step, round_keys_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.joined_updates import rule_numbers
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.matmul_wgmma_config import Box
from warpfit.backends.update_rules import UPDATE_RULES, UpdateNumbers

# As in kernels/ops/members/member_products.cuh.
MOST_LAYERS, ROWS, PANEL, SLOTS, CLUSTER = 5, 64, 64, 4, 2
WORKERS, LINE_BYTES, BARRIER_BYTES, MAP_BYTES = 256, 128, 8, 128
THREADS = WORKERS + 128
WIDTHS = (128, 256, 512)
_LAYER, _SIZES = struct.Struct("=384s3Q40x"), struct.Struct("=6i40x")
# As in member_weights.cuh: inputs of a tile of weights, and rows of a unit of work.
TILE_INPUTS, BLOCK_K, STAGES = 128, 64, 4
_WEIGHTS, _WORK = struct.Struct("=256sii56x"), struct.Struct("=4i48x")
# As in member_gradients_sm90.cu: of a layer, and of all members.
_TARGETS, _COUNTS = struct.Struct("=3Q16Q"), struct.Struct("=12Q6i")
# Outputs of heads that blocks hold.
OUTPUTS_HELD = 2
HALF = "bfloat16"


@dataclass(frozen=True)
class MemberPass:
    """How rows of members are taken through layers."""

    # num_members and num_rows: rows are of each member.
    num_members: int
    num_rows: int
    # num_inputs, num_units, num_layers and num_outputs: all hidden layers have as many units.
    num_inputs: int
    num_units: int
    num_layers: int
    num_outputs: int

    @staticmethod
    def of(layers: MemberLayers, num_rows: int) -> MemberPass:
        """Return how so many rows of each member are taken through layers."""
        (num_members, num_inputs), num_units = (
            layers.hidden[0].scale_in.shape,
            layers.hidden[0].weight.shape[1],
        )
        sizes = (num_inputs, num_units, len(layers.hidden), layers.head.weight.shape[2])
        return MemberPass(num_members, num_rows, *sizes)

    @property
    def num_blocks(self) -> int:
        """Blocks of a member, whole clusters, one even without rows."""
        return CLUSTER * max(1, -(-self.num_rows // (CLUSTER * ROWS)))

    @property
    def grid(self) -> int:
        return self.num_members * self.num_blocks

    @property
    def padded_rows(self) -> int:
        """Rows of all members in arrays in which each has whole blocks."""
        return self.grid * ROWS

    @property
    def padded_inputs(self) -> int:
        """Columns of an array whose rows begin at multiples of 16 bytes."""
        return -(-self.num_inputs // 8) * 8

    @property
    def groups(self) -> int:
        """Groups of units that a thread has."""
        return self.num_units // (2 * PANEL)

    @property
    def slot_units(self) -> int:
        """Units of a slot of weights."""
        return min(self.num_units // 2, 128)

    @property
    def partial_size(self) -> int:
        """Numbers that a block of rows adds to its member's gradients."""
        of_units = (2 * self.num_layers + self.num_outputs) * self.num_units
        return -(-(of_units + self.num_inputs) // 4) * 4

    @property
    def gradient_blocks(self) -> int:
        """Blocks that sum a member's gradients."""
        of_units = (self.num_layers + self.num_outputs) * self.num_units
        return -(-(of_units + self.num_inputs) // WORKERS) + 1

    @property
    def _common_bytes(self) -> int:
        rings = 2 * SLOTS * (self.slot_units * LINE_BYTES + 2 * BARRIER_BYTES)
        vectors = 2 * (3 * 4 * self.num_units + BARRIER_BYTES)
        head = OUTPUTS_HELD * 4 * self.num_units + 2 * BARRIER_BYTES
        return self.num_units // PANEL * ROWS * LINE_BYTES + rings + vectors + head

    @property
    def forward_bytes(self) -> int:
        """Shared memory of a block, forward."""
        return self._common_bytes + 2 * (self.groups * WORKERS * 4 + 2 * BARRIER_BYTES)

    @property
    def backward_bytes(self) -> int:
        """Shared memory of a block, backward."""
        return self._common_bytes + 2 * 4 * self.num_units * 4

    @property
    def tile_units(self) -> int:
        """Columns of a tile of weights."""
        return min(self.num_units, 256)

    def tiles_of(self, num_inputs: int) -> int:
        """Return the number of tiles of a layer's weights."""
        return -(-num_inputs // TILE_INPUTS) * (self.num_units // self.tile_units)

    @property
    def num_tiles(self) -> int:
        """Tiles of all layers' weights."""
        others = (self.num_layers - 1) * self.tiles_of(self.num_units)
        return self.tiles_of(self.num_inputs) + others

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a block that multiplies for weights' gradients."""
        return STAGES * ((TILE_INPUTS + self.tile_units) * LINE_BYTES + 2 * BARRIER_BYTES)

    def defines(self, **others: int) -> dict[str, Any]:
        return {"UNITS": self.num_units, **others}

    @property
    def forward_defines(self) -> dict[str, Any]:
        return self.defines(CLUSTER=CLUSTER, SHARED_BYTES=self.forward_bytes)

    @property
    def backward_defines(self) -> dict[str, Any]:
        return self.defines(CLUSTER=CLUSTER, SHARED_BYTES=self.backward_bytes)

    @property
    def weight_defines(self) -> dict[str, Any]:
        return self.defines(STAGES=STAGES, SHARED_BYTES=self.weight_bytes)


class WeightWork(NamedTuple):
    """Products for weights' gradients, dealt out to blocks in units of 64 rows of a tile."""

    grid: int
    units_of_tile: int
    units_of_block: int

    @staticmethod
    def of(how: MemberPass, num_multiprocessors: int) -> WeightWork:
        of_tile = how.padded_rows // BLOCK_K
        of_block = -(-how.num_tiles * of_tile // num_multiprocessors)
        return WeightWork(-(-how.num_tiles * of_tile // of_block), of_tile, of_block)


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    x: DeviceArray
    layers: MemberLayers
    how: MemberPass
    p: float
    inputs: list[DeviceArray]  # (padded rows, K): of each layer, in half precision
    # (layers, padded rows, units): of each layer before they are scaled, a block's 64 rows in the
    # order of its threads; the backward pass puts their gradients in their place, row by row.
    sums: DeviceArray
    bits: DeviceArray  # which units were kept, in that order


class MemberLayerOps(DenseOps):
    """All layers of an ensemble at once."""

    def member_layers_forward(
        self,
        x: Array,
        layers: MemberLayers,
        *,
        p: float,
        seed: int,
        step: Number,
        keeps: bool = True,
    ) -> tuple[Array, Any]:
        how = MemberPass.of(layers, x.shape[1])
        batches = 1 if len(x) == 1 else how.num_members
        check_float("member_layers_forward", x, *layers.head)
        check_shape("member_layers_forward", "x", x, (batches, how.num_rows, how.num_inputs))
        check_step("member_layers_forward", step)
        x, layers = self._at_pairs(self.contiguous(x)), _contiguous(self, layers)
        y = self.empty((how.num_members, how.num_rows, how.num_outputs), "float32")
        kept = self._room_of(x, layers, how, p) if keeps else None
        draw = (round_keys_of(seed), round(p * 2**16), 1 / (1 - p))
        kernel = self.kernel("member_layers_forward_sm90", **how.forward_defines)
        kernel(
            how.grid,
            THREADS,
            self._packed(layers, how, len(x) == 1, kept.inputs if kept else [], []),
            x,
            layers.hidden[0].scale_in,
            *layers.head,
            y,
            kept and kept.sums,
            kept and kept.bits,
            *scalar(step),
            *draw,
            shared_bytes=how.forward_bytes,
            cluster=CLUSTER,
        )
        return y, kept

    def member_layers_backward(
        self, dy: Array, kept: Any, *, needs_dx: bool, update: MemberUpdate | None = None
    ) -> tuple[MemberLayers | None, Array | None]:
        how, layers = kept.how, kept.layers
        shape = (how.num_members, how.num_rows)
        check_float("member_layers_backward", dy, kept.x)
        check_shape("member_layers_backward", "x", kept.x, (*shape, how.num_inputs))
        check_shape("member_layers_backward", "dy", dy, (*shape, how.num_outputs))
        # Each block has read its own part of `sums` before it writes there.
        dz = [self.take(kept.sums, idx) for idx in range(how.num_layers)]
        dx = self.empty((*shape, how.num_inputs), "float32") if needs_dx else None
        partials = self.empty((how.grid, how.partial_size), "float32")
        dy = self.contiguous(dy)
        kernel = self.kernel("member_layers_backward_sm90", **how.backward_defines)
        kernel(
            how.grid,
            THREADS,
            self._packed(layers, how, False, kept.inputs, dz),
            kept.x,
            layers.hidden[0].scale_in,
            layers.head.weight,
            dy,
            kept.sums,
            kept.bits,
            dx,
            partials,
            1 / (1 - kept.p),
            shared_bytes=how.backward_bytes,
            cluster=CLUSTER,
        )
        if update is not None:
            self._start_gradients(kept, dz, partials, dy, update)
            return None, dx
        found = self._like(layers)
        self._start_gradients(kept, dz, partials, dy, found)
        return found, dx

    def _at_pairs(self, x: DeviceArray) -> DeviceArray:
        """Return x, or a copy if it does not begin where pairs of its numbers do."""
        if x.pointer % (2 * x.itemsize) == 0:
            return x
        copy: DeviceArray = self.empty(x.shape, x.dtype)
        self.assign(copy, x)
        return copy

    def _like(self, layers: MemberLayers) -> MemberLayers:
        """Return arrays of the shapes of all of these."""
        hidden, head = (
            [[self.empty(each.shape, "float32") for each in own] for own in owns]
            for owns in (layers.hidden, [layers.head])
        )
        return MemberLayers([MemberLayer(*own) for own in hidden], MemberHead(*head[0]))

    def _start_gradients(
        self,
        kept: _Kept,
        dz: list[DeviceArray],
        partials: DeviceArray,
        dy: DeviceArray,
        targets: MemberLayers | MemberUpdate,
    ) -> None:
        """Sum the gradients of all layers: products over rows, and what blocks of rows left."""
        how = kept.how
        work = WeightWork.of(how, self.runtime.num_multiprocessors)
        weights = self._packed_weights(how, work, kept.inputs, dz)
        slots = (work.grid + how.num_tiles, how.tile_units // 8, WORKERS, 4)
        parts = self.empty(slots, "float32")
        kernel = self.kernel("member_weights_sm90", **how.weight_defines)
        kernel(work.grid, THREADS, weights, parts, shared_bytes=how.weight_bytes)
        kernel = self.kernel("member_gradients_sm90", **how.defines())
        grid = how.num_tiles * how.tile_units // 8 + how.num_members * how.gradient_blocks
        numbers = targets.numbers if isinstance(targets, MemberUpdate) else UpdateNumbers(0.0)
        own = _packed_gradients(kept.layers, targets, how)
        arrays = (parts, partials, dy)
        kernel(grid, WORKERS, weights, own, *arrays, *rule_numbers(UPDATE_RULES["adam"], numbers))

    def _packed_weights(
        self, how: MemberPass, work: WeightWork, inputs: list[DeviceArray], dz: list[DeviceArray]
    ) -> bytes:
        """Return a `WeightList` of member_weights.cuh."""
        box, packed, num_tiles = Box(BLOCK_K, PANEL), [], 0
        sizes = (how.num_inputs, *[how.num_units] * (how.num_layers - 1))
        for size, *arrays in zip(sizes, inputs, dz, strict=True):
            maps = [self.tensor_map_of(each, each.shape[1], box) for each in arrays]
            packed.append(_WEIGHTS.pack(b"".join(maps), size, num_tiles))
            num_tiles += how.tiles_of(size)
        whole = b"".join(packed).ljust(MOST_LAYERS * _WEIGHTS.size, b"\0")
        return whole + _WORK.pack(
            how.num_layers, num_tiles, work.units_of_tile, work.units_of_block
        )

    def computes_member_layers(self, layers: MemberLayers) -> bool:
        if not 1 <= len(layers.hidden) <= MOST_LAYERS:
            return False
        how, others = MemberPass.of(layers, 1), layers.hidden[1:]
        num_units = how.num_units
        return (
            generation(self.runtime.arch) == 90
            and self.loss_scale == 1
            and all(each.weight.dtype == HALF for each in layers.hidden)
            and num_units in WIDTHS
            and all(each.weight.shape == (num_units, num_units) for each in others)
            and 1 <= how.num_inputs <= num_units
            and min(how.num_members, how.num_outputs) >= 1
            and all(each.dtype == "float32" and each.pointer % 16 == 0 for each in _own(layers))
            and max(how.forward_bytes, how.backward_bytes) <= self.runtime.max_shared_bytes
        )

    def _room_of(self, x: DeviceArray, layers: MemberLayers, how: MemberPass, p: float) -> _Kept:
        columns = [how.padded_inputs, *[how.num_units] * (how.num_layers - 1)]
        inputs = [self.empty((how.padded_rows, each), HALF) for each in columns]
        sums = self.empty((how.num_layers, how.padded_rows, how.num_units), HALF)
        return _Kept(x, layers, how, p, inputs, sums, self.empty((sums.size // 32,), "uint32"))

    def _packed(
        self,
        layers: MemberLayers,
        how: MemberPass,
        is_common: bool,
        inputs: list[DeviceArray],
        dz: list[DeviceArray],
    ) -> bytes:
        """Return a `MemberNetwork` of member_products.cuh."""
        packed = []
        of_weights, of_rows = Box(how.slot_units // CLUSTER, PANEL), Box(ROWS, PANEL)
        for idx, layer in enumerate(layers.hidden):
            maps = [self.tensor_map_of(layer.weight, how.num_units, of_weights)]
            for arrays in (inputs, dz):
                own = arrays[idx : idx + 1]
                maps += [self.tensor_map_of(each, each.shape[1], of_rows) for each in own]
                maps += [bytes(MAP_BYTES)] * (1 - len(own))
            vectors = (layer.scale_out, layer.bias, _next(layers, idx))
            packed.append(_LAYER.pack(b"".join(maps), *map(_pointer, vectors)))
        sizes = (how.num_layers, how.num_inputs, how.num_outputs, how.num_rows, how.num_blocks)
        whole = b"".join(packed).ljust(MOST_LAYERS * _LAYER.size, b"\0")
        return whole + _SIZES.pack(*sizes, is_common)


def _next(layers: MemberLayers, idx: int) -> DeviceArray | None:
    """Return what scales the inputs of the layer that follows, if one does."""
    return layers.hidden[idx + 1].scale_in if idx + 1 < len(layers.hidden) else None


def _own(layers: MemberLayers) -> list[DeviceArray]:
    """Return what members do not share."""
    vectors = [each for own in layers.hidden for each in (own.scale_in, own.scale_out, own.bias)]
    return [*vectors, *layers.head]


def _pointer(array: DeviceArray | None) -> int:
    return 0 if array is None else array.pointer


def _packed_gradients(
    layers: MemberLayers, targets: MemberLayers | MemberUpdate, how: MemberPass
) -> bytes:
    """Return a `MemberGradients` of member_gradients_sm90.cu."""
    groups: Sequence[MemberLayers]
    copies: Sequence[DeviceArray | None]
    if isinstance(targets, MemberUpdate):
        groups, copies = (targets.parameters, *targets.moments), targets.copies
    else:
        groups, copies = (targets,), (None,) * how.num_layers
    packed = []
    for idx, layer in enumerate(layers.hidden):
        numbers = [_pointer(layer.scale_out), _pointer(layer.bias), _pointer(_next(layers, idx))]
        numbers += _target([group.hidden[idx].weight for group in groups], copies[idx])
        numbers += _target([group.hidden[idx].scale_out for group in groups])
        numbers += _target([group.hidden[idx].bias for group in groups])
        numbers += _target([_next(group, idx) for group in groups])
        packed.append(_TARGETS.pack(*numbers))
    numbers = _target([group.hidden[0].scale_in for group in groups])
    numbers += _target([group.head.weight for group in groups])
    numbers += _target([group.head.bias for group in groups])
    of_rows = (how.num_members, how.num_rows, how.num_blocks)
    sizes = (how.num_layers, how.num_inputs, how.num_outputs)
    whole = b"".join(packed).ljust(MOST_LAYERS * _TARGETS.size, b"\0")
    return whole + _COUNTS.pack(*numbers, *of_rows, *sizes)


def _target(arrays: Sequence[DeviceArray | None], copy: DeviceArray | None = None) -> list[int]:
    """Return a `Target`: a gradient, or a parameter and its moments, and its copy."""
    pointers = [_pointer(each) for each in arrays]
    return [*pointers, *[0] * (3 - len(pointers)), _pointer(copy)]


def _contiguous(ops: MemberLayerOps, layers: MemberLayers) -> MemberLayers:
    hidden = [MemberLayer(*map(ops.contiguous, each)) for each in layers.hidden]
    return MemberLayers(hidden, MemberHead(*map(ops.contiguous, layers.head)))
