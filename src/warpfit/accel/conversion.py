"""Estimators of ours for those of scikit-learn, and where they were trained."""

from __future__ import annotations

from typing import Any

from sklearn import neural_network
from sklearn.base import is_classifier

from warpfit import estimators
from warpfit.backends import resolve_device
from warpfit.engines.base import Plan
from warpfit.estimators.as_sklearn import share
from warpfit.estimators.fitted import CURVES
from warpfit.estimators.fitting import Prepared, lbfgs_device
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.rows import SEEN
from warpfit.estimators.sklearn_models import take
from warpfit.training.callbacks import Callback
from warpfit.training.run import Run


class _Watch(Callback):
    """Keeps the plan of a run."""

    needs_run = False

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def on_start(self, run: Run) -> None:
        self.plan = run.plan


def ours_of(theirs: Any, *, goes_on: bool, is_watched: bool = False) -> Any:
    """Return an estimator of ours with the parameters of scikit-learn's, and with its fitted
    attributes, arrays uncopied, if a fit is to go on from them; one that is watched keeps its plan.
    """
    name = "MLPClassifier" if is_classifier(theirs) else "MLPRegressor"
    known = getattr(neural_network, name)._get_param_names()  # not those of a class derived from it
    ours: BaseMLP = getattr(estimators, name)(**{each: getattr(theirs, each) for each in known})
    ours.callbacks = [_Watch()] if is_watched else None
    if goes_on and hasattr(theirs, "coefs_"):
        take(ours, theirs, copies=False)
        own = ours.__dict__  # an attempt that fails may have written to its curves
        own.update({each: list(own[each]) for each in CURVES if own.get(each) is not None})
    elif goes_on:
        ours.__dict__.update({name: vars(theirs)[name] for name in SEEN if name in vars(theirs)})
    return ours


def ours_to_predict(theirs: Any) -> Any:
    """Return an estimator of ours that has the attributes of scikit-learn's, uncopied."""
    ours = ours_of(theirs, goes_on=False)
    share(theirs, ours, copies=False)
    return ours


def where_trained(prepared: Prepared) -> tuple[str, str]:
    """Return where a watched fit was trained, and why there."""
    ours = prepared.estimator
    if not prepared.networks:
        return f"{resolve_device(lbfgs_device(ours, prepared.split.num_rows))}, lbfgs", ""
    plan = ours.callbacks[0].plan
    return f"{plan.device}, {plan.engine}, {plan.precision}", plan.reason
