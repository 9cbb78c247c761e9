"""The same training steps in JAX: an epoch is one compiled function, a scan over its batches.

The order is drawn on the device. All rows are gathered before the scan, and the units that dropout
keeps are drawn, or those of a batch within its step. What Adam takes from the number of a step, the
scheduled rate included, is found for all steps at once. Weights, and the state of Adam, are float32
and donated; for bfloat16, rows of x are kept in it. The shorter last batch would be a second loop
body to compile, and is left out.
"""

from __future__ import annotations

from itertools import pairwise
from math import log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# What JAX calls the products of a precision; those in bfloat16 have operands of that dtype.
MATMUL_PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}

# Adam's usual settings.
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


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


def loss_and_correct(
    parameters: list[tuple[Any, Any]], x: Any, y: Any, kept: Any = None, dropout: float = 0.0
) -> tuple[Any, Any]:
    """Return the mean loss of a batch and how many rows are right; products are in the dtype of x.

    Integer targets mean cross-entropy; others the mean squared error, for which no row is right.
    `kept` (B, all hidden units) bool says which units dropout keeps; None keeps all.
    """
    dtype = x.dtype
    first_unit = 0
    for idx, (weight, bias) in enumerate(parameters):
        x = x if idx == 0 else jax.nn.relu(x)
        if idx > 0 and kept is not None:
            units = slice(first_unit, first_unit + x.shape[1])
            x, first_unit = jnp.where(kept[:, units], x / (1 - dropout), 0), units.stop
        x = jnp.dot(x, weight.astype(dtype)) + bias.astype(dtype)
    outputs = x.astype(jnp.float32)
    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.mean((outputs - y) ** 2), jnp.int32(0)
    picked = jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(outputs, axis=1) - picked)
    return loss, jnp.sum(jnp.argmax(outputs, axis=1) == y, dtype=jnp.int32)


def adam_numbers(
    steps_done: Any, steps: int, *, lr: float, weight_decay: float, is_scheduled: bool
) -> tuple[Any, Any, Any]:
    """Return what Adam takes from the numbers of an epoch's steps, three arrays (steps,).

    These are the rate and eps, both with the bias corrections in them, and what decoupled decay
    leaves of a weight. A scheduled rate is half a cosine from lr to 0 over the epoch.
    """
    idx = jnp.arange(steps, dtype=jnp.float32)
    rate = lr * 0.5 * (1 + jnp.cos(idx * (pi / steps))) if is_scheduled else jnp.full(steps, lr)
    counted = steps_done.astype(jnp.float32) + idx + 1
    of_mean, of_square = (-jnp.expm1(counted * log(beta)) for beta in (BETA1, BETA2))
    root = jnp.sqrt(of_square)
    return rate * root / of_mean, EPS * root, 1 - rate * weight_decay


def adam_updated(parameters: Any, moments: Any, gradients: Any, numbers: Any) -> tuple[Any, Any]:
    """Return the parameters and the moments after a step of Adam or AdamW; `numbers` are those of
    `adam_numbers`.
    """
    rate, eps, remaining = numbers
    means, squares = moments
    means = jax.tree.map(lambda mean, grad: BETA1 * mean + (1 - BETA1) * grad, means, gradients)
    squares = jax.tree.map(
        lambda square, grad: BETA2 * square + (1 - BETA2) * grad * grad, squares, gradients
    )
    parameters = jax.tree.map(
        lambda value, mean, square: remaining * value - rate * mean / (jnp.sqrt(square) + eps),
        parameters,
        means,
        squares,
    )
    return parameters, (means, squares)


