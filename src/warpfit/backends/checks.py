"""Checks of shapes and dtypes that every backend makes before it computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from warpfit.backends.base import (
    ELEMENT_LOSSES,
    FLOAT_DTYPES,
    HALF_DTYPES,
    Activation,
    Array,
    ImageWindows,
    LossTerms,
    Pair,
)
from warpfit.backends.matrix_updates import MatrixNumbers
from warpfit.checks import check_choice, check_count
from warpfit.errors import ConfigError, DTypeError, ShapeError

# Among dtypes one is found several times as quickly as among their names.
_FLOATS = frozenset(map(np.dtype, FLOAT_DTYPES))


def check_float(op: str, *arrays: Array | None) -> None:
    """Raise DTypeError unless all arrays (None is skipped) have one and the same float dtype."""
    first = None
    for array in arrays:
        if array is None:
            continue
        if first is None:
            first = array.dtype
        elif array.dtype is not first and array.dtype != first:
            dtypes = sorted({str(each.dtype) for each in arrays if each is not None})
            raise DTypeError(f"{op}: expected operands of one dtype, got {', '.join(dtypes)}")
    if first is not None and first not in _FLOATS:
        # Device arrays may be in half precision too.
        known = next(
            getattr(array, "float_dtypes", FLOAT_DTYPES) for array in arrays if array is not None
        )
        if first not in known:
            raise DTypeError(f"{op}: expected {' or '.join(known)}, got {first}")


def check_parameters(op: str, x: Array, *parameters: Array | None) -> None:
    """Raise DTypeError unless parameters have x's dtype, or float32 if x is in half precision."""
    dtypes = {str(array.dtype) for array in parameters if array is not None}
    is_mixed = str(x.dtype) in HALF_DTYPES and dtypes == {"float32"}
    check_float(op, *((x,) if is_mixed else (x, *parameters)))


def check_same_shape(op: str, a: Array, b: Array) -> None:
    """Raise ShapeError unless a and b have the same shape."""
    if a.shape != b.shape:
        raise ShapeError(f"{op}: expected operands of the same shape, got {a.shape} and {b.shape}")


def check_update(op: str, *groups: Sequence[Array], same_dtype: bool = True) -> None:
    """Raise unless groups have arrays of the first's shapes, of float dtypes, or of one."""
    if len({len(arrays) for arrays in groups}) > 1:
        raise ShapeError(
            f"{op}: expected as many arrays in each list, got {[len(arrays) for arrays in groups]}"
        )
    for arrays in zip(*groups, strict=True):
        if same_dtype:
            check_float(op, *arrays)
        else:
            for array in arrays:
                check_float(op, array)
        for array in arrays[1:]:
            check_same_shape(op, arrays[0], array)


def check_matrix_update(
    op: str, factors: Sequence[float], numbers: MatrixNumbers, *groups: Sequence[Array]
) -> None:
    """Raise unless `check_update` does not, there is a factor for each parameter, each has at least
    two axes, and a step is done.
    """
    check_update(op, *groups)
    if len(factors) != len(groups[0]):
        raise ShapeError(
            f"{op}: expected as many factors as parameters, got {len(factors)} and {len(groups[0])}"
        )
    for array in groups[0]:
        if array.ndim < 2:
            raise ShapeError(f"{op}: expected arrays of at least two axes, got {array.shape}")
    if numbers.steps < 1:
        raise ConfigError(f"{op}: expected at least one step, got {numbers.steps}")


def check_activation_backward(
    op: str, activation: Activation, dy: Array, y: Array, z: Array | None
) -> None:
    """Raise unless dy, y, and z if the derivative needs it, have one shape and one float dtype."""
    check_float(op, dy, y, z)
    check_same_shape(op, dy, y)
    if activation.needs_input:
        if z is None:
            raise ConfigError(f"{op}: expected z for {activation.name}, got None")
        check_same_shape(op, z, y)


def check_matrix(op: str, x: Array) -> None:
    """Raise unless x is a matrix (M, N) of a float dtype."""
    check_float(op, x)
    if x.ndim != 2:
        raise ShapeError(f"{op}: expected a matrix (M, N), got shape {x.shape}")


def check_prediction(
    op: str, prediction: Array, target: Array, sample_weight: Array | None
) -> None:
    """Raise unless prediction and target are (M, ...), sample_weight (M,), of one float dtype."""
    check_float(op, prediction, target, sample_weight)
    check_same_shape(op, prediction, target)
    if prediction.ndim == 0:
        raise ShapeError(f"{op}: expected a batch of rows, got shape ()")
    check_shape(op, "sample_weight", sample_weight, prediction.shape[:1])


