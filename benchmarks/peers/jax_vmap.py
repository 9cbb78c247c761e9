"""Many networks of one shape in JAX: `vmap` of a whole epoch, a scan over its batches, compiled as
one function.

`vmap` turns each product into a batched one, as JAX's pages on ensembles do it. Every network has
its rate, its initial values and, unless it shares that of all, its order, drawn on the device; rows
are gathered within a step, because those of an epoch would take N times the data. Weights are
float32 and donated; for bfloat16, rows of x are kept in it. The shorter last batch would be a
second loop body to compile, and is left out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peers.jax_scan import MATMUL_PRECISIONS, loss_and_correct


def stacked_parameters(sizes: tuple[int, ...], num_networks: int) -> Any:
    """Return weights (N, in, out) and biases (N, out) of each layer, drawn as PyTorch draws
    them.
    """
    rng = np.random.default_rng(0)

    def drawn(inputs: int, *shape: int) -> Any:
        bound = inputs**-0.5
        return jnp.asarray(rng.uniform(-bound, bound, (num_networks, *shape)).astype(np.float32))

    return [
        (drawn(inputs, inputs, outputs), drawn(inputs, outputs))
        for inputs, outputs in pairwise(sizes)
    ]


class Trainer:
    """Trains networks of linear layers and ReLU by SGD, in whole batches.

    Parameters
    ----------
    sizes : tuple of int
    x : ndarray (rows, F) float32
    y : ndarray (rows,) int64
    rates : ndarray (N,) float32
        The learning rate of each network.
    precision : str
        ``'float32'``, ``'tf32'`` or ``'bfloat16'``.
    unroll : int
        Steps that the compiled loop's body holds.
    has_own_orders : bool
        Whether each network has an order of its own; else all train on the same batches, which is
        less to do.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        x: Any,
        y: Any,
        *,
        rates: Any,
        batch_size: int,
        precision: str,
        unroll: int = 1,
        has_own_orders: bool = True,
    ) -> None:
        self.x = jnp.asarray(x, jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
        self.y = jnp.asarray(y, jnp.int32)
        self.rates = jnp.asarray(rates, jnp.float32)
        self.parameters = stacked_parameters(sizes, len(rates))
        self.batch_size, self.steps = batch_size, len(x) // batch_size
        self.matmul_precision, self.unroll = MATMUL_PRECISIONS[precision], unroll
        self.has_own_orders = has_own_orders
        self.num_epochs = 0
        orders = 0 if has_own_orders else None
        self.run = jax.jit(
            jax.vmap(self._epoch, in_axes=(0, 0, orders, None, None)), donate_argnums=0
        )
        self.draw = jax.jit(self._orders)

    def epoch(self) -> tuple[Any, Any]:
        """Train for an epoch; return each network's mean of its steps' losses, and its share of
        right rows, (N,).
        """
        with jax.default_matmul_precision(self.matmul_precision):
            orders = self.draw(np.uint32(self.num_epochs))
            result = self.run(self.parameters, self.rates, orders, self.x, self.y)
        self.parameters, totals, correct = jax.block_until_ready(result)
        self.num_epochs += 1
        return np.asarray(totals) / self.steps, np.asarray(correct) / (self.steps * self.batch_size)

    def _orders(self, epoch_idx: Any) -> Any:
        """Return the rows of each step, (steps, B) or (N, steps, B)."""
        rows, used = len(self.x), self.steps * self.batch_size

        def order(key: Any) -> Any:
            return jax.random.permutation(key, rows)[:used].reshape(self.steps, self.batch_size)

        key = jax.random.fold_in(jax.random.key(0), epoch_idx)
        if not self.has_own_orders:
            return order(key)
        return jax.vmap(order)(jax.random.split(key, len(self.rates)))

    def _epoch(
        self, parameters: Any, rate: Any, order: Any, x: Any, y: Any
    ) -> tuple[Any, Any, Any]:
        """Train one network for an epoch; return parameters, the sum of losses, and the number of
        right rows.
        """

        def step(carry: Any, batch: Any) -> tuple[Any, None]:
            parameters, total, correct = carry
            gradient = jax.value_and_grad(loss_and_correct, has_aux=True)
            (loss, right), gradients = gradient(parameters, x[batch], y[batch])
            parameters = jax.tree.map(
                lambda value, grad: value - rate * grad, parameters, gradients
            )
            return (parameters, total + loss, correct + right), None

        start = (parameters, jnp.float32(0), jnp.int32(0))
        (parameters, total, correct), _ = lax.scan(step, start, order, unroll=self.unroll)
        return parameters, total, correct
