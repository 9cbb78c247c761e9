"""MLPRegressor: one number or several for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array, column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import validate_data

from warpfit.errors import ConfigError
from warpfit.estimators.mlp import FLOATS, BaseMLP, Rows
from warpfit.estimators.recipes import REGRESSION_LOSSES
from warpfit.losses import Loss, Poisson
from warpfit.optim import Schedule
from warpfit.training.callbacks import Callback

__all__ = ["MLPRegressor"]

Array = npt.NDArray[Any]


class MLPRegressor(RegressorMixin, BaseMLP):
    """Multi-layer perceptron regressor: scikit-learn's, trained by this package, on a GPU where there is one.

    Parameters
    ----------
    loss : str or Loss
        ``'squared_error'``: half the mean square. ``'poisson'``: half the Poisson deviance, of targets of at least
        0; the network then gives the logarithm of the prediction. Beyond scikit-learn ``'absolute_error'`` and
        ``'huber'``, or a loss of `warpfit.losses` for float targets, such as ``losses.Huber(delta=2.0)``.
    hidden_layer_sizes, activation, ...
        All others as `MLPClassifier`'s, but for ``class_weight``.

    Attributes
    ----------
    out_activation_ : str
        ``'identity'``, or ``'exp'`` for ``'poisson'``.
    coefs_, intercepts_, ...
        All others as `MLPClassifier`'s, but for ``classes_``. Scores are R².

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from warpfit import MLPRegressor
    >>> X, y = make_regression(n_features=5, random_state=1)
    >>> regressor = MLPRegressor(random_state=1, solver="lbfgs", device="cpu").fit(X, y / 100)
    >>> regressor.score(X, y / 100) > 0.99
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseMLP._parameter_constraints,
        "loss": [StrOptions(set(REGRESSION_LOSSES)), Loss],
    }

    def __init__(
        self,
        loss: str | Loss = "squared_error",
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
        weight_decay: float = 0.01,
        dropout: float = 0.0,
        n_ensemble: int = 1,
        callbacks: Sequence[Callback] | None = None,
        device: str = "auto",
        precision: str = "auto",
        engine: str = "auto",
    ) -> None:
        self._store(locals())

    def predict(self, X: Any) -> Array:
        """Return what is predicted for each row, (n_samples,), or (n_samples, n_outputs) for several outputs.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._decode(self._predicted(X))

    def _decode(self, predicted: Array) -> Array:
        return predicted.ravel() if predicted.shape[1] == 1 else predicted

    # -- what BaseMLP asks ---------------------------------------------------------------------------------

    def _encode(self, X: Any, y: Any, *, incremental: bool, reset: bool) -> tuple[Any, Array]:
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            y_numeric=True,
            dtype=FLOATS,
            reset=reset,
        )
        return X, column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y

    def _encode_validation(self, y: Any) -> Array:
        return check_array(y, dtype="numeric", ensure_2d=False, input_name="y_val")

    def _output_activation(self) -> str:
        loss = self._loss()
        if loss.counts_correct or (type(loss).values is not Loss.values and not isinstance(loss, Poisson)):
            raise ConfigError(
                "MLPRegressor: expected a loss whose outputs are the values that are predicted, or poisson, "
                f"got {loss!r}; MLPClassifier predicts labels, and fit and predict take any loss"
            )
        return "exp" if isinstance(loss, Poisson) else "identity"

    def _loss(self) -> Loss:
        return self.loss if isinstance(self.loss, Loss) else REGRESSION_LOSSES[self.loss]

    def _targets(self, y: Array) -> Array:
        return y

    def _score_outputs(self, outputs: Array, rows: Rows) -> float:
        predicted = self._activated(outputs)
        if not np.isfinite(predicted).all():
            return float("nan")
        return float(r2_score(rows.y, predicted, sample_weight=rows.weight))
