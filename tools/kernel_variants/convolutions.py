"""Kernels of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from kernel_variants.arrays import Kernels
from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, IDENTITY, Activation
from warpfit.backends.cuda import conv_boxes_sm90 as boxes
from warpfit.backends.cuda import conv_depthwise as depthwise
from warpfit.backends.cuda import conv_few as few
from warpfit.backends.cuda import conv_grouped_mma as grouped_mma
from warpfit.backends.cuda import conv_sm90, conv_weights_sm90
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.conv_depthwise import Grouped
from warpfit.backends.cuda.conv_launch import ALONG_K, Request, choose_tiling, own_defines
from warpfit.backends.cuda.conv_sm90 import IN_PIECE, Windows, result_defines
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS

# Multiprocessors, and shared memory of a block, of an H100.
CARD = 132, shared_bytes_of("sm_90a")


def of_conv_launch() -> Kernels:
    """Yield what products ask for: all of it, but activations with one tiling only."""
    modes = [("float32", "tf32"), *((dtype, "float32") for dtype in DEVICE_FLOATS)]
    # An architecture whose tensor cores know all of them, and one whose do not.
    for op, (dtype, precision), num_cols, arch in product(
        ALONG_K, modes, (32, 64), ("sm_90a", "sm_75")
    ):
        tiling = choose_tiling(op, dtype, num_cols, arch, precision)
        for channels, outputs in product((1, 8), (1, 8)):
            whole = num_cols == 64 and channels == outputs == 8
            names = ACTIVATIONS if op == "conv2d_forward" and whole else ("relu",)
            strides = (1, 2) if op == "conv2d_backward_input" else (1,)
            for name, stride in product(names, strides):
                pairs = ((stride, stride), (0, 0), (1, 1))
                shapes = ((1, 1, 1, channels), (1, 1, channels, outputs), pairs, (1, 1))
                request = Request(op, dtype, (True, True), *shapes, Activation(name), False)
                yield op, {**tiling.defines, **own_defines(request)}
                if num_cols == 32 and channels == outputs:
                    yield op, {**tiling.defines, **own_defines(_in_groups(request))}


def _in_groups(request: Request) -> Request:
    x, w = ((*shape[:3], 32 * shape[3]) for shape in (request.x, request.w))
    return request._replace(x=x, w=w, groups=32)


def _windows() -> Iterator[Windows]:
    """Yield convolutions with each kind of channels and outputs."""
    for channels, outputs in ((32, 64), (1, 32), (64, 48)):
        x, w = (1, 26, 26, channels), (3, 3, channels, outputs)
        yield Windows.forward(x, w, (24, 24), (0, 0), (1, 1))


def of_conv_sm90() -> Kernels:
    for dtype, forward in product(HALF_DTYPES, _windows()):
        passes = [(forward, 512), (forward._replace(pools=True), 512), (forward.adjoint, 1)]
        passes += [(forward.adjoint._replace(spreads=True), 1), (forward.adjoint, 512)]
        for windows, num_images in passes[: 2 if forward.channels == 1 else 5]:
            band = conv_sm90.choose_band(windows, num_images, *CARD)
            assert band is not None
            own = conv_sm90.defines_of(dtype, windows, band, windows.channels >= IN_PIECE)
            activation = "identity" if windows.is_adjoint and not windows.spreads else "relu"
            tail = (activation, not windows.is_adjoint, False, windows.spreads)
            yield conv_sm90.KERNEL, {**own, **result_defines(*tail)}


def of_conv_weights_sm90() -> Kernels:
    for dtype, windows, is_pooled in product(HALF_DTYPES, _windows(), (False, True)):
        band = conv_weights_sm90.choose_weight_band(windows, 512, *CARD)
        assert band is not None
        settings = (dtype, windows, band, windows.channels >= IN_PIECE, is_pooled)
        yield conv_weights_sm90.KERNEL, conv_weights_sm90.weight_defines(*settings)


def of_conv_few() -> Kernels:
    of_24 = Windows.forward((1, 28, 28, 1), (5, 5, 1, 24), (24, 24), (0, 0), (1, 1))
    for dtype, windows in product(HALF_DTYPES, (*_windows(), of_24)):
        tiles = few.choose_few_tiles(windows, 512, *CARD)
        band = few.choose_few_band(windows, 512, *CARD)
        if tiles is None or band is None:
            continue
        for either in (False, True):
            own = {"BLOCK_N": tiles.block_n, "POOLS": either}
            own |= result_defines("relu", True, False, False)
            yield few.KERNEL, {**few.few_defines(dtype, windows), **own}
            yield few.WEIGHT_KERNEL, few.weight_defines(dtype, windows, band, either)


def of_conv_boxes_sm90() -> Kernels:
    for dtype, (mma_rows, block_n), cluster in product(HALF_DTYPES, boxes.TILES, boxes.CLUSTERS):
        tiling = boxes.BoxTiling(mma_rows, block_n, cluster, (1, 1, 1), 0, 0.0)
        tiling = tiling._replace(stages=boxes.stages_of(tiling.stage_bytes, CARD[1]))
        for adjoint, tail in ((False, "epilogue_activation"), (True, "epilogue_mask")):
            own = {"ADJOINT": adjoint, **boxes.epilogue_defines(tail, "relu", not adjoint, False)}
            yield boxes.KERNEL, {**tiling.defines(dtype), **own}
        if cluster == 1:
            yield boxes.WEIGHT_KERNEL, tiling.defines(dtype)


def of_conv_grouped() -> Kernels:
    for dtype in DEVICE_FLOATS:
        for name, stored in (("relu", False), ("gelu", True)):
            own = {"DTYPE": dtype, "ACTIVATION": name, "STORE_Z": stored}
            yield "conv2d_grouped_forward", own
        yield "conv2d_grouped_backward_input", {"DTYPE": dtype}
        yield "conv2d_grouped_backward_weight", {"DTYPE": dtype}


def _grouped_passes(shape: Grouped) -> Iterator[tuple[Grouped, dict[str, Any]]]:
    """Yield a convolution and its gradients, each with what it is compiled with in any case."""
    for name, stored in (("relu", False), ("gelu", True)):
        yield shape, shape.result_defines(Activation(name), stores_z=stored)
    of_input = shape._replace(is_adjoint=True)
    yield of_input, of_input.result_defines(IDENTITY, stores_z=False)
    yield shape._replace(is_of_weights=True), shape.defines


def of_conv_depthwise() -> Kernels:
    """Yield what kernels and strides of usual sizes ask for."""
    for dtype, (size, stride), channels in product(
        DEVICE_FLOATS, ((3, 1), (3, 2), (4, 4), (5, 1), (7, 1)), (64, 65)
    ):
        pairs = ((stride, stride), (size // 2, size // 2), (1, 1))
        shape = Grouped(dtype, 1, (64, 28, 28, channels), (28, 28), (size, size), *pairs)
        for asked, own in _grouped_passes(shape):
            in_pairs = dtype in HALF_DTYPES and not channels % 2
            strips = depthwise.choose_strips(asked, in_pairs, CARD[0])
            if strips is not None:
                kernel = depthwise.WEIGHT_KERNEL if asked.is_of_weights else depthwise.KERNEL
                yield kernel, {**own, **depthwise.strip_defines(asked, strips)}


def of_conv_grouped_mma() -> Kernels:
    for dtype, group, (size, stride) in product(
        HALF_DTYPES, grouped_mma.GROUPS, ((3, 1), (3, 2), (5, 1))
    ):
        pairs = ((stride, stride), (size // 2, size // 2), (1, 1))
        shape = Grouped(dtype, group, (64, 28, 28, 4 * group), (28, 28), (size, size), *pairs)
        for asked, own in _grouped_passes(shape):
            if grouped_mma.blocks_held(asked):
                kernel = grouped_mma.WEIGHT_KERNEL if asked.is_of_weights else grouped_mma.KERNEL
                yield kernel, {**own, "GROUP": group}


def of_pool() -> Kernels:
    for way, dtype, is_max in product(("forward", "backward"), DEVICE_FLOATS, (False, True)):
        yield f"pool2d_{way}", {"DTYPE": dtype, "MAX": is_max}
