"""What the parameters of estimators for tables may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit.errors import ConfigError
from warpfit.tabular.parameters import one_device


@pytest.mark.parametrize("device", [["cpu", "cpu"], "cuda:all", "cuda:0,cuda:1", ["cuda:all"], []])
def test_a_fit_takes_one_device(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected one device, .* several are for `SweepCV`"):
        one_device(device)


def test_a_list_of_one_is_one() -> None:
    x, y = np.random.default_rng(0).random((40, 2)), np.arange(40) % 2
    one, same = (
        wf.TabularClassifier(n_epochs=1, random_state=0, device=device).fit(x, y)
        for device in ("cpu", ["cpu"])
    )
    np.testing.assert_array_equal(one.predict_proba(x), same.predict_proba(x))
