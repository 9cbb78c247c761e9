"""Augmentation of images (M, H, W, C) in training: they are flipped, shifted, cropped, covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from warpfit.backends import Array, Backend
from warpfit.backends.base import ImageWindows, Pair
from warpfit.checks import check_choice, ranged
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.image_formulas import (
    AXES,
    Formula,
    cut_out,
    drawn,
    flipped,
    flipped_in_turns,
    placed,
    random_bits,
    smaller_by,
    windowed,
)
from warpfit.nn.layer import RandomLayer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_pair
from warpfit.nn.spec import Arrays, Call, LayerSpec, Pullback, Shape

PADDING_MODES = ("zeros", "reflect")


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
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])
        still = not call.training or not self.changes
        y, backward = self.still(ops, x) if still else self.augmented(ops, x, call)
        return y, lambda dy: (backward(dy) if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return x


@dataclass(frozen=True)
class RandomFlipSpec(_AugmentationSpec):
    """Images are mirrored left to right with probability p, or all in every second span."""

    kind: ClassVar[str] = "random_flip"
    layer: ClassVar[str] = "RandomFlip"
    p: float = ranged("in [0, 1)", 0.5)
    layer_idx: int = 0
    alternate: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alternate is not None and self.alternate < 1:
            raise ConfigError(
                f"{self.layer}: expected alternate of at least one step or None, got "
                f"{self.alternate}"
            )

    @property
    def changes(self) -> bool:
        return self.p > 0 or self.alternate is not None

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        if self.alternate is not None:
            return flipped_in_turns(ops, x, call.step, self.alternate)
        mask = drawn(ops, (len(x), 1, 1, 1), self.p, call, self.layer_idx)
        return flipped(ops, x, ops.binary("eq", mask, 0.0))


@dataclass(frozen=True)
class RandomShiftSpec(_AugmentationSpec):
    """Each image is shifted by up to `pixels` (vertically, horizontally)."""

    kind: ClassVar[str] = "random_shift"
    layer: ClassVar[str] = "RandomShift"
    pixels: Pair
    layer_idx: int = 0
    padding_mode: str = "zeros"

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", as_pair(self.layer, "pixels", self.pixels, 0))
        super().__post_init__()
        check_choice(f"{self.layer}: padding_mode", self.padding_mode, PADDING_MODES)

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
        bits = random_bits(ops, len(x), call, self.layer_idx)
        image, reflects = (x.shape[1], x.shape[2]), self.padding_mode == "reflect"
        return windowed(ops, x, bits, ImageWindows(image, self.pixels, reflects))


@dataclass(frozen=True)
class _WindowSpec(_AugmentationSpec):
    """Something becomes of a window of `size` (vertically, horizontally) of each image."""

    least: ClassVar[int]
    size: Pair
    layer_idx: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_pair(self.layer, "size", self.size, self.least))
        super().__post_init__()

    def output_shape(self, input_shape: Shape) -> Shape:
        super().output_shape(input_shape)
        if min(smaller_by(input_shape[:2], self.size)) < 0:
            raise ShapeError(
                f"{self.layer}: expected images of at least {self.size} pixels, got samples of "
                f"shape {input_shape}"
            )
        return input_shape


@dataclass(frozen=True)
class RandomCropSpec(_WindowSpec):
    """Of each image a window, in evaluation the middle one."""

    kind: ClassVar[str] = "random_crop"
    layer: ClassVar[str] = "RandomCrop"
    least: ClassVar[int] = 1

    @property
    def changes(self) -> bool:
        return True

    def output_shape(self, input_shape: Shape) -> Shape:
        super().output_shape(input_shape)
        return (*self.size, input_shape[2])

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        bits = random_bits(ops, len(x), call, self.layer_idx)
        return windowed(ops, x, bits, ImageWindows(self.size))

    def still(self, ops: Backend, x: Array) -> Formula:
        start = self._middle(x.shape[1:3])
        inside = (slice(at, at + size) for at, size in zip(start, self.size, strict=True))
        y = ops.take(x, (slice(None), *inside))
        return y, lambda dy: placed(ops, dy, tuple(x.shape), start)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        start = self._middle(input_shape)
        ends = [at + size for at, size in zip(start, self.size, strict=True)]
        return graph.add("Slice", x, *map(graph.constant, (start, ends, AXES)))

    def _middle(self, image: Sequence[int]) -> Pair:
        less = smaller_by(image, self.size)
        return less[0] // 2, less[1] // 2


@dataclass(frozen=True)
class RandomCutoutSpec(_WindowSpec):
    """Of each image a window becomes 0."""

    kind: ClassVar[str] = "random_cutout"
    layer: ClassVar[str] = "RandomCutout"
    least: ClassVar[int] = 0

    @property
    def changes(self) -> bool:
        return all(self.size)

    def augmented(self, ops: Backend, x: Array, call: Call) -> Formula:
        return cut_out(ops, x, random_bits(ops, len(x), call, self.layer_idx), self.size)


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
    alternate : int, optional
        How many steps an epoch has. Nothing is drawn then: all images are mirrored in every second
        epoch. Of data half of which was mirrored once before, a network sees each image as often
        one way as the other.
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

    def __init__(
        self, p: float = 0.5, *, alternate: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(RandomFlipSpec(p, alternate=alternate), seed)

    def extra_repr(self) -> str:
        spec = self.spec
        return f"p={spec.p}" if spec.alternate is None else f"alternate={spec.alternate}"


class RandomShift(RandomLayer):
    """In training each image (H, W, C) is shifted by -pixels to pixels along each axis; y = x in
    evaluation.

    That is a random crop after padding: of an image with `pixels` zeros on every side, or its
    reflection, a window of its own size, ``RandomCrop(size, padding=pixels)`` elsewhere. Along each
    axis all shifts are equally likely, to within 2⁻¹⁶. Seeds, steps and engines: see `RandomFlip`.

    Parameters
    ----------
    pixels : int or (int, int)
        The most that an image is shifted by; of two numbers vertically and horizontally. Less than
        its height and width.
    padding_mode : str
        What moves in: ``'zeros'``, or by ``'reflect'`` the image mirrored at its border.
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

    def __init__(
        self, pixels: int | Pair, *, padding_mode: str = "zeros", seed: int | None = None
    ) -> None:
        spec = RandomShiftSpec(pixels, padding_mode=padding_mode)  # type: ignore[arg-type]
        super().__init__(spec, seed)

    def extra_repr(self) -> str:
        spec = self.spec
        mode = "" if spec.padding_mode == "zeros" else f", padding_mode={spec.padding_mode!r}"
        return f"pixels={spec.pixels}{mode}"


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


class RandomCutout(RandomLayer):
    """In training a random window of each image (H, W, C) becomes 0; y = x in evaluation.

    The window lies within the image. All places are equally likely, to within 2⁻¹⁶. Seeds, steps
    and engines: see `RandomFlip`.

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

    References
    ----------
    DeVries, Taylor: Improved Regularization of Convolutional Neural Networks with Cutout (2017),
    whose windows may reach beyond the image.

    Examples
    --------
    >>> cutout = nn.RandomCutout(2, seed=1)
    >>> np.squeeze(cutout(np.arange(1.0, 10).reshape(1, 3, 3, 1))).tolist()
    [[0.0, 0.0, 3.0], [0.0, 0.0, 6.0], [7.0, 8.0, 9.0]]
    """

    spec_type = RandomCutoutSpec

    def __init__(self, size: int | Pair, *, seed: int | None = None) -> None:
        super().__init__(RandomCutoutSpec(size), seed)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"size={self.spec.size}"
