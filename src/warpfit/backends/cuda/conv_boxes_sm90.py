"""How convolutions with many channels are computed on Hopper's tensor cores, with any stride: as
products whose rows are boxes of windows, of which tensor copies bring what a tap sees.

A tap's pixels come for each tap anew, mostly from L2. So what is chosen is the tile: large ones
read less for each product, small ones keep all multiprocessors busy.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from warpfit.backends.base import IDENTITY, Activation, Array, Pair
from warpfit.backends.cuda.conv_sm90 import IN_PIECE
from warpfit.backends.cuda.conv_weights_sm90 import WeightOps
from warpfit.backends.cuda.matmul_wgmma_config import Box
from warpfit.backends.cuda.runtime import LARGEST_BOX

Shape = tuple[int, ...]
Extent = tuple[int, int, int]

KERNEL, WEIGHT_KERNEL = "conv2d_boxes_sm90", "conv2d_backward_weight_boxes_sm90"
WARPGROUP, CONSUMERS, LINE_BYTES, LINE, PANEL = 128, 2, 128, 64, 64
# Rows of 64 that a warpgroup multiplies, columns of a block, and blocks that share the columns.
TILES = ((1, 256), (2, 128), (1, 128), (2, 64), (1, 64))
CLUSTERS = (1, 2)
MOST_STAGES, BARRIER_BYTES = 12, 16
# Cycles of a multiprocessor for 64 of k of a tile, by its numbers; bytes that it reads in a cycle
# from L2, and writes.
CYCLES_OF_NUMBER, READ_A_CYCLE, WRITTEN_A_CYCLE = 1.2 / 32, 50, 16
# How much longer blocks work that wait for each other.
OF_CLUSTER = 1.15
# Of gradients of weights: numbers of a tile that a cycle multiplies by 64 of k, and cycles that
# these cost besides; bytes that a multiprocessor reads in one where its neighbours read the same.
NUMBERS_A_CYCLE, CYCLES_OF_BOX, READ_TOGETHER_A_CYCLE = 32, 100, 54
# Of images and their gradients together, which L2 keeps, so that blocks may read them again; bytes
# that a multiprocessor reads in a cycle from memory.
CACHED_BYTES, LOADED_A_CYCLE = 40 << 20, 13
# Until a block multiplies, and until a tile's first numbers have come.
CYCLES_OF_BLOCK, CYCLES_OF_TILE = 3000, 600
# Channels and outputs from which on these kernels are the quicker ones for stride 1.
LEAST_CHANNELS = 128
# Blocks that share the windows of a gradient of weights; phases of an axis that a launch takes.
MOST_PARTS, MOST_PHASES = 64, 2


class AxisTaps(NamedTuple):
    """Along one axis, which taps count and what they see, as image_boxes.cuh has it."""

    taps: int
    first_tap: int
    tap_step: int
    stride: int
    first: int
    step: int

    @staticmethod
    def forward(size: int, stride: int, padding: int, dilation: int) -> AxisTaps:
        return AxisTaps(size, 0, 1, stride, -padding, dilation)

    @staticmethod
    def adjoint(size: int, stride: int, padding: int, dilation: int, phase: int) -> AxisTaps:
        """Return those that reach the pixels phase, phase + stride, ... of the input."""
        taps = [k for k in range(size) if (phase + padding - k * dilation) % stride == 0]
        if not taps:
            return AxisTaps(0, 0, 1, 1, 0, 0)
        tap_step = taps[1] - taps[0] if len(taps) > 1 else 1
        first = (phase + padding - taps[0] * dilation) // stride
        return AxisTaps(len(taps), taps[0], tap_step, 1, first, -tap_step * dilation // stride)


class Pass(NamedTuple):
    """A product that gives pixels of a result that lie `step` apart, in each phase others."""

    windows: Extent  # images, and rows and columns of a phase
    # Of the phases of rows, and of columns, two at most each.
    axes: tuple[tuple[AxisTaps, ...], tuple[AxisTaps, ...]]
    first: Pair  # where the first phase begins
    step: int

    @property
    def phases(self) -> int:
        return len(self.axes[0]) * len(self.axes[1])

    @property
    def taps(self) -> int:
        """Of all phases together."""
        return prod(sum(axis.taps for axis in phases) for phases in self.axes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the kernel takes of the axes: for lack of a second phase the first again."""
        rows, columns = self.axes
        counts = (len(rows), len(columns))
        return (*counts, *rows[0], *rows[-1], *columns[0], *columns[-1])


