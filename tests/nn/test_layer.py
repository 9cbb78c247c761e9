from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.devices import no_gpu
from support.numeric import assert_derivative
from warpfit import Tensor, nn, no_grad
from warpfit.backends import Activation, Array, Backend
from warpfit.errors import ConfigError, DeviceError, DTypeError, FileFormatError
from warpfit.nn import (
    GELU,
    Layer,
    LeakyReLU,
    Linear,
    LogSoftmax,
    Parameter,
    ReLU,
    Sequential,
    Softmax,
)
from warpfit.nn.activations import ActivationSpec, SoftmaxSpec
from warpfit.nn.layer import calling
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import Call, LayerSpec, ParameterSpec, Pullback


@dataclass(frozen=True)
class CountingSpec(LayerSpec):
    """y = x · gain; its buffer holds the step, mode and seed of the last call."""

    def parameters(self) -> dict[str, ParameterSpec]:
        return {"gain": ParameterSpec((1,), "ones")}

    def buffers(self) -> dict[str, ParameterSpec]:
        return {"last": ParameterSpec((3,), "zeros")}

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
    ) -> tuple[Array, Pullback]:
        arrays["last"][:] = (call.training, call.step, call.seed)
        gain = arrays["gain"]
        return x * gain, lambda dy: (
            dy * gain if needs_dx else None,
            {"gain": np.sum(dy * x, keepdims=True)[0]},
        )


@dataclass(frozen=True)
class SettingsSpec(LayerSpec):
    size: int
    mode: str = "same"


def weights(layer: Linear) -> list[Any]:
    return [layer.weight.data, layer.bias.data]


def same(one: Linear, other: Linear) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def test_a_layer_holds_the_arrays_it_is_given() -> None:
    spec, arrays = LinearSpec(3, 2), {"weight": np.ones((3, 2)), "bias": np.zeros(2)}
    layer = Layer.holding(spec, arrays)
    assert isinstance(layer, Linear)
    assert layer.weight.data is arrays["weight"]
    assert [parameter.data for parameter in layer.parameters()] == [
        arrays["weight"],
        arrays["bias"],
    ]
    np.testing.assert_array_equal(layer(np.ones((1, 3))), [[3.0, 3.0]])


# -- initial values
# ----------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_weights() -> None:
    assert same(Linear(5, 4, seed=7), Linear(5, 4, seed=7))
    assert not same(Linear(5, 4, seed=7), Linear(5, 4, seed=8))


def test_layers_without_a_seed_differ() -> None:
    assert not same(Linear(5, 4), Linear(5, 4))


def test_manual_seed_fixes_the_layers_after_it() -> None:
    def pair(seed: int) -> tuple[Linear, Linear]:
        wf.manual_seed(seed)
        return Linear(5, 4), Linear(5, 4)

    first, second = pair(3), pair(3)
    assert same(first[0], second[0])
    assert same(first[1], second[1])
    assert not same(first[0], first[1])
    assert not same(first[0], pair(4)[0])


def test_a_seed_of_its_own_takes_none_from_manual_seed() -> None:
    wf.manual_seed(3)
    expected = Linear(5, 4)
    wf.manual_seed(3)
    Linear(5, 4, seed=0)
    ReLU()
    assert same(Linear(5, 4), expected)


def test_golden_values() -> None:
    layer = Linear(3, 2, seed=1234)
    expected = [[0.10417017, 0.566755], [-0.33113745, 0.03493418], [-0.53538865, 0.40725875]]
    np.testing.assert_allclose(layer.weight.data, expected, rtol=1e-6)
    np.testing.assert_allclose(layer.bias.data, [0.11974236, 0.09525844], rtol=1e-6)


def test_golden_values_of_manual_seed() -> None:
    wf.manual_seed(42)
    np.testing.assert_allclose(Linear(2, 1).weight.data, [[0.38546765], [0.02991625]], rtol=1e-6)


def test_float32_and_float64_start_alike() -> None:
    narrow, wide = Linear(5, 4, seed=7), Linear(5, 4, seed=7, dtype="float64")
    assert wide.weight.dtype == "float64"
    np.testing.assert_array_equal(narrow.weight.data, wide.weight.data.astype("float32"))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "0"])
def test_refuses_seeds(seed: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a seed that is an integer in \[0, 2\*\*64\), got"
    ):
        Linear(2, 2, seed=seed)


