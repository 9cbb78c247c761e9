"""What classifier and regressor share: parameters, the way of a fit, and the outputs of a fitted network."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from warpfit import backends
from warpfit.backends import resolve_device
from warpfit.callers import warn
from warpfit.checks import as_tuple, check_readable
from warpfit.errors import ConfigError, ConfigWarning, DeviceError, DivergedError, TrainingWarning
from warpfit.estimators.convergence import Convergence, EpochLog, reported_score
from warpfit.estimators.initial import initial_layer
from warpfit.estimators.recipes import (
    ACTIVATIONS,
    OUTPUT_FUNCTIONS,
    POLICIES,
    SCHEDULES,
    make_model,
    make_optimizer,
    make_schedule,
    weights_of,
)
from warpfit.losses import Loss
from warpfit.nn import Module, Sequential
from warpfit.optim import Constant, Optimizer, Schedule
from warpfit.sweep.folds import Fold, SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task
from warpfit.training.callbacks import Callback, checked_callbacks
from warpfit.training.evaluate import predict_network, predict_rows
from warpfit.training.inputs import as_rows, some_above_0
from warpfit.training.lbfgs import fit_lbfgs
from warpfit.training.run import Run

__all__ = ["BaseMLP"]

Array = npt.NDArray[Any]
Weights = tuple[list[Array], list[Array]]
# A fit that stands still while others train its networks.
Training = Generator[list[Task], Sequence[Outcome], None]

STOCHASTIC_SOLVERS = ("sgd", "adam", "adamw")
FLOATS = (np.float64, np.float32)
LARGEST_AUTO_BATCH = 200
PREDICTED_ROWS = 1 << 14
INTERRUPTED_BY = "interrupt"


@dataclass(frozen=True)
class Rows:
    """Checked input: X (N, K) dense, y (N, outputs) encoded as the network's outputs, weights (N,) or None."""

    X: Array
    y: Array
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Checked:
    """What an estimator that was never fitted makes of X and y, the same for all of a class whatever their parameters.

    Attributes
    ----------
    X, y : ndarray
        As `Rows` has them.
    found : dict
        Attributes that the check has set: names, classes.
    """

    X: Array
    y: Array
    found: dict[str, Any]


class PredictedRows:
    """Rows that many estimators predict, one after the other: checked once, and copied to a GPU once.

    Parameters
    ----------
    X : array_like or sparse matrix (n_samples, n_features)
        Rows with the features that all of the estimators were fitted to.
    """

    def __init__(self, X: Any) -> None:
        self.X = X
        self._checked: Any = None
        self._on_devices: dict[str, Any] = {}

    def of(self, estimator: BaseMLP) -> Any:
        """Return the rows as the estimator's networks take them."""
        if self._checked is None:
            self._checked = estimator._checked_rows(self.X)
        device = resolve_device(estimator.device)
        if device == "cpu" or issparse(self._checked):
            return self._checked
        if device not in self._on_devices:
            self._on_devices[device] = self._copied(device)
        return self._on_devices[device]

    def _copied(self, device: str) -> Any:
        """Return the rows on a device, or, where it lacks the room, on the host, from which they come in parts."""
        with suppress(DeviceError):
            return backends.get(device).asarray(self._checked)
        return self._checked


@cache
def _parameter_names(kind: type[BaseMLP]) -> tuple[str, ...]:
    return tuple(cast(Any, super(BaseMLP, kind))._get_param_names())


