"""Full-batch training by SciPy's minimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit import losses, nn
from warpfit.errors import DataError, ShapeError
from warpfit.training import evaluate
from warpfit.training.lbfgs import fit_lbfgs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ RNG.normal(size=(4, 2)) + 1


def line(dtype: str = "float64") -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 2, seed=0, dtype=dtype))


def test_least_squares_are_found() -> None:
    model = line()
    result = fit_lbfgs(model, X, Y, loss="mse", tolerance=1e-9)
    solution, *_ = np.linalg.lstsq(np.c_[X, np.ones(60)], Y, rcond=None)
    np.testing.assert_allclose(np.vstack(list(model.state_dict().values())), solution, atol=1e-7)
    assert result.converged
    assert result.loss == pytest.approx(evaluate(model, X, Y).loss)
    assert model.loss == losses.MeanSquaredError()


def test_ridge_regression_is_found_with_weights() -> None:
    model, weights = nn.Sequential(nn.Linear(4, 1, seed=0, dtype="float64")), RNG.uniform(0, 2, 60)
    half = losses.MeanSquaredError(half=True)
    fit_lbfgs(model, X, Y[:, :1], loss=half, l2=3.0, sample_weight=weights, tolerance=1e-10)
    found = np.vstack(list(model.state_dict().values()))
    features, decay = np.c_[X, np.ones(60)], 3.0 * np.diag([1, 1, 1, 1, 0])
    weighted = features.T * weights
    # SciPy ends when the loss hardly falls, before the gradient is as small as it is asked to be.
    np.testing.assert_allclose(
        found, np.linalg.solve(weighted @ features + decay, weighted @ Y[:, :1]), atol=1e-3
    )


def test_class_weights_are_those_of_the_loss() -> None:
    labels, weights = Y.argmax(axis=1), (1.0, 5.0)
    by_class, by_row = line(), line()
    loss = losses.SoftmaxCrossEntropy(class_weight=weights)
    result = fit_lbfgs(by_class, X, labels, loss=loss, max_iterations=9)
    fit_lbfgs(by_row, X, labels, sample_weight=np.array(weights)[labels], max_iterations=9)
    assert result.loss == pytest.approx(evaluate(by_class, X, labels).loss)
    for name, found in by_class.state_dict().items():
        np.testing.assert_allclose(found, by_row.state_dict()[name], rtol=1e-6)


def test_class_weights_leave_a_row() -> None:
    loss = losses.SoftmaxCrossEntropy(class_weight=(1.0, 0.0))
    with pytest.raises(DataError, match="expected weights that leave a row to train or test on"):
        fit_lbfgs(line(), X, np.ones(len(X), int), loss=loss)


def test_iterations_are_told_and_limited() -> None:
    told: list[tuple[int, float]] = []
    settings: dict[str, Any] = {"loss": "mse", "tolerance": 0.0}
    result = fit_lbfgs(
        line(), X, Y, max_iterations=3, on_iteration=lambda *args: told.append(args), **settings
    )
    assert [number for number, _ in told] == [1, 2, 3]
    assert told[-1][1] == result.loss
    assert (result.num_iterations, result.converged) == (3, False)
    assert "LIMIT" in result.message
    assert fit_lbfgs(line(), X, Y, max_evaluations=2, **settings).num_iterations <= 2


def test_the_dtype_of_the_model_stays() -> None:
    single, double = line("float32"), line()
    for model in (single, double):
        fit_lbfgs(model, X, Y, loss="mse")
    assert single.dtype == "float32"
    np.testing.assert_allclose(
        single.state_dict()["0.weight"], double.state_dict()["0.weight"], atol=1e-4
    )


def test_bad_input() -> None:
    with pytest.raises(ShapeError, match="as many rows in y"):
        fit_lbfgs(line(), X, Y[:5], loss="mse")
    with pytest.raises(DataError, match="finite"):
        fit_lbfgs(line(), X * np.inf, Y, loss="mse")
