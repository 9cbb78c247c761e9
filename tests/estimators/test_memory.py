"""Memory: how much prediction takes, and what is said where there is not enough."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from sklearn.datasets import make_classification

from emulator.build import gxx_missing
from emulator.runtime import EmulatedRuntime, Memory
from warpfit.backends.cuda import runtime
from warpfit.errors import ConfigError, DeviceError
from warpfit.estimators import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "batch_size": 16,
    "max_iter": 2,
    "random_state": 0,
}
MIB = 1 << 20


# -- on the host
# ---------------------------------------------------------------------------------------------


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("n_ensemble", [1, 2])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, sparse.csc_array])
def test_predictions_come_some_rows_at_a_time(
    container: Callable[[Array], Any], n_ensemble: int
) -> None:
    """All rows at once would take 160 MiB for the hidden layer, and X 16 MiB where it is sparse."""
    settings = {**FEW, "hidden_layer_sizes": (512,), "n_ensemble": n_ensemble}
    rows = np.zeros((40_000, 50))
    rows[:, 0] = np.linspace(-1, 1, len(rows))
    fitted = MLPClassifier(**settings).fit(rows[::1000], np.arange(40) % 3)
    X = container(rows)
    fitted.predict_proba(X[:10])
    tracemalloc.start()
    probabilities = fitted.predict_proba(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (20 if container is np.asarray else 32) * MIB
    np.testing.assert_allclose(probabilities[::8000], fitted.predict_proba(X[::8000]), rtol=1e-12)


def test_the_backend_is_handed_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = []
    monkeypatch.setattr("warpfit.estimators.predictions.FEW_PRODUCTS", 0)
    evaluate = sys.modules["warpfit.training.evaluate"]
    moved = evaluate.moved
    monkeypatch.setattr(
        evaluate, "moved", lambda rows, *rest: moved(handed.append(len(rows)) or rows, *rest)
    )
    X = np.random.default_rng(0).normal(size=(5000, 3))
    MLPRegressor(**FEW).fit(X[:50], X[:50, 0]).predict(X)
    assert sum(handed) == 5000
    assert max(handed) <= 1024


def test_more_units_than_the_host_has_memory_for() -> None:
    regressor = MLPRegressor(hidden_layer_sizes=(10**13,))
    with pytest.raises(
        ConfigError,
        match=(
            r"^hidden_layer_sizes: .* a weight of shape \(2, 10000000000000\), which takes "
            r"149,011.6 GiB"
        ),
    ):
        regressor.fit([[0.0, 1.0]], [1.0])


# -- on a device
# ---------------------------------------------------------------------------------------------


class NarrowRuntime(EmulatedRuntime):
    """A device with some bytes of memory, of which arrays give theirs back as they go.

    Parameters
    ----------
    most : int
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.name, self.most, self.used, self.peak = "cuda:0", most, 0, 0

    def memory_info(self) -> tuple[int, int]:
        return self.most - self.used, self.most

    def allocate(self, nbytes: int) -> Memory:
        """Return memory, or raise the error of the CUDA backend's runtime."""
        if nbytes > self.most - self.used:
            raise DeviceError(
                f"out of memory on {self.name}: asked for {nbytes}, {self.most - self.used} free"
            )
        memory = super().allocate(nbytes)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        weakref.finalize(memory, self._give_back, nbytes)
        return memory

    def _give_back(self, nbytes: int) -> None:
        self.used -= nbytes


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> NarrowRuntime:
    if (missing := gxx_missing()) is not None:
        pytest.skip(missing)
    device = NarrowRuntime(1 << 40)
    monkeypatch.setitem(runtime._OPEN, 0, device)
    return device


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    X, y = make_classification(64, 20, n_classes=2, random_state=0)
    return X.astype(np.float32), y


SETTINGS: dict[str, dict[str, Any]] = {
    "layerwise": {"engine": "layerwise"},
    "one_launch": {"engine": "one_launch"},
    "early stopping": {"engine": "layerwise", "early_stopping": True, "validation_fraction": 0.25},
    "lbfgs": {"solver": "lbfgs"},
    "ensemble": {"n_ensemble": 2},
}


# By the device, by `layerwise` of what would have to be streamed, and by `one_launch` of what that
# needs at least.
TOLD = r"^out of memory on cuda:0: asked for|data that cuda:0 has room for|bytes for single batches"


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("settings", SETTINGS)
def test_wherever_memory_runs_out_it_is_said(
    narrow: NarrowRuntime, data: tuple[Array, Array], settings: str
) -> None:
    def fit() -> MLPClassifier:
        return MLPClassifier(device="cuda", **{**FEW, **SETTINGS[settings]}).fit(*data)

    expected = fit().predict_proba(data[0])
    gc.collect()
    needed, before = narrow.peak, narrow.used
    told = []
    for share in (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95):
        narrow.most = before + int(share * (needed - before))
        try:
            # What one_launch has no room for it trains on in pieces.
            np.testing.assert_allclose(fit().predict_proba(data[0]), expected, atol=1e-2)
        except (DeviceError, ConfigError) as error:
            told.append(str(error))
    for message in told:
        assert re.search(TOLD, message)
    assert len(told) >= (2 if settings in ("one_launch", "ensemble") else 8)
    gc.collect()
    assert narrow.used <= before
    narrow.most = 1 << 40
    np.testing.assert_array_equal(fit().predict_proba(data[0]), expected)


def test_what_has_no_room_on_the_device_is_fitted_on_the_host(
    narrow: NarrowRuntime, data: tuple[Array, Array]
) -> None:
    narrow.most = 100
    classifier = MLPClassifier(device="cuda", **FEW)
    with pytest.raises(DeviceError, match=r"^out of memory"):
        classifier.fit(*data)
    fitted = classifier.set_params(device="cpu").fit(*data)
    expected = MLPClassifier(device="cpu", **FEW).fit(*data)
    np.testing.assert_array_equal(fitted.predict_proba(data[0]), expected.predict_proba(data[0]))
