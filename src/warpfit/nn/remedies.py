"""What mends the frequent slips of shapes."""

from __future__ import annotations

from math import prod

from warpfit.errors import ShapeError
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import LayerSpec, Shape


def _takes(spec: LayerSpec, shape: Shape) -> bool:
    try:
        spec.output_shape(shape)
    except ShapeError:
        return False
    return True


def remedy(spec: LayerSpec, shape: Shape, *, is_row: bool) -> str:
    """Return what makes of samples of a shape those that a layer takes, for the end of a message.

    That is so of the slips that are frequent, and only there; `is_row` says that they are x's.
    """
    if is_row and _takes(spec, (*shape, 1)):
        return "; x[..., None] has one more axis"
    if is_row and len(shape) == 3 and _takes(spec, (*shape[1:], shape[0])):
        return "; channels come last: x.transpose(0, 2, 3, 1), or permute of PyTorch's"
    flat = (prod(shape),)
    if len(shape) > 1 and (_takes(spec, flat) or isinstance(spec, LinearSpec)):
        return f"; nn.Flatten() before it gives {flat}"
    return ""
