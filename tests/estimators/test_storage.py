"""Estimators in files: all of them comes back, and what is no estimator is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.exceptions import NotFittedError

import warpfit
from support.files import rewrite, write_sealed
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError, DataWarning, FileFormatError
from warpfit.estimators import MLPClassifier, MLPRegressor
from warpfit.training import Callback

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8, 4),
    "learning_rate_init": 0.02,
    "max_iter": 5,
    "random_state": 0,
}
X, Y = make_classification(80, 6, n_informative=4, n_classes=3, random_state=0)
TOPICS = make_multilabel_classification(80, 6, n_classes=4, random_state=0)[1]

CASES: dict[str, tuple[Any, Array]] = {
    "classes": (MLPClassifier(**FEW), Y),
    "names": (MLPClassifier(class_weight={"b": 2.0}, **FEW), np.array(["a", "b", "c"])[Y]),
    "named objects": (
        MLPClassifier(class_weight="balanced", **FEW),
        np.array(["a", "b"], object)[Y % 2],
    ),
    "float classes": (MLPClassifier(class_weight={1.0: 2, 0.0: 1}, **FEW), (Y % 2).astype(float)),
    "yes and no": (MLPClassifier(solver="sgd", **FEW), Y > 0),
    "several labels": (MLPClassifier(solver="adamw", **FEW), TOPICS),
    "numbers": (MLPRegressor(**FEW), Y),
    "early stopping": (MLPRegressor(early_stopping=True, **FEW), TOPICS),
    "lbfgs": (MLPRegressor("huber", solver="lbfgs", **FEW), Y),
    "ensemble": (MLPClassifier(n_ensemble=3, early_stopping=True, **FEW), Y),
    "values of ours": (
        MLPRegressor(losses.Huber(delta=0.3), learning_rate=optim.Step(0.01, every=3), **FEW),
        Y,
    ),
    "values of numpy": (
        MLPRegressor(
            hidden_layer_sizes=np.array([5, 3]),
            alpha=np.float32(0.5),
            max_iter=np.int64(3),
            shuffle=np.bool_(0),
        ),
        Y,
    ),
    "infinity": (MLPRegressor(n_iter_no_change=np.inf, hidden_layer_sizes=[4], max_iter=2), Y),
}


class Nothing(Callback):
    """Does nothing."""


class Own(optim.Schedule):
    """A schedule without a name of its own."""

    def rate(self, progress: Any) -> float:
        return 0.1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "estimator.safetensors"


def assert_equal(one: Any, other: Any) -> None:
    """Assert that two values are of one kind, and equal, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, strict=True)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for own, expected in zip(one, other, strict=True):
            assert_equal(own, expected)
    elif isinstance(one, dict) or (
        hasattr(one, "__dict__") and not isinstance(one, optim.Schedule | losses.Loss)
    ):
        fields, expected = (
            value if isinstance(value, dict) else vars(value) for value in (one, other)
        )
        assert fields.keys() == expected.keys()
        for name in fields:
            assert_equal(fields[name], expected[name])
    else:
        assert one == other


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_of_an_estimator_comes_back(path: Path, case: str, dtype: str) -> None:
    estimator, y = CASES[case]
    rows = X.astype(dtype)
    fitted = estimator.fit(rows, y)
    fitted.save(path)
    loaded = type(fitted).load(path)
    if case == "values of numpy":  # these become Python's
        assert loaded.get_params() | {"hidden_layer_sizes": 0} == fitted.get_params() | {
            "hidden_layer_sizes": 0
        }
        assert_equal(loaded.hidden_layer_sizes, fitted.hidden_layer_sizes)
        assert_equal(loaded.coefs_, fitted.coefs_)
    else:
        assert_equal(loaded, fitted)
    assert_equal(loaded.predict(rows), fitted.predict(rows))


@pytest.mark.parametrize("case", ["classes", "yes and no", "several labels", "values of ours"])
def test_what_is_loaded_goes_on(path: Path, case: str) -> None:
    estimator, y = CASES[case]
    fitted = estimator.fit(X, y)
    fitted.save(path)
    assert type(fitted).load(path).partial_fit(X, y).loss_ == fitted.partial_fit(X, y).loss_


