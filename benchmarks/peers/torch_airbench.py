"""airbench94's training in PyTorch as its authors run it: in half precision, channels last, the
network and Newton-Schulz compiled, images augmented once an epoch.

Written from the description of KellerJordan/cifar10-airbench. A step is forward, loss, backward,
Nesterov's SGD of the biases and the last layer, and Muon of the filters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, gelu, max_pool2d, pad

WIDTHS = (64, 256, 256)
SHIFT = 2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Norm(nn.BatchNorm2d):
    """Batch norm in float32 whose weight stays 1."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Group(nn.Module):
    """Two convolutions, the first with pooling, each with a norm and GELU."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, outputs, 3, padding="same", bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        self.norms = nn.ModuleList([Norm(outputs), Norm(outputs)])
        with torch.no_grad():
            for convolution in (self.first, self.second):
                nn.init.dirac_(convolution.weight[: convolution.in_channels])

    def forward(self, x: Any) -> Any:
        x = gelu(self.norms[0](max_pool2d(self.first(x), 2)))
        return gelu(self.norms[1](self.second(x)))


class Network(nn.Module):
    """The network; the bias of its first layer is trained while `trains_bias` is given."""

    def __init__(self) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        channels = (24, *WIDTHS)
        self.groups = nn.Sequential(*map(Group, channels[:-1], channels[1:]))
        self.head = nn.Linear(WIDTHS[-1], 10, bias=False)
        with torch.no_grad():
            self.head.weight /= self.head.weight.std()

    def forward(self, x: Any, trains_bias: bool = True) -> Any:
        bias = self.whiten.bias if trains_bias else self.whiten.bias.detach()
        x = self.groups(gelu(conv2d(x, self.whiten.weight, bias)))
        x = max_pool2d(x, 3).flatten(1)
        return self.head(x) / x.shape[1]


@torch.compile
def orthogonalised(gradient: Any) -> Any:
    """Return a matrix's direction by three steps of Newton and Schulz in bfloat16."""
    a, b, c = COEFFICIENTS
    x = gradient.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(3):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon:
    """Momentum along orthogonal directions, of filters whose norm is kept."""

    def __init__(self, filters: list[Any], lr: float, momentum: float) -> None:
        self.filters, self.lr, self.momentum = filters, lr, momentum
        self.velocities = [torch.zeros_like(each) for each in filters]

    @torch.no_grad()
    def step(self, share: float) -> None:
        for w, velocity in zip(self.filters, self.velocities, strict=True):
            velocity.mul_(self.momentum).add_(w.grad)
            ahead = w.grad.add(velocity, alpha=self.momentum)
            w.mul_(len(w) ** 0.5 / w.norm())
            found = orthogonalised(ahead.reshape(len(w), -1)).view(w.shape)
            w.add_(found, alpha=-self.lr * share)


class Trainer:
    """Trains the network.

    Parameters
    ----------
    x : ndarray (N, 32, 32, 3) uint8
    y : ndarray (N,) int64
    mode : str
        Of `torch.compile`.
    """

    def __init__(
        self, x: Any, y: Any, *, batch_size: int, epochs: int, mode: str = "max-autotune"
    ) -> None:
        torch.backends.cudnn.benchmark = True
        images = torch.from_numpy(np.ascontiguousarray(x)).cuda().permute(0, 3, 1, 2)
        images = ((images.half() / 255) - 0.47) / 0.25
        self.padded = pad(images, (SHIFT,) * 4, "reflect")
        self.y = torch.from_numpy(np.ascontiguousarray(y)).cuda()
        self.batch_size, self.steps = batch_size, len(x) // batch_size
        self.total, self.whitened = epochs * self.steps, 3 * self.steps
        self.done = 0
        self.model = Network().cuda().to(memory_format=torch.channels_last).train()
        for module in self.model.modules():
            module.float() if isinstance(module, Norm) else None
        for module in self.model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.half()
        self.compiled = torch.compile(self.model, mode=mode)
        self._make_optimizers()

    def _make_optimizers(self) -> None:
        decay = 2e-6 * self.batch_size
        norms = [m.bias for m in self.model.modules() if isinstance(m, Norm)]
        groups = [
            ([self.model.whiten.bias], 0.053),
            (norms, 0.053),
            ([self.model.head.weight], 0.67),
        ]
        self.rates = [lr for _, lr in groups]
        self.sgd = torch.optim.SGD(
            [{"params": held, "lr": lr, "weight_decay": decay / lr} for held, lr in groups],
            momentum=0.85,
            nesterov=True,
            fused=True,
        )
        filters = [m.weight for m in self.model.groups.modules() if isinstance(m, nn.Conv2d)]
        self.muon = Muon(filters, 0.24, 0.6)

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch; return the loss of the last batch, and 0: right rows are not
        counted.
        """
        images = self._augmented(self.done // self.steps % 2 == 1)
        order = torch.randperm(len(images), device="cuda")
        for step in range(self.steps):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            loss = self._step(images[rows], self.y[rows])
        return loss.item() / self.batch_size, 0.0

    def _augmented(self, is_mirrored: bool) -> Any:
        count, side = len(self.padded), self.padded.shape[-1] - 2 * SHIFT
        windows = self.padded.unfold(2, side, 1).unfold(3, side, 1)
        rows, columns = torch.randint(0, 2 * SHIFT + 1, (2, count), device="cuda")
        images = windows[torch.arange(count, device="cuda"), :, rows, columns]
        images = images.flip(-1) if is_mirrored else images
        return images.contiguous(memory_format=torch.channels_last)

    def _step(self, x: Any, y: Any) -> Any:
        at = self.done % self.total
        outputs = self.compiled(x, at < self.whitened)
        loss = cross_entropy(outputs, y, label_smoothing=0.2, reduction="sum")
        loss.backward()
        shares = [max(0.0, 1 - at / self.whitened), 1 - at / self.total, 1 - at / self.total]
        for group, lr, share in zip(self.sgd.param_groups, self.rates, shares, strict=True):
            group["lr"] = lr * share
        self.sgd.step()
        self.muon.step(1 - at / self.total)
        self.sgd.zero_grad(set_to_none=True)
        for each in self.muon.filters:
            each.grad = None
        self.done += 1
        return loss.detach()
