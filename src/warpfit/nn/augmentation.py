"""Augmentation of images (M, H, W, C): in training each image is flipped or shifted at random.

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

__all__ = ["RandomFlip", "RandomFlipSpec", "RandomShift", "RandomShiftSpec", "flipped", "shifted"]

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

    def windows(images: Array, *, opposite: bool) -> Array:
        m, height, width, channels = images.shape
        inside = tuple(
            slice(pad, pad + size) for pad, size in zip(pixels, (height, width), strict=True)
        )
        padded = (m, height + 2 * pixels[0], width + 2 * pixels[1], channels)
        images = ops.add_at(padded, images.dtype, (slice(None), *inside), images)
        for axis, size, made in moves:
            before = (slice(None),) * axis
            ahead = ops.take(images, (*before, slice(size, None)))
            behind = ops.take(images, (*before, slice(None, -size)))
            images = ops.where(made, *((behind, ahead) if opposite else (ahead, behind)))
        return images

    return windows(x, opposite=False), lambda dy: windows(dy, opposite=True)


def _draw(ops: Backend, shape: Shape, p: float, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, ...): 0 with probability p, by the counters of dropout's masks."""
    ones = ops.full(shape, 1.0, "float32")
    _, mask = ops.dropout_forward(ones, p=p, seed=call.seed, step=call.step, layer_idx=layer_idx)
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


def _moves(ops: Backend, uniform: Array, pixels: Pair) -> list[Move]:
    """Return moves whose sums are the whole parts of uniform (M, 2) times 2 · pixels + 1."""
    moves = []
    for axis, pad in zip(AXES, pixels, strict=True):
        own = ops.take(uniform, (slice(None), axis - 1, None, None, None))
        left, most = ops.binary("mul", own, float(2 * pad + 1)), 2 * pad
        while most:  # the whole part of what is left is at most that
            size = (most + 1) // 2
            made = ops.binary("ge", left, float(size))
            moves.append((axis, size, made))
            left = ops.where(made, ops.binary("sub", left, float(size)), left)
            most -= size
    return moves


@dataclass(frozen=True)
class _AugmentationSpec(LayerSpec):
    """y = x in evaluation. Subclasses say what becomes of an image in training, and have a
    `layer_idx`, which tells the random layers of a network apart.
    """

    layer: ClassVar[str]

    @property
    def changes(self) -> bool:
        """Whether any image may change in training."""
        raise NotImplementedError

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        """Return y in training, and the function from dy to dx."""
        raise NotImplementedError

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
        if not call.training or not self.changes:
            return x, lambda dy: (dy if needs_dx else None, {})
        y, backward = self.augmented(ops, x, call)
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
        return shifted(ops, x, self.pixels, _moves(ops, uniform, self.pixels))


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
