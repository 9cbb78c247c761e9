"""A residual network for images of 32 × 32 pixels: ResNet-18 without its first pooling, as it is
used for CIFAR-10. Four stages of two basic blocks, 64, 128, 256 and 512 channels wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTHS = (64, 128, 256, 512)
SIZE, CHANNELS, CLASSES = 32, 3, 10
BATCH, STEPS = 512, 16
SGD = {"lr": 0.02, "momentum": 0.9}


def made_up_images(num_rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Return images (M, 32, 32, 3) float32 and labels (M,)."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((num_rows, SIZE, SIZE, CHANNELS), np.float32)
    return images, rng.integers(0, CLASSES, num_rows)


def our_resnet(widths: tuple[int, ...] = WIDTHS) -> Any:
    """Return the network."""
    from warpfit import nn

    def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[Any]:
        padding = kernel // 2
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return [convolution, nn.BatchNorm2d(outputs)]

    layers: list[Any] = [*conv(CHANNELS, widths[0]), nn.ReLU()]
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for stride in (1 if stage == 0 else 2, 1):
            block = [*conv(inputs, outputs, 3, stride), nn.ReLU(), *conv(outputs, outputs)]
            is_same = stride == 1 and inputs == outputs
            shortcut = None if is_same else nn.Sequential(*conv(inputs, outputs, 1, stride))
            layers += [nn.Residual(*block, shortcut=shortcut), nn.ReLU()]
            inputs = outputs
    return nn.Sequential(*layers, nn.GlobalAvgPool2d(), nn.Linear(inputs, CLASSES))


def their_resnet(widths: tuple[int, ...] = WIDTHS) -> Any:
    """Return the same network of PyTorch's layers."""
    import torch
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[Any]:
        padding = kernel // 2
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return [convolution, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            layers = [*conv(inputs, outputs, 3, stride), nn.ReLU(), *conv(outputs, outputs)]
            self.layers = nn.Sequential(*layers)
            is_same = stride == 1 and inputs == outputs
            self.shortcut = nn.Sequential(*([] if is_same else conv(inputs, outputs, 1, stride)))

        def forward(self, x: Any) -> Any:
            return torch.relu(self.layers(x) + self.shortcut(x))

    layers: list[Any] = [*conv(CHANNELS, widths[0]), nn.ReLU()]
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(Block(inputs, outputs, stride))
            inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*layers, *head)
