"""Updates that are joined with what is left of their gradients: the products of linear layers, one
kernel for several of them, and the sums over the blocks that computed others.

`linear_backward` then says which products the gradients are, and the optimizer's update computes
them: no gradient goes to memory, and the update writes the copies in half precision that the next
step computes with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.dtypes import class_name
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.matmul_wgmma_config import Box
from warpfit.backends.update_rules import UpdateNumbers, UpdateRule

# As in kernels/gemm/linear_update_sm90.cu.
MAX_LAYERS, MAX_NUMBERS = 5, 6
THIN_ROWS, WARPGROUP, CONSUMERS = 2, 128, 2
MAP_BYTES, BOX, STRIP = 128, Box(64, 64), Box(16, 32)
_HEAD, _LAYER = struct.Struct("=ii56x"), struct.Struct(f"={5 * MAP_BYTES}s4Q4Q2Q6i24x")
# As in kernels/narrow/narrow_update.cu.
MOST_ARRAYS, MOST_PARTS, PART_THREADS = 8, 16, 256
# Threads that share the sum of a gradient that few blocks left, and that many did.
ADDERS, FEW_BLOCKS = (1, 8), 8
_COUNTS, _ARRAY, _PART = struct.Struct("=ii"), struct.Struct("=Qiii4x"), struct.Struct("=4Qii")
ARRAYS_BYTES, PARTS_BYTES = MOST_ARRAYS * _ARRAY.size, MOST_PARTS * _PART.size

LIST_BYTES = _HEAD.size + MAX_LAYERS * _LAYER.size
_LINE_BYTES, _BARRIER_BYTES = 128, 8

# Of layers with few outputs, whose rows tensor copies may not take: as long as a thread can go over
# all rows.
MOST_THIN_OUTPUTS, MOST_THIN_ROWS = 32, 256
# From so many rows on, by the number of slots, products count, not memory.
ROWS_OF_SHARED_TILES = (256, 256, 1024)
# Up to so many rows, or from so many tiles of a layer on, a product need not be cut into slices of
# rows.
MOST_ROWS_OF_FEW_TILES, MANY_TILES = 512, 16
# How many lists of layers are cached as bytes.
MOST_LISTS = 256


@dataclass(frozen=True, eq=False)
class ProductGradient:
    """scale · xᵀ @ dz, not computed: x (M, K), dz (M, N)."""

    x: DeviceArray
    dz: DeviceArray
    scale: float


@dataclass(frozen=True, eq=False)
class SumGradient:
    """scale · the sum over dz's rows, not computed."""

    dz: DeviceArray
    scale: float


@dataclass(frozen=True, eq=False)
class PartialGradient:
    """scale · the sum over blocks, not computed: of `sums` (blocks, gradients) from a column on."""

    sums: DeviceArray
    first: int
    scale: float


class _Parameter(NamedTuple):
    """What an update changes of one parameter."""

    values: DeviceArray
    copies: DeviceArray
    slots: tuple[DeviceArray, ...]

    @property
    def masters(self) -> tuple[DeviceArray, ...]:
        return self.values, *self.slots

    @property
    def pointers(self) -> tuple[int, int, int, int]:
        first, second = (*(slot.pointer for slot in self.slots), 0, 0)[:2]
        return self.values.pointer, self.copies.pointer, first, second


