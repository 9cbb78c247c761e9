"""Matrix products with bias and activation, and their gradients."""

from __future__ import annotations

import numpy as np

from warpfit.backends.base import IDENTITY, Activation, Array, Backend
from warpfit.backends.checks import check_linear, check_linear_backward, check_matmul, check_matrix
from warpfit.backends.numpy.parallel import multiply


class DenseOps(Backend):
    """y = f(x @ w + b)."""

    def matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        check_matmul(a, b, transpose_a, transpose_b)
        a, b = a.T if transpose_a else a, b.T if transpose_b else b
        return multiply(a, b, self.empty((a.shape[0], b.shape[1]), a.dtype))

    def linear_forward(
        self, x: Array, w: Array, b: Array | None, activation: Activation = IDENTITY
    ) -> tuple[Array, Array | None]:
        check_linear(x, w, b)
        z = multiply(x, w, self.empty((x.shape[0], w.shape[1]), x.dtype))
        if b is not None:
            z += b
        if activation.needs_input:
            return self.activation_forward(activation, z), z
        return self.activation_forward(activation, z, out=z), None

    def linear_backward(
        self,
        dz: Array,
        x: Array,
        w: Array,
        *,
        needs_dx: bool = True,
        needs_db: bool = True,
        x_activation: Activation = IDENTITY,
    ) -> tuple[Array | None, Array, Array | None]:
        check_linear_backward(dz, x, w, x_activation)
        dx = self.linear_backward_input(dz, x, w, x_activation) if needs_dx else None
        dw = self.matmul(x, dz, transpose_a=True)
        return dx, dw, self.sum_columns(dz) if needs_db else None

    def linear_backward_input(
        self, dz: Array, x: Array, w: Array, x_activation: Activation = IDENTITY
    ) -> Array:
        check_linear_backward(dz, x, w, x_activation)
        dx = self.matmul(dz, w, transpose_b=True)
        if x_activation == IDENTITY:
            return dx
        return self.activation_backward(x_activation, dx, x, None)

    def sum_columns(self, x: Array) -> Array:
        check_matrix("sum_columns", x)
        return np.add.reduce(x, axis=0, out=self.empty(x.shape[1:], x.dtype))
