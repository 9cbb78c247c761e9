"""Losses as values: means over a batch, of a network's outputs and their targets.

A loss is a frozen, printable setting; engines read it and call the backend's operations. The same
object is callable on tensors, and offers ``forward_and_grad`` for the explicit style.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.losses.base import Loss, resolve
from warpfit.on_demand import imports_on_demand

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

if not TYPE_CHECKING:  # which is to know what there is
    __getattr__, __dir__ = imports_on_demand(__name__, {})
