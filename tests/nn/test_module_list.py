from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import nn
from warpfit.errors import ConfigError


class Stack(nn.Module):
    def __init__(self, depth: int) -> None:
        self.blocks = nn.ModuleList(nn.Linear(4, 4, seed=idx) for idx in range(depth))
        self.head = nn.Linear(4, 2, seed=9)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_its_parameters_belong_to_its_owner_by_number() -> None:
    names = [name for name, _ in Stack(2).named_parameters()]
    assert names == [
        *("blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias"),
        *("head.weight", "head.bias"),
    ]


def test_it_is_a_sequence() -> None:
    first, second, third = (nn.Linear(2, 2) for _ in range(3))
    found = nn.ModuleList([first]).append(second).extend([third])
    assert list(found) == [first, second, third]
    assert len(found) == 3
    assert found[-1] is third


def test_a_module_with_a_list_trains_and_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 4)).astype(np.float32), rng.integers(0, 2, 64)
    model = Stack(2)
    before = model.state_dict()
    history = wf.fit(
        model, x, y, optimizer=wf.optim.Adam(model.parameters(), 0.01), epochs=5, verbose=False
    )
    assert history.plan.engine == "layerwise"
    assert history["loss"][-1] < history["loss"][0]
    after = model.state_dict()
    assert all((after[name] != before[name]).any() for name in before)
    other = Stack(2)
    other.load_state_dict(after)
    np.testing.assert_array_equal(other(x), model(x))


@pytest.mark.parametrize("modules", [[nn.ReLU(), 3], ["layer"], 5, nn.ReLU])
def test_refuses_what_are_no_modules(modules: Any) -> None:
    with pytest.raises(ConfigError, match="ModuleList: expected"):
        nn.ModuleList(modules)


def test_an_error_adds_nothing() -> None:
    found = nn.ModuleList([nn.ReLU()])
    with pytest.raises(ConfigError, match="expected modules, got 1"):
        found.extend([nn.Tanh(), 1])  # type: ignore[list-item]
    assert len(found) == 1


def test_it_has_no_forward() -> None:
    with pytest.raises(NotImplementedError, match="ModuleList defines no forward"):
        nn.ModuleList([nn.ReLU()])(np.zeros((1, 2)))
