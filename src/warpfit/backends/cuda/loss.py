"""Losses as means over the batch, their gradients, and counts of correct rows."""

from __future__ import annotations

from math import prod
from typing import Any

from warpfit.backends.base import Array, Number
from warpfit.backends.checks import (
    check_cross_entropy,
    check_float,
    check_labels,
    check_prediction,
    check_same_shape,
    check_shape,
)
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import blocks_for, check_record, power_of_two
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS, acc_dtype
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.next_batch import OrderedRows, order_arguments
from warpfit.backends.cuda.rows import THREADS, WARP, RowOps, elements_of_block, row_variants
from warpfit.errors import DTypeError, ShapeError

__all__ = ["LossOps", "variants"]

# Outputs of a row from which on a block may take it, where there are not enough rows for a warp each.
LONG_ROW = 1024

# Losses by the names of their terms in ``kernels/ops/loss/loss_terms.cuh``; of all, those with an accuracy.
ELEMENT_LOSSES = ("mse", "absolute_error", "huber", "binary_cross_entropy")
COUNTING_LOSSES = ("cross_entropy", "binary_cross_entropy")


def _check_total(op: str, total_weight: Array, like: Array) -> None:
    """Raise unless total_weight is what the forward operation returned for operands like these."""
    expected = acc_dtype(like.dtype)
    if total_weight.dtype != expected or total_weight.shape != ():
        check_shape(op, "total_weight", total_weight, ())
        raise DTypeError(f"{op}: expected total_weight of dtype {expected}, got {total_weight.dtype}")


def _check_step(op: str, outputs: Array, **others: Array | None) -> None:
    """Raise unless outputs are of a float dtype, and the others of its arithmetic type."""
    check_float(op, outputs)
    expected = acc_dtype(outputs.dtype)
    for what, array in others.items():
        if array is not None and array.dtype != expected:
            raise DTypeError(
                f"{op}: expected {what} of dtype {expected} for {outputs.dtype}, got {array.dtype}"
            )


