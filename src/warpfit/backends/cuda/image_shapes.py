"""Sizes of the layers that `one_launch_images.cu` trains: those of `image_shapes.cuh`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from warpfit.backends.base import Activation, Pair
from warpfit.backends.cuda.resident_config import ImagesConfig
from warpfit.backends.cuda.sizes import padded, up

WARPS = 16


@dataclass(frozen=True)
class Convolution:
    """A convolution of stride 1, with its activation and the max pooling that follows it."""

    kernel: Pair
    padding: Pair
    channels: int  # that it gives
    activation: Activation
    pool: int = 1  # height and width of the windows, which partition an image; 1: none


def spaced(numbers: int) -> int:
    """Return the next number of whole pieces of 8 that is odd."""
    return (up(numbers, 8) // 8 | 1) * 8


@dataclass(frozen=True)
class ConvolutionShape:
    """What a convolution takes and gives: ``struct Convolution`` of the kernel.

    Attributes
    ----------
    height, width, channels : int
        Of what it takes.
    of : Convolution
    is_first : bool
        Whether nobody asks for the gradient of what it takes.
    """

    height: int
    width: int
    channels: int
    of: Convolution
    is_first: bool

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of what the pooling takes."""
        return (
            self.height + 2 * self.of.padding[0] - self.of.kernel[0] + 1,
            self.width + 2 * self.of.padding[1] - self.of.kernel[1] + 1,
        )

    @property
    def pooled(self) -> tuple[int, int, int]:
        """Height, width and channels of what the next layer takes."""
        height, width = self.output
        return height // self.of.pool, width // self.of.pool, self.of.channels

    @property
    def is_spread(self) -> bool:
        """Whether a pixel of its input holds all columns of its window."""
        columns = self.of.kernel[1]
        return self.is_first and up(columns * self.channels, 8) < columns * up(self.channels, 8)

    @property
    def depth(self) -> int:
        """Numbers of a tap."""
        return self.channels * (self.of.kernel[1] if self.is_spread else 1)

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return self.of.kernel[0] * (1 if self.is_spread else self.of.kernel[1])

    @property
    def slices(self) -> int:
        """Slices of 16 numbers that one output sees."""
        return -(-self.taps * self.pieces // 2)

    @property
    def pieces(self) -> int:
        """Pieces of 8 numbers of a tap."""
        return up(self.depth, 8) // 8

    @property
    def units(self) -> int:
        """Channels that it gives, in whole pieces."""
        return up(self.of.channels, 8)

    @property
    def unit_pieces(self) -> int:
        """How many pieces these are."""
        return self.units // 8

    @property
    def weights(self) -> int:
        """Numbers of the rounded weights."""
        return 16 * self.slices * self.z_pixel

    @property
    def z_pixel(self) -> int:
        """Numbers of a pixel that it gives, and of a row of its weights."""
        return spaced(self.of.channels if self.is_first else padded(self.of.channels))

    @property
    def items(self) -> int:
        """Rows of 8 parameters, each of which a warp updates."""
        return (self.taps * self.depth + 1) * self.unit_pieces

    @property
    def x_row(self) -> int:
        """Pixels of a row of its input, with those that keep windows in different banks."""
        width = self.width + 2 * self.of.padding[1]
        return self.output[1] if self.is_spread else width + (self.output[1] - width) % 8

    @property
    def table_bytes(self) -> int:
        """Bytes of ``struct WindowTable`` of the kernel."""
        return 0 if self.x_row == self.output[1] else 64 * self.pixel_slices

    @property
    def image_bytes(self) -> int:
        """Bytes of an image in shared memory: ``struct ConvolutionPart``."""
        height, width = self.output
        x = (self.height + 2 * self.of.padding[0]) * self.x_row * spaced(self.depth)
        z = (height * width + 1) * self.z_pixel
        y = self.pooled[0] * self.pooled[1] * self.units
        return 2 * (x + z + y) + padded(y)

    @property
    def pixel_slices(self) -> int:
        """Tiles of 16 pixels that it gives."""
        return -(-self.output[0] * self.output[1] // 16)

    @property
    def pieces_at_once(self) -> int:
        """Pieces of units of whose gradients a warp has a tile."""
        return next(count for count in (4, 3, 2, 1) if self.unit_pieces % count == 0)

    @property
    def gradient_tiles(self) -> int:
        """Tiles of gradients of weights and biases."""
        return (self.slices + 1) * (self.unit_pieces // self.pieces_at_once)

    @property
    def splits(self) -> int:
        """How many warps partition the pixels of such a tile."""
        return max(1, min(WARPS // self.gradient_tiles, -(-self.pixel_slices // 2)))

    def gradient_bytes(self, image_blocks: int) -> int:
        """Return the bytes of the sums of all blocks: ``struct GradientParts``."""
        sums = 4 * (16 * self.slices + 1) * self.units
        return padded(image_blocks * self.splits * sums)

    def products(self, images: int) -> float:
        """Return how many products a warp makes of some images, forward and back."""
        outputs = -(-images * self.pixel_slices * self.unit_pieces // WARPS) * self.slices
        slices = images * -(-self.pixel_slices // self.splits) * self.pieces_at_once
        of_weights = self.gradient_tiles * self.splits * slices / WARPS
        if self.is_first:
            return outputs + of_weights
        tiles = images * -(-self.height * self.width // 16) * self.pieces
        return outputs + of_weights + tiles * self.taps * padded(self.units) // 16 / WARPS


def shapes_of(
    image: tuple[int, ...], convolutions: Iterable[Convolution]
) -> list[ConvolutionShape]:
    """Return what each convolution takes and gives, of images of (height, width, channels)."""
    shapes = list[ConvolutionShape]()
    for convolution in convolutions:
        height, width, channels = image
        shapes.append(ConvolutionShape(height, width, channels, convolution, not shapes))
        image = shapes[-1].pooled
    return shapes


@dataclass(frozen=True)
class LinearShape:
    """Of a linear layer: ``struct Linear`` of the kernel."""

    inputs: int
    outputs: int

    @property
    def rows(self) -> int:
        """Inputs, for tensor cores."""
        return padded(self.inputs)

    @property
    def units(self) -> int:
        """Outputs, for tensor cores."""
        return padded(self.outputs)

    @property
    def weights(self) -> int:
        """Numbers of the rounded weights."""
        return self.rows * spaced(self.outputs) + 8

    @property
    def sums(self) -> int:
        """Of an image, parts of units from each split, or gradients of inputs."""
        return max(self.splits * self.units, self.rows)

    @property
    def splits(self) -> int:
        """Warps that partition the inputs of a tile of units."""
        tiles = self.units // 16
        return max(1, min(WARPS * self.tiles_at_once // tiles, self.rows // 16))

    @property
    def tiles_at_once(self) -> int:
        """Tiles of units of a warp."""
        return 2 - self.units // 16 % 2

    @property
    def products(self) -> int:
        """Products of a warp, forward and back."""
        row_tiles, unit_tiles = self.rows // 16, self.units // 16
        forward = -(-unit_tiles * self.splits // WARPS) * -(-row_tiles // self.splits)
        return forward + -(-row_tiles // WARPS) * unit_tiles

    @property
    def items(self) -> int:
        """Tiles of 16 by 16 parameters, each of which a warp updates."""
        return (self.rows // 16 + 1) * (self.units // 16)


def shapes_in(config: ImagesConfig) -> tuple[list[ConvolutionShape], list[LinearShape]]:
    """Return the layers that a kernel of these settings has."""
    convolutions = map(
        Convolution,
        zip(config.kernel_heights, config.kernel_widths, strict=True),
        zip(config.padding_heights, config.padding_widths, strict=True),
        config.channels,
        map(Activation, config.conv_activations, config.conv_slopes),
        config.pools,
    )
    layers = [LinearShape(*widths) for widths in pairwise(config.widths)]
    return shapes_of(config.image, convolutions), layers