class Geometry(NamedTuple):
    """A convolution, or the gradient of its input."""

    # x, w and y: shapes of input, weights and output.
    x: Shape
    w: Shape
    y: Shape
    stride: Pair
    padding: Pair
    dilation: Pair
    is_adjoint: bool = False

    @property
    def channels(self) -> int:
        """What is summed over, besides taps."""
        return self.w[3 if self.is_adjoint else 2]

    @property
    def outputs(self) -> int:
        return self.w[2 if self.is_adjoint else 3]

    @property
    def are_possible(self) -> bool:
        """Whether pixels are whole pieces of 16 bytes, and there are any."""
        whole = self.w[2] % IN_PIECE == 0 and self.w[3] % IN_PIECE == 0
        is_square = self.stride[0] == self.stride[1]
        return whole and is_square and self.stride[0] <= 8 and prod(self.x) * prod(self.y) > 0

    @property
    def is_wide(self) -> bool:
        """Whether these kernels are the quicker ones where others compute it, too."""
        return min(self.w[2:]) >= LEAST_CHANNELS

    def passes(self) -> list[Pass]:
        """Return the products that make the result."""
        settings = list(zip(self.w[:2], self.stride, self.padding, self.dilation, strict=True))
        if not self.is_adjoint:
            row, column = (AxisTaps.forward(*axis) for axis in settings)
            return [Pass((self.y[0], self.y[1], self.y[2]), ((row,), (column,)), (0, 0), 1)]
        step = self.stride[0]
        rows, columns = (
            [AxisTaps.adjoint(*axis, phase) for phase in range(min(step, size))]
            for axis, size in zip(settings, self.x[1:3], strict=True)
        )
        windows = (self.x[0], -(-self.x[1] // step), -(-self.x[2] // step))
        at_once = MOST_PHASES if step <= MOST_PHASES else 1
        return [
            Pass(
                windows,
                (tuple(rows[top : top + at_once]), tuple(columns[left : left + at_once])),
                (top, left),
                step,
            )
            for top, left in product(range(0, len(rows), at_once), range(0, len(columns), at_once))
        ]


class BoxTiling(NamedTuple):
    """How a product is cut into tiles."""

    # mma_rows, block_n and cluster: times 64 windows of a warpgroup, outputs of a block, and blocks
    # that share weights.
    mma_rows: int
    block_n: int
    cluster: int
    box: Extent  # images, rows and columns of a block's windows
    stages: int
    cycles: float  # about how long a multiprocessor works

    @property
    def stage_bytes(self) -> int:
        return (64 * self.mma_rows * CONSUMERS + self.block_n) * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + BARRIER_BYTES)

    def tiles(self, windows: Extent, outputs: int) -> int:
        """Return the number of tiles of clusters."""
        return -(-_num_boxes(windows, self.box) // self.cluster) * -(-outputs // self.block_n)

    def defines(self, dtype: str) -> dict[str, str | int]:
        """Return what gemm/stages.cuh is told."""
        return {
            "DTYPE": dtype,
            "MMA_ROWS": self.mma_rows,
            "CONSUMERS": CONSUMERS,
            "BLOCK_N": self.block_n,
            "CLUSTER": self.cluster,
            "STAGES": self.stages,
        }


class WeightTiling(NamedTuple):
    """How the gradient of weights is cut: tiles, as `BoxTiling` has them, and runs of windows."""

    tiling: BoxTiling
    # run_tiles and run_blocks: tiles whose windows are partitioned among so many blocks, in equal
    # numbers.
    run_tiles: int
    run_blocks: int

    @property
    def parts(self) -> int:
        """Most blocks that share a tile, whose sums are added up."""
        return _most_touched(self.run_blocks, self.run_tiles)

    @property
    def pieces(self) -> int:
        """Most tiles of a block."""
        return _most_touched(self.run_tiles, self.run_blocks)


def _most_touched(pieces: int, others: int) -> int:
    """Return how many of equal pieces of a length one of its other equal pieces touches at most."""
    return -(-(pieces + others - gcd(pieces, others)) // others)


@lru_cache(maxsize=1024)
def choose_box(windows: Extent, count: int, step: int) -> Extent:
    """Return the box of `count` windows, of which the fewest cover all, with the longest rows."""
    found = []
    sizes = [1 << power for power in range(count.bit_length())]
    for columns, rows in product(sizes, sizes):
        images = count // (columns * rows)
        if images and max(columns, rows) * step <= LARGEST_BOX:
            box = (images, rows, columns)
            found.append((_num_boxes(windows, box), -columns, -rows, box))
    return min(found)[3]


def _num_boxes(windows: Extent, box: Extent) -> int:
    return prod(-(-size // own) for size, own in zip(windows, box, strict=True))


def stages_of(stage_bytes: int, max_shared_bytes: int) -> int:
    return min(MOST_STAGES, max_shared_bytes // (stage_bytes + BARRIER_BYTES))


def _cycles_of_block(mma_rows: int, block_n: int, cluster: int) -> float:
    """Return the cycles for 64 of k of a tile, which reading or multiplying limits."""
    block_m = 64 * mma_rows * CONSUMERS
    read = (block_m + block_n / cluster) * LINE_BYTES / READ_A_CYCLE
    return max(block_m * block_n * CYCLES_OF_NUMBER, read) * (OF_CLUSTER if cluster > 1 else 1)


@lru_cache(maxsize=1024)
def choose_tiling(
    geometry: Geometry, part: Pass, multiprocessors: int, shared_bytes: int
) -> BoxTiling:
    """Return the tiling by which a product takes the least time."""
    found, windows = [], part.windows
    num_blocks = part.taps / part.phases * -(-geometry.channels // LINE)
    step = 1 if geometry.is_adjoint else geometry.stride[0]
    for (mma_rows, block_n), cluster in product(TILES, CLUSTERS):
        box = choose_box(windows, 64 * mma_rows * CONSUMERS, step)
        tiling = BoxTiling(mma_rows, block_n, cluster, box, 0, 0.0)
        tiles = tiling.tiles(windows, geometry.outputs) * part.phases
        rounds = -(-tiles // (multiprocessors // cluster))
        written = 2 * prod(box) * block_n / WRITTEN_A_CYCLE
        of_tile = num_blocks * _cycles_of_block(mma_rows, block_n, cluster)
        cycles = CYCLES_OF_BLOCK + rounds * (of_tile + written + CYCLES_OF_TILE)
        stages = stages_of(tiling.stage_bytes, shared_bytes)
        found.append(tiling._replace(stages=stages, cycles=cycles))
    return min(found, key=lambda tiling: tiling.cycles)


@lru_cache(maxsize=1024)
def choose_weight_tiling(
    geometry: Geometry, multiprocessors: int, shared_bytes: int
) -> WeightTiling:
    """Return how a gradient of weights takes the least time."""
    found = []
    windows: Extent = (geometry.y[0], geometry.y[1], geometry.y[2])
    box = choose_box(windows, LINE, geometry.stride[0])
    boxes = _num_boxes(windows, box)
    read = 2 * (min(prod(geometry.x), prod(windows) * prod(geometry.w[:3])) + prod(geometry.y))
    for mma_rows, block_n in TILES:
        tiling = BoxTiling(mma_rows, block_n, 1, box, 0, 0.0)
        tiling = tiling._replace(stages=stages_of(tiling.stage_bytes, shared_bytes))
        tiles = _weight_tiles(geometry, tiling)
        most = min(boxes, MOST_PARTS, 4 * multiprocessors // tiles + 1)
        runs = [(1, parts) for parts in range(1, most + 1)]
        if read <= CACHED_BYTES and tiles * boxes >= multiprocessors:
            num_runs = gcd(tiles, multiprocessors)
            runs.append((tiles // num_runs, multiprocessors // num_runs))
        for run in runs:
            way = WeightTiling(tiling, *run)
            cycles = _weight_cycles(geometry, way, tiles, boxes, multiprocessors)
            least = max(cycles, read / (multiprocessors * LOADED_A_CYCLE))
            found.append(((least, cycles), way))
    return min(found, key=lambda found: found[0])[1]


def _weight_cycles(
    geometry: Geometry, way: WeightTiling, tiles: int, boxes: int, multiprocessors: int
) -> float:
    """Return about how many cycles a multiprocessor works until the sums of all parts are there."""
    block_m, block_n = 64 * way.tiling.mma_rows * CONSUMERS, way.tiling.block_n
    multiplied = block_m * block_n / NUMBERS_A_CYCLE + CYCLES_OF_BOX
    of_box = max(multiplied, (block_m + block_n) * LINE_BYTES / READ_TOGETHER_A_CYCLE)
    rounds = -(-tiles * way.run_blocks // (way.run_tiles * multiprocessors))
    own_boxes = -(-way.run_tiles * boxes // way.run_blocks)
    written = 4 * block_m * block_n / WRITTEN_A_CYCLE + CYCLES_OF_TILE
    read = 4 * prod(geometry.w) * way.parts / (multiprocessors * WRITTEN_A_CYCLE)
    return CYCLES_OF_BLOCK + rounds * (own_boxes * of_box + way.pieces * written) + read


def _weight_tiles(geometry: Geometry, tiling: BoxTiling) -> int:
    """Return the number of tiles of the gradient of weights."""
    height, width, channels, outputs = geometry.w
    panels = height * width * -(-channels // PANEL)
    tiles_of_panels = -(-panels // (64 * tiling.mma_rows * CONSUMERS // PANEL))
    return tiles_of_panels * -(-outputs // tiling.block_n)


class BoxOps(WeightOps):
    """Convolutions with many channels, and their gradients, in half precision."""

    def takes_boxes(self, geometry: Geometry, dtype: str) -> bool:
        """Whether there are kernels for boxes of a convolution of operands aligned to 16 bytes."""
        return self.has_kernels(dtype, geometry.x[0]) and geometry.are_possible

    def multiply_boxes(
        self,
        geometry: Geometry,
        x: Array,
        w: Array,
        y: Array,
        *,
        bias: Array | None = None,
        z: Array | None = None,
        saved: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> None:
        """Write to y what `multiply_windows` does, for a geometry; adjoint, x is the gradient of
        the outputs, and y that of the input.
        """
        runtime, adjoint = self.runtime, geometry.is_adjoint
        epilogue = "epilogue_activation"
        if adjoint:
            epilogue = "epilogue_store" if saved is None else "epilogue_mask"
        own = epilogue_defines(epilogue, activation.name, bias is not None, z is not None)
        matrix = w.view((prod(w.shape[:3]), w.shape[3]), (w.shape[3] * w.itemsize, w.itemsize))
        steps = (1, 1) if adjoint else geometry.stride
        for part in geometry.passes():
            tiling = choose_tiling(
                geometry, part, runtime.num_multiprocessors, runtime.max_shared_bytes
            )
            box = Box(tiling.block_n // tiling.cluster if adjoint else _rows_across(tiling), LINE)
            defines = {**tiling.defines(x.dtype.name), "ADJOINT": int(adjoint), **own}
            maps = (
                self.image_map_of(x, tiling.box, steps),
                self.tensor_map_of(matrix, matrix.shape[1], box),
            )
            at_once = runtime.num_multiprocessors // tiling.cluster
            tiles = tiling.tiles(part.windows, geometry.outputs) * part.phases
            grid = tiling.cluster * min(at_once, tiles)
            self.kernel(KERNEL, **defines)(
                grid,
                WARPGROUP * (1 + CONSUMERS),
                *maps,
                *(y, bias, saved, z, activation.slope),
                *(*part.windows, *tiling.box, geometry.channels, geometry.outputs, w.shape[1]),
                *(*part.numbers, part.step, *part.first, *y.shape[1:3]),
                shared_bytes=tiling.shared_bytes,
                cluster=tiling.cluster,
            )

    def weight_gradient_boxes(self, geometry: Geometry, dz: Array, x: Array) -> Array:
        """Return the gradient of weights, summed over some of the windows in each row: (parts, KH
        KW C O + O) float32, with the loss scale, of which the last O are none.
        """
        runtime = self.runtime
        way = choose_weight_tiling(geometry, runtime.num_multiprocessors, runtime.max_shared_bytes)
        tiling, *run = way
        height, width, channels, outputs = geometry.w
        tiles = _weight_tiles(geometry, tiling)
        sums = self.empty((way.parts, prod(geometry.w) + outputs), "float32")
        x_map = self.image_map_of(x, tiling.box, geometry.stride)
        dz_map = self.image_map_of(dz, tiling.box)
        self.kernel(WEIGHT_KERNEL, **tiling.defines(x.dtype.name))(
            tiles // way.run_tiles * way.run_blocks,
            WARPGROUP * (1 + CONSUMERS),
            *(x_map, dz_map, sums, way.parts, *run, *geometry.y[:3], *tiling.box),
            *(channels, outputs, height, width),
            *(*geometry.stride, *geometry.padding, *geometry.dilation),
            shared_bytes=tiling.shared_bytes,
        )
        return sums


def epilogue_defines(
    epilogue: str, activation: str, has_bias: bool, stores_z: bool
) -> dict[str, str | int]:
    return {
        "EPILOGUE": epilogue,
        "ACTIVATION": activation,
        "HAS_BIAS": int(has_bias),
        "STORE_Z": int(stores_z),
    }


def _rows_across(tiling: BoxTiling) -> int:
    """Return the rows of a box of weights that lie across: a panel's, or a block's part of it."""
    shares_panels = tiling.block_n // LINE % tiling.cluster == 0
    return LINE if shares_panels else LINE // tiling.cluster
