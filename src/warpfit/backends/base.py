"""The contract: every operation a backend offers, with its shapes and what it promises.

NumPy's backend is the executable specification: another backend must return the same numbers within
:data:`TOLERANCE`. Letters in shapes: M rows of a batch, K inputs, N outputs, C classes or channels; images
are ``(M, H, W, C)`` (channels last), weights ``(in, out)`` and ``(kernel height, kernel width, in, out)``.

Rules that hold for every operation:

* float arrays are float32 or float64, all operands of one call of the same dtype, else DTypeError; `asarray`
  converts everything else (uint8 means x / 255);
* inputs are never written to, except by the operations of the optimizers, which update in place;
* inputs may be non-contiguous or read-only, and any dimension may be zero; a mean over no rows is 0;
* results are new arrays, or, between two calls of `begin_step` on a backend made with ``reuse=True``, buffers
  that stay valid until the next `begin_step`;
* scalars that stay on the device (losses, counts, norms) are arrays of shape ().
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from warpfit.backends.activations import ACTIVATIONS, IDENTITY, Activation

__all__ = [
    "ACTIVATIONS",
    "BINARY",
    "COMPARISONS",
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
    "LossTerms",
    "Number",
    "Pair",
]

# An array of some backend: a numpy.ndarray here, a device array elsewhere.
Array = Any

Pair = tuple[int, int]
Axis = int | tuple[int, ...] | None

# A number that an operation is given, or that lies, () float64, on the backend's device: an operation that has been
# captured finds another there each time.
Number = float | Array

FLOAT_DTYPES = ("float32", "float64")

# Half-precision dtypes: stored as such, computed in float32. Only device arrays have them.
HALF_DTYPES = ("float16", "bfloat16")

# How a run computes: a float dtype for everything, or products of float32 numbers on tensor cores ("tf32"), or
# activations and their gradients in half precision with parameters and sums in float32.
PRECISIONS = (*FLOAT_DTYPES, "tf32", *HALF_DTYPES)

# Largest |result - reference| / max(1, |reference|) element by element, against the NumPy backend in float64.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}

UNARY = ("neg", "exp", "log", "sqrt", "square", "abs", "sign", "reciprocal", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
COMPARISONS = ("eq", "lt", "gt", "le", "ge")
REDUCTIONS = ("sum", "mean", "max", "min")


@dataclass(frozen=True)
class LossTerms:
    """A loss, for an operation that knows several.

    Attributes
    ----------
    name : str
        ``'cross_entropy'``, of labels; or of numbers ``'mse'``, ``'absolute_error'``, ``'huber'`` or
        ``'binary_cross_entropy'``, as sums over outputs.
    setting : float
        The share of label smoothing, or Huber's delta.
    of_term, of_slope : float
        What a row's sum and its derivatives are multiplied by; the derivative of a square comes as half of it.
    """

    name: str
    setting: float = 0.0
    of_term: float = 1.0
    of_slope: float = 1.0


class Backend(ABC):
    """A device's operations. See the module's text for the rules that hold for all of them."""

    name: str
    # Whether results can be read at once, without waiting for a device.
    synchronous: bool
    # What gradients in half precision are multiplied by, a power of two, lest they underflow. Operations that
    # return a parameter's gradient from half-precision operands return it as float32, and without this factor.
    loss_scale: float = 1.0

    # -- arrays ------------------------------------------------------------------------------------------

    @abstractmethod
    def asarray(self, value: Any, dtype: str | None = None) -> Array:
        """Return `value` as an array here, without a copy where none is needed.

        uint8 converted to a float dtype is divided by 255; float16 is widened exactly. What holds no real
        numbers raises DTypeError.
        """

    @abstractmethod
    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        """Return the array on the host."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; from the step's buffers if the backend reuses them."""

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
        """Write every source into the target at its place, of the same shape and another float dtype."""

    def keep_copies(self, parameters: Sequence[Array], copies: Sequence[Array]) -> bool:
        """Let updates of float32 parameters also write their copies in half precision; return whether they will.

        Then what `linear_backward` returns for the weights of a copy, and for the bias, is for one update and nothing
        else: the update may have to compute it.
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
        """Do all of a step but its update at once; None, and nothing is done, where the operations one by one serve.

        x (M, K), of each layer w (inputs, outputs), b (outputs,) or None, and what follows it; targets as the loss
        takes them; the record (steps, 3) and its row as of `record_step`. With `rows`, in the backend's own terms, the
        batch is some rows of x and targets, and x is of any dtype; else it is all, in that of the weights. Returned are
        the gradients of each layer's w and b, as `linear_backward` gives them for copies that are kept
        (`keep_copies`), and for such copies only.
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
        """Return ``x[rows]`` as `dtype`: x (N, ...), rows (M,) int64; uint8 to float divides by 255."""

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
        """Write (loss + penalty, weight, correct) to row `idx` of record (steps, 3) float64; None counts as 0."""

    # -- dense -------------------------------------------------------------------------------------------

    @abstractmethod
    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
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

        Where x = f(z) with f = `x_activation`, which must not need its input, dx is that of z: dz @ wᵀ · f'(z).
        """

    @abstractmethod
    def sum_columns(self, x: Array) -> Array:
        """Return the sum over rows: x (M, N) → (N,)."""

    # -- activations -------------------------------------------------------------------------------------

    @abstractmethod
    def activation_forward(self, activation: Activation, z: Array, out: Array | None = None) -> Array:
        """Return f(z), of z's shape, in `out` if given, which may be z itself."""

    @abstractmethod
    def activation_backward(self, activation: Activation, dy: Array, y: Array, z: Array | None) -> Array:
        """Return dy · f'(z); z may be None unless ``activation.needs_input``."""

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

    # -- losses: each forward returns (mean loss (), total weight (), what backward needs) ---------------

    @abstractmethod
    def softmax_cross_entropy_forward(
        self,
        logits: Array,
        labels: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Array, Array, Array]:
        """Return the loss Σᵢ sᵢ lᵢ / Σᵢ sᵢ w[labelᵢ], its denominator, and the softmax (M, C).

        With log-probabilities p of row i and smoothing ε: lᵢ = -(1-ε) w[label] p[label] - (ε/C) Σ_c w_c p_c.
        logits (M, C), labels (M,) of an integer dtype in [0, C), which is not checked, class_weight w (C,),
        sample_weight s (M,).
        """

    @abstractmethod
    def softmax_cross_entropy_backward(
        self,
        probabilities: Array,
        labels: Array,
        total_weight: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> Array:
        """Return the loss's gradient with respect to the logits, (M, C)."""

    @abstractmethod
    def mean_squared_error_forward(
        self, prediction: Array, target: Array, *, sample_weight: Array | None = None, half: bool = False
    ) -> tuple[Array, Array]:
        """Return Σᵢ sᵢ Σⱼ (p - t)² / (N Σ s) and Σ s; half of it with ``half`` (scikit-learn's loss).

        prediction and target (M, N), sample_weight s (M,), ones if None.
        """

    @abstractmethod
    def mean_squared_error_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> Array:
        """Return sᵢ · 2 (p - t) / (N Σ s); with ``half`` scikit-learn's sᵢ (p - t) / Σ s, for any N."""

    @abstractmethod
    def absolute_error_forward(
        self, prediction: Array, target: Array, *, sample_weight: Array | None = None
    ) -> tuple[Array, Array]:
        """Return Σᵢ sᵢ Σⱼ |p - t| / (N Σ s) and Σ s."""

    @abstractmethod
    def absolute_error_backward(
        self, prediction: Array, target: Array, total_weight: Array, *, sample_weight: Array | None = None
    ) -> Array:
        """Return sᵢ · sign(p - t) / (N Σ s), 0 where p equals t."""

    @abstractmethod
    def huber_forward(
        self, prediction: Array, target: Array, *, delta: float = 1.0, sample_weight: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the mean of d²/2 where |d| ≤ delta, else delta (|d| - delta/2), with d = p - t; and Σ s."""

    @abstractmethod
    def huber_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array:
        """Return sᵢ · clip(p - t, -delta, delta) / (N Σ s)."""

    @abstractmethod
    def binary_cross_entropy_forward(
        self, logits: Array, target: Array, *, sample_weight: Array | None = None, sum_outputs: bool = False
    ) -> tuple[Array, Array]:
        """Return the mean of max(z, 0) - z t + log(1 + exp(-|z|)), and Σ s; target in [0, 1].

        With ``sum_outputs`` outputs are summed rather than averaged (scikit-learn's loss).
        """

    @abstractmethod
    def binary_cross_entropy_backward(
        self,
        logits: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> Array:
        """Return sᵢ (sigmoid(z) - t) / (N Σ s), without N under ``sum_outputs``."""

    @abstractmethod
    def count_correct(self, logits: Array, labels: Array) -> Array:
        """Return how many rows have their largest logit (the first, if several) at the label: () int64."""

    @abstractmethod
    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        """Return how many rows have every (z > 0) equal to (t > 0.5): () int64."""

    # -- losses of a step, as one operation; a backend may decline them ------------------------------------
    #
    # They write (mean loss, total weight, rows that are right or 0) to record[row], as `record_step` does, and
    # return the mean's gradient times `scale`, of the outputs' shape and dtype, or do nothing and return None.
    # Outputs may be in half precision; targets and weights are float32 then. Targets may be rows of an array in the
    # backend's own terms.

    def softmax_cross_entropy_step(
        self,
        logits: Array,
        labels: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> Array | None:
        """Record the loss of `softmax_cross_entropy_forward` and what is right; return the gradient, or None."""
        return None

    def mean_squared_error_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> Array | None:
        """Record the loss of `mean_squared_error_forward`; return the gradient, or None."""
        return None

    def absolute_error_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        """Record the loss of `absolute_error_forward`; return the gradient, or None."""
        return None

    def huber_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        """Record the loss of `huber_forward`; return the gradient, or None."""
        return None

    def binary_cross_entropy_step(
        self,
        logits: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> Array | None:
        """Record the loss of `binary_cross_entropy_forward` and what is right; return the gradient, or None."""
        return None

    # -- optimizers: lists of arrays, updated in place ---------------------------------------------------

    @abstractmethod
    def sgd_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        lr_in_velocity: bool = False,
    ) -> None:
        """w ← w - lr · d, with g ← g + weight_decay · w, v ← momentum · v + g, and d = v or g + momentum · v.

        d is g without momentum, v with it, g + momentum · v with Nesterov's. ``lr_in_velocity`` is
        scikit-learn's form: v ← momentum · v - lr · g, then w ← w + v, or w + momentum · v - lr · g.
        `velocities` may be None without momentum, and are left alone then.
        """

    @abstractmethod
    def adam_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        first_moments: Sequence[Array],
        second_moments: Sequence[Array],
        *,
        step: int,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps_before_correction: bool = False,
        corrected: Sequence[Number] | None = None,
    ) -> None:
        """w ← w - lr · m̂ / (√v̂ + eps) with m̂ = m / (1 - beta1^step), v̂ = v / (1 - beta2^step).

        ``step`` counts from 1. Weight decay joins the gradient, or with ``decoupled`` (AdamW) shrinks w by
        lr · weight_decay first. ``eps_before_correction`` is scikit-learn's form: eps is added to √v, and
        the corrections multiply lr by √(1 - beta2^step) / (1 - beta1^step).

        ``corrected`` takes the place of all numbers that follow from step and lr: what `adam_corrected` returns
        for them, as numbers or on the device. They are not looked at then.
        """

    @abstractmethod
    def rmsprop_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        square_averages: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        """w ← w - lr · d with s ← alpha · s + (1 - alpha) g² and d = g / (√s + eps).

        With momentum v ← momentum · v + d takes the place of d; `velocities` may be None without.
        Weight decay joins the gradient, as in `sgd_update`.
        """

    @abstractmethod
    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        """Scale all gradients by min(1, max_norm / (norm + 1e-6)) in place; return their joint norm ()."""

    @abstractmethod
    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        """Add c · w to each gradient in place; return c / 2 · Σ w² as (); c is coefficient / divisor, or 0 over 0."""

    # -- images: (M, H, W, C), weights (KH, KW, C, O), pairs are (height, width) ---------------------------

    @abstractmethod
    def conv2d_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array | None]:
        """Return y = f(z) and z if the derivative of f needs it (else None).

        z[m, i, j, o] = b[o] + Σ w[k, l, c, o] · x[m, i·stride + k·dilation - padding, (likewise j, l), c], x
        being 0 outside the image (a cross-correlation). x (M, H, W, C), w (KH, KW, C, O), b (O,) or None; y
        and z (M, OH, OW, O) with OH = ⌊(H + 2·padding - dilation·(KH - 1) - 1) / stride⌋ + 1, OW likewise.
        """

    @abstractmethod
    def conv2d_backward_input(
        self,
        dz: Array,
        w: Array,
        x_shape: tuple[int, ...],
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
    ) -> Array:
        """Return dx (M, H, W, C) of shape `x_shape` from dz (M, OH, OW, O) and w (KH, KW, C, O)."""

    @abstractmethod
    def conv2d_backward_weight(
        self,
        dz: Array,
        x: Array,
        kernel: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        needs_db: bool = True,
    ) -> tuple[Array, Array | None]:
        """Return dw (KH, KW, C, O) and db (O,) from dz (M, OH, OW, O) and x (M, H, W, C)."""

    @abstractmethod
    def max_pool2d_forward(
        self, x: Array, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
    ) -> tuple[Array, Array]:
        """Return the largest entry of every window, (M, OH, OW, C), and its place in the window.

        Padding, at most half the kernel, counts as -inf. The place is row · KW + column, an unsigned integer;
        of equal entries the first in that order counts. OH = ⌊(H + 2·padding - KH) / stride⌋ + 1.
        """

    @abstractmethod
    def max_pool2d_backward(
        self,
        dy: Array,
        indices: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        """Return dx of shape `x_shape`: each dy added at the place that `indices` names."""

    @abstractmethod
    def avg_pool2d_forward(self, x: Array, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0)) -> Array:
        """Return the mean of every window, (M, OH, OW, C); padding, at most half the kernel, counts as 0."""

    @abstractmethod
    def avg_pool2d_backward(
        self,
        dy: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        """Return dx of shape `x_shape`: dy / (KH · KW) added to every pixel of its window."""

    # -- normalisation: forward returns (y, what backward needs), backward (dx, dweight, dbias) ------------

    @abstractmethod
    def batch_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        running_mean: Array,
        running_var: Array,
        *,
        training: bool,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> tuple[Array, Any]:
        """Return y = (x - mean) / √(variance + eps) · weight + bias, per channel, and what backward needs.

        x (..., C), all else (C,); weight None means 1, bias None 0. In training, mean and variance are the
        batch's (divided by n = the number of values a channel, which must be at least 2), and the running
        statistics move in place: r ← (1 - momentum) · r + momentum · s, s being the mean, and the variance
        divided by n - 1. Otherwise the running statistics take their place.
        """

    @abstractmethod
    def batch_norm_backward(
        self, dy: Array, x: Array, weight: Array | None, saved: Any, *, training: bool
    ) -> tuple[Array, Array, Array]:
        """Return dx = weight / σ · (dy - mean(dy) - x̂ · mean(dy · x̂)), dweight = Σ dy · x̂, dbias = Σ dy.

        x̂ = (x - mean) / σ. Out of training the statistics are constants, and dx = weight / σ · dy.
        """

    @abstractmethod
    def layer_norm_forward(
        self, x: Array, weight: Array | None, bias: Array | None, *, num_axes: int = 1, eps: float = 1e-5
    ) -> tuple[Array, Any]:
        """Return y = (x - mean) / √(variance + eps) · weight + bias and what backward needs.

        Mean and variance are those of each sample's last `num_axes` axes; weight and bias, None or of those
        axes' shape, act on every entry apart.
        """

    @abstractmethod
    def layer_norm_backward(
        self, dy: Array, x: Array, weight: Array | None, saved: Any, *, num_axes: int = 1
    ) -> tuple[Array, Array, Array]:
        """Return dx = (g - mean(g) - x̂ · mean(g · x̂)) / σ with g = dy · weight, dweight and dbias."""

    # -- dropout -------------------------------------------------------------------------------------------

    @abstractmethod
    def dropout_forward(
        self, x: Array, *, p: float, seed: int, step: Number, layer_idx: int
    ) -> tuple[Array, Array]:
        """Return x · mask and the mask (of x's shape and dtype): 0 with probability p, else 1 / (1 - p).

        The mask is a pure function of its place, whatever the batch's size or padding: unit u of row r (u
        counts through all other axes of the row, last axis fastest) is decided by word u % 4 of
        ``philox((step, layer_idx, r, u // 4), stream_key(seed, DROPOUT))`` of `warpfit.random`, and kept if
        that word is at least round(p · 2³²). x (M, ...), p in [0, 1), step and layer_idx below 2³².
        """

    @abstractmethod
    def dropout_backward(self, dy: Array, mask: Array) -> Array:
        """Return dy · mask."""

    # -- elementwise, for the tape: IEEE arithmetic, infinities and NaN included ---------------------------

    @abstractmethod
    def unary(self, name: str, x: Array) -> Array:
        """Return f(x) for one of ``UNARY``; sign(0) is 0."""

    @abstractmethod
    def binary(self, name: str, a: Array | float, b: Array | float) -> Array:
        """Return f(a, b), broadcast, for one of ``BINARY``, or for one of ``COMPARISONS`` as bool.

        A number or an array of shape () takes the other operand's dtype. maximum and minimum return NaN
        where either operand is NaN.
        """

    @abstractmethod
    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        """Return a where the condition (bool) holds, else b, all three broadcast."""

    @abstractmethod
    def reduce(self, name: str, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return one of ``REDUCTIONS`` over an axis, several, or all (None).

        Over no entries sum and mean are 0, and max and min raise ShapeError.
        """

    # -- moving elements: results may share x's memory -----------------------------------------------------

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
