"""A convolutional network for MNIST: the example `mnist` of PyTorch.

python examples/mnist.py [epochs] [training images]
"""

from __future__ import annotations

import sys

import warpfit as wf
from warpfit import nn, optim


def main(epochs: int = 14, rows: int = 60_000) -> float:
    """Train, save the network, and return its accuracy on the test images."""
    wf.manual_seed(1)
    data = wf.data.load_dataset("mnist")
    x, x_test = ((part[..., None] - 0.1307) / 0.3081 for part in (data.x_train, data.x_test))
    net = nn.Sequential(
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
    opt = optim.Adadelta(net.parameters(), lr=optim.Exponential(1.0, 0.7))
    wf.fit(net, x[:rows], data.y_train[:rows], optimizer=opt, epochs=epochs)
    test = wf.evaluate(net, x_test, data.y_test)
    print(f"test loss {test.loss:.4f}, accuracy {test.accuracy:.2%}")
    wf.save(net, "mnist_cnn.safetensors")
    return test.accuracy or 0.0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
