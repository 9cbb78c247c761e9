"""X, y and weights, checked as scikit-learn does, and y in the form of the network's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight, validate_data

from warpfit.checks import Array, Indices, check_readable
from warpfit.estimators.targets import one_column
from warpfit.training.inputs import some_above_0

FLOATS, SPARSE = (np.float64, np.float32), ["csr", "csc"]
# Of which scikit-learn's checks take longer than a network's products; the first of a process looks
# for tables of all packages that are installed.
FEW_NUMBERS = 1 << 16
# Attributes that `check` sets.
SEEN = ("n_features_in_", "feature_names_in_", "classes_", "_label_binarizer")


@dataclass(frozen=True)
class Rows:
    """Checked rows, and the attributes that the estimator has since, which `SEEN` names."""

    source: Array  # (N, K), dense, float32 or float64, or those that these rows are among
    y: Array  # (N, outputs), encoded as the network's outputs
    weight: Array | None = None  # (N,)
    seen: dict[str, Any] = field(default_factory=dict)
    indices: Indices | None = None  # (N,), which of the source's rows these are; None for all

    @cached_property
    def X(self) -> Array:  # noqa: N802  (as scikit-learn has it)
        """The rows (N, K), gathered when they are first asked for."""
        return self.source if self.indices is None else self.source[self.indices]

    @property
    def num_rows(self) -> int:
        return len(self.y)

    @cached_property
    def classes(self) -> Indices:
        """The class (N,) of each row, where y has a column for each."""
        return self.y.argmax(axis=1)

    def part(self, indices: Indices) -> Rows:
        """Return copies of the rows (n,) of these indices."""
        return Rows(
            self.X[indices], self.y[indices], None if self.weight is None else self.weight[indices]
        )


@dataclass(frozen=True)
class Split:
    """Training rows and validation rows: given ones, or some that are held out."""

    rows: Rows
    aside: tuple[Indices, Indices] | None = None  # of training rows, and of those held out
    given: Rows | None = None

    @property
    def num_rows(self) -> int:
        """How many rows are trained on."""
        return self.rows.num_rows if self.aside is None else len(self.aside[0])

    @property
    def train(self) -> Rows:
        """The training rows."""
        return self.rows if self.aside is None else self.rows.part(self.aside[0])

    @cached_property
    def validation(self) -> Rows | None:
        """The validation rows, if there are any."""
        return self.given if self.aside is None else self.rows.part(self.aside[1])


def check(estimator: Any, X: Any, y: Any, *, incremental: bool = False, reset: bool = True) -> Rows:
    """Return X and y checked and encoded; the estimator knows its features and classes since.

    Whatever its parameters, the result is the same for all of a class that were never fitted. If
    incremental, y need not hold every class that is known; with `reset` there may be other
    features.
    """
    return check_whole(estimator, X, y, incremental=incremental, reset=reset).rows


@dataclass(frozen=True)
class Whole:
    """Checked rows, of which parts need no checks of their own."""

    rows: Rows
    y: Array  # (N,) or (N, outputs), checked, not encoded

    def part(self, estimator: Any, indices: Indices) -> Rows | None:
        """Return the rows of indices (n,) as `check` would; None if they may lack classes.

        The estimator is one that has seen all rows.
        """
        own = len(indices) > 0 and estimator._targets.are_all_in(self.y[indices])
        rows = self.rows
        return Rows(rows.X, rows.y[indices], None, rows.seen, indices) if own else None


def check_whole(
    estimator: Any, X: Any, y: Any, *, incremental: bool = False, reset: bool = True
) -> Whole:
    """Check rows as `check` does."""
    targets = estimator._targets
    if reset and _is_small(X) and targets.are_plain(y) and len(X) == len(y):
        estimator.n_features_in_ = X.shape[1]
        vars(estimator).pop("feature_names_in_", None)
    else:
        X, y = validate_data(
            estimator,
            check_readable("X", X),
            check_readable("y", y),
            accept_sparse=SPARSE,
            multi_output=True,
            y_numeric=targets.are_numbers,
            dtype=FLOATS,
            reset=reset,
        )
        y = one_column(y)
    targets.learn(y, goes_on=estimator.warm_start or incremental)
    encoded = targets.encoded(y)
    seen = {name: getattr(estimator, name) for name in SEEN if hasattr(estimator, name)}
    return Whole(Rows(dense(X), encoded.reshape(len(encoded), -1), seen=seen), y)


def row_weights(
    estimator: Any, rows: Rows, y: Any, sample_weight: Any, *, incremental: bool
) -> Array | None:
    """Return the weight (N,) of each row, that of its class included; None if all are 1."""
    weights = estimator._targets.row_weights(y, incremental=incremental)
    if sample_weight is not None:
        own = _check_sample_weight(check_readable("sample_weight", sample_weight), rows.X)
        weights = own if weights is None else own * weights
    return weights if weights is None else some_above_0(weights)


def check_features(estimator: Any, X: Any) -> Any:
    """Return X, dense or sparse, or raise as scikit-learn does if it is unlike what was fitted."""
    is_like = _is_small(X) and X.shape[1] == estimator.n_features_in_
    if is_like and not hasattr(estimator, "feature_names_in_"):
        return X  # as scikit-learn's checks would
    X = check_readable("X", X)
    return validate_data(estimator, X, accept_sparse=SPARSE, dtype=FLOATS, reset=False)


def _is_small(X: Any) -> bool:
    """Return whether X is a small array (N, K) of finite floats."""
    return (
        type(X) is np.ndarray
        and X.dtype in FLOATS
        and X.ndim == 2
        and 0 < X.size <= FEW_NUMBERS
        and bool(np.isfinite(X).all())
    )


def validation_rows(estimator: Any, X_val: Any, y_val: Any) -> Rows | None:
    """Return validation rows, like those that were checked; None if neither X nor y is given."""
    if X_val is None and y_val is None:
        return None
    if X_val is None or y_val is None:
        raise ValueError("expected both X_val and y_val, or neither, got one of them")
    X = check_features(estimator, X_val)
    y = estimator._targets.encoded_to_validate(check_readable("y_val", y_val))
    if len(y) != X.shape[0]:
        raise ValueError(
            f"expected as many rows in X_val as in y_val, got {X.shape[0]} and {len(y)}"
        )
    return Rows(dense(X), y.reshape(len(y), -1))


def dense(X: Any) -> Array:
    """Return checked X (N, K), sparse or not, as an array."""
    return X.toarray() if issparse(X) else X
