"""ONNX files: what onnxruntime predicts with them is what the estimators predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.exceptions import NotFittedError

from warpfit.errors import ConfigError
from warpfit.estimators import MLPClassifier, MLPRegressor
from warpfit.estimators.recipes import ACTIVATIONS
from warpfit.nn import onnx_graph

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (16, 8),
    "learning_rate_init": 0.02,
    "max_iter": 5,
    "random_state": 0,
}
X, Y = make_classification(150, 7, n_informative=5, n_classes=3, random_state=0)
TOPICS = make_multilabel_classification(150, 7, n_classes=4, random_state=0)[1]
NAMES = np.array(["ant", "bee", "wasp"])


def run(fitted: Any, path: Path, rows: Array = X) -> dict[str, Array]:
    """Return what onnxruntime gives for rows, by the names of the outputs."""
    fitted.to_onnx(path)
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [(given.name, given.shape) for given in session.get_inputs()] == [
        ("X", ["N", rows.shape[1]])
    ]
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": rows.astype(np.float32)}), strict=True))


def assert_same_classification(fitted: MLPClassifier, found: dict[str, Array]) -> None:
    assert list(found) == ["label", "probabilities"]
    np.testing.assert_allclose(found["probabilities"], fitted.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(found["label"], fitted.predict(X))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tmp_path: Path, activation: str) -> None:
    fitted = MLPClassifier(activation=activation, **FEW).fit(X, Y)
    found = run(fitted, tmp_path / "net.onnx")
    assert_same_classification(fitted, found)
    assert found["probabilities"].dtype == np.float32


@pytest.mark.parametrize("n_ensemble", [1, 3])
@pytest.mark.parametrize(
    ("targets", "dtype"),
    [
        (Y, "int64"),
        (Y.astype(np.uint8) - 2, "int64"),
        (Y > 0, "bool"),
        (Y.astype(float), "float64"),
        (NAMES[Y], "object"),
        (NAMES.astype(object)[Y % 2], "object"),
        (np.zeros_like(Y), "int64"),
    ],
    ids=["three", "bytes", "bool", "float", "names", "two names", "one class"],
)
def test_classes(tmp_path: Path, targets: Array, dtype: str, n_ensemble: int) -> None:
    fitted = MLPClassifier(n_ensemble=n_ensemble, **FEW).fit(X, targets)
    found = run(fitted, tmp_path / "net.onnx")
    assert_same_classification(fitted, found)
    assert found["label"].dtype == dtype
    assert len(set(found["label"])) == len(set(targets))


@pytest.mark.parametrize("n_ensemble", [1, 2])
def test_several_labels(tmp_path: Path, n_ensemble: int) -> None:
    fitted = MLPClassifier(n_ensemble=n_ensemble, **FEW).fit(X, TOPICS)
    found = run(fitted, tmp_path / "net.onnx")
    assert_same_classification(fitted, found)
    assert found["label"].shape == TOPICS.shape
    assert found["label"].any()


@pytest.mark.parametrize("n_ensemble", [1, 2])
@pytest.mark.parametrize("targets", [Y, TOPICS], ids=["one", "four"])
@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_numbers(tmp_path: Path, loss: str, targets: Array, n_ensemble: int) -> None:
    fitted = MLPRegressor(loss, n_ensemble=n_ensemble, **FEW).fit(X, targets)
    found = run(fitted, tmp_path / "net.onnx")
    assert list(found) == ["variable"]
    expected = fitted.predict(X).reshape(len(X), -1)
    np.testing.assert_allclose(found["variable"], expected, rtol=1e-4, atol=1e-5)


def test_a_single_row_and_no_hidden_layer(tmp_path: Path) -> None:
    settings = {**FEW, "hidden_layer_sizes": ()}
    fitted = MLPClassifier(**settings).fit(X, Y)
    found = run(fitted, tmp_path / "net.onnx", X[:1])
    np.testing.assert_allclose(found["probabilities"], fitted.predict_proba(X[:1]), atol=1e-5)


def test_files_hold_little_more_than_the_weights(tmp_path: Path) -> None:
    fitted = MLPClassifier(activation="gelu", **FEW).fit(X, NAMES[Y])
    fitted.to_onnx(tmp_path / "net.onnx")
    weights = sum(array.size for array in fitted.coefs_ + fitted.intercepts_)
    assert (tmp_path / "net.onnx").stat().st_size < 4 * weights + 2500
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFittedError):
        MLPClassifier().to_onnx(tmp_path / "net.onnx")
    fitted = MLPClassifier(**FEW).fit(X, Y)
    with pytest.raises(ConfigError, match=r"cannot write .*No such file or directory"):
        fitted.to_onnx(tmp_path / "nowhere" / "net.onnx")
    fitted.classes_ = np.array(["2026-01", "2026-02", "2026-03"], "datetime64[M]")
    with pytest.raises(
        ConfigError, match="classes that are numbers or strings, got dtype datetime64"
    ):
        fitted.to_onnx(tmp_path / "net.onnx")
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 100)
    with pytest.raises(
        ConfigError, match=r"expected arrays of at most 100 bytes, .* got at least \d+"
    ):
        fitted.to_onnx(tmp_path / "net.onnx")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"to_onnx needs onnx: pip install 'warpfit\[onnx\]'"):
        fitted.to_onnx(tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []
