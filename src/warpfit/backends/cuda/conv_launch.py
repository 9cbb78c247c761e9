"""Which kernel computes a convolution, or one of its gradients: on Hopper those of bands, few
channels and boxes where they can, elsewhere products that find their windows themselves.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from math import isqrt, prod
from operator import is_not
from typing import Any, NamedTuple

from warpfit.backends.base import IDENTITY, Activation, Array, Pair, Pairs
from warpfit.backends.checks import check_conv2d
from warpfit.backends.cuda.conv_boxes_sm90 import Geometry
from warpfit.backends.cuda.conv_few import FewBand, FewOps, FewTiles
from warpfit.backends.cuda.conv_grouped import GroupedOps
from warpfit.backends.cuda.conv_sm90 import IN_PIECE, Band, Windows
from warpfit.backends.cuda.conv_weights_sm90 import WeightBand
from warpfit.backends.cuda.dtypes import acc_dtype, dtype_of
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.backends.cuda.pool import PooledGradient
from warpfit.errors import ShapeError

Shape = tuple[int, ...]

THREADS = 128
# How many shapes and settings a backend caches launches for.
MOST_LAUNCHES = 4096
# Of k, in a tile's row or column.
BLOCK_K_BYTES = 64
# Blocks that a multiprocessor should get where the sums over all windows are cut into slices, and
# the tiles that a slice should have at least.
SLICES_PER_MULTIPROCESSOR = 3
LEAST_TILES = 4
# Which operands lie along k in memory, (A, B), so that a tile's rows do not go along k but across.
ALONG_K = {
    "conv2d_forward": (True, False),
    "conv2d_backward_input": (True, True),
    "conv2d_backward_weight": (False, False),
}


class Tiling(NamedTuple):
    """How a product is cut into tiles."""

    defines: dict[str, str | int]  # for the kernel, without what depends on channels and activation
    # block_m and block_n: rows and columns of a block's tile.
    block_m: int
    block_n: int
    block_k: int  # how much of k a tile holds
    shared_bytes: int  # shared memory of a block


@lru_cache(maxsize=1024)
def choose_tiling(kernel: str, dtype: str, num_cols: int, arch: str, precision: str) -> Tiling:
    """Return the tiling of a kernel's product with `num_cols` columns.

    Half-precision numbers are multiplied on tensor cores, and float32 if `precision` is ``'tf32'``,
    where the architecture's tensor cores know the type.
    """
    tensor_cores = (dtype != "float32" or precision == "tf32") and supports(arch, dtype)
    block_n = 64 if num_cols > 32 else 32
    of_tensor_cores = 64 if kernel == "conv2d_backward_weight" else 128
    block_m = of_tensor_cores if tensor_cores else 4096 // block_n
    stages = 4 if tensor_cores else 3
    itemsize = dtype_of(dtype).itemsize
    stage_bytes = sum(
        _tile_bytes(size, itemsize, along_k)
        for size, along_k in zip((block_m, block_n), ALONG_K[kernel], strict=True)
    )
    defines: dict[str, str | int] = {
        "DTYPE": dtype,
        "TENSOR_CORES": int(tensor_cores),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "STAGES": stages,
    }
    if kernel == "conv2d_backward_weight":
        defines["OUT"] = acc_dtype(dtype_of(dtype)).name
    return Tiling(defines, block_m, block_n, BLOCK_K_BYTES // itemsize, stages * stage_bytes)


def _tile_bytes(size: int, itemsize: int, along_k: bool) -> int:
    """Return the bytes of a tile of `size` rows of A (columns of B), padded as in conv.cuh."""
    if along_k:
        return size * (BLOCK_K_BYTES + 16)
    return BLOCK_K_BYTES // itemsize * (size + 8) * itemsize


@lru_cache(maxsize=1024)
def _slices(
    num_windows: int, num_tiles: int, block_k: int, num_multiprocessors: int
) -> tuple[int, int]:
    """Return into how many slices the windows are cut, and how many slices form a group."""
    at_most = -(-num_windows // block_k) // LEAST_TILES
    slices = max(1, min(SLICES_PER_MULTIPROCESSOR * num_multiprocessors // num_tiles, at_most))
    return slices, isqrt(slices - 1) + 1


class Request(NamedTuple):
    """What calls of an operation with equal shapes and settings have in common."""

    op: str
    dtype: str
    chunks: tuple[bool, bool]  # which operands begin at multiples of 16 bytes
    # x and w: shapes.
    x: Shape
    w: Shape
    pairs: Pairs  # stride, padding and dilation
    num_windows: Pair  # (OH, OW)
    activation: Activation
    spreads: bool  # whether the first operand is a `PooledGradient`
    groups: int = 1

    @property
    def is_adjoint(self) -> bool:
        return self.op == "conv2d_backward_input"

    @property
    def is_of_weights(self) -> bool:
        return self.op == "conv2d_backward_weight"

    @property
    def num_rows(self) -> int:
        """Windows, or pixels of the input's gradient."""
        return self.x[0] * prod(self.x[1:3] if self.is_adjoint else self.num_windows)

    @property
    def num_cols(self) -> int:
        """Outputs of a group, or channels."""
        return self.w[2] if self.is_adjoint else self.w[3] // self.groups

    @property
    def sizes(self) -> tuple[int, ...]:
        """What kernels of products take of them: channels and outputs of a group."""
        of_images = (*self.x[1:3], self.w[2], *self.num_windows, self.w[3] // self.groups)
        return (self.num_rows, *of_images, *self.w[:2], *chain(*self.pairs))


class Product(NamedTuple):
    """How a product is launched that finds its windows itself."""

    kernel: Any
    grid: tuple[int, int, int]
    shared_bytes: int
    sizes: tuple[int, ...]  # the kernel's last arguments
    # num_partials and num_arrivals: numbers and counters that sums over slices need.
    num_partials: int = 0
    num_arrivals: int = 0

    def start(self, *arguments: Any) -> None:
        self.kernel(self.grid, THREADS, *arguments, *self.sizes, shared_bytes=self.shared_bytes)


class Launch(NamedTuple):
    """What computes an operation: one of the last four, or none if there is nothing to compute."""

    # Stride, padding and dilation as they were checked: numbers equal to integers need not be some.
    pairs: Pairs
    num_windows: Pair  # (OH, OW)
    boxes: Geometry | None = None  # for `multiply_boxes` and `weight_gradient_boxes`
    # (Windows, Band or FewTiles): for `convolve`.
    windows: tuple[Windows, Band | FewTiles] | None = None
    # (Windows, WeightBand or FewBand): for `sums_of_gradients`.
    weights: tuple[Windows, WeightBand | FewBand] | None = None
    product: Product | None = None


class LaunchOps(FewOps, GroupedOps):
    """Finds, and remembers, what computes convolutions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._launches: dict[Any, Launch] = {}

    def launch_of(
        self,
        op: str,
        a: Array | PooledGradient,
        b: Array,
        x_shape: Shape,
        w_shape: Shape,
        pairs: Pairs,
        activation: Activation = IDENTITY,
        groups: int = 1,
    ) -> Launch:
        """Return what computes an operation on operands a and b, prepared when first asked for."""
        chunks = (a.pointer % 16 == 0, b.pointer % 16 == 0)
        spreads = type(a) is PooledGradient
        key = (op, x_shape, w_shape, a.dtype, chunks, pairs, activation.name, spreads, groups)
        try:
            known = self._launches.get(key)
        except TypeError:  # a list for a pair
            known = None
        if known is None or any(map(is_not, known.pairs, pairs)):
            num_windows = _checked_windows(op, x_shape, w_shape, pairs, groups)
            shapes = (chunks, x_shape, w_shape, pairs, num_windows)
            own = (activation, spreads, groups)
            known = self._prepared(Request(op, a.dtype.name, *shapes, *own))
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = known
        return known

    def _prepared(self, request: Request) -> Launch:
        launch = Launch(request.pairs, request.num_windows)
        if request.groups != 1:
            return launch._replace(product=self._product_of(request))
        boxes = self._boxes_of(request)
        if boxes is not None and boxes.is_wide:
            return launch._replace(boxes=boxes)
        bands = self._bands_of(request)
        if bands is not None:
            kind = "weights" if request.is_of_weights else "windows"
            return launch._replace(**{kind: bands})
        if boxes is not None:
            return launch._replace(boxes=boxes)
        return launch._replace(product=self._product_of(request))

    def _boxes_of(self, request: Request) -> Geometry | None:
        if request.op not in ALONG_K or not all(request.chunks):
            return None
        x, w = request.x, request.w
        y = (x[0], *request.num_windows, w[3])
        boxes = Geometry(x, w, y, *request.pairs, request.is_adjoint)
        return boxes if self.takes_boxes(boxes, request.dtype) else None

    def _bands_of(self, request: Request) -> Any:
        """Return windows, and the band or tiles by which kernels of stride 1 take them; or None."""
        of_pixels, of_others = request.chunks
        stride, *pairs = request.pairs
        if stride != (1, 1) or not (of_others and (of_pixels or request.w[2] % IN_PIECE)):
            return None
        windows = Windows.forward(request.x, request.w, request.num_windows, *pairs)
        settings = (request.dtype, request.x[0])
        band: Any
        if request.is_of_weights:
            band = self.weight_tiles_of(windows, *settings)
        else:
            windows = windows.adjoint if request.is_adjoint else windows
            pools = request.op == "conv2d_pooled_forward"
            windows = windows._replace(pools=pools, spreads=request.spreads)
            band = self.tiles_of(windows, *settings)
        return None if band is None else (windows, band)

    def _product_of(self, request: Request) -> Product | None:
        if request.op not in ALONG_K:
            return None
        settings = (request.num_cols, self.runtime.arch, self.precision)
        tiling = choose_tiling(request.op, request.dtype, *settings)
        if request.is_of_weights:
            found = _product_of_weights(request, tiling, self.runtime.num_multiprocessors)
        else:
            rows = -(-request.num_rows // tiling.block_m)
            grid = (rows * -(-request.num_cols // tiling.block_n) * request.groups, 1, 1)
            found = Product(None, grid, tiling.shared_bytes, request.sizes)
        if not found.grid[0]:
            return None
        return found._replace(
            kernel=self.kernel(request.op, **tiling.defines, **own_defines(request))
        )


def _checked_windows(op: str, x_shape: Shape, w_shape: Shape, pairs: Pairs, groups: int) -> Pair:
    """Return (OH, OW)."""
    num_windows = check_conv2d(op, x_shape, w_shape, *pairs, groups)
    if x_shape[1] * x_shape[2] >= 2**31:
        raise ShapeError(f"{op}: expected images of fewer than 2**31 pixels, got {x_shape[1:3]}")
    return num_windows


def _product_of_weights(request: Request, tiling: Tiling, num_multiprocessors: int) -> Product:
    """Return the product, without its kernel, of slices of the windows."""
    rows = max(1, -(-prod(request.w[:3]) // tiling.block_m))
    num_tiles = rows * -(-request.num_cols // tiling.block_n) * request.groups
    num_slices, group = _slices(
        request.num_rows, max(1, num_tiles), tiling.block_k, num_multiprocessors
    )
    sums = num_tiles * num_slices * (tiling.block_m * tiling.block_n + THREADS)
    return Product(
        None,
        (num_tiles, 1, num_slices),
        tiling.shared_bytes,
        (group, *request.sizes),
        num_partials=sums if num_slices > 1 else 0,
        num_arrivals=num_tiles * (1 + -(-num_slices // group)),
    )


def own_defines(request: Request) -> dict[str, str | int]:
    """Return the defines that do not follow from the tiling."""
    itemsize, (first, second) = dtype_of(request.dtype).itemsize, request.chunks
    of_group = (request.w[2], request.w[3] // request.groups)
    whole_c, whole_o = (size * itemsize % 16 == 0 for size in of_group)
    own: dict[str, str | int] = {"GROUPS": request.groups}
    if request.is_adjoint:
        # Both operands consist of outputs; dx is new, and begins where it should.
        vectors = {"C_VECTOR": int(whole_c), "O_VECTOR": int(whole_o and first and second)}
        return {**own, **vectors, "STRIDED": int(request.pairs[0] != (1, 1))}
    vectors = {"C_VECTOR": int(whole_c and first), "O_VECTOR": int(whole_o and second)}
    if request.is_of_weights:
        return {**own, **vectors}
    activation = request.activation
    own |= {"ACTIVATION": activation.name, "STORE_Z": int(activation.needs_input)}
    return {**own, **vectors}
