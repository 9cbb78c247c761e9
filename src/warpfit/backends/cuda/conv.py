"""Convolution and its gradients, as matrix products that find their windows themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, product
from math import isqrt, prod
from operator import is_not
from typing import Any, NamedTuple

from warpfit.backends.base import ACTIVATIONS, IDENTITY, Activation, Array, Pair
from warpfit.backends.checks import (
    check_conv2d,
    check_float,
    check_images,
    check_joint,
    check_shape,
)
from warpfit.backends.cuda.conv_boxes_sm90 import Geometry
from warpfit.backends.cuda.conv_few import FewBand, FewOps, FewTiles
from warpfit.backends.cuda.conv_grouped import GroupedOps
from warpfit.backends.cuda.conv_sm90 import IN_PIECE, Band, Windows
from warpfit.backends.cuda.conv_weights_sm90 import WeightBand
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS, acc_dtype, dtype_of
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.backends.cuda.pool import HALVING, PooledGradient
from warpfit.errors import ShapeError

__all__ = ["ConvOps", "Tiling", "choose_tiling", "variants"]

Shape = tuple[int, ...]

THREADS = 128
# How many shapes and settings a backend caches launches for.
MOST_LAUNCHES = 4096
# What the kernel loads of the saved activations at once.
SAVED_BYTES = 4
# Of k, in a tile's row or column.
BLOCK_K_BYTES = 64
# Blocks that a multiprocessor should get where the sums over all windows are cut into slices, and
# the tiles that a slice should have at least.
SLICES_PER_MULTIPROCESSOR = 3
LEAST_TILES = 4
# Which operands lie along k in memory, (A, B), so that a tile's rows do not go along k but across.
_ALONG_K = {
    "conv2d_forward": (True, False),
    "conv2d_backward_input": (True, True),
    "conv2d_backward_weight": (False, False),
}


class Tiling(NamedTuple):
    """How a product is cut into tiles.

    Attributes
    ----------
    defines : dict of str to str or int
        For the kernel, without what depends on channels and activation.
    block_m, block_n : int
        Rows and columns of a block's tile.
    block_k : int
        How much of k a tile holds.
    shared_bytes : int
        Shared memory of a block.
    """

    defines: dict[str, str | int]
    block_m: int
    block_n: int
    block_k: int
    shared_bytes: int


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
        for size, along_k in zip((block_m, block_n), _ALONG_K[kernel], strict=True)
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
    """Return the bytes of a tile of `size` rows of A (columns of B), its rows padded as in
    ops/conv/conv.cuh.
    """
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


class _Launch(NamedTuple):
    """What calls of an operation with equal shapes and settings have in common.

    Attributes
    ----------
    pairs : tuple of Pair
        Stride, padding and dilation as they were checked: numbers equal to integers need not be
        some.
    num_windows : Pair
        (OH, OW).
    windows : (Windows, Band or FewTiles) or None
        For `convolve`, if that computes it.
    weights : (Windows, WeightBand or FewBand) or None
        For `sums_of_gradients`.
    boxes : Geometry or None
        For `multiply_boxes` and `weight_gradient_boxes`.
    kernel : Kernel or None
        None if there is nothing to compute, or the two before say how.
    grid : tuple of int
    shared_bytes : int
    sizes : tuple of int
        The kernel's last arguments.
    num_partials, num_arrivals : int
        Numbers and counters that sums over slices need.
    """

    pairs: tuple[Pair, Pair, Pair]
    num_windows: Pair
    windows: tuple[Windows, Band | FewTiles] | None
    weights: tuple[Windows, WeightBand | FewBand] | None
    kernel: Any
    grid: tuple[int, int, int]
    shared_bytes: int
    sizes: tuple[int, ...]
    num_partials: int = 0
    num_arrivals: int = 0
    boxes: Geometry | None = None


class ConvOps(FewOps, GroupedOps):
    """y = f(x * w + b), channels last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._launches: dict[Any, _Launch] = {}

    def conv2d_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array | None]:
        op = "conv2d_forward"
        if groups != 1:
            return self.grouped_forward(x, w, b, (stride, padding, dilation), groups, activation)
        check_float(op, x, w, b)
        x, w = self.contiguous(x), self.contiguous(w)
        launch = self._launch(op, x, w, x.shape, w.shape, (stride, padding, dilation), activation)
        num_outputs = w.shape[3]
        check_shape(op, "b", b, (num_outputs,))

        y = self.empty((x.shape[0], *launch.num_windows, num_outputs), x.dtype)
        z = self.empty(y.shape, y.dtype) if activation.needs_input else None
        b = self.contiguous_or_none(b)
        if launch.boxes is not None:
            self.multiply_boxes(launch.boxes, x, w, y, bias=b, z=z, activation=activation)
        elif launch.windows is not None:
            self.convolve(*launch.windows, x, w, y, bias=b, z=z, activation=activation)
        elif launch.kernel is not None:
            launch.kernel(
                launch.grid,
                THREADS,
                *(x, w, b, y, z, activation.slope, *launch.sizes),
                shared_bytes=launch.shared_bytes,
            )
        return y, z

    def conv2d_pooled_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        activation: Activation = IDENTITY,
        pool: Mapping[str, Pair],
    ) -> tuple[Array, Array]:
        op, pairs = "conv2d_pooled_forward", (stride, padding, dilation)
        check_float(op, x, w, b)
        x, w, b = self.contiguous(x), self.contiguous(w), self.contiguous_or_none(b)
        launch = None
        if pool == HALVING and not activation.needs_input and groups == 1:
            launch = self._launch(op, x, w, x.shape, w.shape, pairs, activation)
        if launch is None or launch.windows is None or 1 in launch.num_windows:
            windows: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
            windows["groups"] = groups
            return super().conv2d_pooled_forward(
                x, w, b, **windows, activation=activation, pool=pool
            )
        check_shape(op, "b", b, w.shape[3:])
        height, width = (size // 2 for size in launch.num_windows)
        y = self.empty((x.shape[0], height, width, w.shape[3]), x.dtype)
        indices = self.empty(y.shape, "uint8")
        self.convolve(*launch.windows, x, w, y, bias=b, indices=indices, activation=activation)
        return y, indices

    def conv2d_backward_input(
        self,
        dz: Array,
        w: Array,
        x_shape: tuple[int, ...],
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        x: Array | None = None,
        x_activation: Activation = IDENTITY,
        plus: Array | None = None,
    ) -> Array:
        op = "conv2d_backward_input"
        check_joint(op, x, x_shape, x_activation)
        check_shape(op, "plus", plus, x_shape)
        check_float(op, dz, w, x, plus)
        if groups != 1:
            pairs = (stride, padding, dilation)
            dx = self.grouped_backward_input(self.spread(dz), w, x_shape, pairs, groups)
            return self.with_joints(dx, x, x_activation, plus)
        dz, w = self.contiguous_or_pooled(dz), self.contiguous(w)
        launch = self._launch(op, dz, w, x_shape, w.shape, (stride, padding, dilation))
        check_shape(op, "dz", dz, (x_shape[0], *launch.num_windows, w.shape[3]))

        dx = self.empty(x_shape, dz.dtype)
        masks = launch.boxes is not None or launch.windows is not None
        saved = x if masks and plus is None and _is_in_pairs(x) else None
        own = IDENTITY if saved is None else x_activation
        if launch.boxes is not None:
            self.multiply_boxes(launch.boxes, self.spread(dz), w, dx, saved=saved, activation=own)
        elif launch.windows is not None:
            self.convolve(*launch.windows, dz, w, dx, saved=saved, activation=own)
        elif launch.kernel is not None:
            launch.kernel(
                launch.grid,
                THREADS,
                *(self.spread(dz), w, dx, *launch.sizes),
                shared_bytes=launch.shared_bytes,
            )
        return dx if saved is not None else self.with_joints(dx, x, x_activation, plus)

    def conv2d_backward_weight(
        self,
        dz: Array,
        x: Array,
        kernel: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        needs_db: bool = True,
        w: Array | None = None,
    ) -> tuple[Array, Array | None]:
        """Return dw and db as the contract says; for half-precision operands in float32, without
        the loss scale.
        """
        op = "conv2d_backward_weight"
        check_float(op, dz, x)
        check_images(op, "x", x.shape)
        check_images(op, "dz", dz.shape)
        if groups != 1:
            pairs = (stride, padding, dilation)
            dz = self.spread(dz)
            return self.grouped_backward_weight(dz, x, kernel, pairs, groups, needs_db)
        dz, x = self.contiguous_or_pooled(dz), self.contiguous(x)
        w_shape = (*kernel, x.shape[3], dz.shape[3])
        launch = self._launch(op, x, dz, x.shape, w_shape, (stride, padding, dilation))
        check_shape(op, "dz", dz, (x.shape[0], *launch.num_windows, dz.shape[3]))

        dtype = acc_dtype(x.dtype)
        scale = 1 / self.loss_scale if x.itemsize == 2 else 1.0
        if launch.boxes is not None:
            given = (self.spread(dz), x, w, scale, needs_db)
            return self._weight_gradients_of_boxes(launch.boxes, *given)
        if launch.weights is not None:
            sums = self.sums_of_gradients(*launch.weights, dz, x)
            joined = self.joined_updates and self.joined_updates.partial_gradients(sums, w, scale)
            if joined:
                return joined[0], joined[1] if needs_db else None
            size, found = prod(w_shape), self.column_sums(sums, dtype, scale)
            return self.reshape(found[:size], w_shape), found[size:] if needs_db else None
        dw = self.empty(w_shape, dtype)
        db = self.empty(w_shape[3:], dtype) if needs_db else None
        if launch.kernel is not None:
            partials = self.empty((launch.num_partials,), dtype) if launch.num_partials else None
            arrivals = self.arrivals(launch.num_arrivals)
            launch.kernel(
                launch.grid,
                THREADS,
                *(self.spread(dz), x, dw, db, partials, arrivals, scale, *launch.sizes),
                shared_bytes=launch.shared_bytes,
            )
        return dw, db

    def _weight_gradients_of_boxes(
        self,
        geometry: Geometry,
        dz: Array,
        x: Array,
        w: Array | None,
        scale: float,
        needs_db: bool,
    ) -> tuple[Any, Any]:
        dtype, outputs = acc_dtype(x.dtype), dz.shape[3]
        sums = self.weight_gradient_boxes(geometry, dz, x)
        joined = self.joined_updates and self.joined_updates.partial_gradients(sums, w, scale)
        if joined:
            dw: Any = joined[0]
        else:
            found = self.column_sums(sums, dtype, scale)
            dw = self.reshape(found[: prod(geometry.w)], geometry.w)
        if not needs_db:
            return dw, None
        rows = self.reshape(dz, (prod(dz.shape[:3]), outputs))
        return dw, self.column_sums(rows, dtype, scale)

    def _launch(
        self,
        op: str,
        a: Array,
        b: Array,
        x_shape: Shape,
        w_shape: Shape,
        pairs: tuple[Pair, Pair, Pair],
        activation: Activation = IDENTITY,
    ) -> _Launch:
        """Return how to launch an operation on operands a and b, checked and prepared when first
        asked for.
        """
        chunks = (a.pointer % 16 == 0, b.pointer % 16 == 0)
        spreads = type(a) is PooledGradient
        key = (op, x_shape, w_shape, a.dtype, chunks, pairs, activation.name, spreads)
        try:
            known = self._launches.get(key)
        except TypeError:  # a list for a pair
            known = None
        if known is None or any(map(is_not, known.pairs, pairs)):
            settings = (x_shape, w_shape, pairs, activation, spreads)
            known = self._prepare(op, a.dtype.name, chunks, *settings)
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = known
        return known

    def _prepare(
        self,
        op: str,
        dtype: str,
        chunks: tuple[bool, bool],
        x_shape: Shape,
        w_shape: Shape,
        pairs: tuple[Pair, Pair, Pair],
        activation: Activation,
        spreads: bool,
    ) -> _Launch:
        num_windows = check_conv2d(op, x_shape, w_shape, *pairs)
        if x_shape[1] * x_shape[2] >= 2**31:
            raise ShapeError(
                f"{op}: expected images of fewer than 2**31 pixels, got {x_shape[1:3]}"
            )
        num_channels, num_outputs = w_shape[2:]
        num_rows = x_shape[0] * prod(x_shape[1:3] if op == "conv2d_backward_input" else num_windows)
        num_cols = num_channels if op == "conv2d_backward_input" else num_outputs
        sizes = (num_rows, *x_shape[1:], *num_windows, num_outputs, *w_shape[:2], *chain(*pairs))
        kernel_of_op = op if op in _ALONG_K else "conv2d_forward"
        tiling = choose_tiling(kernel_of_op, dtype, num_cols, self.runtime.arch, self.precision)
        blocks_n = -(-num_cols // tiling.block_n)
        if op == "conv2d_backward_weight":
            num_tiles = max(1, -(-prod(w_shape[:3]) // tiling.block_m)) * blocks_n
            num_slices, group = _slices(
                num_rows, max(1, num_tiles), tiling.block_k, self.runtime.num_multiprocessors
            )
            grid, sizes = (num_tiles, 1, num_slices), (group, *sizes)
            sums = num_tiles * num_slices * (tiling.block_m * tiling.block_n + THREADS)
            for_slices = (sums if num_slices > 1 else 0, num_tiles * (1 + -(-num_slices // group)))
        else:
            grid, for_slices = (-(-num_rows // tiling.block_m) * blocks_n, 1, 1), (0, 0)
        kernel, windows, weights = None, None, None
        if pairs[0] == (1, 1) and chunks[1] and (chunks[0] or num_channels % IN_PIECE):
            forward = Windows.forward(x_shape, w_shape, num_windows, *pairs[1:])
            if op == "conv2d_backward_weight":
                weights = _if_found(forward, self.weight_tiles_of(forward, dtype, x_shape[0]))
            else:
                of_op = forward.adjoint if op == "conv2d_backward_input" else forward
                of_op = of_op._replace(pools=op == "conv2d_pooled_forward", spreads=spreads)
                windows = _if_found(of_op, self.tiles_of(of_op, dtype, x_shape[0]))
        boxes = None
        if all(chunks) and op in _ALONG_K:
            y_shape = (x_shape[0], *num_windows, num_outputs)
            adjoint = op == "conv2d_backward_input"
            boxes = Geometry(x_shape, w_shape, y_shape, *pairs, adjoint)
            is_better = boxes.is_wide or (windows is None and weights is None)
            boxes = boxes if is_better and self.takes_boxes(boxes, dtype) else None
        if grid[0] and op in _ALONG_K and all(way is None for way in (windows, weights, boxes)):
            own = _own_defines(op, dtype, chunks, w_shape, pairs[0], activation)
            kernel = self.kernel(op, **tiling.defines, **own)
        shape = grid, tiling.shared_bytes, sizes
        return _Launch(pairs, num_windows, windows, weights, kernel, *shape, *for_slices, boxes)


def _is_in_pairs(array: Array | None) -> bool:
    """Whether kernels may load two of an array's numbers at once."""
    return array is not None and array.is_contiguous and not array.pointer % SAVED_BYTES


def _if_found(windows: Windows, band: Any) -> tuple[Windows, Any] | None:
    return None if band is None else (windows, band)


def _own_defines(
    op: str,
    dtype: str,
    chunks: tuple[bool, bool],
    w_shape: Shape,
    stride: Pair,
    activation: Activation,
) -> dict[str, str | int]:
    """Return the defines that do not follow from the tiling; `chunks` says which operands begin at
    16 bytes.
    """
    itemsize = dtype_of(dtype).itemsize
    whole_c, whole_o = (size * itemsize % 16 == 0 for size in w_shape[2:])
    if op == "conv2d_backward_input":
        # Both operands consist of outputs; dx is new, and begins where it should.
        vectors = {"C_VECTOR": int(whole_c), "O_VECTOR": int(whole_o and all(chunks))}
        return {**vectors, "STRIDED": int(stride != (1, 1))}
    vectors = {"C_VECTOR": int(whole_c and chunks[0]), "O_VECTOR": int(whole_o and chunks[1])}
    if op == "conv2d_forward":
        return {**vectors, "ACTIVATION": activation.name, "STORE_Z": int(activation.needs_input)}
    return dict(vectors)


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return kernels and defines that convolutions ask for: all of them, but activations with one
    tiling only.
    """
    found: list[tuple[str, dict[str, str]]] = []
    modes = [("float32", "tf32"), *((dtype, "float32") for dtype in DEVICE_FLOATS)]
    # An architecture whose tensor cores know all of them, and one whose do not.
    for op, (dtype, precision), num_cols, arch in product(
        _ALONG_K, modes, (32, 64), ("sm_90a", "sm_75")
    ):
        tiling = choose_tiling(op, dtype, num_cols, arch, precision)
        for channels, outputs in product((1, 8), (1, 8)):
            whole = num_cols == 64 and channels == outputs == 8
            names = ACTIVATIONS if op == "conv2d_forward" and whole else ("relu",)
            strides = ((1, 1), (2, 2)) if op == "conv2d_backward_input" else ((1, 1),)
            for name, stride in product(names, strides):
                shape = (1, 1, channels, outputs)
                own = _own_defines(op, dtype, (True, True), shape, stride, Activation(name))
                found.append(
                    (op, {key: str(value) for key, value in {**tiling.defines, **own}.items()})
                )
    return found