def test_names_of_features_and_a_partial_fit_come_back(path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    fitted = MLPClassifier(**FEW).partial_fit(frame, Y, classes=[0, 1, 2, 3])
    fitted.save(path)
    loaded = MLPClassifier.load(path)
    assert list(loaded.feature_names_in_) == list("abcdef")
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))


def test_arrays_are_written_once(path: Path) -> None:
    fitted = MLPClassifier(n_ensemble=2, early_stopping=True, solver="sgd", momentum=0, **FEW).fit(
        X, Y
    )
    fitted.save(path)
    weights = sum(array.nbytes for array in fitted.coefs_ + fitted.intercepts_)
    with safe_open(path, framework="numpy") as file:
        assert sum(file.get_tensor(name).nbytes for name in file.keys()) == 2 * weights  # noqa: SIM118


@pytest.mark.slow
def test_loading_needs_no_device(path: Path, cuda: str) -> None:
    fitted = MLPClassifier(device=cuda, n_ensemble=2, batch_size=40, **FEW).fit(
        X.astype(np.float32), Y
    )
    fitted.save(path)
    code = (
        "import sys, warpfit; fitted = "
        "warpfit.MLPClassifier.load(sys.argv[1]).set_params(device='cpu')\n"
        "print(*fitted.predict([[0.5] * 6, [2.0] * 6]))"
    )
    command = [sys.executable, "-c", code, str(path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    rows = np.array([[0.5] * 6, [2.0] * 6], np.float32)
    assert done.stdout.split() == [
        str(label) for label in fitted.set_params(device="cpu").predict(rows)
    ]


def test_files_of_earlier_releases_are_read(path: Path) -> None:
    """What version 2 of the format holds, name by name; nothing else is written today."""
    weights = {
        "coefs_/0": [[1.0], [-2.0]],
        "intercepts_/0": [0.5],
        "coefs_/1": [[3.0]],
        "intercepts_/1": [-1.0],
    }
    arrays = {name: np.array(values) for name, values in weights.items()}
    velocities = {
        f"velocity/{idx}": np.zeros_like(array) for idx, array in enumerate(arrays.values())
    }
    fitted: dict[str, Any] = {
        "n_features_in_": 2,
        "n_outputs_": 1,
        "n_layers_": 3,
        "n_iter_": 3,
        "t_": 30,
        "out_activation_": "identity",
        "coefs_": [{"array": "coefs_/0"}, {"array": "coefs_/1"}],
        "intercepts_": [{"array": "intercepts_/0"}, {"array": "intercepts_/1"}],
        "loss_": 1.0,
        "loss_curve_": [3.0, 2.0, 1.0],
        "best_loss_": 1.0,
        "best_validation_score_": None,
        "validation_scores_": None,
        "validation_loss_curve_": None,
        "_no_improvement_count": 0,
        "_best_weights": None,
        "_rate_scale": 0.2,
        "_optimizer_state": {
            "dict": [
                ["step_count", 3],
                ["slots", {"dict": [["velocity", [{"array": name} for name in velocities]]]}],
            ]
        },
    }
    parameters = {"solver": "sgd", "hidden_layer_sizes": 1, "device": "cpu"}
    header = {"estimator": "MLPRegressor", "parameters": parameters, "fitted": fitted}
    text = json.dumps({"format": "warpfit-estimator", "version": 2, **header})
    write_sealed(path, text, arrays | velocities)
    loaded = MLPRegressor.load(path)
    np.testing.assert_array_equal(loaded.predict([[1.0, 0.25], [0.0, 9.0]]), [2.0, -1.0])
    loaded.partial_fit([[1.0, 0.25]], [2.0]).save(path)
    assert (loaded.t_, loaded.loss_curve_[:3]) == (31, [3.0, 2.0, 1.0])
    written: list[set[str]] = []
    rewrite(path, lambda header, arrays: written.append(set(header["fitted"])))
    assert written == [set(fitted)]


def test_what_only_pickle_stores_is_refused(path: Path) -> None:
    for name, value, found in (
        ("callbacks", [Nothing()], "callbacks/0 with a value of type Nothing"),
        ("random_state", np.random.RandomState(0), "random_state with a value of type RandomState"),
        ("learning_rate", Own(0.1), "learning_rate with a value of type Own"),
    ):
        fitted = MLPRegressor(**{**FEW, name: value}).fit(X, Y)
        with pytest.raises(ConfigError, match=f"^save: expected .*got {found}"):
            fitted.save(path)
    fitted.set_params(learning_rate="constant").save(path)
    with pytest.raises(NotFittedError):
        MLPRegressor().save(path)


def test_models_and_estimators_are_told_apart(path: Path) -> None:
    MLPRegressor(**FEW).fit(X, Y).save(path)
    with pytest.raises(FileFormatError, match="hold a MLPClassifier, found 'MLPRegressor'"):
        MLPClassifier.load(path)
    with pytest.raises(
        FileFormatError, match=r"a warpfit-estimator file, which MLPRegressor\.load reads"
    ):
        warpfit.load(path)
    warpfit.save(nn.Sequential(nn.Linear(2, 1)), path)
    with pytest.raises(
        FileFormatError, match=r"found a warpfit-model file, which warpfit\.load reads"
    ):
        MLPRegressor.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, a: h.pop("fitted"), "'fitted'"),
        (lambda h, a: h.update(fitted=[]), "items"),
        (lambda h, a: h["parameters"].update(alpha=-1), "alpha"),
        (lambda h, a: h["parameters"].update(magic=1), "magic"),
        (
            lambda h, a: h["parameters"].update(learning_rate={"schedule": {"name": "none"}}),
            "a schedule among",
        ),
        (lambda h, a: h["fitted"].update(predict=1), "names of attributes, found predict"),
        (lambda h, a: h["fitted"].update(alpha=1), "names of attributes, found alpha"),
        (lambda h, a: h["fitted"].update(classes_={"code": "1"}), "found an object with code"),
        (
            lambda h, a: h["fitted"].update(classes_={"numbers": [1], "dtype": "S99999999"}),
            "a dtype among",
        ),
        (lambda h, a: h["fitted"].update(n_outputs_=7), "from 6 features to 7 outputs"),
        (lambda h, a: h["fitted"].update(n_features_in_=7), "from 7 features to 3 outputs"),
        (
            lambda h, a: h["fitted"].update(out_activation_="eval"),
            "out_activation_ 'softmax', found 'eval'",
        ),
        (lambda h, a: h["fitted"].update(coefs_=[]), r"outputs, found \[\]"),
        (lambda h, a: a.pop("coefs_/0"), "coefs_/0"),
        (lambda h, a: a.update({"coefs_/0": a["coefs_/0"].astype(np.float32)}), "6 features to 3"),
        (lambda h, a: a.update({"intercepts_/0": a["intercepts_/0"][:, None]}), "6 features to 3"),
    ],
)
def test_forged_files_are_refused(path: Path, change: Any, message: str) -> None:
    MLPClassifier(**FEW).fit(X, Y).save(path)
    rewrite(path, lambda header, arrays: None)
    MLPClassifier.load(path)
    rewrite(path, change)
    with pytest.raises(FileFormatError, match=f"holds no MLPClassifier: .*{message}"):
        MLPClassifier.load(path)


