"""Many fits of estimators with different parameters on parts of the same rows, and their scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import Any, NoReturn

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

from warpfit.backends import first_device, resolve_device
from warpfit.blas import one_blas_thread
from warpfit.callers import warn
from warpfit.engines.state_on_demand import OnDevice
from warpfit.errors import DeviceError
from warpfit.estimators.classifier import MLPClassifier
from warpfit.estimators.fitted import Drawn
from warpfit.estimators.fitting import ending_of, finish, prepare, tasks_of
from warpfit.estimators.joint_fits import fit_jointly, jointly_fitted
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.one_fit import OneFit, Result
from warpfit.estimators.predictions import (
    Counted,
    PredictedRows,
    count_ahead,
    count_right,
    predicting,
    shares_of,
)
from warpfit.estimators.recipes import dtype_on
from warpfit.estimators.regressor import MLPRegressor
from warpfit.estimators.splits import CheckedSplit, Fits, Side, Splits
from warpfit.sweep.elsewhere import runner_on
from warpfit.sweep.here import run_here
from warpfit.sweep.joint import FittedJointly
from warpfit.sweep.sending import check_sendable
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task
from warpfit.sweep.threads import own_device
from warpfit.sweep.workers import DeviceWorkers, Raised, Workers, thrown
from warpfit.training.devices import devices_of

Indices = npt.NDArray[np.int64]
# Warnings on their way from another process.
Told = list[tuple[str, type[Warning]]]

# Types of which nobody can change a value.
FIXED = (type(None), bool, int, float, complex, str, bytes)
# Networks that are prepared before any of them trains: their initial values lie in memory.
WAVE = 1024


def fit_together(fits: Fits, stop: Event | None = None) -> list[Result]:
    """Fit and score in this process, all networks of a wave in one go, or of a kind.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, and once `stop` is set: a search with half of its scores is none.
    """
    results: list[Result] = []
    with one_blas_thread():  # so that scores are those of joblib's workers
        if isinstance(fits.estimator, FittedJointly):
            names = devices_of(fits.estimator.device).names
            if len(names) > 1:
                return fit_elsewhere(fits, DeviceWorkers(names), positions=jointly_fitted(fits))
            return fit_jointly(fits, stop)
        for start in range(0, len(fits), WAVE):
            results += _fit_wave(replace(fits, pairs=fits.pairs[start : start + WAVE]), stop)
    return results


def _fit_wave(fits: Fits, stop: Event | None) -> list[Result]:
    splits, candidates = Splits(fits), _Candidates(fits.estimator)
    drawn: Drawn = {}
    started = [
        _Started(fits, candidates, parameters, splits.of(split), drawn)
        for parameters, split in fits.pairs
    ]
    runner = runner_on(fits.estimator.device)
    numbered = _tasks(started, splits, are_distributed=runner is not None)
    _count_ahead(started)
    only_scored = all(fit.is_only_scored for fit in started)
    tasks = [task for _, task in numbered]
    outcomes = run_here(tasks, stop, runner=runner, keeps_models=not only_scored)
    if any(outcome.status == INTERRUPTED for outcome in outcomes):
        raise KeyboardInterrupt
    for (fit, _), outcome in zip(numbered, outcomes, strict=True):
        fit.outcomes.append(outcome)
    return _scored(fits, started, splits)


def _tasks(
    started: Sequence[_Started], splits: Splits, *, are_distributed: bool
) -> list[tuple[_Started, Task]]:
    """Return the tasks of all fits; on a GPU with index sets over shared rows, not copies, which
    are on the host if several devices train the tasks.
    """
    able = [fit for fit in started if fit.error is None and fit.prepared.networks]
    device = resolve_device(first_device(able[0].estimator.device)) if able else "cpu"
    folds = [None if device == "cpu" else splits.fold_of(fit.split, fit.prepared) for fit in able]
    found, place = [], "cpu" if are_distributed else device
    for fit, fold in zip(able, folds, strict=True):
        data = None if fold is None else splits.data_of(fit.split, place)
        found += [(fit, task) for task in tasks_of(fit.prepared, data, fold)]
    return [(fit, replace(task, number=number)) for number, (fit, task) in enumerate(found)]


def _count_ahead(started: Sequence[_Started]) -> None:
    """Have a GPU compile what scores the fits while it compiles what trains them."""
    kinds = {
        (fit.estimator.activation, str(fit.estimator.hidden_layer_sizes), len(side.rows)): fit
        for fit in started
        for side in fit.counted_sides()
    }
    for (*_, num_rows), fit in kinds.items():
        count_ahead(fit.estimator, num_rows)


def _scored(fits: Fits, started: Sequence[_Started], splits: Splits) -> list[Result]:
    """Return the results of all fits, split by split: one split's rows are predicted at a time."""
    if not only_predicts(fits.scorer):
        return [fit.result() for fit in started]
    results: dict[int, Result] = {}
    for split in {id(fit.split): fit.split for fit in started}.values():
        test, train = (splits.predicted(side) for side in (split.test, split.train))
        own = (idx for idx, fit in enumerate(started) if fit.split is split)
        results |= {idx: started[idx].result(test, train) for idx in own}
    return _with_shares(_in_order(results))


def _with_shares(results: list[Result]) -> list[Result]:
    """Return results with the shares of what was counted for them, the wait in their time."""
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
    """Return whether a scorer is known to only have rows predicted, as they are."""
    return all(isinstance(each, _BaseScorer | _PassthroughScorer) for each in _each(scorer))


def _each(scorer: Any) -> Iterable[Any]:
    """Return the scorers that a scorer is made of."""
    return scorer._scorers.values() if isinstance(scorer, _MultimetricScorer) else [scorer]


