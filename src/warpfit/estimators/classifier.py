"""MLPClassifier: labels, several labels at once, probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, type_of_target, unique_labels
from sklearn.utils.validation import validate_data

from warpfit.estimators.mlp import FLOATS, BaseMLP, Rows
from warpfit.losses import BinaryCrossEntropy, Loss, SoftmaxCrossEntropy
from warpfit.optim import Schedule
from warpfit.training.callbacks import Callback

__all__ = ["MLPClassifier"]

Array = npt.NDArray[Any]


class MLPClassifier(ClassifierMixin, BaseMLP):  # type: ignore[misc]
    """Multi-layer perceptron classifier."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseMLP._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

    loss = "log_loss"
    _is_stratified = True
    _reports_score = True

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str | Schedule = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool | int = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: float = 10,
        max_fun: int = 15000,
        class_weight: str | dict[Any, float] | None = None,
        weight_decay: float = 0.01,
        dropout: float = 0.0,
        callbacks: Sequence[Callback] | None = None,
        device: str = "auto",
        precision: str = "auto",
        engine: str = "auto",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.power_t = power_t
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change
        self.max_fun = max_fun
        self.class_weight = class_weight
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.callbacks = callbacks
        self.device = device
        self.precision = precision
        self.engine = engine

    @available_if(lambda estimator: estimator._check_solver())
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on X and y, going on from the weights and the optimizer as they are.

        Parameters
        ----------
        X, y, sample_weight
            As `fit`'s; y need not hold every class.
        classes : array_like (n_classes,), optional
            All classes that any call will see; must be given at the first call.

        Returns
        -------
        self
        """
        if _check_partial_fit_first_call(self, classes):
            is_multilabel = type_of_target(y).startswith("multilabel")
            self._label_binarizer = LabelBinarizer().fit(y if is_multilabel else classes)
        return self._fit(X, y, sample_weight, incremental=True)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, (n_samples,), or the labels of each, (n_samples, n_classes).

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._decode(self._outputs(X))

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class for each row, (n_samples, n_classes), as `classes_` has them.

        Parameters and errors as `predict`'s. Of several labels at once each has its own, and they need not add up
        to 1.
        """
        probabilities = self._activated(self._outputs(X))
        if probabilities.shape[1] == 1:
            return np.hstack([1 - probabilities, probabilities])
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of `predict_proba`."""
        probabilities = self.predict_proba(X)
        return np.log(probabilities, out=probabilities)

    def _decode(self, outputs: Array) -> Array:
        probabilities = self._activated(outputs)
        if self.n_outputs_ == 1:
            probabilities = probabilities.ravel()
        return self._label_binarizer.inverse_transform(probabilities)

    # -- what BaseMLP asks ---------------------------------------------------------------------------------

    def _encode(self, X: Any, y: Any, *, incremental: bool, reset: bool) -> tuple[Any, Array]:
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], multi_output=True, dtype=FLOATS, reset=reset
        )
        y = _one_column(y)
        if not hasattr(self, "classes_") or not (self.warm_start or incremental):
            self._label_binarizer = LabelBinarizer().fit(y)
            self.classes_ = self._label_binarizer.classes_
        else:
            self._check_classes(unique_labels(y))
        return X, self._binarized(y)

    def _check_classes(self, classes: Array) -> None:
        """Raise ValueError unless these classes of y go with those that the network was made for."""
        if self.warm_start:
            if set(classes) != set(self.classes_):
                raise ValueError(
                    "warm_start can only be used where `y` has the same classes as in the previous call to fit. "
                    f"Previously got {self.classes_}, `y` has {classes}"
                )
        elif len(np.setdiff1d(classes, self.classes_, assume_unique=True)):
            raise ValueError(
                f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. 'y' has {classes}."
            )

    def _encode_validation(self, y: Any) -> Array:
        y = _one_column(np.asarray(y))
        foreign = np.setdiff1d(unique_labels(y), self.classes_)
        if len(foreign):
            raise ValueError(f"expected y_val to hold classes of y, got {foreign} besides")
        return self._binarized(y)

    def _binarized(self, y: Array) -> Array:
        return self._label_binarizer.transform(y).astype(bool)

    def _row_weights(self, X: Any, y: Any, sample_weight: Any, *, incremental: bool) -> Array | None:
        weights = super()._row_weights(X, y, sample_weight, incremental=incremental)
        if self.class_weight is None:
            return weights
        if incremental and self.class_weight == "balanced":
            raise ValueError(
                "class_weight 'balanced' is not supported for partial_fit, which does not see all rows; "
                "give a dict of the weights instead"
            )
        by_class = compute_sample_weight(self.class_weight, _one_column(np.asarray(y)))
        return by_class if weights is None else weights * by_class

    def _output_activation(self) -> str:
        return "softmax" if self._label_binarizer.y_type_ == "multiclass" else "logistic"

    def _loss(self) -> Loss:
        if self.out_activation_ == "softmax":
            return SoftmaxCrossEntropy()
        return BinaryCrossEntropy(sum_outputs=True)

    def _targets(self, y: Array) -> Array:
        return y.argmax(axis=1) if self.out_activation_ == "softmax" else y

    def _score_outputs(self, outputs: Array, rows: Rows) -> float:
        labels = self._label_binarizer.inverse_transform(rows.y)
        return float(accuracy_score(labels, self._decode(outputs), sample_weight=rows.weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _one_column(y: Array) -> Array:
    return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
