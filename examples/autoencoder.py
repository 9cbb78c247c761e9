"""A convolutional autoencoder that takes noise away from images: the example `autoencoder` of
Keras.

python examples/autoencoder.py [epochs] [epochs with noise] [training images]
"""

from __future__ import annotations

import sys

import numpy as np

import warpfit as wf
from warpfit import nn, optim


class Upsample(nn.Module):
    """Every pixel becomes four: (M, H, W, C) → (M, 2 H, 2 W, C)."""

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        rows, height, width, channels = x.shape
        each = x.reshape(rows, height, 1, width, 1, channels)
        fourfold = each.expand(rows, height, 2, width, 2, channels)
        return fourfold.reshape(rows, 2 * height, 2 * width, channels)


def noisy(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images with Gaussian noise, which stay in [0, 1]."""
    return np.clip(images + 0.4 * rng.normal(size=images.shape), 0, 1).astype(np.float32)


def main(epochs: int = 50, noisy_epochs: int = 100, rows: int = 60_000) -> float:
    """Train on clean images, then on noisy ones, and return the loss on noisy test images."""
    wf.manual_seed(0)
    rng = np.random.default_rng(0)
    data = wf.data.load_dataset("mnist")
    x, x_test = data.x_train[:rows, ..., None], data.x_test[:rows, ..., None]
    autoencoder = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding="same"), nn.ReLU(), Upsample()),
        *(nn.Conv2d(32, 32, 3, padding="same"), nn.ReLU(), Upsample()),
        nn.Conv2d(32, 1, 3, padding="same"),
    )
    opt = optim.Adam(autoencoder.parameters())
    for inputs, test, passes in (
        (x, x_test, epochs),
        (noisy(x, rng), noisy(x_test, rng), noisy_epochs),
    ):
        wf.fit(
            autoencoder,
            inputs,
            x,
            loss="binary_cross_entropy",
            optimizer=opt,
            epochs=passes,
            batch_size=128,
        )
        loss = wf.evaluate(autoencoder, test, x_test).loss
        print(f"test loss {loss:.4f}")
    images = wf.predict(autoencoder, test[:10], kind="probabilities")
    np.savez("denoised.npz", noisy=test[:10], denoised=images, clean=x_test[:10])
    return loss


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
