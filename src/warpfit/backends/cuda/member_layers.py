"""Ensembles whose members share weights: all layers forward as one kernel, and back as another, on
Hopper's tensor cores.

`member_layers_forward_sm90.cu` takes rows of a member through all layers in shared memory;
`member_layers_backward_sm90.cu` brings gradients back. Those of the shared weights are products of
what both leave in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpfit.backends.base import Array, Number
from warpfit.backends.checks import check_float, check_shape
from warpfit.backends.contract.members import MemberHead, MemberLayer, MemberLayers
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.dense import DenseOps
from warpfit.backends.cuda.driver import is_debugging
from warpfit.backends.cuda.dropout import check_step, key_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.matmul_wgmma_config import Box

__all__ = ["MemberLayerOps", "MemberPass", "variants"]

# As in kernels/ops/members/member_products.cuh.
MOST_LAYERS, ROWS, PANEL, SLOTS, CLUSTER = 5, 64, 64, 4, 2
WORKERS, LINE_BYTES, BARRIER_BYTES = 256, 128, 8
THREADS = WORKERS + 128
WIDTHS = (128, 256, 512)
_LAYER, _SIZES = struct.Struct("=384s6Q16x"), struct.Struct("=6i40x")
NETWORK_BYTES = MOST_LAYERS * _LAYER.size + _SIZES.size
# As in member_weights.cuh and member_weights_sm90.cu: inputs of a tile of weights, rows of a unit of
# work.
TILE_INPUTS, BLOCK_K, STAGES = 128, 64, 4
_WEIGHTS, _WORK = struct.Struct("=256sQii48x"), struct.Struct("=4i48x")
HALF = "bfloat16"


@dataclass(frozen=True)
class MemberPass:
    """How rows of members are taken through layers.

    Attributes
    ----------
    num_members, num_rows : int
        Rows are of each member.
    num_inputs, num_units, num_layers, num_outputs : int
        All hidden layers have as many units.
    """

    num_members: int
    num_rows: int
    num_inputs: int
    num_units: int
    num_layers: int
    num_outputs: int

    @property
    def num_blocks(self) -> int:
        """Blocks of a member, whole clusters."""
        return CLUSTER * -(-self.num_rows // (CLUSTER * ROWS))

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
        """Numbers that a block adds to its member's gradients."""
        return (2 * self.num_layers + self.num_outputs) * self.num_units + self.num_inputs

    @property
    def _common_bytes(self) -> int:
        rings = 2 * SLOTS * (self.slot_units * LINE_BYTES + 2 * BARRIER_BYTES)
        return self.num_units // PANEL * ROWS * LINE_BYTES + rings + 3 * 4 * self.num_units

    @property
    def forward_bytes(self) -> int:
        """Shared memory of a block, forward."""
        outputs = 2 * ROWS * (WORKERS // ROWS) * 4
        return self._common_bytes + self.groups * 2 * WORKERS * 2 + outputs

    @property
    def backward_bytes(self) -> int:
        """Shared memory of a block, backward."""
        return self._common_bytes + 2 * 4 * self.num_units * 4 + 8

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
        return {"UNITS": self.num_units, **others, "BOUNDED_WAITS": int(is_debugging())}

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
    """How products for weights' gradients are dealt out to blocks, in units of 64 rows of a tile."""

    grid: int
    units_of_tile: int
    units_of_block: int

    @staticmethod
    def of(how: MemberPass, num_multiprocessors: int) -> WeightWork:
        of_tile = how.padded_rows // BLOCK_K
        of_block = -(-how.num_tiles * of_tile // num_multiprocessors)
        return WeightWork(-(-how.num_tiles * of_tile // of_block), of_tile, of_block)


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes
    ----------
    inputs : list of array (padded rows, K)
        Of each layer, in half precision.
    sums : array
        Of each layer before they are scaled, in the order of the kernel's threads.
    bits : array
        Which units were kept, in that order.
    """

    x: DeviceArray
    layers: MemberLayers
    how: MemberPass
    p: float
    inputs: list[DeviceArray]
    sums: DeviceArray
    bits: DeviceArray


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
    ) -> tuple[Array, Any] | None:
        how = self._pass_of(x, layers)
        if how is None:
            return None
        check_step("member_layers_forward", step)
        x, layers = self.contiguous(x), _contiguous(self, layers)
        y = self.empty((how.num_members, how.num_rows, how.num_outputs), "float32")
        kept = self._room_of(x, layers, how, p) if keeps else None
        draw = (*key_of(seed), round(p * 2**16), 1 / (1 - p))
        kernel = self.kernel("member_layers_forward_sm90", **how.forward_defines)
        kernel(
            how.grid,
            THREADS,
            self._packed(layers, how, len(x) == 1, kept.inputs if kept else []),
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
        self, dy: Array, kept: Any, *, needs_dx: bool
    ) -> tuple[MemberLayers, Array | None]:
        how, layers = kept.how, kept.layers
        shape = (how.num_members, how.num_rows)
        check_float("member_layers_backward", dy, kept.x)
        check_shape("member_layers_backward", "dy", dy, (*shape, how.num_outputs))
        dz = [self.empty((how.padded_rows, how.num_units), HALF) for _ in layers.hidden]
        vectors = [
            [self.empty(each.shape, "float32") for each in (own.scale_in, own.scale_out, own.bias)]
            for own in layers.hidden
        ]
        head = MemberHead(*(self.empty(each.shape, "float32") for each in layers.head))
        dx = self.empty((*shape, how.num_inputs), "float32") if needs_dx else None
        kernel = self.kernel("member_layers_backward_sm90", **how.backward_defines)
        kernel(
            how.grid,
            THREADS,
            self._packed(layers, how, False, kept.inputs, dz, vectors),
            kept.x,
            layers.hidden[0].scale_in,
            layers.head.weight,
            self.contiguous(dy),
            kept.sums,
            kept.bits,
            dx,
            vectors[0][0],
            *head,
            self.empty((how.grid, how.partial_size), "float32"),
            self.arrivals(how.num_members),
            1 / (1 - kept.p),
            how.partial_size,
            shared_bytes=how.backward_bytes,
            cluster=CLUSTER,
        )
        weights = self._weight_gradients(how, kept.inputs, dz)
        hidden = [
            MemberLayer(scale_in, weight, *others)
            for (scale_in, *others), weight in zip(vectors, weights, strict=True)
        ]
        return MemberLayers(hidden, head), dx

    def _weight_gradients(
        self, how: MemberPass, inputs: list[DeviceArray], dz: list[DeviceArray]
    ) -> list[DeviceArray]:
        """Return those of the shared weights, products over all rows."""
        sizes = (how.num_inputs, *[how.num_units] * (how.num_layers - 1))
        gradients = [self.empty((size, how.num_units), "float32") for size in sizes]
        work = WeightWork.of(how, self.runtime.num_multiprocessors)
        box, packed, num_tiles = Box(BLOCK_K, PANEL), [], 0
        for own_inputs, own_dz, gradient in zip(inputs, dz, gradients, strict=True):
            maps = [self.tensor_map_of(each, each.shape[1], box) for each in (own_inputs, own_dz)]
            of_layer = (b"".join(maps), gradient.pointer, len(gradient), num_tiles)
            packed.append(_WEIGHTS.pack(*of_layer))
            num_tiles += how.tiles_of(len(gradient))
        layers = b"".join(packed).ljust(MOST_LAYERS * _WEIGHTS.size, b"\0")
        sizes = (how.num_layers, num_tiles, work.units_of_tile, work.units_of_block)
        weights = layers + _WORK.pack(*sizes)
        slots = (work.grid + num_tiles, how.tile_units // 8, WORKERS, 4)
        partials = self.empty(slots, "float32")
        products = self.kernel("member_weights_sm90", **how.weight_defines)
        products(work.grid, THREADS, weights, partials, shared_bytes=how.weight_bytes)
        sums = self.kernel("member_weight_sums_sm90", **how.defines())
        sums((num_tiles, how.tile_units // 8), WORKERS, weights, partials)
        return gradients

    def _pass_of(self, x: DeviceArray, layers: MemberLayers) -> MemberPass | None:
        """Return how to take rows through layers; None if other kernels have to."""
        first, *others = layers.hidden
        num_members, num_inputs = first.scale_in.shape
        num_units, (_, _, num_outputs) = first.weight.shape[1], layers.head.weight.shape
        how = MemberPass(
            num_members, x.shape[1], num_inputs, num_units, len(layers.hidden), num_outputs
        )
        is_possible = (
            generation(self.runtime.arch) == 90
            and self.loss_scale == 1
            and x.dtype == "float32"
            and all(each.weight.dtype == HALF for each in layers.hidden)
            and num_units in WIDTHS
            and all(each.weight.shape == (num_units, num_units) for each in others)
            and len(layers.hidden) <= MOST_LAYERS
            and 1 <= num_inputs <= num_units
            and min(num_members, how.num_rows, num_outputs) >= 1
            and max(how.forward_bytes, how.backward_bytes) <= self.runtime.max_shared_bytes
        )
        return how if is_possible else None

    def _room_of(self, x: DeviceArray, layers: MemberLayers, how: MemberPass, p: float) -> _Kept:
        columns = [how.padded_inputs, *[how.num_units] * (how.num_layers - 1)]
        inputs = [self.empty((how.padded_rows, each), HALF) for each in columns]
        units = how.num_layers * how.padded_rows * how.num_units
        sums, bits = self.empty((units,), HALF), self.empty((units // 32,), "uint32")
        return _Kept(x, layers, how, p, inputs, sums, bits)

    def _packed(
        self,
        layers: MemberLayers,
        how: MemberPass,
        is_common: bool,
        inputs: list[DeviceArray],
        dz: list[DeviceArray] | None = None,
        gradients: list[list[DeviceArray]] | None = None,
    ) -> bytes:
        """Return a `MemberNetwork` of member_products.cuh; gradients are those of scale_in,
        scale_out and bias of each layer.
        """
        packed = []
        of_weights, of_rows = Box(how.slot_units // CLUSTER, PANEL), Box(ROWS, PANEL)
        for idx, layer in enumerate(layers.hidden):
            maps = [self.tensor_map_of(layer.weight, how.num_units, of_weights)]
            for arrays in (inputs, dz):
                each = arrays[idx] if arrays else None
                is_there = each is not None
                maps.append(
                    self.tensor_map_of(each, each.shape[1], of_rows) if is_there else bytes(128)
                )
            vectors = [layer.scale_out, layer.bias, _next(layers.hidden, idx)]
            if gradients is not None:
                vectors += [
                    *gradients[idx][1:],
                    gradients[idx + 1][0] if idx + 1 < how.num_layers else None,
                ]
            pointers = [0 if each is None else each.pointer for each in vectors]
            packed.append(_LAYER.pack(b"".join(maps), *pointers, *[0] * (6 - len(pointers))))
        sizes = (how.num_layers, how.num_inputs, how.num_outputs, how.num_rows, how.num_blocks)
        layers_bytes = b"".join(packed).ljust(MOST_LAYERS * _LAYER.size, b"\0")
        return layers_bytes + _SIZES.pack(*sizes, is_common)


def _next(hidden: Any, idx: int) -> DeviceArray | None:
    return hidden[idx + 1].scale_in if idx + 1 < len(hidden) else None


def _contiguous(ops: MemberLayerOps, layers: MemberLayers) -> MemberLayers:
    hidden = [MemberLayer(*map(ops.contiguous, each)) for each in layers.hidden]
    return MemberLayers(hidden, MemberHead(*map(ops.contiguous, layers.head)))


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every kernel of this file with every set of defines that it is asked for."""
    for num_units in WIDTHS:
        how = MemberPass(1, 1, 1, num_units, 1, 1)
        for name, defines in (
            ("member_layers_forward_sm90", how.forward_defines),
            ("member_layers_backward_sm90", how.backward_defines),
            ("member_weights_sm90", how.weight_defines),
            ("member_weight_sums_sm90", how.defines()),
        ):
            yield name, {key: str(value) for key, value in defines.items()}
