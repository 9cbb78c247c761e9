"""Many fits of estimators with different parameters on parts of the same rows, and their scores."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event
from time import perf_counter
from traceback import format_exc
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.metrics._scorer import _BaseScorer, _MultimetricScorer, _PassthroughScorer
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples

from warpfit.backends import resolve_device
from warpfit.blas import one_blas_thread
from warpfit.errors import DeviceError
from warpfit.estimators.mlp import BaseMLP, Checked, PredictedRows, Training
from warpfit.sweep.folds import Fold, SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.sending import check_sendable, joblibs_pickle, stop_of, workers_of
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task

__all__ = ["Fits", "Result", "fit_by_executor", "fit_in_processes", "fit_together"]

Indices = npt.NDArray[np.int64]
# What scikit-learn's search makes its results of.
Result = dict[str, Any]

# Networks that are prepared before any of them trains: their initial values lie in memory.
WAVE = 1024


@dataclass(frozen=True)
class Fits:
    """Fits to be done, and how they are scored.

    Parameters
    ----------
    estimator : BaseMLP
        Not fitted; each fit has a clone.
    X, y
        All rows.
    pairs : sequence of (dict, (train, test))
        Parameters, and indices of the rows to train and to score on.
    scorer : function or _MultimetricScorer
    fit_params, score_params : dict
        What has a value for each row of X is taken apart as X is.
    return_train_score : bool
    error_score : float or 'raise'
    """

    estimator: BaseMLP
    X: Any
    y: Any
    pairs: Sequence[tuple[dict[str, Any], tuple[Indices, Indices]]]
    scorer: Any
    fit_params: dict[str, Any] = field(default_factory=dict)
    score_params: dict[str, Any] = field(default_factory=dict)
    return_train_score: bool = False
    error_score: float | str = np.nan

    def __len__(self) -> int:
        return len(self.pairs)


def fit_together(fits: Fits, stop: Event | None = None) -> list[Result]:
    """Fit and score in this process, all networks of a wave in one go.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, and once `stop` is set: a search with half of its scores is none.
    """
    results: list[Result] = []
    with one_blas_thread():  # so that scores are those of `fit_in_processes`
        for start in range(0, len(fits), WAVE):
            results += _fit_wave(replace(fits, pairs=fits.pairs[start : start + WAVE]), stop)
    return results


def _fit_wave(fits: Fits, stop: Event | None) -> list[Result]:
    parts: dict[int, _Parts] = {}
    started = []
    for parameters, split in fits.pairs:
        if id(split) not in parts:
            parts[id(split)] = _Parts.of(fits, *split)
        started.append(_Started(fits, parameters, parts[id(split)]))
    numbered = [
        (fit, replace(task, number=number))
        for number, (fit, task) in enumerate((fit, task) for fit in started for task in fit.tasks)
    ]
    outcomes = run_here(_with_shared_rows(fits, numbered), stop)
    if any(outcome.status == INTERRUPTED for outcome in outcomes):
        raise KeyboardInterrupt
    for (fit, _), outcome in zip(numbered, outcomes, strict=True):
        fit.outcomes.append(outcome)
    return _scored(fits, started)


def _scored(fits: Fits, started: Sequence[_Started]) -> list[Result]:
    """Return the results of all fits, found split by split: rows that are predicted are those of one at a time."""
    if not _only_predicts(fits.scorer):
        return [fit.result(None, None) for fit in started]
    of_splits: dict[int, list[int]] = {}
    for idx, fit in enumerate(started):
        of_splits.setdefault(id(fit.parts), []).append(idx)
    results: dict[int, Result] = {}
    for indices in of_splits.values():
        parts = started[indices[0]].parts
        test, train = PredictedRows(parts.X_test), PredictedRows(parts.X_train)
        results |= {idx: started[idx].result(test, train) for idx in indices}
    return list(_in_order(results))


def _only_predicts(scorer: Any) -> bool:
    """Return whether a scorer is known to do nothing with rows but have them predicted, as they are."""
    scorers = scorer._scorers.values() if isinstance(scorer, _MultimetricScorer) else [scorer]
    return all(isinstance(each, _BaseScorer | _PassthroughScorer) for each in scorers)


def _with_shared_rows(fits: Fits, numbered: Sequence[tuple[_Started, Task]]) -> list[Task]:
    """Return the tasks, on a GPU with index sets over rows that they share in place of copies."""
    tasks = [task for _, task in numbered]
    if not tasks or resolve_device(tasks[0].arguments["device"]) == "cpu":
        return tasks
    shared = _shared_rows(fits, [fit.parts for fit, _ in numbered])
    folds = [
        shared[id(fit.parts)].fold_of(fit.parts, task) if id(fit.parts) in shared else None
        for fit, task in numbered
    ]
    return [
        task if fold is None else replace(task, data=shared[id(fit.parts)].data, fold=fold)
        for (fit, task), fold in zip(numbered, folds, strict=True)
    ]


def _shared_rows(fits: Fits, splits: Sequence[_Parts]) -> dict[int, _SharedRows]:
    """Return by its id what has the rows of each split: all of the search, or itself, where it is encoded otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heard of each split already
        checked = _checked(fits.estimator, fits.X, fits.y)
    whole = None if checked is None else _SharedRows(fits.estimator, checked)
    found: dict[int, _SharedRows] = {}
    for parts in splits:
        own = parts.checked
        if id(parts) in found or own is None:
            continue
        is_part = whole is not None and whole.have(own, parts.train)
        found[id(parts)] = cast(_SharedRows, whole) if is_part else _SharedRows(fits.estimator, own)
    return found


