"""Losses as means over the batch, their gradients, and counts of correct rows."""

from __future__ import annotations

from math import prod

from warpfit.backends.base import Array, LossTerms
from warpfit.backends.checks import (
    check_cross_entropy,
    check_element_loss,
    check_float,
    check_labels,
    check_prediction,
    check_shape,
)
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import blocks_for
from warpfit.backends.cuda.dtypes import acc_dtype, class_name
from warpfit.backends.cuda.rows import THREADS, RowOps, elements_of_block
from warpfit.errors import DTypeError

# Those with an accuracy, by the names of their terms in ``kernels/ops/loss/loss_terms.cuh``.
COUNTING_LOSSES = ("cross_entropy", "binary_cross_entropy")


def _check_total(op: str, total_weight: Array, like: Array) -> None:
    """Raise unless total_weight is what the forward operation returned for operands like these."""
    expected = acc_dtype(like.dtype)
    if total_weight.dtype != expected or total_weight.shape != ():
        check_shape(op, "total_weight", total_weight, ())
        raise DTypeError(
            f"{op}: expected total_weight of dtype {expected}, got {total_weight.dtype}"
        )


class LossOps(RowOps):
    """Forward returns (mean loss, total weight[, saved]); backward the gradient of that mean.

    Means and weights of half-precision operands are float32.
    """

    def softmax_cross_entropy_forward(
        self,
        logits: Array,
        labels: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Array, Array, Array]:
        check_cross_entropy(
            "softmax_cross_entropy_forward", logits, labels, class_weight, sample_weight
        )
        num_rows, num_classes = logits.shape
        dtype = logits.dtype
        launch = self.row_launch(num_rows, num_classes, dtype.itemsize)
        probabilities = self.empty(logits.shape, dtype)
        acc = acc_dtype(dtype)
        loss, weight = self.empty((), acc), self.empty((), acc)
        kernel = self.kernel("softmax_cross_entropy_forward", DTYPE=dtype, **launch.defines)
        kernel(
            launch.grid,
            launch.block,
            self.vectors(logits),
            self._labels(labels),
            self.contiguous_or_none(class_weight),
            self.contiguous_or_none(sample_weight),
            probabilities,
            loss,
            weight,
            *self._partials(launch.grid, 2),
            label_smoothing,
            num_rows,
            num_classes,
            launch.lanes,
            launch.capacity,
            shared_bytes=launch.shared_bytes,
        )
        return loss, weight, probabilities

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
        op = "softmax_cross_entropy_backward"
        check_cross_entropy(op, probabilities, labels, class_weight, sample_weight)
        _check_total(op, total_weight, probabilities)
        num_rows, num_classes = probabilities.shape
        dtype = probabilities.dtype
        gradient = self.empty(probabilities.shape, dtype)
        n = num_rows * num_classes
        if not n:
            return gradient
        self.kernel(op, DTYPE=dtype)(
            blocks_for(n, elements_of_block(dtype.itemsize)),
            THREADS,
            self.contiguous(probabilities),
            self._labels(labels),
            total_weight,
            self.contiguous_or_none(class_weight),
            self.contiguous_or_none(sample_weight),
            gradient,
            label_smoothing,
            num_rows,
            num_classes,
        )
        return gradient

    def element_loss_forward(
        self,
        prediction: Array,
        target: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array]:
        op = "element_loss_forward"
        check_element_loss(op, prediction, target, terms, sample_weight)
        num_rows, num_outputs, dtype = len(prediction), num_outputs_of(prediction), prediction.dtype
        grid = blocks_for(
            num_rows * num_outputs, elements_of_block(dtype.itemsize), self.most_blocks // 2
        )
        acc = acc_dtype(dtype)
        loss, weight = self.empty((), acc), self.empty((), acc)
        self.kernel(op, DTYPE=dtype, LOSS=class_name(terms.name))(
            grid,
            THREADS,
            self.contiguous(prediction),
            self.contiguous(target),
            self.contiguous_or_none(sample_weight),
            loss,
            weight,
            *self._partials(grid, 2),
            terms.of_term,
            terms.setting,
            num_rows,
            num_outputs,
        )
        return loss, weight

    def element_loss_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> Array:
        op = "element_loss_backward"
        check_element_loss(op, prediction, target, terms, sample_weight)
        _check_total(op, total_weight, prediction)
        gradient = self.empty(prediction.shape, prediction.dtype)
        num_rows, num_outputs = len(prediction), num_outputs_of(prediction)
        n = num_rows * num_outputs
        if not n:
            return gradient
        self.kernel(op, DTYPE=prediction.dtype, LOSS=class_name(terms.name))(
            blocks_for(n, elements_of_block(prediction.dtype.itemsize)),
            THREADS,
            self.contiguous(prediction),
            self.contiguous(target),
            total_weight,
            self.contiguous_or_none(sample_weight),
            gradient,
            terms.of_derivative,
            terms.setting,
            num_rows,
            num_outputs,
        )
        return gradient

    def count_correct(self, logits: Array, labels: Array) -> Array:
        check_float("count_correct", logits)
        check_labels("count_correct", logits, labels)
        num_rows, num_classes = logits.shape
        launch = self.row_launch(num_rows, num_classes, logits.dtype.itemsize)
        kernel = self.kernel("count_correct", DTYPE=logits.dtype, **launch.defines)
        count = self.empty((), "int64")
        kernel(
            launch.grid,
            launch.block,
            self.vectors(logits),
            self._labels(labels),
            count,
            *self._partials(launch.grid, 1),
            num_rows,
            num_classes,
            launch.lanes,
            launch.capacity,
            shared_bytes=0
            if launch.defines["LONG_ROWS"]
            else launch.shared_bytes,  # long rows are read once
        )
        return count

    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        check_prediction("count_correct_binary", logits, target, None)
        num_rows, num_outputs = len(logits), num_outputs_of(logits)
        lanes = 1
        while lanes < 32 and lanes * 4 < num_outputs:
            lanes *= 2
        grid = blocks_for(num_rows, THREADS // lanes, self.most_blocks // 2)
        count = self.empty((), "int64")
        kernel = self.kernel("count_correct_binary", DTYPE=logits.dtype)
        operands = (self.contiguous(logits), self.contiguous(target), count)
        kernel(grid, THREADS, *operands, *self._partials(grid, 1), num_rows, num_outputs, lanes)
        return count

    def _partials(
        self, num_blocks: int, num_sums: int
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Return memory for each block's sums, and a counter of blocks; None for a single block."""
        if num_blocks == 1:
            return None, None
        return self.empty((num_blocks, num_sums), "float64"), self.arrivals(1)

    def _labels(self, labels: DeviceArray) -> DeviceArray:
        """Return labels as kernels take them, contiguous int64."""
        if labels.dtype == "int64":
            return self.contiguous(labels)
        out = self.empty(labels.shape, "int64")
        self._copy_into(out, labels)
        return out


def num_outputs_of(prediction: Array) -> int:
    """Return the outputs of a row."""
    return prod(prediction.shape[1:])
