"""How convolutions are computed on Hopper's tensor cores: which bands of an image a block takes,
and which tiles.

An image's rows lie in shared memory once, and the products of all taps read them there. So what is
chosen is how much of an image a block has: more of it for less reading, less of it for more blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.base import HALF_DTYPES, IDENTITY, Activation, Array, Pair
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import generation

__all__ = ["Band", "Windows", "WindowsOps", "choose_band", "variants"]

Shape = tuple[int, ...]

# As in kernels/mma/planes.cuh: numbers in a piece of 16 bytes, and k of an instruction.
PIECE_BYTES, IN_PIECE, DEPTH = 16, 8, 16
TILE, SIDE = 64, 8
KERNEL, WEIGHT_KERNEL, WARPGROUP = "conv2d_sm90", "conv2d_backward_weight_sm90", 128
# Columns of a block's products, each a number that wgmma is declared for.
BLOCKS_N = (64, 48, 32, 16)
MOST_WARPGROUPS, MOST_BLOCKS = 3, 2
# Of the gradient of weights: rows of a product, and the channels of a tap that they may be; sums of
# a thread; bands on their way or at work, and where each begins.
PRODUCT_ROWS, BLOCKS_C = 64, (64, 32, 16)
MOST_SUMS, MOST_WEIGHT_WARPGROUPS, MOST_STAGES, ALIGNMENT = 112, 4, 3, 1024
# Of what a multiprocessor has, for each of two blocks.
RESERVED_BYTES = 1024
# Cycles of a multiprocessor for a slice of 64 rows and a column, and bytes that it reads in one.
CYCLES_OF_COLUMN, BYTES_A_CYCLE = 0.5, 32
# And those that a band costs whatever its size.
CYCLES_OF_BAND = 300


class Windows(NamedTuple):
    """A convolution of stride 1 as the kernel sees it, an input's gradient being one as well.

    Attributes
    ----------
    image, result : Pair
        Heights and widths of what is read and of what is written.
    channels, outputs : int
    kernel, padding, dilation : Pair
        The padding may be negative.
    is_adjoint : bool
        Whether the weights are those of the convolution whose input's gradient this is.
    pools : bool
        Whether only the largest of each 2 by 2 windows are stored.
    """

    image: Pair
    result: Pair
    channels: int
    outputs: int
    kernel: Pair
    padding: Pair
    dilation: Pair
    is_adjoint: bool = False
    pools: bool = False

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
    def depth(self) -> int:
        """Channels with the zeros that fill up the last slice."""
        return -(-self.channels // DEPTH) * DEPTH

    @property
    def are_possible(self) -> bool:
        """Whether weights consist of whole pieces and products of whole blocks of columns."""
        inner = self.channels if self.is_adjoint else self.outputs
        whole = inner % IN_PIECE == 0 and self.block_n is not None
        return whole and 0 not in (self.channels, self.outputs)

    @property
    def block_n(self) -> int | None:
        """Outputs of a block; None if the kernel has no products of so many."""
        return next((n for n in BLOCKS_N if self.outputs % n == 0), None)


class Band(NamedTuple):
    """What a block takes: rows of an image, and how they are cut into tiles of 64 windows.

    Attributes
    ----------
    rows, num_tiles : int
    tiles_across : int
        Tiles of 8 by 8 windows side by side; 0 for tiles that follow the pixels.
    plane_bytes, shared_bytes : int
    blocks : int
        That a multiprocessor is to hold.
    """

    rows: int
    num_tiles: int
    tiles_across: int
    plane_bytes: int
    shared_bytes: int
    blocks: int

    @property
    def warpgroups(self) -> int:
        rounds = -(-self.num_tiles // MOST_WARPGROUPS)
        return -(-self.num_tiles // rounds)


class WindowsOps(ArrayOps):
    """Convolutions of stride 1 in half precision, where the device has the kernel for them."""

    def band_of(self, windows: Windows, dtype: str, num_images: int) -> Band | None:
        """Return the band by which the kernel computes a convolution whose weights, and whose
        pixels if they are whole pieces, begin at multiples of 16 bytes; None if it does not.
        """
        runtime = self.runtime
        is_possible = generation(runtime.arch) == 90 and dtype in HALF_DTYPES and num_images
        if not is_possible or not windows.are_possible:
            return None
        return choose_band(
            windows, num_images, runtime.num_multiprocessors, runtime.max_shared_bytes
        )

    def multiply_windows(
        self,
        windows: Windows,
        band: Band,
        x: Array,
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
        epilogue = "epilogue_activation"
        if windows.is_adjoint:
            epilogue = "epilogue_store" if saved is None else "epilogue_mask"
        own = epilogue_defines(epilogue, activation.name, bias is not None, z is not None)
        is_whole = is_in_pieces(x, windows.channels)
        kernel = self.kernel(KERNEL, **defines_of(x.dtype.name, windows, band, is_whole), **own)
        bands = -(-windows.result[0] // band.rows)
        kernel(
            (len(x) * bands, windows.outputs // (windows.block_n or 1)),
            band.warpgroups * WARPGROUP,
            *(x, w, bias, saved, y, z, indices, activation.slope),
            *sizes_of(windows, band),
            shared_bytes=band.shared_bytes,
        )

    def weight_band_of(self, windows: Windows, dtype: str, num_images: int) -> WeightBand | None:
        """Return how the kernel computes the gradient of the weights of a forward pass; None if it
        does not.
        """
        runtime = self.runtime
        is_possible = generation(runtime.arch) == 90 and dtype in HALF_DTYPES and num_images
        if (
            not is_possible
            or not windows.channels
            or windows.outputs % DEPTH
            or not windows.outputs
        ):
            return None
        return choose_weight_band(
            windows, num_images, runtime.num_multiprocessors, runtime.max_shared_bytes
        )

    def weight_gradients(self, windows: Windows, band: WeightBand, dz: Array, x: Array) -> Array:
        """Return the gradients of weights and then of the bias, summed over some of the windows in
        each row: (parts, KH KW C O + O) float32, with the loss scale.
        """
        num_sums = (windows.taps * windows.channels + 1) * windows.outputs
        sums = self.empty((band.parts, num_sums), "float32")
        is_whole = is_in_pieces(x, windows.channels)
        kernel = self.kernel(WEIGHT_KERNEL, **weight_defines(x.dtype.name, windows, band, is_whole))
        blocks_o, blocks_c = windows.outputs // band.block_o, -(-windows.channels // band.block_c)
        kernel(
            (band.parts, blocks_o, blocks_c),
            band.warpgroups * WARPGROUP,
            *(dz, x, sums, *weight_sizes(windows, band, len(x))),
            shared_bytes=band.shared_bytes,
        )
        return sums


@lru_cache(maxsize=1024)
def choose_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> Band | None:
    """Return the band by which all images take the least time; None if none fits."""
    bands = [
        band
        for rows in _row_counts(windows.result[0], windows.pools)
        if (band := _band(windows, rows, max_shared_bytes)) is not None
    ]
    return min(
        bands,
        key=lambda band: _cycles(windows, band, num_images, num_multiprocessors),
        default=None,
    )


def _row_counts(height: int, pools: bool = False) -> list[int]:
    """Return rows of bands as even as can be, for each number of bands, and those of whole tiles;
    only these, and all, of windows that are pooled.
    """
    even = {-(-height // count) for count in range(1, height + 1)}
    whole = set(range(SIDE, height, SIDE))
    return sorted(whole | ({height} if pools else even), reverse=True)


def _band(windows: Windows, rows: int, max_shared_bytes: int) -> Band | None:
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
    shared = windows.depth // IN_PIECE * plane + 2 * windows.taps * windows.depth * (
        windows.block_n or 0
    )
    if shared > max_shared_bytes:
        return None
    blocks = min(MOST_BLOCKS, (max_shared_bytes + RESERVED_BYTES) // (shared + RESERVED_BYTES))
    return Band(rows, num_tiles, across, plane, shared, blocks)


def is_in_pieces(x: Array, channels: int) -> bool:
    """Whether the pixels of an array are whole pieces at multiples of 16 bytes."""
    return channels % IN_PIECE == 0 and x.pointer % PIECE_BYTES == 0


def plane_bytes(num_rows: int, num_channels: int) -> int:
    """Return the bytes from one plane to the next, so that neighbouring pieces of memory go to
    different banks.
    """
    shift = max(1, 8 // (num_channels // IN_PIECE)) % 8
    return PIECE_BYTES * (num_rows + (shift - num_rows) % 8)


def _cycles(windows: Windows, band: Band, num_images: int, num_multiprocessors: int) -> float:
    """Return about how many cycles a multiprocessor works, if all images are in its reach."""
    num_blocks = num_images * -(-windows.result[0] // band.rows)
    num_blocks *= windows.outputs // (windows.block_n or 1)
    per_multiprocessor = -(-num_blocks // num_multiprocessors)
    slices = windows.taps * windows.depth // DEPTH
    of_tile = slices * CYCLES_OF_COLUMN * (windows.block_n or 0)
    # Warpgroups of one block take turns; what is read is hidden only behind another block.
    waves = -(-per_multiprocessor // band.blocks)
    read = band.shared_bytes / BYTES_A_CYCLE
    return per_multiprocessor * band.num_tiles * of_tile + waves * (CYCLES_OF_BAND + read)


def defines_of(dtype: str, windows: Windows, band: Band, is_whole: bool) -> dict[str, str | int]:
    """Return the kernel's defines, without those of its epilogue; `is_whole` says whether pixels
    are whole pieces at multiples of 16 bytes.
    """
    return {
        "DTYPE": dtype,
        "ADJOINT": int(windows.is_adjoint),
        "BLOCK_N": windows.block_n or 0,
        "WARPGROUPS": band.warpgroups,
        "BLOCKS": band.blocks,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "SLICES_OF_TAP": windows.depth // DEPTH,
        "X_PIECES": int(is_whole),
        "POOLS": int(windows.pools),
    }


def epilogue_defines(
    epilogue: str, activation: str, has_bias: bool, stores_z: bool
) -> dict[str, str | int]:
    """Return those of its epilogue."""
    return {
        "EPILOGUE": epilogue,
        "ACTIVATION": activation,
        "HAS_BIAS": int(has_bias),
        "STORE_Z": int(stores_z),
    }


def sizes_of(windows: Windows, band: Band) -> tuple[int, ...]:
    """Return the kernel's last arguments."""
    return (
        *windows.image,
        windows.channels,
        *windows.result,
        windows.outputs,
        *windows.padding,
        *windows.dilation,
        band.rows,
        band.num_tiles,
        band.tiles_across,
        band.plane_bytes,
    )


