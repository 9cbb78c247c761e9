"""Many fits of estimators with different parameters on parts of the same rows, and their scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event
from time import perf_counter
from traceback import format_exc
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn import config_context, get_config
from sklearn.base import clone
from sklearn.metrics._scorer import (
    _BaseScorer,
    _MultimetricScorer,
    _PassthroughScorer,
    _Scorer,
)
from sklearn.model_selection._validation import _score
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples

from warpfit.backends import resolve_device
from warpfit.blas import one_blas_thread
from warpfit.engines.many_members import OnDevice
from warpfit.errors import DeviceError
from warpfit.estimators.classifier import MLPClassifier
from warpfit.estimators.fitted import Drawn
from warpfit.estimators.fitting import ending_of, finish, prepare, tasks_of
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.predictions import (
    Counted,
    PredictedRows,
    count_right,
    predicting,
    shares_of,
)
from warpfit.estimators.recipes import dtype_on
from warpfit.estimators.regressor import MLPRegressor
from warpfit.estimators.rows import Rows, check
from warpfit.sweep.folds import Fold, SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.sending import check_sendable
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task
from warpfit.sweep.workers import JoblibsWorkers, Raised, Workers, thrown

__all__ = ["Fits", "Result", "fit_elsewhere", "fit_in_processes", "fit_together", "only_predicts"]

Indices = npt.NDArray[np.int64]
# What scikit-learn's search makes its results of.
Result = dict[str, Any]

# Networks that are prepared before any of them trains: their initial values lie in memory.
WAVE = 1024


@dataclass(frozen=True)
class Fits:
    """Fits to be done, each of a clone, and how they are scored.

    What has a value for each row of X, in `fit_params` and `score_params`, is taken apart as X is.
    """

    estimator: BaseMLP
    X: Any
    y: Any
    # Parameters, with the indices of the rows to train and to score on.
    pairs: Sequence[tuple[dict[str, Any], tuple[Indices, Indices]]]
    scorer: Any
    fit_params: dict[str, Any]
    score_params: dict[str, Any]
    return_train_score: bool
    error_score: float | str
    return_estimator: bool = False

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
    splits: dict[int, _Split] = {}
    drawn: Drawn = {}
    valid: set[int] = set()  # parameters, by their `id`
    started = []
    for parameters, split in fits.pairs:
        if id(split) not in splits:
            splits[id(split)] = _Split(fits, *split)
        started.append(_Started(fits, parameters, splits[id(split)], drawn, valid))
    numbered = [
        (fit, replace(task, number=number))
        for number, (fit, task) in enumerate((fit, task) for fit in started for task in fit.tasks)
    ]
    only_scored = all(fit.is_only_scored for fit in started)
    tasks = _with_shared_rows(fits, numbered)
    outcomes = run_here(tasks, stop, keeps_models=not only_scored)
    if any(outcome.status == INTERRUPTED for outcome in outcomes):
        raise KeyboardInterrupt
    for (fit, _), outcome in zip(numbered, outcomes, strict=True):
        fit.outcomes.append(outcome)
    return _scored(fits, started)


def _scored(fits: Fits, started: Sequence[_Started]) -> list[Result]:
    """Return the results of all fits, found split by split: rows that are predicted are those of
    one at a time.
    """
    if not only_predicts(fits.scorer):
        return [fit.result() for fit in started]
    results: dict[int, Result] = {}
    for split in {id(fit.split): fit.split for fit in started}.values():
        test, train = (PredictedRows(side.X, side.y) for side in (split.test, split.train))
        own = (idx for idx, fit in enumerate(started) if fit.split is split)
        results |= {idx: started[idx].result(test, train) for idx in own}
    return _with_shares(list(_in_order(results)))


def _with_shares(results: list[Result]) -> list[Result]:
    """Return results with the shares of what was counted for them; the wait for it is part of
    their time.
    """
    start = perf_counter()
    counted = [
        (result, name) for result in results for name in result if isinstance(result[name], Counted)
    ]
    shares = shares_of([result[name] for result, name in counted])
    for (result, name), share in zip(counted, shares, strict=True):
        result[name] = share
        result["score_time"] += (perf_counter() - start) / len(counted)
    return results


def only_predicts(scorer: Any) -> bool:
    """Return whether a scorer is known to do nothing with rows but have them predicted, as they
    are.
    """
    return all(isinstance(each, _BaseScorer | _PassthroughScorer) for each in _each(scorer))


def _each(scorer: Any) -> Iterable[Any]:
    """Return the scorers that a scorer is made of."""
    return scorer._scorers.values() if isinstance(scorer, _MultimetricScorer) else [scorer]


def _with_shared_rows(fits: Fits, numbered: Sequence[tuple[_Started, Task]]) -> list[Task]:
    """Return the tasks, on a GPU with index sets over rows that they share in place of copies."""
    tasks = [task for _, task in numbered]
    if not tasks or resolve_device(tasks[0].arguments["device"]) == "cpu":
        return tasks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heard of each split already
        whole = _SharedRows(fits, _checked(fits.estimator, fits.X, fits.y))
    shared: dict[int, _SharedRows] = {}
    folds = []
    for fit, task in numbered:
        split = fit.split
        if id(split) not in shared:
            shared[id(split)] = whole if whole.have(split) else _SharedRows(fits, split.checked)
        folds.append(shared[id(split)].fold_of(split, task))
    return [
        task if fold is None else replace(task, data=shared[id(fit.split)].data, fold=fold)
        for (fit, task), fold in zip(numbered, folds, strict=True)
    ]


class _SharedRows:
    """Rows as fits take them, once for all tasks whose rows are among them."""

    def __init__(self, fits: Fits, checked: Rows | None) -> None:
        self.fits, self.checked = fits, checked
        self._folds: dict[Any, tuple[int, Fold]] = {}

    def have(self, split: _Split) -> bool:
        """Return whether a split's rows are encoded as here: they may lack a class."""
        whole, own = self.checked, split.checked
        if whole is None or own is None:
            return False
        return whole.X.dtype == own.X.dtype and np.array_equal(whole.y[split.train.rows], own.y)

    def fold_of(self, split: _Split, task: Task) -> int | None:
        """Return which fold a task's rows are, None if it has more to it than rows of the split."""
        if (
            self.checked is None
            or task.data.sample_weight is not None
            or task.data.validation is not None
        ):
            return None
        own = None if task.fold is None else task.data.folds[task.fold]
        key = id(split), None if own is None else own.train.tobytes()
        if key not in self._folds:
            rows = (
                np.arange(len(split.train.rows))
                if self.checked is split.checked
                else split.train.rows
            )
            fold = Fold(rows, rows[:0]) if own is None else Fold(rows[own.train], rows[own.test])
            self._folds[key] = len(self._folds), fold
        return self._folds[key][0]

    @cached_property
    def data(self) -> SweepData:
        """The rows with all folds that were asked for."""
        knows, rows = clone(self.fits.estimator), cast(Rows, self.checked)
        knows.__dict__.update(rows.seen)
        folds = tuple(fold for _, fold in self._folds.values())
        return SweepData(rows.X, knows._targets.as_loss_takes(rows), folds=folds)


