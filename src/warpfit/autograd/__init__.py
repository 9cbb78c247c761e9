"""Reverse-mode differentiation: `Tensor` and its tape."""

from __future__ import annotations

from functools import partial
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
from warpfit.other_packages import refuse_attribute

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


if not TYPE_CHECKING:  # which is to know what there is
    __getattr__ = partial(refuse_attribute, __name__)
