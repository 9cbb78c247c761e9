"""A variational autoencoder of MNIST: the example `vae` of PyTorch.

python examples/vae.py [epochs] [training images]
"""

from __future__ import annotations

import sys

import numpy as np

import warpfit as wf
from warpfit import autograd, losses, nn

SIZE = 20  # of the code


class VAE(nn.Module):
    """For images, the decoder's logits beside the code's mean and logarithm of the variance."""

    def __init__(self, pixels: int) -> None:
        self.encoder = nn.Sequential(nn.Linear(pixels, 400), nn.ReLU(), nn.Linear(400, 2 * SIZE))
        self.decoder = nn.Sequential(nn.Linear(SIZE, 400), nn.ReLU(), nn.Linear(400, pixels))
        self.rng = np.random.default_rng(1)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        code = self.encoder(x)
        mean, log_variance = code[:, :SIZE], code[:, SIZE:]
        sample = mean + (log_variance * 0.5).exp() * self.rng.normal(size=mean.shape)
        return autograd.concatenate([self.decoder(sample), code], axis=1)


def loss_of(outputs: wf.Tensor, images: wf.Tensor) -> wf.Tensor:
    """Return the mean over rows of the binary cross-entropy plus the divergence from N(0, 1).

    Kingma, Welling: Auto-Encoding Variational Bayes (2014), appendix B.
    """
    logits, code = outputs[:, : -2 * SIZE], outputs[:, -2 * SIZE :]
    mean, log_variance = code[:, :SIZE], code[:, SIZE:]
    terms = 1 + log_variance - mean.square() - log_variance.exp()
    found = losses.BinaryCrossEntropy(sum_outputs=True)(logits, images.data)
    return found - terms.sum(axis=1).mean() * 0.5


def main(epochs: int = 10, rows: int = 60_000) -> float:
    """Train, write some new images, and return the loss per test image."""
    wf.manual_seed(1)
    data = wf.data.load_dataset("mnist", flat=True)
    x, x_test = data.x_train[:rows], data.x_test
    model = VAE(28 * 28)
    wf.fit(model, x, x, loss=loss_of, optimizer="adam", epochs=epochs, batch_size=128)
    loss = wf.evaluate(model, x_test, x_test).loss
    print(f"test loss {loss:.2f}")
    drawn = nn.Sigmoid()(model.decoder(np.random.default_rng(1).normal(size=(64, SIZE))))
    np.save("samples.npy", drawn.reshape(64, 28, 28))
    return loss


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
