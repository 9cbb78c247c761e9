"""The base of classifier and regressor: methods that other modules implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from warpfit.attributes import kept_if_it_fails
from warpfit.estimators import fitting
from warpfit.estimators.parameters import CONSTRAINTS, STOCHASTIC_SOLVERS, validating_parameters
from warpfit.estimators.predictions import PredictedRows
from warpfit.estimators.targets import Labels, Numbers
from warpfit.files import PathLike
from warpfit.training.run import Run


def is_stochastic(estimator: Any) -> bool:
    """Return whether a solver has epochs, as partial fits need, or raise AttributeError."""
    if estimator.solver not in STOCHASTIC_SOLVERS:
        raise AttributeError(f"partial_fit needs a stochastic solver; {estimator.solver} is none")
    return True


class BaseMLP(BaseEstimator, ABC):
    """Base of both estimators; subclasses have the constructor, and say what targets mean."""

    # Where a search predicts the same rows with many estimators: `predictions.predicting`.
    _predicted_rows: PredictedRows | None = None
    # While it trains: `EpochLog`.
    _run: Run | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CONSTRAINTS

    @property
    @abstractmethod
    def _targets(self) -> Labels | Numbers:
        """What y and the network's outputs mean."""

    @validating_parameters
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train on X and y.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)
            float32 and float64 stay so, all else becomes float64. Sparse matrices become dense.
        y : array_like (n_samples,) or (n_samples, n_outputs)
        sample_weight : array_like (n_samples,), optional
        X_val, y_val : array_like, optional
            Validation rows after each epoch: ``validation_scores_`` and
            ``validation_loss_curve_`` are theirs, and early stopping watches them instead of
            setting rows of X aside. Not for the solver ``'lbfgs'``.

        Returns
        -------
        self

        Raises
        ------
        sklearn.utils._param_validation.InvalidParameterError
            If a parameter of the estimator is not what is described there.
        ValueError
            If the data are not what is described here, or the weights do not stay finite.
        """
        with kept_if_it_fails(self):
            fitting.fit(self, X, y, sample_weight, X_val, y_val)
        return self

    @available_if(is_stochastic)
    @validating_parameters
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on X and y, going on from the weights and the optimizer as they are.

        Parameters, errors and result as `fit`'s. Not for the solver ``'lbfgs'``, nor with early
        stopping.
        """
        with kept_if_it_fails(self):
            fitting.fit(self, X, y, sample_weight, incremental=True)
        return self

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters, weights and fitted attributes,
        which are copied.

        It predicts the same, and partial fits and warm starts go on there as here. What only
        training reads and scikit-learn lacks, such as dropout, ``'adamw'`` or a schedule, has its
        default there, and a warning names it.

        Returns
        -------
        sklearn.neural_network.MLPClassifier or sklearn.neural_network.MLPRegressor

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If it would not predict the same: for activations that scikit-learn lacks, and for
            several networks.

        Examples
        --------
        >>> from warpfit import MLPRegressor
        >>> ours = MLPRegressor(solver="lbfgs", device="cpu").fit([[0.0], [1.0]], [0.0, 1.0])
        >>> theirs = ours.to_sklearn()
        >>> float(abs(theirs.predict([[0.5]]) - ours.predict([[0.5]])).max()) < 1e-12
        True
        """
        from warpfit.estimators.as_sklearn import to_sklearn

        check_is_fitted(self)
        return to_sklearn(self)

    def save(self, path: PathLike) -> None:
        """Write all parameters and fitted attributes to a safetensors file, from which `load` makes
        an equal estimator.

        The optimizer state is among them: partial fits continue. Reading the file runs no code,
        unlike unpickling.

        Parameters
        ----------
        path : path of the file, by convention ending in .safetensors
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If a parameter is something that only pickle can store, such as a callback or a
            RandomState, or the file cannot be written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from warpfit import MLPClassifier
        >>> classifier = MLPClassifier(solver="lbfgs", device="cpu")
        >>> classifier = classifier.fit([[0.0], [1.0]], ["low", "high"])
        >>> with TemporaryDirectory() as folder:
        ...     classifier.save(f"{folder}/height.safetensors")
        ...     MLPClassifier.load(f"{folder}/height.safetensors").predict([[0.9]])
        array(['high'], dtype='<U4')
        """
        from warpfit.estimators.storage import save_estimator

        check_is_fitted(self)
        save_estimator(self, path)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Return the estimator in a file that `save` wrote; no device is needed.

        ``set_params(device=...)`` lets one that was fitted on a device that is not there predict on
        another.

        Raises
        ------
        FileFormatError
            If the file is missing, cut short, damaged (its content is not that of its checksum), of
            another kind or of another estimator.

        Warns
        -----
        DataWarning
            If a weight is NaN or infinite.
        """
        from warpfit.estimators.storage import load_estimator

        return load_estimator(cls, path)

    def to_onnx(self, path: PathLike) -> None:
        """Write an ONNX file, with which other programs predict; the package onnx is needed.

        The input ``X`` is float32, (N, n_features_in_). A classifier's outputs are ``label``, int64
        or string (or bool or float64, as its classes are), (N,), and ``probabilities``, float32,
        (N, n_classes), as `predict` and `predict_proba` give them; for several labels at once
        ``label`` is int64, (N, n_classes). A regressor's is ``variable``, float32, (N, n_outputs).
        All is computed in float32, whatever the weights' dtype.

        Parameters
        ----------
        path : path of the file, by convention ending in .onnx
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If onnx is not installed, classes are neither numbers nor strings, or the file cannot be
            written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from warpfit import MLPRegressor
        >>> regressor = MLPRegressor(solver="lbfgs", device="cpu").fit([[0.0], [1.0]], [0.0, 1.0])
        >>> with TemporaryDirectory() as folder:
        ...     regressor.to_onnx(f"{folder}/line.onnx")
        """
        from warpfit.estimators.onnx_graph import write_onnx

        check_is_fitted(self)
        write_onnx(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_run"}

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Return what `__init__` takes; scikit-learn finds it anew, several times a fit."""
        names: list[str] = super()._get_param_names()
        return names
