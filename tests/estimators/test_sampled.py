"""RandomizedSweepCV with a sampler of Optuna's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

from support.training import blobs
from warpfit import MLPClassifier, RandomizedSweepCV
from warpfit.errors import ConfigError
from warpfit.training.place import PlaceOfMany

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs(60)
CLASSIFIER = MLPClassifier((4,), max_iter=4, batch_size=16, device="cpu", random_state=0)
LR = optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)
SPACE = {"learning_rate_init": LR, "hidden_layer_sizes": [(4,), (8,)]}


def search(sampler: Any = None, **settings: Any) -> RandomizedSweepCV:
    given = {"n_iter": 10, "batch": 4, "cv": KFold(2), "n_jobs": 1, **settings}
    sampler = optuna.samplers.RandomSampler(seed=0) if sampler is None else sampler
    return RandomizedSweepCV(CLASSIFIER, given.pop("space", SPACE), sampler=sampler, **given)


class Recorder(optuna.samplers.RandomSampler):
    """Draws, and keeps what it is told."""

    told: list[Any]

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        type(self).told.append((state, values))


def test_candidates_come_by_rounds_and_their_scores_are_told() -> None:
    Recorder.told = []
    found = search(Recorder(seed=0)).fit(X, Y)
    results = found.cv_results_
    assert len(results["params"]) == 10
    means = [values[0] for _, values in Recorder.told]
    np.testing.assert_array_equal(means, results["mean_test_score"])
    for params, score in list(zip(results["params"], results["mean_test_score"], strict=True))[::3]:
        assert set(params) == set(SPACE)
        assert params["hidden_layer_sizes"] in SPACE["hidden_layer_sizes"]
        alone = cross_val_score(clone(CLASSIFIER).set_params(**params), X, Y, cv=KFold(2))
        assert score == pytest.approx(alone.mean())
    assert found.best_params_ == results["params"][found.best_index_]


def test_a_place_is_that_of_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["few", "few", ""])

    def place_of_fits(fits: Any, num_processes: int) -> PlaceOfMany:
        return PlaceOfMany("cpu", next(reasons), 1)

    monkeypatch.setattr("warpfit.estimators.search.place_of_fits", place_of_fits)
    assert search().fit(X, Y).place_ == ""


def test_a_fit_is_the_same_again_and_the_sampler_as_it_was() -> None:
    first = search()
    again = clone(first)
    one, two = (each.fit(X, Y).cv_results_["params"] for each in (first, again))
    assert one == two == first.fit(X, Y).cv_results_["params"]


def test_tpe_learns_from_the_rounds_before() -> None:
    """With rounds of all candidates at once it cannot."""
    kinds = [
        search(optuna.samplers.TPESampler(seed=0, n_startup_trials=4), batch=batch, n_iter=12)
        for batch in (4, 12)
    ]
    by_rounds, at_once = (each.fit(X, Y).cv_results_["params"] for each in kinds)
    assert by_rounds[:4] == at_once[:4]
    assert by_rounds[4:] != at_once[4:]


def test_of_several_scores_the_one_that_is_refitted_decides() -> None:
    Recorder.told = []
    scores = {"scoring": ["accuracy", "neg_log_loss"], "refit": "neg_log_loss"}
    found = search(Recorder(seed=0), n_iter=3, **scores).fit(X, Y)
    means = [values[0] for _, values in Recorder.told]
    np.testing.assert_array_equal(means, found.cv_results_["mean_test_neg_log_loss"])
    with pytest.raises(ConfigError, match="refit to name the score that a sampler goes by"):
        search(**{**scores, "refit": False}).fit(X, Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_fits_that_fail_are_told_so() -> None:
    Recorder.told = []
    space = {"learning_rate_init": [0.1, -1.0]}
    found = search(Recorder(seed=0), space=space, n_iter=8).fit(X, Y)
    states = [state for state, _ in Recorder.told]
    is_nan = np.isnan(found.cv_results_["mean_test_score"])
    assert [state == optuna.trial.TrialState.FAIL for state in states] == is_nan.tolist()
    assert 0 < is_nan.sum() < 8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": "tpe"}, "sampler as one of Optuna's, or None, got 'tpe'"),
        ({"space": [SPACE]}, "param_distributions as one dict for a sampler, got list"),
        ({"space": {"alpha": 0.1}}, "distribution of Optuna's for 'alpha'"),
        ({"space": {"activation": "relu"}}, "distribution of Optuna's for 'activation'"),
        ({"batch": 0}, "'batch' parameter of RandomizedSweepCV must be"),
    ],
)
def test_what_is_none(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        search(**settings).fit(X, Y)


def test_without_optuna_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = optuna.samplers.RandomSampler()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match="a search's sampler needs optuna: pip install"):
        search(sampler).fit(X, Y)
