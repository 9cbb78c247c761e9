"""Ensembles whose members share weights, a few at a time, so that numbers stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import (
    check_batched_matmul,
    check_member_orders,
    check_member_relu,
    check_member_relu_backward,
)
from warpfit.permutation import permuted
from warpfit.random import DROPOUT, stream_key

ELEMENTS_OF_A_BLOCK = 1 << 17
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

    def member_orders(self, orders: Array, keys: Array, batch_size: int) -> None:
        check_member_orders(orders, keys)
        num_rows = len(orders) // max(1, len(keys))
        own = np.array([permuted(np.arange(num_rows), num_rows, each) for each in keys])
        for start in range(0, num_rows, batch_size):
            batch = own[:, start : start + batch_size]
            first = len(keys) * start
            orders[first : first + batch.size] = batch.ravel()

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
        key, place = stream_key(seed, DROPOUT), (layer_idx, int(step))
        with np.errstate(all="ignore"):
            for own in _blocks(z.shape):
                out, are_kept = y[own], kept[own]
                np.multiply(z[own], scale[own, None], out=out)
                out += bias[own, None]
                np.greater(out, 0, out=are_kept)
                if p:
                    for member, each in enumerate(are_kept, first_member + own.start):
                        each &= _mask(each.shape, p, key, (member, *place))
                out *= are_kept.astype(z.dtype)
                out *= (next_scale[own] * z.dtype.type(1 / (1 - p)))[:, None]
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
        of_kept = z.dtype.type(1 / (1 - p))
        dz = self.empty(z.shape, z.dtype)
        sums, products = np.empty(scale.shape, z.dtype), np.empty(scale.shape, z.dtype)
        with np.errstate(all="ignore"):
            for own in _blocks(z.shape):
                out = dz[own]
                np.multiply(dy[own], kept[own].astype(z.dtype), out=out)
                np.add.reduce(out, axis=1, out=sums[own])
                np.einsum("emn,emn->en", out, z[own], out=products[own])
                out *= (next_scale[own] * scale[own] * of_kept)[:, None]
            for each in (sums, products):
                each *= of_kept
            dnext_scale = scale * products + bias * sums
            return dz, next_scale * products, next_scale * sums, dnext_scale


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    num_members, *rows = shape
    step = max(1, ELEMENTS_OF_A_BLOCK // max(1, rows[0] * rows[1]))
    for first in range(0, num_members, step):
        yield slice(first, min(first + step, num_members))


def _mask(
    shape: tuple[int, ...], p: float, key: tuple[int, int], place: tuple[int, int, int]
) -> npt.NDArray[np.bool_]:
    """Return what dropout keeps of a member's rows."""
    size = shape[0] * shape[1]
    num_words = -(-size // WORDS) * WORDS // 4
    # The generator goes on to the next counter before it draws, so that 0 gives counter 1.
    bits = np.random.Philox(counter=np.array([0, *place], np.uint64), key=np.array(key, np.uint64))
    drawn = np.random.Generator(bits).integers(
        0, ALL_BITS, num_words, dtype=np.uint64, endpoint=True
    )
    words = drawn.astype("<u8", copy=False).view("<u2")[:size]
    return (words >= round(p * 2**16)).reshape(shape)
