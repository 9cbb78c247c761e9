"""scikit-learn's own tests of its perceptrons, which are installed with it, on this package's.

They are imported with the two classes exchanged in the namespace that they import them from.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from unittest import mock

import pytest
import sklearn.neural_network

from warpfit.estimators import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore")

THEIRS = "sklearn.neural_network.tests.test_mlp"

# What scikit-learn's tests look at that is no part of its interface, nor of ours.
PRIVATE = {
    "test_gradient": (
        "calls _loss_grad_lbfgs; `warpfit gradcheck` and its tests compare our "
        "gradients with differences"
    ),
    "test_learning_rate_warmstart": (
        "reads _optimizer.learning_rate; test_against_sklearn.py compares what it leads to"
    ),
    "test_adaptive_learning_rate": (
        "reads _optimizer.learning_rate; test_against_sklearn.py compares what it leads to"
    ),
}

# Long ones; `tests/accel` trains the last three as well.
SLOW = (
    *("test_partial_fit_classification", "test_lbfgs_regression", "test_n_iter_no_change_inf"),
    "test_partial_fit_regression",
    "test_mlp_loading_from_joblib_partial_fit",
    "test_multilabel_classification",
)


def exchanged() -> ModuleType:
    """Return a module of its own with the tests of scikit-learn, made for our classes."""
    original = sys.modules.pop(THEIRS, None)
    ours = {"MLPClassifier": MLPClassifier, "MLPRegressor": MLPRegressor}
    try:
        with mock.patch.multiple(sklearn.neural_network, **ours):
            return importlib.import_module(THEIRS)
    finally:
        sys.modules.pop(THEIRS, None)
        if original is not None:
            sys.modules[THEIRS] = original


def public_and_private(module: ModuleType) -> dict[str, object]:
    """Return the tests of a module by name; those that reach for private names are expected to
    fail.
    """
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    for name, reason in PRIVATE.items():
        pytest.mark.xfail(reason=reason, raises=AttributeError, strict=True)(tests[name])
    for name in SLOW:
        pytest.mark.slow(tests[name])
    return tests


globals().update(public_and_private(exchanged()))


@pytest.fixture
def global_random_seed() -> int:
    """What scikit-learn's configuration of pytest gives by default."""
    return 42
