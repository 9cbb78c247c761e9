"""scikit-learn's checks of what an estimator must do, with few epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from warpfit import TabularClassifier, TabularRegressor

SMALL: dict[str, Any] = {
    "n_epochs": 24,
    "batch_size": 32,
    "hidden_layer_sizes": 32,
    "device": "cpu",
}
BAG = {**SMALL, "n_folds": 2, "n_ensemble": 2}
TABM = {**SMALL, "method": "tabm_ple", "hidden_layer_sizes": 16, "lr": 0.02}
# Compared to 1e-7, which is float32's own precision.
ROUNDED = "check_methods_subset_invariance"
# Rows that count twice are not rows that are there twice: batches and rows held out are others.
FAILED = "check_sample_weight_equivalence_on_dense_data"


# Those of TabM take longest.
@pytest.mark.in_turns(48)
@parametrize_with_checks([kind(**TABM) for kind in (TabularClassifier, TabularRegressor)])
def test_checks_of_tabm(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes(estimator, check, monkeypatch)


@pytest.mark.in_turns(12)
@parametrize_with_checks(
    [kind(**own) for own in (SMALL, BAG) for kind in (TabularClassifier, TabularRegressor)]
)
def test_checks(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes(estimator, check, monkeypatch)


def passes(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = check.func.__name__
    if not name.endswith("_train"):  # those hold scores against a limit
        estimator.set_params(n_epochs=8)
    if name == ROUNDED:
        nearly = partial(estimator_checks.assert_allclose, rtol=1e-5)
        monkeypatch.setattr(estimator_checks, "assert_allclose", nearly)
    if name == FAILED:
        with pytest.raises(AssertionError):
            check(estimator)
    else:
        check(estimator)
