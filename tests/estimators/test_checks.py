"""scikit-learn's checks of what an estimator must do: with few units here, with all defaults among
the slow tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import cases_on_a_gpu, on_gpu
from warpfit.estimators import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Check = Callable[[Any], None]

SMALL: dict[str, Any] = {"hidden_layer_sizes": 8, "learning_rate_init": 0.03, "max_iter": 40}


@pytest.mark.in_turns(27)
@parametrize_with_checks(
    [MLPClassifier(**SMALL), MLPRegressor(**SMALL), MLPClassifier(n_ensemble=2, **SMALL)],
)
def test_checks_with_few_units(estimator: Any, check: Check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        kind(max_iter=100, **settings)
        for kind in (MLPClassifier, MLPRegressor)
        for settings in (
            {},
            {"solver": "sgd", "learning_rate": "adaptive", "learning_rate_init": 0.02},
            {"solver": "adamw", "activation": "silu"},
            {"n_ensemble": 2},
        )
    ]
)
def test_checks(estimator: Any, check: Check) -> None:
    check(estimator)


# In less than float64, rows with weights and rows that are there twice come to the same but for
# rounding.
ROUNDED = {
    f"check_sample_weight_equivalence_on_{kind}_data": "compares to 1e-7, float32's own precision"
    for kind in ("dense", "sparse")
}


@pytest.mark.gpu
@on_gpu
@parametrize_with_checks(
    cases_on_a_gpu(
        [
            kind(device="cuda", **SMALL, **settings)
            for kind in (MLPClassifier, MLPRegressor)
            for settings in ({}, {"precision": "float32"}, {"precision": "float64"})
        ]
    ),
    expected_failed_checks=lambda estimator: {} if estimator.precision == "float64" else ROUNDED,
)
def test_checks_on_a_gpu(estimator: Any, check: Check) -> None:
    check(estimator)
