"""Initial values as scikit-learn draws them: the same numbers for the same random state."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.nn.init import memory_for

__all__ = ["initial_layer"]

Array = npt.NDArray[Any]


def initial_layer(
    rng: np.random.RandomState, fan_in: int, fan_out: int, activation: str, dtype: Any
) -> tuple[Array, Array]:
    """Return a layer's weights (fan_in, fan_out) and biases (fan_out,), uniform within √(6 / (fan_in + fan_out)).

    For ``'logistic'`` the 6 is a 2. Weights are drawn before biases, both in float64.

    Raises
    ------
    ConfigError
        If there is not enough memory.

    References
    ----------
    Glorot, Bengio: Understanding the difficulty of training deep feedforward neural networks (2010).
    """
    with memory_for("hidden_layer_sizes", "weight", (fan_in, fan_out)):
        return _drawn(rng, fan_in, fan_out, activation, dtype)


def _drawn(
    rng: np.random.RandomState, fan_in: int, fan_out: int, activation: str, dtype: Any
) -> tuple[Array, Array]:
    bound = sqrt((2.0 if activation == "logistic" else 6.0) / (fan_in + fan_out))
    weights = rng.uniform(-bound, bound, (fan_in, fan_out))
    biases = rng.uniform(-bound, bound, fan_out)
    return weights.astype(dtype, copy=False), biases.astype(dtype, copy=False)
