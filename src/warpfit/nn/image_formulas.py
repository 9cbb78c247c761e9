"""What augmentation makes of images (M, H, W, C), and what is drawn for it.

All is made of operations that a graph captures: what is drawn stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

from warpfit.backends import Array, Backend
from warpfit.backends.base import Number, Pair
from warpfit.nn.spec import Call, Shape

__all__ = [
    "AXES",
    "Formula",
    "cropped",
    "cut_out",
    "drawn",
    "flipped",
    "flipped_in_turns",
    "moves_of",
    "placed",
    "shifted",
    "smaller_by",
    "uniform_numbers",
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
        return ops.where(flips, _mirrored(ops, images), images)

    return flip(x), flip


def _mirrored(ops: Backend, images: Array) -> Array:
    return ops.take(images, (slice(None), slice(None), slice(None, None, -1)))


def flipped_in_turns(ops: Backend, x: Array, step: Number, span: int) -> Formula:
    """Return images (M, H, W, C), all mirrored left to right in every second span of steps, and the
    function from dy to dx.
    """
    if isinstance(step, int | float):
        is_odd = step // span % 2 == 1
        return (_mirrored(ops, x), lambda dy: _mirrored(ops, dy)) if is_odd else (x, lambda dy: dy)
    # The sine is below 0 in the middle of each step of an odd span.
    phase = ops.binary("mul", ops.binary("add", step, 0.5), pi / span)
    is_odd = ops.binary("lt", ops.reshape(ops.unary("sin", phase), (1, 1, 1, 1)), 0.0)
    return flipped(ops, x, is_odd)


def shifted(
    ops: Backend, x: Array, pixels: Pair, moves: Sequence[Move], *, reflects: bool = False
) -> Formula:
    """Return images (M, H, W, C) shifted, and the function from dy to dx.

    Each image is padded with `pixels` zeros on every side, or with its reflection. Of the windows
    of its own size it shows the one that begins where the sum of its moves says. What the gradient
    lies in is the window that begins at the sum of the moves not made.
    """
    if not reflects:
        y = _window(ops, padded(ops, x, pixels), moves)
        return y, lambda dy: _window(ops, padded(ops, dy, pixels), moves, opposite=True)

    def backward(dy: Array) -> Array:
        twice = 2 * pixels[0], 2 * pixels[1]
        of_padded = _window(ops, padded(ops, dy, twice), moves, opposite=True)
        return _folded(ops, of_padded, pixels)

    return _window(ops, _reflected(ops, x, pixels), moves), backward


def cut_out(ops: Backend, x: Array, size: Pair, moves: Sequence[Move]) -> Formula:
    """Return images (M, H, W, C) with zeros in a window of `size`, which begins where the sum of
    the moves not made says, and the function from dy to dx.
    """
    height, width = x.shape[1:3]
    less = smaller_by((height, width), size)
    ones = ops.full((1, *size, 1), 1.0, x.dtype)
    canvas = placed(ops, ones, (1, height + less[0], width + less[1], 1), less)
    covered = ops.binary("gt", _window(ops, canvas, moves), 0.0)
    return ops.where(covered, 0.0, x), lambda dy: ops.where(covered, 0.0, dy)


def cropped(ops: Backend, x: Array, size: Pair, moves: Sequence[Move]) -> Formula:
    """Return windows (M, *size, C) of images (M, H, W, C), each of which begins where the sum of
    its moves says, and the function from dy to dx.
    """
    less = smaller_by(x.shape[1:3], size)
    return _window(ops, x, moves), lambda dy: _window(
        ops, padded(ops, dy, less), moves, opposite=True
    )


def smaller_by(size: Sequence[int], other: Pair) -> Pair:
    return size[0] - other[0], size[1] - other[1]


def padded(ops: Backend, images: Array, pads: Pair) -> Array:
    """Return images with zeros on every side."""
    m, height, width, channels = images.shape
    padded = (m, height + 2 * pads[0], width + 2 * pads[1], channels)
    return placed(ops, images, padded, pads)


def _reflected(ops: Backend, images: Array, pads: Pair) -> Array:
    """Return images with their reflection on every side, pixels of the border not repeated."""
    for axis, pad in zip(AXES, pads, strict=True):
        if pad:
            before = (slice(None),) * axis
            top = ops.take(images, (*before, slice(pad, 0, -1)))
            bottom = ops.take(images, (*before, slice(-2, -pad - 2, -1)))
            images = ops.concatenate([top, images, bottom], axis)
    return images


def _folded(ops: Backend, images: Array, pads: Pair) -> Array:
    """Return the sums that images have for gradient, given that of what `_reflected` returns."""
    for axis, pad in zip(AXES, pads, strict=True):
        if pad:
            before, size = (slice(None),) * axis, images.shape[axis] - 2 * pad
            inner = ops.take(images, (*before, slice(pad, pad + size)))
            shape, dtype = inner.shape, inner.dtype
            top = ops.take(images, (*before, slice(pad - 1, None, -1)))
            bottom = ops.take(images, (*before, slice(-1, -pad - 1, -1)))
            for part, first in ((top, 1), (bottom, size - 1 - pad)):
                place = (*before, slice(first, first + pad))
                inner = ops.binary("add", inner, ops.add_at(shape, dtype, place, part))
            images = inner
    return images


def placed(ops: Backend, images: Array, shape: Shape, start: Pair) -> Array:
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


def drawn(ops: Backend, shape: Shape, p: float, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, ...): 0 with probability p, by the counters of dropout's masks."""
    ones = ops.full(shape, 1.0, "float32")
    _, mask = ops.dropout_forward(ones, p=p, seed=call.seed, step=call.step, layer_idx=layer_idx)
    return mask


def uniform_numbers(ops: Backend, num_rows: int, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, 2), uniform multiples of 2**-BITS in [0, 1), which no sum rounds."""
    number = drawn(ops, (num_rows, len(AXES), BITS), 0.5, call, layer_idx)
    half = BITS // 2
    while half:
        high, low = (ops.take(number, (..., part)) for part in (slice(half), slice(half, None)))
        number = ops.binary("add", high, ops.binary("mul", low, 2.0**-half))
        half //= 2
    # A bit is 2 where it is kept, and the first one stands for 1/2.
    return ops.binary("mul", ops.take(number, (..., 0)), 0.25)


def moves_of(ops: Backend, uniform: Array, largest: Pair) -> list[Move]:
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
