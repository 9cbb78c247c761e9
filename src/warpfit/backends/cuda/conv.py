"""Convolution and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from warpfit.backends.base import IDENTITY, Activation, Array, Pair
from warpfit.backends.checks import check_float, check_images, check_joint, check_shape
from warpfit.backends.cuda.conv_launch import LaunchOps
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.cuda.pool import HALVING

# What kernels load of the saved activations at once.
SAVED_BYTES = 4


class ConvOps(LaunchOps):
    """y = f(x * w + b), channels last."""

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
        op = "conv2d_forward"
        pairs = (stride, padding, dilation)
        check_float(op, x, w, b)
        x, w = self.contiguous(x), self.contiguous(w)
        if groups != 1:
            found = self.grouped_forward(x, w, b, pairs, groups, activation)
            if found is not None:
                return found
        launch = self.launch_of(op, x, w, x.shape, w.shape, pairs, activation, groups)
        num_outputs = w.shape[3]
        check_shape(op, "b", b, (num_outputs,))

        y = self.empty((x.shape[0], *launch.num_windows, num_outputs), x.dtype)
        z = self.empty(y.shape, y.dtype) if activation.needs_input else None
        b = self.contiguous_or_none(b)
        if launch.boxes is not None:
            self.multiply_boxes(launch.boxes, x, w, y, bias=b, z=z, activation=activation)
        elif launch.windows is not None:
            self.convolve(*launch.windows, x, w, y, bias=b, z=z, activation=activation)
        elif launch.product is not None:
            launch.product.start(x, w, b, y, z, activation.slope)
        return y, z

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
        op, pairs = "conv2d_pooled_forward", (stride, padding, dilation)
        check_float(op, x, w, b)
        x, w, b = self.contiguous(x), self.contiguous(w), self.contiguous_or_none(b)
        launch = None
        if pool == HALVING and not activation.needs_input and groups == 1:
            launch = self.launch_of(op, x, w, x.shape, w.shape, pairs, activation)
        if launch is None or launch.windows is None or 1 in launch.num_windows:
            windows: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
            windows["groups"] = groups
            return super().conv2d_pooled_forward(
                x, w, b, **windows, activation=activation, pool=pool
            )
        check_shape(op, "b", b, w.shape[3:])
        height, width = (size // 2 for size in launch.num_windows)
        y = self.empty((x.shape[0], height, width, w.shape[3]), x.dtype)
        indices = self.empty(y.shape, "uint8")
        self.convolve(*launch.windows, x, w, y, bias=b, indices=indices, activation=activation)
        return y, indices

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
        op = "conv2d_backward_input"
        check_joint(op, x, x_shape, x_activation)
        check_shape(op, "plus", plus, x_shape)
        check_float(op, dz, w, x, plus)
        pairs = (stride, padding, dilation)
        dz, w = self.contiguous_or_pooled(dz), self.contiguous(w)
        if groups != 1:
            dz = self.spread(dz)
            found = self.grouped_backward_input(dz, w, x_shape, pairs, groups)
            if found is not None:
                return self.with_joints(found, x, x_activation, plus)
        launch = self.launch_of(op, dz, w, x_shape, w.shape, pairs, groups=groups)
        check_shape(op, "dz", dz, (x_shape[0], *launch.num_windows, w.shape[3]))

        dx = self.empty(x_shape, dz.dtype)
        masks = launch.boxes is not None or launch.windows is not None
        saved = x if masks and plus is None and _is_in_pairs(x) else None
        own = IDENTITY if saved is None else x_activation
        if launch.boxes is not None:
            self.multiply_boxes(launch.boxes, self.spread(dz), w, dx, saved=saved, activation=own)
        elif launch.windows is not None:
            self.convolve(*launch.windows, dz, w, dx, saved=saved, activation=own)
        elif launch.product is not None:
            launch.product.start(self.spread(dz), w, dx)
        return dx if saved is not None else self.with_joints(dx, x, x_activation, plus)

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
        """Return dw and db; of half-precision operands in float32, without the loss scale."""
        op = "conv2d_backward_weight"
        check_float(op, dz, x)
        check_images(op, "x", x.shape)
        check_images(op, "dz", dz.shape)
        pairs = (stride, padding, dilation)
        dz, x = self.contiguous_or_pooled(dz), self.contiguous(x)
        if groups != 1:
            dz = self.spread(dz)
            found = self.grouped_backward_weight(dz, x, kernel, pairs, groups, needs_db)
            if found is not None:
                return found
        w_shape = (*kernel, x.shape[3] // groups, dz.shape[3])
        launch = self.launch_of(op, x, dz, x.shape, w_shape, pairs, groups=groups)
        check_shape(op, "dz", dz, (x.shape[0], *launch.num_windows, dz.shape[3]))

        dtype = acc_dtype(x.dtype)
        scale = 1 / self.loss_scale if x.itemsize == 2 else 1.0
        if launch.boxes is not None:
            dz = self.spread(dz)
            sums = self.weight_gradient_boxes(launch.boxes, dz, x)
            dw, _ = self._found_in(sums, w, w_shape, scale)
            rows = self.reshape(dz, (prod(dz.shape[:3]), dz.shape[3]))
            return dw, self.column_sums(rows, dtype, scale) if needs_db else None
        if launch.weights is not None:
            sums = self.sums_of_gradients(*launch.weights, dz, x)
            dw, db = self._found_in(sums, w, w_shape, scale)
            return dw, db if needs_db else None
        dw = self.empty(w_shape, dtype)
        db = self.empty(w_shape[3:], dtype) if needs_db else None
        if (how := launch.product) is not None:
            partials = self.empty((how.num_partials,), dtype) if how.num_partials else None
            arrivals = self.arrivals(how.num_arrivals)
            how.start(self.spread(dz), x, dw, db, partials, arrivals, scale)
        return dw, db

    def _found_in(
        self, sums: Array, w: Array | None, w_shape: tuple[int, ...], scale: float
    ) -> tuple[Any, Any]:
        """Return dw and db, which follow each other in rows of `sums`, or how to find them."""
        joined = self.joined_updates and self.joined_updates.partial_gradients(sums, w, scale)
        if joined:
            return joined
        size, found = prod(w_shape), self.column_sums(sums, "float32", scale)
        return self.reshape(found[:size], w_shape), found[size:]


def _is_in_pairs(array: Array | None) -> bool:
    """Whether kernels may load two of an array's numbers at once."""
    return array is not None and array.is_contiguous and not array.pointer % SAVED_BYTES
