"""Estimators of tables in files: all of them comes back, and what is none is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from support.files import rewrite
from warpfit import MLPClassifier, TabularClassifier, TabularRegressor
from warpfit.errors import ConfigError, DataError, FileFormatError, TrainingWarning

FEW: dict[str, Any] = {
    "n_epochs": 2,
    "batch_size": 16,
    "hidden_layer_sizes": (8, 4),
    "random_state": 0,
    "device": "cpu",
}
ROWS = 48


def people() -> pd.DataFrame:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draws.integers(18, 80, ROWS).astype(float),
            "town": [f"town {idx % 12}" for idx in range(ROWS)],
            "member": draws.random(ROWS) < 0.5,
            "plan": draws.choice(["small", "large", "none"], ROWS),
        }
    )
    frame.loc[::7, "age"] = np.nan
    return frame


LABELS = np.arange(ROWS) % 3
CASES: dict[str, tuple[Any, Any]] = {
    "texts": (TabularClassifier(**FEW), np.array(["a", "b", "c"])[LABELS]),
    "objects": (TabularClassifier(**FEW), np.array(["a", "b", "c"], object)[LABELS]),
    "bytes": (TabularClassifier(n_folds=2, **FEW), LABELS.astype(np.uint8)),
    "yes and no": (TabularClassifier(n_ensemble=2, **FEW), LABELS > 0),
    "floats": (TabularClassifier(label_smoothing=0, **FEW), LABELS / 1.0),
    "numbers": (TabularRegressor(n_folds=2, n_ensemble=2, **FEW), LABELS),
    "several numbers": (
        TabularRegressor(n_folds=3, **FEW),
        np.column_stack([LABELS, -3.0 * LABELS]),
    ),
    "numpy's parameters": (
        TabularRegressor(**{**FEW, "hidden_layer_sizes": np.array([8]), "lr": np.float32(0.5)}),
        LABELS,
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.safetensors"


def assert_same(one: Any, other: Any) -> None:
    """Assert that all fitted attributes are equal, networks by what they predict."""
    assert vars(one).keys() - {"_held_out"} == vars(other).keys()
    for name, value in vars(one).items():
        if name in ("members_", "network_", "preprocessor_", "_held_out"):
            continue
        np.testing.assert_equal(getattr(other, name), value, err_msg=name)
    for own, again in zip(one.members_, other.members_, strict=True):
        curves = (own.losses, own.errors, own.best_epoch, own.seed)
        assert curves == (again.losses, again.errors, again.best_epoch, again.seed)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("case", CASES)
def test_all_of_an_estimator_comes_back(path: Path, case: str) -> None:
    estimator, y = CASES[case]
    fitted = estimator.fit(people(), y)
    fitted.save(path)
    loaded = type(fitted).load(path)
    if case == "numpy's parameters":  # these become Python's
        assert (loaded.hidden_layer_sizes, loaded.lr) == ([8], 0.5)
    else:
        assert_same(fitted, loaded)
    found = loaded.predict(people())
    np.testing.assert_array_equal(found, fitted.predict(people()), strict=True)
    loaded.save(path)
    np.testing.assert_array_equal(type(fitted).load(path).predict(people()), found)


def test_an_array_without_names(path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    fitted = TabularRegressor(**FEW).fit(x, x[:, 0])
    fitted.save(path)
    loaded = TabularRegressor.load(path)
    assert not hasattr(loaded, "feature_names_in_")
    np.testing.assert_array_equal(loaded.predict(x), fitted.predict(x))
    with pytest.raises(ValueError, match="3 features"):
        loaded.predict(x[:, :2])


def test_what_a_time_limit_left_out_comes_back(path: Path) -> None:
    with pytest.warns(TrainingWarning):
        fitted = TabularRegressor(n_folds=3, time_limit=1e-9, **FEW).fit(people(), LABELS)
    fitted.save(path)
    assert_same(fitted, TabularRegressor.load(path))


@pytest.mark.parametrize("n_folds", [None, 2])
def test_folds_come_back_whatever_is_asked_of_the_next_fit(path: Path, n_folds: Any) -> None:
    fitted = TabularRegressor(n_folds=3, **FEW).fit(people(), LABELS).set_params(n_folds=n_folds)
    fitted.save(path)
    assert_same(fitted, TabularRegressor.load(path))


def test_importances_come_back_if_they_were_asked_for(path: Path) -> None:
    fitted = TabularRegressor(**FEW).fit(people(), LABELS)
    fitted.save(path)
    with pytest.raises(ConfigError, match="before the estimator is copied or stored"):
        _ = TabularRegressor.load(path).feature_importances_
    expected = fitted.feature_importances_
    fitted.save(path)
    np.testing.assert_array_equal(TabularRegressor.load(path).feature_importances_, expected)


def test_what_cannot_be_written_is_refused(path: Path) -> None:
    with pytest.raises(NotFittedError):
        TabularClassifier().save(path)
    model = TabularRegressor(**{**FEW, "random_state": np.random.RandomState(0)})
    with pytest.raises(ConfigError, match="random_state of type RandomState; pickle stores any"):
        model.fit(people(), LABELS).save(path)
    days = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "M8[D]")[LABELS]
    with pytest.raises(ConfigError, match="classes that are numbers or strings, got dtype datetim"):
        TabularClassifier(**FEW).fit(people(), days).save(path)
    model = TabularRegressor(**FEW).fit(people(), LABELS)
    with pytest.raises(ConfigError, match="The 'lr' parameter of TabularRegressor must be a float"):
        model.set_params(lr=-1).save(path)  # which `load` would refuse
    assert not path.exists()


def test_files_of_others_are_refused(path: Path) -> None:
    TabularRegressor(**FEW).fit(people(), LABELS).save(path)
    message = "expected .* to hold a TabularClassifier, found 'TabularRegressor'"
    with pytest.raises(FileFormatError, match=message):
        TabularClassifier.load(path)
    with pytest.raises(FileFormatError, match="to hold a MLPClassifier"):
        MLPClassifier.load(path)
    with pytest.raises(DataError, match="does not exist"):
        TabularClassifier.load(path.with_name("none.safetensors"))


def altered(path: Path, *keys: Any, value: Any) -> None:
    """Replace a part of the JSON text of a file, and seal it again."""

    def alter(text: dict[str, Any], arrays: Any) -> None:
        part: Any = text
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    rewrite(path, alter)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("table", "method"), "forest", "expected a method, found forest"),
        (("table", "num_features"), 5, "expected 5 names"),
        (("table", "names"), ["age", "age", "town", "plan"], "expected names that differ"),
        (("table", "labels"), None, "expected classes of a classifier only"),
        (("table", "labels", "values"), ["b", "a"], "expected classes in order"),
        (
            ("table", "categories", "texts", 0, 1),
            ["b", "a"],
            "expected categories as texts in order",
        ),
        (("table", "categories", "dates"), [1], "expected places of dates in order"),
        (("table", "categories", "texts", 0, 0), 7, "expected a place below 4, got 7"),
        (("members",), [], "expected members"),
        (("members", 0, "hidden"), [10**6, 10**6], "expected at least"),
        (("members", 0, "activation"), "sine", "an activation"),
        (("members", 0, "best_epoch"), 3, "expected curves of equal length"),
        (("members", 0, "losses"), ["x"], "expected a list of numbers"),
        (("parameters", "n_folds"), 1, "The 'n_folds' parameter"),
        (("parameters", "stacked"), 1, "unexpected keyword argument"),
    ],
)
def test_malformed_descriptions_are_refused(
    path: Path, keys: tuple[Any, ...], value: Any, message: str
) -> None:
    TabularClassifier(**FEW).fit(people(), np.array(["a", "b", "c"])[LABELS]).save(path)
    altered(path, *keys, value=value)
    with pytest.raises(FileFormatError, match=f"holds no TabularClassifier: .*{message}"):
        TabularClassifier.load(path)
