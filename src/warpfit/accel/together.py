"""Searches, cross-validation and learning curves: all fits of a loop are trained together."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import clone
from sklearn.model_selection._validation import _fit_and_score

from warpfit import backends
from warpfit.accel.conversion import ours_of
from warpfit.accel.loops import Loop
from warpfit.accel.perceptrons import is_perceptron, why_error, why_not
from warpfit.accel.pipelines import (
    is_pipeline,
    perceptron_of,
    portions,
    take_transformers,
    why_not_apart,
)
from warpfit.accel.records import SKLEARN, recorded
from warpfit.estimators.as_sklearn import fill
from warpfit.estimators.many_fits import (
    Result,
    fit_elsewhere,
    fit_together,
    only_predicts,
)
from warpfit.estimators.splits import Fits
from warpfit.sweep.workers import JoblibsWorkers, Workers, workers_for

SIGNATURE = inspect.signature(_fit_and_score)
# What is alike in all tasks of a loop, and what is each one's own.
SHARED = ("X", "y", "scorer", "fit_params", "score_params", "error_score")
OWN = ("estimator", "train", "test", "parameters", "callback_ctx", "split_progress")
SAID = ("return_train_score", "return_parameters", "return_n_test_samples", "return_times")
KNOWN = {*SHARED, *OWN, *SAID, "return_estimator", "candidate_progress", "verbose", "caller"}

Task = dict[str, Any]


@backends.expecting_no_device()
def fit_and_score(loop: Loop) -> list[Result]:
    """Do a loop over scikit-learn's `_fit_and_score`, with all fits trained together."""
    num_processes = min(effective_n_jobs(loop.n_jobs), len(loop.tasks))
    with recorded(loop.name) as where:
        workers = workers_for(None, loop.n_jobs)
        if isinstance(workers, JoblibsWorkers):  # scikit-learn's loop has them, cards included
            where.why = f"its workers, by {workers.kind}, have scikit-learn's own classes"
            return loop.run(loop.tasks)
        is_here = num_processes == 1 and workers is None
        where.why = _why_not_together(_bound(loop.tasks[0]), is_here)
        if not where.why:
            try:
                calls = [_bound(task) for task in loop.tasks]
                where.place, where.why, found = _trained(calls, workers, num_processes)
                return found
            except Exception as error:
                where.why = why_error(error)
        where.place = "one by one" if num_processes == 1 else SKLEARN
        return loop.run(loop.tasks)


def _bound(task: Any) -> Task:
    """Return all arguments of a task by their names."""
    _, args, kwargs = task
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _why_not_together(first: Task, is_here: bool) -> str:
    """Return why fits, of which this is the first, are not trained together; "" if they are."""
    estimator = first["estimator"]
    if not is_perceptron(estimator) and not is_pipeline(estimator):
        return f"a {type(estimator).__name__} is fitted as a whole"
    if unknown := first.keys() - KNOWN:
        return f"scikit-learn hands on {', '.join(sorted(unknown))}, which is not known here"
    if first["y"] is None:
        return "there is no y"
    if any(getattr(each, "_skl_callbacks", None) for each in (estimator, first.get("caller"))):
        return "there are callbacks of scikit-learn's"
    if not only_predicts(first["scorer"]):
        return "scoring is a function of the estimator, which is to be scikit-learn's"
    if reason := why_not_apart(first) if is_pipeline(estimator) else why_not(estimator, first["X"]):
        return reason
    if is_here and backends.resolve_device("auto") == "cpu":
        return "on the CPU one process trains one network after the other"
    return ""


def _trained(
    calls: Sequence[Task], workers: Workers | None, num_processes: int
) -> tuple[str, str, list[Result]]:
    """Return where all fits were trained, what they were, and their results."""
    _check_candidates(calls)
    if not is_pipeline(calls[0]["estimator"]):
        place, found = _fitted(_fits_of(calls), workers, num_processes)
        return place, f"{len(found)} fits", _as_sklearns(calls, found)
    results: dict[int, Result] = {}
    made: set[int] = set()
    for portion in portions(calls):
        perceptron = portion.made[0].perceptron
        fits = _fits(calls[0], perceptron, portion.X, portion.y, portion.pairs)
        place, found = _fitted(fits, workers, num_processes)
        for position, each, result in zip(portion.positions, portion.made, found, strict=True):
            result["fit_time"] += each.fit_seconds
            result["score_time"] += each.transform_seconds
            results[position] = _as_sklearns([calls[position]], [result])[0]
            if calls[position]["return_estimator"]:
                take_transformers(calls[position]["estimator"], each)
            made.add(id(each.transformers))
    why = f"{len(results)} fits; transformers fitted {len(made)} times"
    return place, why, [results[idx] for idx in range(len(calls))]


def _fitted(fits: Fits, workers: Workers | None, num_processes: int) -> tuple[str, list[Result]]:
    """Return where fits were done, and their results."""
    if workers is not None:  # which know what devices they have
        return f"{workers.kind}, {workers.count} workers", fit_elsewhere(fits, workers)
    fits.estimator.device = device = backends.resolve_device("auto")
    if device != "cpu":
        return device, fit_together(fits)
    num_processes = min(num_processes, len(fits))
    processes = JoblibsWorkers(num_processes)
    return f"cpu, {num_processes} processes", fit_elsewhere(fits, processes, len(fits))


def _check_candidates(calls: Sequence[Task]) -> None:
    """Raise what scikit-learn's does at parameters that it refuses: ours may take them."""
    seen: dict[int, Any] = {id(call["parameters"]): call["parameters"] for call in calls}
    for parameters in seen.values():
        candidate = clone(calls[0]["estimator"])
        candidate.set_params(**clone(parameters or {}, safe=False))
        perceptron_of(candidate)._validate_params()


def _fits_of(calls: Sequence[Task]) -> Fits:
    """Return the fits of calls that fit perceptrons, on the rows that they have."""
    first = calls[0]
    splits: dict[tuple[int, int], Any] = {}
    pairs = []
    for call in calls:
        key = id(call["train"]), id(call["test"])
        if key not in splits:
            splits[key] = np.asarray(call["train"]), np.asarray(call["test"])
        pairs.append((call["parameters"] or {}, splits[key]))
    return _fits(first, first["estimator"], first["X"], first["y"], pairs)


def _fits(first: Task, perceptron: Any, X: Any, y: Any, pairs: Sequence[Any]) -> Fits:
    """Return the fits of a perceptron on rows, all else as the first call says."""
    return Fits(
        estimator=ours_of(perceptron, goes_on=False),
        X=X,
        y=y,
        pairs=pairs,
        scorer=first["scorer"],
        fit_params=first["fit_params"] or {},
        score_params=first["score_params"] or {},
        return_train_score=first["return_train_score"],
        error_score=first["error_score"],
        return_estimator=first["return_estimator"],
    )


def _as_sklearns(calls: Sequence[Task], found: Sequence[Result]) -> list[Result]:
    """Return results with what scikit-learn's have besides."""
    for call, result in zip(calls, found, strict=True):
        if call["return_parameters"]:
            result["parameters"] = call["parameters"]
        if call["return_estimator"]:
            ours, theirs = result["estimator"], call["estimator"]
            theirs.set_params(**clone(call["parameters"] or {}, safe=False))
            if hasattr(ours, "coefs_"):
                fill(perceptron_of(theirs), ours, copies=False)
            result["estimator"] = theirs
    return list(found)