def check_element_loss(
    op: str, prediction: Array, target: Array, terms: LossTerms, sample_weight: Array | None
) -> None:
    """Raise unless terms are those of a loss of numbers, or as `check_prediction`."""
    check_choice(f"{op}: a loss", terms.name, ELEMENT_LOSSES)
    check_prediction(op, prediction, target, sample_weight)


def check_labels(op: str, logits: Array, labels: Array) -> None:
    """Raise unless logits are (M, C), and labels (M,) of an integer dtype."""
    if logits.ndim != 2:
        raise ShapeError(f"{op}: expected logits of shape (M, C), got {logits.shape}")
    check_shape(op, "labels", labels, logits.shape[:1])
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"{op}: expected integer labels, got {labels.dtype}")


def check_cross_entropy(
    op: str, logits: Array, labels: Array, class_weight: Array | None, sample_weight: Array | None
) -> None:
    """Raise as `check_labels`, or unless class_weight is (C,), sample_weight (M,), as floats."""
    check_float(op, logits, class_weight, sample_weight)
    check_labels(op, logits, labels)
    check_shape(op, "class_weight", class_weight, logits.shape[1:])
    check_shape(op, "sample_weight", sample_weight, logits.shape[:1])


def check_matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> None:
    """Raise unless op(a) @ op(b) is a product of two matrices of one float dtype."""
    check_float("matmul", a, b)
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError(f"matmul: expected two matrices, got shapes {a.shape} and {b.shape}")
    inner_a, inner_b = a.shape[0 if transpose_a else 1], b.shape[1 if transpose_b else 0]
    if inner_a != inner_b:
        raise ShapeError(
            f"matmul: expected equal inner sizes, got {inner_a} and {inner_b} (shapes "
            f"{a.shape}{' transposed' * transpose_a} and {b.shape}{' transposed' * transpose_b})"
        )


def check_linear(x: Array, w: Array, b: Array | None) -> None:
    """Raise ShapeError or DTypeError unless x @ w + b is defined: x (M, K), w (K, N), b (N,)."""
    check_float("linear", x, w, b)
    if w.ndim != 2:
        raise ShapeError(f"linear: expected w of shape (K, N), got {w.shape}")
    if x.ndim != 2 or x.shape[1] != w.shape[0]:
        raise ShapeError(
            f"linear: expected x of shape (M, {w.shape[0]}) for w {w.shape}, got x {x.shape}"
        )
    if b is not None and b.shape != (w.shape[1],):
        raise ShapeError(
            f"linear: expected b of shape ({w.shape[1]},) for w {w.shape}, got {b.shape}"
        )


def check_joint(
    op: str, x: Array | None, x_shape: tuple[int, ...], x_activation: Activation
) -> None:
    """Raise ConfigError if f needs its input, ShapeError unless x, if given, has that shape."""
    if x_activation.needs_input:
        raise ConfigError(
            f"{op}: expected an activation known from its result, got {x_activation.name!r}"
        )
    check_shape(op, "x", x, x_shape)


def check_linear_backward(dz: Array, x: Array, w: Array, x_activation: Activation) -> None:
    """Raise unless dz is (M, N), x (M, K) and w (K, N), and f does without its input."""
    check_joint("linear_backward", x, x.shape, x_activation)
    check_matmul(x, dz, True, False)
    check_float("linear_backward", dz, w)
    check_shape("linear_backward", "w", w, (x.shape[1], dz.shape[1]))


def check_shape(op: str, what: str, array: Array | None, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless `array` (None is skipped) has exactly this shape."""
    if array is not None and array.shape != shape:
        raise ShapeError(f"{op}: expected {what} of shape {shape}, got {array.shape}")


def check_known(op: str, name: str, known: Iterable[str]) -> None:
    """Raise ConfigError unless `name` is among the known ones."""
    if name not in known:
        raise ConfigError(f"{op}: expected one of {', '.join(known)}, got {name!r}")


def check_broadcast(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the shapes broadcast to, or raise ShapeError."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        listed = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(f"{op}: expected shapes that broadcast, got {listed}") from error


def check_axis(op: str, axis: int, ndim: int) -> int:
    """Return an axis counted from the first, or raise ShapeError, in NumPy's words."""
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{op}: axis {axis} is out of bounds for an array of {ndim} axes")
    return axis % ndim


def check_pair(op: str, what: str, pair: Pair, least: int) -> None:
    """Raise ConfigError unless `pair` is a tuple of two integers of at least `least`."""
    # Written out, as pooling checks three pairs at every call.
    is_pair = isinstance(pair, tuple) and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int
    if not is_pair or pair[0] < least or pair[1] < least:
        raise ConfigError(
            f"{op}: expected {what} to be two integers of at least {least}, got {pair!r}"
        )


def window_counts(
    op: str, image: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)
) -> Pair:
    """Return how many windows fit an image, (OH, OW): ⌊(size + 2·padding - dilation·(kernel - 1) -
    1) / stride⌋ + 1.

    Raises
    ------
    ConfigError
        If a setting is no pair of integers, or too small.
    ShapeError
        If not one window fits.
    """
    check_pair(op, "kernel", kernel, 1)
    check_pair(op, "stride", stride, 1)
    check_pair(op, "padding", padding, 0)
    check_pair(op, "dilation", dilation, 1)
    padded = image[0] + 2 * padding[0], image[1] + 2 * padding[1]
    extent = dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1
    if padded[0] < extent[0] or padded[1] < extent[1]:
        raise ShapeError(
            f"{op}: expected images of at least {extent[0]}x{extent[1]} with padding for kernel "
            f"{kernel} and dilation {dilation}, got {image[0]}x{image[1]} and padding {padding}"
        )
    return (padded[0] - extent[0]) // stride[0] + 1, (padded[1] - extent[1]) // stride[1] + 1


