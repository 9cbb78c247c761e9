"""SweepCV and RandomizedSweepCV: scikit-learn's searches, every candidate and fold of which trains
in one go.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import product
from numbers import Integral
from time import perf_counter
from typing import Any, ClassVar, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import _clone_parametrized, _fit_context, clone, is_classifier
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import (
    GridSearchCV,
    ParameterGrid,
    ParameterSampler,
    RandomizedSearchCV,
    check_cv,
)
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_method_params, indexable

from warpfit.backends import first_device, resolve_device
from warpfit.checks import brief, check_readable
from warpfit.errors import ConfigError
from warpfit.estimators.many_fits import Result, fit_elsewhere, fit_together
from warpfit.estimators.mlp import BaseMLP
from warpfit.estimators.parameters import hold
from warpfit.estimators.placing import place_of_fits
from warpfit.estimators.sampled import Rounds, sampled_rounds
from warpfit.estimators.splits import Fits
from warpfit.sweep.joint import FittedJointly
from warpfit.sweep.workers import JoblibsWorkers, workers_for
from warpfit.training.devices import devices_of, named_devices

Candidate = dict[str, Any]


class _Sweep:
    """The base of both searches: scikit-learn's fit, with all fits trained together."""

    executor: Executor | None

    def _rounds(self, metric: Any) -> Rounds:
        """Yield candidates, of which later ones may depend on the scores of those before."""
        raise NotImplementedError

    def __sklearn_clone__(self) -> Any:
        """Return a clone with the same executor."""
        found = _clone_parametrized(copy.copy(self))
        return found.set_params(executor=self.executor)

    def __getstate__(self) -> Any:
        """Return what is pickled and copied: all but the executor, whose workers are elsewhere."""
        return {**super().__getstate__(), "executor": None}  # type: ignore[dict-item]

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit every candidate on every fold, and the best one on all rows.

        Parameters
        ----------
        X : array_like or DataFrame (n_samples, n_features)
        y : array_like (n_samples,) or (n_samples, n_outputs)
        **params
            For the estimator's `fit`, the splitter (``groups``) and the scorer, as `GridSearchCV`
            hands them on.

        Returns
        -------
        self

        Raises
        ------
        ConfigError
            If the estimator is none of this package's, or a subclass that overrides `fit`.
        ValueError
            If all fits fail.
        DeviceError
            If workers elsewhere are lost, and nobody else can do their fits.
        KeyboardInterrupt
            After Ctrl-C.
        """
        _fit(self, check_readable("X", X), check_readable("y", y), params)
        return self


def _fit(search: Any, X: Any, y: Any, params: dict[str, Any]) -> None:
    """Set everything that a fitted search has."""
    kind = type(search.estimator)
    is_own = issubclass(kind, BaseMLP | FittedJointly)
    if not is_own or not kind.fit.__module__.startswith("warpfit."):
        raise ConfigError(
            f"expected one of warpfit's classifiers or regressors, got {kind.__name__}"
            f"{', which overrides fit' if is_own else ''}; "
            "scikit-learn's GridSearchCV and RandomizedSearchCV take any estimator"
        )
    scorer, refit_metric = search._get_scorers()
    X, y = indexable(X, y)
    routed = search._get_routed_params_for_fit(_check_method_params(X, params=params))
    splits = _splits(search, X, y, routed.splitter.split)
    fits = Fits(
        estimator=clone(search.estimator),
        X=X,
        y=y,
        pairs=(),
        scorer=scorer,
        fit_params=routed.estimator.fit,
        score_params=routed.scorer.score,
        return_train_score=search.return_train_score,
        error_score=search.error_score,
    )
    search.place_ = ""
    candidates, results = _all_rounds(search, fits, splits, refit_metric)
    _take_results(search, candidates, len(splits), results, refit_metric)
    if search.refit:
        _refit(search, X, y, routed.estimator.fit)
    search.scorer_ = scorer._scorers if isinstance(scorer, _MultimetricScorer) else scorer


def _all_rounds(
    search: Any, fits: Fits, splits: Sequence[Any], refit_metric: str
) -> tuple[list[Candidate], list[Result]]:
    """Return all candidates with the results of their fits, done round by round."""
    rounds = search._rounds(search.refit if isinstance(search.refit, str) else refit_metric)
    found: list[Candidate] | None = next(rounds)
    if not splits or not found:
        raise ConfigError(
            f"expected at least one split and one candidate, got {len(splits)} and "
            f"{len(found or ())}"
        )
    candidates: list[Candidate] = []
    results: list[Result] = []
    while found:
        of_round = replace(fits, pairs=list(product(found, splits)))
        if search.verbose > 0:
            print(
                f"Fitting {len(splits)} folds for each of {len(found)} candidates, totalling "
                f"{len(of_round)} fits"
            )
        own = _results(search, of_round)
        candidates, results = candidates + found, results + own
        found = _next_round(rounds, own)
    return candidates, results


def _next_round(rounds: Rounds, results: list[Result]) -> list[Candidate] | None:
    """Return the candidates of the round after these results, None after the last."""
    try:
        return rounds.send(results)
    except StopIteration:
        return None


def _splits(search: Any, X: Any, y: Any, split_params: dict[str, Any]) -> list[Any]:
    try:
        splitter = check_cv(search.cv, y, classifier=is_classifier(search.estimator))
        splitter.get_n_splits  # noqa: B018  (computed for its error)
    except (AttributeError, TypeError):
        if isinstance(search.estimator, FittedJointly):
            search.estimator._checked_targets(y)
        if search.cv is None or isinstance(search.cv, Integral):
            raise  # what is wrong is y
        raise ConfigError(f"expected cv as scikit-learn takes it, got {brief(search.cv)}") from None
    search.n_splits_ = splitter.get_n_splits(X, y, **split_params)
    splits = list(splitter.split(X, y, **split_params))
    if len(splits) != search.n_splits_:
        raise ValueError(
            "cv.split and cv.get_n_splits return inconsistent results. "
            f"Expected {search.n_splits_} splits, got {len(splits)}"
        )
    return splits


def _results(search: Any, fits: Fits) -> list[Result]:
    """Do all fits: on workers elsewhere, in processes on the CPU, or here."""
    workers = workers_for(search.executor, search.n_jobs)
    if workers is not None:
        return fit_elsewhere(fits, workers, search.n_jobs or -1)
    named_devices(fits.estimator.device)  # before each fit finds what is wrong with them
    num_processes = min(effective_n_jobs(search.n_jobs), len(fits))
    place = place_of_fits(fits, num_processes)
    search.place_ = place.reason
    num_processes = place.num_processes or num_processes
    is_one = len(devices_of(place.device).names) < 2
    device = first_device(place.device) if is_one else place.device
    if device != fits.estimator.device:
        fits = replace(fits, estimator=clone(fits.estimator).set_params(device=device))
    if is_one and num_processes > 1 and resolve_device(device) == "cpu":
        return fit_elsewhere(fits, JoblibsWorkers(num_processes), len(fits))
    return fit_together(fits)


def _take_results(
    search: Any,
    candidates: list[Candidate],
    num_splits: int,
    results: list[Result],
    refit_metric: str,
) -> None:
    """Set `cv_results_`, and which candidate is best."""
    _warn_or_raise_about_fit_failures(results, search.error_score)
    if callable(search.scoring):
        _insert_error_scores(results, search.error_score)
    search.cv_results_ = search._format_results(candidates, num_splits, results)
    first = results[0]["test_scores"]
    search.multimetric_ = isinstance(first, dict)
    if callable(search.scoring) and search.multimetric_:
        search._check_refit_for_multimetric(first)
        refit_metric = search.refit
    if not search.refit and search.multimetric_:
        return
    best = search._select_best_index(search.refit, refit_metric, search.cv_results_)
    search.best_index_ = best
    if not callable(search.refit):
        search.best_score_ = search.cv_results_[f"mean_test_{refit_metric}"][best]
    search.best_params_ = search.cv_results_["params"][best]


def _refit(search: Any, X: Any, y: Any, fit_params: dict[str, Any]) -> None:
    best = clone(search.estimator).set_params(**clone(search.best_params_, safe=False))
    best.set_params(device=first_device(best.device))
    start = perf_counter()
    search.best_estimator_ = best.fit(X, y, **fit_params)
    search.refit_time_ = perf_counter() - start
    if hasattr(best, "feature_names_in_"):
        search.feature_names_in_ = best.feature_names_in_


class SweepCV(_Sweep, GridSearchCV):
    """`GridSearchCV` for this package's estimators: every candidate and every fold trains in one
    go.

    Scores, and everything else but times, are `GridSearchCV`'s with the same estimator and the same
    splits: to the bit on the CPU, with one BLAS thread, and on a GPU if the estimator's engine is
    named; else they are those of kernels that train many networks in one launch, whose sums are
    rounded otherwise.

    Parameters
    ----------
    estimator : MLPClassifier, MLPRegressor, TabularClassifier or TabularRegressor
        Of this package. Its ``device`` says where all is trained: on several in turn, whichever is
        free, and the best on the first. Networks for tables train by one launch for the folds of
        a candidate, on a GPU.
    param_grid : dict of str to sequence, or list of such
        Names of the estimator's parameters with the values to try.
    cv : int, splitter of scikit-learn, or iterable of (train, test)
        A number means folds, with the classes in equal shares for a classifier.
    scoring : str, function, list, tuple, dict or None
        None is the estimator's own score.
    refit : bool, str or function
        Whether `best_estimator_` is fitted on all rows; with several metrics, the one that decides,
        or a function from `cv_results_` to the index of the best candidate.
    n_jobs : int or None
        On the CPU, fits at the same time, in processes of one BLAS thread each; -1 is one a core,
        None is 1 or what joblib's context says. With an executor, the number of shards. With a
        ``random_state`` scores do not depend on it, but for device 'auto', which may be a GPU in
        place of few processes, and one process where more would take longer.
    verbose : int
        Whether it is said how many fits there are.
    error_score : 'raise' or float
        The score of a fit that fails; a warning says so.
    return_train_score : bool
    executor : concurrent.futures.Executor, optional
        Whose workers fit, a shard of candidates and folds on each. Clones have it, too; what is
        pickled has not. Without, joblib's workers, within `joblib.parallel_config` of a cluster's
        backend.

    Attributes
    ----------
    cv_results_ : dict of str to ndarray (n_candidates,)
        ``params``, ``param_<name>``, ``split<i>_test_score``, ``mean_test_score``,
        ``std_test_score``, ``rank_test_score``, ``mean_fit_time``, ``std_fit_time``,
        ``mean_score_time``, ``std_score_time``, and the same of train scores; ``_<metric>`` in
        place of ``_score`` with several metrics.
    best_estimator_, best_score_, best_params_, best_index_
    scorer_ : function or dict
    n_splits_ : int
    refit_time_ : float
        Seconds.
    place_ : str
        Why device 'auto' is the CPU for the fits, of several rounds for those of the last, if that
        was chosen for them; else empty.
    multimetric_ : bool
    classes_, n_features_in_, feature_names_in_
        `best_estimator_`'s.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from warpfit import MLPClassifier, SweepCV
    >>> X, y = make_classification(random_state=1)
    >>> settings = {"max_iter": 200, "learning_rate_init": 0.01, "random_state": 1}
    >>> classifier = MLPClassifier(16, device="cpu", **settings)
    >>> search = SweepCV(classifier, {"alpha": [1e-4, 1.0]}, cv=3, n_jobs=1).fit(X, y)
    >>> search.cv_results_["rank_test_score"].shape
    (2,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GridSearchCV._parameter_constraints,
        "executor": [Executor, None],
    }

    def __init__(
        self,
        estimator: BaseMLP | FittedJointly,
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        n_jobs: int | None = -1,
        verbose: int = 0,
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        executor: Executor | None = None,
    ) -> None:
        hold(self, locals())

    def _rounds(self, metric: Any) -> Rounds:
        yield list(ParameterGrid(self.param_grid))


