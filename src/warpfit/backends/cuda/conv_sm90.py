"""How convolutions are computed on Hopper's tensor cores: which bands of an image a block takes,
and which tiles.

An image's rows lie in shared memory once, and the products of all taps read them there. So what is
chosen is how much of an image a block has: more of it for less reading, less of it for more blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES, IDENTITY, Activation, Array, Pair
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.pool import PooledGradient, PoolOps
from warpfit.backends.cuda.tensor_maps import MapOps

Shape = tuple[int, ...]

# As in kernels/mma/planes.cuh: numbers in a piece of 16 bytes, and k of an instruction.
PIECE_BYTES, IN_PIECE, DEPTH = 16, 8, 16
TILE, SIDE = 64, 8
KERNEL, WARPGROUP = "conv2d_sm90", 128
# Columns of a block's products, each a number that wgmma is declared for; and those that are whole
# lines where outputs lie side by side.
BLOCKS_N = (64, 48, 32, 24, 16)
BLOCKS_OF_LINES = tuple(n for n in BLOCKS_N if n % DEPTH == 0)
MOST_WARPGROUPS, MOST_BLOCKS = 3, 2
BARRIER_BYTES = 8
# A thread of a warpgroup copies no more than one plane of pieces.
MOST_CHANNELS = WARPGROUP * IN_PIECE
# Of what a multiprocessor has, for each of two blocks.
RESERVED_BYTES = 1024
# Cycles of a multiprocessor for a slice of 64 rows and a column, and bytes that it reads in one.
CYCLES_OF_COLUMN, BYTES_A_CYCLE = 0.5, 32
# At least so many for a slice, for which its rows are read.
LEAST_CYCLES = 22
# Until a band that is asked for has come, and its last sums have gone.
WAITED_CYCLES = 2500
# And those that a band costs whatever its size.
CYCLES_OF_BAND = 300


class Windows(NamedTuple):
    """A convolution of stride 1 as the kernel sees it, an input's gradient being one as well."""

    # image and result: heights and widths of what is read and of what is written.
    image: Pair
    result: Pair
    channels: int
    outputs: int
    # kernel, padding and dilation: the padding may be negative.
    kernel: Pair
    padding: Pair
    dilation: Pair
    # Whether the weights are those of the convolution whose input's gradient this is.
    is_adjoint: bool = False
    pools: bool = False  # whether only the largest of each 2 by 2 windows are stored
    spreads: bool = False  # whether the image is a `PooledGradient`

    @staticmethod
    def forward(x: Shape, w: Shape, num_windows: Pair, padding: Pair, dilation: Pair) -> Windows:
        """Return those of images of shape x with weights of shape w."""
        image = (x[1], x[2])
        return Windows(image, num_windows, w[2], w[3], (w[0], w[1]), padding, dilation)

    @property
    def adjoint(self) -> Windows:
        """The windows of the input's gradient."""
        padding = tuple(
            (size - 1) * step - pad
            for size, step, pad in zip(self.kernel, self.dilation, self.padding, strict=True)
        )
        return Windows(
            self.result,
            self.image,
            self.outputs,
            self.channels,
            self.kernel,
            (padding[0], padding[1]),
            self.dilation,
            True,
        )

    @property
    def pitch(self) -> int:
        """Pixels of a row in shared memory."""
        return self.result[1] + (self.kernel[1] - 1) * self.dilation[1]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def num_gradients(self) -> int:
        """Of weights and of the bias."""
        return (self.taps * self.channels + 1) * self.outputs

    @property
    def depth(self) -> int:
        """Channels with the zeros that fill up the last slice."""
        return -(-self.channels // DEPTH) * DEPTH

    @property
    def are_possible(self) -> bool:
        """Whether weights consist of whole pieces and products of whole blocks of columns."""
        inner = self.channels if self.is_adjoint else self.outputs
        whole = inner % IN_PIECE == 0 and self.block_n > 0
        return whole and 0 not in (self.channels, self.outputs)

    @property
    def columns(self) -> int:
        """Blocks of outputs."""
        return self.outputs // (self.block_n or 1)

    @property
    def block_n(self) -> int:
        """Outputs of a block; 0 if the kernel has no products of so many."""
        blocks = BLOCKS_N if self.is_adjoint else BLOCKS_OF_LINES
        return next((n for n in blocks if self.outputs % n == 0), 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """What the kernels take of them as arguments."""
        ends = (*self.image, self.channels, *self.result, self.outputs)
        return (*ends, *self.padding, *self.dilation)


class Band(NamedTuple):
    """What a block takes: rows of an image, and how they are cut into tiles of 64 windows."""

    rows: int
    num_tiles: int
    tiles_across: int  # tiles of 8 by 8 windows side by side; 0 for tiles that follow the pixels
    plane_bytes: int
    shared_bytes: int
    blocks: int  # that a multiprocessor is to hold
    stages: int  # bands in shared memory: 2 if warps of their own load the next one

    @property
    def warpgroups(self) -> int:
        """Those that multiply."""
        rounds = -(-self.num_tiles // MOST_WARPGROUPS)
        return -(-self.num_tiles // rounds)

    @property
    def threads(self) -> int:
        return (self.warpgroups + self.stages - 1) * WARPGROUP


class WindowsOps(MapOps, PoolOps):
    """Convolutions of stride 1 in half precision, where the device has the kernel for them."""

    def has_kernels(self, dtype: str, num_images: int) -> bool:
        """Whether the device has kernels of Hopper's products for a dtype, and there are images."""
        return generation(self.runtime.arch) == 90 and dtype in HALF_DTYPES and num_images > 0

    def band_of(self, windows: Windows, dtype: str, num_images: int) -> Band | None:
        """Return the band by which the kernel computes a convolution whose weights, and whose
        pixels if they are whole pieces, begin at multiples of 16 bytes; None if it does not.
        """
        if not self.has_kernels(dtype, num_images) or not windows.are_possible:
            return None
        runtime = self.runtime
        return choose_band(
            windows, num_images, runtime.num_multiprocessors, runtime.max_shared_bytes
        )

    def multiply_windows(
        self,
        windows: Windows,
        band: Band,
        x: Array | PooledGradient,
        w: Array,
        y: Array,
        *,
        bias: Array | None = None,
        z: Array | None = None,
        saved: Array | None = None,
        indices: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> None:
        """Write to y (M, *windows.result, windows.outputs) the sums over the windows of x: with
        bias and activation, or, adjoint, times the activation's derivative by `saved`, if given.
        If windows are pooled, y and `indices` are what `max_pool2d_forward` returns.
        """
        own = result_defines(activation.name, bias is not None, z is not None, saved is not None)
        if isinstance(x, PooledGradient):
            x, indices = x.dy, x.indices
        is_whole = is_in_pieces(x, windows.channels)
        of_band = defines_of(x.dtype.name, windows, band, is_whole)
        kernel = self.kernel(KERNEL, **of_band, **own)
        num_bands, columns = len(x) * -(-windows.result[0] // band.rows), windows.columns
        at_once = max(1, band.blocks * self.runtime.num_multiprocessors // columns)
        kernel(
            (min(num_bands, at_once), columns),
            band.threads,
            *(x, w, bias, saved, y, z, indices, activation.slope),
            *sizes_of(windows, band, len(x)),
            shared_bytes=band.shared_bytes,
        )


@lru_cache(maxsize=1024)
def choose_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> Band | None:
    """Return the band by which all images take the least time; None if none fits.

    What is spread is not loaded by warps of its own: there are too few for what they wait for.
    """
    bands = [
        band
        for rows in row_counts(windows.result[0], windows.pools)
        for stages in ((1,) if windows.spreads else (1, 2))
        if (band := _band(windows, rows, max_shared_bytes, stages)) is not None
    ]
    return min(
        bands,
        key=lambda band: _cycles(windows, band, num_images, num_multiprocessors),
        default=None,
    )


def row_counts(height: int, pools: bool = False) -> list[int]:
    """Return rows of bands as even as can be, for each number of bands, and those of whole tiles;
    only these, and all, of windows that are pooled.
    """
    even = {-(-height // count) for count in range(1, height + 1)}
    whole = set(range(SIDE, height, SIDE))
    return sorted(whole | ({height} if pools else even), reverse=True)


def _band(windows: Windows, rows: int, max_shared_bytes: int, stages: int) -> Band | None:
    if windows.depth > MOST_CHANNELS:
        return None
    height, width = rows, windows.result[1]
    across = -(-width // SIDE)
    squares, in_order = (
        -(-height // SIDE) * across,
        -(-((height - 1) * windows.pitch + width) // TILE),
    )
    (span_h, span_w) = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    copied = (rows + span_h) * windows.pitch
    if windows.pools or squares <= in_order:
        num_tiles = squares
        last = (-(-height // SIDE) * SIDE - 1 + span_h) * windows.pitch + across * SIDE - 1 + span_w
    else:
        num_tiles, across = in_order, 0
        last = in_order * TILE - 1 + span_h * windows.pitch + span_w
    plane = plane_bytes(max(copied, last + 1), windows.depth)
    shared = stages * (windows.depth // IN_PIECE * plane + 2 * BARRIER_BYTES)
    shared += 2 * windows.taps * windows.depth * windows.block_n
    if shared > max_shared_bytes:
        return None
    blocks = min(MOST_BLOCKS, (max_shared_bytes + RESERVED_BYTES) // (shared + RESERVED_BYTES))
    return Band(rows, num_tiles, across, plane, shared, blocks, stages)


def is_in_pieces(x: Array, channels: int) -> bool:
    """Whether the pixels of an array are whole pieces at multiples of 16 bytes."""
    return channels % IN_PIECE == 0 and x.pointer % PIECE_BYTES == 0


def plane_bytes(num_rows: int, num_channels: int) -> int:
    """Return the bytes from plane to plane, such that neighbouring pieces go to different banks."""
    shift = max(1, 8 // (num_channels // IN_PIECE)) % 8
    return PIECE_BYTES * (num_rows + (shift - num_rows) % 8)


def _cycles(windows: Windows, band: Band, num_images: int, num_multiprocessors: int) -> float:
    """Return about how many cycles a multiprocessor works, if all images are in its reach."""
    num_bands = num_images * -(-windows.result[0] // band.rows) * windows.columns
    blocks = min(band.blocks, -(-num_bands // num_multiprocessors))
    rounds = -(-num_bands // (num_multiprocessors * blocks))
    slices = windows.taps * windows.depth // DEPTH
    of_tile = slices * max(CYCLES_OF_COLUMN * windows.block_n, LEAST_CYCLES)
    of_pixels = windows.depth // IN_PIECE * band.plane_bytes / BYTES_A_CYCLE
    of_weights = 2 * slices * DEPTH * windows.block_n / BYTES_A_CYCLE
    # Blocks share a multiprocessor's products, and hide what others wait for.
    multiplied = CYCLES_OF_BAND + band.num_tiles * of_tile
    loaded = WAITED_CYCLES + of_pixels
    both = max(loaded, multiplied) if band.stages > 1 else loaded + multiplied
    alone = multiplied + (rounds - 1) * both
    first = blocks * (of_weights + of_pixels) + WAITED_CYCLES  # nothing hides it
    return first + max(rounds * blocks * multiplied, alone)


def defines_of(dtype: str, windows: Windows, band: Band, is_whole: bool) -> dict[str, str | int]:
    """Return the kernel's defines but `result_defines`; `is_whole`: pixels are aligned pieces."""
    return {
        "DTYPE": dtype,
        "ADJOINT": int(windows.is_adjoint),
        "BLOCK_N": windows.block_n,
        "WARPGROUPS": band.warpgroups,
        "BLOCKS": band.blocks,
        "STAGES": band.stages,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "SLICES_OF_TAP": windows.depth // DEPTH,
        "X_PIECES": int(is_whole),
        "POOLS": int(windows.pools),
        "IS_POOLED": int(windows.spreads),
    }


def result_defines(
    activation: str, has_bias: bool, stores_z: bool, masks: bool
) -> dict[str, str | int]:
    """Return those of what becomes of the sums."""
    return {
        "ACTIVATION": activation,
        "HAS_BIAS": int(has_bias),
        "STORE_Z": int(stores_z),
        "MASKS": int(masks),
    }


def sizes_of(windows: Windows, band: Band, num_images: int) -> tuple[int, ...]:
    """Return the kernel's last arguments."""
    of_band = (band.rows, band.num_tiles, band.tiles_across, band.plane_bytes)
    return (num_images, *windows.sizes, *of_band)
