"""Layers, and networks made of them."""

from __future__ import annotations

from warpfit.nn.activations import GELU, Identity, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from warpfit.nn.explicit import backward, forward, parameters
from warpfit.nn.layer import Layer
from warpfit.nn.linear import Linear
from warpfit.nn.module import Buffer, Module, Parameter
from warpfit.nn.network import NetworkSpec, Sequential

__all__ = [
    "GELU",
    "Buffer",
    "Identity",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Module",
    "NetworkSpec",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "backward",
    "forward",
    "parameters",
]
