"""Initial values, from counter-based random numbers: the same for a seed on every machine and
backend.

References
----------
LeCun, Bottou, Orr, Müller: Efficient BackProp (1998). Glorot, Bengio: Understanding the difficulty
of training deep feedforward neural networks (2010). He, Zhang, Ren, Sun: Delving Deep into
Rectifiers (2015).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import random
from warpfit.checks import check_choice
from warpfit.errors import ConfigError
from warpfit.nn.spec import ParameterSpec

# From (fan_in, fan_out) to the standard deviation of a weight; `default` is PyTorch's for Linear
# and Conv2d.
_DEVIATIONS: dict[str, Callable[[int, int], float]] = {
    "default": lambda fan_in, fan_out: 1 / sqrt(3 * fan_in),
    "kaiming": lambda fan_in, fan_out: sqrt(2 / fan_in),
    "xavier": lambda fan_in, fan_out: sqrt(2 / (fan_in + fan_out)),
    "lecun": lambda fan_in, fan_out: sqrt(1 / fan_in),
}

INITIALIZERS = (
    "default",
    *(
        f"{name}_{form}"
        for name in ("kaiming", "xavier", "lecun")
        for form in ("uniform", "normal")
    ),
)


def initial_values(
    parameter: ParameterSpec, init: str, seed: int, tensor_idx: int
) -> npt.NDArray[np.float64]:
    """Return the start of one parameter, in float64, or ConfigError if `init` is unknown.

    ``default`` is uniform within 1/√fan_in, as PyTorch's. The layer's seed and the parameter's
    place in the layer decide which random numbers.
    """
    check_choice("an initialiser", init, INITIALIZERS)
    if parameter.start == "ones":
        return np.ones(parameter.shape)
    key = random.stream_key(seed, random.INIT)
    if parameter.start == "normal":
        return random.normal(parameter.shape, key, tensor_idx)
    if parameter.start == "zeros" or parameter.fan_in == 0:
        return np.zeros(parameter.shape)
    bound = uniform_bound(parameter, init)
    if bound is None:
        deviation = _deviation(parameter, init.partition("_")[0])
        return deviation * random.normal(parameter.shape, key, tensor_idx)
    values = random.uniform(parameter.shape, key, tensor_idx)
    values *= 2
    values -= 1
    values *= bound
    return values


def uniform_bound(parameter: ParameterSpec, init: str) -> float | None:
    """Return within what the start of a weight or a bias is uniform; None if it is not.

    Zeros have the bound 0.
    """
    if parameter.start in ("ones", "normal"):
        return None
    if parameter.start == "zeros" or parameter.fan_in == 0:
        return 0.0
    name, _, form = ("default", "", "uniform") if parameter.start == "bias" else init.partition("_")
    return None if form == "normal" else _deviation(parameter, name) * sqrt(3)


def _deviation(parameter: ParameterSpec, name: str) -> float:
    return _DEVIATIONS[name](parameter.fan_in, parameter.fan_out)


@dataclass(frozen=True)
class InitialValues:
    """The start of one parameter in NumPy, made on call; by its fields a kernel makes the same."""

    layer: str
    name: str
    parameter: ParameterSpec
    init: str
    seed: int
    tensor_idx: int
    dtype: str

    @property
    def drawn_within(self) -> float | None:
        """The bound of the uniform numbers that a kernel draws; None if no kernel draws these."""
        return uniform_bound(self.parameter, self.init) if self.dtype == "float32" else None

    def __call__(self) -> dict[str, Any]:
        with memory_for(self.layer, self.name, self.parameter.shape):
            values = initial_values(self.parameter, self.init, self.seed, self.tensor_idx)
            return {"data": values.astype(self.dtype)}


@contextmanager
def memory_for(layer: str, name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn a lack of memory for a layer's array into ConfigError, which names both and the size."""
    num_bytes = prod(shape) * np.dtype(np.float64).itemsize
    try:
        # NumPy would say ValueError of impossible sizes, and the system may promise more memory
        # than it has.
        if num_bytes > min(sys.maxsize, _memory_of_host()):
            raise MemoryError
        yield
    except MemoryError:
        raise ConfigError(
            f"{layer}: expected a size that this machine has the memory for, got a {name} of shape "
            f"{shape}, which takes {num_bytes / 2**30:,.1f} GiB to make"
        ) from None


@cache
def _memory_of_host() -> int:
    """Return the bytes of this machine's memory, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
