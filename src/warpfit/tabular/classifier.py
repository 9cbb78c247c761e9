"""TabularClassifier: classes from a table."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets

from warpfit.checks import brief
from warpfit.errors import DataError
from warpfit.extras import needs
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.tabular.estimator import BaseTabular
from warpfit.tabular.parameters import CONSTRAINTS
from warpfit.tabular.targets import Classes

with needs("data", "tables need"):
    import pandas as pd

Array = npt.NDArray[Any]


class TabularClassifier(ClassifierMixin, BaseTabular):
    """A network for the classes of a table's rows, straight from a frame: RealMLP-TD or TabM.

    RealMLP makes periodic embeddings of numbers, indicators of few categories and embeddings of
    many; three hidden layers of 256 units follow. TabM is 32 networks of three layers of 512 units
    that share most weights. All hyperparameters have tuned defaults, so that nothing needs to be
    chosen. Missing cells are allowed everywhere.

    Parameters
    ----------
    method : {'realmlp', 'tabm', 'tabm_ple'}
        The last is TabM with two layers above piecewise-linear embeddings of numbers, and with
        gradient clipping. Where a parameter may be None, None stands for the value that the
        method's authors found best. It is given below for RealMLP, and in brackets for TabM.
    n_folds : int or None
        The rows are split into so many folds, the classes in equal shares. For each a network is
        trained on the others, and validated on it. Probabilities are the mean of all networks'.
    n_ensemble : int
        Networks with other seeds for each fold, or for the rows held out.
    n_epochs : int or None
        256 (at most 10,000: training ends after 17 epochs without a smaller validation error). The
        network of the epoch with the fewest wrong validation rows remains.
    batch_size : int or None
        Rows of a step, 256; all rows, if they are fewer. A shorter last batch of an epoch is left
        out (is not).
    lr : float or None
        The largest learning rate, for weights, 0.04; other parameters have multiples of it (0.002
        for all parameters, constant).
    hidden_layer_sizes : int, sequence of int or None
        Units of the hidden layers, 256 three times (512 three times, or twice above embeddings).
    activation : str or None
        Of the hidden layers, ``'selu'`` (always ReLU, so None only).
    dropout, weight_decay : float or None
        In the first half of the training, 0.15 and 0.02; then they fall to 0 (0.1 and 0.0003,
        constant).
    frequency_scale : float or None
        Standard deviation of the initial frequencies of the periodic embeddings, 0.1 (None only).
    label_smoothing : float or None
        Share of each target that is spread evenly over all classes, 0.1 (0), below 1. With 0
        probabilities are closer to 0 and 1.
    precision : {'float32', 'float16', 'bfloat16'} or None
        Of products on a GPU. For RealMLP None is float16, in which one kernel trains all networks
        of most shapes at once; in float32 they are trained one after the other, step by step, as on
        the CPU (None is bfloat16; there is no float16).
    validation_fraction : float
        Share of the rows that are held out to choose the epoch by, where there are no folds.
    time_limit : float or None
        Seconds from the beginning of `fit`. Then the running epoch ends; of that network the best
        epoch counts, and others do not begin. The first network has at least one epoch.
    random_state : int, RandomState or None
        Decides folds, rows held out, initial values, orders and dropout. Equal integers give equal
        networks on one device. A network of a bag equals that of a `fit` to the same rows, with the
        same `X_val`, whose `random_state` is the member's ``seed``.
    device : str or list of str
        ``'auto'`` is the CPU where that takes less time, and else the first CUDA device, if there
        is one; or ``'cpu'``, ``'cuda'``, ``'cuda:1'``, ... A list of these, or ``'cuda:all'``, is
        for searches, which distribute fits over them.
    verbose : bool or int
        Whether each epoch is printed.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray (n_features_in_,)
        If X has names for all.
    members_ : list of Trained
        Each network with what belongs to it: ``network``, ``preprocessor``, ``seed``, ``losses``,
        ``errors``, ``best_epoch``. All folds once, then all folds with other seeds.
    network_ : Module
        The first one, on the CPU.
    preprocessor_ : Preprocessor
        What makes its input of a frame.
    loss_curve_, validation_errors_ : list of float
        Of each of its epochs: the mean training loss, and the share of wrong validation rows.
    best_epoch_ : int
        Counted from 1: the latest (the first) of those with the least validation error.
    method_ : str
        By which it was fitted.
    left_out_ : list of int
        Places of the networks that `time_limit` left no time for.
    folds_ : ndarray (n_samples,)
        With folds: the fold of each row.
    oof_probabilities_ : ndarray (n_samples, n_classes)
        With folds: what the networks that were not trained on a row predict for it; NaN where
        there was no time for one.
    feature_importances_ : ndarray (n_features_in_,)
        How much the error rate grows on average when a column's cells are permuted,
        among the validation rows. Computed when asked for.

    References
    ----------
    Holzmüller, Grinsztajn, Steinwart: Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on
    Tabular Data (2024). Gorishniy, Kotelnikov, Babenko: TabM: Advancing Tabular Deep Learning with
    Parameter-Efficient Ensembling (2025).

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
        "label_smoothing": [Interval(Real, 0, 1, closed="left"), None],
    }
    _are_classes: ClassVar[bool] = True
    _out_of_fold: ClassVar[str] = "oof_probabilities_"

    def __init__(
        self,
        method: str = "realmlp",
        *,
        n_folds: int | None = None,
        n_ensemble: int = 1,
        n_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        activation: str | None = None,
        dropout: float | None = None,
        weight_decay: float | None = None,
        frequency_scale: float | None = None,
        label_smoothing: float | None = None,
        precision: str | None = None,
        validation_fraction: float = 0.2,
        time_limit: float | None = None,
        random_state: Any = None,
        device: str | Sequence[str] = "auto",
        verbose: bool | int = False,
    ) -> None:
        self.method, self.n_folds, self.n_ensemble = method, n_folds, n_ensemble
        self.n_epochs, self.batch_size, self.lr = n_epochs, batch_size, lr
        self.hidden_layer_sizes, self.activation = hidden_layer_sizes, activation
        self.dropout, self.weight_decay = dropout, weight_decay
        self.frequency_scale, self.label_smoothing = frequency_scale, label_smoothing
        self.precision = precision
        self.validation_fraction, self.time_limit = validation_fraction, time_limit
        self.random_state, self.device, self.verbose = random_state, device, verbose

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
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class for each row, (n_samples, n_classes), as `classes_`
        has them: the mean over all networks; parameters and errors as `predict`'s.
        """
        return self._predicted(X)

    def _checked_targets(self, y: Any) -> Array:
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        y = _without_extension(y)
        _check_labels(y)
        y = column_or_1d(
            check_array(y, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name="y"),
            warn=True,
        )
        check_classification_targets(y)
        return np.asarray(y)

    def _learn_targets(self, y: Array) -> None:
        self.classes_ = np.unique(y)

    def _targets_of(self, y: Array) -> Classes:
        return Classes(self.classes_)

    def _loss(self, settings: dict[str, Any]) -> Loss:
        return SoftmaxCrossEntropy(label_smoothing=settings["label_smoothing"])


def _check_labels(y: Any) -> None:
    """Raise DataError if a label is missing, if only some are text, or if numbers are objects, of
    which scikit-learn's splits and scores know no classes.
    """
    is_list = isinstance(y, list | tuple)
    own = np.array(y, object) if is_list else np.asarray(y)
    if not own.ndim or not own.size or own.dtype.kind not in "OMm":
        return
    missing = np.flatnonzero(pd.isna(own))
    if missing.size:
        raise DataError(f"expected a class in each row, got a missing one in row {missing[0] + 1}")
    texts = [isinstance(each, str) for each in own.ravel()]
    if any(texts) and not all(texts):
        text, other = own.ravel()[texts.index(True)], own.ravel()[texts.index(False)]
        raise DataError(f"expected classes of one kind, got {brief(other)} besides {brief(text)}")
    if own.dtype == object and not (is_list or any(texts)):
        raise DataError(
            "Unknown label type: expected classes as text or as an array of numbers, got "
            f"{brief(own.ravel()[0])} in an array of objects; y.astype(int) is one of numbers"
        )


def _without_extension(y: Any) -> Any:
    """Return labels of pandas' own integers or truth values, if none are missing, as NumPy's."""
    plain = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    return y if plain is None or pd.isna(y).any() else np.asarray(y, plain)
