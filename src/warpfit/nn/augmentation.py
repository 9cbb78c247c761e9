"""Augmentation of images (M, H, W, C): in training each is flipped, shifted or cropped at random.

All is made of operations that a graph captures: what is drawn stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from warpfit.backends import Array, Backend
from warpfit.backends.base import Pair
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.random_layer import RandomLayer
from warpfit.nn.sizes import as_pair
from warpfit.nn.spec import Call, LayerSpec, Pullback, Shape

__all__ = [
    "RandomCrop",
    "RandomCropSpec",
    "RandomFlip",
    "RandomFlipSpec",
    "RandomShift",
    "RandomShiftSpec",
    "cropped",
    "flipped",
    "shifted",
]

Formula = tuple[Array, Callable[[Array], Array]]

BITS = 16  # of a uniform number; a power of two
AXES = (1, 2)  # of height and width

# For a step of some pixels along an axis: which images make it, bool (M, 1, 1, 1).
Move = tuple[int, int, Array]


def flipped(ops: Backend, x: Array, flips: Array) -> Formula:
    """Return images (M, H, W, C), those mirrored left to right where flips (M, 1, 1, 1) holds, and
    the function from dy to dx.
    """

    def flip(images: Array) -> Array:
        mirrored = ops.take(images, (slice(None), slice(None), slice(None, None, -1)))
        return ops.where(flips, mirrored, images)

    return flip(x), flip


def shifted(ops: Backend, x: Array, pixels: Pair, moves: Sequence[Move]) -> Formula:
    """Return images (M, H, W, C) shifted, zeros moving in, and the function from dy to dx.

    Each image is padded with `pixels` zeros on every side. Of the windows of its own size it shows
    the one that begins where the sum of its moves says. What the gradient lies in is the window
    that begins at the sum of the moves not made.
    """
    y = _window(ops, _padded(ops, x, pixels), moves)
    return y, lambda dy: _window(ops, _padded(ops, dy, pixels), moves, opposite=True)


def cropped(ops: Backend, x: Array, size: Pair, moves: Sequence[Move]) -> Formula:
    """Return windows (M, *size, C) of images (M, H, W, C), each of which begins where the sum of
    its moves says, and the function from dy to dx.
    """
    less = _less(x.shape[1:3], size)
    return _window(ops, x, moves), lambda dy: _window(
        ops, _padded(ops, dy, less), moves, opposite=True
    )


def _less(size: Sequence[int], other: Pair) -> Pair:
    return size[0] - other[0], size[1] - other[1]


def _padded(ops: Backend, images: Array, pads: Pair) -> Array:
    """Return images with zeros on every side."""
    m, height, width, channels = images.shape
    padded = (m, height + 2 * pads[0], width + 2 * pads[1], channels)
    return _placed(ops, images, padded, pads)


def _placed(ops: Backend, images: Array, shape: Shape, start: Pair) -> Array:
    """Return zeros of a shape with images in them, from a pixel on."""
    inside = (slice(at, at + size) for at, size in zip(start, images.shape[1:3], strict=True))
    return ops.add_at(shape, images.dtype, (slice(None), *inside), images)


def _window(ops: Backend, images: Array, moves: Sequence[Move], *, opposite: bool = False) -> Array:
    """Return of each image the window that begins at the sum of the moves made, or `opposite` those
    not made; along an axis it is as much smaller as all moves are large.
    """
    for axis, size, made in moves:
        before = (slice(None),) * axis
        ahead = ops.take(images, (*before, slice(size, None)))
        behind = ops.take(images, (*before, slice(None, -size)))
        images = ops.where(made, *((behind, ahead) if opposite else (ahead, behind)))
    return images


def _draw(ops: Backend, shape: Shape, p: float, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, ...): 0 with probability p, by the counters of dropout's masks."""
    ones = ops.full(shape, 1.0, "float32")
    _, mask = ops.dropout_forward(ones, p=p, layer_idx=layer_idx, **call.place)
    return mask


