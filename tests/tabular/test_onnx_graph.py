"""ONNX files of tables: what onnxruntime predicts with them is what the estimators predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import ConfigError
from warpfit.nn import onnx_graph
from warpfit.tabular import onnx_tabm
from warpfit.tabular.quantiles import EDGE, QuantilePreprocessor

Array = npt.NDArray[Any]

METHODS = ("realmlp", "tabm", "tabm_ple")
FEW: dict[str, Any] = {
    "n_epochs": 3,
    "batch_size": 16,
    "hidden_layer_sizes": (8, 4),
    "random_state": 0,
    "device": "cpu",
}
ROWS = 60


def people() -> pd.DataFrame:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draws.integers(18, 80, ROWS).astype(float),
            "town": [f"town {idx % 12}" for idx in range(ROWS)],
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(range(ROWS), "D"),
            "member": draws.random(ROWS) < 0.5,
            "plan": pd.Categorical(draws.choice(["small", "large", "none"], ROWS)),
            "level": pd.Categorical(draws.integers(1, 4, ROWS)),
            "nothing": [None] * ROWS,
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[::5, "town"] = None
    return frame


def as_inputs(frame: pd.DataFrame) -> dict[str, Array]:
    """Return a frame as its graph takes it: what `to_onnx` documents."""
    days = (frame["since"] - pd.Timestamp(0)) / pd.Timedelta(days=1)
    numbers = {"age": frame["age"], "since": days}
    texts = {name: frame[name].astype(object) for name in frame.columns.difference([*numbers])}
    return {
        **{name: column.to_numpy(np.float32)[:, None] for name, column in numbers.items()},
        **{
            name: np.array([["" if pd.isna(cell) else str(cell)] for cell in column], object)
            for name, column in texts.items()
        },
    }


def run(fitted: Any, path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    """Return what onnxruntime gives, by the names of the outputs."""
    fitted.to_onnx(path)
    return run_file(path, inputs)


def run_file(path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert {given.name for given in session.get_inputs()} == set(inputs)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_folds", [None, 2])
@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes", "often"])[np.arange(ROWS) % 3],
        np.arange(ROWS) % 2,
        np.arange(ROWS) % 2 > 0,
        np.zeros(ROWS, int),
    ],
    ids=["names", "two", "bool", "one class"],
)
def test_classes_of_a_table_of_all_kinds(
    tmp_path: Path, labels: Array, n_folds: int | None, method: str
) -> None:
    frame = people()
    fitted = TabularClassifier(method, n_folds=n_folds, **FEW).fit(frame, labels)
    found = run(fitted, tmp_path / "net.onnx", as_inputs(frame))
    assert list(found) == ["label", "probabilities"]
    np.testing.assert_allclose(found["probabilities"], fitted.predict_proba(frame), atol=1e-5)
    np.testing.assert_array_equal(found["label"], fitted.predict(frame))
    assert found["probabilities"].dtype == np.float32


@pytest.mark.parametrize(
    ("method", "activation"),
    [*(("realmlp", name) for name in ("mish", "selu", "relu")), ("tabm", None), ("tabm_ple", None)],
)
def test_numbers_of_an_array(tmp_path: Path, method: str, activation: str | None) -> None:
    x = np.random.default_rng(2).normal(size=(ROWS, 3))
    x[::4, 1] = np.nan
    y = np.column_stack([100 * x[:, 0], x[:, 2] + 7])
    fitted = TabularRegressor(method, n_ensemble=2, activation=activation, **FEW).fit(x, y)
    x = np.concatenate([x, 9 * x]).astype(np.float32)  # also beyond what was trained on
    found = run(fitted, tmp_path / "net.onnx", {"X": x})
    np.testing.assert_allclose(found["variable"], fitted.predict(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_categories_alone_and_unknown_ones(tmp_path: Path, method: str) -> None:
    frame = people()[["town", "plan"]]
    fitted = TabularRegressor(method, **FEW).fit(frame, np.arange(ROWS))
    other = pd.DataFrame({"town": ["town 3", "elsewhere", None], "plan": ["small", None, "huge"]})
    inputs = {
        "town": np.array([["town 3"], ["elsewhere"], [""]], object),
        "plan": np.array([["small"], [""], ["huge"]], object),
    }
    found = run(fitted, tmp_path / "net.onnx", inputs)["variable"]
    np.testing.assert_allclose(found[:, 0], fitted.predict(other), rtol=1e-4)
    codes = TabularRegressor(method, **FEW).fit(frame[["town"]], np.arange(ROWS))
    found = run(codes, tmp_path / "net.onnx", {"town": inputs["town"]})["variable"]
    np.testing.assert_allclose(found[:, 0], codes.predict(other[["town"]]), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_columns_of_equal_numbers(tmp_path: Path, method: str) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    x[:, 1] = 5
    for some in (x, x[:, 1:2]):  # TabM takes none of the latter
        fitted = TabularRegressor(method, **FEW).fit(some, x[:, 0])
        found = run(fitted, tmp_path / "net.onnx", {"X": some})["variable"]
        np.testing.assert_allclose(found[:, 0], fitted.predict(some), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 9, 1000, 40_000])
def test_numbers_by_their_quantiles(tmp_path: Path, num_rows: int) -> None:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "normal": draws.normal(size=num_rows),
            # Quantiles nearer to each other than EDGE, at both ends.
            "low": 1e4 * np.maximum(0, draws.normal(size=num_rows)),
            "high": -1e4 * np.maximum(0, draws.normal(size=num_rows)),
            "tied": 1e9 * draws.integers(0, 5, num_rows),
            "tied and missing": np.where(draws.random(num_rows) < 0.3, np.nan, 1e12),
        }
    )
    preprocessor = QuantilePreprocessor(frame, np.arange(num_rows))
    ends = preprocessor.quantiles[[0, -1]]
    edges = np.concatenate([preprocessor.quantiles, ends - EDGE / 2, ends + EDGE / 2])
    cells = np.concatenate([frame, edges, 1e3 * frame, -frame, np.full((1, 5), np.nan)])
    graph = onnx_graph.Graph()
    normal = graph.add("Identity", onnx_tabm.normal_numbers(graph, preprocessor, "X"), output="Y")
    width = int(preprocessor.differ.sum())
    inputs, outputs = [graph.value("X", "DOUBLE", 5)], [graph.value(normal, "FLOAT", width)]
    graph.write(tmp_path / "net.onnx", "quantiles", inputs, outputs)
    found = run_file(tmp_path / "net.onnx", {"X": cells})["Y"]
    np.testing.assert_allclose(found, preprocessor.scaled(cells), rtol=1e-7, atol=1e-12)


def test_columns_without_names(tmp_path: Path) -> None:
    cells = np.array([[1.0, "a"], [2.0, "b"], [None, "c"], [4.0, None]] * 8, object)
    fitted = TabularRegressor(**FEW).fit(cells, np.arange(32))
    texts = [["" if cell is None else cell] for cell in cells[:, 1]]
    inputs = {"x0": cells[:, :1].astype(np.float32), "x1": np.array(texts, object)}
    found = run(fitted, tmp_path / "net.onnx", inputs)["variable"]
    np.testing.assert_allclose(found[:, 0], fitted.predict(cells), rtol=1e-4)


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(NotFittedError):
        TabularClassifier().to_onnx(path)
    frame = people()[["age", "plan"]].rename(columns={"age": "variable"})
    fitted = TabularRegressor(**FEW).fit(frame, np.arange(ROWS))
    with pytest.raises(ConfigError, match="no other value of the graph, got 'variable'"):
        fitted.to_onnx(path)
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="expected arrays of at most 100 bytes"):
        fitted.to_onnx(path)
    assert list(tmp_path.iterdir()) == []