def _checked(estimator: BaseMLP, X: Any, y: Any) -> Rows | None:
    """Return X and y as a fit checks them, or None, if that fails: then each fit says why."""
    try:
        return check(clone(estimator), X, y)
    except Exception:
        return None


class _Side:
    """Rows of a search that are trained on, or scored on, and what a scorer is told of them."""

    def __init__(self, fits: Fits, indices: Indices, train: Indices) -> None:
        self.X, self.y = _safe_split(fits.estimator, fits.X, fits.y, indices, train)
        self.params = _check_method_params(fits.X, params=fits.score_params, indices=indices)
        self.rows = np.arange(_num_samples(fits.X))[indices]


class _Split:
    """The rows of a split, which all fits on it share."""

    def __init__(self, fits: Fits, train: Indices, test: Indices) -> None:
        self.train, self.test = _Side(fits, train, train), _Side(fits, test, train)
        self.fit_params = _check_method_params(fits.X, params=fits.fit_params, indices=train)
        self.checked = _checked(fits.estimator, self.train.X, self.train.y)


class _Started:
    """A fit that is prepared, if that did not fail: `tasks` are its networks, `outcomes` come to be
    theirs.
    """

    def __init__(
        self,
        fits: Fits,
        parameters: dict[str, Any],
        split: _Split,
        drawn: Drawn,
        valid: set[int],
    ) -> None:
        self.fits, self.split = fits, split
        self.tasks: list[Task] = []
        self.outcomes: list[Outcome] = []
        self.error: str | None = None
        start = perf_counter()
        self.estimator = clone(fits.estimator).set_params(**clone(parameters, safe=False))
        with self._told():
            if id(parameters) not in valid:
                self.estimator._validate_params()
                valid.add(id(parameters))
            rows = split.train.X, split.train.y
            self.prepared = prepare(
                self.estimator, *rows, checked=split.checked, drawn=drawn, **split.fit_params
            )
            self.tasks = tasks_of(self.prepared)
        self.seconds = perf_counter() - start

    @property
    def is_only_scored(self) -> bool:
        """Whether nobody can ask for more of the estimator than its predictions."""
        own = self.estimator
        return (
            not self.fits.return_estimator
            and type(own) in (MLPClassifier, MLPRegressor)
            and all(type(each) in (_Scorer, _PassthroughScorer) for each in _each(self.fits.scorer))
            and not (own.callbacks or own.early_stopping or own.n_ensemble > 1)
        )

    def _left_on_device(self, sides: Sequence[PredictedRows | None]) -> OnDevice | None:
        """Return the weights where they were trained, if all that they are for is to predict rows
        that are there as well.
        """
        own, found = self.estimator, [outcome.on_device for outcome in self.outcomes]
        if len(found) != 1 or found[0] is None or not self.is_only_scored:
            return None
        are_there = all(side is not None and side.are_on_device(own) for side in sides)
        dtype = dtype_on(own.device, own, (own.coefs_, own.intercepts_))
        return found[0] if are_there and dtype == "float32" and found[0].are_finite else None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Keep an error of the fit for the search, which warns of it, or raise it if that is
        wanted.
        """
        try:
            yield
        except Exception:
            if self.fits.error_score == "raise":
                raise
            self.error = format_exc()

    def result(
        self, test: PredictedRows | None = None, train: PredictedRows | None = None
    ) -> Result:
        """Finish the fit, and return its scores on the split's rows, and times; None are rows of
        its own.
        """
        start = perf_counter()
        if self.error is None:
            sides = [test, train] if self.fits.return_train_score else [test]
            with self._told():
                endings = [ending_of(outcome) for outcome in self.outcomes]
                finish(self.prepared, endings, self._left_on_device(sides))
        trained = sum(outcome.seconds for outcome in self.outcomes)
        fit_time = self.seconds + trained + perf_counter() - start
        start = perf_counter()
        result: Result = {
            "fit_error": self.error,
            "test_scores": self._scores(self.split.test, test),
            "n_test_samples": len(self.split.test.rows),
            "fit_time": fit_time,
            "score_time": perf_counter() - start,
        }
        if self.fits.return_train_score:
            result["train_scores"] = self._scores(self.split.train, train)
        if self.fits.return_estimator:
            result["estimator"] = self.estimator
        return result

    def _is_share(self, side: _Side) -> bool:
        """Return whether a score is the share of right rows, by the estimator's own method."""
        is_own = type(self.fits.scorer) is _PassthroughScorer
        return is_own and type(self.estimator) is MLPClassifier and not side.params

    def _scores(self, side: _Side, shared: PredictedRows | None) -> Any:
        scorer, error_score = self.fits.scorer, self.fits.error_score
        if self.error is not None:
            is_one = not isinstance(scorer, _MultimetricScorer)
            return error_score if is_one else dict.fromkeys(scorer._scorers, error_score)
        if shared is None:  # the scorer may change its rows
            side = _Side(self.fits, side.rows, self.split.train.rows)
            return _score(self.estimator, side.X, side.y, scorer, side.params, error_score)
        with predicting(self.estimator, shared):
            if self._is_share(side) and (found := count_right(self.estimator, shared.X, side.y)):
                return found
            return _score(self.estimator, shared.X, side.y, scorer, side.params, error_score)


