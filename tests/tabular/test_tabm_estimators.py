"""The estimators with TabM, on tables of which its parts are not told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import ConfigError
from warpfit.tabular.parameters import settings_of

METHODS = ("tabm", "tabm_ple")
FAST: dict[str, Any] = {
    "n_epochs": 8,
    "batch_size": 32,
    "lr": 0.01,
    "hidden_layer_sizes": (24, 24),
    "random_state": 0,
    "device": "cpu",
}


def people(num_rows: int = 120) -> pd.DataFrame:
    """Return a frame of numbers, dates and categories, with missing cells."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 80, num_rows).astype(float),
            "town": [f"town {idx % 12}" for idx in range(num_rows)],
            "member": random.random(num_rows) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(range(num_rows), "D"),
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[::5, "town"] = None
    return frame


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("method", METHODS)
def test_two_classes_and_pickle(method: str) -> None:
    frame = people()
    labels = np.where(frame["member"], "yes", "no")
    model = TabularClassifier(method, **FAST).fit(frame, labels)
    assert model.score(frame, labels) > 0.95
    np.testing.assert_allclose(model.predict_proba(frame).sum(axis=1), 1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))


def test_patience_is_not_taken_for_a_time_limit() -> None:
    frame = people()
    settings = {**FAST, "n_epochs": 1000, "time_limit": 1e6}  # warnings are errors
    model = TabularClassifier("tabm", **settings).fit(frame, np.arange(120) % 2 > 0)
    assert len(model.loss_curve_) == model.best_epoch_ + 17 < 1000


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("method", METHODS)
def test_files(method: str, tmp_path: Path) -> None:
    frame = people().assign(same=1.0)
    ages = frame["age"].fillna(50)
    models: list[Any] = [
        TabularClassifier(method, **FAST).fit(frame, frame["member"]),
        TabularRegressor(method, n_folds=2, **FAST).fit(frame, ages),
    ]
    for model in models:
        model.save(tmp_path / "model.safetensors")
        again = type(model).load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_importances() -> None:
    frame = people()
    model = TabularClassifier("tabm", **FAST).fit(frame, frame["member"])
    found = model.feature_importances_
    assert found.argmax() == list(frame.columns).index("member")


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("method", METHODS)
def test_three_classes(method: str) -> None:
    x, y = load_iris(return_X_y=True)
    model = TabularClassifier(method, **FAST).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.85
    assert model.best_epoch_ == 1 + int(np.argmin(model.validation_errors_))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("method", METHODS)
def test_numbers(method: str) -> None:
    x, y = load_diabetes(return_X_y=True)
    model = TabularRegressor(method, **FAST).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.35


def test_several_numbers_at_once() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = np.column_stack([x[:, 0], 100 * x[:, 1] + 7])
    model = TabularRegressor("tabm", **{**FAST, "n_epochs": 40}).fit(x, y)
    assert model.predict(x).shape == y.shape
    assert model.score(x, y) > 0.8


def test_equal_seeds_give_equal_networks() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    first, second, other = (
        TabularClassifier("tabm", **{**FAST, "random_state": seed}).fit(x, x[:, 0] > 0)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    assert (first.predict_proba(x) != other.predict_proba(x)).any()


def test_folds() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    model = TabularClassifier("tabm", n_folds=3, **FAST).fit(x, x[:, 0] > 0)
    assert len(model.members_) == 3
    assert ((model.oof_probabilities_[:, 1] > 0.5) == (x[:, 0] > 0)).mean() > 0.8


def test_what_the_methods_choose() -> None:
    plain, embedded = (settings_of(TabularClassifier(method)) for method in METHODS)
    assert plain["hidden_layer_sizes"] == (512, 512, 512)
    assert embedded["hidden_layer_sizes"] == (512, 512)
    for settings in (plain, embedded):
        found = [settings[name] for name in ("lr", "weight_decay", "dropout", "batch_size")]
        assert found == [2e-3, 3e-4, 0.1, 256]


@pytest.mark.parametrize("name", ["activation", "frequency_scale"])
def test_refuses_what_only_realmlp_has(name: str) -> None:
    value: Any = {"activation": "selu", "frequency_scale": 0.1}[name]
    model = TabularClassifier("tabm", **{name: value})
    with pytest.raises(ConfigError, match=f"expected {name}=None for method 'tabm'"):
        model.fit([[0.0], [1.0], [2.0]], [0, 1, 0])


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_refuses_what_the_cpu_does_not_compute_in(precision: str) -> None:
    model = TabularClassifier("tabm", **FAST, precision=precision)
    with pytest.raises(ConfigError, match="expected precision 'float32' or None for TabM on this"):
        model.fit([[0.0], [1.0], [2.0]], [0, 1, 0])