def test_refuses_an_unknown_initialiser() -> None:
    with pytest.raises(
        ConfigError, match=r"expected an initialiser among default, kaiming_uniform.*got 'he'"
    ):
        Linear(2, 2, init="he")


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_refuses_other_dtypes(dtype: str) -> None:
    with pytest.raises(DTypeError, match=f"expected dtype float32 or float64, got '{dtype}'"):
        Linear(2, 2, dtype=dtype)


def test_refuses_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(DeviceError, match="expected a CUDA device for 'cuda:0', but "):
        Linear(784, 256, "cuda")
    with pytest.raises(ConfigError, match="got 'gpu'"):
        Linear(784, 256, "gpu")


# -- the derivative
# ----------------------------------------------------------------------------------------


def test_vjp_on_arrays_is_the_tapes_gradient() -> None:
    rng = np.random.default_rng(0)
    layer, x, dy = (
        Linear(3, 2, dtype="float64"),
        rng.standard_normal((4, 3)),
        rng.standard_normal((4, 2)),
    )
    y, pullback = layer.vjp(x)
    dx, gradients = pullback(dy)
    tensor = Tensor(x, requires_grad=True)
    output = layer(tensor)
    output.backward(dy)
    np.testing.assert_array_equal(output.data, y)
    np.testing.assert_array_equal(tensor.grad, dx)
    np.testing.assert_array_equal(layer.weight.grad, gradients["weight"])
    np.testing.assert_array_equal(layer.bias.grad, gradients["bias"])


def test_an_input_without_gradient_gets_none() -> None:
    layer, x = Linear(3, 2), Tensor(np.ones((4, 3), "float32"))
    layer(x).backward(np.ones((4, 2)))
    assert x.grad is None
    assert layer.weight.grad is not None


def test_a_layer_that_stands_twice_adds_its_gradients_up() -> None:
    rng = np.random.default_rng(0)
    layer, x, dy = (
        Linear(3, 3, dtype="float64"),
        rng.standard_normal((4, 3)),
        rng.standard_normal((4, 3)),
    )
    model = Sequential(layer, ReLU(), layer)
    model(Tensor(x)).backward(dy)

    def value(weight: Any) -> Any:
        w, b = weight, layer.bias.data
        return np.vdot(dy, np.maximum(x @ w + b, 0) @ w + b)

    assert_derivative(layer.weight.grad, value, layer.weight.data)


def test_a_shared_parameter_adds_its_gradients_up() -> None:
    rng = np.random.default_rng(0)
    one, other = (
        Linear(3, 3, dtype="float64", bias=False),
        Linear(3, 3, dtype="float64", bias=False),
    )
    other.weight = one.weight
    x, dy = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    Sequential(one, other)(Tensor(x)).backward(dy)
    assert_derivative(one.weight.grad, lambda w: np.vdot(dy, x @ w @ w), one.weight.data)


def test_nothing_is_recorded_under_no_grad() -> None:
    with no_grad():
        assert not Linear(2, 2)(Tensor(np.ones((1, 2), "float32"))).requires_grad


# -- the call that a layer runs in
# -------------------------------------------------------------------------


def test_a_layer_runs_in_its_own_mode() -> None:
    layer = Layer(CountingSpec())
    layer(np.ones((2, 1)))
    np.testing.assert_array_equal(layer.last.data, [1, 0, 0])
    layer.eval()(np.ones((2, 1)))
    np.testing.assert_array_equal(layer.last.data, [0, 0, 0])


def test_calling_overrides_the_mode_of_every_layer() -> None:
    model = Sequential(Layer(CountingSpec()), Layer(CountingSpec())).eval()
    with calling(Call(training=True, step=5, seed=9)):
        model(np.ones((2, 1)))
        with calling(Call(step=6)):
            model[1](np.ones((2, 1)))
        model[0].vjp(np.ones((2, 1), "float32"))
    np.testing.assert_array_equal(model[0].last.data, [1, 5, 9])
    np.testing.assert_array_equal(model[1].last.data, [0, 6, 0])
    model(np.ones((2, 1)))
    np.testing.assert_array_equal(model[0].last.data, [0, 0, 0])


