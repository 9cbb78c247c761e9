"""TabularClassifier: classes from a table."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets

from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.tabular.estimator import CONSTRAINTS, BaseTabular

__all__ = ["TabularClassifier"]

Array = npt.NDArray[Any]


class TabularClassifier(ClassifierMixin, BaseTabular):
    """A network for the classes of a table's rows, straight from a frame: RealMLP-TD.

    Numbers become periodic embeddings, few categories indicators, many categories embeddings; three
    hidden layers of 256 units follow. All that is learned and how has tuned defaults, so that
    nothing needs to be chosen. Missing cells are allowed everywhere.

    Parameters
    ----------
    method : {'realmlp'}
    n_epochs : int
        The network of the epoch with the fewest wrong validation rows remains.
    batch_size : int
        Rows of a step; the last of an epoch that are fewer are left out. All rows, if they are
        fewer.
    lr : float
        The largest learning rate, for weights; other parameters have multiples of it.
    label_smoothing : float
        Share of each target that is spread evenly over all classes, in [0, 1). With 0
        probabilities are further from 0 and 1 than with the default.
    validation_fraction : float
        Share of the rows that are set aside to choose the epoch by.
    random_state : int, RandomState or None
        Decides rows set aside, initial values, orders and dropout.
    device : str
        ``'auto'`` is the first CUDA device, or the CPU where there is none; or ``'cpu'``,
        ``'cuda'``, ``'cuda:1'``, ...
    verbose : bool or int
        Whether each epoch is printed.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray (n_features_in_,)
        If X has names for all.
    loss_curve_, validation_errors_ : list of float
        Of each epoch: the mean training loss, and the share of wrong validation rows.
    best_epoch_ : int
        Counted from 1: the latest of those with the least validation error.
    network_ : Module
        On the CPU.
    preprocessor_ : Preprocessor
        What makes its input of a frame.

    References
    ----------
    Holzmüller, Grinsztajn, Steinwart: Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on
    Tabular Data (2024).

    Examples
    --------
    >>> import pandas as pd
    >>> import warpfit as wf
    >>> people = pd.DataFrame({"age": [20, 60, None, 30] * 10, "town": list("abca") * 10})
    >>> model = wf.TabularClassifier(n_epochs=8, random_state=0, device="cpu")
    >>> model = model.fit(people, ["young", "old", "old", "young"] * 10)
    >>> model.predict(people[:2]).tolist()
    ['young', 'old']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "label_smoothing": [Interval(Real, 0, 1, closed="left")],
    }
    _activation: ClassVar[str] = "selu"

    def __init__(
        self,
        method: str = "realmlp",
        *,
        n_epochs: int = 256,
        batch_size: int = 256,
        lr: float = 0.04,
        label_smoothing: float = 0.1,
        validation_fraction: float = 0.2,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.label_smoothing = label_smoothing
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, (n_samples,).

        Parameters
        ----------
        X : DataFrame or array_like (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        outputs = self._outputs(X)
        return self.classes_[outputs.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class for each row, (n_samples, n_classes), as `classes_`
        has them; parameters and errors as `predict`'s.
        """
        return np.asarray(softmax(self._outputs(X).astype(np.float64), axis=1))

    def _checked_targets(self, y: Any) -> Array:
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        y = column_or_1d(
            check_array(y, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name="y"),
            warn=True,
        )
        check_classification_targets(y)
        return np.asarray(y)

    def _learn_targets(self, y: Array, rows: Array) -> None:
        self.classes_ = np.unique(y)

    def _encoded(self, y: Array) -> Array:
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _loss(self) -> Loss:
        return SoftmaxCrossEntropy(label_smoothing=self.label_smoothing)

    def _error(self, outputs: Array, targets: Array) -> float:
        if not np.isfinite(outputs).all():
            return float("nan")
        return float((outputs.argmax(axis=1) != targets).mean())

    @property
    def _num_outputs(self) -> int:
        return len(self.classes_)
