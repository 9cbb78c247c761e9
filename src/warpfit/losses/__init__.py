"""Losses as values: means over a batch, of a network's outputs and their targets.

A loss is a frozen, printable setting; engines read it and call the backend's operations. The same
object is callable on tensors, and offers ``forward_and_grad`` for the explicit style.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from warpfit.losses.base import Loss, resolve
from warpfit.other_packages import refuse_attribute

# In the order in which help and messages list them.
# isort: off
from warpfit.losses.softmax_cross_entropy import SoftmaxCrossEntropy
from warpfit.losses.elements import DISTANCES as DISTANCES
from warpfit.losses.elements import AbsoluteError, Huber, MeanSquaredError
from warpfit.losses.binary_cross_entropy import BinaryCrossEntropy
from warpfit.losses.poisson import Poisson
# isort: on

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "Huber",
    "Loss",
    "MeanSquaredError",
    "Poisson",
    "SoftmaxCrossEntropy",
    "resolve",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__


if not TYPE_CHECKING:  # which is to know what there is
    __getattr__ = partial(refuse_attribute, __name__)
