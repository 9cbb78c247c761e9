"""The contract of the tape: elementwise functions, reductions, and moving elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from warpfit.backends.contract.terms import Array, Axis


class ElementContract(ABC):
    """What operators and indexing of tensors are made of."""

    # -- elementwise, for the tape: IEEE arithmetic, infinities and NaN included

    @abstractmethod
    def unary(self, name: str, x: Array) -> Array:
        """Return f(x) for one of ``UNARY``; sign(0) is 0."""

    @abstractmethod
    def binary(self, name: str, a: Array | float, b: Array | float) -> Array:
        """Return f(a, b), broadcast, for one of ``BINARY``, or for one of ``COMPARISONS`` as bool.

        A number or an array of shape () takes the other operand's dtype. maximum and minimum return
        NaN where either operand is NaN.
        """

    @abstractmethod
    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        """Return a where the condition (bool) holds, else b, all three broadcast."""

    @abstractmethod
    def reduce(self, name: str, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return one of ``REDUCTIONS`` over an axis, several, or all (None).

        Over no entries sum and mean are 0, and max and min raise ShapeError.
        """

    # -- moving elements: results may share x's memory

    @abstractmethod
    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x in another shape, one size of which may be -1: what is left."""

    @abstractmethod
    def transpose(self, x: Array, axes: tuple[int, ...] | None = None) -> Array:
        """Return x with its axes in the order of `axes`, reversed if None."""

    @abstractmethod
    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x repeated to a shape that it broadcasts to; not to be written to."""

    @abstractmethod
    def take(self, x: Array, index: Any) -> Array:
        """Return x[index]: integers, slices, None, Ellipsis, integer or bool arrays, as in NumPy.

        An index out of range raises IndexError, as Python's sequences do.
        """

    @abstractmethod
    def add_at(self, shape: tuple[int, ...], dtype: Any, index: Any, values: Array) -> Array:
        """Return zeros of a shape with `values` added at `index`, repeated places adding up.

        The adjoint of `take`: values are of the shape of x[index].
        """

    @abstractmethod
    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Return the arrays joined along an axis that they have."""

    @abstractmethod
    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Return the arrays, all of one shape, joined along a new axis."""

    @abstractmethod
    def unbroadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x summed down to a shape that broadcasts to x's: the adjoint of `broadcast_to`."""
