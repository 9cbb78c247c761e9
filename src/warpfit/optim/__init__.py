"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand
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

if not TYPE_CHECKING:  # which is to know what there is
    __getattr__, __dir__ = imports_on_demand(__name__, {})
