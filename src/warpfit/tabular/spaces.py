"""What to draw a method's parameters from, for searches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpfit.checks import check_choice
from warpfit.tabular.methods import METHODS

TASKS = ("classification", "regression")


def search_space(method: str = "realmlp", *, task: str = "classification") -> dict[str, Any]:
    """Return what a search draws the parameters of `TabularClassifier` or `TabularRegressor` from.

    It is the space of the method's authors, as far as there are parameters for it here. A value
    that is drawn more often than others is in its list as often.

    Parameters
    ----------
    method : str
        As the estimators'.
    task : {'classification', 'regression'}
        For which of the estimators.

    Returns
    -------
    dict of str to list or distribution
        As `warpfit.RandomizedSweepCV` and scikit-learn's ``RandomizedSearchCV`` take them.

    Raises
    ------
    ConfigError
        If there is no such method or task.

    Examples
    --------
    >>> import warpfit as wf
    >>> space = wf.tabular.search_space("realmlp")
    >>> sorted(space)[:4]
    ['activation', 'dropout', 'frequency_scale', 'hidden_layer_sizes']
    >>> search = wf.RandomizedSweepCV(wf.TabularClassifier(), space, n_iter=20, random_state=0)
    """
    check_choice("method", method, METHODS)
    check_choice("task", task, TASKS)
    found: Mapping[str, Any] = METHODS[method].space(task == "classification")
    return dict(found)