Change = Callable[[dict[str, Any]], object]


def binarizer(**changes: Any) -> Change:
    """Return what changes attributes of the binarizer; None takes one away."""

    def change(fitted: dict[str, Any]) -> None:
        pairs = dict(map(tuple, fitted["_label_binarizer"]["label_binarizer"]["dict"])) | changes
        kept = [[name, value] for name, value in pairs.items() if value is not None]
        fitted["_label_binarizer"] = {"label_binarizer": {"dict": kept}}

    return change


def member(**changes: Any) -> Change:
    return lambda fitted: fitted["estimators_"][1]["network"]["fitted"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (binarizer(classes_=None), "classes_"),
        (binarizer(y_type_=None), "y_type_"),
        (binarizer(y_type_="continuous"), "of the continuous classes"),
        (binarizer(y_type_="binary"), "expected 1 outputs of the binary classes"),
        (
            binarizer(y_type_="multilabel-indicator"),
            "expected out_activation_ 'logistic', found 'softmax'",
        ),
        (binarizer(neg_label=1, pos_label=0), "expected 3 outputs"),
        (binarizer(sparse_output=True), "expected 3 outputs"),
        (binarizer(sparse_input_=7), "expected 3 outputs"),
        (binarizer(classes_={"numbers": [0, 1, 3], "dtype": "int64"}), "expected 3 outputs"),
        (binarizer(classes_={"numbers": [0, 1], "dtype": "int64"}), "expected 2 outputs"),
        (lambda f: f.update(_label_binarizer=3), "y_type_"),
        (lambda f: f.update(_label_binarizer={"label_binarizer": 3}), "not iterable"),
        (lambda f: f.pop("_label_binarizer"), "_label_binarizer"),
        (lambda f: f.pop("classes_"), "classes_"),
        (lambda f: f.update(classes_=[0, 1, 2]), "classes_ to be an array, found list"),
        (
            lambda f: f.update(classes_={"strings": ["a", "b", "b"], "is_object": False}),
            "expected 3 outputs",
        ),
        (lambda f: f.update(estimators_=3), "not iterable"),
        (lambda f: f.update(estimators_=[]), "a list of networks like the first, found 0"),
        (lambda f: f.update(estimators_=[1, 2]), "a list of networks like the first, found 2"),
        (lambda f: f["estimators_"].append(None), "a list of networks like the first, found 3"),
        (member(coefs_=[]), "from 6 features to 3 outputs"),
        (member(out_activation_="identity"), "out_activation_ 'softmax', found 'identity'"),
        (member(estimators_=[]), "a list of networks"),
        (lambda f: f.update(n_layers_=7), "from 6 features to 3 outputs"),
        (lambda f: f.update(n_features_in_=6.0), "n_features_in_ to be a count, found float"),
        (lambda f: f.update(loss_curve_="low"), "loss_curve_ to be a list of numbers, found str"),
        (
            lambda f: f.update(_best_weights=[]),
            "_best_weights to be two lists of arrays, found list",
        ),
        (lambda f: f.update(t_=-1), "t_ to be a count, found int"),
        (
            lambda f: f.update(feature_names_in_={"strings": ["a"], "is_object": True}),
            "from 6 features to 3 outputs",
        ),
    ],
)
def test_forged_attributes_are_refused_before_they_are_used(
    path: Path, change: Change, message: str
) -> None:
    MLPClassifier(n_ensemble=2, **FEW).fit(X, Y).save(path)
    rewrite(path, lambda header, arrays: change(header["fitted"]))
    with pytest.raises(FileFormatError, match=f"holds no MLPClassifier: .*{message}"):
        MLPClassifier.load(path)


def test_an_ensemble_that_was_interrupted_comes_back(path: Path) -> None:
    fitted = MLPRegressor(n_ensemble=3, **FEW).fit(X, Y)
    del fitted.estimators_[1:]
    fitted.save(path)
    np.testing.assert_array_equal(MLPRegressor.load(path).predict(X), fitted.predict(X))


def test_weights_that_are_not_finite_are_warned_of(path: Path) -> None:
    MLPClassifier(**FEW).fit(X, Y).save(path)
    rewrite(path, lambda header, arrays: arrays["coefs_/1"].fill(np.nan))
    with pytest.warns(DataWarning, match="holds NaN or infinity in coefs_/1$") as caught:
        MLPClassifier.load(path)
    assert [warning.filename for warning in caught] == [__file__]


def test_missing_and_broken_files_are_refused(path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist; expected an estimator file"):
        MLPClassifier.load(path)
    MLPClassifier(**FEW).fit(X, Y).save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError, match="no readable warpfit-estimator file"):
        MLPClassifier.load(path)