class Trainer:
    """Trains a network of linear layers and ReLU in whole batches.

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
        Whether all rows are gathered, and all units that dropout keeps drawn, before the scan, else
        those of a batch in its step.
    optimizer : str
        ``'sgd'``, ``'adam'`` or ``'adamw'``.
    weight_decay : float
        Of ``'adamw'``.
    dropout : float
        Share of units that is dropped after each ReLU.
    schedule : str
        ``'constant'``, or for Adam's forms ``'cosine'``: half a cosine from lr to 0 over the steps
        of each epoch.
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
        optimizer: str = "sgd",
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        schedule: str = "constant",
    ) -> None:
        if optimizer == "sgd" and schedule != "constant":
            raise ValueError(f"expected a constant rate for sgd, got {schedule}")
        self.x = jnp.asarray(x, jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
        self.y = jnp.asarray(y, jnp.int32 if y.dtype.kind == "i" else jnp.float32)
        self.parameters = initial_parameters(sizes)
        self.optimizer, self.is_scheduled = optimizer, schedule == "cosine"
        # The state of Adam: averages of gradients and of their squares.
        twice = () if optimizer == "sgd" else (self.parameters, self.parameters)
        self.moments = jax.tree.map(jnp.zeros_like, twice)
        self.weight_decay = weight_decay if optimizer == "adamw" else 0.0
        self.dropout, self.num_units = dropout, sum(sizes[1:-1])
        self.batch_size, self.lr, self.steps = batch_size, lr, len(x) // batch_size
        self.matmul_precision, self.unroll = MATMUL_PRECISIONS[precision], unroll
        self.gathers_first = gathers_first
        self.num_epochs = 0
        self.run = jax.jit(self._run, donate_argnums=(0, 1))

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch, and return the mean of its steps' losses and the share of rows that
        were right.
        """
        # The precision is part of what a compiled function is looked up by, so it holds for the
        # calls, too.
        with jax.default_matmul_precision(self.matmul_precision):
            result = self.run(
                self.parameters, self.moments, self.x, self.y, np.uint32(self.num_epochs)
            )
        self.parameters, self.moments, total, correct = jax.block_until_ready(result)
        self.num_epochs += 1
        return float(total) / self.steps, int(correct) / (self.steps * self.batch_size)

    def _run(
        self, parameters: Any, moments: Any, x: Any, y: Any, epoch_idx: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Return parameters and moments after an epoch, the sum of losses, and the number of right
        rows.
        """
        key = jax.random.fold_in(jax.random.key(0), epoch_idx)
        order = jax.random.permutation(key, len(x))[: self.steps * self.batch_size]
        order = order.reshape(self.steps, self.batch_size)

        def step(carry: Any, inputs: Any) -> tuple[Any, None]:
            parameters, moments, total, correct = carry
            batch, kept, numbers = inputs
            rows, targets = batch if self.gathers_first else (x[batch], y[batch])
            if self.dropout and not self.gathers_first:
                kept = self._draw_kept(kept)
            gradient = jax.value_and_grad(loss_and_correct, has_aux=True)
            (loss, right), gradients = gradient(parameters, rows, targets, kept, self.dropout)
            if self.optimizer == "sgd":
                parameters = jax.tree.map(
                    lambda value, grad: value - self.lr * grad, parameters, gradients
                )
            else:
                parameters, moments = adam_updated(parameters, moments, gradients, numbers)
            return (parameters, moments, total + loss, correct + right), None

        start = (parameters, moments, jnp.float32(0), jnp.int32(0))
        batches = (x[order], y[order]) if self.gathers_first else order
        inputs = (batches, self._kept(epoch_idx), self._numbers(epoch_idx))
        (parameters, moments, total, correct), _ = lax.scan(step, start, inputs, unroll=self.unroll)
        return parameters, moments, total, correct

    def _kept(self, epoch_idx: Any) -> Any:
        """Return the units that dropout keeps in each step, or what these are drawn from; None
        keeps all.
        """
        if not self.dropout:
            return None
        # Philox, as PyTorch has it: less to compute than JAX's usual numbers.
        key = jax.random.fold_in(jax.random.key(1, impl="rbg"), epoch_idx)
        return (
            self._draw_kept(key, self.steps)
            if self.gathers_first
            else jax.random.split(key, self.steps)
        )

    def _draw_kept(self, key: Any, *steps: int) -> Any:
        return jax.random.bernoulli(
            key, 1 - self.dropout, (*steps, self.batch_size, self.num_units)
        )

    def _numbers(self, epoch_idx: Any) -> Any:
        if self.optimizer == "sgd":
            return None
        return adam_numbers(
            epoch_idx * self.steps,
            self.steps,
            lr=self.lr,
            weight_decay=self.weight_decay,
            is_scheduled=self.is_scheduled,
        )
