"""Initial values as scikit-learn draws them: the same numbers for the same random state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.nn.init import memory_for

__all__ = ["initial_values"]

Array = npt.NDArray[Any]


def initial_values(
    rng: np.random.RandomState, sizes: Sequence[int], activation: str, dtype: Any
) -> tuple[list[Array], list[Array]]:
    """Return all layers' weights (fan_in, fan_out) and their biases (fan_out,), drawn in float64.

    They are uniform within √(6 / (fan_in + fan_out)); for the activation ``'logistic'`` the 6 is a 2.
    Sizes are those of features, hidden layers and outputs. A layer's weights come before its biases.

    Raises
    ------
    ConfigError
        If there is not enough memory.

    References
    ----------
    Glorot, Bengio: Understanding the difficulty of training deep feedforward neural networks (2010).
    """
    weights, biases = [], []
    for fan_in, fan_out in pairwise(sizes):
        with memory_for("hidden_layer_sizes", "weight", (fan_in, fan_out)):
            bound = sqrt((2.0 if activation == "logistic" else 6.0) / (fan_in + fan_out))
            weights.append(rng.uniform(-bound, bound, (fan_in, fan_out)).astype(dtype, copy=False))
            biases.append(rng.uniform(-bound, bound, fan_out).astype(dtype, copy=False))
    return weights, biases
