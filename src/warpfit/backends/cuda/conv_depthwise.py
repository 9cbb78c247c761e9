"""Depthwise convolutions: each thread goes down a strip of columns, a few channels at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES, IDENTITY, Activation, Array, Pair
from warpfit.backends.cuda.conv_boxes_sm90 import BoxOps
from warpfit.backends.cuda.dtypes import acc_dtype, dtype_of

Shape = tuple[int, ...]

KERNEL, WEIGHT_KERNEL = "conv2d_depthwise", "conv2d_depthwise_backward_weight"
THREADS, WEIGHT_THREADS, WARP, PAIR_BYTES = 128, 256, 32, 4
# Registers for a thread's numbers, the columns of a strip, and those of an image that it sees.
MOST_WORDS, MOST_COLUMNS, MOST_BITS = 156, 8, 31
# Blocks of a multiprocessor that hide waits, forward and for gradients of weights; most of these.
BUSY, WEIGHT_BUSY, WEIGHT_BLOCKS = 3, 1, 2


class Grouped(NamedTuple):
    """A convolution whose groups have as many outputs as channels, or a gradient of it."""

    dtype: str
    group: int  # channels of a group
    read: Shape  # x, or dz for the gradient of the input
    made: Pair  # rows and columns of windows, or of the gradient of the input
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    is_adjoint: bool = False
    is_of_weights: bool = False

    @property
    def defines(self) -> dict[str, str | int]:
        """What all kernels are compiled with."""
        (height, width), (down, across) = self.kernel, self.stride
        steps = {"STRIDE_HEIGHT": down, "STRIDE_WIDTH": across}
        return {"DTYPE": self.dtype, "KERNEL_HEIGHT": height, "KERNEL_WIDTH": width, **steps}

    def result_defines(self, activation: Activation, *, stores_z: bool) -> dict[str, str | int]:
        """What kernels that write windows, or the gradient of the input, are compiled with, too."""
        own = {"ADJOINT": int(self.is_adjoint), "STORE_Z": int(stores_z)}
        return {**self.defines, **own, "ACTIVATION": activation.name}

    def of_axes(self, of: Callable[..., int], *names: str) -> Pair:
        """Return what `of` makes of these fields along each axis."""
        height, width = (
            of(*sizes) for sizes in zip(*(getattr(self, n) for n in names), strict=True)
        )
        return height, width


class Strips(NamedTuple):
    """How a depthwise convolution is cut into parts for threads."""

    width: int  # channels of a thread
    columns: int  # positions of a strip
    first: Pair  # position along each axis
    strips: int
    chunks: int
    rows: int  # positions of a chunk


def words(shape: Grouped, columns: int, width: int) -> int:
    """Return the registers for the numbers of a thread with so many columns and channels."""
    reach = -(-shape.kernel[0] // shape.stride[0])
    inputs, outputs = shape.stride[1] * (columns - 1) + shape.kernel[1], columns
    if shape.is_adjoint:
        inputs = columns - 1 + -(-shape.kernel[1] // shape.stride[1])
        outputs *= shape.stride[1]
    sums = reach * outputs * (shape.stride[0] if shape.is_adjoint else 1)
    if max(inputs, outputs) > MOST_BITS:
        return MOST_WORDS + 1
    itemsize, loaded = dtype_of(shape.dtype).itemsize, inputs
    if shape.is_of_weights:
        # Of far strides the compiler keeps more in float64 than their numbers.
        loaded += columns + inputs * (itemsize == 8 and shape.stride[1] > 2)
    numbers = prod(shape.kernel) + sums + inputs
    return width * (numbers * max(1, itemsize // 4) + -(-loaded * itemsize // 4))


def positions(shape: Grouped) -> tuple[Pair, Pair]:
    """Return the first position along each axis, and how many there are."""
    if not shape.is_adjoint:
        return (0, 0), shape.of_axes(lambda size, apart: -(-size // apart), "made", "dilation")
    first = shape.of_axes(lambda p, s, d: p // (s * d), "padding", "stride", "dilation")
    last = shape.of_axes(
        lambda size, p, s, d: (size - 1 + p) // (s * d), "made", "padding", "stride", "dilation"
    )
    return first, (last[0] - first[0] + 1, last[1] - first[1] + 1)


@lru_cache(maxsize=1024)
def choose_strips(shape: Grouped, in_pairs: bool, num_multiprocessors: int) -> Strips | None:
    """Return strips whose numbers fit a thread's registers, and chunks by which all multiprocessors
    are busy; None if a kernel is too large. `in_pairs` says whether threads can have two channels.
    """
    most = max(1, MOST_COLUMNS // (shape.stride[1] if shape.is_adjoint else 1))
    sizes = product((2, 1) if in_pairs else (1,), range(most, (most - 1) // 2, -1))
    fitting = (size for size in sizes if words(shape, size[1], size[0]) <= MOST_WORDS)
    width, columns = next(fitting, (0, 0))
    if not width or max(shape.of_axes(min, "stride", "dilation")) > 1:
        return None
    first, (height, row) = positions(shape)
    strips = -(-row // columns)
    work = shape.read[0] * shape.read[3] // width * prod(shape.dilation) * strips
    threads, busy = (WEIGHT_THREADS, WEIGHT_BUSY) if shape.is_of_weights else (THREADS, BUSY)
    found = []
    for rows in {-(-height // chunks) for chunks in range(1, height + 1)}:
        chunks = -(-height // rows)
        blocks = -(-work * chunks // threads)
        steps = rows - 1 + -(-shape.kernel[0] // shape.stride[0])
        found.append((steps * max(busy, -(-blocks // num_multiprocessors)), chunks, rows))
    _, chunks, rows = min(found)
    fits = work * chunks < 2**31
    return Strips(width, -(-row // strips), first, strips, chunks, rows) if fits else None


def strip_defines(shape: Grouped, strips: Strips) -> dict[str, str | int]:
    """Return what both kernels are compiled with beside the shape's."""
    distances = {"CHANNELS": shape.read[3], "DILATION_WIDTH": shape.dilation[1]}
    return {**distances, "WIDTH": strips.width, "COLUMNS": strips.columns}


