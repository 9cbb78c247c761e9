from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import TrainingWarning, WarpfitError

FAST: dict[str, Any] = {
    "n_epochs": 16,
    "batch_size": 32,
    "hidden_layer_sizes": 32,
    "random_state": 0,
    "device": "cpu",
}


def people(num_rows: int = 120) -> pd.DataFrame:
    """Return a frame of every kind of column, with missing cells."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 80, num_rows).astype(float),
            "town": [f"town {idx % 12}" for idx in range(num_rows)],
            "member": random.random(num_rows) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(range(num_rows), "D"),
            "plan": pd.Categorical(random.choice(["small", "large", "none"], num_rows)),
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[::5, "town"] = None
    return frame


def test_a_frame_of_every_kind_goes_straight_in() -> None:
    frame = people()
    labels = np.where(frame["plan"] == "none", "no", "yes")
    model = TabularClassifier(**FAST).fit(frame, labels)
    assert model.score(frame, labels) > 0.95
    assert model.predict(frame.head(3)).tolist() == labels[:3].tolist()
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_allclose(model.predict_proba(frame).sum(axis=1), 1)
    ages = frame["age"].fillna(50)
    regressor = TabularRegressor(**{**FAST, "n_epochs": 64}).fit(frame, ages)
    assert regressor.score(frame, ages) > 0.8


def test_cells_of_lists_and_of_object_arrays_are_those_of_frames() -> None:
    cells = [[1.0, "a"], [2.0, "b"], [None, "c"], [4.0, "a"], [5.0, None]] * 8
    labels = ["x", "y", "z", "x", "y"] * 8
    expected = TabularClassifier(**FAST).fit(pd.DataFrame(cells), labels).predict_proba(cells)
    for table in (cells, np.array(cells, dtype=object)):
        found = TabularClassifier(**FAST).fit(table, labels).predict_proba(table)
        np.testing.assert_array_equal(found, expected)


def test_frames_of_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = people().drop(columns="plan")
    labels = frame["member"].to_numpy()
    cells = {
        name: [None if pd.isna(cell) else cell for cell in column] for name, column in frame.items()
    }
    ours = polars.DataFrame(cells)
    found = TabularClassifier(**FAST).fit(ours, labels).predict_proba(ours)
    expected = TabularClassifier(**FAST).fit(frame, labels).predict_proba(frame)
    np.testing.assert_array_equal(found, expected)


def test_equal_seeds_give_equal_networks() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    y = x[:, 0] > 0
    first, second, other = (
        TabularClassifier(**{**FAST, "random_state": seed}).fit(x, y).predict_proba(x)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_the_best_epoch_remains_and_curves_say_how_it_went() -> None:
    x = np.random.default_rng(0).normal(size=(80, 3))
    y = (x[:, 0] > 0).astype(int)
    model = TabularClassifier(**FAST).fit(x[:60], y[:60], X_val=x[60:], y_val=y[60:])
    errors = model.validation_errors_
    assert len(errors) == len(model.loss_curve_) == FAST["n_epochs"]
    assert model.best_epoch_ == len(errors) - int(np.argmin(errors[::-1]))
    assert 1 - model.score(x[60:], y[60:]) == pytest.approx(min(errors))
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_predictions_stay_within_the_targets() -> None:
    x = np.linspace(0, 1, 100)[:, None]
    model = TabularRegressor(**FAST).fit(x, 5 + 3 * x[:, 0])
    assert 6 < model.predict([[0.5]]) < 7
    far = model.predict(np.linspace(-1e3, 1e3, 50)[:, None])
    assert 5 <= far.min() <= far.max() <= 8


def test_several_targets_at_once() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = np.column_stack([x[:, 0], 100 * x[:, 1] + 7])
    model = TabularRegressor(**{**FAST, "n_epochs": 48}).fit(x, y)
    assert model.predict(x).shape == y.shape
    assert model.score(x, y) > 0.8


def test_smoothing_keeps_probabilities_from_0_and_1() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = x[:, 0] > 0
    smooth, sharp = (
        TabularClassifier(label_smoothing=share, **FAST).fit(x, y).predict_proba(x).max(axis=1)
        for share in (0.3, 0.0)
    )
    assert np.median(smooth) < 0.9 < 0.97 < np.median(sharp)


def test_a_fitted_model_goes_through_pickle_and_clones() -> None:
    frame = people()
    model = TabularClassifier(**FAST).fit(frame, frame["member"])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    with pytest.raises(NotFittedError):
        clone(model).predict(frame)


def test_a_device_predicts_as_the_cpu_does(cuda: str) -> None:
    frame = people(40)
    model = TabularClassifier(**{**FAST, "hidden_layer_sizes": 8}).fit(frame, frame["plan"])
    expected = model.predict_proba(frame)
    found = model.set_params(device=cuda).predict_proba(frame)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert model.network_.device == "cpu"


def test_verbose_prints_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(20.0)[:, None]
    TabularRegressor(**{**FAST, "n_epochs": 2, "verbose": True}).fit(x, x[:, 0])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"epoch 2 of 2: loss [\d.e-]+, validation error [\d.e-]+", lines[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "forest"}, "The 'method' parameter of TabularClassifier must be"),
        ({"lr": 0.0}, "The 'lr' parameter"),
        ({"n_epochs": 0}, "The 'n_epochs' parameter"),
        ({"validation_fraction": 1.0}, "The 'validation_fraction' parameter"),
        ({"label_smoothing": 1.0}, "The 'label_smoothing' parameter"),
        ({"n_folds": 1}, "The 'n_folds' parameter"),
        ({"n_ensemble": 0}, "The 'n_ensemble' parameter"),
        ({"time_limit": 0}, "The 'time_limit' parameter"),
        ({"activation": "sine"}, "The 'activation' parameter"),
        ({"hidden_layer_sizes": (8, 0)}, "expected hidden_layer_sizes as integers of at least 1"),
        ({"hidden_layer_sizes": [[8], [8, 8]]}, "expected hidden_layer_sizes as integers"),
        ({"dropout": 1.0}, "The 'dropout' parameter"),
        ({"frequency_scale": 0.0}, "The 'frequency_scale' parameter"),
        ({"device": "tpu"}, "expected one device, 'auto', 'cpu', 'cuda'"),
    ],
)
def test_refuses_parameters(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TabularClassifier(**{**FAST, **settings}).fit([[0.0], [1.0], [2.0]], [0, 1, 0])


@pytest.mark.parametrize("method", ["realmlp", "tabm"])
def test_refuses_validation_targets_that_no_error_can_be_made_of(method: str) -> None:
    x = np.linspace(0, 1, 60)[:, None]
    model = TabularRegressor(method, **FAST)
    message = "expected validation targets within 1.8e+19 standard deviations of those trained on"
    with pytest.raises(ValueError, match=re.escape(message)) as found:
        model.fit(x, x[:, 0], X_val=x, y_val=np.append(x[1:, 0], -1e300))
    assert str(found.value).endswith("which are 0.5 ± 0.293527, got -1e+300")


def test_refuses_a_table_unlike_the_fitted_one() -> None:
    frame = people()
    model = TabularClassifier(**FAST).fit(frame, frame["member"])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.drop(columns="age"))
    with pytest.raises(ValueError, match="column 'age' is 'old'; expected a finite number"):
        model.predict(frame.assign(age="old"))
    with pytest.raises(ValueError, match="expected both X_val and y_val, or neither"):
        model.fit(frame, frame["member"], X_val=frame)


@pytest.mark.filterwarnings("error::warpfit.errors.TrainingWarning")  # after the training
@pytest.mark.parametrize(
    ("settings", "labels"),
    [({}, [None] * 40), ({"device": "cuda:99"}, list("pqr") * 13 + ["p"]), ({"lr": 1e30}, None)],
)
def test_a_fit_that_fails_changes_nothing(settings: dict[str, Any], labels: Any) -> None:
    frame = people(40)[["age", "since"]]
    model = TabularClassifier(**FAST).fit(frame, ["no", "yes"] * 20)
    expected, importances = model.predict_proba(frame), model.feature_importances_
    other = people(40)[["since", "age"]].assign(more=1.0)
    with pytest.raises((WarpfitError, TrainingWarning)):
        model.set_params(**settings).fit(other, ["a", "b"] * 20 if labels is None else labels)
    model.set_params(device="cpu")
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(model.predict_proba(frame), expected)
    np.testing.assert_array_equal(model.feature_importances_, importances)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "ours", "theirs"),
    [
        (load_breast_cancer, TabularClassifier(device="cpu"), MLPClassifier()),
        (load_diabetes, TabularRegressor(device="cpu"), MLPRegressor()),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scores_with_all_defaults_are_not_below_a_perceptrons(
    load: Any, ours: Any, theirs: Any
) -> None:
    x, y = load(return_X_y=True, as_frame=True)
    own = cross_val_score(ours.set_params(random_state=0), x, y)
    other = cross_val_score(
        make_pipeline(StandardScaler(), theirs.set_params(random_state=0)), x, y
    )
    error = np.std(own - other, ddof=1) / np.sqrt(len(own))
    assert own.mean() > other.mean() - 2 * error