def check_conv2d(
    op: str,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
) -> Pair:
    """Return (OH, OW) for x (M, H, W, groups C), w (KH, KW, C, O), or raise as `window_counts`."""
    if len(w_shape) != 4:
        raise ShapeError(f"{op}: expected w of shape (KH, KW, C, O), got {w_shape}")
    check_groups(op, groups)
    channels = w_shape[2] * groups
    if len(x_shape) != 4 or x_shape[3] != channels:
        of_w = f"{w_shape}" if groups == 1 else f"{w_shape} in {groups} groups"
        raise ShapeError(
            f"{op}: expected x of shape (M, H, W, {channels}) for w {of_w}, got {x_shape}"
        )
    if w_shape[3] % groups:
        raise ShapeError(f"{op}: expected w of outputs in {groups} equal groups, got {w_shape}")
    return window_counts(op, x_shape[1:3], w_shape[:2], stride, padding, dilation)


def check_groups(op: str, groups: int) -> None:
    """Raise ConfigError unless there can be so many groups."""
    check_count(f"groups of {op}", groups, 1)


def check_images(op: str, what: str, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless the shape is one of images, (M, H, W, C)."""
    if len(shape) != 4:
        raise ShapeError(f"{op}: expected {what} of shape (M, H, W, C), got {shape}")


def check_pool2d(
    op: str, x_shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> Pair:
    """Return the output's (OH, OW) for x (M, H, W, C), or raise as `window_counts`."""
    check_images(op, "x", x_shape)
    num_windows = window_counts(op, (x_shape[1], x_shape[2]), kernel, stride, padding)
    if 2 * padding[0] > kernel[0] or 2 * padding[1] > kernel[1]:
        raise ConfigError(
            f"{op}: expected padding of at most half the kernel {kernel}, got {padding}"
        )
    return num_windows


def check_pool2d_backward(
    op: str,
    dy: Array,
    x_shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    indices: Array | None = None,
) -> Pair:
    """Return (OH, OW) for dy (M, OH, OW, C) and unsigned indices of its shape, or raise."""
    check_float(op, dy)
    num_windows = check_pool2d(op, x_shape, kernel, stride, padding)
    check_shape(op, "dy", dy, (x_shape[0], *num_windows, x_shape[3]))
    check_shape(op, "indices", indices, dy.shape)
    if indices is not None and indices.dtype.kind != "u":
        raise DTypeError(f"{op}: expected unsigned indices, got {indices.dtype}")
    return num_windows


def check_batch_norm(op: str, x: Array, training: bool, **per_channel: Array | None) -> None:
    """Raise ShapeError unless x is (..., C), all else (C,), and training has a variance to take."""
    if x.ndim < 2:
        raise ShapeError(f"{op}: expected x of shape (M, C) or (M, H, W, C), got {x.shape}")
    for what, array in per_channel.items():
        check_shape(op, what, array, x.shape[-1:])
    num_values = prod(x.shape[:-1])
    if training and num_values < 2:
        raise ShapeError(
            f"{op}: expected at least 2 values a channel in training, got {num_values} (x "
            f"{x.shape})"
        )


def check_layer_norm(
    op: str, x: Array, weight: Array | None, bias: Array | None, num_axes: int
) -> None:
    """Raise ShapeError unless x has `num_axes` axes or more, and weight and bias their shape."""
    if not 1 <= num_axes <= x.ndim:
        raise ShapeError(
            f"{op}: expected num_axes from 1 to {x.ndim} for x {x.shape}, got {num_axes}"
        )
    shape = x.shape[x.ndim - num_axes :]
    check_shape(op, "weight", weight, shape)
    check_shape(op, "bias", bias, shape)


def check_dropout(op: str, x: Array, p: float) -> None:
    """Raise ConfigError unless 0 ≤ p < 1, ShapeError unless x has rows."""
    if not 0 <= p < 1:
        raise ConfigError(f"{op}: expected p in [0, 1), got {p!r}")
    if x.ndim == 0:
        raise ShapeError(f"{op}: expected a batch of rows, got shape ()")


def check_batched_matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> None:
    """Raise ShapeError or DTypeError unless op(a[e]) @ op(b[e]) is a product for every e."""
    check_float("batched_matmul", a, b)
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0]:
        raise ShapeError(
            f"batched_matmul: expected as many matrices of both, got shapes {a.shape} and {b.shape}"
        )
    inner_a, inner_b = a.shape[1 if transpose_a else 2], b.shape[2 if transpose_b else 1]
    if inner_a != inner_b:
        raise ShapeError(
            f"batched_matmul: expected equal inner sizes, got {inner_a} and {inner_b} (shapes "
            f"{a.shape}{' transposed' * transpose_a} and {b.shape}{' transposed' * transpose_b})"
        )


