"""The meaning of y and of the outputs for each of the two estimators: encoding, loss, score."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import unique_labels

from warpfit.checks import Array
from warpfit.errors import ConfigError
from warpfit.estimators.binarizer import are_integers, binarizer_of
from warpfit.estimators.recipes import REGRESSION_LOSSES
from warpfit.losses import BinaryCrossEntropy, Loss, Poisson, SoftmaxCrossEntropy


class Labels:
    """A class for each row, or several labels: those of a classifier that has learned them."""

    are_numbers = False  # so that y may hold nothing else
    are_stratified = True  # where rows are held out
    reports_have_score = True  # as `EpochReport.val_accuracy`

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def are_plain(self, y: Any) -> bool:
        """Return whether y is an array (N,) that scikit-learn's checks would return as it is."""
        return are_integers(y)

    def learn(self, y: Array, *, goes_on: bool) -> None:
        """Set the estimator's classes from checked y, or raise if it has others."""
        estimator = self.estimator
        if hasattr(estimator, "classes_") and goes_on:
            self._check_classes(unique_labels(y))
            return
        estimator._label_binarizer = binarizer_of(y)
        estimator.classes_ = estimator._label_binarizer.classes_

    def are_all_in(self, y: Array) -> bool:
        """Return whether checked y has each known class; not if it is of several labels."""
        return y.ndim == 1 and len(np.unique(y)) == len(self.estimator.classes_)

    def _check_classes(self, classes: Array) -> None:
        """Raise ValueError unless these classes of y go with those that the network has."""
        known = self.estimator.classes_
        if self.estimator.warm_start:
            if set(classes) != set(known):
                raise ValueError(
                    "warm_start can only be used where `y` has the same classes as in the "
                    f"previous call to fit. Previously got {known}, `y` has {classes}"
                )
        elif len(np.setdiff1d(classes, known, assume_unique=True)):
            raise ValueError(
                f"`y` has classes not in `self.classes_`. `self.classes_` has {known}. 'y' has "
                f"{classes}."
            )

    def row_weights(self, y: Any, *, incremental: bool) -> Array | None:
        """Return the weight (N,) of each row's class; None if all are 1."""
        class_weight = self.estimator.class_weight
        if class_weight is None:
            return None
        if incremental and class_weight == "balanced":
            raise ValueError(
                "class_weight 'balanced' is not supported for partial_fit, which does not see all "
                "rows; give a dict of the weights instead"
            )
        weights: Array = compute_sample_weight(class_weight, one_column(np.asarray(y)))
        return weights

    @property
    def _binarizer(self) -> Any:
        return self.estimator._label_binarizer

    @property
    def _are_exclusive(self) -> bool:
        return bool(self._binarizer.y_type_ == "multiclass")

    @property
    def out_activation(self) -> str:
        """What makes predictions of outputs; `recipes.OUTPUT_FUNCTIONS` has it."""
        return "softmax" if self._are_exclusive else "logistic"

    @property
    def loss(self) -> Loss:
        """The loss to train with."""
        return (
            SoftmaxCrossEntropy() if self._are_exclusive else BinaryCrossEntropy(sum_outputs=True)
        )

    def encoded(self, y: Array) -> Array:
        """Return checked targets as (N,) or (N, outputs) in the form of the network's outputs."""
        return self._binarizer.transform(y).astype(bool)

    def encoded_to_validate(self, y: Any) -> Array:
        """Return targets of validation rows so, or raise if there are unknown classes."""
        y = one_column(np.asarray(y))
        foreign = np.setdiff1d(unique_labels(y), self.estimator.classes_)
        if len(foreign):
            raise ValueError(f"expected y_val to hold classes of y, got {foreign} besides")
        return self.encoded(y)

    def as_loss_takes(self, rows: Any) -> Array:
        """Return the encoded targets (N, outputs) of checked `Rows` as `loss` takes them."""
        targets: Array = rows.classes if self._are_exclusive else rows.y
        return targets

    def decoded(self, predicted: Array) -> Array:
        """Return the labels that are predicted by (N, outputs), after `out_activation`.

        As LabelBinarizer does, whose checks take longer than a small network's products.
        """
        classes: Array = self._binarizer.classes_
        if self._are_exclusive:
            return classes.take(predicted.argmax(axis=1))
        if self._binarizer.y_type_ == "binary":
            are_last = predicted.ravel() > 0.5 if len(classes) > 1 else np.zeros(len(predicted))
            return classes[are_last.astype(np.intp)]
        return self._binarizer.inverse_transform(
            predicted.ravel() if predicted.shape[1] == 1 else predicted
        )

    def score_decoded(self, predicted: Array, y: Any, weight: Any) -> float:
        """Return scikit-learn's score of decoded predictions, integers without its checks."""
        arrays = (y, predicted)
        are_integers = all(type(each) is np.ndarray and each.dtype.kind in "iu" for each in arrays)
        if weight is None and are_integers and y.ndim == 1 and y.shape == predicted.shape:
            return float(np.mean(y == predicted))
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, predicted, sample_weight=weight))

    def score(self, predicted: Array, encoded: Array, weight: Array | None) -> float:
        """Return the accuracy of predictions (N, outputs), beside encoded targets (N, outputs)."""
        from sklearn.metrics import accuracy_score

        labels = self.decoded(encoded)
        return float(accuracy_score(labels, self.decoded(predicted), sample_weight=weight))


