from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative
from warpfit import Tensor
from warpfit.backends import Array, Backend, NumpyBackend
from warpfit.errors import ShapeError
from warpfit.nn import Buffer, Layer, Linear, Module, Parameter, Sequential, Tanh
from warpfit.nn.spec import Call, LayerSpec, Pullback
from warpfit.nn.taped import TapedNetwork

OPS = NumpyBackend()


class Residual(Module):
    """y = head(x + tanh(inner(x)) · scale + offset); `spare` is never used."""

    def __init__(self, width: int = 4) -> None:
        self.inner = Sequential(Linear(width, width, seed=0), Tanh())
        self.scale = Parameter(np.linspace(1, 2, width))
        self.spare = Parameter(np.ones((2, 3)))
        self.offset = Buffer(np.ones(width))
        self.head = Linear(width, 3, seed=1)
        self.to(dtype="float64")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x) * self.scale + self.offset.data)


@dataclass(frozen=True)
class StepSpec(LayerSpec):
    """y = x + the step's number in training, else x; numbered as dropout layers are."""

    layer_idx: int = 0

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
    ) -> tuple[Array, Pullback]:
        return x + call.step * call.training, lambda dy: (dy, {})


def arrays_of(module: Module) -> dict[str, Array]:
    return {name: holder.data.copy() for name, holder in module.named_arrays().items()}


def batch(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def test_vjp_is_the_derivative() -> None:
    module = Residual()
    network, arrays, x, dy = (
        TapedNetwork(module, (4,)),
        arrays_of(module),
        batch(6, 4),
        batch(6, 3, seed=1),
    )
    y, pullback = network.vjp(OPS, arrays, x, Call())
    np.testing.assert_array_equal(y, module(x))
    gradients = pullback(dy)
    assert gradients.keys() == dict(module.named_parameters()).keys()
    for name, gradient in gradients.items():

        def value(changed: Array, name: str = name) -> Any:
            return np.vdot(dy, network.vjp(OPS, arrays | {name: changed}, x, Call())[0])

        assert_derivative(gradient, value, arrays[name])


def test_a_parameter_that_is_not_used_gets_zeros() -> None:
    module = Residual()
    _, pullback = TapedNetwork(module, (4,)).vjp(OPS, arrays_of(module), batch(6, 4), Call())
    spare = pullback(batch(6, 3))["spare"]
    np.testing.assert_array_equal(spare, np.zeros((2, 3)))
    assert spare.dtype == "float64"


def test_vjp_computes_with_the_arrays_it_is_given() -> None:
    module, x = Residual(), batch(6, 4)
    arrays = arrays_of(module)
    before = module(x)
    arrays["offset"] += 1
    arrays["head.bias"] -= 1
    y, _ = TapedNetwork(module, (4,)).vjp(OPS, arrays, x, Call())
    np.testing.assert_allclose(y, before + module.head.weight.data.sum(axis=0) - 1, rtol=1e-12)
    assert all(holder.data is arrays[name] for name, holder in module.named_arrays().items())


def test_gradients_of_an_earlier_step_are_not_added_to() -> None:
    module = Residual()
    network, arrays, x, dy = TapedNetwork(module, (4,)), arrays_of(module), batch(6, 4), batch(6, 3)
    first = network.vjp(OPS, arrays, x, Call())[1](dy)
    second = network.vjp(OPS, arrays, x, Call())[1](dy)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_every_gradient_has_memory_of_its_own() -> None:
    class Sum(Module):
        def __init__(self) -> None:
            self.a, self.b = Parameter(np.ones(3)), Parameter(np.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + (self.a + self.b)

    module = Sum()
    gradients = TapedNetwork(module, (3,)).vjp(OPS, arrays_of(module), batch(1, 3), Call())[1](
        np.ones((1, 3))
    )
    OPS.clip_by_norm(list(gradients.values()), 0.5)
    norm = np.sqrt(sum(np.vdot(g, g) for g in gradients.values()))
    assert norm == pytest.approx(0.5, rel=1e-5)


def test_the_call_reaches_every_layer_whatever_its_mode() -> None:
    module = Sequential(Linear(2, 2, seed=0), Layer(StepSpec())).eval()
    network, x = TapedNetwork(module, (2,)), np.ones((1, 2), "float32")
    at_rest = network.vjp(OPS, arrays_of(module), x, Call(step=5))[0]
    np.testing.assert_array_equal(at_rest, module(x))
    moved = network.vjp(OPS, arrays_of(module), x, Call(training=True, step=5))[0]
    np.testing.assert_allclose(moved, at_rest + 5, rtol=1e-6)


def test_layers_with_masks_are_numbered() -> None:
    class Two(Module):
        def __init__(self) -> None:
            self.first, self.second = Layer(StepSpec()), Layer(StepSpec())

    module = Two()
    TapedNetwork(module, (2,))
    assert (module.first.spec.layer_idx, module.second.spec.layer_idx) == (0, 1)


def test_output_shape() -> None:
    assert TapedNetwork(Residual(), (4,)).output_shape == (3,)
    with pytest.raises(ShapeError):
        _ = TapedNetwork(Residual(), (5,)).output_shape


def test_output_shape_leaves_modes_and_gradients_alone() -> None:
    module = Residual()
    assert TapedNetwork(module, (4,)).output_shape == (3,)
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches(rows: int) -> None:
    module = Residual()
    y, pullback = TapedNetwork(module, (4,)).vjp(OPS, arrays_of(module), batch(rows, 4), Call())
    assert y.shape == (rows, 3)
    np.testing.assert_array_equal(pullback(np.ones((rows, 3)))["head.bias"], np.full(3, rows))


def test_fused_is_itself_and_its_description_is_json() -> None:
    network = TapedNetwork(Residual(), (4,))
    assert network.fused is network
    description = json.loads(json.dumps(network.to_dict()))
    assert description == {"input_shape": [4], "module": repr(network.module)}
    assert description == TapedNetwork(Residual(), (4,)).to_dict()
