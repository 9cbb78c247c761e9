"""What augmentation makes of images (M, H, W, C), and what is drawn for it.

All is made of operations that a graph captures: what is drawn stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

from warpfit.backends import Array, Backend
from warpfit.backends.base import ImageWindows, Number, Pair
from warpfit.nn.spec import Call, Shape

Formula = tuple[Array, Callable[[Array], Array]]

BITS = 16  # of where a window begins, along each axis
AXES = (1, 2)  # of height and width


def flipped(ops: Backend, x: Array, flips: Array) -> Formula:
    """Return images, mirrored where flips (M, 1, 1, 1) holds, and the function from dy to dx."""

    def flip(images: Array) -> Array:
        return ops.where(flips, _mirrored(ops, images), images)

    return flip(x), flip


def _mirrored(ops: Backend, images: Array) -> Array:
    return ops.take(images, (slice(None), slice(None), slice(None, None, -1)))


def flipped_in_turns(ops: Backend, x: Array, step: Number, span: int) -> Formula:
    """Return images, all mirrored in every second span of steps, and the function from dy to dx."""
    if isinstance(step, int | float):
        is_odd = step // span % 2 == 1
        return (_mirrored(ops, x), lambda dy: _mirrored(ops, dy)) if is_odd else (x, lambda dy: dy)
    # The sine is below 0 in the middle of each step of an odd span.
    phase = ops.binary("mul", ops.binary("add", step, 0.5), pi / span)
    is_odd = ops.binary("lt", ops.reshape(ops.unary("sin", phase), (1, 1, 1, 1)), 0.0)
    return flipped(ops, x, is_odd)


def windowed(ops: Backend, x: Array, bits: Array, windows: ImageWindows) -> Formula:
    """Return a window of each image, as ``take_windows`` has it, and the function from dy to dx."""
    y = ops.take_windows(x, bits, windows)
    return y, lambda dy: ops.take_windows_backward(dy, bits, tuple(x.shape), windows)


def cut_out(ops: Backend, x: Array, bits: Array, size: Pair) -> Formula:
    """Return images (M, H, W, C) with zeros in a window of `size`, and the function from dy to dx.

    The further down and to the right the window of a canvas begins, the further up and to the left
    lies what it shows there.
    """
    count, height, width = x.shape[:3]
    less = smaller_by((height, width), size)
    ones = ops.full((1, *size, 1), 1.0, x.dtype)
    canvas = placed(ops, ones, (1, height + less[0], width + less[1], 1), less)
    canvases = ops.broadcast_to(canvas, (count, *canvas.shape[1:]))
    covered = ops.binary("gt", ops.take_windows(canvases, bits, ImageWindows((height, width))), 0.0)
    return ops.where(covered, 0.0, x), lambda dy: ops.where(covered, 0.0, dy)


def smaller_by(size: Sequence[int], other: Pair) -> Pair:
    """Return how many pixels along each axis another size is less."""
    return size[0] - other[0], size[1] - other[1]


def placed(ops: Backend, images: Array, shape: Shape, start: Pair) -> Array:
    """Return zeros of a shape with images in them, from a pixel on."""
    inside = (slice(at, at + size) for at, size in zip(start, images.shape[1:3], strict=True))
    return ops.add_at(shape, images.dtype, (slice(None), *inside), images)


def random_bits(ops: Backend, num_rows: int, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, 2, 16) that are 0 or 2, each as likely, as ``take_windows`` takes them."""
    return drawn(ops, (num_rows, len(AXES), BITS), 0.5, call, layer_idx)


def drawn(ops: Backend, shape: Shape, p: float, call: Call, layer_idx: int) -> Array:
    """Return float32 (M, ...): 0 with probability p, by the counters of dropout's masks."""
    ones = ops.full(shape, 1.0, "float32")
    _, mask = ops.dropout_forward(ones, p=p, layer_idx=layer_idx, **call.place)
    return mask
