"""Candidates that a sampler of Optuna's suggests, round by round, from scores of earlier rounds."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from warpfit.checks import brief
from warpfit.errors import ConfigError
from warpfit.extras import needs

# Yields the candidates of a round, and takes the results of their fits, split after split.
Rounds = Generator[list[dict[str, Any]], Sequence[Mapping[str, Any]], None]


def sampled_rounds(
    sampler: Any, distributions: Any, num_candidates: int, size: int, metric: Any
) -> Rounds:
    """Yield so many candidates, by rounds of at most `size`.

    Parameters
    ----------
    sampler : optuna.samplers.BaseSampler
        Which stays as it is: a copy suggests.
    distributions : mapping of str to sequence or optuna.distributions.BaseDistribution
        Values of any kind, or what Optuna suggests from.
    num_candidates, size : int
    metric : str
        Which of several scores decides.

    Raises
    ------
    ConfigError
        If Optuna is not installed, or an argument is something else.
    """
    with needs("optuna", "a search's sampler needs"):
        import optuna
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(f"expected sampler as one of Optuna's, or None, got {brief(sampler)}")
    if not isinstance(distributions, Mapping):
        raise ConfigError(
            "expected param_distributions as one dict for a sampler, got "
            f"{type(distributions).__name__}"
        )
    suggested = {name: _distribution(name, each) for name, each in distributions.items()}
    study = optuna.create_study(
        direction="maximize", sampler=copy.deepcopy(sampler), pruner=optuna.pruners.NopPruner()
    )
    for first in range(0, num_candidates, size):
        count = min(size, num_candidates - first)
        trials = [study.ask(dict(suggested)) for _ in range(count)]
        results = yield [_candidate(trial.params, distributions) for trial in trials]
        for trial, score in zip(trials, _mean_scores(results, count, metric), strict=True):
            has_score = isfinite(score)
            failed = optuna.trial.TrialState.FAIL
            study.tell(trial, score if has_score else None, None if has_score else failed)


def _distribution(name: str, values: Any) -> Any:
    """Return what Optuna suggests a parameter from: of values of any kind, their places."""
    from optuna import distributions

    if isinstance(values, distributions.BaseDistribution):
        return values
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) == 0:
        raise ConfigError(
            f"expected values or a distribution of Optuna's for {name!r}, which a sampler is to "
            f"suggest, got {brief(values)}"
        )
    return distributions.CategoricalDistribution(range(len(values)))


def _candidate(params: Mapping[str, Any], distributions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: distributions[name][value]
        if isinstance(distributions[name], Sequence | np.ndarray)
        else value
        for name, value in params.items()
    }


def _mean_scores(results: Sequence[Mapping[str, Any]], count: int, metric: Any) -> list[float]:
    """Return the mean test score of each of so many candidates."""
    scores = [_score(result["test_scores"], metric) for result in results]
    return [float(mean) for mean in np.array(scores, dtype=float).reshape(count, -1).mean(axis=1)]


def _score(scores: Any, metric: Any) -> float:
    if not isinstance(scores, Mapping):
        return float(scores)
    if metric not in scores:
        raise ConfigError(
            f"expected refit to name the score that a sampler goes by ({', '.join(scores)}), got "
            f"{brief(metric)}"
        )
    return float(scores[metric])
