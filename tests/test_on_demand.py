"""Attributes that are made when they are first asked for."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpfit import nn
from warpfit.nn.init import initial_values_on_demand
from warpfit.on_demand import OnDemand, imports_on_demand


class Number(OnDemand):
    def __init__(self) -> None:
        self.value: Any = 1


def promised(*names: str) -> tuple[Number, list[int]]:
    number, made = Number(), list[int]()

    def make() -> dict[str, int]:
        made.append(2)
        return dict.fromkeys(names, 2)

    number.promise(make, *names)
    return number, made


def test_they_are_made_once() -> None:
    number, made = promised("value", "other")
    assert number.promised("value") is not None
    assert not made
    assert (number.value, number.other, made) == (2, 2, [2])
    assert number.promised("value") is None


def test_what_is_set_voids_the_promise() -> None:
    number, made = promised("value", "other")
    number.value = 3
    assert number.promised("value") is None
    assert (number.other, number.value) == (2, 3)
    again, made = promised("value")
    again.value = 3
    again.void_promises()
    assert (again.value, vars(again), made) == (3, {"value": 3}, [])


def test_an_attribute_that_is_not_there_is_missed() -> None:
    number, _ = promised("value")
    with pytest.raises(AttributeError, match="'Number' object has no attribute 'nothing'"):
        number.nothing  # noqa: B018
    number.void_promises()
    assert number.promised("value") is not None


def test_copies_have_all_attributes() -> None:
    for copied in (copy.deepcopy, copy.copy, lambda value: pickle.loads(pickle.dumps(value))):
        number, made = promised("value")
        assert vars(copied(number)) == {"value": 2}
        assert made == [2]


@pytest.mark.parametrize("init", ["default", "lecun_normal"])
def test_initial_values_on_demand_are_the_same(init: str) -> None:
    at_once = nn.Linear(3, 4, init=init, seed=5)
    with initial_values_on_demand():
        later = nn.Linear(3, 4, init=init, seed=5)
    assert later.weight.promised("data") is not None
    assert later.dtype == "float32"
    assert later.weight.promised("data") is not None
    for name, values in at_once.state_dict().items():
        np.testing.assert_array_equal(later.state_dict()[name], values)


def test_a_package_imports_what_is_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("__all__ = ['bread', 'bakery']")
    (package / "bakery.py").write_text("bread = object()")
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop")
    get_attribute, names = imports_on_demand("shop", {"bakery": ("bread",), "butcher": ("ham",)})
    assert "shop.bakery" not in sys.modules
    bread = get_attribute("bread")
    assert shop.bread is bread is get_attribute("bakery").bread
    assert names() == ["bread", "bakery"]
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'milk'"):
        get_attribute("milk")
    with pytest.raises(ModuleNotFoundError, match=r"shop\.butcher"):
        get_attribute("ham")