def check_member_orders(orders: Array, keys: Array) -> None:
    """Raise unless orders are (E N,) int64, and keys (E, 8) uint32."""
    for what, array, dtype in (("orders", orders, "int64"), ("keys", keys, "uint32")):
        if array.dtype != dtype:
            raise DTypeError(f"member_orders: expected {what} of {dtype}, got {array.dtype}")
    check_shape("member_orders", "keys", keys, (len(keys), 8))
    if orders.ndim != 1 or (len(orders) % len(keys) if len(keys) else len(orders)):
        raise ShapeError(
            f"member_orders: expected as many rows of {len(keys)} members, got {orders.shape}"
        )


def check_member_relu(
    op: str, z: Array, scale: Array, bias: Array, next_scale: Array, p: float
) -> None:
    """Raise unless z is (E, M, N), all else (E, N), all of one float dtype, and 0 ≤ p < 1."""
    check_float(op, z, scale, bias, next_scale)
    if z.ndim != 3:
        raise ShapeError(f"{op}: expected z of shape (E, M, N), got {z.shape}")
    for what, array in (("scale", scale), ("bias", bias), ("next_scale", next_scale)):
        check_shape(op, what, array, (z.shape[0], z.shape[2]))
    check_dropout(op, z, p)


def check_member_relu_backward(dy: Array, z: Array, kept: Array) -> None:
    """Raise unless dy and `kept`, which is bool, are of z's shape, and dy of its dtype."""
    check_float("member_relu_backward", dy, z)
    check_same_shape("member_relu_backward", dy, z)
    check_shape("member_relu_backward", "kept", kept, z.shape)
    if kept.dtype != bool:
        raise DTypeError(f"member_relu_backward: expected kept of bool, got {kept.dtype}")


def check_piecewise_linear(op: str, x: Array, bins: Sequence[Array], *others: Array) -> None:
    """Raise unless x is (M, F), with numbers, bins are (F, 1, B), and all of one float dtype."""
    check_float(op, x, *bins, *others)
    if x.ndim != 2 or not x.shape[1]:
        raise ShapeError(f"{op}: expected x of shape (M, F), F at least 1, got {x.shape}")
    for what, array in zip(("factor", "offset", "low", "high"), bins, strict=True):
        check_shape(op, what, array, (x.shape[1], 1, bins[0].shape[-1]))


def check_windows(op: str, x: Array, bits: Array, windows: ImageWindows) -> None:
    """Raise unless x are images (M, H, W, C) of floats, bits (M, 2, 16) float32, and windows fit
    the padded images, which reach no further than their reflection.
    """
    check_float(op, x)
    check_images(op, "x", x.shape)
    _check_window_axes(op, bits, x.shape, windows)


def check_windows_backward(
    op: str, dy: Array, bits: Array, x_shape: tuple[int, ...], windows: ImageWindows
) -> None:
    """Raise unless `check_windows` would not of images x, and dy has the windows' shape."""
    check_float(op, dy)
    check_images(op, "x", x_shape)
    check_shape(op, "dy", dy, (x_shape[0], *windows.size, x_shape[3]))
    _check_window_axes(op, bits, x_shape, windows)


def _check_window_axes(
    op: str, bits: Array, x_shape: tuple[int, ...], windows: ImageWindows
) -> None:
    size, padding, reflects = windows
    check_shape(op, "bits", bits, (x_shape[0], 2, 16))
    if bits.dtype != "float32":
        raise DTypeError(f"{op}: expected bits of dtype float32, got {bits.dtype}")
    for length, window, pad in zip(x_shape[1:3], size, padding, strict=True):
        if not 0 <= window <= length + 2 * pad:
            raise ShapeError(
                f"{op}: expected windows that padded images {tuple(x_shape)} hold, got {size}"
            )
        if pad < 0 or (reflects and pad and pad >= length):
            raise ShapeError(
                f"{op}: expected padding of fewer pixels than images have, got {padding} for "
                f"{tuple(x_shape)}"
            )
