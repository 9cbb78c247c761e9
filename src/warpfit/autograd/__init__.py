"""Reverse-mode differentiation: `Tensor` and its tape."""

from __future__ import annotations

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


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__
