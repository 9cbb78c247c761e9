from __future__ import annotations

import numpy as np
import pytest

from warpfit.autograd import Tensor, concatenate
from warpfit.backends.activations import ACTIVATIONS
from warpfit.gradcheck import check_module, distinct_values
from warpfit.nn import Module, Parameter
from warpfit.tabular.layers import (
    Embedding,
    NTKLinear,
    ParametricActivation,
    PeriodicEmbedding,
    Scale,
    TabularLayer,
)
from warpfit.tabular.network import Columns, RealMLP

DTYPE = "float64"
ROWS = 3


class Joined(Module):
    """Codes beside numbers, as a network has them: codes have no derivative."""

    def __init__(self) -> None:
        self.inner = Embedding((3, 4), DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        codes = Tensor(np.array([[0.0, 3.0], [2.0, 0.0], [2.0, 3.0]]))
        return self.inner(codes) * x.sum()


MODULES: dict[str, tuple[Module, int]] = {
    "scale": (Scale(4, DTYPE), 4),
    "linear": (NTKLinear(4, 5, DTYPE), 4),
    "selu": (ParametricActivation("selu", 4, DTYPE), 4),
    "mish": (ParametricActivation("mish", 4, DTYPE), 4),
    "periodic": (PeriodicEmbedding(2, DTYPE), 2),
    "embedding": (Joined(), 2),
}


def with_values(module: Module) -> Module:
    """Give a module parameters of which no two entries are equal."""
    parameters = module.parameters()
    values = distinct_values(*(each.shape for each in parameters), seed=1)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data[...] = value
    return module


@pytest.mark.parametrize("name", MODULES)
def test_gradients(name: str) -> None:
    module, size = MODULES[name]
    (x,) = distinct_values((ROWS, size))
    result = check_module(with_values(module), Tensor(x, requires_grad=True), lambda y: y)
    assert result.passed, (result.worst_entry, result.worst_error)


def test_gradients_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpfit.tabular.network.HIDDEN", (5, 4))
    network = with_values(RealMLP(Columns(2, 1, (3,)), 2, "mish", seed=3, dtype=DTYPE))
    assert isinstance(network, RealMLP)
    network.train().p = 0.4
    (numbers,) = distinct_values((ROWS, 3))
    # Of codes there is no derivative: differences by them would be jumps.
    codes = np.array([[0.0], [2.0], [1.0]])
    whole = Whole(network, codes)
    result = check_module(whole, Tensor(numbers, requires_grad=True), lambda y: y)
    assert result.passed, (result.worst_entry, result.worst_error)


class Whole(Module):
    """A network whose codes are given."""

    def __init__(self, network: RealMLP, codes: np.ndarray) -> None:
        self.network, self.code_values = network, codes

    def forward(self, x: Tensor) -> Tensor:
        return self.network(concatenate([x, Tensor(self.code_values)], axis=1))


def test_linear_divides_by_the_root_of_its_inputs() -> None:
    layer = with_values(NTKLinear(4, 5, DTYPE))
    (x,) = distinct_values((ROWS, 4))
    expected = x @ layer.weight.data / 2 + layer.bias.data  # type: ignore[attr-defined]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-14)


@pytest.mark.parametrize(("name", "weight"), [("selu", 0.0), ("selu", 1.0), ("mish", 0.3)])
def test_activation_is_between_x_and_f(name: str, weight: float) -> None:
    layer = ParametricActivation(name, 4, DTYPE)
    layer.weight.data[:] = weight
    (x,) = distinct_values((ROWS, 4))
    f = ACTIVATIONS[name].forward(x, 0.0, np.empty_like(x))
    np.testing.assert_allclose(layer(x), (1 - weight) * x + weight * f, rtol=1e-13, atol=1e-15)


def test_periodic_embedding_has_three_numbers_of_waves_and_the_number() -> None:
    layer = with_values(PeriodicEmbedding(2, DTYPE))
    assert isinstance(layer, PeriodicEmbedding)
    (x,) = distinct_values((ROWS, 2))
    found = np.asarray(layer(x)).reshape(ROWS, 4, 2)
    for idx in range(2):
        angles = 2 * np.pi * x[:, idx, None] * layer.frequency.data[idx] + layer.phase.data[idx]
        made = np.cos(angles) @ layer.weight.data[:, idx].T + layer.bias.data[:, idx]
        np.testing.assert_allclose(found[:, :3, idx], made, rtol=1e-12)
    np.testing.assert_array_equal(found[:, 3], x)


def test_embedding_of_several_columns() -> None:
    layer = with_values(Embedding((3, 4), DTYPE))
    assert isinstance(layer, Embedding)
    found = layer(np.array([[2.0, 0.0], [0.0, 3.0]]))
    weight = layer.weight.data
    np.testing.assert_array_equal(found, [[*weight[2], *weight[3]], [*weight[0], *weight[6]]])


@pytest.mark.parametrize("kind", TabularLayer.__subclasses__())
def test_every_parameter_has_factors(kind: type[TabularLayer]) -> None:
    (layer,) = [
        part
        for part in RealMLP(Columns(1, 0, (3,)), 1, "selu").named_modules()
        if type(part[1]) is kind
    ][:1]
    names = [name for name, value in vars(layer[1]).items() if isinstance(value, Parameter)]
    assert sorted(names) == sorted(kind.factors)