class DepthwiseOps(BoxOps):
    """Convolutions of groups with one channel and one output each."""

    def strips_of(self, shape: Grouped, *operands: Array) -> Strips | None:
        """Return how kernels compute what has numbers; None if none does."""
        in_pairs = shape.dtype in HALF_DTYPES and not shape.read[3] % 2
        in_pairs &= not any(each.pointer % PAIR_BYTES for each in operands)
        return choose_strips(shape, in_pairs, self.runtime.num_multiprocessors)

    def convolve_strips(
        self,
        shape: Grouped,
        strips: Strips,
        x: Array,
        w: Array,
        y: Array,
        bias: Array | None = None,
        z: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> None:
        """Write y; of gradients x is dz, and y is dx."""
        parts = len(x) * prod(shape.dilation) * strips.strips * strips.chunks
        count = x.shape[3] // strips.width * parts
        sizes = (*x.shape[1:3], *y.shape[1:3], *shape.padding, shape.dilation[0], *strips.first)
        arguments = (x, w, bias, y, z, activation.slope, count, *sizes, *strips[3:])
        own = shape.result_defines(activation, stores_z=z is not None)
        kernel = self.kernel(KERNEL, **own, **strip_defines(shape, strips))
        kernel(-(-count // THREADS), THREADS, *arguments)

    def gradients_of_strips(self, shape: Grouped, strips: Strips, dz: Array, x: Array) -> Array:
        """Return parts of the weights' gradient, to be added up."""
        vectors = x.shape[3] // strips.width
        slices = -(-vectors // WARP)
        lanes = -(-vectors // slices)
        count = len(x) * prod(shape.dilation) * strips.strips * strips.chunks
        most = max(1, WEIGHT_BLOCKS * self.runtime.num_multiprocessors // slices)
        parts = min(most, -(-count // (WEIGHT_THREADS // lanes)))
        sums = self.empty((parts, prod(shape.kernel) * x.shape[3]), acc_dtype(x.dtype))
        sizes = (
            *x.shape[1:3],
            *dz.shape[1:3],
            *shape.padding,
            shape.dilation[0],
            *strips[3:],
            lanes,
        )
        kernel = self.kernel(WEIGHT_KERNEL, **shape.defines, **strip_defines(shape, strips))
        kernel((slices, parts), WEIGHT_THREADS, dz, x, sums, count, *sizes)
        return sums