class WeightBand(NamedTuple):
    """How the gradient of weights is computed.

    Attributes
    ----------
    rows, num_slices : int
        Rows of windows that come to shared memory at once, and the slices of pixels that they are.
    block_c, block_o : int
        Channels, zeros included, and outputs of a block.
    warpgroups, kernel_rows : int
        Warpgroups of a block, and the rows of the kernel that each has.
    stages : int
    plane_bytes, shared_bytes : int
    parts : int
        Blocks that share the bands out, and whose sums are added up.
    """

    rows: int
    num_slices: int
    block_c: int
    block_o: int
    warpgroups: int
    kernel_rows: int
    stages: int
    plane_bytes: int
    shared_bytes: int
    parts: int


@lru_cache(maxsize=1024)
def choose_weight_band(
    windows: Windows, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> WeightBand | None:
    """Return how the gradient of a forward pass' weights takes the least time; None if nothing
    fits.
    """
    found = []
    for rows in _row_counts(windows.result[0]):
        band = _weight_band(windows, rows, num_images, num_multiprocessors, max_shared_bytes)
        if band is not None:
            found.append((_weight_cycles(windows, band, num_images), band))
    return min(found)[1] if found else None


def _groups(windows: Windows, block_c: int) -> int:
    """Return into how many groups of neighbouring taps a row of the kernel falls."""
    return -(-windows.kernel[1] // (PRODUCT_ROWS // block_c))


def _shares(windows: Windows) -> tuple[int, int, int, int] | None:
    """Return the channels and outputs of a block, its warpgroups, and the kernel's rows of each."""
    height = windows.kernel[0]
    warpgroups = min(MOST_WEIGHT_WARPGROUPS, height)
    rows = -(-height // warpgroups)
    block_c = next(c for c in BLOCKS_C if windows.depth % c == 0)
    for block_o in BLOCKS_N:
        sums = rows * _groups(windows, block_c) * block_o // 2
        if windows.outputs % block_o == 0 and sums <= MOST_SUMS:
            return block_c, block_o, -(-height // rows), rows
    return None


def _weight_band(
    windows: Windows, rows: int, num_images: int, num_multiprocessors: int, max_shared_bytes: int
) -> WeightBand | None:
    shares = _shares(windows)
    if shares is None:
        return None
    block_c, block_o, *_ = shares
    span_h, span_w = ((k - 1) * d for k, d in zip(windows.kernel, windows.dilation, strict=True))
    num_slices = -(-rows * windows.pitch // DEPTH)
    last = num_slices * DEPTH - 1 + span_h * windows.pitch + span_w
    plane = plane_bytes(max((rows + span_h) * windows.pitch, last + 1), block_c)
    stage = 2 * num_slices * DEPTH * block_o + PRODUCT_ROWS // IN_PIECE * plane
    stage += -stage % ALIGNMENT
    stages = min(MOST_STAGES, max_shared_bytes // stage)
    if stages < 2:
        return None
    num_bands = num_images * -(-windows.result[0] // rows)
    columns = windows.outputs // block_o * -(-windows.channels // block_c)
    parts = max(1, min(num_bands, num_multiprocessors // columns))
    # Sums of dz pass through shared memory in the end, eight of each thread.
    shared = max(stages * stage, shares[2] * WARPGROUP * IN_PIECE * 4)
    return WeightBand(rows, num_slices, *shares, stages, plane, shared, parts)


def _weight_cycles(windows: Windows, band: WeightBand, num_images: int) -> float:
    """Return about how many cycles a block works."""
    num_bands = -(-num_images * -(-windows.result[0] // band.rows) // band.parts)
    read = band.shared_bytes / band.stages / BYTES_A_CYCLE
    products = band.warpgroups * band.kernel_rows * _groups(windows, band.block_c)
    multiplied = band.num_slices * products * band.block_o * CYCLES_OF_COLUMN
    return read + num_bands * (CYCLES_OF_BAND + max(read, multiplied))


def weight_defines(
    dtype: str, windows: Windows, band: WeightBand, is_whole: bool
) -> dict[str, str | int]:
    """Return the defines of the kernel of weights' gradients."""
    return {
        "DTYPE": dtype,
        "WARPGROUPS": band.warpgroups,
        "OWN_ROWS": band.kernel_rows,
        "KERNEL_HEIGHT": windows.kernel[0],
        "KERNEL_WIDTH": windows.kernel[1],
        "BLOCK_C": band.block_c,
        "BLOCK_O": band.block_o,
        "STAGES": band.stages,
        "X_PIECES": int(is_whole),
    }


def weight_sizes(windows: Windows, band: WeightBand, num_images: int) -> tuple[int, ...]:
    """Return its last arguments."""
    return (
        num_images,
        *windows.image,
        windows.channels,
        *windows.result,
        windows.outputs,
        *windows.padding,
        *windows.dilation,
        band.rows,
        band.num_slices,
        band.plane_bytes,
    )


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the kernels of this file with a choice of the defines that they are asked for."""
    most = shared_bytes_of("sm_90a")
    for dtype in HALF_DTYPES:
        for channels, outputs in ((32, 64), (1, 32), (64, 48)):
            forward = Windows.forward(
                (1, 26, 26, channels), (3, 3, channels, outputs), (24, 24), (0, 0), (1, 1)
            )
            weight_band = choose_weight_band(forward, 512, 132, most)
            assert weight_band is not None
            of_weights = weight_defines(dtype, forward, weight_band, channels >= IN_PIECE)
            yield WEIGHT_KERNEL, {name: str(value) for name, value in of_weights.items()}
            passes = [(forward, 512), (forward._replace(pools=True), 512), (forward.adjoint, 1)]
            for windows, num_images in passes[: 2 if channels == 1 else 3]:
                band = choose_band(windows, num_images, 132, most)
                assert band is not None
                own = defines_of(dtype, windows, band, windows.channels >= IN_PIECE)
                if windows.is_adjoint:
                    tails = [("epilogue_store", "identity"), ("epilogue_mask", "relu")]
                else:
                    tails = [("epilogue_activation", "relu")]
                for tail in tails:
                    bias = tail[0] == "epilogue_activation"
                    defines = {**own, **epilogue_defines(*tail, bias, False)}
                    yield KERNEL, {name: str(value) for name, value in defines.items()}
