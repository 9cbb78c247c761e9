"""The base of classifier and regressor: from frames to a trained network and its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, _fit_context
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from warpfit import backends
from warpfit.blas import one_blas_thread
from warpfit.checks import check_readable
from warpfit.data.dataset import is_frame
from warpfit.extras import needs
from warpfit.losses import Loss
from warpfit.tabular.network import RealMLP, set_initial_values
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.training import Outcome, Rows, outputs_of, train

with needs("data", "tables need"):
    import pandas as pd

__all__ = ["CONSTRAINTS", "BaseTabular"]

Array = npt.NDArray[Any]

CONSTRAINTS: dict[str, list[Any]] = {
    "method": [StrOptions({"realmlp"})],
    "n_epochs": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "lr": [Interval(Real, 0, None, closed="neither")],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "random_state": ["random_state"],
    "device": [str],
    "verbose": ["verbose"],
}


class BaseTabular(BaseEstimator, ABC):
    """Base of both estimators; subclasses have the constructor, and say what targets mean."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CONSTRAINTS
    _activation: ClassVar[str]

    @abstractmethod
    def _learn_targets(self, y: Any, rows: Array) -> None:
        """Keep what is to be known of checked targets; scales are those of some rows."""

    @abstractmethod
    def _encoded(self, y: Any) -> Array:
        """Return targets as training takes them: labels (N,), or numbers (N, outputs)."""

    @abstractmethod
    def _loss(self) -> Loss: ...

    @abstractmethod
    def _error(self, outputs: Array, targets: Array) -> float:
        """Return the validation error of outputs (N, K) for encoded targets."""

    @property
    @abstractmethod
    def _num_outputs(self) -> int: ...

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on a table.

        Parameters
        ----------
        X : DataFrame or array_like (n_samples, n_features)
            Of pandas or polars, with numbers, dates, text, categories, true and false, and missing
            cells; or an array of numbers, or of such cells.
        y : array_like (n_samples,), of numbers also (n_samples, n_outputs)
        X_val, y_val : optional
            Rows to validate on; otherwise `validation_fraction` of X are set aside for that.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data are not what is described here.
        DivergedError
            If the network's outputs are not finite after any epoch.
        """
        frame, y = self._checked(X, y, reset=True)
        random_state = check_random_state(self.random_state)
        if X_val is None and y_val is None:
            places, aside = train_test_split(
                np.arange(len(frame)), test_size=self.validation_fraction, random_state=random_state
            )
        elif X_val is None or y_val is None:
            raise ValueError("expected both X_val and y_val, or neither, got one of them")
        else:
            other, y_val = self._checked(X_val, y_val, reset=False)
            places, aside = np.split(np.arange(len(frame) + len(other)), [len(frame)])
            frame, y = pd.concat([frame, other]), np.concatenate([y, y_val])
        self._learn_targets(y, places)
        self.preprocessor_ = Preprocessor(frame, places)
        self._train(
            Rows(self._rows(frame), self._encoded(y)),
            places,
            aside,
            int(random_state.randint(2**31)),
        )
        return self

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Array]:
        frame, y = self._frame(X, reset=reset), self._checked_targets(y)
        check_consistent_length(frame, y)
        return frame, y

    @abstractmethod
    def _checked_targets(self, y: Any) -> Array:
        """Return targets as an array, (N,) or (N, outputs), or raise ValueError."""

    def _train(self, rows: Rows, places: Array, aside: Array, seed: int) -> None:
        """Train a network on the rows at some places, validated on those set aside."""
        x, targets = rows.x[places], rows.y[aside]
        network = RealMLP(
            self.preprocessor_.columns, self._num_outputs, self._activation, seed=seed
        )
        set_initial_values(network, x, seed)
        ops = backends.get(self.device)
        with one_blas_thread():
            outcome = train(
                network.to(self.device),
                Rows(ops.asarray(x), ops.asarray(rows.y[places])),
                ops.asarray(rows.x[aside]),
                lambda outputs: self._error(outputs, targets),
                loss=self._loss(),
                lr=self.lr,
                n_epochs=self.n_epochs,
                batch_size=self.batch_size,
                seed=seed,
                report=self._report,
            )
        self.network_ = network.to("cpu")
        self.loss_curve_, self.validation_errors_ = outcome.losses, outcome.errors
        self.best_epoch_ = outcome.best_epoch

    def _report(self, outcome: Outcome) -> None:
        if self.verbose:
            print(
                f"epoch {len(outcome.losses)} of {self.n_epochs}: "
                f"loss {outcome.losses[-1]:.6g}, validation error {outcome.errors[-1]:.6g}"
            )

    def _frame(self, X: Any, *, reset: bool) -> Any:
        """Return X as a frame of pandas, checked as scikit-learn does."""
        if type(X).__module__.startswith("polars"):
            X = pd.DataFrame(X.to_dict(as_series=False))
        if is_frame(X) and X.size:
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X.infer_objects()
        if isinstance(X, list | tuple):
            X = np.array(X, dtype=object)  # so that numbers beside text stay numbers
        X = validate_data(
            self, check_readable("X", X), dtype=None, ensure_all_finite="allow-nan", reset=reset
        )
        return pd.DataFrame(X).infer_objects()

    def _rows(self, frame: Any) -> Array:
        return self.preprocessor_.transform(frame).astype(np.float32)

    def _outputs(self, X: Any) -> Array:
        """Return the network's outputs (N, K) for a table."""
        check_is_fitted(self)
        x = self._rows(self._frame(X, reset=False))
        network = deepcopy(self.network_).to(self.device)
        return outputs_of(network, network.backend.asarray(x))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags
