"""The same training steps in PyTorch, eager: data on the GPU, no reading back within an epoch."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def mlp(sizes: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mnist_cnn() -> nn.Module:
    """PyTorch's MNIST example without its log-softmax, which the loss below contains."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def epoch_seconds(
    model: nn.Module, x: Any, y: Any, *, batch_size: int, lr: float, epochs: int
) -> list[float]:
    """Return the wall time of each epoch of SGD, the first of which warms up.

    Parameters
    ----------
    x : ndarray (N, ...) float32
    y : ndarray (N,) int64
    """
    model = model.cuda().train()
    inputs, labels = torch.from_numpy(np.ascontiguousarray(x)).cuda(), torch.from_numpy(y).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    seconds = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        start = perf_counter()
        total = torch.zeros((), device="cuda")
        correct = torch.zeros((), device="cuda", dtype=torch.int64)
        order = torch.randperm(len(inputs), device="cuda")
        for rows in order.split(batch_size):
            batch, target = inputs[rows], labels[rows]
            optimizer.zero_grad(set_to_none=True)
            outputs = model(batch)
            loss = cross_entropy(outputs, target)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            correct += (outputs.argmax(1) == target).sum()
        total.item(), correct.item()
        seconds.append(perf_counter() - start)
    return seconds
