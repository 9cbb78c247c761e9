"""Estimators in joblib's hands: its files, and its workers, which are threads or processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV

from warpfit.estimators import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]
Data = tuple[Array, Array]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "learning_rate_init": 0.03,
    "max_iter": 4,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def data() -> Data:
    return make_classification(120, 6, random_state=0)


@pytest.mark.parametrize("compress", [0, 3])
@pytest.mark.parametrize("n_ensemble", [1, 2])
@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_joblibs_files(
    data: Data, tmp_path: Path, kind: Any, n_ensemble: int, compress: int
) -> None:
    fitted = kind(n_ensemble=n_ensemble, **FEW).fit(*data)
    joblib.dump(fitted, tmp_path / "fitted.joblib", compress=compress)
    loaded = joblib.load(tmp_path / "fitted.joblib")
    np.testing.assert_array_equal(loaded.predict(data[0]), fitted.predict(data[0]))
    assert loaded.partial_fit(*data).loss_ == fitted.partial_fit(*data).loss_


def test_files_mapped_into_memory_serve_to_predict_and_to_go_on(data: Data, tmp_path: Path) -> None:
    fitted = MLPClassifier(**FEW).fit(*data)
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    mapped = joblib.load(tmp_path / "fitted.joblib", mmap_mode="r")
    assert isinstance(mapped.coefs_[0], np.memmap)
    np.testing.assert_array_equal(mapped.predict_proba(data[0]), fitted.predict_proba(data[0]))
    assert mapped.partial_fit(*data).loss_ == fitted.partial_fit(*data).loss_


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_workers_find_what_one_process_finds(data: Data, backend: str) -> None:
    grid = {"alpha": [1e-4, 1.0], "activation": ["tanh", "gelu"], "n_ensemble": [1, 2]}
    alone = GridSearchCV(MLPClassifier(**FEW), grid, cv=2).fit(*data)
    with joblib.parallel_backend(backend, n_jobs=2):
        together = GridSearchCV(MLPClassifier(**FEW), grid, cv=2, n_jobs=2).fit(*data)
    np.testing.assert_array_equal(
        together.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
    assert len(set(alone.cv_results_["mean_test_score"])) > 1
    np.testing.assert_array_equal(together.predict_proba(data[0]), alone.predict_proba(data[0]))


def test_threads_share_one_fitted_estimator(data: Data) -> None:
    fitted = MLPRegressor(**FEW).fit(*data)
    alone = fitted.predict(data[0])
    parallel = joblib.Parallel(4, backend="threading")
    for predicted in parallel(joblib.delayed(fitted.predict)(data[0]) for _ in range(20)):
        np.testing.assert_array_equal(predicted, alone)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("engine", ["layerwise", "one_launch"])
def test_threads_share_one_device(cuda: str, data: Data, engine: str) -> None:
    X, y = data[0].astype(np.float32), data[1]
    settings = {**FEW, "device": cuda, "engine": engine, "precision": "float32", "batch_size": 24}

    def fit(seed: int) -> Array:
        return MLPClassifier(**{**settings, "random_state": seed}).fit(X, y).predict_proba(X)

    alone = [fit(seed) for seed in range(4)]
    together = joblib.Parallel(4, backend="threading")(
        joblib.delayed(fit)(seed) for seed in range(4)
    )
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(alone[0], alone[1])


PREDICT = """
import sys
import joblib
from warpfit.errors import DeviceError
fitted, X, expected = joblib.load(sys.argv[1])
try:
    labels = fitted.predict(X)
except DeviceError as error:
    print("DeviceError:", error)
    labels = fitted.set_params(device="cpu").predict(X)
assert (labels == expected).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked_for", ["auto", pytest.param("cuda", marks=pytest.mark.slow)])
def test_fitted_on_a_device_and_loaded_without_one(
    cuda: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_for: str
) -> None:
    X, y = data[0].astype(np.float32), data[1]
    monkeypatch.setenv("WARPFIT_DEVICE", cuda)
    fitted = MLPClassifier(device=asked_for, n_ensemble=2, batch_size=40, **FEW).fit(X, y)
    sure = np.abs(fitted.predict_proba(X)[:, 0] - 0.5) > 0.01  # whatever the device's rounding
    assert sure.sum() > 60
    joblib.dump((fitted, X[sure], fitted.predict(X)[sure]), tmp_path / "fitted.joblib")
    environment = {name: value for name, value in os.environ.items() if name != "WARPFIT_DEVICE"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PREDICT, str(tmp_path / "fitted.joblib")],
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message = "DeviceError: expected a CUDA device for 'cuda:0', but "
    assert done.stdout.startswith(message if asked_for == "cuda" else "")
    assert bool(done.stdout) is (asked_for == "cuda")
