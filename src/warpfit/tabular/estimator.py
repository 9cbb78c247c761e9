"""The base of classifier and regressor: from frames to trained networks and what they predict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from numbers import Integral
from time import perf_counter
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from warpfit.attributes import kept_if_it_fails
from warpfit.backends import first_device
from warpfit.checks import brief, check_readable
from warpfit.data.dataset import is_frame
from warpfit.errors import ConfigError, DataError
from warpfit.extras import needs
from warpfit.files import PathLike
from warpfit.losses import Loss
from warpfit.sweep.joint import FitCosts, FittedJointly
from warpfit.tabular.bags import (
    Bag,
    Split,
    Table,
    folds_of,
    members_of,
    seeds_of,
    set_aside,
    trained_bags,
)
from warpfit.tabular.cautions import warn_of_divergence, warn_of_time_limit
from warpfit.tabular.frames import as_pandas, check_alike, check_order, known_kinds
from warpfit.tabular.importances import NoRowsError, importances_of
from warpfit.tabular.members import Member, Trained, Training
from warpfit.tabular.methods import METHODS
from warpfit.tabular.parameters import CONSTRAINTS, one_device, settings_of
from warpfit.tabular.place import predicted_on, trained_on
from warpfit.tabular.searching import fit_costs, kind_of
from warpfit.tabular.targets import Targets
from warpfit.tabular.training import Outcome

with needs("data", "tables need"):
    import pandas as pd

Array = npt.NDArray[Any]


class BaseTabular(BaseEstimator, FittedJointly):
    """Base of both estimators; subclasses have the constructor, and say what targets mean."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CONSTRAINTS
    _are_classes: ClassVar[bool]
    _out_of_fold: ClassVar[str]  # the attribute's name

    members_: list[Trained]

    @abstractmethod
    def _learn_targets(self, y: Array) -> None:
        """Keep what is to be known of all checked targets."""

    @abstractmethod
    def _targets_of(self, y: Array) -> Targets:
        """Return what the targets of training rows mean."""

    @abstractmethod
    def _loss(self, settings: dict[str, Any]) -> Loss: ...

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train on a table.

        Parameters
        ----------
        X : DataFrame or array_like (n_samples, n_features)
            Of pandas or polars, with numbers, dates, text, categories, true and false, and missing
            cells; or an array of numbers, or of such cells.
        y : array_like (n_samples,), of numbers also (n_samples, n_outputs)
        sample_weight : array_like (n_samples,), optional
            Weights of the rows in the loss and in the validation error, at least 0. Only their
            ratios count. Validation rows that all have weight 0 count alike. Scales are those
            of the rows without weights.
        X_val, y_val : optional
            Validation rows; otherwise folds, or `validation_fraction` of X, are held out for
            that. They have no weights.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data are not what is described here.
        DivergedError
            If a network's outputs are not finite after any epoch.

        Warns
        -----
        TrainingWarning
            If `time_limit` ended the training, or the validation error of a network's last epoch
            is not finite.
        """
        with kept_if_it_fails(self):
            bag = self._prepared(X, y, sample_weight, X_val, y_val)
            (trained,) = self._trained([bag])
            self._take_over(bag, trained)
        return self

    def _prepared(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> Bag:
        """Return the networks that `fit` trains."""
        start = perf_counter()
        settings, method = settings_of(self), METHODS[self.method]
        table = self._table(X, y, sample_weight, reset=True)
        seed = self._seed()
        if X_val is None and y_val is None:
            splits = self._splits(table.y, seed)
        else:
            table, splits = self._with_validation_rows(table, X_val, y_val)
        self._learn_targets(table.y)
        preprocessor = method.preprocessor(table.frames[0], others=table.frames[1:])
        cells = np.concatenate([preprocessor.cells(frame) for frame in table.frames])
        seeds = seeds_of(seed, len(splits) * self.n_ensemble)
        members = list(members_of(table, cells, splits, seeds, preprocessor, self._targets_of))
        training = self._training(settings, members, splits[0], start)
        return Bag(table, cells, splits, members, training)

    def _trained(
        self, prepared: Sequence[Bag], is_over: Callable[[], bool] = lambda: False
    ) -> list[list[Trained]]:
        return trained_bags(METHODS[self.method], prepared, is_over)

    def _take_over(self, prepared: Bag, trained: list[Trained]) -> None:
        training, num_networks = prepared.training, len(prepared.members)
        n_epochs = training.settings["n_epochs"]
        self.method_ = self.method
        self._keep_members(trained, list(range(len(trained), num_networks)))
        warn_of_divergence(trained, n_epochs)
        if self.time_limit is not None and training.is_over():
            warn_of_time_limit(trained, num_networks, n_epochs, self.time_limit)
        self._keep_rows(prepared)

    def _kind(self) -> tuple[Hashable, int] | None:
        return kind_of(self)

    def _fit_costs(self, X: Any, y: Any) -> FitCosts:
        return fit_costs(self, X, y)

    @property
    def feature_importances_(self) -> Array:
        """How much the validation error grows when the cells of a column are permuted, for each
        column, (n_features_in_,).

        It is the mean over five permutations of the rows that a network was validated on, and over
        all networks: the error rate, or, for numbers, the root of the mean squared error
        in standard deviations. Around 0 a column says nothing that others do not say. Computed
        when asked for, and kept; `save` and pickle store it if it was, but not the rows.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If the estimator was loaded without them.
        """
        check_is_fitted(self)
        if not hasattr(self, "_importances"):
            if not hasattr(self, "_held_out"):
                raise NoRowsError(
                    "expected feature_importances_ to be asked for before the estimator is copied "
                    "or stored, for copies and files have no rows; "
                    "sklearn.inspection.permutation_importance takes yours"
                )
            self._importances = importances_of(self.members_, self._held_out, self._outputs_of)
        return self._importances

    def save(self, path: PathLike) -> None:
        """Write all parameters, networks and fitted attributes to a safetensors file, from which
        `load` makes an equal estimator.

        Reading the file runs no code, unlike unpickling.

        Parameters
        ----------
        path : path of the file, by convention ending in .safetensors
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If a parameter or a class is something that only pickle can store, such as a
            RandomState, or the file cannot be written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> import warpfit as wf
        >>> model = wf.TabularRegressor(n_epochs=2, device="cpu").fit([[0.0], [1.0]] * 5, range(10))
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/line.safetensors")
        ...     again = wf.TabularRegressor.load(f"{folder}/line.safetensors")
        >>> bool((again.predict([[0.5]]) == model.predict([[0.5]])).all())
        True
        """
        from warpfit.tabular.storage import save_estimator

        check_is_fitted(self)
        save_estimator(self, path)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Return the estimator in a file that `save` wrote; no device is needed.

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
        from warpfit.tabular.storage import load_estimator

        return load_estimator(cls, path)

    def to_onnx(self, path: PathLike) -> None:
        """Write an ONNX file, with which other programs predict: preprocessing and all networks.
        The package onnx is needed.

        If all columns are numbers, the input is ``X``, float32, (N, n_features_in_), with NaN for
        missing cells. Otherwise there is an input for each column, (N, 1), by the name of the
        column (``x0``, ``x1``, ... if there are none). Numbers are float32, dates the days since
        1970. Categories are strings: text without spaces around it, ``True`` and ``False``, whole
        numbers without a point; any other string, such as an empty one, is a missing cell.

        A classifier's outputs are ``label``, int64 or string (or bool or float64, as its classes
        are), (N,), and ``probabilities``, float32, (N, n_classes). A regressor's is ``variable``,
        float32, (N, n_outputs).

        Parameters
        ----------
        path : path of the file, by convention ending in .onnx
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If onnx is not installed, classes are neither numbers nor strings, a column is called as
            something else in the graph is, or the file cannot be written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> import warpfit as wf
        >>> model = wf.TabularRegressor(n_epochs=2, device="cpu").fit([[0.0], [1.0]] * 5, range(10))
        >>> with TemporaryDirectory() as folder:
        ...     model.to_onnx(f"{folder}/line.onnx")
        """
        from warpfit.tabular.onnx_graph import write_onnx

        check_is_fitted(self)
        write_onnx(self, path)

    # -- what is trained

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _training(
        self, settings: dict[str, Any], members: Sequence[Member], split: Split, start: float
    ) -> Training:
        """Return what the members of a bag have in common; of one, the rows are split so."""
        method = METHODS[self.method]
        epochs = min(settings["n_epochs"], method.likely_epochs or settings["n_epochs"])
        place = trained_on(
            one_device(self.device),
            method.widths(members[0].shape(settings)),
            num_rows=len(split.trained),
            num_validated=len(split.held_out),
            batch_size=settings["batch_size"],
            epochs=epochs * len(members),
        )

        def report(idx: int, outcome: Outcome) -> None:
            if self.verbose:
                of_all = f"network {idx + 1} of {len(members)}, " if len(members) > 1 else ""
                print(
                    f"{of_all}epoch {len(outcome.losses)} of {settings['n_epochs']}: "
                    f"loss {outcome.losses[-1]:.6g}, validation error {outcome.errors[-1]:.6g}"
                )

        return Training(
            settings,
            self._loss(settings),
            place.device,
            report,
            lambda: self.time_limit is not None and perf_counter() - start > self.time_limit,
        )

    def _splits(self, y: Array, seed: int) -> list[Split]:
        if self.n_folds is None:
            return [set_aside(len(y), self.validation_fraction, seed)]
        return folds_of(y, self.n_folds, are_classes=self._are_classes, seed=seed)

    def _with_validation_rows(
        self, table: Table, X_val: Any, y_val: Any
    ) -> tuple[Table, list[Split]]:
        if X_val is None or y_val is None:
            raise ConfigError("expected both X_val and y_val, or neither, got one of them")
        if self.n_folds is not None:
            raise ConfigError(
                f"expected n_folds=None with X_val, for each fold is validated on another, got "
                f"{self.n_folds}"
            )
        other = self._table(X_val, y_val, None, reset=False)
        if is_frame(X_val):
            check_order(*table.frames, *other.frames)
        check_alike(*table.frames, *other.frames)
        _check_targets_alike(table.y, other.y, are_classes=self._are_classes)
        places = np.arange(len(table.y) + len(other.y))
        weights = table.weights
        if weights is not None:
            weights = np.concatenate([weights, np.ones(len(other.y))])
        y = np.concatenate([table.y, other.y.astype(table.y.dtype)])
        joined = Table([*table.frames, *other.frames], y, weights)
        return joined, [Split(*np.split(places, [len(table.y)]))]

    # -- what comes of it

    def _keep_members(self, members: list[Trained], left_out: list[int]) -> None:
        self.members_, self.left_out_, first = members, left_out, members[0]
        self.network_, self.preprocessor_ = first.network, first.preprocessor
        self.loss_curve_, self.validation_errors_ = first.losses, first.errors
        self.best_epoch_ = first.best_epoch

    def _keep_rows(self, bag: Bag) -> None:
        """Keep what is predicted of rows held out, and these."""
        for name in vars(self).keys() & {"folds_", self._out_of_fold, "_importances"}:
            delattr(self, name)
        if self.n_folds is not None:
            self._predict_folds(bag.cells, bag.splits)
        self._held_out = bag.held_out()

    def _keep_folds(self, folds: Array, predicted: Array) -> None:
        """Keep the fold of each row, and what is predicted of it by the networks that do not know
        it.
        """
        self.folds_ = folds
        setattr(self, self._out_of_fold, predicted)

    def _predict_folds(self, cells: Array, splits: Sequence[Split]) -> None:
        folds = np.empty(len(cells), np.int64)
        found: list[Array] = []
        for fold, split in enumerate(splits):
            folds[split.held_out] = fold
            members = self.members_[fold :: len(splits)]
            found.append(
                self._mean_of(members, cells[split.held_out]) if members else np.asarray(np.nan)
            )
        shape = (len(cells), *found[0].shape[1:])
        predicted = np.full(shape, np.nan)
        for split, own in zip(splits, found, strict=True):
            predicted[split.held_out] = own
        self._keep_folds(folds, predicted)

    # -- tables

    def _table(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Table:
        frame, y = self._frame(X, reset=reset), self._checked_targets(check_readable("y", y))
        check_consistent_length(frame, y)
        if sample_weight is None:
            return Table([frame], y, None)
        weights = _check_sample_weight(
            check_readable("sample_weight", sample_weight),
            frame,
            dtype=np.float64,
            ensure_non_negative=True,
        )
        # By a power of two, so that float32 holds them and no ratio changes.
        return Table([frame], y, np.ldexp(weights, -np.frexp(weights.max())[1]))

    def _frame(self, X: Any, *, reset: bool) -> Any:
        """Return X as a frame of pandas, checked as scikit-learn does."""
        X = as_pandas(X)
        if is_frame(X) and X.ndim == 2 and len(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return known_kinds(X)
        if isinstance(X, list | tuple):
            X = np.array(X, dtype=object)  # so that numbers beside text stay numbers
        X = validate_data(
            self, check_readable("X", X), dtype=None, ensure_all_finite="allow-nan", reset=reset
        )
        return known_kinds(pd.DataFrame(X))

    def _predicted(self, X: Any) -> Array:
        """Return the mean of what all networks predict for a table: probabilities, or numbers."""
        check_is_fitted(self)
        cells = self.preprocessor_.cells(self._frame(X, reset=False))
        return self._mean_of(self.members_, cells)

    def _mean_of(self, members: Sequence[Trained], cells: Array) -> Array:
        return np.mean([self._predicted_by(member, cells) for member in members], axis=0)

    def _predicted_by(self, member: Trained, cells: Array) -> Array:
        return member.targets.predicted(self._outputs_of(member, cells))

    def _outputs_of(self, member: Trained, cells: Array) -> Array:
        """Return a network's outputs (N, K) for the cells of a table."""
        x = member.preprocessor.scaled(cells).astype(np.float32)
        method = METHODS[self.method_]
        num_rows = len(cells) * len(self.members_)
        device = predicted_on(first_device(self.device), method.widths(member.shape), num_rows)
        network = deepcopy(member.network).to(device)
        return method.outputs(network, network.backend.asarray(x))

    def __getstate__(self) -> Any:
        """Return what is pickled and copied: all but the validation rows."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_held_out"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _check_targets_alike(y: Array, y_val: Array, *, are_classes: bool) -> None:
    if y.shape[1:] != y_val.shape[1:]:
        expected = ", ".join(map(str, ("n", *y.shape[1:])))
        raise DataError(f"expected y_val of shape ({expected}), as y has, got {y_val.shape}")
    unknown = np.setdiff1d(y_val, y) if are_classes else y[:0]
    if len(unknown):
        raise DataError(f"expected y_val to hold classes of y, got {brief(unknown[0])} besides")
