"""The explicit style: every act of a training step is one line. Runs on digits, which needs no
download.

python examples/explicit_style.py [name of a data set] [device]
"""

from __future__ import annotations

import sys

import numpy as np

import warpfit as wf
from warpfit.data import DataLoader, Dataset, load_dataset
from warpfit.losses import SoftmaxCrossEntropy
from warpfit.nn import Linear, ReLU, Sequential, backward, forward
from warpfit.optim import SGD

EPOCHS = 20


def main(name: str = "digits", device: str = "cpu") -> None:
    wf.manual_seed(0)
    data = load_dataset(name, flat=True)
    model = Sequential(
        Linear(data.x_train.shape[1], 256, device), ReLU(), Linear(256, data.num_classes, device)
    )
    opt = SGD(model.parameters(), lr=0.1)
    dataloader = DataLoader(data.x_train, data.y_train, batch_size=32)
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for x, y in dataloader:
            logits = forward(model, x)
            loss, grad = SoftmaxCrossEntropy.forward_and_grad(logits, y)
            backward(model, grad)
            opt.step()
            total += loss * len(x)
        print(f"epoch {epoch:2}  loss {total / len(data.x_train):.4f}")
    print(f"test accuracy {accuracy(model, data):.4f}")


def accuracy(model: Sequential, data: Dataset) -> float:
    """Return the share of test samples whose largest logit is at their label."""
    logits = np.asarray(model(data.x_test))
    return float((logits.argmax(axis=1) == data.y_test).mean())


if __name__ == "__main__":
    main(*sys.argv[1:3])
