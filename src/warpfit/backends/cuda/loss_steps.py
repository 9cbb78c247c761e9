"""Losses of a step, each one kernel: it records loss and right rows, and gives the gradient."""

from __future__ import annotations

from typing import Any

from warpfit.backends.base import (
    ELEMENT_LOSSES,
    HALF_DTYPES,
    Array,
    LaterLogits,
    LossTerms,
    Number,
)
from warpfit.backends.checks import (
    check_float,
    check_joint,
    check_labels,
    check_linear,
    check_same_shape,
    check_shape,
)
from warpfit.backends.cuda.arrays import blocks_for, check_record, power_of_two
from warpfit.backends.cuda.dtypes import acc_dtype, class_name
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.loss import COUNTING_LOSSES, LossOps, num_outputs_of
from warpfit.backends.cuda.next_batch import OrderedRows, order_arguments
from warpfit.backends.cuda.rows import THREADS, WARP, elements_of_block
from warpfit.checks import check_choice
from warpfit.errors import DTypeError, ShapeError

# Outputs of a row from which on a block may take it, where there are not enough rows for a warp
# each.
LONG_ROW = 1024
# As in kernels/ops/loss/linear_cross_entropy_step.cu: outputs of a row, and inputs that a lane's
# registers have 64 of each; words of weights that they hold.
MOST_LINEAR_OUTPUTS, INPUTS_OF_PAIR, MOST_WORDS = 16, 64, 80
LINEAR_THREADS = 128


def _check_step(op: str, outputs: Array, **others: Array | None) -> None:
    """Raise unless outputs are of a float dtype, and the others of its arithmetic type."""
    check_float(op, outputs)
    expected = acc_dtype(outputs.dtype)
    for what, array in others.items():
        if array is not None and array.dtype != expected:
            raise DTypeError(
                f"{op}: expected {what} of dtype {expected} for {outputs.dtype}, got {array.dtype}"
            )


def _check_element_step(
    op: str, prediction: Array, target: Array, terms: LossTerms, sample_weight: Array | None
) -> None:
    """Raise unless terms are those of a loss of numbers, and target is like prediction, rows of
    outputs, in its arithmetic type, with a weight a row.
    """
    check_choice(f"{op}: a loss", terms.name, ELEMENT_LOSSES)
    _check_step(op, prediction, target=target, sample_weight=sample_weight)
    check_same_shape(op, prediction, target)
    if prediction.ndim == 0:
        raise ShapeError(f"{op}: expected a batch of rows, got shape ()")
    check_shape(op, "sample_weight", sample_weight, prediction.shape[:1])


def _suits_registers(x: Array, w: Array, pairs: int) -> bool:
    """Whether a warp's registers hold the weights of a last layer, and words all of its arrays."""
    if x.dtype not in HALF_DTYPES or x.shape[1] % 2 or (x.pointer | w.pointer) % 4:
        return False
    return 0 < w.shape[1] <= MOST_LINEAR_OUTPUTS and 0 < pairs * w.shape[1] <= MOST_WORDS


def _array_and_order(rows: Array) -> tuple[Array, tuple[Any, ...]]:
    """Return the array in which a kernel finds rows, and what it is told of their order."""
    if isinstance(rows, OrderedRows):
        return rows.array, order_arguments(rows.rows)
    return rows, order_arguments(None)


class LossStepOps(LossOps):
    """The operations ``..._step`` of the contract."""

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
        launch = self.row_launch(num_rows, num_classes, logits.dtype.itemsize)
        gradient = self.empty(logits.shape, logits.dtype)
        self.kernel(op, DTYPE=logits.dtype, **launch.defines)(
            launch.grid,
            launch.block,
            self.vectors(logits),
            *self._labels_in_order(labels),
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
        op, (x, w, b) = "linear_cross_entropy_step", (logits.x, logits.w, logits.b)
        gradient = self._gradient_of_linear(op, logits, labels)
        check_record(op, record, row)
        (num_rows, num_inputs), num_outputs = x.shape, w.shape[1]
        pairs = -(-num_inputs // INPUTS_OF_PAIR)
        if not num_rows or not _suits_registers(x, w, pairs):
            return None
        logits.dx = self.empty(x.shape, x.dtype) if logits.needs_dx else None
        grid = blocks_for(num_rows, LINEAR_THREADS // WARP, 2 * self.runtime.num_multiprocessors)
        defines = {"OUTPUTS": num_outputs, "PAIRS": pairs, "ACTIVATION": logits.x_activation.name}
        self.kernel(op, DTYPE=x.dtype, **defines)(
            grid,
            LINEAR_THREADS,
            self.contiguous(x),
            self.contiguous(w),
            self.contiguous_or_none(b),
            *self._labels_in_order(labels),
            gradient,
            logits.dx,
            record,
            *scalar(row),
            *self._partials(grid, 2),
            label_smoothing,
            scale,
            logits.x_activation.slope,
            num_rows,
            num_inputs,
        )
        return gradient

    def _gradient_of_linear(self, op: str, logits: LaterLogits, labels: Array) -> Array:
        """Return room for a last layer's gradient; raise unless the layer and labels suit it."""
        x, w = logits.x, logits.w
        check_linear(x, w, logits.b)
        check_joint(op, x, x.shape, logits.x_activation)
        gradient = self.empty((len(x), w.shape[1]), x.dtype)
        check_labels(op, gradient, labels)
        return gradient

    def element_loss_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        terms: LossTerms,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        op = "element_loss_step"
        _check_element_step(op, prediction, target, terms, sample_weight)
        check_record(op, record, row)
        if not prediction.size:
            return None
        grid, lanes = self._element_launch(terms.name, prediction)
        gradient = self.empty(prediction.shape, prediction.dtype)
        array, order = _array_and_order(target)
        form = {"COUNTS_ROWS": int(lanes > 0), "GATHERS": int(array is not target)}
        self.kernel(op, DTYPE=prediction.dtype, LOSS=class_name(terms.name), **form)(
            grid,
            THREADS,
            self.contiguous(prediction),
            self.contiguous(array),
            *order,
            self.contiguous_or_none(sample_weight),
            gradient,
            record,
            *scalar(row),
            *self._partials(grid, 2),
            terms.of_term,
            terms.of_derivative,
            terms.setting,
            scale,
            len(prediction),
            num_outputs_of(prediction),
            lanes,
        )
        return gradient

    def _element_launch(self, loss: str, prediction: Array) -> tuple[int, int]:
        """Return how many blocks are launched, and the threads of a row; 0: they share none."""
        num_rows, num_outputs = len(prediction), num_outputs_of(prediction)
        itemsize, most = prediction.dtype.itemsize, self.most_blocks // 2
        if loss not in COUNTING_LOSSES:
            return blocks_for(num_rows * num_outputs, elements_of_block(itemsize), most), 0
        lanes = self._lanes_of_row(num_rows, num_outputs, itemsize)
        return blocks_for(num_rows * lanes, THREADS, most), lanes

    def _labels_in_order(self, labels: Array) -> tuple[Any, ...]:
        """Return a kernel's labels, and what it is told of the order of their rows."""
        array, order = _array_and_order(labels)
        return (self._labels(array), *order)

    def _lanes_of_row(self, num_rows: int, num_outputs: int, itemsize: int) -> int:
        """Return how many threads take a row: part of a warp, or of few long rows a block."""
        if num_outputs >= LONG_ROW and num_rows < self.most_blocks:
            return THREADS
        is_in_vectors = num_outputs * itemsize % 16 == 0
        return min(WARP, power_of_two(-(-num_outputs // (16 // itemsize if is_in_vectors else 4))))