class _SharedRows:
    """Rows as fits take them, once for all tasks whose rows are among them."""

    def __init__(self, estimator: BaseMLP, checked: Checked) -> None:
        self.checked, self._estimator = checked, estimator
        self._folds: dict[Any, int] = {}
        self._found: list[Fold] = []

    def have(self, checked: Checked, rows: Indices) -> bool:
        """Return whether these rows are encoded as here: they may lack a class."""
        own = self.checked
        return own.X.dtype == checked.X.dtype and np.array_equal(own.y[rows], checked.y)

    def fold_of(self, parts: _Parts, task: Task) -> int | None:
        """Return which fold a task's rows are, None if it has more to it than rows of the split."""
        if task.data.sample_weight is not None or task.data.validation is not None:
            return None
        own = None if task.fold is None else task.data.folds[task.fold]
        key = id(parts), None if own is None else own.train.tobytes()
        if key not in self._folds:
            self._folds[key] = len(self._found)
            rows = np.arange(len(parts.train)) if self.checked is parts.checked else parts.train
            self._found.append(Fold(rows, rows[:0]) if own is None else Fold(rows[own.train], rows[own.test]))
        return self._folds[key]

    @cached_property
    def data(self) -> SweepData:
        """The rows, once all folds were asked for."""
        targets = clone(self._estimator)._targets_of(self.checked)
        return SweepData(self.checked.X, targets, folds=tuple(self._found))


def _checked(estimator: BaseMLP, X: Any, y: Any) -> Checked | None:
    """Return X and y as a fit checks them, or None, if that fails: then each fit says why."""
    try:
        return clone(estimator)._check(X, y)
    except Exception:
        return None


@dataclass(frozen=True)
class _Parts:
    """The rows of a split, which all fits on it share."""

    X_train: Any
    y_train: Any
    X_test: Any
    y_test: Any
    fit_params: dict[str, Any]
    train_score_params: dict[str, Any]
    test_score_params: dict[str, Any]
    train: Indices
    test: Indices
    checked: Checked | None

    @classmethod
    def of(cls, fits: Fits, train: Indices, test: Indices) -> _Parts:
        X_train, y_train = _safe_split(fits.estimator, fits.X, fits.y, train)
        X_test, y_test = _safe_split(fits.estimator, fits.X, fits.y, test, train)
        return cls(
            X_train,
            y_train,
            X_test,
            y_test,
            _check_method_params(fits.X, params=fits.fit_params, indices=train),
            _check_method_params(fits.X, params=fits.score_params, indices=train),
            _check_method_params(fits.X, params=fits.score_params, indices=test),
            np.arange(_num_samples(fits.X))[train],
            np.arange(_num_samples(fits.X))[test],
            _checked(fits.estimator, X_train, y_train),
        )


