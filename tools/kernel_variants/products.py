"""Kernels of matrix products, of updates that are joined with them, and of members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any

from kernel_variants.arrays import UPDATES, Kernels, in_each_dtype
from warpfit.backends.base import ACTIVATIONS, ELEMENT_LOSSES, HALF_DTYPES, Activation
from warpfit.backends.cuda import joined_updates
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.dense import product_defines
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS, acc_dtype, dtype_of
from warpfit.backends.cuda.matmul import configure
from warpfit.backends.cuda.member_layers import WIDTHS, MemberPass
from warpfit.backends.cuda.narrow_step import LEAST_ROWS, NarrowNetwork, choose

# Dtypes and precisions; sizes M, N, K; an architecture with all instructions, one with few.
MODES = (
    ("float32", "float32"),
    ("float32", "tf32"),
    *((dtype, "float32") for dtype in DEVICE_FLOATS[1:]),
)
SHAPES = ((64, 256, 784), (784, 256, 64), (64, 10, 256), (1024, 1024, 1024), (33, 7, 65))
ARCHITECTURES = ("sm_90a", "sm_75")
TILES = (
    joined_updates.SMALL_TILES,
    joined_updates.SHORT_TILES,
    joined_updates.OWN_TILES,
    joined_updates.SHARED_TILES,
)


def of_dense() -> Kernels:
    """Yield a choice: every tiling depends on shapes, so not all can be listed."""
    for mode, shape, arch in product(MODES, SHAPES, ARCHITECTURES):
        for transposes in product((False, True), repeat=2):
            yield product_variant(mode, shape, arch, transposes)
        yield product_variant(mode, shape, arch, (True, False), acc_dtype(dtype_of(mode[0])).name)
    for mode, arch in product(MODES, ARCHITECTURES):
        settings = (mode, SHAPES[0], arch, (False, False), mode[0])
        yield product_variant(*settings, "epilogue_activation", "relu", has_bias=True)
        yield product_variant(*settings, "epilogue_mask", "relu")
    settings = (MODES[0], SHAPES[0], "sm_90a", (False, False), "float32", "epilogue_activation")
    for name in ACTIVATIONS:
        yield product_variant(*settings, name, has_bias=True, store_z=True)


def product_variant(
    mode: tuple[str, str],
    shape: tuple[int, int, int],
    arch: str,
    transposes: tuple[bool, bool],
    out: str | None = None,
    epilogue: str = "epilogue_store",
    activation: str = "identity",
    *,
    has_bias: bool = False,
    store_z: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Return the kernel of a product, and its defines.

    Parameters
    ----------
    mode : (str, str)
        The operands' dtype, and the precision.
    shape : (int, int, int)
        M, N and K.
    arch : str
    transposes : (bool, bool)
        Of the operands.
    out : str, optional
        The result's dtype; None is the operands'.
    epilogue, activation, has_bias, store_z
        What happens to the sums.
    """
    dtype, precision = mode
    config = configure(
        *shape,
        dtype,
        precision=precision,
        transpose_a=transposes[0],
        transpose_b=transposes[1],
        arch=arch,
        vector=all(size % 8 == 0 for size in shape),
        out=out or dtype,
    )
    tail = (epilogue, activation, has_bias, store_z)
    return config.kernel, product_defines(config, out or dtype, *tail)


def of_narrow_step() -> Kernels:
    for network, source in _narrow_networks():
        step = choose(network, LEAST_ROWS, shared_bytes_of("sm_90a"), source)
        if step is not None:
            yield "narrow_step", step.config.settings()


def _narrow_networks() -> Iterator[tuple[NarrowNetwork, str]]:
    """Yield networks with the dtypes of their data."""
    relu, identity = Activation("relu"), Activation()
    square = NarrowNetwork("bfloat16", (64,) * 5, (relu, relu, relu, identity), "mse")
    yield square, ""
    yield replace(square, dtype="float16"), "float32"
    of_classes = NarrowNetwork("float16", (20, 72, 10), (relu, identity), "cross_entropy", True)
    yield of_classes, "uint8"
    yield NarrowNetwork("bfloat16", (32, 128, 3), (relu, identity), "cross_entropy"), ""
    for name, loss in zip(ACTIVATIONS, cycle(ELEMENT_LOSSES), strict=False):
        yield NarrowNetwork("float16", (7, 33, 5), (Activation(name),) * 2, loss), "float32"


def of_joined_updates() -> Kernels:
    for (rule, slots), dtype in product(UPDATES, HALF_DTYPES):
        for adders in joined_updates.ADDERS:
            own = joined_updates.rule_defines(rule, slots, dtype)
            yield "narrow_update", {**own, "ADDERS": adders}
        for tiles in TILES:
            strips, _ = tiles.room(slots, shared_bytes_of("sm_90a"))
            own = joined_updates.update_defines(rule, slots, dtype, tiles, strips)
            yield "linear_update_sm90", own


def of_members() -> Kernels:
    yield "member_orders", {}
    yield from in_each_dtype("member_relu_forward", "member_relu_backward")
    for dtype, *flags in product(DEVICE_FLOATS, *[(0, 1)] * 3):
        own = zip(("TRANSPOSE_A", "TRANSPOSE_B", "IS_THIN"), flags, strict=True)
        yield "batched_matmul", {"DTYPE": dtype, **dict(own)}


def of_member_layers() -> Kernels:
    for num_units in WIDTHS:
        how = MemberPass(1, 1, 1, num_units, 1, 1)
        yield "member_layers_forward_sm90", how.forward_defines
        yield "member_layers_backward_sm90", how.backward_defines
        yield "member_weights_sm90", how.weight_defines
        yield "member_gradients_sm90", how.defines()
