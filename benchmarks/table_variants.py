"""Our networks for tables, and RealMLP without one of its parts, which shows what that is worth.

A part is taken away here, where the method is put together: no option of the package does that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import warpfit as wf
from warpfit.tabular import estimator, launched, training
from warpfit.tabular.methods import METHODS
from warpfit.tabular.preprocessing import Preprocessor

__all__ = ["bag", "constant_rate", "network", "repeated", "without_embeddings"]

# The mean of RealMLP's schedule, as a share of its largest rate.
MEAN_RATE = 0.494


def _estimator(split: Any, **settings: Any) -> Any:
    kind = wf.TabularClassifier if split.num_classes else wf.TabularRegressor
    return kind(**settings)


def network(method: str = "realmlp", **settings: Any) -> Callable[..., Any]:
    """Return what fits one network to a split."""

    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        model = _estimator(split, method=method, random_state=seed, n_epochs=epochs, **settings)
        return model.fit(split.x, split.y, X_val=split.x_val, y_val=split.y_val)

    return fit


class _Apart:
    """An estimator whose networks predict one by one."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def predict_ensemble(self, x: Any) -> Any:
        own = self.estimator
        cells = own.preprocessor_.cells(own._frame(x, reset=False))
        return np.stack([own._predicted_by(member, cells) for member in own.members_])

    predict_proba_ensemble = predict_ensemble


def repeated(count: int, method: str = "realmlp") -> Callable[..., Any]:
    """Return what fits networks with other seeds to a split, each of which predicts alone."""
    fit = network(method, n_ensemble=count)
    return lambda *rest: _Apart(fit(*rest))


def bag(n_folds: int) -> Callable[..., Any]:
    """Return what fits a network for each fold to the rows to train and validate on."""

    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        model = _estimator(split, n_folds=n_folds, random_state=seed, n_epochs=epochs)
        return model.fit(*split.known)

    return fit


class _PlainNumbers(Preprocessor):
    """Numbers join the indicators, which have no periodic embeddings."""

    def _learn_columns(self) -> None:
        super()._learn_columns()
        self.columns = replace(self.columns, num_numbers=0, num_indicators=self.columns.num_plain)


def without_embeddings(split: Any, seed: int, epochs: int | None) -> Any:
    """Fit RealMLP without periodic embeddings of numbers."""
    plain = {"realmlp": replace(METHODS["realmlp"], preprocessor=_PlainNumbers)}
    with mock.patch.object(estimator, "METHODS", {**METHODS, **plain}):
        return network()(split, seed, epochs)


def constant_rate(split: Any, seed: int, epochs: int | None) -> Any:
    """Fit RealMLP at the mean of its learning rates; dropout and decay keep their schedule."""

    def mean(t: Any) -> Any:
        return np.full_like(t, MEAN_RATE, dtype=float)

    with (
        mock.patch.object(launched, "coslog4", mean),
        mock.patch.object(training, "coslog4", mean),
    ):
        return network()(split, seed, epochs)
