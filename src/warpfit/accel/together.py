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
from warpfit.accel.records import SKLEARN, recorded
from warpfit.estimators.as_sklearn import fill
from warpfit.estimators.many_fits import (
    Fits,
    Result,
    fit_elsewhere,
    fit_in_processes,
    fit_together,
    only_predicts,
)
from warpfit.sweep.workers import cluster_of_joblib, workers_for

__all__ = ["fit_and_score"]

SIGNATURE = inspect.signature(_fit_and_score)
# What is alike in all tasks of a loop, and what is each one's own.
SHARED = ("X", "y", "scorer", "fit_params", "score_params", "error_score")
OWN = ("estimator", "train", "test", "parameters", "callback_ctx", "split_progress")
SAID = ("return_train_score", "return_parameters", "return_n_test_samples", "return_times")
KNOWN = {*SHARED, *OWN, *SAID, "return_estimator", "candidate_progress", "verbose", "caller"}

Task = dict[str, Any]


@backends.expecting_no_device()
def fit_and_score(loop: Loop) -> list[Result]:
    """Do a loop over scikit-learn's `_fit_and_score`, with all fits trained together.

    Returns
    -------
    list of dict
        As that function's.
    """
    num_processes = min(effective_n_jobs(loop.n_jobs), len(loop.tasks))
    with recorded(loop.name) as where:
        is_here = num_processes == 1 and not cluster_of_joblib()
        where.why = _why_not_together(_bound(loop.tasks[0]), is_here)
        if not where.why:
            try:
                where.place, found = _trained([_bound(task) for task in loop.tasks], loop.n_jobs)
                where.why = f"{len(found)} fits"
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
    if not is_perceptron(estimator):
        return f"a {type(estimator).__name__} is fitted as a whole"
    if unknown := first.keys() - KNOWN:
        return f"scikit-learn hands on {', '.join(sorted(unknown))}, which is not known here"
    if first["y"] is None:
        return "there is no y"
    if any(getattr(each, "_skl_callbacks", None) for each in (estimator, first.get("caller"))):
        return "there are callbacks of scikit-learn's"
    if not only_predicts(first["scorer"]):
        return "scoring is a function of the estimator, which is to be scikit-learn's"
    if reason := why_not(estimator, first["X"]):
        return reason
    if is_here and backends.resolve_device("auto") == "cpu":
        return "on the CPU one process trains one network after the other"
    return ""


def _trained(calls: Sequence[Task], num_jobs: int | None) -> tuple[str, list[Result]]:
    """Return where all fits were trained, and their results."""
    _check_candidates(calls)
    fits = _fits_of(calls)
    if workers := workers_for(None, num_jobs):  # which know what devices they have
        found = fit_elsewhere(fits, workers)
        return f"{workers.kind}, {workers.count} workers", _as_sklearns(calls, found)
    fits.estimator.device = device = backends.resolve_device("auto")
    if device == "cpu":
        num_processes = min(effective_n_jobs(num_jobs), len(calls))
        found = fit_in_processes(fits, num_processes)
        return f"cpu, {num_processes} processes", _as_sklearns(calls, found)
    return device, _as_sklearns(calls, fit_together(fits))


def _check_candidates(calls: Sequence[Task]) -> None:
    """Raise what scikit-learn's estimator does at parameters that it refuses: ours may take
    them.
    """
    seen: dict[int, Any] = {id(call["parameters"]): call["parameters"] for call in calls}
    for parameters in seen.values():
        candidate = clone(calls[0]["estimator"])
        candidate.set_params(**clone(parameters or {}, safe=False))._validate_params()


def _fits_of(calls: Sequence[Task]) -> Fits:
    first = calls[0]
    splits: dict[tuple[int, int], Any] = {}
    pairs = []
    for call in calls:
        key = id(call["train"]), id(call["test"])
        if key not in splits:
            splits[key] = np.asarray(call["train"]), np.asarray(call["test"])
        pairs.append((call["parameters"] or {}, splits[key]))
    return Fits(
        estimator=ours_of(first["estimator"], goes_on=False),
        X=first["X"],
        y=first["y"],
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
                fill(theirs, ours, copies=False)
            result["estimator"] = theirs
    return list(found)
