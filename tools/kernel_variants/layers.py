"""Kernels of activations, losses, norms and dropout."""

from __future__ import annotations

from itertools import product

from kernel_variants.arrays import Kernels, in_each_dtype
from warpfit.backends.base import ACTIVATIONS, ELEMENT_LOSSES, FLOAT_DTYPES, HALF_DTYPES
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS, class_name, dtype_of
from warpfit.backends.cuda.loss import COUNTING_LOSSES
from warpfit.backends.cuda.rows import FEW, TWELVE, at_once, many_of


def _along_rows(name: str, num_kept: int = 1, **own: int) -> Kernels:
    """Yield a kernel along rows that keeps `num_kept` arrays."""
    for dtype in DEVICE_FLOATS:
        itemsize = dtype_of(dtype).itemsize
        ways = [*product((FEW, many_of(itemsize)), (0,), (0, 1))]
        ways += [(TWELVE, 0, 1)] if itemsize == 4 else []
        ways.append((at_once(itemsize, num_kept), 1, 0))
        for items, is_long, staged in dict.fromkeys(ways):
            settings = {"DTYPE": dtype, "ITEMS": items, "LONG_ROWS": is_long, "STAGED": staged}
            yield name, {**settings, **own}


def of_activation() -> Kernels:
    for dtype, name in product(DEVICE_FLOATS, ACTIVATIONS):
        own = {"DTYPE": dtype, "ACTIVATION": name}
        yield "activation_forward", own
        for has_plus in (False, True):
            yield "activation_backward", {**own, "HAS_PLUS": has_plus}
    for log in (0, 1):
        yield from _along_rows("softmax_forward", LOG=log)
        yield from _along_rows("softmax_backward", 2, LOG=log)


def of_loss() -> Kernels:
    yield from _along_rows("softmax_cross_entropy_forward")
    yield from _along_rows("count_correct")
    yield from in_each_dtype("softmax_cross_entropy_backward", "count_correct_binary")
    for loss, way, dtype in product(ELEMENT_LOSSES, ("forward", "backward"), DEVICE_FLOATS):
        yield f"element_loss_{way}", {"DTYPE": dtype, "LOSS": class_name(loss)}


def of_loss_steps() -> Kernels:
    yield from _along_rows("softmax_cross_entropy_step")
    linear = "linear_cross_entropy_step"
    for dtype, pairs in product(HALF_DTYPES, (2, 4, 8)):
        yield linear, {"DTYPE": dtype, "OUTPUTS": 10, "PAIRS": pairs, "ACTIVATION": "relu"}
    for name, formula in ACTIVATIONS.items():
        if not formula.needs_input:
            yield linear, {"DTYPE": "float16", "OUTPUTS": 3, "PAIRS": 1, "ACTIVATION": name}
    for loss, dtype, gathers in product(ELEMENT_LOSSES, DEVICE_FLOATS, (False, True)):
        own = {"LOSS": class_name(loss), "COUNTS_ROWS": loss in COUNTING_LOSSES}
        yield "element_loss_step", {"DTYPE": dtype, **own, "GATHERS": gathers}


def of_norm() -> Kernels:
    yield from in_each_dtype("layer_norm_forward", "layer_norm_backward")
    for dtype in DEVICE_FLOATS:
        for parameter in (dtype, "float32") if dtype in HALF_DTYPES else (dtype,):
            types = {"DTYPE": dtype, "PARAMETER": parameter}
            yield "batch_norm_statistics", types
            for activation in ("identity", "relu", "silu"):
                own = {**types, "ACTIVATION": activation}
                yield "batch_norm_backward", own
                yield "norm_parameter_gradients", own
                for has_added in (False, True):
                    yield "batch_norm_forward", {**own, "HAS_ADDED": has_added}


def of_dropout() -> Kernels:
    yield from in_each_dtype("dropout_forward", "dropout_backward")


def of_piecewise_linear() -> Kernels:
    names = ("piecewise_linear_forward", "piecewise_linear_backward")
    yield from in_each_dtype(*names, dtypes=FLOAT_DTYPES)
