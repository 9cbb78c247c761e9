"""scikit-learn's own tests of its perceptrons, unmodified, on its own classes, which are trained
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from warpfit import accel

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("installed")]

SLOW = ("test_partial_fit_classification", "test_lbfgs_regression", "test_n_iter_no_change_inf")
TESTS = {
    name: test
    for name, test in vars(import_module("sklearn.neural_network.tests.test_mlp")).items()
    if name.startswith("test_")
}
# Of what no program reads: memory of the minimizer in one vector.
pytest.mark.xfail(reason="reads _coef_indptr", raises=AttributeError, strict=True)(
    TESTS["test_gradient"]
)
for _name in SLOW:
    pytest.mark.slow(TESTS[_name])
globals().update(TESTS)


@pytest.fixture
def global_random_seed() -> int:
    """What scikit-learn's configuration of pytest gives by default."""
    return 42


# What scikit-learn's own code refuses, or does as well.
FALLS_BACK = re.compile(r"ValueError: |a partial fit on the CPU; |AttributeError: .*validation_sc")


@pytest.fixture(autouse=True)
def trained_here(installed: None) -> Iterator[None]:
    """See to it that nothing falls back but what is meant to."""
    yield
    backs = [call.why for call in accel.report().calls if call.fell_back]
    assert [why for why in backs if not FALLS_BACK.match(why)] == []
