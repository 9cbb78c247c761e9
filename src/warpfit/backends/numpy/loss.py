"""Losses as means over the batch, each formula beside its gradient, and counts of correct rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from warpfit.backends.activations import sigmoid
from warpfit.backends.base import Array, Backend, LossTerms
from warpfit.backends.checks import (
    check_cross_entropy,
    check_element_loss,
    check_float,
    check_labels,
    check_prediction,
)
from warpfit.backends.numpy.activation import row_max


def _ratio(total: Any, weight: Any) -> Any:
    """Return total / weight, and 0 where there is nothing to average."""
    return total / weight if weight else total * 0


def _total_weight(sample_weight: Array | None, like: Array) -> Array:
    return like.dtype.type(len(like)) if sample_weight is None else np.add.reduce(sample_weight)


def _scale_rows(gradient: Array, sample_weight: Array | None, denominator: Any) -> Array:
    """Multiply each row of the gradient by sᵢ / denominator, in place."""
    if sample_weight is None:
        gradient *= _ratio(gradient.dtype.type(1), denominator)
        return gradient
    factor = _ratio(sample_weight, denominator)
    gradient *= factor.reshape(-1, *[1] * (gradient.ndim - 1))
    return gradient


def _outputs(prediction: Array) -> int:
    return prod(prediction.shape[1:])


def _square(prediction: Array, target: Array, _: float, out: Array) -> Array:
    np.subtract(prediction, target, out=out)
    return np.multiply(out, out, out=out)


def _distance(prediction: Array, target: Array, _: float, out: Array) -> Array:
    return np.abs(np.subtract(prediction, target, out=out), out=out)


def _huber(prediction: Array, target: Array, delta: float, out: Array) -> Array:
    _distance(prediction, target, delta, out)
    clipped = np.minimum(out, delta)
    # d²/2 inside and delta·(|d| - delta/2) outside are both c·(|d| - c/2) with c = min(|d|, delta).
    return np.multiply(clipped, out - clipped / 2, out=out)


def _cross_entropy(logits: Array, target: Array, _: float, out: Array) -> Array:
    np.multiply(logits, target, out=out)
    np.subtract(np.maximum(logits, 0), out, out=out)
    out += np.log1p(np.exp(-np.abs(logits)))
    return out


def _difference(prediction: Array, target: Array, _: float, out: Array) -> Array:
    return np.subtract(prediction, target, out=out)


def _sign(prediction: Array, target: Array, _: float, out: Array) -> Array:
    return np.sign(np.subtract(prediction, target, out=out), out=out)


def _clipped(prediction: Array, target: Array, delta: float, out: Array) -> Array:
    return np.clip(np.subtract(prediction, target, out=out), -delta, delta, out=out)


def _of_sigmoid(logits: Array, target: Array, _: float, out: Array) -> Array:
    return np.subtract(sigmoid(logits, out), target, out=out)


# Of each element, by the names of losses: ``f(prediction, target, setting, out)`` writes to `out`.
_TERMS: dict[str, Callable[[Array, Array, float, Array], Array]] = {
    "mse": _square,
    "absolute_error": _distance,
    "huber": _huber,
    "binary_cross_entropy": _cross_entropy,
}
_DERIVATIVES: dict[str, Callable[[Array, Array, float, Array], Array]] = {
    "mse": _difference,
    "absolute_error": _sign,
    "huber": _clipped,
    "binary_cross_entropy": _of_sigmoid,
}


class LossOps(Backend):
    """Forward returns (mean loss, total weight[, saved]); backward the gradient of that mean."""

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
        shifted = np.subtract(logits, row_max(logits), out=self.empty(logits.shape, logits.dtype))
        probabilities = np.exp(shifted, out=self.empty(logits.shape, logits.dtype))
        row_sum = np.add.reduce(probabilities, axis=1, keepdims=True)
        np.divide(probabilities, row_sum, out=probabilities)
        log_sum = np.log(row_sum[:, 0])

        label_loss = log_sum - shifted[np.arange(num_rows), labels]
        label_weight = None if class_weight is None else class_weight[labels]
        losses = label_loss if label_weight is None else label_loss * label_weight
        if label_smoothing:
            weights = np.ones(num_classes, logits.dtype) if class_weight is None else class_weight
            spread = log_sum * np.add.reduce(weights) - shifted @ weights
            losses = (1 - label_smoothing) * losses + label_smoothing / max(num_classes, 1) * spread
        if sample_weight is not None:
            losses = losses * sample_weight
            label_weight = sample_weight if label_weight is None else label_weight * sample_weight
        weight = _total_weight(label_weight, logits)
        return _ratio(np.add.reduce(losses), weight), weight, probabilities

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
        check_cross_entropy(
            "softmax_cross_entropy_backward", probabilities, labels, class_weight, sample_weight
        )
        num_rows, num_classes = probabilities.shape
        gradient = self.empty(probabilities.shape, probabilities.dtype)
        rows = np.arange(num_rows)
        on_label: Any = 1 - label_smoothing
        on_each = label_smoothing / max(num_classes, 1)
        mass: Any = 1.0
        if class_weight is not None:
            on_label = on_label * class_weight[labels]
            mass = on_label + on_each * np.add.reduce(class_weight)
            np.multiply(probabilities, mass[:, None], out=gradient)
        else:
            np.copyto(gradient, probabilities)
        gradient[rows, labels] -= on_label
        if label_smoothing:
            gradient -= on_each if class_weight is None else on_each * class_weight
        return _scale_rows(gradient, sample_weight, total_weight)

    def element_loss_forward(
        self,
        prediction: Array,
        target: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array]:
        check_element_loss("element_loss_forward", prediction, target, terms, sample_weight)
        out = self.empty(prediction.shape, prediction.dtype)
        losses = _TERMS[terms.name](prediction, target, terms.setting, out)
        per_row = np.add.reduce(losses.reshape(len(losses), _outputs(losses)), axis=1)
        total = np.add.reduce(per_row if sample_weight is None else per_row * sample_weight)
        weight = _total_weight(sample_weight, prediction)
        return _ratio(total * prediction.dtype.type(terms.of_term), weight), weight

    def element_loss_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> Array:
        check_element_loss("element_loss_backward", prediction, target, terms, sample_weight)
        out = self.empty(prediction.shape, prediction.dtype)
        gradient = _DERIVATIVES[terms.name](prediction, target, terms.setting, out)
        denominator = total_weight / prediction.dtype.type(terms.of_derivative)
        return _scale_rows(gradient, sample_weight, denominator)

    def count_correct(self, logits: Array, labels: Array) -> Array:
        check_float("count_correct", logits)
        check_labels("count_correct", logits, labels)
        if logits.size == 0:
            return np.int64(0)
        return np.int64(np.count_nonzero(np.argmax(logits, axis=1) == labels))

    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        check_prediction("count_correct_binary", logits, target, None)
        matches = (logits > 0) == (target > 0.5)
        return np.int64(
            np.count_nonzero(matches.reshape(len(logits), _outputs(logits)).all(axis=1))
        )
