"""The same training steps in PyTorch as it is quickest: a compiled step, some of them in a CUDA graph.

`torch.compile` makes one function of forward, loss, backward, update and sums. A graph holds up to 32 steps and begins
with gathering their rows, which it finds by itself: a counter on the device says how far the epoch is. The host only
has the epoch's order drawn, on the device, and starts graphs. The shorter last batch would be compiled for itself, and
is left out. Weights are float32; for bfloat16, rows of x are kept in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import grad_and_value
from torch.nn.functional import linear, relu

from peers.torch_eager import MATMUL_PRECISIONS, loss_and_correct, mlp

STEPS_OF_A_GRAPH = 32
# Each network, batch and precision is compiled for itself; by default the ninth of a function would stay eager.
torch._dynamo.config.recompile_limit = 1024
torch._dynamo.config.accumulated_recompile_limit = 1024


def outputs_of(parameters: list[Any], x: Any, dtype: torch.dtype) -> Any:
    """Return the network's outputs (B, O) in float32, with products in `dtype`."""
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for idx, (weight, bias) in enumerate(layers):
        x = linear(x if idx == 0 else relu(x), weight.to(dtype), bias.to(dtype))
    return x.float()


def step(
    parameters: list[Any], total: Any, correct: Any, x: Any, y: Any, *, lr: float, dtype: torch.dtype
) -> None:
    """Train on a batch, in place, and add its loss to `total` and its right rows to `correct`."""

    def loss_of(parameters: list[Any]) -> tuple[Any, Any]:
        return loss_and_correct(outputs_of(parameters, x, dtype), y)

    gradients, (loss, right) = grad_and_value(loss_of, has_aux=True)(parameters)
    torch._foreach_add_(parameters, gradients, alpha=-lr)
    total.add_(loss)
    correct.add_(right)


class Trainer:
    """Trains a network of linear layers and ReLU by SGD, in whole batches.

    Parameters
    ----------
    sizes : tuple of int
    x : ndarray (N, F) float32
    y : ndarray (N,) int64 or (N, O) float32
    precision : str
        ``'float32'``, ``'tf32'`` or ``'bfloat16'``.
    mode : str or None
        Of `torch.compile`; ``'max-autotune-no-cudagraphs'`` also tries products of Triton.
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
        mode: str | None = None,
        device: str = "cuda",
    ) -> None:
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS[precision])
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.x = torch.from_numpy(np.ascontiguousarray(x)).to(device, self.dtype)
        self.y = torch.from_numpy(np.ascontiguousarray(y)).to(device)
        self.parameters = [parameter.detach() for parameter in mlp(sizes).to(device).parameters()]
        self.total = torch.zeros((), device=device)
        self.correct = torch.zeros((), device=device, dtype=torch.int64)
        self.order = torch.arange(len(x), device=device)
        self.next_row = torch.zeros((), device=device, dtype=torch.int64)
        self.offsets = torch.arange(len(x), device=device)  # graphs read them, but do not keep them
        self.batch_size, self.lr, self.steps = batch_size, lr, len(x) // batch_size
        self.step = torch.compile(step, mode=mode, dynamic=False, fullgraph=True)
        steps_of_graph = min(STEPS_OF_A_GRAPH, self.steps)
        self.num_graphs, remaining = divmod(self.steps, steps_of_graph)
        self.run_graph = self._recorded(steps_of_graph)
        self.run_last_graph = self._recorded(remaining) if remaining else None

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch, and return the mean of its steps' losses and the share of rows that were right."""
        self.order.copy_(torch.randperm(len(self.order), device=self.order.device))
        for counter in (self.next_row, self.total, self.correct):
            counter.zero_()
        for _ in range(self.num_graphs):
            self.run_graph()
        if self.run_last_graph is not None:
            self.run_last_graph()
        total, correct = torch.stack((self.total, self.correct.float())).tolist()
        return total / self.steps, correct / (self.steps * self.batch_size)

    def _recorded(self, steps: int) -> Callable[[], None]:
        """Return a function that trains on the next batches, recorded; the parameters stay as they are."""
        size = self.batch_size
        offsets = self.offsets[: steps * size]

        def train() -> None:
            rows = self.order.index_select(0, self.next_row + offsets)
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            # From the last: its labels may not be aligned, and what is compiled for these serves all.
            for idx in reversed(range(steps)):
                part = slice(idx * size, (idx + 1) * size)
                self.step(
                    self.parameters, self.total, self.correct, x[part], y[part], lr=self.lr, dtype=self.dtype
                )
            self.next_row.add_(steps * size)

        def warm_up() -> None:
            self.next_row.zero_()
            train()

        start = [parameter.clone() for parameter in self.parameters]
        run = captured(train, warm_up)
        for parameter, value in zip(self.parameters, start, strict=True):
            parameter.copy_(value)
        return run


def captured(train: Callable[[], None], warm_up: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs `train` as a CUDA graph; what it compiles or sets up happens in `warm_up`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Threads of other libraries in the process may do what a capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        train()
    return graph.replay
