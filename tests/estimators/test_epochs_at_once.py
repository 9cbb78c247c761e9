"""An engine may train epochs at once while no rule of scikit-learn's can end the run, and comes to
the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import make_classification

from support.at_once import AtOnce
from warpfit.engines import launch_run, pace
from warpfit.engines.layerwise import Layerwise
from warpfit.estimators import MLPClassifier
from warpfit.training import Callback
from warpfit.training.plan import ENGINES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]
Data = tuple[Array, Array]


class Looks(Callback):
    """Looks at every epoch, and so lets none be trained at once."""

    def on_epoch_end(self, run: Any) -> None:
        assert run.report.epoch == run.state.epoch


class Waits(Callback):
    """Takes down the epochs whose state is still there when they are reported."""

    needs_run = False

    def __init__(self) -> None:
        self.borders: list[int] = []

    def on_epoch_end(self, run: Any) -> None:
        if run.report.epoch == run.state.epoch:
            self.borders.append(run.report.epoch)


@pytest.fixture(scope="module")
def data() -> Data:
    X, y = make_classification(120, 6, random_state=0)
    return X.astype(np.float32), y


def assert_same_fit(one: MLPClassifier, other: MLPClassifier) -> None:
    assert one.loss_curve_ == other.loss_curve_
    assert one._no_improvement_count == other._no_improvement_count
    for own, expected in zip(
        one.coefs_ + one.intercepts_, other.coefs_ + other.intercepts_, strict=True
    ):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"tol": 0.003},
        {"solver": "sgd", "learning_rate": "adaptive", "tol": 0.02, "learning_rate_init": 0.3},
        {"early_stopping": True},
        {"n_iter_no_change": np.inf, "max_iter": 30},
        {"warm_start": True, "max_iter": 7},
    ],
    ids=["tolerance", "adaptive", "early stopping", "never", "warm start"],
)
def test_the_same_fit(
    data: Data, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    few = {
        "hidden_layer_sizes": (8,),
        "learning_rate_init": 0.02,
        "n_iter_no_change": 4,
        "random_state": 0,
    }
    waits = Waits()
    fits = []
    for engine, callback in ((Layerwise, Looks()), (AtOnce, waits)):
        monkeypatch.setitem(ENGINES, "layerwise", engine)
        estimator = MLPClassifier(callbacks=[callback], **(few | settings))
        for _ in range(3 if "warm_start" in settings else 1):
            estimator.fit(*data)
        fits.append(estimator)
    assert_same_fit(*fits)
    epochs = len(fits[0].loss_curve_)
    if "early_stopping" in settings:  # each epoch's weights are scored
        assert len(waits.borders) == epochs
    else:
        assert 0 < len(waits.borders) < epochs / 2
    if fits[0].n_iter_no_change < np.inf and "warm_start" not in settings:
        assert fits[0].n_iter_ < fits[0].max_iter  # the rule did end it


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("tol", "epochs", "expected"),
    [
        (0.5, 5, [0, 1]),
        (0.0, 12, [0, 1, 5, 9]),
    ],  # no epoch is better by 0.5 than the first; all get better
)
def test_fewer_launches(
    cuda: str,
    data: Data,
    monkeypatch: pytest.MonkeyPatch,
    tol: float,
    epochs: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", 1e9)  # an emulated epoch is slow
    launches: list[int] = []
    launch = launch_run.Run._launch

    def counted(self: Any) -> Any:
        launches.append(self.state.epoch)
        return launch(self)

    monkeypatch.setattr(launch_run.Run, "_launch", counted)
    settings = {
        "hidden_layer_sizes": (8,),
        "n_iter_no_change": 3,
        "tol": tol,
        "max_iter": 12,
        "random_state": 0,
    }
    fits, counts = [], []
    for callbacks in ([Looks()], []):
        launches.clear()
        X, y = data[0][:32], data[1][:32]
        estimator = MLPClassifier(device=cuda, engine="one_launch", callbacks=callbacks, **settings)
        fits.append(estimator.fit(X, y))
        counts.append(list(launches))
    assert_same_fit(*fits)
    assert fits[0].n_iter_ == epochs
    assert counts == [list(range(epochs)), expected]
