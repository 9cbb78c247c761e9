"""Operations of losses of elements, by the losses' names and settings."""

from __future__ import annotations

from math import prod
from typing import Any

from warpfit import losses
from warpfit.backends import Backend
from warpfit.backends.base import LossTerms

__all__ = ["ElementOperation", "terms_of"]

OF_OPERATIONS = ("scale", "sample_weight")


def terms_of(name: str, shape: tuple[int, ...], **settings: Any) -> LossTerms:
    """Return the terms of a loss for outputs of this shape."""
    return losses.resolve({"name": name, **settings}).terms(max(1, prod(shape[1:])))


class ElementOperation:
    """A backend's ``'forward'``, ``'backward'`` or ``'step'`` of a loss, which takes the loss's
    settings as keywords beside its own.
    """

    def __init__(self, backend: Backend, name: str, part: str) -> None:
        self.__self__ = backend
        self._name, self._run = name, getattr(backend, f"element_loss_{part}")

    def __call__(self, prediction: Any, *operands: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in OF_OPERATIONS if name in options}
        terms = terms_of(self._name, prediction.shape, **options)
        return self._run(prediction, *operands, terms, **own)
