"""Convolutions in groups: depthwise ones as products of numbers for each tap, others by group."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.backends.base import Activation, Array, Pair, Pairs
from warpfit.backends.grouped import (
    backward_input_by_group,
    backward_weight_by_group,
    forward_by_group,
)
from warpfit.backends.numpy.norm import sum_rows
from warpfit.backends.numpy.windows import taps


def forward_in_groups(
    ops: Any,
    x: Array,
    w: Array,
    b: Array | None,
    num_windows: Pair,
    pairs: Pairs,
    groups: int,
    activation: Activation,
) -> tuple[Array, Array | None]:
    """Return what `conv2d_forward` does."""
    if not _is_depthwise(w.shape, groups):
        return forward_by_group(ops, x, w, b, pairs, groups, activation)
    z = ops.empty((len(x), *num_windows, x.shape[3]), x.dtype)
    z[...] = 0 if b is None else b
    for weights, (of_windows, of_pixels) in _taps(x.shape, w, num_windows, pairs):
        z[of_windows] += x[of_pixels] * weights
    y = ops.activation_forward(activation, z)
    return y, z if activation.needs_input else None


def backward_input_in_groups(
    ops: Any, dz: Array, w: Array, x_shape: tuple[int, ...], pairs: Pairs, groups: int
) -> Array:
    """Return dx of shape `x_shape`."""
    if not _is_depthwise(w.shape, groups):
        return backward_input_by_group(ops, dz, w, x_shape, pairs, groups)
    dx = ops.empty(x_shape, dz.dtype)
    dx.fill(0)
    for weights, (of_windows, of_pixels) in _taps(x_shape, w, dz.shape[1:3], pairs):
        dx[of_pixels] += dz[of_windows] * weights
    return dx


def backward_weight_in_groups(
    ops: Any,
    dz: Array,
    x: Array,
    w_shape: tuple[int, ...],
    pairs: Pairs,
    groups: int,
    needs_db: bool,
) -> tuple[Array, Array | None]:
    """Return dw of shape `w_shape`, and db."""
    if not _is_depthwise(w_shape, groups):
        kernel = (w_shape[0], w_shape[1])
        return backward_weight_by_group(ops, dz, x, kernel, pairs, groups, needs_db)
    dw = ops.empty(w_shape, x.dtype)
    for own, (of_windows, of_pixels) in _taps(x.shape, dw, dz.shape[1:3], pairs):
        own[...] = sum_rows(dz[of_windows] * x[of_pixels])
    return dw, sum_rows(dz) if needs_db else None


def _is_depthwise(w_shape: tuple[int, ...], groups: int) -> bool:
    """Whether groups have one channel and one output each."""
    return w_shape[2] == 1 and w_shape[3] == groups


def _taps(x_shape: tuple[int, ...], w: Array, num_windows: Pair, pairs: Pairs) -> Any:
    """Return for each tap its weights (C,), and the windows and pixels that meet there."""
    kernel = (w.shape[0], w.shape[1])
    rows = w.reshape(np.prod(kernel), w.shape[3])
    image = (x_shape[1], x_shape[2])
    return zip(rows, taps(image, num_windows, kernel, *pairs), strict=True)
