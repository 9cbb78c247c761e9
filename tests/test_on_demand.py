"""Attributes that are made when they are first asked for."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest

from warpfit import backends, nn, optim
from warpfit.nn.init import initial_values
from warpfit.on_demand import OnDemand, imported_later, imports_on_demand
from warpfit.training.state import state_of


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


def test_threads_may_ask_at_once() -> None:
    number, made = promised("value", "other")
    make, all_ask = number._promises["value"], Barrier(4)
    number.promise(lambda: (sleep(0.01), make())[1], "value", "other")

    def ask(name: str) -> Any:
        all_ask.wait()
        return getattr(number, name)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, ("value", "other", "value", "other"))) == [2] * 4
    assert made == [2]


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
    later = nn.Linear(3, 4, init=init, seed=5)
    assert later.weight.promised("data") is not None
    assert (later.dtype, later.device) == ("float32", "cpu")
    assert later.weight.promised("data") is not None
    for idx, (name, spec) in enumerate(later.spec.parameters().items()):
        values = initial_values(spec, init, 5, idx)
        np.testing.assert_array_equal(later.state_dict()[name], values.astype(np.float32))


def test_initial_values_are_drawn_where_a_run_is(cuda: str) -> None:
    model, ops = nn.Sequential(nn.Linear(20, 30, seed=5)), backends.get(cuda)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    state = state_of(model, optimizer, ops, "float32", seed=0)
    drawn = ops.to_numpy(state.parameters["0.weight"])
    assert model[0].weight.promised("data") is not None
    np.testing.assert_array_equal(drawn, model[0].weight.data)


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


LATER = """
import sys
from warpfit.on_demand import imported_later
with imported_later("scipy.stats"):
    import sklearn.base
    stood_in = sys.modules["scipy.stats"]
assert "scipy.stats" not in sys.modules
"""


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    "use",
    [
        "from sklearn.utils.fixes import _mode; assert _mode([1, 1, 2]).mode[0] == 1",
        "import scipy; assert scipy.stats.norm.cdf(0) == 0.5",
        "import scipy.stats; assert scipy.stats.norm.cdf(0) == 0.5",
        "from scipy import stats; assert stats.norm.cdf(0) == 0.5",
        "import sklearn.preprocessing; assert 'scipy.stats' in sys.modules",
        "assert stood_in.norm.cdf(0) == 0.5 and sys.modules['scipy.stats'] is not stood_in",
    ],
)
def test_a_module_of_others_is_imported_when_it_is_asked_for(use: str) -> None:
    subprocess.run([sys.executable, "-c", LATER + use], check=True, timeout=60)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    "use",
    [
        "import scipy.stats; assert scipy.stats.norm.cdf(0) == 0.5",
        "from scipy.stats import norm; assert norm.cdf(0) == 0.5",
        "from scipy.stats.distributions import norm; assert norm.cdf(0) == 0.5",
    ],
)
def test_so_it_is_in_the_block(use: str) -> None:
    code = f"""
import scipy, sys
from warpfit.on_demand import imported_later
with imported_later("scipy.stats"):
    {use}
    real = sys.modules["scipy.stats"]
assert sys.modules["scipy.stats"] is real is scipy.stats
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_module_that_is_there_stays() -> None:
    with imported_later("warpfit.nn"):
        assert sys.modules["warpfit.nn"] is nn
    assert sys.modules["warpfit.nn"] is nn


def test_a_module_that_fails_to_import_leaves_no_trace() -> None:
    with pytest.raises(ModuleNotFoundError), imported_later("warpfit.nowhere"):
        sys.modules["warpfit.nowhere"].anything  # noqa: B018
    assert "warpfit.nowhere" not in sys.modules
