"""Search spaces, and searches over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import ParameterSampler

import warpfit as wf
from warpfit.errors import ConfigError

TINY: dict[str, Any] = {"n_epochs": 2, "random_state": 0, "device": "cpu"}


def table() -> tuple[pd.DataFrame, np.ndarray]:
    x = np.random.default_rng(0).normal(size=40)
    return pd.DataFrame({"x": x, "plan": list("abcd") * 10}), x > 0


def test_spaces_are_those_of_the_authors() -> None:
    drawn = list(ParameterSampler(wf.tabular.search_space("realmlp"), 400, random_state=0))
    values = {name: [each[name] for each in drawn] for name in drawn[0]}
    assert 0.02 <= min(values["lr"]) < 0.03
    assert 0.2 < max(values["lr"]) <= 0.3
    assert 0.05 <= min(values["frequency_scale"]) < max(values["frequency_scale"]) <= 0.5
    assert np.mean(np.array(values["dropout"]) == 0.15) == pytest.approx(0.5, abs=0.08)
    assert np.mean(np.array(values["label_smoothing"]) == 0.1) == pytest.approx(0.7, abs=0.08)
    large = [sizes == (256,) * 3 for sizes in values["hidden_layer_sizes"]]
    assert np.mean(large) == pytest.approx(0.6, abs=0.08)
    of_numbers = wf.tabular.search_space("realmlp", task="regression")
    assert values.keys() - of_numbers.keys() == {"label_smoothing"}
    assert of_numbers.keys() <= wf.TabularRegressor().get_params().keys()


def test_the_space_of_tabm() -> None:
    for method, task in (("tabm", "classification"), ("tabm_ple", "regression")):
        drawn = list(ParameterSampler(wf.tabular.search_space(method, task=task), 400))
        assert all(1e-4 <= each["lr"] <= 3e-3 and 0 <= each["dropout"] <= 0.5 for each in drawn)
        assert {len(set(each["hidden_layer_sizes"])) for each in drawn} == {1}
        assert {len(each["hidden_layer_sizes"]) for each in drawn} == {2, 3, 4, 5}
        assert drawn[0].keys() <= wf.TabularRegressor().get_params().keys()


def test_refuses_unknown_ones() -> None:
    with pytest.raises(ConfigError, match=r"expected method among realmlp.*, got 'forest'"):
        wf.tabular.search_space("forest")
    with pytest.raises(ConfigError, match="expected task among classification, regression, got 1"):
        wf.tabular.search_space("realmlp", task=1)  # type: ignore[arg-type]
