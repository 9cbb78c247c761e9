"""Reverse-mode differentiation: `Tensor` and its tape."""

from __future__ import annotations

from warpfit.autograd.functions import concatenate, maximum, minimum, stack, where
from warpfit.autograd.tape import no_grad
from warpfit.autograd.tensor import Tensor, apply, record, tensor

__all__ = [
    "Tensor",
    "apply",
    "concatenate",
    "maximum",
    "minimum",
    "no_grad",
    "record",
    "stack",
    "tensor",
    "where",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__