class RandomizedSweepCV(_Sweep, RandomizedSearchCV):
    """`RandomizedSearchCV` for this package's estimators: every candidate and every fold trains in
    one go.

    Parameters
    ----------
    estimator : MLPClassifier, MLPRegressor, TabularClassifier or TabularRegressor
    param_distributions : dict of str to sequence or distribution, or list of such
        Names of parameters with values, or with what SciPy draws them from (``rvs``); with a
        sampler, one dict of values and of Optuna's distributions.
    n_iter : int
        Candidates that are drawn.
    random_state : int, RandomState or None
        Of the drawing; a sampler has its own seed.
    sampler : optuna.samplers.BaseSampler, optional
        Suggests the candidates, those of later rounds from the mean scores of earlier ones; of
        several scores, from the one that `refit` names. Each fit begins with a copy of it.
    batch : int
        Candidates of a round, which train in one go.
    cv, scoring, refit, n_jobs, verbose, error_score, return_train_score, executor
        As `SweepCV`'s, as are all attributes.

    Examples
    --------
    >>> search = wf.RandomizedSweepCV(
    ...     wf.MLPClassifier((8,), max_iter=50), {"alpha": [1e-4, 1]}, n_iter=2, cv=2, n_jobs=1
    ... )
    >>> sorted(search.fit(x, y).best_params_)
    ['alpha']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **RandomizedSearchCV._parameter_constraints,
        "executor": [Executor, None],
        "sampler": "no_validation",
        "batch": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        estimator: BaseMLP | FittedJointly,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        random_state: Any = None,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        n_jobs: int | None = -1,
        verbose: int = 0,
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        executor: Executor | None = None,
        sampler: Any = None,
        batch: int = 64,
    ) -> None:
        hold(self, locals())

    def _rounds(self, metric: Any) -> Rounds:
        if self.sampler is not None:
            yield from sampled_rounds(
                self.sampler, self.param_distributions, self.n_iter, self.batch, metric
            )
            return
        sampler = ParameterSampler(
            self.param_distributions, self.n_iter, random_state=self.random_state
        )
        yield list(sampler)
