"""Ensembles whose members share weights, a member at a time so that its numbers stay in the
cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import (
    check_batched_matmul,
    check_member_relu,
    check_member_relu_backward,
)
from warpfit.random import DROPOUT, stream_key

__all__ = ["MemberOps"]

WORDS = 16  # of 16 bits that a counter gives
ALL_BITS = 2**64 - 1


class MemberOps(Backend):
    """Products of each member, and what lies between two products that members share."""

    def batched_matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        check_batched_matmul(a, b, transpose_a, transpose_b)
        a = a.transpose(0, 2, 1) if transpose_a else a
        b = b.transpose(0, 2, 1) if transpose_b else b
        return np.matmul(a, b, out=self.empty((*a.shape[:2], b.shape[2]), a.dtype))

    def member_relu_forward(
        self,
        z: Array,
        scale: Array,
        bias: Array,
        next_scale: Array,
        *,
        p: float,
        seed: int,
        step: Number,
        layer_idx: int,
        first_member: int = 0,
    ) -> tuple[Array, Array]:
        check_member_relu("member_relu_forward", z, scale, bias, next_scale, p)
        y, kept = self.empty(z.shape, z.dtype), self.empty(z.shape, bool)
        factors = np.empty(z.shape[1:], z.dtype)
        masks = _masks(z.shape, p, stream_key(seed, DROPOUT), (layer_idx, int(step)), first_member)
        with np.errstate(all="ignore"):
            for member, mask in enumerate(masks):
                out, is_kept = y[member], kept[member]
                np.multiply(z[member], scale[member], out=out)
                out += bias[member]
                np.greater(out, 0, out=is_kept)
                if p:
                    is_kept &= mask
                factors[...] = is_kept
                out *= factors
                out *= next_scale[member] * z.dtype.type(1 / (1 - p))
        return y, kept

    def member_relu_backward(
        self,
        dy: Array,
        z: Array,
        kept: Array,
        scale: Array,
        bias: Array,
        next_scale: Array,
        *,
        p: float,
    ) -> tuple[Array, Array, Array, Array]:
        check_member_relu("member_relu_backward", z, scale, bias, next_scale, p)
        check_member_relu_backward(dy, z, kept)
        dz, factors = self.empty(z.shape, z.dtype), np.empty(z.shape[1:], z.dtype)
        sums, products = np.empty(scale.shape, z.dtype), np.empty(scale.shape, z.dtype)
        with np.errstate(all="ignore"):
            for member, out in enumerate(dz):
                factors[...] = kept[member]
                np.multiply(dy[member], factors, out=out)
                np.add.reduce(out, axis=0, out=sums[member])
                np.einsum("mn,mn->n", out, z[member], out=products[member])
                out *= next_scale[member] * scale[member] * z.dtype.type(1 / (1 - p))
            for each in (sums, products):
                each *= z.dtype.type(1 / (1 - p))
            dnext_scale = scale * products + bias * sums
            return dz, next_scale * products, next_scale * sums, dnext_scale


def _masks(
    shape: tuple[int, ...],
    p: float,
    key: tuple[int, int],
    place: tuple[int, int],
    first_member: int,
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield what dropout keeps of each member's rows."""
    num_members, *rows = shape
    size = rows[0] * rows[1]
    num_words = -(-size // WORDS) * WORDS // 4
    threshold = round(p * 2**16)
    for member in range(first_member, first_member + num_members):
        if not p:
            yield np.ones(rows, bool)
            continue
        # The generator goes on to the next counter before it draws, so that 0 gives counter 1.
        counter = np.array([0, member, *place], np.uint64)
        bits = np.random.Philox(counter=counter, key=np.array(key, np.uint64))
        drawn = np.random.Generator(bits).integers(
            0, ALL_BITS, num_words, dtype=np.uint64, endpoint=True
        )
        words = drawn.astype("<u8", copy=False).view("<u2")[:size]
        yield (words >= threshold).reshape(rows)
