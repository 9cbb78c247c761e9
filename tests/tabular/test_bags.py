"""Several networks: folds, members, time limits, and what of them equals a single fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import ConfigError, DataError, DivergedError, TrainingWarning
from warpfit.tabular.bags import folds_of, seeds_of, set_aside

TINY: dict[str, Any] = {
    "n_epochs": 3,
    "batch_size": 16,
    "hidden_layer_sizes": (8,),
    "random_state": 0,
    "device": "cpu",
}


def table(num_rows: int = 60) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    towns = [f"town {idx}" for idx in random.integers(0, 12, num_rows)]
    frame = pd.DataFrame({"x": random.normal(size=num_rows), "town": towns})
    return frame, frame["x"].to_numpy() * 3 + 5


def test_a_bag_predicts_the_mean_of_its_networks() -> None:
    frame, y = table()
    model = TabularRegressor(n_folds=3, n_ensemble=2, **TINY).fit(frame, y)
    cells = model.preprocessor_.cells(frame)
    each = [model._predicted_by(member, cells) for member in model.members_]
    assert len(each) == 6
    np.testing.assert_allclose(model.predict(frame), np.mean(each, axis=0))
    assert (np.ptp(each, axis=0) > 0).any()
    assert model.left_out_ == []
    labels = np.where(y > 5, "high", "low")
    classifier = TabularClassifier(n_folds=2, **TINY).fit(frame, labels)
    chances = classifier.predict_proba(frame)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    expected = classifier.classes_[chances.argmax(axis=1)]
    np.testing.assert_array_equal(classifier.predict(frame), expected)


@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_network_of_a_bag_is_that_of_a_fit_to_its_rows(place: int) -> None:
    frame, y = table()
    bag = TabularRegressor(n_folds=3, n_ensemble=2, **TINY).fit(frame, y)
    member, is_held_out = bag.members_[place], bag.folds_ == place % 3
    settings = {**TINY, "random_state": member.seed}
    single = TabularRegressor(**settings).fit(
        frame[~is_held_out], y[~is_held_out], X_val=frame[is_held_out], y_val=y[is_held_out]
    )
    assert single.loss_curve_ == member.losses
    assert single.validation_errors_ == member.errors
    cells = bag.preprocessor_.cells(frame)
    np.testing.assert_array_equal(single.predict(frame), bag._predicted_by(member, cells))


def test_the_first_networks_do_not_depend_on_how_many_follow() -> None:
    frame, y = table()
    few, more = (
        TabularRegressor(n_ensemble=count, **TINY).fit(frame, y).members_ for count in (1, 3)
    )
    assert few[0].seed == more[0].seed == TINY["random_state"]
    assert few[0].losses == more[0].losses
    assert more[0].losses != more[1].losses
    assert seeds_of(7, 5)[:3] == seeds_of(7, 3)


def test_predictions_out_of_fold_are_those_of_networks_that_lack_the_row() -> None:
    frame, y = table()
    model = TabularRegressor(n_folds=4, n_ensemble=2, **TINY).fit(frame, y)
    assert np.bincount(model.folds_).tolist() == [15] * 4
    cells = model.preprocessor_.cells(frame)
    for fold in range(4):
        of_fold = model.folds_ == fold
        own = [model._predicted_by(each, cells[of_fold]) for each in model.members_[fold::4]]
        expected = np.mean(own, axis=0)
        np.testing.assert_allclose(model.oof_prediction_[of_fold], expected, rtol=1e-5)
    labels = y > 5
    classifier = TabularClassifier(n_folds=2, **TINY).fit(frame, labels)
    assert classifier.oof_probabilities_.shape == (60, 2)
    counts = np.array([np.bincount(classifier.folds_[labels == label]) for label in (0, 1)])
    assert np.ptp(counts, axis=1).max() <= 1
    single = TabularRegressor(**TINY).fit(frame, y)
    assert not hasattr(single, "oof_prediction_")


def test_no_network_begins_after_the_time_limit() -> None:
    frame, y = table()
    model = TabularRegressor(n_folds=3, time_limit=1e-9, **TINY)
    message = "1 of 3 networks were trained, the last one for 1 of 3 epochs"
    with pytest.warns(TrainingWarning, match=message):
        model.fit(frame, y)
    assert model.left_out_ == [1, 2]
    assert len(model.loss_curve_) == model.best_epoch_ == 1
    np.testing.assert_array_equal(np.isnan(model.oof_prediction_), model.folds_ != 0)
    assert np.isfinite(model.predict(frame)).all()


def test_the_schedule_does_not_know_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, y = table()
    whole = TabularRegressor(**TINY).fit(frame, y)
    clock = iter(range(100))
    monkeypatch.setattr("warpfit.tabular.estimator.perf_counter", lambda: next(clock))
    with pytest.warns(TrainingWarning, match="for 2 of 3 epochs"):
        cut = TabularRegressor(time_limit=1.5, **TINY).fit(frame, y)
    assert cut.loss_curve_ == whole.loss_curve_[:2]
    for time_limit in (3.5, 1e6):  # over after the last epoch; never
        clock = iter(range(100))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            TabularRegressor(time_limit=time_limit, **TINY).fit(frame, y)


@pytest.mark.parametrize("factor", [2.0**-400, 2.0**400])
def test_only_the_ratios_of_weights_count(factor: float) -> None:
    frame, y = table()
    weights = np.random.default_rng(0).random(60)
    plain, scaled = (
        TabularRegressor(**TINY).fit(frame, y, sample_weight=each)
        for each in (weights, factor * weights)
    )
    assert plain.loss_curve_ == scaled.loss_curve_
    np.testing.assert_array_equal(plain.predict(frame), scaled.predict(frame))


def test_rows_to_train_on_must_have_weight() -> None:
    frame, y = table()
    weights = np.zeros(60)
    weights[set_aside(60, 0.2, TINY["random_state"]).held_out] = 1
    with pytest.raises(DataError, match="a row to train on with a weight above 0, got 48 without"):
        TabularRegressor(**TINY).fit(frame, y, sample_weight=weights)


def test_rows_to_validate_on_that_have_no_weight_count_alike() -> None:
    frame, y = table()
    weights = np.zeros(60)
    weights[set_aside(60, 0.2, TINY["random_state"]).trained] = 1
    weighted = TabularRegressor(**TINY).fit(frame, y, sample_weight=weights)
    plain = TabularRegressor(**TINY).fit(frame, y)
    np.testing.assert_allclose(weighted.validation_errors_, plain.validation_errors_, rtol=1e-4)


def test_a_network_that_diverges_later_is_told() -> None:
    frame, y = table()
    model = TabularClassifier(**{**TINY, "lr": 1e30, "n_epochs": 4, "batch_size": 64})
    with pytest.warns(TrainingWarning, match="diverged: its epoch [12] of 4 counts; a lower lr"):
        model.fit(frame, y > 5)
    assert np.isfinite(model.predict_proba(frame)).all()


def test_what_overflows_in_threads_is_an_error_and_no_warning() -> None:
    frame, y = table()
    with pytest.raises(DivergedError, match="a lower learning rate may help"):
        TabularClassifier("tabm", **{**TINY, "lr": 1e30}).fit(frame, y > 5)


def test_weights_count_in_loss_and_validation_error() -> None:
    """Rows of weight 0 say nothing: their targets may be anything, but for their scale."""
    frame, y = table()
    weights = np.where(np.arange(60) % 3 == 0, 0.0, 2.0)
    other = np.where(weights == 0, y[::-1], y)
    labels = {name: np.where(values > 5, 1, 0) for name, values in (("y", y), ("other", other))}
    assert (labels["y"] != labels["other"]).any()
    fitted = [
        TabularClassifier(**TINY).fit(frame, labels[name], sample_weight=weights)
        for name in ("y", "other")
    ]
    assert fitted[0].loss_curve_ == fitted[1].loss_curve_
    assert fitted[0].validation_errors_ == fitted[1].validation_errors_
    plain, ones, twos = (
        TabularClassifier(**TINY).fit(frame, labels["y"], sample_weight=own).loss_curve_
        for own in (None, np.ones(60), np.full(60, 2.0))
    )
    np.testing.assert_allclose(ones, plain, rtol=1e-6)
    np.testing.assert_allclose(twos, plain, rtol=1e-6)
    assert not np.allclose(fitted[0].loss_curve_, plain, rtol=1e-3)


def test_weights_go_with_rows_to_validate_on() -> None:
    frame, y = table()
    model = TabularRegressor(**TINY)
    model.fit(frame, y, sample_weight=np.ones(60), X_val=frame[:9], y_val=y[:9])
    plain = TabularRegressor(**TINY).fit(frame, y, X_val=frame[:9], y_val=y[:9])
    np.testing.assert_allclose(model.validation_errors_, plain.validation_errors_, rtol=1e-4)


def test_members_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    frame, y = table()
    TabularRegressor(**{**TINY, "n_epochs": 1}, n_folds=2, verbose=True).fit(frame, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"network {idx} of 2, epoch 1 of 1" for idx in (1, 2)
    ]


def test_classes_rarer_than_folds_are_lacked_by_some() -> None:
    y = np.array([0] * 8 + [1] * 8 + [2])
    splits = folds_of(y, 4, are_classes=True, seed=0)
    assert sorted(np.concatenate([split.held_out for split in splits])) == list(range(17))


@pytest.mark.parametrize(
    ("settings", "given", "kind", "message"),
    [
        ({"n_folds": 61}, {}, DataError, "at least n_folds=61 rows, got n_samples=60"),
        (
            {"n_folds": 2},
            {"X_val": table()[0], "y_val": table()[1]},
            ConfigError,
            "expected n_folds=None with X_val",
        ),
        ({}, {"sample_weight": np.zeros(60)}, ValueError, "at least one non-zero number"),
        ({}, {"sample_weight": -np.ones(60)}, ValueError, "[Nn]egative"),
        ({}, {"sample_weight": np.ones(59)}, ValueError, "59"),
    ],
)
def test_refuses(
    settings: dict[str, Any], given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        TabularRegressor(**TINY, **settings).fit(*table(), **given)


def test_refuses_more_folds_than_rows_of_any_class() -> None:
    with pytest.raises(DataError, match="at least n_folds=3 rows of a class, got n_samples=2"):
        TabularClassifier(n_folds=3, **TINY).fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
