"""Two images, one network: are they of the same digit? The example `siamese_network` of PyTorch.

python examples/siamese_network.py [epochs] [pairs] [channels of the first layer]
"""

from __future__ import annotations

import sys

import numpy as np

import warpfit as wf
from warpfit import autograd, nn, optim


class Block(nn.Module):
    """Two convolutions and what goes past them, as ResNet-18 has it."""

    def __init__(self, before: int, after: int) -> None:
        stride = 1 if before == after else 2
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        narrow = nn.Conv2d(before, after, 1, stride, bias=False)
        past = (nn.Identity(),) if stride == 1 else (narrow, nn.BatchNorm2d(after))
        self.past = nn.Sequential(*past)
        self.relu = nn.ReLU()

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return self.relu(self.body(x) + self.past(x))


class SiameseNetwork(nn.Module):
    """ResNet-18 for either image of pairs (M, 2, 28, 28), and layers that compare the features."""

    def __init__(self, width: int) -> None:
        widths = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width]
        self.resnet = nn.Sequential(
            nn.Conv2d(1, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            *(Block(*pair) for pair in zip(widths, [*widths[1:], 8 * width], strict=True)),
            nn.GlobalAvgPool2d(),
        )
        self.compare = nn.Sequential(nn.Linear(16 * width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        features = [self.resnet(x[:, side, ..., None]) for side in (0, 1)]
        return self.compare(autograd.concatenate(features, axis=1))


def pairs_of(
    images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of images (count, 2, 28, 28), every other of one digit, and which those are."""
    first = rng.integers(0, len(images), count)
    is_same = np.arange(count) % 2 == 0
    digits = (labels[first] + np.where(is_same, 0, rng.integers(1, 10, count))) % 10
    second = np.array([rng.choice(np.flatnonzero(labels == digit)) for digit in digits])
    return images[np.stack([first, second], axis=1)], is_same[:, None].astype(np.float32)


def main(epochs: int = 14, count: int = 60_000, width: int = 64) -> float:
    """Train, and return the accuracy on pairs of test images."""
    wf.manual_seed(1)
    rng = np.random.default_rng(1)
    data = wf.data.load_dataset("mnist")
    x, y = pairs_of(data.x_train, data.y_train, count, rng)
    x_test, y_test = pairs_of(data.x_test, data.y_test, min(count, 10_000), rng)
    model = SiameseNetwork(width)
    opt = optim.Adadelta(model.parameters(), lr=optim.Exponential(1.0, 0.7))
    wf.fit(model, x, y, loss="binary_cross_entropy", optimizer=opt, epochs=epochs)
    test = wf.evaluate(model, x_test, y_test)
    print(f"test loss {test.loss:.4f}, accuracy {test.accuracy:.2%}")
    return test.accuracy or 0.0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
