"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from warpfit.optim.adadelta import Adadelta
from warpfit.optim.adagrad import Adagrad
from warpfit.optim.adam import Adam, AdamW
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.lion import Lion
from warpfit.optim.nadam import NAdam
from warpfit.optim.rmsprop import RMSprop
from warpfit.optim.schedules import (
    Constant,
    Cosine,
    Exponential,
    InverseScaling,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    Step,
)
from warpfit.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Exponential",
    "InverseScaling",
    "Lion",
    "NAdam",
    "OneCycle",
    "Optimizer",
    "OptimizerSpec",
    "RMSprop",
    "ReduceOnPlateau",
    "Schedule",
    "Step",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__
