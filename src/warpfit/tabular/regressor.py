"""TabularRegressor: one number or several from each row of a table."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils import check_array

from warpfit.losses import Loss, MeanSquaredError
from warpfit.tabular.estimator import BaseTabular

__all__ = ["TabularRegressor"]

Array = npt.NDArray[Any]


class TabularRegressor(RegressorMixin, BaseTabular):
    """A network for numbers of a table's rows, straight from a frame: RealMLP-TD.

    It learns standardised targets by their mean squared error, and predicts nothing beyond the
    smallest and the largest target that it was trained on.

    Parameters
    ----------
    method, n_epochs, batch_size, lr, ...
        As `TabularClassifier`'s, but for ``label_smoothing``.

    Attributes
    ----------
    validation_errors_ : list of float
        Of each epoch: the root of the mean squared error of the standardised validation targets.
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

    _activation: ClassVar[str] = "mish"

    def __init__(
        self,
        method: str = "realmlp",
        *,
        n_epochs: int = 256,
        batch_size: int = 256,
        lr: float = 0.2,
        validation_fraction: float = 0.2,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

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
        outputs = self._outputs(X)
        found = self._clamped(outputs) * self._std + self._mean
        return found if self._is_2d else found[:, 0]

    def _checked_targets(self, y: Any) -> Array:
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        return np.asarray(
            check_array(y, ensure_2d=False, dtype=np.float64, ensure_min_samples=0, input_name="y")
        )

    def _learn_targets(self, y: Array, rows: Array) -> None:
        self._is_2d = y.ndim == 2
        trained = y[rows].reshape(len(rows), -1)
        std = trained.std(axis=0)
        self._mean, self._std = trained.mean(axis=0), np.where(std > 0, std, 1.0)
        standard = (trained - self._mean) / self._std
        self._low, self._high = standard.min(axis=0), standard.max(axis=0)

    def _encoded(self, y: Array) -> Array:
        return ((y.reshape(len(y), -1) - self._mean) / self._std).astype(np.float32)

    def _clamped(self, outputs: Array) -> Array:
        return np.clip(outputs.astype(np.float64), self._low, self._high)

    def _loss(self) -> Loss:
        return MeanSquaredError()

    def _error(self, outputs: Array, targets: Array) -> float:
        return float(np.sqrt(np.square(self._clamped(outputs) - targets).mean()))

    @property
    def _num_outputs(self) -> int:
        return len(self._mean)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
