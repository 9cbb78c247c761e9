"""Updates of whole matrices: momentum whose singular values all become about 1.

A convolution's weights (height, width, channels, outputs) are a matrix of as many columns as there
are outputs, as linear layers' are.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends.contract.terms import Number

# Of x, x³ and x⁵ in a step of Newton and Schulz: the steepest at 0 that leaves all in (0.7, 1.2).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LEAST_NORM = 1e-7


class MatrixNumbers(NamedTuple):
    """The numbers of an update."""

    rate: Number  # float or array () float64: learning rate
    # float or array () float64: the share of a matrix that decoupled weight decay leaves.
    kept: Number = 1.0
    momentum: float = 0.0  # share of itself that the average of gradients keeps
    nesterov: bool = False  # whether a step looks ahead along the average
    steps: int = 5  # of Newton and Schulz, at least 1
    normalizes: bool = False  # whether a matrix first gets the norm √outputs


def matrix_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a parameter of at least two axes."""
    return prod(shape[:-1]), shape[-1]


def orthogonalised(x: npt.NDArray[Any], steps: int) -> npt.NDArray[Any]:
    """Return U p(S) Vᵀ of a matrix U S Vᵀ: after five steps p(S) is in (0.7, 1.2), or below that
    where S is tiny.

    That is x / ‖x‖, and then so many times a x + b (x xᵀ) x + c (x xᵀ)² x.
    """
    a, b, c = COEFFICIENTS
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / max(float(np.linalg.norm(x)), LEAST_NORM)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if is_tall else x
