"""scikit-learn's checks of what an estimator must do, with few epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from warpfit import TabularClassifier, TabularRegressor

Check = Callable[[Any], None]

SMALL: dict[str, Any] = {"n_epochs": 24, "batch_size": 32, "device": "cpu"}
ROUNDED = {"check_methods_subset_invariance": "compares to 1e-7, float32's own precision"}


@pytest.mark.in_turns(3)
@parametrize_with_checks(
    [TabularClassifier(**SMALL), TabularRegressor(**SMALL)],
    expected_failed_checks=lambda estimator: ROUNDED,
)
def test_checks(estimator: Any, check: Check) -> None:
    check(estimator)