def fit_in_processes(fits: Fits, num_processes: int) -> list[Result]:
    """Fit and score on the CPU, `num_processes` at once, each with one BLAS thread."""
    return fit_elsewhere(fits, JoblibsWorkers(num_processes), len(fits))


def fit_elsewhere(fits: Fits, workers: Workers, num_shards: int = -1) -> list[Result]:
    """Fit and score on workers elsewhere, a shard of the fits each; -1 is one shard a worker."""
    num_shards = min(len(fits), num_shards if num_shards > 0 else workers.count)
    positions = [range(first, len(fits), num_shards) for first in range(num_shards)]
    rows, without = (fits.X, fits.y), replace(fits, X=None, y=None)
    filters = None if workers.has_threads else list(warnings.filters)
    shares = [
        (replace(without, pairs=[fits.pairs[idx] for idx in shard]), get_config(), filters)
        for shard in positions
    ]
    results: dict[int, Result] = {}
    with closing(workers.results(_fit_share, rows, shares)) as found:  # type: ignore[type-var]
        try:
            for shard, result in found:
                if isinstance(result, Raised):
                    if result.is_lost:
                        _check_worker(without, result.error, workers)
                    raise result.error
                results.update(zip(positions[shard], result, strict=True))
        except KeyboardInterrupt as interrupt:
            for _ in thrown(found, interrupt):
                pass
            raise
    return list(_in_order(results))


def _fit_share(rows: tuple[Any, Any], share: Any, stop: Event | None) -> list[Result]:
    """Fit and score as the process that sent it would, by scikit-learn's settings and filters of
    warnings there.
    """
    fits, config, filters = share
    with config_context(**config), nullcontext() if filters is None else warnings.catch_warnings():
        if filters is not None:
            warnings.filters[:] = filters  # type: ignore[index]
        return fit_together(replace(fits, X=rows[0], y=rows[1]), stop)


def _check_worker(fits: Fits, error: Exception, workers: Workers) -> None:
    """Raise an error of ours if a worker could not be sent its fits, or broke down over them."""
    if not workers.has_threads:
        check_sendable(fits, "estimator and scoring", error, workers.dumps)
    if isinstance(error, BrokenExecutor):
        raise DeviceError(
            f"a worker of {workers.kind} was killed, most likely because memory ran out: {error}"
        ) from error


def _in_order(results: dict[int, Result]) -> Iterator[Result]:
    for idx in sorted(results):
        yield results[idx]