class _Started:
    """A fit that stands still until its networks are trained.

    Attributes
    ----------
    tasks : list of Task
        Its networks; none if the fit has failed before.
    outcomes : list of Outcome
        Theirs, once they are there.
    """

    def __init__(self, fits: Fits, parameters: dict[str, Any], parts: _Parts) -> None:
        self.fits, self.parts = fits, parts
        self.tasks: list[Task] = []
        self.outcomes: list[Outcome] = []
        self.error: str | None = None
        self.training: Training | None = None
        start = perf_counter()
        self.estimator = clone(fits.estimator).set_params(**clone(parameters, safe=False))
        try:
            self.estimator._validate_params()
            self.training = self.estimator._training(
                parts.X_train, parts.y_train, checked=parts.checked, **parts.fit_params
            )
            self.tasks = next(self.training)
        except Exception:
            self._fail()
        self.seconds = perf_counter() - start

    def _fail(self) -> None:
        """Keep the error of the fit for the search, which warns of it, or raise it if that is wanted."""
        if self.fits.error_score == "raise":
            raise
        self.error = format_exc()

    def result(self, test: PredictedRows | None, train: PredictedRows | None) -> Result:
        """Finish the fit, and return its scores on the split's rows, and times; None are rows of its own."""
        start = perf_counter()
        if self.error is None and self.training is not None:
            try:
                self.training.send(self.outcomes)
            except StopIteration:
                pass
            except Exception:
                self._fail()
        trained = sum(outcome.seconds for outcome in self.outcomes)
        fit_time = self.seconds + trained + perf_counter() - start
        start = perf_counter()
        test_scores = self._scores(test, self.parts.test, self.parts.y_test, self.parts.test_score_params)
        score_time = perf_counter() - start
        result: Result = {
            "fit_error": self.error,
            "test_scores": test_scores,
            "n_test_samples": _num_samples(self.parts.X_test),
            "fit_time": fit_time,
            "score_time": score_time,
        }
        if self.fits.return_train_score:
            result["train_scores"] = self._scores(
                train, self.parts.train, self.parts.y_train, self.parts.train_score_params
            )
        return result

    def _scores(self, rows: PredictedRows | None, indices: Indices, y: Any, params: dict[str, Any]) -> Any:
        fits, scorer, error_score = self.fits, self.fits.scorer, self.fits.error_score
        if self.error is None and rows is not None:
            with self.estimator._predicting(rows):
                return _score(self.estimator, rows.X, y, scorer, params, error_score)
        if self.error is None:
            X, y = _safe_split(fits.estimator, fits.X, fits.y, indices, self.parts.train)
            return _score(self.estimator, X, y, scorer, params, error_score)
        if isinstance(scorer, _MultimetricScorer):
            return dict.fromkeys(scorer._scorers, error_score)
        return error_score


def fit_in_processes(fits: Fits, num_processes: int) -> list[Result]:
    """Fit and score on the CPU, `num_processes` at once, each with one BLAS thread."""
    parallel = Parallel(n_jobs=num_processes)
    common = replace(fits, pairs=())
    try:
        found: list[Result] = parallel(
            delayed(_fit_alone)(common, parameters, *split) for parameters, split in fits.pairs
        )
    except Exception as error:
        _check_worker(fits, error, "joblib", joblibs_pickle())
        raise
    return found


def _check_worker(fits: Fits, error: Exception, kind: str, dumps: Callable[[Any], bytes]) -> None:
    """Raise an error of ours if a worker could not be sent its fits, or broke down over them; none if a fit failed."""
    check_sendable(replace(fits, X=None, y=None), "estimator and scoring", error, dumps)
    if isinstance(error, BrokenExecutor):
        raise DeviceError(
            f"a worker of {kind} was killed, most likely because memory ran out: {error}"
        ) from error


def _fit_alone(fits: Fits, parameters: dict[str, Any], train: Indices, test: Indices) -> Result:
    with one_blas_thread():
        found: Result = _fit_and_score(
            clone(fits.estimator),
            fits.X,
            fits.y,
            scorer=fits.scorer,
            train=train,
            test=test,
            verbose=0,
            parameters=parameters,
            fit_params=fits.fit_params,
            score_params=fits.score_params,
            return_train_score=fits.return_train_score,
            return_n_test_samples=True,
            return_times=True,
            error_score=fits.error_score,
        )
    return found


def fit_by_executor(fits: Fits, executor: Executor, num_shards: int) -> list[Result]:
    """Fit and score where an executor's workers are, a shard of the fits on each; -1 is one shard a worker."""
    num_shards = min(len(fits), num_shards if num_shards > 0 else workers_of(executor))
    positions = [range(first, len(fits), num_shards) for first in range(num_shards)]
    futures: dict[Future[list[Result]], range] = {}
    results: dict[int, Result] = {}
    stop = stop_of(executor)
    try:
        for shard in positions:
            own = replace(fits, pairs=[fits.pairs[idx] for idx in shard])
            futures[executor.submit(fit_together, own, stop)] = shard
        for future in as_completed(futures):
            results.update(zip(futures[future], future.result(), strict=True))
    except Exception as error:
        if stop is None:
            _check_worker(fits, error, type(executor).__name__, pickle.dumps)
        raise
    finally:
        if stop is not None:
            stop.set()
        for future in futures:
            future.cancel()
    return list(_in_order(results))


def _in_order(results: dict[int, Result]) -> Iterator[Result]:
    for idx in sorted(results):
        yield results[idx]
