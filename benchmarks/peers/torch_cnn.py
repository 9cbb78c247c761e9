"""Networks of convolutions as PyTorch trains them quickest: compiled, channels last, some steps in
a CUDA graph.

Weights are float32, products in half precision by autocast, rows of x stay on the GPU. The host
only has the epoch's order drawn, on the device, and starts graphs; the shorter last batch is left
out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from peers.torch_graph import captured

STEPS_OF_A_GRAPH = 8


class Trainer:
    """Trains a network by SGD.

    Parameters
    ----------
    model : torch.nn.Module
    x : ndarray (N, C, H, W) float32
    y : ndarray (N,) int64
    dtype : str
        ``'float16'`` or ``'bfloat16'``, of products.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        x: Any,
        y: Any,
        *,
        batch_size: int,
        lr: float,
        dtype: str,
        momentum: float = 0.0,
    ) -> None:
        torch.backends.cudnn.benchmark = True
        self.model = model.cuda().to(memory_format=torch.channels_last).train()
        self.compiled = torch.compile(self.model, dynamic=False)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=lr, momentum=momentum, fused=True
        )
        self.dtype, self.batch_size = getattr(torch, dtype), batch_size
        self.x = (
            torch.from_numpy(np.ascontiguousarray(x))
            .cuda()
            .contiguous(memory_format=torch.channels_last)
        )
        self.y = torch.from_numpy(np.ascontiguousarray(y)).cuda()
        self.order = torch.arange(len(x), device="cuda")
        self.offsets = torch.arange(batch_size, device="cuda")
        self.next_row = torch.zeros((), device="cuda", dtype=torch.int64)
        self.total = torch.zeros((), device="cuda")
        self.num_graphs = len(x) // batch_size // STEPS_OF_A_GRAPH
        self.steps = self.num_graphs * STEPS_OF_A_GRAPH
        start = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.run = captured(self._train, self._train_from_first)
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), start, strict=True):
                parameter.copy_(value)

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch; return the mean of its steps' losses, and 0: rows that were right are
        not counted.
        """
        self.order.copy_(torch.randperm(len(self.order), device="cuda"))
        self.next_row.zero_()
        self.total.zero_()
        for _ in range(self.num_graphs):
            self.run()
        return self.total.item() / self.steps, 0.0

    def _train_from_first(self) -> None:
        self.next_row.zero_()
        self._train()

    def _train(self) -> None:
        for _ in range(STEPS_OF_A_GRAPH):
            rows = self.order.index_select(0, self.next_row + self.offsets)
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            with torch.autocast("cuda", self.dtype):
                loss = cross_entropy(self.compiled(x), y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.total.add_(loss.detach())
            self.next_row.add_(self.batch_size)
