"""The contract of layers but dense ones: images, norms, dropout, embeddings of numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from warpfit.backends.activations import IDENTITY, Activation
from warpfit.backends.contract.terms import Array, ImageWindows, Number, Pair


class LayerContract(ABC):
    """Convolutions, pooling, norms, dropout and embeddings of numbers."""

    # -- images: (M, H, W, C), weights (KH, KW, C, O), pairs are (height, width)

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
        groups: int = 1,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array | None]:
        """Return y = f(z) and z if the derivative of f needs it (else None).

        z[m, i, j, o] = b[o] + Σ w[k, l, c, o] · x[m, i·stride + k·dilation - padding, (likewise j,
        l), c], x being 0 outside the image (a cross-correlation). x (M, H, W, C), w (KH, KW, C, O),
        b (O,) or None; y and z (M, OH, OW, O) with OH = ⌊(H + 2·padding - dilation·(KH - 1) - 1) /
        stride⌋ + 1, OW likewise. In `groups` C are the channels of each: x has groups · C, of which
        the g-th C make the g-th O / groups outputs.
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
        groups: int = 1,
        x: Array | None = None,
        x_activation: Activation = IDENTITY,
        plus: Array | None = None,
    ) -> Array:
        """Return dx (M, H, W, C) of shape `x_shape` from dz (M, OH, OW, O) and w (KH, KW, C, O).

        `plus`, of dx's shape, is another gradient of x, which is added. If `x` is given, x = f(z)
        with f = `x_activation`, which must not need its input: dx is then that of z, times f'(z).
        """

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
        groups: int = 1,
        needs_db: bool = True,
        w: Array | None = None,
    ) -> tuple[Array, Array | None]:
        """Return dw (KH, KW, C, O) and db (O,) from dz (M, OH, OW, O) and x (M, H, W, C).

        `w` are the weights, if nothing but their update needs the gradients: a backend that keeps
        their copies may leave it to the update to sum them.
        """

    def conv2d_pooled_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        activation: Activation = IDENTITY,
        pool: Mapping[str, Pair],
    ) -> tuple[Array, Array]:
        """Return what `max_pool2d_forward` does with the settings `pool`, of what `conv2d_forward`
        gives with the others; f must not need its input. Of ReLU, only positive entries have a
        place: so the places tell its derivative, too.

        A backend may do both at once, and so save what lies between.
        """
        windows: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
        y, _ = self.conv2d_forward(x, w, b, **windows, groups=groups, activation=activation)
        return self.max_pool2d_forward(y, **pool, of_positive=activation.name == "relu")

    @abstractmethod
    def max_pool2d_forward(
        self,
        x: Array,
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
        of_positive: bool = False,
    ) -> tuple[Array, Array]:
        """Return the largest entry of every window, (M, OH, OW, C), and its place in the window.

        Padding, at most half the kernel, counts as -inf. The place is row · KW + column, an
        unsigned integer; of equal entries the first in that order counts. `of_positive`: it is
        KH · KW, which is no place, unless the entry is above 0. OH = ⌊(H + 2·padding - KH) /
        stride⌋ + 1.
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

    def max_pool2d_backward_joined(
        self, dy: Array, indices: Array, x_shape: tuple[int, ...], pool: Mapping[str, Pair]
    ) -> Array:
        """Return what `max_pool2d_backward` does with the settings `pool`, for
        `conv2d_backward_weight` and `conv2d_backward_input` only.

        A backend may leave it to these to spread dy, and return something else that they take.
        """
        return self.max_pool2d_backward(dy, indices, x_shape, **pool)

    @abstractmethod
    def avg_pool2d_forward(
        self, x: Array, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
    ) -> Array:
        """Return the mean of each window, (M, OH, OW, C); padding, at most half of it, is 0."""

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

    # -- normalisation: forward returns (y, what backward needs), backward (dx, dweight, dbias)

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
        activation: Activation = IDENTITY,
        added: Array | None = None,
    ) -> tuple[Array, Any]:
        """Return y = f((x - mean) / √(variance + eps) · weight + bias + added), per channel, and
        what backward needs.

        x, y and added (..., C), all else (C,); added None means 0, as bias, weight None 1. Where
        x is in half precision, what has C numbers may be in float32. In training, mean and variance
        are the batch's (divided by n = the number of values a channel, which must be at least 2),
        and the running statistics move in place: r ← (1 - momentum) · r + momentum · s, s being the
        mean, and the variance divided by n - 1. Otherwise the running statistics take their place.
        """

    @abstractmethod
    def batch_norm_backward(
        self,
        dy: Array,
        x: Array,
        weight: Array | None,
        saved: Any,
        *,
        training: bool,
        bias: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array, Array]:
        """Return dx = weight / σ · (dz - mean(dz) - x̂ · mean(dz · x̂)), dweight = Σ dz · x̂, dbias
        = Σ dz, with dz = dy · f'(z).

        x̂ = (x - mean) / σ, and z = x̂ · weight + bias: where something was added, dy has to be dz,
        and f the identity. Out of training the statistics are constants, and dx = weight / σ · dz.
        """

    @abstractmethod
    def layer_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        *,
        num_axes: int = 1,
        eps: float = 1e-5,
    ) -> tuple[Array, Any]:
        """Return y = (x - mean) / √(variance + eps) · weight + bias and what backward needs.

        Mean and variance are those of each sample's last `num_axes` axes; weight and bias, None or
        of those axes' shape, act on every entry apart.
        """

    @abstractmethod
    def layer_norm_backward(
        self, dy: Array, x: Array, weight: Array | None, saved: Any, *, num_axes: int = 1
    ) -> tuple[Array, Array, Array]:
        """Return dx = (g - mean(g) - x̂ · mean(g · x̂)) / σ, g = dy · weight, dweight, dbias."""

    # -- dropout

    @abstractmethod
    def dropout_forward(
        self,
        x: Array,
        *,
        p: float,
        seed: int,
        step: Number,
        layer_idx: int,
        first_row: int = 0,
    ) -> tuple[Array, Array]:
        """Return x · mask and the mask (of x's shape and dtype): 0 with probability p, else 1 / (1
        - p).

        The mask is a pure function of its place, whatever the batch's size or padding: unit u of
        row r of the batch (u counts through all other axes of the row, last axis fastest) is
        decided by word u % 4 of ``philox((step, layer_idx, r, u // 4), stream_key(seed, DROPOUT))``
        of `warpfit.random`, and kept if that word is at least round(p · 2³²). x (M, ...) are the
        batch's rows from `first_row` on; p in [0, 1), step, layer_idx and all r below 2³².
        """

    @abstractmethod
    def take_windows(self, x: Array, bits: Array, windows: ImageWindows) -> Array:
        """Return a window (M, *size, C) of each padded image (M, H, W, C).

        bits (M, 2, 16) float32 are 0 or another number. Those of an axis make a number n, the first
        being the highest; the window begins at pixel n · windows // 2¹⁶ of the padded image, of so
        many windows that there are.
        """

    @abstractmethod
    def take_windows_backward(
        self, dy: Array, bits: Array, x_shape: tuple[int, ...], windows: ImageWindows
    ) -> Array:
        """Return dx of `take_windows`: a pixel has the sum over all that shows it."""

    @abstractmethod
    def dropout_backward(self, dy: Array, mask: Array) -> Array:
        """Return dy · mask."""

    # -- embeddings of numbers

    @abstractmethod
    def piecewise_linear_forward(
        self, x: Array, weight: Array, bias: Array, pieces: Array, bins: Sequence[Array]
    ) -> Array:
        """Return e (M, F S): of number f weight_f x + bias_f + Σ_b pieces_fb · c_fb(x).

        c_fb(x) = min(max(x · factor_fb + offset_fb, low_fb), high_fb). x (M, F), weight and bias
        (F, S), pieces (F, B, S), bins: factor, offset, low and high, (F, 1, B) each. The numbers of
        a column stand side by side; NaN stays NaN.
        """

    @abstractmethod
    def piecewise_linear_backward(
        self, dy: Array, x: Array, bins: Sequence[Array]
    ) -> tuple[Array, Array, Array]:
        """Return dweight and dbias (F, S), and dpieces (F, B, S), from dy (M, F S); x is data."""
