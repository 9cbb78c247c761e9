"""Several networks averaged: what each of them is, and what they are together."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification, make_multilabel_classification

from warpfit.errors import ConfigError
from warpfit.estimators import MLPClassifier, MLPRegressor
from warpfit.sweep import here
from warpfit.training import Callback
from warpfit.training.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]
Data = tuple[Array, Array]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "learning_rate_init": 0.02,
    "max_iter": 6,
    "random_state": 3,
    "dropout": 0.2,
}
KINDS = [MLPClassifier, MLPRegressor]


@pytest.fixture(scope="module")
def data() -> Data:
    return make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)


class Counts(Callback):
    """Counts runs and their epochs; acts as Ctrl-C in the epoch of this number."""

    def __init__(self, interrupted_in: int = 0) -> None:
        self.runs = self.epochs = 0
        self.interrupted_in = interrupted_in

    def on_start(self, run: Run) -> None:
        self.runs += 1

    def on_epoch_end(self, run: Run) -> None:
        self.epochs += 1

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        if self.epochs + 1 == self.interrupted_in:
            raise KeyboardInterrupt


def assert_same_networks(one: Any, other: Any) -> None:
    assert len(one.coefs_) == len(other.coefs_)
    for own, expected in zip(
        one.coefs_ + one.intercepts_, other.coefs_ + other.intercepts_, strict=True
    ):
        np.testing.assert_array_equal(own, expected, strict=True)


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_is_what_its_random_state_gives(data: Data, kind: Any, solver: str) -> None:
    settings = {**FEW, "solver": solver}
    ensemble = kind(n_ensemble=3, **settings).fit(*data)
    assert len(ensemble.estimators_) == 3
    for member in ensemble.estimators_:
        assert member.n_ensemble == 1
        assert_same_networks(member, clone(member).fit(*data))
    first = kind(**settings).fit(*data)
    assert_same_networks(ensemble.estimators_[0], first)
    assert_same_networks(ensemble, first)
    assert len({member.loss_ for member in ensemble.estimators_}) == 3


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_random_numbers_of_any_source(data: Data, random_state: Any) -> None:
    ensemble = MLPClassifier(**{**FEW, "random_state": random_state}, n_ensemble=3).fit(*data)
    assert len({member.loss_ for member in ensemble.estimators_}) == 3


def test_one_network_draws_as_before_with_a_random_state_to_go_on_with(data: Data) -> None:
    states = [np.random.RandomState(0) for _ in range(2)]
    one, three = (
        MLPClassifier(**{**FEW, "random_state": state}, n_ensemble=n).fit(*data)
        for state, n in zip(states, (1, 3), strict=True)
    )
    assert_same_networks(one, three.estimators_[0])
    assert not hasattr(one, "estimators_")


def test_only_several_networks_go_through_a_sweep(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    run_here = here.run_here
    monkeypatch.setattr(
        here,
        "run_here",
        lambda tasks, **rest: trained.append(len(tasks)) or run_here(tasks, **rest),
    )
    one, two = (MLPClassifier(n_ensemble=n, **FEW).fit(*data) for n in (1, 2))
    assert trained == [2]
    assert_same_networks(one, two)


def test_probabilities_are_means(data: Data) -> None:
    X, y = data
    names = np.array(["a", "b", "c"])[y]
    ensemble = MLPClassifier(n_ensemble=3, **FEW).fit(X, names)
    expected = np.mean([member.predict_proba(X) for member in ensemble.estimators_], axis=0)
    np.testing.assert_allclose(ensemble.predict_proba(X), expected, rtol=1e-12)
    np.testing.assert_array_equal(ensemble.predict(X), ensemble.classes_[expected.argmax(axis=1)])
    assert ensemble.score(X, names) == np.mean(ensemble.predict(X) == names)


def test_probabilities_of_two_classes_and_of_several_labels() -> None:
    X, topics = make_multilabel_classification(80, 6, n_classes=3, random_state=0)
    for y in (topics, topics[:, 0]):
        ensemble = MLPClassifier(n_ensemble=2, **FEW).fit(X, y)
        expected = np.mean([member.predict_proba(X) for member in ensemble.estimators_], axis=0)
        np.testing.assert_allclose(ensemble.predict_proba(X), expected, rtol=1e-12)
        labels = expected if y.ndim == 2 else expected[:, 1]
        np.testing.assert_array_equal(ensemble.predict(X), labels > 0.5)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_predictions_are_means(data: Data, loss: str) -> None:
    X, y = data
    ensemble = MLPRegressor(loss, n_ensemble=3, **FEW).fit(X, np.stack([y, y + 1], axis=1))
    expected = np.mean([member.predict(X) for member in ensemble.estimators_], axis=0)
    np.testing.assert_allclose(ensemble.predict(X), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_set_aside_are_the_same_for_all(data: Data, kind: Any) -> None:
    X, y = data
    settings = {**FEW, "early_stopping": True, "validation_fraction": 0.25}
    ensemble = kind(n_ensemble=2, **settings).fit(X, y)
    assert_same_networks(ensemble, kind(**settings).fit(X, y))
    second = ensemble.estimators_[1]
    # Learned from another split its weights would be others.
    assert not np.array_equal(second.coefs_[0], clone(second).fit(X, y).coefs_[0])
    assert second.t_ == 90 * second.n_iter_
    assert len(second.validation_scores_) == second.n_iter_


@pytest.mark.parametrize("kind", KINDS)
def test_given_rows_to_validate_on_serve_all(data: Data, kind: Any) -> None:
    X, y = data
    ensemble = kind(n_ensemble=2, **FEW).fit(X[:90], y[:90], X_val=X[90:], y_val=y[90:])
    for member in ensemble.estimators_:
        assert member.validation_scores_[-1] == pytest.approx(member.score(X[90:], y[90:]))


@pytest.mark.parametrize("kind", KINDS)
def test_all_go_on(data: Data, kind: Any) -> None:
    X, y = data
    ensemble = kind(n_ensemble=2, warm_start=True, **FEW).fit(X, y)
    members = [clone(member).fit(X, y) for member in ensemble.estimators_]
    ensemble.partial_fit(X, y).set_params(learning_rate_init=0.1).fit(X, y)
    for own, single in zip(ensemble.estimators_, members, strict=True):
        single.partial_fit(X, y).set_params(learning_rate_init=0.1).fit(X, y)
        assert_same_networks(own, single)
        assert own.loss_curve_ == single.loss_curve_
    assert ensemble.loss_curve_ == members[0].loss_curve_


def test_partial_fit_begins_all(data: Data) -> None:
    X, y = data
    ensemble = MLPClassifier(n_ensemble=2, **FEW)
    for part in (slice(60), slice(60, 120)):
        ensemble.partial_fit(X[part], y[part], classes=[0, 1, 2])
    assert [member.t_ for member in ensemble.estimators_] == [120, 120]


def test_going_on_with_another_number_is_refused(data: Data) -> None:
    classifier = MLPClassifier(n_ensemble=2, warm_start=True, **FEW).fit(*data)
    for number in (1, 3):
        classifier.set_params(n_ensemble=number)
        for goes_on in (classifier.fit, classifier.partial_fit):
            with pytest.raises(
                ConfigError, match=f"expected n_ensemble=2, .* got n_ensemble={number}"
            ):
                goes_on(*data)
    classifier.set_params(warm_start=False, n_ensemble=1).fit(*data)
    assert not hasattr(classifier, "estimators_")


def test_copies_go_on_like_the_original(data: Data) -> None:
    ensemble = MLPClassifier(n_ensemble=2, **FEW).fit(*data)
    copied = pickle.loads(pickle.dumps(ensemble))
    np.testing.assert_array_equal(copied.predict_proba(data[0]), ensemble.predict_proba(data[0]))
    copied.partial_fit(*data)
    ensemble.partial_fit(*data)
    np.testing.assert_array_equal(copied.predict_proba(data[0]), ensemble.predict_proba(data[0]))
    assert not hasattr(clone(ensemble), "estimators_")


def test_callbacks_see_every_network(data: Data) -> None:
    counts = Counts()
    MLPClassifier(n_ensemble=3, callbacks=[counts], **FEW).fit(*data)
    assert (counts.runs, counts.epochs) == (3, 3 * FEW["max_iter"])


def test_an_interrupt_ends_all_training(data: Data) -> None:
    X, y = data
    ensemble = MLPClassifier(n_ensemble=3, callbacks=[Counts(FEW["max_iter"] + 3)], **FEW)
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        ensemble.fit(X, y)
    assert [member.n_iter_ for member in ensemble.estimators_] == [FEW["max_iter"], 2]
    assert np.isfinite(ensemble.predict_proba(X)).all()


def test_an_interrupt_of_what_goes_on_keeps_all(data: Data) -> None:
    X, y = data
    ensemble = MLPClassifier(n_ensemble=3, warm_start=True, **FEW).fit(X, y)
    before = [member.t_ for member in ensemble.estimators_]
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        ensemble.set_params(callbacks=[Counts(FEW["max_iter"] + 1)]).fit(X, y)
    assert [member.t_ for member in ensemble.estimators_] == [before[0] * 2, *before[1:]]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("n_ensemble", [1, 2])
def test_warnings_name_the_line_that_fits(data: Data, n_ensemble: int, method: str) -> None:
    classifier = MLPClassifier(n_ensemble=n_ensemble, **FEW).fit(*data).set_params(batch_size=1000)
    with pytest.warns(UserWarning, match="Got `batch_size` less than 1") as caught:
        getattr(classifier, method)(*data)
    assert {warning.filename for warning in caught} == {__file__}
