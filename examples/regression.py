"""Fits a polynomial of degree 4 by gradient descent, on a new batch at every step: the example
`regression` of PyTorch.

python examples/regression.py [seed]
"""

from __future__ import annotations

import sys
from itertools import count

import numpy as np

import warpfit as wf
from warpfit import losses, nn, optim


def polynomial(weight: np.ndarray, bias: float) -> str:
    """Return a polynomial in words."""
    terms = (f"{w:+.2f} x^{power}" for power, w in enumerate(weight.ravel(), 1))
    return f"y = {' '.join(terms)} {bias:+.2f}"


def main(seed: int = 0) -> int:
    """Train until the loss of a batch is below 0.001, and return how many batches that took."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(4, 1)) * 5, rng.normal() * 5
    wf.manual_seed(seed)
    fc = nn.Linear(4, 1)
    opt = optim.SGD(fc.parameters(), lr=0.1)
    for batch in count(1):
        x = rng.normal(size=(32, 1)) ** np.arange(1, 5)
        opt.zero_grad()
        loss = losses.Huber()(fc(wf.tensor(x)), x @ weight + bias)
        loss.backward()
        opt.step()
        if loss.item() < 1e-3:
            print(f"loss {loss.item():.6f} after {batch} batches")
            break
    print("learned", polynomial(fc.weight.numpy(), fc.bias.numpy()[0]))
    print("actual ", polynomial(weight, bias))
    return batch


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
