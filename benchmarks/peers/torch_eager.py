"""The same training steps in PyTorch, eager: data on the GPU, no reading back within an epoch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

# What PyTorch calls the products of a precision.
MATMUL_PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "highest"}


def mlp(sizes: tuple[int, ...], dropout: float = 0.0) -> nn.Module:
    """Return linear layers with ReLU, and dropout after each ReLU if asked for."""
    *hidden, last = (nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))
    layers: list[nn.Module] = []
    for linear in hidden:
        layers += [linear, nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, last)


def mnist_cnn(dropout: float = 0.5) -> nn.Module:
    """PyTorch's MNIST example without its log-softmax, which the loss below contains."""
    layers = (
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(dropout / 2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, 10),
    )
    return nn.Sequential(*(layer for layer in layers if dropout or type(layer) is not nn.Dropout))


def take_over(model: nn.Module, arrays: list[Any]) -> None:
    """Give a network of `mlp` weights (in, out) and biases (out,), NumPy's arrays, layer after
    layer.
    """
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array.T.copy()))


def loss_and_correct(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Return the mean loss of a batch and how many rows are right.

    Integer targets mean cross-entropy; others the mean squared error, for which no row is right.
    """
    if targets.is_floating_point():
        return mse_loss(outputs, targets), torch.zeros((), dtype=torch.int64, device=outputs.device)
    return cross_entropy(outputs, targets), (outputs.argmax(1) == targets).sum()


def make_optimizer(
    parameters: Any, optimizer: str, lr: float, weight_decay: float, **settings: Any
) -> Any:
    """Return PyTorch's optimizer of a name; Adam's forms update all parameters in one kernel."""
    if optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr)
    if optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, fused=True, **settings)
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True, **settings)


class Trainer:
    """Trains a model on every batch of an epoch, the shorter last one included.

    Parameters
    ----------
    model : nn.Module
    x : ndarray (N, ...) float32
    y : ndarray (N,) int64 or (N, O) float32
    optimizer : str
        ``'sgd'``, ``'adam'`` or ``'adamw'``.
    weight_decay : float
        Of ``'adamw'``.
    schedule : str
        ``'constant'``, or ``'cosine'``: half a cosine from lr to 0 over the steps of each epoch.
    precision : str
        ``'float32'``, ``'tf32'`` or ``'bfloat16'``, which is autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        y: Any,
        *,
        batch_size: int,
        lr: float,
        optimizer: str = "sgd",
        weight_decay: float = 0.0,
        schedule: str = "constant",
        precision: str = "float32",
        device: str = "cuda",
    ) -> None:
        self.model = model.to(device).train()
        self.x, self.y = (
            torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in (x, y)
        )
        self.optimizer = make_optimizer(self.model.parameters(), optimizer, lr, weight_decay)
        self.batch_size, self.precision = batch_size, precision
        self.steps = -(-len(x) // batch_size)
        self.schedule = (
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, T_0=self.steps)
            if schedule == "cosine"
            else None
        )

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch, and return the mean of its steps' losses and the share of rows that
        were right.
        """
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS[self.precision])
        device = self.x.device
        total, correct = (
            torch.zeros((), device=device),
            torch.zeros((), device=device, dtype=torch.int64),
        )
        for rows in torch.randperm(len(self.x), device=device).split(self.batch_size):
            loss, right = self.step(self.x[rows], self.y[rows])
            total += loss
            correct += right
        return total.item() / self.steps, correct.item() / len(self.x)

    def step_losses(self, order: Any) -> list[float]:
        """Train for an epoch over the rows in this order, (N,) int64, and return the loss of every
        step.
        """
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS[self.precision])
        places = torch.from_numpy(np.ascontiguousarray(order)).to(self.x.device)
        steps = [self.step(self.x[rows], self.y[rows]) for rows in places.split(self.batch_size)]
        losses: list[float] = torch.stack([loss for loss, _ in steps]).tolist()
        return losses

    def forward(self, batch: Any) -> Any:
        """Return the outputs of a batch, as a step finds them."""
        with self._precision():
            return self.model(batch)

    def step(self, batch: Any, targets: Any) -> tuple[Any, Any]:
        """Train on a batch, and return its loss and how many rows were right."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss, right = loss_and_correct(self.model(batch), targets)
        loss.backward()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss.detach(), right

    def _precision(self) -> AbstractContextManager[Any]:
        if self.precision == "bfloat16":
            return torch.autocast(self.x.device.type, torch.bfloat16)
        return nullcontext()


def epoch_seconds(
    model: nn.Module, x: Any, y: Any, *, batch_size: int, lr: float, epochs: int
) -> list[float]:
    """Return the wall time of each epoch of a `Trainer` in float32, the first of which warms up."""
    trainer = Trainer(model, x, y, batch_size=batch_size, lr=lr)
    seconds = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        start = perf_counter()
        trainer.epoch()
        seconds.append(perf_counter() - start)
    return seconds
