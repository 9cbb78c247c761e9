"""A small convolutional network for MNIST: the example `mnist_convnet` of Keras.

python examples/mnist_convnet.py [epochs] [training images]
"""

from __future__ import annotations

import sys

import warpfit as wf
from warpfit import nn


def main(epochs: int = 15, rows: int = 60_000) -> float:
    """Train on nine tenths of the rows, and return the accuracy on the test images."""
    wf.manual_seed(0)
    data = wf.data.load_dataset("mnist")
    x, y, x_test = data.x_train[:rows, ..., None], data.y_train[:rows], data.x_test[..., None]
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(1600, 10),
    )
    print(model.summary(x.shape[1:]))
    history = wf.fit(
        model,
        x,
        y,
        optimizer="adam",
        batch_size=128,
        epochs=epochs,
        validation_split=0.1,
    )
    print(f"validation accuracy {history['val_accuracy'][-1]:.2%}")
    test = wf.evaluate(model, x_test, data.y_test)
    print(f"test loss {test.loss:.4f}, accuracy {test.accuracy:.2%}")
    return test.accuracy or 0.0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
