"""A variational autoencoder of MNIST: the example `vae` of PyTorch.

python examples/vae.py [epochs] [training images]
"""

from __future__ import annotations

import sys

import numpy as np

import warpfit as wf
from warpfit import losses, nn, optim

SIZE = 20  # of the code


class VAE(nn.Module):
    """An encoder's mean and logarithm of the variance, and a decoder's logits."""

    def __init__(self, pixels: int) -> None:
        self.encoder = nn.Sequential(nn.Linear(pixels, 400), nn.ReLU(), nn.Linear(400, 2 * SIZE))
        self.decoder = nn.Sequential(nn.Linear(SIZE, 400), nn.ReLU(), nn.Linear(400, pixels))

    def loss_of(self, x: np.ndarray, rng: np.random.Generator) -> wf.Tensor:
        """Return the mean over rows of the binary cross-entropy plus the divergence from N(0, 1).

        Kingma, Welling: Auto-Encoding Variational Bayes (2014), appendix B.
        """
        code = self.encoder(wf.tensor(x))
        mean, log_variance = code[:, :SIZE], code[:, SIZE:]
        sample = mean + (log_variance * 0.5).exp() * rng.normal(size=mean.shape)
        found = losses.BinaryCrossEntropy(sum_outputs=True)(self.decoder(sample), x)
        terms = 1 + log_variance - mean.square() - log_variance.exp()
        return found - terms.sum() * (0.5 / len(x))


def main(epochs: int = 10, rows: int = 60_000) -> float:
    """Train, write some new images, and return the loss per test image."""
    wf.manual_seed(1)
    rng = np.random.default_rng(1)
    data = wf.data.load_dataset("mnist", flat=True)
    x, x_test = data.x_train[:rows], data.x_test
    model = VAE(28 * 28)
    opt = optim.Adam(model.parameters(), lr=1e-3)
    batches = wf.data.DataLoader(x, x, batch_size=128)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch, _ in batches:
            opt.zero_grad()
            loss = model.loss_of(batch, rng)
            loss.backward()
            opt.step()
            total += loss.item() * len(batch)
        with wf.no_grad():
            test_loss = model.loss_of(x_test, rng).item()
        print(f"epoch {epoch}: loss {total / len(x):.2f}, on test images {test_loss:.2f}")
    drawn = nn.Sigmoid()(model.decoder(rng.normal(size=(64, SIZE))))
    np.save("samples.npy", drawn.reshape(64, 28, 28))
    return test_loss


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
