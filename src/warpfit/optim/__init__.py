"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from warpfit.optim.adadelta import Adadelta
from warpfit.optim.adagrad import Adagrad
from warpfit.optim.adam import Adam, AdamW
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.lion import Lion
from warpfit.optim.muon import Muon
from warpfit.optim.nadam import NAdam
from warpfit.optim.rmsprop import RMSprop
from warpfit.optim.schedules import (
    Constant,
    Cosine,
    Exponential,
    InverseScaling,
    Linear,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    Step,
)
from warpfit.optim.sgd import SGD
from warpfit.other_packages import refuse_attribute

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
    "Linear",
    "Lion",
    "Muon",
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


if not TYPE_CHECKING:  # which is to know what there is
    __getattr__ = partial(refuse_attribute, __name__)
