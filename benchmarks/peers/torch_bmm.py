"""Many networks of one shape in PyTorch: batched products, a compiled step, some steps in a CUDA
graph.

Weights of all networks are stacked, so that a layer is one `baddbmm`. Gradients of the sum of all
networks' losses are each network's own. A graph holds up to 8 steps, which find their rows by
themselves, as a counter on the device says how far the epoch is. Every network has its rate, its
initial values and, unless it shares that of all, its order, drawn on the device. Weights are
float32; for bfloat16, rows of x are kept in it. The shorter last batch is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.func import grad_and_value
from torch.nn.functional import cross_entropy, relu

from peers.torch_eager import MATMUL_PRECISIONS
from peers.torch_graph import captured

STEPS_OF_A_GRAPH = 8


def stacked_parameters(sizes: tuple[int, ...], num_networks: int, device: str) -> list[Any]:
    """Return weights (N, in, out) and biases (N, 1, out) in turn, drawn as PyTorch draws them."""
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for inputs, outputs in pairwise(sizes):
        bound = inputs**-0.5
        for shape in ((num_networks, inputs, outputs), (num_networks, 1, outputs)):
            values = torch.rand(shape, generator=generator) * 2 * bound - bound
            parameters.append(values.to(device))
    return parameters


def outputs_of(parameters: list[Any], x: Any, dtype: torch.dtype) -> Any:
    """Return the outputs (N, B, O) in float32 of rows x (N, B, F), with products in `dtype`."""
    for idx, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        x = x if idx == 0 else relu(x)
        x = torch.baddbmm(bias.to(dtype), x, weight.to(dtype))
    return x.float()


def step(
    parameters: list[Any],
    rates: Any,
    totals: Any,
    correct: Any,
    x: Any,
    y: Any,
    *,
    dtype: torch.dtype,
) -> None:
    """Train every network on its batch, x (N, B, F) and y (N, B), in place; add up losses and right
    rows, (N,).
    """

    def loss_of(parameters: list[Any]) -> tuple[Any, tuple[Any, Any]]:
        outputs = outputs_of(parameters, x, dtype)
        losses = (
            cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
            .view(y.shape)
            .mean(1)
        )
        return losses.sum(), (losses, (outputs.argmax(2) == y).sum(1))

    gradients, (_, (losses, right)) = grad_and_value(loss_of, has_aux=True)(parameters)
    totals.add_(losses)
    correct.add_(right)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(rates * gradient)


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
    has_own_orders : bool
        Whether each network has an order of its own; else all train on the same batches, which is
        less to do.
    mode : str or None
        Of `torch.compile`.
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
        has_own_orders: bool = True,
        mode: str | None = None,
        device: str = "cuda",
    ) -> None:
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS[precision])
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.x = torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype)
        self.y = torch.from_numpy(np.ascontiguousarray(y)).to(device)
        self.num_networks = len(rates)
        self.rates = torch.tensor(np.asarray(rates), dtype=torch.float32, device=device).view(
            -1, 1, 1
        )
        self.parameters = stacked_parameters(sizes, self.num_networks, device)
        self.totals = torch.zeros(self.num_networks, device=device)
        self.correct = torch.zeros(self.num_networks, device=device, dtype=torch.int64)
        self.batch_size, self.steps = batch_size, len(x) // batch_size
        self.num_orders = self.num_networks if has_own_orders else 1
        self.orders = torch.arange(len(x), device=device).repeat(self.num_orders, 1)
        self.next_row = torch.zeros((), device=device, dtype=torch.int64)
        self.offsets = torch.arange(batch_size, device=device)
        compiled = torch.compile(step, mode=mode, dynamic=False, fullgraph=True)
        self.train = partial(compiled, dtype=dtype)
        steps_of_graph = min(STEPS_OF_A_GRAPH, self.steps)
        self.num_graphs, remaining = divmod(self.steps, steps_of_graph)
        self.run_graph = self._recorded(steps_of_graph)
        self.run_last_graph = self._recorded(remaining) if remaining else None

    def epoch(self) -> tuple[Any, Any]:
        """Train for an epoch; return each network's mean of its steps' losses, and its share of
        right rows, (N,).
        """
        self.orders.copy_(torch.rand(self.orders.shape, device=self.x.device).argsort(dim=1))
        for counter in (self.next_row, self.totals, self.correct):
            counter.zero_()
        for _ in range(self.num_graphs):
            self.run_graph()
        if self.run_last_graph is not None:
            self.run_last_graph()
        losses, right = torch.stack((self.totals, self.correct.float())).cpu().numpy()
        return losses / self.steps, right / (self.steps * self.batch_size)

    def _recorded(self, steps: int) -> Callable[[], None]:
        """Return a function that trains on the next batches, recorded; the parameters stay as they
        are.
        """
        shape = (self.num_networks, self.batch_size)

        def train() -> None:
            for _ in range(steps):
                rows = self.orders.index_select(1, self.next_row + self.offsets)
                x = self.x.index_select(0, rows.flatten()).view(*rows.shape, -1).expand(*shape, -1)
                y = self.y.index_select(0, rows.flatten()).view(rows.shape).expand(shape)
                self.train(self.parameters, self.rates, self.totals, self.correct, x, y)
                self.next_row.add_(self.batch_size)

        def warm_up() -> None:
            self.next_row.zero_()
            train()

        start = [parameter.clone() for parameter in self.parameters]
        run = captured(train, warm_up)
        for parameter, value in zip(self.parameters, start, strict=True):
            parameter.copy_(value)
        return run
