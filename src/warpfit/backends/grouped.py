"""Convolutions in groups by one convolution for each group: for wide groups, on any backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpfit.backends.activations import IDENTITY, Activation
from warpfit.backends.contract.terms import Array, Pair, Pairs


def _parts(ops: Any, array: Array, groups: int) -> Iterator[Array]:
    """Yield the part of an array's last axis that each group has."""
    size = array.shape[-1] // groups
    for group in range(groups):
        part = ops.take(array, (..., slice(group * size, (group + 1) * size)))
        own = ops.empty(part.shape, part.dtype)  # a buffer of the step, as graphs ask for
        ops.assign(own, part)
        yield own


def _named(pairs: Pairs) -> dict[str, Pair]:
    return dict(zip(("stride", "padding", "dilation"), pairs, strict=True))


def forward_by_group(
    ops: Any,
    x: Array,
    w: Array,
    b: Array | None,
    pairs: Pairs,
    groups: int,
    activation: Activation = IDENTITY,
) -> tuple[Array, Array | None]:
    """Return what `conv2d_forward` does."""
    biases = [None] * groups if b is None else _parts(ops, b, groups)
    found = [
        ops.conv2d_forward(*part, **_named(pairs), activation=activation)
        for part in zip(_parts(ops, x, groups), _parts(ops, w, groups), biases, strict=True)
    ]
    y, z = zip(*found, strict=True)
    joined = None if z[0] is None else ops.concatenate(z, axis=-1)
    return ops.concatenate(y, axis=-1), joined


def backward_input_by_group(
    ops: Any, dz: Array, w: Array, x_shape: tuple[int, ...], pairs: Pairs, groups: int
) -> Array:
    """Return dx."""
    shape = (*x_shape[:3], x_shape[3] // groups)
    parts = zip(_parts(ops, dz, groups), _parts(ops, w, groups), strict=True)
    found = [ops.conv2d_backward_input(*part, shape, **_named(pairs)) for part in parts]
    return ops.concatenate(found, axis=-1)


def backward_weight_by_group(
    ops: Any, dz: Array, x: Array, kernel: Pair, pairs: Pairs, groups: int, needs_db: bool
) -> tuple[Array, Array | None]:
    """Return dw and db."""
    parts = zip(_parts(ops, dz, groups), _parts(ops, x, groups), strict=True)
    found = [
        ops.conv2d_backward_weight(*part, kernel, **_named(pairs), needs_db=needs_db)
        for part in parts
    ]
    dw, db = zip(*found, strict=True)
    return ops.concatenate(dw, axis=-1), ops.concatenate(db, axis=-1) if needs_db else None
