"""Searches over pipelines that end in a perceptron: transformers are fitted once for all candidates
that share them, and what they make of the rows is what perceptrons are trained on, together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _num_samples

from warpfit.accel.perceptrons import is_perceptron
from warpfit.checks import Array

# Transformed rows that lie in memory side by side, in bytes.
MOST_STACKED = 1 << 30

Call = Mapping[str, Any]


class Made(NamedTuple):
    """What the transformers of a pipeline made of the rows of a split, and how long that took."""

    transformers: Any
    perceptron: Any  # unfitted
    train: tuple[Array, Array]
    test: tuple[Array, Array]
    fit_seconds: float
    transform_seconds: float

    @property
    def nbytes(self) -> int:
        return int(self.train[0].nbytes + self.test[0].nbytes)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What rows have in common that can lie in one array."""
        X, y = self.train
        return X.shape[1], X.dtype, y.shape[1:], y.dtype.kind


class Portion(NamedTuple):
    """Calls on the rows of an array: positions, parameters, index sets, and what was made."""

    X: Array
    y: Array
    positions: list[int]
    pairs: list[tuple[dict[str, Any], tuple[Array, Array]]]
    made: list[Made]


def perceptron_of(estimator: Any) -> Any:
    """Return a perceptron, or that of a pipeline."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def is_pipeline(estimator: Any) -> bool:
    """Return whether an estimator is a pipeline that ends in a perceptron; of no class derived from
    scikit-learn's, which may train on other rows than its transformers return.
    """
    return type(estimator) is Pipeline and is_perceptron(estimator.steps[-1][1])


def why_not_apart(call: Call) -> str:
    """Return why the steps of a pipeline are not fitted each for itself; "" if they are."""
    pipeline = call["estimator"]
    if call["fit_params"] or call["score_params"]:
        return "a Pipeline whose fit or score is given more than rows is fitted as a whole"
    if getattr(pipeline, "transform_input", None):
        return "a Pipeline with transform_input is fitted as a whole"
    if len(pipeline.steps) == 1:
        return "a Pipeline of one step is fitted as a whole"
    return ""


def portions(calls: Sequence[Call]) -> Iterator[Portion]:
    """Fit the transformers of scikit-learn's calls, and yield these by portions of one array.

    Raises
    ------
    Exception
        That of a transformer; TypeError if its rows are no array; ValueError if they are fewer or
        more than those that it got, or a candidate has another perceptron.
    """
    groups: dict[Any, list[int]] = {}
    for position, call in enumerate(calls):
        groups.setdefault(_key(call), []).append(position)
    waiting: dict[Any, list[tuple[Made, list[int]]]] = {}
    for members in groups.values():
        made = _made(calls[members[0]])
        same = waiting.setdefault(made.kind, [])
        if same and sum(each.nbytes for each, _ in same) + made.nbytes > MOST_STACKED:
            yield _stacked(calls, same)
            same.clear()
        same.append((made, members))
    for same in waiting.values():
        yield _stacked(calls, same)


def _key(call: Call) -> tuple[Any, ...]:
    """Return what calls have in common whose transformers do the same."""
    _, of_transformers = _parameters(call)
    values = sorted((name, id(value)) for name, value in of_transformers.items())
    return id(call["train"]), id(call["test"]), *values


def _parameters(call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a candidate's parameters of the perceptron, and those of all else."""
    last = call["estimator"].steps[-1][0]
    given = dict(call["parameters"] or {})
    if last in given or "steps" in given:
        raise ValueError("a candidate has another perceptron")
    own = {name for name in given if name.startswith(f"{last}__")}
    return (
        {name.removeprefix(f"{last}__"): given[name] for name in own},
        {name: value for name, value in given.items() if name not in own},
    )


def _made(call: Call) -> Made:
    pipeline = clone(call["estimator"])
    pipeline.set_params(**clone(_parameters(call)[1], safe=False))
    X_train, y_train = _safe_split(pipeline, call["X"], call["y"], call["train"])
    X_test, y_test = _safe_split(pipeline, call["X"], call["y"], call["test"], call["train"])
    transformers, start = pipeline[:-1], perf_counter()
    train = transformers.fit_transform(X_train, y_train)
    fitted = perf_counter()
    test = transformers.transform(X_test)
    seconds = perf_counter() - fitted
    for rows, targets in ((train, y_train), (test, y_test)):
        if not isinstance(rows, np.ndarray) or rows.ndim != 2:
            raise TypeError(f"transformers return a {type(rows).__name__}, no array of rows")
        if len(rows) != _num_samples(targets):
            raise ValueError(f"transformers return {len(rows)} rows of {_num_samples(targets)}")
    if call["return_train_score"] and not np.allclose(train, transformers.transform(X_train)):
        raise ValueError("transformers make other rows of those that they are fitted on")
    rows_and_targets = (train, np.asarray(y_train)), (test, np.asarray(y_test))
    last = perceptron_of(pipeline)
    return Made(transformers, last, *rows_and_targets, fitted - start, seconds)


def _stacked(calls: Sequence[Call], groups: Sequence[tuple[Made, list[int]]]) -> Portion:
    """Return groups of calls as a portion, with the rows of all in one array."""
    sides = [side for made, _ in groups for side in (made.train, made.test)]
    X, y = (np.concatenate([side[idx] for side in sides]) for idx in range(2))
    found, start = Portion(X, y, [], [], []), 0
    for made, members in groups:
        border = start + len(made.train[0])
        end = border + len(made.test[0])
        split = np.arange(start, border), np.arange(border, end)
        for position in members:
            found.positions.append(position)
            found.pairs.append((_parameters(calls[position])[0], split))
            found.made.append(_of_one(made, len(members)))
        start = end
    return found


def _of_one(made: Made, num_members: int) -> Made:
    """Return what was made for one of several calls, less the rows, with its part of the time."""
    empty = np.empty(0), np.empty(0)
    seconds = made.fit_seconds / num_members, made.transform_seconds / num_members
    return Made(made.transformers, made.perceptron, empty, empty, *seconds)


def take_transformers(pipeline: Any, made: Made) -> None:
    """Let a pipeline, whose perceptron is fitted, have copies of the transformers that were."""
    pipeline.steps[:-1] = copy.deepcopy(made.transformers.steps)
