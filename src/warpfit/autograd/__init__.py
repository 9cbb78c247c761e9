"""Reverse-mode differentiation: `Tensor` and its tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.autograd.functions import (
    activate,
    concatenate,
    log_softmax,
    maximum,
    minimum,
    relu,
    sigmoid,
    softmax,
    stack,
    tanh,
    where,
)
from warpfit.autograd.tape import no_grad
from warpfit.autograd.tensor import Tensor, apply, record, tensor
from warpfit.on_demand import imports_on_demand

__all__ = [
    "Tensor",
    "activate",
    "apply",
    "concatenate",
    "log_softmax",
    "maximum",
    "minimum",
    "no_grad",
    "record",
    "relu",
    "sigmoid",
    "softmax",
    "stack",
    "tanh",
    "tensor",
    "where",
]

if not TYPE_CHECKING:  # which is to know what there is
    __getattr__, __dir__ = imports_on_demand(__name__, {})