def test_calling_ends_with_an_error() -> None:
    layer = Layer(CountingSpec())

    def fail() -> None:
        with calling(Call(step=5)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert layer.call() == Call(training=True)


def test_arrays_are_parameters_and_buffers() -> None:
    layer = Layer(CountingSpec(), dtype="float64")
    assert list(layer.named_arrays()) == ["gain", "last"]
    assert layer.arrays().keys() == {"gain", "last"}
    assert layer.arrays()["gain"] is layer.gain.data
    assert isinstance(layer.gain, Parameter)
    assert {str(array.dtype) for array in layer.arrays().values()} == {"float64"}


# -- specs
# -------------------------------------------------------------------------------------------------

SPECS = [
    (LinearSpec(3, 2), Linear),
    (LinearSpec(3, 2, bias=False, activation=Activation("leaky_relu", 0.2)), Linear),
    (ActivationSpec(Activation("relu")), ReLU),
    (ActivationSpec(Activation("leaky_relu", 0.3)), LeakyReLU),
    (ActivationSpec(Activation("gelu")), GELU),
    (ActivationSpec(Activation("gelu_tanh")), GELU),
    (SoftmaxSpec(), Softmax),
    (SoftmaxSpec(log=True), LogSoftmax),
]


@pytest.mark.parametrize(("spec", "layer_class"), SPECS)
def test_from_spec_makes_the_layer_of_a_spec(spec: LayerSpec, layer_class: type[Layer]) -> None:
    layer = Layer.from_spec(spec, seed=3, dtype="float64")
    assert type(layer) is layer_class
    assert layer.spec == spec
    assert layer.arrays().keys() == spec.parameters().keys()
    assert all(array.dtype == "float64" for array in layer.arrays().values())


def test_from_spec_starts_as_the_constructor_does() -> None:
    made, built = (
        Layer.from_spec(LinearSpec(3, 2), seed=3, init="xavier_normal"),
        Linear(3, 2, seed=3),
    )
    assert not same(made, built)
    assert same(made, Linear(3, 2, seed=3, init="xavier_normal"))


@pytest.mark.parametrize(("spec", "_"), SPECS)
def test_spec_round_trip(spec: LayerSpec, _: Any) -> None:
    assert LayerSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"in_features": 3}, "expected a layer kind among activation, .*linear.*, got None"),
        ({"kind": "dense"}, "expected a layer kind among .*, got 'dense'"),
        ({"kind": ["linear"]}, r"expected a layer kind among .*, got \['linear'\]"),
        (
            {"kind": "linear"},
            "expected a description of a layer of kind linear, got {'kind': 'linear'}",
        ),
        (
            {"kind": "linear", "in_features": 3, "out_features": 2},
            "a description of a layer of kind linear",
        ),
        (
            {**LinearSpec(3, 2).to_dict(), "out_features": -1},
            "a description of a layer of kind linear",
        ),
        (
            {**LinearSpec(3, 2).to_dict(), "out_features": "2"},
            "a description of a layer of kind linear",
        ),
        ({**LinearSpec(3, 2).to_dict(), "color": "red"}, "a description of a layer of kind linear"),
        (
            {**LinearSpec(3, 2).to_dict(), "activation": "relu"},
            "a description of a layer of kind linear",
        ),
        (
            {"kind": "activation", "activation": {"name": "step"}},
            "a description of a layer of kind activation",
        ),
        ({"kind": "activation"}, "a description of a layer of kind activation"),
        ({"kind": "softmax", "axis": 1}, "a description of a layer of kind softmax"),
    ],
)
def test_from_dict_refuses(description: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        LayerSpec.from_dict(description)


def test_repr_shows_the_specs_fields() -> None:
    assert repr(Layer(SettingsSpec(3))) == "Layer(size=3, mode='same')"


# -- sizes without room
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Linear(10**6, 10**9),
            r"^Linear: .* got a weight of shape \(1000000, 1000000000\), which takes ",
        ),
        (
            lambda: Linear(1, 10**15),
            r"^Linear: .* weight of shape \(1, 10{15}\), which takes 7,450,580.6 GiB",
        ),
        (
            lambda: Linear(10**10, 10**10),
            r"^Linear: .* weight of shape \(10000000000, 10000000000\)",
        ),
        (
            lambda: nn.Conv2d(10**7, 10**7, 3),
            r"^Conv2d: .* weight of shape \(3, 3, 10000000, 10000000\)",
        ),
        (lambda: nn.BatchNorm1d(10**15), r"^BatchNorm1d: .* running_mean of shape \(10{15},\)"),
        (
            lambda: nn.LayerNorm((10**8, 10**8)),
            r"^LayerNorm: .* weight of shape \(100000000, 100000000\)",
        ),
    ],
)
def test_a_layer_that_has_no_room_is_named_with_its_size(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