def _uniform(ops: Backend, num_rows: int, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, 2), uniform multiples of 2**-BITS in [0, 1), which no sum rounds."""
    number = _draw(ops, (num_rows, len(AXES), BITS), 0.5, call, layer_idx)
    half = BITS // 2
    while half:
        high, low = (ops.take(number, (..., part)) for part in (slice(half), slice(half, None)))
        number = ops.binary("add", high, ops.binary("mul", low, 2.0**-half))
        half //= 2
    # A bit is 2 where it is kept, and the first one stands for 1/2.
    return ops.binary("mul", ops.take(number, (..., 0)), 0.25)


def _moves(ops: Backend, uniform: Array, largest: Pair) -> list[Move]:
    """Return moves whose sums are the whole parts of uniform (M, 2) times largest + 1."""
    moves = []
    for axis, most in zip(AXES, largest, strict=True):
        own = ops.take(uniform, (slice(None), axis - 1, None, None, None))
        left = ops.binary("mul", own, float(most + 1))
        while most:  # the whole part of what is left is at most that
            size = (most + 1) // 2
            made = ops.binary("ge", left, float(size))
            moves.append((axis, size, made))
            left = ops.where(made, ops.binary("sub", left, float(size)), left)
            most -= size
    return moves


@dataclass(frozen=True)
class _AugmentationSpec(LayerSpec):
    """Subclasses say what becomes of an image in training, and in evaluation if that is not y = x.
    They have a `layer_idx`, which tells the random layers of a network apart.
    """

    layer: ClassVar[str]

    @property
    def changes(self) -> bool:
        """Whether any image may change in training."""
        raise NotImplementedError

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        """Return y in training, and the function from dy to dx."""
        raise NotImplementedError

    def still(self, ops: Backend, x: Array) -> Formula:
        """Return y in evaluation, and the function from dy to dx."""
        return x, lambda dy: dy

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 3:
            raise ShapeError(
                f"{self.layer}: expected samples of shape (H, W, C), got {input_shape}"
            )
        return input_shape

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])
        still = not call.training or not self.changes
        y, backward = self.still(ops, x) if still else self.augmented(ops, x, call)
        return y, lambda dy: (backward(dy) if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return x


@dataclass(frozen=True)
class RandomFlipSpec(_AugmentationSpec):
    """Each image is mirrored left to right with probability p."""

    kind: ClassVar[str] = "random_flip"
    layer: ClassVar[str] = "RandomFlip"
    p: float = 0.5
    layer_idx: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p < 1:
            raise ConfigError(f"{self.layer}: expected p in [0, 1), got {self.p!r}")

    @property
    def changes(self) -> bool:
        return self.p > 0

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        mask = _draw(ops, (len(x), 1, 1, 1), self.p, call, self.layer_idx)
        return flipped(ops, x, ops.binary("eq", mask, 0.0))


@dataclass(frozen=True)
class RandomShiftSpec(_AugmentationSpec):
    """Each image is shifted by up to `pixels` (vertically, horizontally)."""

    kind: ClassVar[str] = "random_shift"
    layer: ClassVar[str] = "RandomShift"
    pixels: Pair
    layer_idx: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", as_pair(self.layer, "pixels", self.pixels, 0))
        super().__post_init__()

    @property
    def changes(self) -> bool:
        return any(self.pixels)

    def output_shape(self, input_shape: Shape) -> Shape:
        super().output_shape(input_shape)
        if any(pad and pad >= size for pad, size in zip(self.pixels, input_shape[:2], strict=True)):
            raise ShapeError(
                f"{self.layer}: expected images of more than {self.pixels} pixels, got samples of "
                f"shape {input_shape}"
            )
        return input_shape

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        uniform = _uniform(ops, len(x), call, self.layer_idx)
        largest = 2 * self.pixels[0], 2 * self.pixels[1]
        return shifted(ops, x, self.pixels, _moves(ops, uniform, largest))


@dataclass(frozen=True)
class RandomCropSpec(_AugmentationSpec):
    """Of each image a window of `size` (vertically, horizontally), in evaluation the middle one."""

    kind: ClassVar[str] = "random_crop"
    layer: ClassVar[str] = "RandomCrop"
    size: Pair
    layer_idx: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_pair(self.layer, "size", self.size, 1))
        super().__post_init__()

    @property
    def changes(self) -> bool:
        return True

    def output_shape(self, input_shape: Shape) -> Shape:
        super().output_shape(input_shape)
        if min(_less(input_shape[:2], self.size)) < 0:
            raise ShapeError(
                f"{self.layer}: expected images of at least {self.size} pixels, got samples of "
                f"shape {input_shape}"
            )
        return (*self.size, input_shape[2])

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        uniform = _uniform(ops, len(x), call, self.layer_idx)
        return cropped(ops, x, self.size, _moves(ops, uniform, _less(x.shape[1:3], self.size)))

    def still(self, ops: Backend, x: Array) -> Formula:
        start = self._middle(x.shape[1:3])
        inside = (slice(at, at + size) for at, size in zip(start, self.size, strict=True))
        y = ops.take(x, (slice(None), *inside))
        return y, lambda dy: _placed(ops, dy, tuple(x.shape), start)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        start = self._middle(input_shape)
        ends = [at + size for at, size in zip(start, self.size, strict=True)]
        return graph.add("Slice", x, *map(graph.constant, (start, ends, AXES)))

    def _middle(self, image: Sequence[int]) -> Pair:
        less = _less(image, self.size)
        return less[0] // 2, less[1] // 2


class RandomFlip(RandomLayer):
    """In training each image (H, W, C) is mirrored left to right with probability p; y = x in
    evaluation.

    It stands before the layers that learn. What is drawn follows from seed and step as dropout's
    masks do, so it is the same on every device, and a run that is resumed goes on with it. The
    engines `graph` and `layerwise` run it.

    Parameters
    ----------
    p : float
        Probability of a flip, in [0, 1).
    seed : int, optional
        Fixes the flips outside of `fit`; drawn from `warpfit.manual_seed`'s sequence if None.

    Raises
    ------
    ConfigError
        If an argument is not what is described here.
    ShapeError
        When it is called, or before training starts, if samples are no images (H, W, C).

    Examples
    --------
    >>> images = np.arange(24.0).reshape(4, 2, 3, 1)
    >>> flip = nn.RandomFlip(seed=1)
    >>> [bool((y == x[:, ::-1]).all()) for x, y in zip(images, flip(images))]
    [False, True, False, True]
    >>> bool((flip.eval()(images) == images).all())
    True
    """

    spec_type = RandomFlipSpec

    def __init__(self, p: float = 0.5, *, seed: int | None = None) -> None:
        super().__init__(RandomFlipSpec(p), seed)

    def extra_repr(self) -> str:
        return f"p={self.spec.p}"


class RandomShift(RandomLayer):
    """In training each image (H, W, C) is shifted by -pixels to pixels along each axis, zeros
    moving in; y = x in evaluation.

    That is a random crop after padding: of an image with `pixels` zeros on every side a window of
    its own size, ``RandomCrop(size, padding=pixels)`` elsewhere. Along each axis all shifts are
    equally likely, to within 2⁻¹⁶. Seeds, steps and engines: see `RandomFlip`.

    Parameters
    ----------
    pixels : int or (int, int)
        The most that an image is shifted by; of two numbers vertically and horizontally. Less than
        its height and width.
    seed : int, optional
        Fixes the shifts outside of `fit`; drawn from `warpfit.manual_seed`'s sequence if None.

    Raises
    ------
    ConfigError
        If an argument is not what is described here.
    ShapeError
        When it is called, or before training starts, if samples are no images (H, W, C), or too
        small.

    Examples
    --------
    >>> shift = nn.RandomShift(1, seed=2)
    >>> np.squeeze(shift(np.arange(1.0, 10).reshape(1, 3, 3, 1))).tolist()
    [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 4.0, 5.0]]
    >>> layers = [nn.RandomFlip(), nn.RandomShift(4), nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten()]
    >>> nn.Sequential(layers)(np.zeros((8, 32, 32, 3), "float32")).shape
    (8, 28800)
    """

    spec_type = RandomShiftSpec

    def __init__(self, pixels: int | Pair, *, seed: int | None = None) -> None:
        super().__init__(RandomShiftSpec(pixels), seed)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"pixels={self.spec.pixels}"


class RandomCrop(RandomLayer):
    """In training a random window of each image (H, W, C), in evaluation the middle one.

    All windows are equally likely, to within 2⁻¹⁶. A window of an image padded with zeros is
    `RandomShift`. Seeds, steps and engines: see `RandomFlip`.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the window, at most the image's.
    seed : int, optional
        Fixes the windows outside of `fit`; drawn from `warpfit.manual_seed`'s sequence if None.

    Raises
    ------
    ConfigError
        If an argument is not what is described here.
    ShapeError
        When it is called, or before training starts, if samples are no images (H, W, C), or too
        small.

    Examples
    --------
    >>> crop = nn.RandomCrop(2, seed=1)
    >>> image = np.arange(1.0, 10).reshape(1, 3, 3, 1)
    >>> np.squeeze(crop(image)).tolist()
    [[5.0, 6.0], [8.0, 9.0]]
    >>> np.squeeze(crop.eval()(image)).tolist()
    [[1.0, 2.0], [4.0, 5.0]]
    """

    spec_type = RandomCropSpec

    def __init__(self, size: int | Pair, *, seed: int | None = None) -> None:
        super().__init__(RandomCropSpec(size), seed)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"size={self.spec.size}"
