"""Searches of ours beside scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same_search(ours: Any, theirs: Any) -> None:
    """Assert that two searches hold the same, to the bit, but for times."""
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    for key, values in theirs.cv_results_.items():
        assert len(ours.cv_results_[key]) == len(values)
        if "time" not in key:
            np.testing.assert_array_equal(ours.cv_results_[key], values, err_msg=key)
    fitted = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    assert fitted | {"place_"} == {
        name for name in vars(ours) if name.endswith("_") and not name.startswith("_")
    }
    for name in ("best_index_", "best_params_", "best_score_", "n_splits_", "multimetric_"):
        assert getattr(ours, name, None) == getattr(theirs, name, None)
