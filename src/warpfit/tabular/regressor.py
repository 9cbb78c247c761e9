"""TabularRegressor: one number or several from each row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils import check_array

from warpfit.errors import DataError
from warpfit.losses import Loss, MeanSquaredError
from warpfit.tabular.estimator import BaseTabular
from warpfit.tabular.targets import Numbers

Array = npt.NDArray[Any]


class TabularRegressor(RegressorMixin, BaseTabular):
    """A network for numbers of a table's rows, straight from a frame: RealMLP-TD or TabM.

    It learns standardised targets by their mean squared error, and predicts nothing beyond the
    smallest and the largest target that it was trained on.

    Parameters
    ----------
    method, n_folds, n_ensemble, n_epochs, batch_size, lr, ...
        As `TabularClassifier`'s, but for ``label_smoothing``; RealMLP's own `lr` is 0.2, its
        `activation` ``'mish'``.

    Attributes
    ----------
    validation_errors_ : list of float
        Of each epoch: the root of the mean squared error of the standardised validation targets.
    oof_prediction_ : ndarray (n_samples,) or (n_samples, n_outputs)
        In place of probabilities.
    n_features_in_, loss_curve_, ...
        All others as `TabularClassifier`'s, but for ``classes_``.

    Examples
    --------
    >>> import pandas as pd
    >>> import warpfit as wf
    >>> houses = pd.DataFrame({"area": range(50, 150), "town": ["Ulm", "Bonn"] * 50})
    >>> model = wf.TabularRegressor(n_epochs=32, batch_size=32, random_state=0, device="cpu")
    >>> model = model.fit(houses, 3.0 * houses["area"])
    >>> bool(abs(model.predict(houses) - 3 * houses["area"]).mean() < 30)
    True
    """

    _are_classes: ClassVar[bool] = False
    _out_of_fold: ClassVar[str] = "oof_prediction_"

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
        self.frequency_scale = frequency_scale
        self.precision = precision
        self.validation_fraction, self.time_limit = validation_fraction, time_limit
        self.random_state, self.device, self.verbose = random_state, device, verbose

    def predict(self, X: Any) -> Array:
        """Return the prediction for each row, (n_samples,), or (n_samples, n_outputs) if y was of
        that shape.

        Parameters
        ----------
        X : DataFrame or array_like (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._predicted(X)

    def _checked_targets(self, y: Any) -> Array:
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        if (dtype := np.asarray(y).dtype).kind in "mM":  # whose numbers depend on their unit
            raise DataError(
                f"expected targets that are numbers, got {dtype}; durations divided by "
                "pandas.Timedelta(days=1) are"
            )
        return np.asarray(
            check_array(y, ensure_2d=False, dtype=np.float64, ensure_min_samples=0, input_name="y")
        )

    def _learn_targets(self, y: Array) -> None:
        """There is nothing to learn of all numbers."""

    def _targets_of(self, y: Array) -> Numbers:
        return Numbers.of(y)

    def _loss(self, settings: dict[str, Any]) -> Loss:
        return MeanSquaredError()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
