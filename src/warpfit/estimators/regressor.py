"""MLPRegressor: one number or several for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import StrOptions

from warpfit.checks import Array
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.parameters import CONSTRAINTS, hold
from warpfit.estimators.predictions import predicted
from warpfit.estimators.recipes import REGRESSION_LOSSES
from warpfit.estimators.targets import Numbers
from warpfit.losses import Loss
from warpfit.optim import Schedule
from warpfit.training.callbacks import Callback


class MLPRegressor(RegressorMixin, BaseMLP):
    """Multi-layer perceptron regressor: scikit-learn's, trained by this package, on a GPU where
    there is one.

    Parameters
    ----------
    loss : str or Loss
        ``'squared_error'``: half the mean square. ``'poisson'``: half the Poisson deviance, of
        targets of at least 0; the network then gives the logarithm of the prediction. Beyond
        scikit-learn ``'absolute_error'`` and ``'huber'``, or a loss of `warpfit.losses` for float
        targets, such as ``losses.Huber(delta=2.0)``.
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
        **CONSTRAINTS,
        "loss": [StrOptions(set(REGRESSION_LOSSES)), Loss],
    }

    _targets = property(Numbers)

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
        device: str | Sequence[str] = "auto",
        precision: str = "auto",
        engine: str = "auto",
    ) -> None:
        hold(self, locals())

    def predict(self, X: Any) -> Array:
        """Return what is predicted for each row, (n_samples,), or (n_samples, n_outputs) for
        several outputs.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._targets.decoded(predicted(self, X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of `predict`: the share of the variance that is explained.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)
        y : array_like (n_samples,) or (n_samples, n_outputs)
        sample_weight : array_like (n_samples,), optional

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._targets.score_decoded(self.predict(X), y, sample_weight)