class _Layer(NamedTuple):
    """A linear layer whose update is joined."""

    gradient: ProductGradient
    w: _Parameter
    b: _Parameter | None

    @property
    def is_thin(self) -> bool:
        return not _fits_tiles(self.gradient.x, self.gradient.dz, *self.w.masters, self.w.copies)

    def num_pieces(self, tiles: _Tiles) -> int:
        inputs, outputs = self.w.values.shape
        return -(-inputs // THIN_ROWS) if self.is_thin else tiles.number(inputs, outputs)


class _Tiles(NamedTuple):
    """The tiles of weights that pieces are: of one warpgroup that multiplies, or of both."""

    block_m: int
    block_n: int
    stages: int

    @property
    def are_shared(self) -> bool:
        return self.block_m > 64

    @property
    def rings(self) -> int:
        return 1 if self.are_shared else CONSUMERS

    def room(self, num_slots: int, shared_bytes: int) -> tuple[int, int]:
        """Return how many strips each warp has room for, and the kernel's bytes then."""
        of_stages = (
            self.stages
            * self.rings
            * ((self.block_m + self.block_n) * _LINE_BYTES + 2 * _BARRIER_BYTES)
        )
        of_strips = (1 + num_slots) * STRIP.rows * _LINE_BYTES + _BARRIER_BYTES
        of_strips *= CONSUMERS * WARPGROUP // 32
        strips = (shared_bytes - of_stages) // of_strips
        return strips, of_stages + strips * of_strips

    def number(self, inputs: int, outputs: int) -> int:
        return -(-inputs // self.block_m) * -(-outputs // self.block_n)


# Where products count; where memory does, with one block of rows, and with several; and where
# others would leave multiprocessors without work.
SHARED_TILES, SHORT_TILES, OWN_TILES, SMALL_TILES = (
    _Tiles(128, 256, stages=3),
    _Tiles(64, 128, stages=1),
    _Tiles(64, 128, stages=2),
    _Tiles(64, 64, stages=2),
)


def _tiles_for(layers: Sequence[_Layer], num_multiprocessors: int) -> _Tiles:
    rows, num_slots = layers[0].gradient.x.shape[0], len(layers[0].w.slots)
    widest = max(layer.w.values.shape[1] for layer in layers)
    owned = sum(layer.num_pieces(OWN_TILES) for layer in layers if not layer.is_thin)
    if owned < num_multiprocessors:
        return SMALL_TILES
    if rows >= ROWS_OF_SHARED_TILES[num_slots] and widest > OWN_TILES.block_n:
        return SHARED_TILES
    return SHORT_TILES if rows <= BOX.rows else OWN_TILES


class _Launch(NamedTuple):
    layers: bytes
    num_pieces: int
    tiles: _Tiles


def _fits_tiles(*matrices: DeviceArray) -> bool:
    """Whether tensor copies take all of them: their rows begin at multiples of 16 bytes."""
    return not any((matrix.pointer | matrix.shape[1] * matrix.itemsize) & 15 for matrix in matrices)


def _is_shared_out(x: DeviceArray, dz: DeviceArray) -> bool:
    """Whether a tile's sum over all rows is short, or there are many tiles: each is one block's."""
    is_short = len(x) <= MOST_ROWS_OF_FEW_TILES
    return is_short or SHARED_TILES.number(x.shape[1], dz.shape[1]) >= MANY_TILES


class JoinedUpdates:
    """What a backend has to know to join updates with products.

    Parameters
    ----------
    ops : ArrayOps
    parameters, copies : sequence of DeviceArray
        float32 and half precision, each of one shape; an update of a parameter also writes its
        copy.
    """

    def __init__(
        self, ops: Any, parameters: Sequence[DeviceArray], copies: Sequence[DeviceArray]
    ) -> None:
        self.ops = ops
        self.copies = {p.pointer: copy for p, copy in zip(parameters, copies, strict=True)}
        self.weights = {copy.pointer: copy.shape for copy in copies}
        self._lists: dict[Any, _Launch] = {}

    @staticmethod
    def are_possible(runtime: Any, *dtypes: Any) -> bool:
        """Whether the device has the kernel for copies of these dtypes."""
        return generation(runtime.arch) == 90 and all(dtype in HALF_DTYPES for dtype in dtypes)

    def gradients(
        self, dz: DeviceArray, x: DeviceArray, w: DeviceArray, scale: float
    ) -> tuple[ProductGradient, SumGradient] | None:
        """Return the gradients of a layer with weights w, a copy, and its bias, if not computed."""
        if w.pointer not in self.weights or not (dz.is_contiguous and x.is_contiguous and len(dz)):
            return None
        is_thin = dz.shape[1] <= MOST_THIN_OUTPUTS and len(dz) <= MOST_THIN_ROWS
        if not is_thin and not (_fits_tiles(x, dz) and _is_shared_out(x, dz)):
            return None
        return ProductGradient(x, dz, scale), SumGradient(dz, scale)

    def partial_gradients(
        self, sums: DeviceArray, w: DeviceArray | None, scale: float
    ) -> tuple[PartialGradient, PartialGradient] | None:
        """Return the gradients of weights w, a copy, and of a bias, which follow each other in each
        row of `sums`; None if they are to be summed.
        """
        if w is None or self.weights.get(w.pointer) != w.shape:
            return None
        return PartialGradient(sums, 0, scale), PartialGradient(sums, w.size, scale)

    def update(
        self, rule: str, groups: Sequence[Sequence[Any]], arguments: Sequence[Any]
    ) -> list[list[DeviceArray]]:
        """Update what can be joined; return the rest of parameters, gradients and slots.

        `arguments` are what kernels take for the rule's numbers.
        """
        tensors = list(zip(*groups, strict=True))
        in_parts = [tensor for tensor in tensors if isinstance(tensor[1], PartialGradient)]
        for adders in ADDERS:
            own = [tensor for tensor in in_parts if _adders_of(tensor[1]) == adders]
            for together in _updated_together(own):
                self._start_parts(rule, together, adders, arguments)
        tensors = [tensor for tensor in tensors if not isinstance(tensor[1], PartialGradient)]
        biases = {
            id(g.dz): idx for idx, (_, g, *_) in enumerate(tensors) if isinstance(g, SumGradient)
        }
        layers, joined = [], set()
        for idx, (_, gradient, *_) in enumerate(tensors):
            if isinstance(gradient, ProductGradient):
                of_bias = biases.get(id(gradient.dz))
                bias = None if of_bias is None else self._parameter(tensors[of_bias])
                layers.append(_Layer(gradient, self._parameter(tensors[idx]), bias))
                joined |= {idx, of_bias}
        for first in range(0, len(layers), MAX_LAYERS):
            self._start(rule, layers[first : first + MAX_LAYERS], arguments)
        rest = [self._with_array(tensor) for idx, tensor in enumerate(tensors) if idx not in joined]
        return [list(group) for group in zip(*rest, strict=True)] or [[] for _ in groups]

    def has_copies(self, arrays: Sequence[DeviceArray]) -> bool:
        """Whether all of these are copies that updates write."""
        return all(array.pointer in self.weights for array in arrays)

    def refresh(self, parameters: Sequence[DeviceArray]) -> None:
        """Write the copies of parameters that were updated alone."""
        copied = [p for p in parameters if p.pointer in self.copies]
        if copied:
            self.ops.cast_into([self.copies[p.pointer] for p in copied], copied)

    def _parameter(self, tensor: Sequence[Any]) -> _Parameter:
        values, _, *slots = tensor
        return _Parameter(values, self.copies[values.pointer], tuple(slots))

    def _with_array(self, tensor: Sequence[Any]) -> Sequence[DeviceArray]:
        """Return a tensor's row of the groups; its gradient may be that of a bias alone."""
        values, gradient, *slots = tensor
        if isinstance(gradient, SumGradient):
            gradient = self.ops.column_sums(gradient.dz, values.dtype, gradient.scale)
        return values, gradient, *slots

    def _start(self, rule: str, layers: Sequence[_Layer], arguments: Sequence[Any]) -> None:
        launch, num_slots = self._launch_of(layers), len(layers[0].w.slots)
        tiles, gradient = launch.tiles, layers[0].gradient
        strips, shared_bytes = tiles.room(num_slots, self.ops.runtime.max_shared_bytes)
        defines = update_defines(rule, num_slots, gradient.x.dtype.name, tiles, strips)
        kernel = self.ops.kernel("linear_update_sm90", **defines)
        grid = min(launch.num_pieces, self.ops.runtime.num_multiprocessors)
        kernel(
            grid,
            WARPGROUP * (1 + CONSUMERS),
            launch.layers,
            gradient.scale,
            *arguments,
            shared_bytes=shared_bytes,
        )

    def _start_parts(
        self, rule: str, tensors: Sequence[Sequence[Any]], adders: int, arguments: Sequence[Any]
    ) -> None:
        """Update parameters whose gradients so many threads each sum over blocks."""
        columns = PART_THREADS // adders
        arrays: dict[int, int] = {}  # the first block of each
        packed, parts, num_blocks = b"", b"", 0
        for tensor in tensors:
            sums, parameter = tensor[1].sums, self._parameter(tensor)
            if sums.pointer not in arrays:
                arrays[sums.pointer] = num_blocks
                packed += _ARRAY.pack(sums.pointer, *sums.shape, num_blocks)
                num_blocks += -(-sums.shape[1] // columns)
            first = arrays[sums.pointer] * columns + tensor[1].first
            parts += _PART.pack(*parameter.pointers, first, parameter.values.size)
        counts = _COUNTS.pack(len(arrays), len(tensors))
        dtype = self.copies[tensors[0][0].pointer].dtype.name
        defines = {**rule_defines(rule, len(parameter.slots), dtype), "ADDERS": adders}
        self.ops.kernel("narrow_update", **defines)(
            num_blocks,
            PART_THREADS,
            counts + packed.ljust(ARRAYS_BYTES, b"\0") + parts.ljust(PARTS_BYTES, b"\0"),
            tensors[0][1].scale,
            *arguments,
        )

    def _launch_of(self, layers: Sequence[_Layer]) -> _Launch:
        key = tuple(
            (
                layer.gradient.x.pointer,
                layer.gradient.dz.pointer,
                *layer.gradient.x.shape,
                *layer.w.pointers,
            )
            for layer in layers
        )
        found = self._lists.get(key)
        if found is None:
            if len(self._lists) >= MOST_LISTS:
                self._lists.clear()
            found = self._lists[key] = self._packed(layers)
        return found

    def _packed(self, layers: Sequence[_Layer]) -> _Launch:
        tiles = _tiles_for(layers, self.ops.runtime.num_multiprocessors)
        num_pieces, packed = 0, []
        for layer in layers:
            packed.append(self._packed_layer(layer, num_pieces))
            num_pieces += layer.num_pieces(tiles)
        head = _HEAD.pack(len(layers), num_pieces)
        return _Launch(b"".join([head, *packed]).ljust(LIST_BYTES, b"\0"), num_pieces, tiles)

    def _packed_layer(self, layer: _Layer, first_piece: int) -> bytes:
        x, dz = layer.gradient.x, layer.gradient.dz
        maps = b"" if layer.is_thin else self._maps(layer)
        of_bias = layer.b.pointers if layer.b is not None else (0,) * 4
        sizes = (x.shape[1], dz.shape[1], x.shape[0], dz.shape[1], first_piece, layer.is_thin)
        return _LAYER.pack(maps, *layer.w.pointers, *of_bias, x.pointer, dz.pointer, *sizes)

    def _maps(self, layer: _Layer) -> bytes:
        boxes = [
            (layer.gradient.x, BOX),
            (layer.gradient.dz, BOX),
            *((master, STRIP) for master in layer.w.masters),
        ]
        return b"".join(self.ops.tensor_map_of(array, array.shape[1], box) for array, box in boxes)


def _adders_of(gradient: PartialGradient) -> int:
    return ADDERS[len(gradient.sums) >= FEW_BLOCKS]


def _updated_together(tensors: Sequence[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield parameters whose gradients are parts of rows as lists for a kernel each."""
    found: list[Sequence[Any]] = []
    arrays: set[int] = set()
    for tensor in sorted(tensors, key=lambda tensor: tensor[1].scale):
        arrays.add(tensor[1].sums.pointer)
        is_full = len(found) == MOST_PARTS or len(arrays) > MOST_ARRAYS
        if found and (is_full or tensor[1].scale != found[0][1].scale):
            yield found
            found, arrays = [], {tensor[1].sums.pointer}
        found.append(tensor)
    if found:
        yield found


def rule_numbers(rule: UpdateRule, numbers: UpdateNumbers) -> list[Any]:
    """Return the arguments of as many scalars as kernels take for an update."""
    found = [getattr(numbers, name) for name in rule.numbers]
    return list(chain.from_iterable(map(scalar, (*found, *(0.0,) * (MAX_NUMBERS - len(found))))))


def rule_defines(rule: str, num_slots: int, dtype: str) -> dict[str, Any]:
    """Return the defines by which a kernel knows an update."""
    return {"DTYPE": dtype, "RULE": f"{class_name(rule)}Step", "SLOTS": num_slots}


def update_defines(
    rule: str, num_slots: int, dtype: str, tiles: _Tiles, strips: int
) -> dict[str, Any]:
    return {
        **rule_defines(rule, num_slots, dtype),
        "CONSUMERS": CONSUMERS,
        "SHARES_TILES": int(tiles.are_shared),
        "BLOCK_N": tiles.block_n,
        "STAGES": tiles.stages,
        "STRIPS": strips,
    }