class _Candidates:
    """Estimators with candidates' parameters, which are known by their `id`."""

    def __init__(self, estimator: BaseMLP) -> None:
        self._base, self._valid = estimator, dict[int, BaseMLP]()

    def made(self, parameters: dict[str, Any]) -> BaseMLP:
        """Return an estimator of a fit; what was valid for one fold is for all."""
        known = self._valid.get(id(parameters))
        if known is None:
            return clone(self._base).set_params(**clone(parameters, safe=False))
        return _like(known)

    def check(self, estimator: BaseMLP, parameters: dict[str, Any]) -> None:
        """Raise what an estimator's fit raises at parameters that are not valid."""
        if id(parameters) not in self._valid:
            estimator._validate_params()
            self._valid[id(parameters)] = _like(estimator)


def _like(estimator: BaseMLP) -> BaseMLP:
    """Return a clone of an unfitted estimator, by a new object if no parameter can change."""
    if type(estimator) not in (MLPClassifier, MLPRegressor) or not all(
        map(_is_fixed, vars(estimator).values())
    ):
        return clone(estimator)
    made = object.__new__(type(estimator))
    made.__dict__.update(estimator.__dict__)
    return made


def _is_fixed(value: Any) -> bool:
    kind = type(value)
    is_one = kind in FIXED or isinstance(value, np.generic)
    return is_one or (kind is tuple and all(map(_is_fixed, value)))


class _Started(OneFit):
    """A fit that is prepared, if that did not fail; `outcomes` come to be those of its networks."""

    split: CheckedSplit

    def __init__(
        self,
        fits: Fits,
        candidates: _Candidates,
        parameters: dict[str, Any],
        split: CheckedSplit,
        drawn: Drawn,
    ) -> None:
        super().__init__(fits, split)
        self.outcomes: list[Outcome] = []
        self.estimator = candidates.made(parameters)
        with self.told():
            candidates.check(self.estimator, parameters)
            X = split.train.X if split.checked is None else None
            self.prepared = prepare(
                self.estimator,
                X,
                split.train.y,
                checked=split.checked,
                drawn=drawn,
                **split.fit_params,
            )

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
        """Return the weights where they were trained, if they only predict rows that are there."""
        own, found = self.estimator, [outcome.on_device for outcome in self.outcomes]
        if len(found) != 1 or found[0] is None or not self.is_only_scored:
            return None
        are_there = all(side is not None and side.are_on_device(own) for side in sides)
        dtype = dtype_on(own.device, own, (own.coefs_, own.intercepts_))
        return found[0] if are_there and dtype == "float32" and found[0].are_finite else None

    def finish(self, sides: Sequence[PredictedRows | None]) -> None:
        self.seconds += sum(outcome.seconds for outcome in self.outcomes)
        endings = [ending_of(outcome) for outcome in self.outcomes]
        finish(self.prepared, endings, self._left_on_device(sides))

    def counted_sides(self) -> list[Side]:
        """Return the rows of which a GPU may count those that are right."""
        if self.error is not None or len(self.prepared.networks) != 1:
            return []
        sides = [self.split.test, *([self.split.train] if self.fits.return_train_score else [])]
        return [side for side in sides if self._is_share(side)]

    def _is_share(self, side: Side) -> bool:
        """Return whether a score is the share of right rows, by the estimator's own method."""
        is_own = type(self.fits.scorer) is _PassthroughScorer
        return is_own and type(self.estimator) is MLPClassifier and not side.params

    def scores(self, side: Side, shared: PredictedRows | None) -> Any:
        if self.error is not None or shared is None:
            return super().scores(side, shared)
        with predicting(self.estimator, shared):
            if self._is_share(side) and (found := count_right(self.estimator, shared)):
                return found
            return self.scored(shared.X, side)


def fit_elsewhere(
    fits: Fits,
    workers: Workers,
    num_shards: int = -1,
    positions: Sequence[Sequence[int]] = (),
) -> list[Result]:
    """Fit and score on workers elsewhere, a shard of the fits each; -1 is one shard a worker. Or
    `positions` are those of each shard's fits.
    """
    num_shards = min(len(fits), num_shards if num_shards > 0 else workers.count)
    positions = positions or [range(first, len(fits), num_shards) for first in range(num_shards)]
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
                        _raise_lost(without, result.error, workers)
                    raise result.error
                done, warned = result
                results.update(zip(positions[shard], done, strict=True))
                for message, category in warned:
                    warn(message, category)
        except KeyboardInterrupt as interrupt:
            for _ in thrown(found, interrupt):
                pass
            raise
    return _in_order(results)


def _fit_share(rows: tuple[Any, Any], share: Any, stop: Event | None) -> tuple[list[Result], Told]:
    """Fit and score by the sender's settings and filters; return results and warnings."""
    fits, config, filters = share
    own = replace(fits, X=rows[0], y=rows[1])
    if device := own_device():
        own = replace(own, estimator=clone(own.estimator).set_params(device=device))
    with config_context(**config):
        if filters is None:
            return fit_together(own, stop), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.filters[:] = filters  # type: ignore[index]
            results = fit_together(own, stop)
    return results, [(str(each.message), each.category) for each in caught]


def _raise_lost(fits: Fits, error: Exception, workers: Workers) -> NoReturn:
    """Raise an error of ours where a worker could not be sent its fits, or broke down over them."""
    if not workers.has_threads:
        check_sendable(fits, "estimator and scoring", error, workers.dumps)
    what = f"ended with {type(error).__name__}"
    if isinstance(error, BrokenExecutor):
        what = "was killed, most likely because memory ran out"
    raise DeviceError(f"a worker of {workers.kind} {what}: {error}") from error


def _in_order(results: dict[int, Result]) -> list[Result]:
    return [results[idx] for idx in sorted(results)]