class Numbers:
    """A number for each row, or several: those of a regressor. Methods are those of `Labels`."""

    are_numbers = True
    are_stratified = reports_have_score = False

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def are_plain(self, y: Any) -> bool:
        is_array = type(y) is np.ndarray and y.ndim == 1
        return is_array and y.dtype in (np.float32, np.float64) and bool(np.isfinite(y).all())

    def learn(self, y: Array, *, goes_on: bool) -> None:
        """There is nothing to learn of numbers."""

    def are_all_in(self, y: Array) -> bool:
        return True

    def row_weights(self, y: Any, *, incremental: bool) -> None:
        """No row has a weight by its target."""

    @property
    def loss(self) -> Loss:
        loss = self.estimator.loss
        return loss if isinstance(loss, Loss) else REGRESSION_LOSSES[loss]

    @property
    def out_activation(self) -> str:
        loss = self.loss
        if loss.counts_correct or (
            type(loss).values is not Loss.values and not isinstance(loss, Poisson)
        ):
            raise ConfigError(
                "MLPRegressor: expected a loss whose outputs are the values that are predicted, "
                "or poisson, "
                f"got {loss!r}; MLPClassifier predicts labels, and fit and predict take any loss"
            )
        return "exp" if isinstance(loss, Poisson) else "identity"

    def encoded(self, y: Array) -> Array:
        return y

    def encoded_to_validate(self, y: Any) -> Array:
        return check_array(y, dtype="numeric", ensure_2d=False, input_name="y_val")

    def as_loss_takes(self, rows: Any) -> Array:
        targets: Array = rows.y
        return targets

    def decoded(self, predicted: Array) -> Array:
        return predicted.ravel() if predicted.shape[1] == 1 else predicted

    def score_decoded(self, predicted: Array, y: Any, weight: Any) -> float:
        if weight is None and type(y) is np.ndarray and y.ndim == 1 and y.shape == predicted.shape:
            found = _plain_r2(y, predicted)
            if found is not None:
                return found
        from sklearn.metrics import r2_score

        return float(r2_score(y, predicted, sample_weight=weight))

    def score(self, predicted: Array, encoded: Array, weight: Array | None) -> float:
        from sklearn.metrics import r2_score

        if not np.isfinite(predicted).all():
            return float("nan")
        return float(r2_score(encoded, predicted, sample_weight=weight))


def _plain_r2(y: Array, predicted: Array) -> float | None:
    """Return R² of float64 targets (N,), scikit-learn's bits; None if equal or not finite."""
    if y.dtype != np.float64 or predicted.dtype not in (np.float32, np.float64):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        y, predicted = y[:, None], predicted[:, None].astype(np.float64)
        error = np.sum((y - predicted) ** 2, axis=0)[0]
        spread = np.sum((y - np.mean(y, axis=0)) ** 2, axis=0)[0]
    return float(1 - error / spread) if 0 < spread < np.inf and error < np.inf else None


def one_column(y: Array) -> Array:
    """Return targets (N, 1) as (N,), with scikit-learn's warning; others as they are."""
    return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
