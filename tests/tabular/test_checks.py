"""scikit-learn's checks of what an estimator must do, with few epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from warpfit import TabularClassifier, TabularRegressor

Check = Callable[[Any], None]

SMALL: dict[str, Any] = {
    "n_epochs": 24,
    "batch_size": 32,
    "hidden_layer_sizes": 32,
    "device": "cpu",
}
BAG = {**SMALL, "n_folds": 2, "n_ensemble": 2}
TABM = {**SMALL, "method": "tabm_ple", "hidden_layer_sizes": 16, "lr": 0.02}
EXPECTED = {
    "check_methods_subset_invariance": "compares to 1e-7, float32's own precision",
    "check_sample_weight_equivalence_on_dense_data": "batches and rows held out are others",
}


@pytest.mark.in_turns(3)
@parametrize_with_checks(
    [kind(**own) for own in (SMALL, BAG, TABM) for kind in (TabularClassifier, TabularRegressor)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_checks(estimator: Any, check: Check) -> None:
    check(estimator)