def _check_element_step(op: str, prediction: Array, target: Array, sample_weight: Array | None) -> None:
    """Raise unless target is like prediction, rows of outputs, in its arithmetic type, with a weight a row."""
    _check_step(op, prediction, target=target, sample_weight=sample_weight)
    check_same_shape(op, prediction, target)
    if prediction.ndim == 0:
        raise ShapeError(f"{op}: expected a batch of rows, got shape ()")
    check_shape(op, "sample_weight", sample_weight, prediction.shape[:1])


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
        check_cross_entropy("softmax_cross_entropy_forward", logits, labels, class_weight, sample_weight)
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

    def mean_squared_error_forward(
        self, prediction: Array, target: Array, *, sample_weight: Array | None = None, half: bool = False
    ) -> tuple[Array, Array]:
        scale = 0.5 if half else 1.0
        return self._mean("mean_squared_error_forward", prediction, target, sample_weight, scale=scale)

    def mean_squared_error_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> Array:
        op = "mean_squared_error_backward"
        divisor = 1.0 if half else _outputs(prediction) / 2
        return self._gradient(op, prediction, target, total_weight, sample_weight, divisor)

    def absolute_error_forward(
        self, prediction: Array, target: Array, *, sample_weight: Array | None = None
    ) -> tuple[Array, Array]:
        return self._mean("absolute_error_forward", prediction, target, sample_weight)

    def absolute_error_backward(
        self, prediction: Array, target: Array, total_weight: Array, *, sample_weight: Array | None = None
    ) -> Array:
        divisor = _outputs(prediction)
        return self._gradient(
            "absolute_error_backward", prediction, target, total_weight, sample_weight, divisor
        )

    def huber_forward(
        self, prediction: Array, target: Array, *, delta: float = 1.0, sample_weight: Array | None = None
    ) -> tuple[Array, Array]:
        return self._mean("huber_forward", prediction, target, sample_weight, delta)

    def huber_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array:
        divisor = _outputs(prediction)
        return self._gradient(
            "huber_backward", prediction, target, total_weight, sample_weight, divisor, delta
        )

    def binary_cross_entropy_forward(
        self, logits: Array, target: Array, *, sample_weight: Array | None = None, sum_outputs: bool = False
    ) -> tuple[Array, Array]:
        op = "binary_cross_entropy_forward"
        return self._mean(op, logits, target, sample_weight, divisor=1.0 if sum_outputs else None)

    def binary_cross_entropy_backward(
        self,
        logits: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> Array:
        op = "binary_cross_entropy_backward"
        divisor = 1.0 if sum_outputs else _outputs(logits)
        return self._gradient(op, logits, target, total_weight, sample_weight, divisor)

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
        op = "softmax_cross_entropy_step"
        _check_step(op, logits, class_weight=class_weight, sample_weight=sample_weight)
        check_labels(op, logits, labels)
        check_shape(op, "class_weight", class_weight, logits.shape[1:])
        check_shape(op, "sample_weight", sample_weight, logits.shape[:1])
        check_record(op, record, row)
        num_rows, num_classes = logits.shape
        if not num_rows * num_classes:
            return None
        by_order = isinstance(labels, OrderedRows)
        launch = self.row_launch(num_rows, num_classes, logits.dtype.itemsize)
        gradient = self.empty(logits.shape, logits.dtype)
        self.kernel(op, DTYPE=logits.dtype, **launch.defines)(
            launch.grid,
            launch.block,
            self.vectors(logits),
            self._labels(labels.array if by_order else labels),
            *order_arguments(labels.rows if by_order else None),
            self.contiguous_or_none(class_weight),
            self.contiguous_or_none(sample_weight),
            gradient,
            record,
            *scalar(row),
            *self._partials(launch.grid, 2),
            label_smoothing,
            scale,
            num_rows,
            num_classes,
            launch.lanes,
            launch.capacity,
            shared_bytes=launch.shared_bytes,
        )
        return gradient

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
        term_scale, slope_divisor = (0.5, 1.0) if half else (1.0, _outputs(prediction) / 2)
        return self._element_step(
            "mean_squared_error_step",
            "mse",
            prediction,
            target,
            record,
            row,
            scale,
            sample_weight,
            term_scale=term_scale,
            slope_divisor=slope_divisor,
        )

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
        op = "absolute_error_step"
        return self._element_step(op, "absolute_error", prediction, target, record, row, scale, sample_weight)

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
        return self._element_step(
            "huber_step", "huber", prediction, target, record, row, scale, sample_weight, setting=delta
        )

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
        op, loss = "binary_cross_entropy_step", "binary_cross_entropy"
        divisor = 1.0 if sum_outputs else None
        return self._element_step(
            op,
            loss,
            logits,
            target,
            record,
            row,
            scale,
            sample_weight,
            divisor=divisor,
            slope_divisor=divisor,
        )

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
            shared_bytes=0 if launch.defines["LONG_ROWS"] else launch.shared_bytes,  # long rows are read once
        )
        return count

    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        check_prediction("count_correct_binary", logits, target, None)
        num_rows, num_outputs = len(logits), _outputs(logits)
        lanes = 1
        while lanes < 32 and lanes * 4 < num_outputs:
            lanes *= 2
        grid = blocks_for(num_rows, THREADS // lanes, self.most_blocks // 2)
        count = self.empty((), "int64")
        kernel = self.kernel("count_correct_binary", DTYPE=logits.dtype)
        operands = (self.contiguous(logits), self.contiguous(target), count)
        kernel(grid, THREADS, *operands, *self._partials(grid, 1), num_rows, num_outputs, lanes)
        return count

    def _mean(
        self,
        op: str,
        prediction: Array,
        target: Array,
        sample_weight: Array | None,
        setting: float = 0.0,
        *,
        scale: float = 1.0,
        divisor: float | None = None,
    ) -> tuple[Array, Array]:
        """Return scale · Σ s · term / (divisor · Σ s), by default over the number of outputs, and Σ s."""
        check_prediction(op, prediction, target, sample_weight)
        num_rows, num_outputs, dtype = len(prediction), _outputs(prediction), prediction.dtype
        grid = blocks_for(num_rows * num_outputs, elements_of_block(dtype.itemsize), self.most_blocks // 2)
        acc = acc_dtype(dtype)
        loss, weight = self.empty((), acc), self.empty((), acc)
        self.kernel("element_loss_forward", DTYPE=dtype, LOSS=_term_of(op))(
            grid,
            THREADS,
            self.contiguous(prediction),
            self.contiguous(target),
            self.contiguous_or_none(sample_weight),
            loss,
            weight,
            *self._partials(grid, 2),
            scale,
            num_outputs if divisor is None else divisor,
            setting,
            num_rows,
            num_outputs,
        )
        return loss, weight

    def _gradient(
        self,
        op: str,
        prediction: Array,
        target: Array,
        total_weight: Array,
        sample_weight: Array | None,
        divisor: float,
        setting: float = 0.0,
    ) -> Array:
        """Return s · derivative / (divisor · Σ s)."""
        check_prediction(op, prediction, target, sample_weight)
        _check_total(op, total_weight, prediction)
        gradient = self.empty(prediction.shape, prediction.dtype)
        num_rows, num_outputs = len(prediction), _outputs(prediction)
        n = num_rows * num_outputs
        if not n:
            return gradient
        self.kernel("element_loss_backward", DTYPE=prediction.dtype, LOSS=_term_of(op))(
            blocks_for(n, elements_of_block(prediction.dtype.itemsize)),
            THREADS,
            self.contiguous(prediction),
            self.contiguous(target),
            total_weight,
            self.contiguous_or_none(sample_weight),
            gradient,
            divisor,
            setting,
            num_rows,
            num_outputs,
        )
        return gradient

    def _element_step(
        self,
        op: str,
        loss: str,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        scale: float,
        sample_weight: Array | None,
        *,
        term_scale: float = 1.0,
        divisor: float | None = None,
        slope_divisor: float | None = None,
        setting: float = 0.0,
    ) -> Array | None:
        """Record term_scale · Σ s · term / (divisor · Σ s), and return scale · s · derivative / (slope_divisor · Σ s).

        Divisors are the number of outputs by default.
        """
        _check_element_step(op, prediction, target, sample_weight)
        check_record(op, record, row)
        num_rows, num_outputs = len(prediction), _outputs(prediction)
        if not num_rows * num_outputs:
            return None
        counts_rows, itemsize = loss in COUNTING_LOSSES, prediction.dtype.itemsize
        lanes = self._lanes_of_row(num_rows, num_outputs, itemsize) if counts_rows else 0
        blocks = -(-num_rows * lanes // THREADS) if counts_rows else num_rows * num_outputs
        grid = blocks_for(blocks, 1 if counts_rows else elements_of_block(itemsize), self.most_blocks // 2)
        gradient = self.empty(prediction.shape, prediction.dtype)
        by_order = isinstance(target, OrderedRows)
        defines = {"LOSS": loss, "COUNTS_ROWS": int(counts_rows), "GATHERS": int(by_order)}
        self.kernel("element_loss_step", DTYPE=prediction.dtype, **defines)(
            grid,
            THREADS,
            self.contiguous(prediction),
            self.contiguous(target.array if by_order else target),
            *order_arguments(target.rows if by_order else None),
            self.contiguous_or_none(sample_weight),
            gradient,
            record,
            *scalar(row),
            *self._partials(grid, 2),
            term_scale,
            num_outputs if divisor is None else divisor,
            num_outputs if slope_divisor is None else slope_divisor,
            setting,
            scale,
            num_rows,
            num_outputs,
            lanes,
        )
        return gradient

    def _lanes_of_row(self, num_rows: int, num_outputs: int, itemsize: int) -> int:
        """Return how many threads take a row together: part of a warp, or a block where long rows are few."""
        if num_outputs >= LONG_ROW and num_rows < self.most_blocks:
            return THREADS
        is_in_vectors = num_outputs * itemsize % 16 == 0
        return min(WARP, power_of_two(-(-num_outputs // (16 // itemsize if is_in_vectors else 4))))

    def _partials(self, num_blocks: int, num_sums: int) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Return memory for the sums of each block, and a counter of blocks; None for a single block."""
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


def _term_of(op: str) -> str:
    """Return the name of an operation's terms: that of its loss, but for a shorter one."""
    return op.rpartition("_")[0].replace("mean_squared_error", "mse")


def _outputs(prediction: Any) -> int:
    return prod(prediction.shape[1:])


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return the kernels with the defines that they are asked for."""
    along_rows = [*row_variants("softmax_cross_entropy_forward"), *row_variants("count_correct")]
    along_rows += [
        (f"element_loss_{way}", {"DTYPE": dtype, "LOSS": loss})
        for loss in ELEMENT_LOSSES
        for way in ("forward", "backward")
        for dtype in DEVICE_FLOATS
    ]
    others = ("softmax_cross_entropy_backward", "count_correct_binary")
    along_rows += row_variants("softmax_cross_entropy_step")
    steps = [
        {"DTYPE": dtype, "LOSS": loss, "COUNTS_ROWS": str(int(loss in COUNTING_LOSSES)), "GATHERS": gathers}
        for loss in ELEMENT_LOSSES
        for dtype in DEVICE_FLOATS
        for gathers in "01"
    ]
    along_rows += [("element_loss_step", defines) for defines in steps]
    return along_rows + [(name, {"DTYPE": dtype}) for name in others for dtype in DEVICE_FLOATS]
