"""Fits that nothing follows, as those of bagging: all are prepared, then trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joblib import effective_n_jobs

from warpfit import backends
from warpfit.accel.loops import Loop
from warpfit.accel.perceptrons import Fit, deferred, why_error
from warpfit.accel.records import SKLEARN, recorded
from warpfit.estimators.fitting import ending_of, tasks_of
from warpfit.sweep.here import run_here


@backends.expecting_no_device()
def fit_all(loop: Loop) -> list[Any]:
    """Do all fits of a loop, on a GPU together, else as scikit-learn does; return what they do."""
    device = backends.resolve_device("auto")
    if device == "cpu" and effective_n_jobs(loop.n_jobs) == 1:
        return loop.run(loop.tasks)
    with recorded(loop.name) as where:
        if device == "cpu":
            where.why = "its processes have scikit-learn's own classes"
            return loop.run(loop.tasks)
        with deferred() as waiting:
            results = [function.function(*args, **kwargs) for function, args, kwargs in loop.tasks]
        if not waiting:
            where.why = "each of its fits fell back"
            return results
        try:
            _train(waiting)
            where.place, where.why = device, f"{len(waiting)} fits"
        except Exception as error:
            where.place, where.why = SKLEARN, why_error(error)
            for fit in waiting:
                fit.by_sklearn()
        return results


def _train(fits: Sequence[Fit]) -> None:
    """Train all networks of fits together, and give what they learn to scikit-learn's."""
    owned = [(fit, task) for fit in fits for task in tasks_of(fit.prepared)]
    outcomes = run_here([replace(task, number=number) for number, (_, task) in enumerate(owned)])
    endings: dict[int, list[Any]] = {id(fit): [] for fit in fits}
    for (fit, _), outcome in zip(owned, outcomes, strict=False):  # fewer after Ctrl-C
        endings[id(fit)].append(ending_of(outcome))
    for fit in fits:
        fit.finish(endings[id(fit)])
