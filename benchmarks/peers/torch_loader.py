"""The same training steps in PyTorch, eager, as its tutorials have them: rows come from a
DataLoader.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    """Trains a model by SGD; the loss is read once an epoch.

    Parameters
    ----------
    model : nn.Module
    x : ndarray (N, F) float32
    y : ndarray (N,) int64
    """

    def __init__(
        self, model: nn.Module, x: Any, y: Any, *, batch_size: int, lr: float, device: str
    ) -> None:
        self.model, self.device = model.to(device).train(), device
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        self.loader = DataLoader(rows, batch_size, shuffle=True, pin_memory=device != "cpu")
        self.steps = len(self.loader)

    def epoch(self, most_steps: int | None = None) -> tuple[float, float]:
        """Train for an epoch, or its first steps; return the mean of their losses and the share of
        right rows.
        """
        total, correct = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        steps = seen = 0
        for batch, targets in islice(self.loader, most_steps):
            x = batch.to(self.device, non_blocking=True)
            y = targets.to(self.device, non_blocking=True)
            self.optimizer.zero_grad()
            outputs = self.model(x)
            loss = cross_entropy(outputs, y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
            correct += (outputs.argmax(1) == y).sum()
            steps, seen = steps + 1, seen + len(y)
        return total.item() / steps, correct.item() / seen
