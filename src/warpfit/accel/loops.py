"""scikit-learn's loops over fits of perceptrons: those that can be are trained together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple

from warpfit.accel.perceptrons import is_perceptron
from warpfit.callers import module_of

# What a loop calls, and the module and function of ours that do the whole loop.
FITTED_AND_SCORED = ("warpfit.accel.together", "fit_and_score")
ONLY_FITTED = ("warpfit.accel.ensembles", "fit_all")
LOOPS = {
    "_fit_and_score": FITTED_AND_SCORED,
    "_parallel_build_estimators": ONLY_FITTED,
    "_fit_binary": ONLY_FITTED,
    "_fit_ovo_binary": ONLY_FITTED,
    "_fit_estimator": ONLY_FITTED,
}
VALIDATION = "sklearn.model_selection._validation"


class Loop(NamedTuple):
    """A loop of scikit-learn's."""

    name: str  # of the class or the function that loops
    tasks: Sequence[Any]  # (function, args, kwargs)
    n_jobs: int | None
    run: Callable[[Sequence[Any]], list[Any]]  # returns what tasks do, as scikit-learn does it


def loop(original: Any) -> type:
    """Return the replacement of scikit-learn's `Parallel`, which runs all other loops as before."""

    class Parallel(original):
        def __call__(self, iterable: Iterable[Any]) -> Any:
            tasks, run = iter(iterable), super().__call__
            first = next(tasks, None)
            if first is None:
                return run(())
            if not _is_of_perceptrons(first):
                return run(chain((first,), tasks))
            home, name = LOOPS[_name(first)]
            all_tasks = [first, *tasks]
            found = Loop(_caller(sys._getframe(1)), all_tasks, self.n_jobs, run)
            return getattr(import_module(home), name)(found)

    Parallel.__module__, Parallel.__qualname__ = original.__module__, original.__qualname__
    Parallel.__doc__ = original.__doc__
    return Parallel


def _name(task: Any) -> str:
    return str(getattr(getattr(task[0], "function", None), "__name__", ""))


def _is_of_perceptrons(task: Any) -> bool:
    """Return whether a task fits a perceptron, or a pipeline that ends in one, which is told."""
    name = _name(task)
    if name not in LOOPS:
        return False
    args = task[1]
    estimator = args[1].estimator_ if name == "_parallel_build_estimators" else args[0]
    if LOOPS[name] == FITTED_AND_SCORED and type(estimator).__name__ == "Pipeline":
        estimator = estimator.steps[-1][1]
    return is_perceptron(estimator)


def _caller(frame: FrameType) -> str:
    """Return who loops: an estimator's class, or scikit-learn's function that was called first."""
    if (estimator := frame.f_locals.get("self")) is not None:
        return type(estimator).__name__
    name, above = frame.f_code.co_name, frame.f_back
    while above is not None and module_of(above).startswith("sklearn."):
        if module_of(above) == VALIDATION:
            name = above.f_code.co_name
        above = above.f_back
    return name
