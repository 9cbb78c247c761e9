"""Many fits of estimators of which those of one kind train together, as those of tables do."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any

from sklearn.base import clone

from warpfit.estimators.one_fit import OneFit, Result
from warpfit.estimators.predictions import PredictedRows
from warpfit.estimators.splits import Fits, Side, Split
from warpfit.sweep.threads import is_set

# Of a call: twice as many as fill a card, and the rows of all are in memory at once.
MOST_NETWORKS = 16


def fit_jointly(fits: Fits, stop: Event | None = None) -> list[Result]:
    """Fit and score in this process.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, and once `stop` is set.
    """
    splits = _splits(fits)
    results: dict[int, Result] = {}
    for places in _groups(fits, splits):
        pairs = [fits.pairs[place] for place in places]
        group = [_Fit(fits, parameters, splits[id(split)]) for parameters, split in pairs]
        _train(group, stop)
        if is_set(stop):
            raise KeyboardInterrupt
        results |= {place: fit.result() for place, fit in zip(places, group, strict=True)}
    return [results[place] for place in range(len(fits))]


def jointly_fitted(fits: Fits) -> list[list[int]]:
    """Return the places of the fits that train in each call."""
    return list(_groups(fits, _splits(fits)))


def _splits(fits: Fits) -> dict[int, Split]:
    return {id(split): Split(fits, *split) for _, split in fits.pairs}


def _made(fits: Fits, parameters: dict[str, Any]) -> Any:
    return clone(fits.estimator).set_params(**clone(parameters, safe=False))


def _groups(fits: Fits, splits: Mapping[int, Split]) -> Iterator[list[int]]:
    """Yield the places of fits that train together, those of a kind with the fewest rows first."""
    kinds: dict[int, tuple[Hashable, int] | None] = {}
    groups: dict[Any, list[int]] = {}
    for place, (parameters, _) in enumerate(fits.pairs):
        if id(parameters) not in kinds:
            kinds[id(parameters)] = _kind_of(_made(fits, parameters))
        found = kinds[id(parameters)]
        groups.setdefault(found[0] if found else place, []).append(place)
    # Those of a split are neighbours, for they have one shape.
    ascending = sorted(splits, key=lambda own: len(splits[own].train.rows))
    ranks = {own: rank for rank, own in enumerate(ascending)}
    for places in groups.values():
        group, count = list[int](), 0
        for place in sorted(places, key=lambda own: ranks[id(fits.pairs[own][1])]):
            _, num_networks = kinds[id(fits.pairs[place][0])] or (None, 1)
            if group and count + num_networks > MOST_NETWORKS:
                yield group
                group, count = [], 0
            group, count = [*group, place], count + num_networks
        yield group


def _kind_of(estimator: Any) -> tuple[Hashable, int] | None:
    with suppress(Exception):  # which the fit will raise
        estimator._validate_params()
        found: tuple[Hashable, int] | None = estimator._kind()
        return found
    return None


class _Fit(OneFit):
    """A fit that is prepared, if that did not fail; `trained` is what comes of it."""

    trained: Any

    def __init__(self, fits: Fits, parameters: dict[str, Any], split: Split) -> None:
        super().__init__(fits, split)
        self.estimator = _made(fits, parameters)
        with self.told():
            self.estimator._validate_params()
            rows = Side(fits, split.train.rows, split.train.rows)  # not kept, unlike the split's
            self.prepared = self.estimator._prepared(rows.X, rows.y, **split.fit_params)

    def finish(self, sides: Sequence[PredictedRows | None]) -> None:
        self.estimator._take_over(self.prepared, self.trained)


def _train(group: Sequence[_Fit], stop: Event | None) -> None:
    """Train the fits that are prepared, in one call if none of them fails."""
    able, is_over = [fit for fit in group if fit.error is None], partial(is_set, stop)
    if len(able) > 1:
        start = perf_counter()
        with suppress(Exception):
            trained = able[0].estimator._trained([fit.prepared for fit in able], is_over)
            seconds = (perf_counter() - start) / len(able)
            for fit, own in zip(able, trained, strict=True):
                fit.trained, fit.seconds = own, fit.seconds + seconds
            return
    for fit in able:
        if is_over():
            return
        with fit.told():
            (fit.trained,) = fit.estimator._trained([fit.prepared], is_over)