class BaseMLP(BaseEstimator, ABC):
    """Base of both estimators; subclasses say what targets and outputs mean."""

    # Where a search predicts the same rows with many estimators: `_predicting`.
    _predicted_rows: PredictedRows | None = None
    # While it trains: `EpochLog`.
    _run: Run | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "solver": [StrOptions({"lbfgs", *STOCHASTIC_SOLVERS})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate": [StrOptions({*POLICIES, *SCHEDULES}), Schedule],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})],
        "max_fun": [Interval(Integral, 1, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "n_ensemble": [Interval(Integral, 1, None, closed="left")],
        "callbacks": ["array-like", None],
        "device": [str],
        "precision": [str],
        "engine": [str],
    }

    def _store(self, arguments: dict[str, Any]) -> None:
        """Keep a constructor's local names as attributes, unchanged and unchecked, as scikit-learn asks."""
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    # -- what the subclasses say ---------------------------------------------------------------------------

    @abstractmethod
    def _encode(self, X: Any, y: Any, *, incremental: bool, reset: bool) -> tuple[Any, Array]:
        """Return X checked, and y as (N,) or (N, outputs) in the form of the network's outputs."""

    @abstractmethod
    def _encode_validation(self, y: Any) -> Array:
        """Return checked targets of validation rows in the form of the network's outputs."""

    @abstractmethod
    def _output_activation(self) -> str:
        """Return what `out_activation_` is for the targets that were seen."""

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss to train with."""

    @abstractmethod
    def _targets(self, y: Array) -> Array:
        """Return encoded targets (N, outputs) as the loss takes them."""

    @abstractmethod
    def _score_outputs(self, outputs: Array, rows: Rows) -> float:
        """Return the score of the network's outputs (N, outputs) for these rows."""

    def _row_weights(self, X: Any, y: Any, sample_weight: Any, *, incremental: bool) -> Array | None:
        """Return the weight of each row, None if all are 1."""
        if sample_weight is None:
            return None
        return some_above_0(_check_sample_weight(check_readable("sample_weight", sample_weight), X))

    _is_stratified = False
    _reports_score = False  # whether `EpochReport.val_accuracy` is the score

    # -- fit -----------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on X and y.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)
            float32 and float64 stay so, all else becomes float64. Sparse matrices become dense.
        y : array_like (n_samples,) or (n_samples, n_outputs)
        sample_weight : array_like (n_samples,), optional
        X_val, y_val : array_like, optional
            Rows to validate on after each epoch: ``validation_scores_`` and ``validation_loss_curve_`` are theirs,
            and early stopping watches them instead of setting rows of X aside. Not for the solver ``'lbfgs'``.

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
        return self._fit(X, y, sample_weight, X_val, y_val)

    def _check_solver(self) -> bool:
        if self.solver not in STOCHASTIC_SOLVERS:
            raise AttributeError(f"partial_fit needs a stochastic solver; {self.solver} is none")
        return True

    @available_if(lambda estimator: estimator._check_solver())
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on X and y, going on from the weights and the optimizer as they are.

        Parameters, errors and result as `fit`'s. Not for the solver ``'lbfgs'``, nor with early stopping.
        """
        return self._fit(X, y, sample_weight, incremental=True)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        *,
        incremental: bool = False,
    ) -> Self:
        training = self._training(X, y, sample_weight, X_val, y_val, incremental=incremental)
        outcomes = run_here(next(training))
        with suppress(StopIteration):
            training.send(outcomes)
        return self

    def _training(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        *,
        incremental: bool = False,
        checked: Checked | None = None,
    ) -> Training:
        """Prepare a fit; yield once, the networks to train; and finish it with what is sent back: their outcomes.

        Whoever has several fits to do can so train all their networks together, and check rows that they share once.
        """
        hidden = self._hidden_layer_sizes()
        is_first = not hasattr(self, "coefs_") or not (self.warm_start or incremental)
        if not is_first:
            self._check_ensemble()
        if checked is None:
            checked = self._check(X, y, incremental=incremental, reset=is_first)
        self.__dict__.update(checked.found)
        weight = self._row_weights(checked.X, y, sample_weight, incremental=incremental)
        rows = Rows(checked.X, checked.y, weight)
        self.n_outputs_ = rows.y.shape[1]
        validation = self._validation_rows(X_val, y_val)
        self._check_validation(validation, incremental)
        networks: list[Self] = []
        tasks: list[Task] = []
        data: SweepData | None = None
        for network, rng in self._networks(is_first):
            if is_first:
                network._initialize([rows.X.shape[1], *hidden, self.n_outputs_], rng, rows.X.dtype)
            networks.append(network)
            if self.solver == "lbfgs":
                continue
            if data is None:  # the same for all networks
                data, validation = network._data(rows, validation, rng)
            tasks.append(network._task(len(tasks), data, validation, rng, incremental))
        outcomes: Sequence[Outcome | None] = yield tasks
        if self.solver == "lbfgs":
            outcomes = [None] * len(networks)
        trained = []
        for network, outcome in zip(networks, outcomes, strict=False):  # fewer, if Ctrl-C came
            network._finish(rows, outcome, incremental)
            trained.append(network)
        untouched = [] if is_first else self._fitted_networks()[len(trained) :]
        self._take_over_networks(trained + untouched)

    def _check(self, X: Any, y: Any, *, incremental: bool = False, reset: bool = True) -> Checked:
        """Return X and y checked and encoded, with what is known of them since."""
        before = dict(vars(self))
        check_readable("X", X)
        check_readable("y", y)
        X, encoded = self._encode(X, y, incremental=incremental, reset=reset)
        found = {name: value for name, value in vars(self).items() if value is not before.get(name)}
        return Checked(_dense(X), encoded.reshape(len(encoded), -1), found)

    def _targets_of(self, checked: Checked) -> Array:
        """Return the targets of checked rows as the loss takes them."""
        self.__dict__.update(checked.found)
        self.n_outputs_, self.out_activation_ = checked.y.shape[1], self._output_activation()
        return self._targets(checked.y)

    def _data(
        self, rows: Rows, validation: Rows | None, rng: np.random.RandomState
    ) -> tuple[SweepData, Rows | None]:
        """Return the rows to train on, and those to validate on, if any: given ones, or some that are set aside."""
        data = SweepData(rows.X, self._targets(rows.y), rows.weight)
        if validation is not None:
            return replace(data, validation=(validation.X, self._targets(validation.y))), validation
        if not self.early_stopping:
            return data, None
        fold = self._split(rows, rng)
        weight = None if rows.weight is None else rows.weight[fold.test]
        return replace(data, folds=(fold,)), Rows(rows.X[fold.test], rows.y[fold.test], weight)

    def _check_validation(self, validation: Rows | None, incremental: bool) -> None:
        if self.solver == "lbfgs":
            if validation is not None:
                raise ValueError(
                    "expected no X_val and y_val for the solver 'lbfgs', which has no epochs, got some"
                )
        elif self.early_stopping and incremental:
            raise ValueError("partial_fit does not support early_stopping=True")

    def _finish(self, rows: Rows, outcome: Outcome | None, incremental: bool) -> None:
        """Take over what came of this network's training; without an outcome, minimize its loss now."""
        if outcome is None:
            self._minimize(rows)
        else:
            self._take_outcome(outcome, incremental)
        if not all(np.isfinite(array).all() for array in (*self.coefs_, *self.intercepts_)):
            raise _not_finite()

    # -- ensembles -----------------------------------------------------------------------------------------

    def _networks(self, is_first: bool) -> Iterator[tuple[Self, np.random.RandomState]]:
        """Yield what holds each network to train, with the random numbers that it draws: itself, or the members."""
        rng = check_random_state(self.random_state)
        if self.n_ensemble == 1:
            yield self, rng
            return
        for idx in range(self.n_ensemble):
            member = copy.copy(self) if is_first else self.estimators_[idx]
            member.__dict__.pop("estimators_", None)
            seed = member.random_state if idx else self.random_state
            if is_first and idx:
                # Drawn when the one before is trained: the first is then what n_ensemble=1 would be.
                seed = int(rng.randint(np.iinfo(np.int32).max))
            member.__dict__.update(self.get_params(deep=False), n_ensemble=1, random_state=seed)
            yield member, check_random_state(seed) if idx else rng

    def _take_over_networks(self, networks: list[Self]) -> None:
        """Keep the members of an ensemble, and show the first one's attributes as this estimator's."""
        if self.n_ensemble == 1:
            self.__dict__.pop("estimators_", None)
            return
        parameters = self.get_params(deep=False)
        self.__dict__.update(
            {name: value for name, value in vars(networks[0]).items() if name not in parameters}
        )
        self.estimators_ = networks

    def _check_ensemble(self) -> None:
        """Raise ConfigError unless there are as many networks to go on with as there are to be."""
        if (fitted := len(self._fitted_networks())) != self.n_ensemble:
            raise ConfigError(
                f"expected n_ensemble={fitted}, the networks that were fitted and that warm_start and partial_fit "
                f"go on with, got n_ensemble={self.n_ensemble}"
            )

    def _fitted_networks(self) -> list[Self]:
        return getattr(self, "estimators_", [self])

    def _hidden_layer_sizes(self) -> list[int]:
        sizes = self.hidden_layer_sizes
        sizes = list(sizes) if hasattr(sizes, "__iter__") else [sizes]
        if as_tuple(sizes, Integral) is None or any(size <= 0 for size in sizes):
            raise ValueError(f"hidden_layer_sizes must be > 0, got {sizes}.")
        return sizes

    def _initialize(self, sizes: Sequence[int], rng: np.random.RandomState, dtype: Any) -> None:
        """Set the fitted attributes as they are before the first epoch."""
        self.n_iter_ = self.t_ = 0
        self.n_layers_ = len(sizes)
        self.out_activation_ = self._output_activation()
        layers = [initial_layer(rng, *fans, self.activation, dtype) for fans in pairwise(sizes)]
        self.coefs_ = [weights for weights, _ in layers]
        self.intercepts_ = [biases for _, biases in layers]
        if self.solver in STOCHASTIC_SOLVERS:
            self._no_improvement_count = 0
            self._best_weights: Weights | None = None
            self.loss_curve_: list[float] = []
            self.best_loss_ = None if self.early_stopping else np.inf
            self.best_validation_score_ = -np.inf if self.early_stopping else None
            self.validation_scores_: list[float] | None = [] if self.early_stopping else None
            self.validation_loss_curve_: list[float] | None = [] if self.early_stopping else None

    # -- the stochastic solvers ----------------------------------------------------------------------------

    def _task(
        self,
        number: int,
        data: SweepData,
        validation: Rows | None,
        rng: np.random.RandomState,
        incremental: bool,
    ) -> Task:
        """Return this network as a task: up to `max_iter` epochs, or one if incremental."""
        if validation is not None:
            self._begin_validation()
        fold = 0 if data.folds else None
        num_rows = len(data.x) if fold is None else len(data.folds[fold].train)
        model = self._model((self.coefs_, self.intercepts_), self.dropout)
        optimizer = self._optimizer(model, num_rows, incremental)
        log = EpochLog(self, num_rows, data.sample_weight is not None)
        convergence = Convergence(self, self._scorer(validation))
        return Task(
            number=number,
            model=model,
            optimizer=optimizer,
            data=data,
            fold=fold,
            arguments={
                "loss": self._loss(),
                "epochs": 1 if incremental else self.max_iter,
                "batch_size": self._batch_size(num_rows),
                "device": self.device,
                "precision": self.precision,
                "loss_scale": "auto",
                "engine": self.engine,
                # Calls that go on from one another see other orders and masks.
                "seed": int(rng.randint(np.iinfo(np.int32).max)) + self.t_,
                "shuffle": self.shuffle,
            },
            callbacks=[log, convergence, *self._callbacks()],
        )

    def _take_outcome(self, outcome: Outcome, incremental: bool) -> None:
        """Take over what a run has left, and warn if it ended by something else than the rule."""
        if isinstance(outcome.error, DivergedError):
            self._give_up(outcome.error, *outcome.callbacks[:2])
            return
        if outcome.error is not None:
            raise outcome.error
        model, optimizer = outcome.model, outcome.optimizer
        if model is not None and optimizer is not None:
            self._take_over(model, optimizer)
        stopped_by = INTERRUPTED_BY if outcome.status == INTERRUPTED else outcome.history.stopped_by
        if not (incremental and stopped_by == "epochs"):
            self._warn_of(stopped_by)

    def _warn_of(self, stopped_by: str) -> None:
        """Warn if a run ended by something else than the rule."""
        if stopped_by == INTERRUPTED_BY:
            warn("Training interrupted by user.", TrainingWarning)
        elif stopped_by == "epochs":
            warn(
                f"Stochastic Optimizer: Maximum iterations ({self.max_iter}) reached and the optimization "
                "hasn't converged yet.",
                ConvergenceWarning,
            )

    def _take_over(self, model: Module, optimizer: Optimizer) -> None:
        """Hold on the host what a run has left: the best weights, with early stopping, else the last."""
        arrays = {name: holder.data for name, holder in model.named_arrays().items()}
        last = weights_of(arrays, self.coefs_[0].dtype)
        self.coefs_, self.intercepts_ = (self.early_stopping and self._best_weights) or last
        self._optimizer_state = optimizer.state_dict()

    def _give_up(self, error: DivergedError, log: Any, convergence: Any) -> None:
        """End a run whose loss is no number: with early stopping the best weights remain, else it is an error."""
        if not self.early_stopping:
            raise _not_finite() from error
        log.record(np.nan)
        convergence.record_score(np.nan)
        if self._best_weights is not None:
            self.coefs_, self.intercepts_ = self._best_weights
        warn(f"Training ended early: {error}", ConvergenceWarning)

    def _keep_best(self, parameters: Mapping[str, Any]) -> None:
        self._best_weights = weights_of(parameters, self.coefs_[0].dtype)

    def _split(self, rows: Rows, rng: np.random.RandomState) -> Fold:
        """Return which rows to train on, and which are the share that is set aside for validation."""
        fold = Fold(
            *train_test_split(
                np.arange(len(rows)),
                random_state=rng,
                test_size=self.validation_fraction,
                stratify=rows.y if self._is_stratified and self.n_outputs_ == 1 else None,
            )
        )
        if len(fold.test) < 2:
            raise ValueError(
                "The validation set is too small. Increase 'validation_fraction' or the size of your dataset."
            )
        return fold

    def _validation_rows(self, X_val: Any, y_val: Any) -> Rows | None:
        if X_val is None and y_val is None:
            return None
        if X_val is None or y_val is None:
            raise ValueError("expected both X_val and y_val, or neither, got one of them")
        X = self._checked_rows(X_val)
        y = self._encode_validation(check_readable("y_val", y_val))
        if len(y) != X.shape[0]:
            raise ValueError(f"expected as many rows in X_val as in y_val, got {X.shape[0]} and {len(y)}")
        return Rows(_dense(X), y.reshape(len(y), -1))

    def _begin_validation(self) -> None:
        if self.validation_scores_ is None:
            self.validation_scores_, self.validation_loss_curve_ = [], []
            self.best_validation_score_ = -np.inf

    def _scorer(self, validation: Rows | None) -> Any:
        """Return the function from a run to the score of its weights, None without validation rows."""
        if validation is None:
            return None
        if self._reports_score and validation.weight is None:
            return reported_score

        def score(run: Run) -> float:
            arrays, dtype = run.state.arrays, run.plan.dtype
            outputs = predict_network(run.ops, run.plan.network, arrays, validation.X, dtype=dtype)
            return self._score_outputs(outputs, validation)

        return score

    def _optimizer(self, model: Sequential, num_rows: int, incremental: bool) -> Optimizer:
        """Return the optimizer of a run: one that goes on where the last one was, if incremental."""
        goes_on = incremental and hasattr(self, "_optimizer_state")
        if not goes_on:
            self._rate_scale = 1.0
        schedule = make_schedule(
            self.learning_rate if self.solver == "sgd" or self._has_schedule() else "constant",
            self.learning_rate_init,
            power=self.power_t,
            num_rows=num_rows,
            seen=self.t_,
        )
        if goes_on and self.learning_rate == "invscaling" and self.solver == "sgd":
            schedule = Constant(self.learning_rate_init / (self.t_ + 1) ** self.power_t)
        optimizer = make_optimizer(self, model, schedule)
        if goes_on and self._optimizer_state["slots"].keys() == optimizer.make_slots().keys():
            optimizer.load_state_dict(self._optimizer_state)
        return optimizer

    def _has_schedule(self) -> bool:
        return isinstance(self.learning_rate, Schedule) or self.learning_rate in SCHEDULES

    def _batch_size(self, num_rows: int) -> int:
        if self.batch_size == "auto":
            return min(LARGEST_AUTO_BATCH, num_rows)
        if self.batch_size > num_rows:
            warn(
                "Got `batch_size` less than 1 or larger than sample size. It is going to be clipped",
                ConfigWarning,
            )
        return int(min(self.batch_size, num_rows))

    def _callbacks(self) -> list[Callback]:
        return [] if self.callbacks is None else checked_callbacks(self.callbacks)

    # -- the solver 'lbfgs' --------------------------------------------------------------------------------

    def _minimize(self, rows: Rows) -> None:
        """Run L-BFGS."""
        model = self._model((self.coefs_, self.intercepts_)).to(resolve_device(self.device))
        result = fit_lbfgs(
            model,
            rows.X,
            self._targets(rows.y),
            loss=self._loss(),
            l2=self.alpha,
            sample_weight=rows.weight,
            max_iterations=self.max_iter,
            max_evaluations=self.max_fun,
            tolerance=self.tol,
            on_iteration=_print_iteration if self.verbose else None,
        )
        arrays = {name: holder.data for name, holder in model.named_arrays().items()}
        self.coefs_, self.intercepts_ = weights_of(arrays, self.coefs_[0].dtype)
        self.n_iter_, self.loss_ = min(result.num_iterations, self.max_iter), result.loss
        if not result.converged:
            warn(
                f"lbfgs failed to converge after {self.n_iter_} iterations: {result.message}",
                ConvergenceWarning,
            )

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return what `__init__` takes, which scikit-learn finds anew each time, and several times a fit."""
        return list(_parameter_names(cls))

    # -- prediction ----------------------------------------------------------------------------------------

    def _model(self, weights: Weights, dropout: float = 0.0) -> Sequential:
        """Return the network around weights; in float32 where a GPU's engine is to choose the precision."""
        model = make_model(*weights, self.activation, dropout)
        is_open = self.precision == "auto" and resolve_device(self.device) != "cpu"
        return model.to(dtype="float32") if is_open else model

    def _predicted(self, X: Any) -> Array:
        """Return what is predicted for rows X, (N, outputs): the mean over the networks, after `out_activation_`."""
        check_is_fitted(self)
        shared = self._predicted_rows
        X = shared.of(self) if shared is not None and shared.X is X else self._checked_rows(X)
        first, *others = self._fitted_networks()
        total = self._activated(self._outputs(self._network_of(first), X))
        for network in others:
            total += self._activated(self._outputs(self._network_of(network), X))
        return total / (1 + len(others)) if others else total

    def _checked_rows(self, X: Any) -> Any:
        """Return rows X, or raise as scikit-learn does if they are not like those that were fitted."""
        check_readable("X", X)
        return validate_data(self, X, accept_sparse=["csr", "csc"], dtype=FLOATS, reset=False)

    @contextmanager
    def _predicting(self, rows: PredictedRows) -> Iterator[None]:
        """Let predictions of the same X, meanwhile, take these rows."""
        self._predicted_rows = rows
        try:
            yield
        finally:
            del self._predicted_rows

    def _network_of(self, fitted: Self) -> Module:
        """Return the network of its weights, where this one predicts; to a callback that asks, as it is by then."""
        if fitted._run is not None:
            return fitted._run.model
        return self._model((fitted.coefs_, fitted.intercepts_)).to(resolve_device(self.device))

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_run"}

    def _outputs(self, model: Module, X: Any) -> Array:
        """Return a network's outputs (N, outputs) for checked rows X, some at a time, before `out_activation_`."""

        def outputs(rows: Array) -> Array:
            return predict_rows(model, as_rows("X", rows, min_rows=0, dtype=model.dtype))

        if not issparse(X):
            return outputs(X)
        X = X.tocsr()
        starts = range(0, X.shape[0], PREDICTED_ROWS)
        return np.concatenate([outputs(_dense(X[start : start + PREDICTED_ROWS])) for start in starts])

    def _activated(self, outputs: Array) -> Array:
        return OUTPUT_FUNCTIONS[self.out_activation_](outputs)

    # -- other forms, and files ----------------------------------------------------------------------

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters, weights and fitted attributes, which are copied.

        It predicts the same, and partial fits and warm starts go on there as here. What only training reads and
        scikit-learn lacks, such as dropout, ``'adamw'`` or a schedule, has its default there, and a warning names it.

        Returns
        -------
        sklearn.neural_network.MLPClassifier or sklearn.neural_network.MLPRegressor

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If it would not predict the same: for activations that scikit-learn lacks, and for several networks.

        Examples
        --------
        >>> from warpfit import MLPRegressor
        >>> ours = MLPRegressor(solver="lbfgs", device="cpu").fit([[0.0], [1.0]], [0.0, 1.0])
        >>> theirs = ours.to_sklearn()
        >>> float(abs(theirs.predict([[0.5]]) - ours.predict([[0.5]])).max()) < 1e-12
        True
        """
        from warpfit.estimators.sklearn_models import to_sklearn

        check_is_fitted(self)
        return to_sklearn(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all parameters and fitted attributes to a safetensors file, from which `load` makes an equal estimator.

        The optimizer's memory is among them: partial fits go on. Reading the file runs no code, unlike unpickling.

        Parameters
        ----------
        path : path of the file, by convention ending in .safetensors
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If a parameter is something that only pickle can store, such as a callback or a RandomState, or the file
            cannot be written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from warpfit import MLPClassifier
        >>> classifier = MLPClassifier(solver="lbfgs", device="cpu").fit([[0.0], [1.0]], ["low", "high"])
        >>> with TemporaryDirectory() as folder:
        ...     classifier.save(f"{folder}/height.safetensors")
        ...     MLPClassifier.load(f"{folder}/height.safetensors").predict([[0.9]])
        array(['high'], dtype='<U4')
        """
        from warpfit.estimators.storage import save_estimator

        check_is_fitted(self)
        save_estimator(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the estimator in a file that `save` wrote; no device is needed.

        ``set_params(device=...)`` lets one that was fitted on a device that is not there predict on another.

        Raises
        ------
        FileFormatError
            If the file is missing, cut short, damaged (its content is not that of its checksum), of another kind or
            of another estimator.

        Warns
        -----
        DataWarning
            If a weight is NaN or infinite.
        """
        from warpfit.estimators.storage import load_estimator

        return load_estimator(cls, path)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write an ONNX file, with which other programs predict; the package onnx is needed.

        The input ``X`` is float32, (N, n_features_in_). A classifier's outputs are ``label``, int64 or string (or bool
        or float64, as its classes are), (N,), and ``probabilities``, float32, (N, n_classes), as `predict` and
        `predict_proba` give them; for several labels at once ``label`` is int64, (N, n_classes). A regressor's is
        ``variable``, float32, (N, n_outputs). All is computed in float32, whatever the weights' dtype.

        Parameters
        ----------
        path : path of the file, by convention ending in .onnx
            It is replaced at once.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigError
            If onnx is not installed, classes are neither numbers nor strings, or the file cannot be written.

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


def _dense(X: Any) -> Array:
    return X.toarray() if issparse(X) else X


def _not_finite() -> ValueError:
    return ValueError(
        "Solver produced non-finite parameter weights. The input data may contain large values and need to be "
        "preprocessed."
    )


def _print_iteration(number: int, loss: float) -> None:
    print(f"Iteration {number}, loss = {loss:.8f}")
