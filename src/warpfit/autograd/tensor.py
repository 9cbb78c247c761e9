"""A tensor that records the operations it came from.

Every operation is a vector-Jacobian product: a function ``f(ops, *arrays)`` that returns its result
and a function from the result's gradient to the inputs' gradients. `record` joins such a result to
the tape; layers and operators go through it alike, so no derivative is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.autograd import formulas
from warpfit.autograd.operands import check_axis, sizes, values_of
from warpfit.autograd.tape import Node, Pullback
from warpfit.backends import Array, Backend
from warpfit.backends.base import FLOAT_DTYPES, HALF_DTYPES, Axis
from warpfit.backends.transfer import device_of, home_of, moved
from warpfit.checks import as_integers, brief, check_flag
from warpfit.errors import ConfigError, DTypeError, IndexingError, ShapeError, WarpfitError
from warpfit.other_packages import WithHints

Formula = Callable[..., tuple[Array, formulas.Pullback]]


class Tensor(WithHints, Node):
    """An array with a gradient.

    Operators take tensors, arrays and numbers, broadcast as in NumPy, and keep the tensor's dtype:
    a float64 array added to a float32 tensor gives a float32 tensor. Two tensors must have the same
    dtype and live on the same device; arrays and numbers are brought there. Nothing changes a
    tensor in place. ``<``, ``<=``, ``>`` and ``>=`` give arrays of bool; ``==`` asks whether two
    tensors are one and the same object, so that tensors can be kept in sets and dicts.

    Parameters
    ----------
    data : array_like
        Kept without a copy if it is an array of a backend, or another library's on a GPU.
    requires_grad : bool
        Whether `backward` leaves this tensor's gradient in ``grad``.

    Attributes
    ----------
    data : array
    grad : array of data's shape and dtype, or None
        Only for tensors that were not computed from others.
    requires_grad : bool

    Examples
    --------
    >>> t = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> (t**2).sum().backward()
    >>> t.grad
    array([2., 4.], dtype=float32)
    """

    # Without this, NumPy would take a tensor on the right of an array for a list of objects.
    __array_ufunc__ = None

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data: Array = home_of(data).asarray(data.data if isinstance(data, Tensor) else data)
        self.grad: Array | None = None
        self.requires_grad = requires_grad

    # -- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def device(self) -> str:
        """Where the array lives: ``'cpu'``, ``'cuda:0'``, ..."""
        return device_of(self.data)

    def to(self, device: str) -> Tensor:
        """Return this tensor on a device: itself, or one whose gradient flows back here."""
        target, here = backends.get(device), self._ops
        if target is here:
            return self
        return record(moved(self.data, target), (self,), lambda dy: (moved(dy, here),))

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values on the host: on the CPU the tensor's own memory, otherwise a copy."""
        return self._ops.to_numpy(self.data)

    def item(self) -> float:
        """Return the one element as a Python number, or raise ShapeError if there is not one."""
        if self.size != 1:
            raise ShapeError(f"item: expected a tensor of one element, got shape {self.shape}")
        return self.numpy().item()

    def detach(self) -> Tensor:
        """Return a tensor of the same array that knows nothing of how it was made."""
        return Tensor(self.data)

    @property
    def _ops(self) -> Backend:
        return backends.of(self.data)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)
        return values.copy() if copy else values

    def __repr__(self) -> str:
        name = type(self).__name__
        values = np.array2string(self.numpy(), separator=", ", prefix=f"{name}(")
        device = f", device={self.device!r}" if self.device != "cpu" else ""
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return f"{name}({values}, dtype={self.dtype}{device}{gradient})"

    # -- operators

    def __add__(self, other: Any) -> Tensor:
        return apply(formulas.add, self, other)

    def __radd__(self, other: Any) -> Tensor:
        return apply(formulas.add, other, self)

    def __sub__(self, other: Any) -> Tensor:
        return apply(formulas.sub, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return apply(formulas.sub, other, self)

    def __mul__(self, other: Any) -> Tensor:
        return apply(formulas.mul, self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return apply(formulas.mul, other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return apply(formulas.div, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return apply(formulas.div, other, self)

    def __pow__(self, other: Any) -> Tensor:
        return apply(formulas.pow, self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return apply(formulas.pow, other, self)

    def __matmul__(self, other: Any) -> Tensor:
        """Return self (..., K) @ other, (K,) or (K, N)."""
        return apply(formulas.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return apply(formulas.matmul, other, self)

    def __neg__(self) -> Tensor:
        return apply(formulas.neg, self)

    def __abs__(self) -> Tensor:
        return apply(formulas.abs, self)

    def __lt__(self, other: Any) -> Array:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Array:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Array:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Array:
        return self._compare("ge", other)

    def _compare(self, name: str, other: Any) -> Array:
        a, b = _as_tensors((self, other))
        return self._ops.binary(name, a.data, b.data)

    # -- functions

    def abs(self) -> Tensor:
        """Return |x|."""
        return apply(formulas.abs, self)

    def exp(self) -> Tensor:
        """Return exp(x)."""
        return apply(formulas.exp, self)

    def log(self) -> Tensor:
        """Return the natural logarithm of x."""
        return apply(formulas.log, self)

    def sqrt(self) -> Tensor:
        """Return √x."""
        return apply(formulas.sqrt, self)

    def square(self) -> Tensor:
        """Return x²."""
        return apply(formulas.square, self)

    def sin(self) -> Tensor:
        """Return sin(x), x in radians."""
        return apply(formulas.sin, self)

    def cos(self) -> Tensor:
        """Return cos(x), x in radians."""
        return apply(formulas.cos, self)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the sum over an axis, several, or all (None)."""
        return self._reduced(formulas.sum, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the mean over an axis, several, or all (None); 0 over no entries."""
        return self._reduced(formulas.mean, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the largest entry over an axis, several, or all; ties share the gradient."""
        return self._reduced(formulas.max, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the smallest entry over an axis, several, or all; ties share the gradient."""
        return self._reduced(formulas.min, axis, keepdims)

    def _reduced(self, formula: Formula, axis: Axis, keepdims: bool) -> Tensor:
        keepdims = check_flag(f"{formula.__name__}: keepdims", keepdims)
        if axis is not None:
            axes = as_integers(f"{formula.__name__}: axis", axis)
            axis = axes if isinstance(axis, Iterable) else axes[0]
        return apply(formula, self, axis=axis, keepdims=keepdims)

    # -- shapes

    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements in another shape, given as sizes or one tuple; one size may be -1."""
        return apply(formulas.reshape, self, shape=sizes("reshape", shape))

    def flatten(self, start_axis: int = 0) -> Tensor:
        """Return a tensor whose axes from `start_axis` on are one; ``flatten(1)`` keeps batches."""
        check_axis("flatten", start_axis)
        if not 0 <= start_axis <= self.ndim:
            raise ShapeError(f"flatten: expected start_axis in [0, {self.ndim}], got {start_axis}")
        return self.reshape(*self.shape[:start_axis], prod(self.shape[start_axis:]))

    def unsqueeze(self, axis: int) -> Tensor:
        """Return a tensor with a new axis of size 1 at a place."""
        check_axis("unsqueeze", axis)
        if not -self.ndim - 1 <= axis <= self.ndim:
            raise ShapeError(
                f"unsqueeze: expected an axis in [{-self.ndim - 1}, {self.ndim}], got {axis}"
            )
        place = axis % (self.ndim + 1)
        return self.reshape(*self.shape[:place], 1, *self.shape[place:])

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Return a tensor without an axis of size 1, or without all such axes for None."""
        if axis is None:
            return self.reshape(tuple(size for size in self.shape if size != 1))
        check_axis("squeeze", axis)
        if not -self.ndim <= axis < self.ndim or self.shape[axis] != 1:
            raise ShapeError(
                f"squeeze: expected an axis of size 1, got axis {axis} of shape {self.shape}"
            )
        place = axis % self.ndim
        return self.reshape(self.shape[:place] + self.shape[place + 1 :])

    def transpose(self, *axes: Any) -> Tensor:
        """Return a tensor with axes in another order, as numbers or one tuple; else reversed."""
        return apply(formulas.transpose, self, axes=sizes("transpose", axes) if axes else None)

    @property
    def T(self) -> Tensor:  # noqa: N802  (NumPy's name)
        """The tensor with its axes reversed."""
        return self.transpose()

    def expand(self, *shape: Any) -> Tensor:
        """Return the tensor repeated to a shape that it broadcasts to, as sizes or one tuple."""
        return apply(formulas.broadcast_to, self, shape=sizes("expand", shape))

    def __getitem__(self, index: Any) -> Tensor:
        """Return elements at integers, slices, None, Ellipsis, int or bool arrays, as in NumPy."""
        try:
            return apply(formulas.index, self, index=index)
        except WarpfitError:
            raise
        except (IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            told = " ".join(str(error).split())
            raise IndexingError(
                f"expected an index of a tensor of shape {self.shape}, but {told}"
            ) from None

    # -- gradients

    def backward(self, gradient: Array | None = None) -> None:
        """Add this tensor's derivative to ``grad`` of every tensor that it was made from.

        The tape stays: a second call adds the same again, as long as no array on it was changed.

        Parameters
        ----------
        gradient : array of this tensor's shape, optional
            What to multiply the derivative by; may be left out for a tensor of one element.

        Raises
        ------
        ShapeError
            If `gradient` is missing or has another shape.
        ConfigError
            If nothing on the tape requires a gradient.
        """
        if not self.requires_grad:
            raise ConfigError(
                "backward: expected a tensor made from one that requires a gradient, got none"
            )
        self._flow_back(self._seed_gradient(gradient))

    def _seed_gradient(self, gradient: Array | None) -> Array:
        if gradient is None:
            if self.size != 1:
                raise ShapeError(
                    f"backward: expected one element or a gradient, got shape {self.shape}"
                )
            return self._ops.broadcast_to(self._ops.asarray(1.0, str(self.dtype)), self.shape)
        values = gradient.data if isinstance(gradient, Tensor) else gradient
        gradient = moved(values, self._ops, str(self.dtype))
        if gradient.shape != self.shape:
            raise ShapeError(
                f"backward: expected a gradient of shape {self.shape}, got {gradient.shape}"
            )
        return gradient


def record(result: Array, inputs: Sequence[Tensor], pullback: Pullback) -> Tensor:
    """Return `result` as a tensor whose gradient flows to `inputs` through `pullback`.

    Parameters
    ----------
    result : array
        Of a float dtype.
    inputs : sequence of Tensor
        That it was computed from.
    pullback : function
        From the result's gradient to a gradient for each input, None for one that needs none.

    Raises
    ------
    DTypeError
        If `result` holds no numbers.

    Examples
    --------
    >>> t = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> cubes = autograd.record(t.data**3, (t,), lambda dy: (3 * t.data**2 * dy,))
    >>> cubes.sum().backward()
    >>> t.grad
    array([ 3., 12.], dtype=float32)
    """
    output = Tensor(result)
    output._come_from(inputs, pullback)
    return output


def apply(formula: Formula, *operands: Any, **settings: Any) -> Tensor:
    """Return a formula of `warpfit.autograd.formulas` of tensors, arrays and numbers, at least one
    a tensor.

    Parameters
    ----------
    formula : function
        Of a backend and arrays; it returns the result, and the function from the result's gradient
        to those of the arrays.
    *operands : Tensor, array or number
        At least one a tensor; they broadcast as the formula says.
    **settings
        Handed on to the formula.

    Raises
    ------
    DTypeError
        If two of the tensors differ in dtype, or an operand is no number.
    DeviceError
        If two of the tensors live on different devices.

    Examples
    --------
    >>> autograd.apply(autograd.formulas.exp, wf.tensor([0.0])).data
    array([1.], dtype=float32)
    """
    tensors = _as_tensors(operands)
    arrays = [operand.data for operand in tensors]
    result, pullback = formula(backends.of(*arrays), *arrays, **settings)
    needed = [operand.requires_grad for operand in tensors]
    return record(result, tensors, lambda dy: pullback(dy, needed))


def tensor(
    data: Any, *, dtype: str = "float32", requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """Return a tensor of a float dtype from anything array-like; uint8 is divided by 255.

    Parameters
    ----------
    data : array_like
        Of any shape and numeric dtype.
    dtype : {'float32', 'float64'}
    requires_grad : bool
        Whether `Tensor.backward` leaves a gradient in ``grad``.
    device : str, optional
        Where it lives; where `data` does if None.

    Raises
    ------
    DTypeError
        If `data` holds no numbers, or the dtype is another.
    ConfigError, DeviceError
        If there is no such device.

    Examples
    --------
    >>> wf.tensor([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    if not isinstance(dtype, str) or dtype not in (*FLOAT_DTYPES, *HALF_DTYPES):
        raise DTypeError(f"expected dtype {' or '.join(FLOAT_DTYPES)}, got {brief(dtype)}")
    check_flag("requires_grad", requires_grad)
    values = data.data if isinstance(data, Tensor) else data
    target = home_of(values) if device is None else backends.get(device)
    return Tensor(moved(values, target, dtype), requires_grad)


def _as_tensors(operands: Sequence[Any]) -> list[Tensor]:
    """Return all operands as tensors of the one dtype that those which are tensors have."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    dtypes = sorted({str(one.dtype) for one in tensors})
    if len(dtypes) != 1:
        raise DTypeError(
            f"expected tensors of one dtype, got {' and '.join(dtypes) or 'no tensor'}"
        )
    ops = backends.of(*(one.data for one in tensors))
    return [
        one if isinstance(one, Tensor) else Tensor(values_of(ops, one, dtypes[0]))
        for one in operands
    ]
