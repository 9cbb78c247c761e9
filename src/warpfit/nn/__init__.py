"""Layers and networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.nn import activations
from warpfit.nn.activations import *  # noqa: F403
from warpfit.nn.augmentation import RandomCrop, RandomCutout, RandomFlip, RandomShift
from warpfit.nn.conv import Conv2d
from warpfit.nn.conv1d import Conv1d
from warpfit.nn.dropout import Dropout
from warpfit.nn.embedding import Embedding
from warpfit.nn.explicit import backward, forward, parameters
from warpfit.nn.flatten import Flatten
from warpfit.nn.group_norm import GroupNorm
from warpfit.nn.layer import Layer
from warpfit.nn.linear import Linear
from warpfit.nn.module import Buffer, Module, Parameter
from warpfit.nn.module_list import ModuleList
from warpfit.nn.network import NetworkSpec
from warpfit.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm
from warpfit.nn.pooling import AvgPool2d, GlobalAvgPool2d, GlobalMaxPool2d, MaxPool2d
from warpfit.nn.sequential import Residual, Sequential
from warpfit.on_demand import imports_on_demand

__all__ = [
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool2d",
    "GlobalMaxPool2d",
    "GroupNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "NetworkSpec",
    "Parameter",
    "RandomCrop",
    "RandomCutout",
    "RandomFlip",
    "RandomShift",
    "Residual",
    "Sequential",
    "backward",
    "forward",
    "parameters",
]
__all__ += activations.__all__

if not TYPE_CHECKING:  # which is to know what there is
    __getattr__, __dir__ = imports_on_demand(__name__, {})
