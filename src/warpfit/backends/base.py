"""The contract: every operation a backend offers, with its shapes and what it promises.

NumPy's backend is the executable specification: another backend must return the same numbers within
:data:`TOLERANCE`. Letters in shapes: M rows of a batch, K inputs, N outputs, C classes or channels;
images are ``(M, H, W, C)`` (channels last), weights ``(in, out)`` and ``(kernel height, kernel
width, in, out)``.

Rules that hold for every operation:

* float arrays are float32 or float64, all operands of one call of the same dtype, else DTypeError;
  `asarray` converts everything else (uint8 means x / 255);
* inputs are never written to, except by the operations of the optimizers, which update in place;
* inputs may be non-contiguous or read-only, and any dimension may be zero; a mean over no rows is
  0;
* results are new arrays, or, between two calls of `begin_step` on a backend made with
  ``reuse=True``, buffers that stay valid until the next `begin_step`;
* scalars that stay on the device (losses, counts, norms) are arrays of shape ().
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from warpfit.backends.activations import ACTIVATIONS, IDENTITY, Activation
from warpfit.backends.contract.elements import ElementContract
from warpfit.backends.contract.layers import LayerContract
from warpfit.backends.contract.losses import LossContract
from warpfit.backends.contract.members import (
    MemberContract,
    MemberHead,
    MemberLayer,
    MemberLayers,
    MemberUpdate,
)
from warpfit.backends.contract.optimizers import OptimizerContract
from warpfit.backends.contract.terms import (
    BINARY,
    COMPARISONS,
    ELEMENT_LOSSES,
    FLOAT_DTYPES,
    HALF_DTYPES,
    PRECISIONS,
    REDUCTIONS,
    TOLERANCE,
    UNARY,
    Array,
    Axis,
    ImageWindows,
    LossTerms,
    Number,
    Pair,
    Pairs,
)

__all__ = [
    "ACTIVATIONS",
    "BINARY",
    "COMPARISONS",
    "ELEMENT_LOSSES",
    "FLOAT_DTYPES",
    "HALF_DTYPES",
    "IDENTITY",
    "PRECISIONS",
    "REDUCTIONS",
    "TOLERANCE",
    "UNARY",
    "Activation",
    "Array",
    "Axis",
    "Backend",
    "ImageWindows",
    "LaterLogits",
    "LossTerms",
    "MemberHead",
    "MemberLayer",
    "MemberLayers",
    "MemberUpdate",
    "Number",
    "Pair",
    "Pairs",
]


@dataclass(eq=False)
class LaterLogits:
    """x @ w + b, which nothing but a loss reads: it may compute them, and the gradient of x."""

    x: Array  # (M, K)
    w: Array  # (K, N)
    b: Array | None  # (N,)
    # What gave x, known from its result; `dx` is multiplied by its derivative.
    x_activation: Activation = IDENTITY
    needs_dx: bool = True
    dx: Array | None = None  # (M, K): the gradient of x, once the loss has computed it


class Backend(LossContract, OptimizerContract, LayerContract, MemberContract, ElementContract):
    """A device's operations. See the module's text for the rules that hold for all of them."""

    name: str
    # Whether results can be read at once, without waiting for a device.
    synchronous: bool
    # What gradients in half precision are multiplied by, a power of two, lest they underflow.
    # Operations that return a parameter's gradient from half-precision operands return it as
    # float32, and without this factor.
    loss_scale: float = 1.0

    def compile_ahead(self, kernels: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Begin to compile kernels, by name and defines, that are about to be asked for."""

    def rehearse(self, key: Hashable, function: Callable[[Any], Any]) -> None:
        """Begin to compile the kernels that a function of a backend asks for, which compute nothing
        meanwhile; once for each key, and nothing where there are none. The backend is that of all
        the device's arrays in the function, so that modules may be called in it.
        """

    def own_threads(self) -> AbstractContextManager[None]:
        """Return a block in which operations, not libraries beneath them, use several threads of
        the CPU; one that changes nothing where they use none.
        """
        return nullcontext()

    # -- arrays

    @abstractmethod
    def asarray(self, value: Any, dtype: str | None = None) -> Array:
        """Return `value` as an array here, without a copy where none is needed.

        uint8 converted to a float dtype is divided by 255; float16 is widened exactly. What holds
        no real numbers raises DTypeError.
        """

    @abstractmethod
    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        """Return the array on the host."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; from the step's buffers if the backend reuses them."""

    @abstractmethod
    def full(self, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
        """Return an array of one number; from the step's buffers if the backend reuses them."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros that belongs to the caller."""

    @abstractmethod
    def copy(self, array: Array) -> Array:
        """Return a contiguous copy that belongs to the caller."""

    @abstractmethod
    def assign(self, target: Array, value: Array) -> None:
        """Copy `value` into `target` of the same shape."""

    @abstractmethod
    def begin_step(self) -> None:
        """Take back every buffer that `empty` has given out (only with ``reuse=True``)."""

    @abstractmethod
    def cast(self, x: Array, dtype: str, scale: float = 1.0) -> Array:
        """Return x · scale as another float dtype."""

    @abstractmethod
    def cast_into(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        """Write each source into the target at its place, of one shape and another float dtype."""

    def keep_copies(self, parameters: Sequence[Array], copies: Sequence[Array]) -> bool:
        """Let updates of float32 parameters also write their copies in half precision; return
        whether they will.

        Then what `linear_backward` returns for the weights of a copy, and for the bias, is for one
        update and nothing else: the update may have to compute it.
        """
        return False

    def narrow_step(
        self,
        x: Array,
        layers: Sequence[tuple[Array, Array | None, Activation]],
        targets: Array,
        loss: LossTerms,
        record: Array,
        row: Number,
        rows: Any = None,
    ) -> list[tuple[Any, Any]] | None:
        """Do all of a step but its update at once; None, and nothing is done, where the operations
        one by one serve.

        x (M, K), of each layer w (inputs, outputs), b (outputs,) or None, and what follows it;
        targets as the loss takes them; the record (steps, 3) and its row as of `record_step`. With
        `rows`, in the backend's own terms, the batch is some rows of x and targets, and x is of any
        dtype; else it is all, in that of the weights. Returned are the gradients of each layer's w
        and b, as `linear_backward` gives them for copies that are kept (`keep_copies`), and for
        such copies only.
        """
        return None

    def linear_cross_entropy_step(
        self,
        logits: LaterLogits,
        labels: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> Array | None:
        """Do `linear_forward`, `softmax_cross_entropy_step` and `linear_backward_input` at once;
        None, and nothing is done, where they serve one by one.

        Returned is the gradient of the logits, (M, N), and `logits.dx` is set. Logits need not be
        rounded to the arrays' dtype.
        """
        return None

    @abstractmethod
    def all_finite(self, arrays: Sequence[Array]) -> Array:
        """Return whether no entry of any array is NaN or infinite: () bool."""

    @abstractmethod
    def epoch_order(self, num_rows: int, keys: npt.NDArray[Any]) -> Array:
        """Return an epoch's order of the rows, (num_rows,) int64, from its round keys (8,) uint32.

        It is the bijection of `warpfit.permutation`, and belongs to the caller.
        """

    @abstractmethod
    def gather_rows(self, x: Array, rows: Array, dtype: str) -> Array:
        """Return ``x[rows]`` as `dtype`: x (N, ...), rows (M,) int64; uint8 becomes x / 255."""

    @abstractmethod
    def record_step(
        self,
        record: Array,
        idx: Number,
        loss: Array,
        weight: Array,
        correct: Array | None,
        penalty: Array | None,
    ) -> None:
        """Write (loss + penalty, weight, correct), None as 0, to row `idx` of record (steps, 3)."""

    # -- dense

    @abstractmethod
    def matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        """Return op(a) @ op(b): (M, K) @ (K, N) → (M, N), op being a transposition or nothing."""

    @abstractmethod
    def linear_forward(
        self, x: Array, w: Array, b: Array | None, activation: Activation = IDENTITY
    ) -> tuple[Array, Array | None]:
        """Return y = f(z), z = x @ w + b, and z if the derivative of f needs it (else None).

        x (M, K), w (K, N), b (N,) or None; y and z (M, N).
        """

    @abstractmethod
    def linear_backward(
        self,
        dz: Array,
        x: Array,
        w: Array,
        *,
        needs_dx: bool = True,
        needs_db: bool = True,
        x_activation: Activation = IDENTITY,
    ) -> tuple[Array | None, Array, Array | None]:
        """Return dx = dz @ wᵀ (M, K), dw = xᵀ @ dz (K, N), db = column sums of dz (N,).

        Where x = f(z) with f = `x_activation`, which must not need its input, dx is that of z: dz @
        wᵀ · f'(z).
        """

    @abstractmethod
    def linear_backward_input(
        self, dz: Array, x: Array, w: Array, x_activation: Activation = IDENTITY
    ) -> Array:
        """Return dx alone, as `linear_backward` does."""

    @abstractmethod
    def sum_columns(self, x: Array) -> Array:
        """Return the sum over rows: x (M, N) → (N,)."""

    # -- activations

    @abstractmethod
    def activation_forward(
        self, activation: Activation, z: Array, out: Array | None = None
    ) -> Array:
        """Return f(z), of z's shape, in `out` if given, which may be z itself."""

    @abstractmethod
    def activation_backward(
        self,
        activation: Activation,
        dy: Array,
        y: Array,
        z: Array | None,
        *,
        plus: Array | None = None,
    ) -> Array:
        """Return (dy + plus) · f'(z), plus None being 0; z may be None unless f needs its input."""

    def bias_gradient(self, activation: Activation, dy: Array, y: Array, z: Array | None) -> Array:
        """Return `activation_backward` summed over all axes but the last, alone."""
        dz = dy if activation == IDENTITY else self.activation_backward(activation, dy, y, z)
        return self.sum_columns(self.reshape(dz, (prod(dz.shape[:-1]), dz.shape[-1])))

    def with_joints(
        self, dx: Array, x: Array | None, x_activation: Activation, plus: Array | None
    ) -> Array:
        """Return a gradient plus another of the same, and then, if x is given, times the
        derivative of the activation that gave x; either may be missing.
        """
        if x is not None:
            return self.activation_backward(x_activation, dx, x, None, plus=plus)
        return dx if plus is None else self.binary("add", dx, plus)

    @abstractmethod
    def softmax_forward(self, z: Array) -> Array:
        """Return exp(z - m) / Σ exp(z - m) along the last axis, m the largest entry of the row.

        An entry of -inf gets 0; a row with +inf, NaN, or nothing but -inf becomes NaN.
        """

    @abstractmethod
    def softmax_backward(self, dy: Array, y: Array) -> Array:
        """Return dz = y · (dy - Σ dy · y) along the last axis."""

    @abstractmethod
    def log_softmax_forward(self, z: Array) -> Array:
        """Return z - m - log Σ exp(z - m) along the last axis; an entry of -inf stays -inf."""

    @abstractmethod
    def log_softmax_backward(self, dy: Array, y: Array) -> Array:
        """Return dz = dy - exp(y) · Σ dy along the last axis."""
