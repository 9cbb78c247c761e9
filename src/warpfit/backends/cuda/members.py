"""Ensembles whose members share weights: products of each, and what lies between shared ones."""

from __future__ import annotations

from warpfit.backends.base import Array, Number
from warpfit.backends.checks import (
    check_batched_matmul,
    check_member_orders,
    check_member_relu,
    check_member_relu_backward,
)
from warpfit.backends.cuda.arrays import ArrayOps, blocks_for
from warpfit.backends.cuda.dropout import check_step, round_keys_of
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.cuda.launch import scalar
from warpfit.errors import ShapeError
from warpfit.permutation import domain_bits

# Rows and columns of a product that a block computes, and up to how many columns they are thin.
TILE, THIN_TILE = (32, 32), (128, 8)
THREADS_OF_A_TILE = 256
COLUMNS, ROWS = 32, 8  # threads of a block that sums over a member's rows
THREADS, UNITS = 128, 16  # of a block; that a thread takes, as a counter decides so many
MOST_MEMBERS = 65535  # of a grid


class MemberOps(ArrayOps):
    """A block works for one member."""

    def batched_matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        check_batched_matmul(a, b, transpose_a, transpose_b)
        count = a.shape[0]
        _check_count("batched_matmul", count)
        k, m = a.shape[1:] if transpose_a else a.shape[:0:-1]
        n = b.shape[1 if transpose_b else 2]
        out = self.empty((count, m, n), a.dtype)
        if out.size:
            is_thin = n <= THIN_TILE[1]
            rows, columns = THIN_TILE if is_thin else TILE
            kernel = self.kernel(
                "batched_matmul",
                DTYPE=a.dtype,
                TRANSPOSE_A=int(transpose_a),
                TRANSPOSE_B=int(transpose_b),
                IS_THIN=int(is_thin),
            )
            grid = (blocks_for(n, columns), blocks_for(m, rows), count)
            arrays = (self.contiguous(a), self.contiguous(b), out)
            kernel(grid, THREADS_OF_A_TILE, *arrays, m, n, k)
        return out

    def member_orders(self, orders: Array, keys: Array, batch_size: int) -> None:
        check_member_orders(orders, keys)
        _check_count("member_orders", len(keys))
        num_rows = len(orders) // max(1, len(keys))
        if num_rows:
            grid = (blocks_for(num_rows, THREADS_OF_A_TILE), len(keys))
            settings = (num_rows, domain_bits(num_rows), batch_size)
            kernel = self.kernel("member_orders")
            kernel(grid, THREADS_OF_A_TILE, orders, self.contiguous(keys), *settings)

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
        num_members, num_rows, num_units = z.shape
        _check_count("member_relu_forward", num_members)
        check_step("member_relu_forward", step)
        y, kept = self.empty(z.shape, z.dtype), self.empty(z.shape, "bool")
        if not z.size:
            return y, kept
        arrays = [self.contiguous(each) for each in (z, scale, bias, next_scale)]
        wide = num_units % UNITS == 0 and (arrays[0].pointer | y.pointer | kept.pointer) % 16 == 0
        draw = (first_member, layer_idx, round_keys_of(seed), round(p * 2**16), 1 / (1 - p))
        kernel = self.kernel("member_relu_forward", DTYPE=z.dtype)
        grid = (blocks_for(num_rows * num_units, THREADS * UNITS), num_members)
        sizes = (num_rows * num_units, num_units)
        kernel(grid, THREADS, *arrays, y, kept, *sizes, *scalar(step), *draw, wide)
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
        num_members, num_rows, num_units = z.shape
        _check_count("member_relu_backward", num_members)
        dz = self.empty(z.shape, z.dtype)
        gradients = [self.empty(scale.shape, acc_dtype(z.dtype)) for _ in range(3)]
        if scale.size:
            arrays = [self.contiguous(each) for each in (dy, z, kept, scale, bias, next_scale)]
            kernel = self.kernel("member_relu_backward", DTYPE=z.dtype)
            grid, sizes = (blocks_for(num_units, COLUMNS), num_members), (num_rows, num_units)
            factors = (1 / (1 - p), 1 / self.loss_scale)
            kernel(grid, (COLUMNS, ROWS), *arrays, dz, *gradients, *sizes, *factors)
        return dz, *gradients


def _check_count(op: str, count: int) -> None:
    if count > MOST_MEMBERS:
        raise ShapeError(f"{op}: expected at most {MOST_MEMBERS} members on CUDA, got {count}")
