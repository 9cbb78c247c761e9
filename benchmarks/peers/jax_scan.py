"""The same training steps in JAX: an epoch is one compiled function, a scan over its batches.

The order is drawn on the device. All rows are gathered before the scan, or those of a batch within its step. Weights
are float32 and donated; for bfloat16, rows of x are kept in it. The shorter last batch would be a second loop body to
compile, and is left out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# What JAX calls the products of a precision; those in bfloat16 have operands of that dtype.
MATMUL_PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}


def initial_parameters(sizes: tuple[int, ...], seed: int = 0) -> list[tuple[Any, Any]]:
    """Return weights (in, out) and biases of each layer, drawn as PyTorch draws them."""
    rng = np.random.default_rng(seed)
    parameters = []
    for inputs, outputs in pairwise(sizes):
        bound = inputs**-0.5
        weight = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        bias = rng.uniform(-bound, bound, outputs).astype(np.float32)
        parameters.append((jnp.asarray(weight), jnp.asarray(bias)))
    return parameters


def loss_and_correct(parameters: list[tuple[Any, Any]], x: Any, y: Any) -> tuple[Any, Any]:
    """Return the mean loss of a batch and how many rows are right; products are in the dtype of x.

    Integer targets mean cross-entropy; others the mean squared error, for which no row is right.
    """
    dtype = x.dtype
    for idx, (weight, bias) in enumerate(parameters):
        x = jnp.dot(x if idx == 0 else jax.nn.relu(x), weight.astype(dtype)) + bias.astype(dtype)
    outputs = x.astype(jnp.float32)
    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.mean((outputs - y) ** 2), jnp.int32(0)
    picked = jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(outputs, axis=1) - picked)
    return loss, jnp.sum(jnp.argmax(outputs, axis=1) == y, dtype=jnp.int32)


class Trainer:
    """Trains a network of linear layers and ReLU by SGD, in whole batches.

    Parameters
    ----------
    sizes : tuple of int
    x : ndarray (N, F) float32
    y : ndarray (N,) int64 or (N, O) float32
    precision : str
        ``'float32'``, ``'tf32'`` or ``'bfloat16'``.
    unroll : int
        Steps that the compiled loop's body holds.
    gathers_first : bool
        Whether all rows are gathered before the scan, else those of a batch in its step.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        x: Any,
        y: Any,
        *,
        batch_size: int,
        lr: float,
        precision: str,
        unroll: int,
        gathers_first: bool = True,
    ) -> None:
        self.x = jnp.asarray(x, jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
        self.y = jnp.asarray(y, jnp.int32 if y.dtype.kind == "i" else jnp.float32)
        self.parameters = initial_parameters(sizes)
        self.batch_size, self.lr, self.steps = batch_size, lr, len(x) // batch_size
        self.matmul_precision, self.unroll = MATMUL_PRECISIONS[precision], unroll
        self.gathers_first = gathers_first
        self.num_epochs = 0
        self.run = jax.jit(self._run, donate_argnums=0)

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch, and return the mean of its steps' losses and the share of rows that were right."""
        # The precision is part of what a compiled function is looked up by, so it holds for the calls, too.
        with jax.default_matmul_precision(self.matmul_precision):
            result = self.run(self.parameters, self.x, self.y, np.uint32(self.num_epochs))
        self.parameters, total, correct = jax.block_until_ready(result)
        self.num_epochs += 1
        return float(total) / self.steps, int(correct) / (self.steps * self.batch_size)

    def _run(self, parameters: Any, x: Any, y: Any, epoch_idx: Any) -> tuple[Any, Any, Any]:
        """Return the parameters after an epoch, the sum of losses, and the number of right rows."""
        key = jax.random.fold_in(jax.random.key(0), epoch_idx)
        order = jax.random.permutation(key, len(x))[: self.steps * self.batch_size]
        order = order.reshape(self.steps, self.batch_size)

        def step(carry: Any, batch: Any) -> tuple[Any, None]:
            parameters, total, correct = carry
            rows, targets = batch if self.gathers_first else (x[batch], y[batch])
            gradient = jax.value_and_grad(loss_and_correct, has_aux=True)
            (loss, right), gradients = gradient(parameters, rows, targets)
            parameters = jax.tree.map(lambda value, grad: value - self.lr * grad, parameters, gradients)
            return (parameters, total + loss, correct + right), None

        start = (parameters, jnp.float32(0), jnp.int32(0))
        batches = (x[order], y[order]) if self.gathers_first else order
        (parameters, total, correct), _ = lax.scan(step, start, batches, unroll=self.unroll)
        return parameters, total, correct
