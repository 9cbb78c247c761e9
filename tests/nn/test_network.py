from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative
from warpfit import Tensor
from warpfit.backends import Activation, Array, NumpyBackend
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn import (
    GELU,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Identity,
    Layer,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Module,
    NetworkSpec,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from warpfit.nn.activations import ActivationSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import Call, LayerSpec
from warpfit.nn.taped import TapedNetwork

OPS = NumpyBackend()
RELU, GELU_TANH = Activation("relu"), Activation("gelu_tanh")


class Spy(NumpyBackend):
    """Writes down what the backward pass computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def activation_backward(
        self, activation: Activation, dy: Array, y: Array, z: Array | None
    ) -> Array:
        self.calls.append(activation.name)
        return super().activation_backward(activation, dy, y, z)

    def linear_backward(self, dz: Array, x: Array, w: Array, **needs: bool) -> Any:  # type: ignore[override]
        self.calls.append(("linear", needs["needs_dx"]))
        return super().linear_backward(dz, x, w, **needs)

    def conv2d_backward_weight(self, *args: Any, **settings: Any) -> Any:
        self.calls.append("weight")
        return super().conv2d_backward_weight(*args, **settings)

    def conv2d_backward_input(self, *args: Any, **settings: Any) -> Any:
        self.calls.append("input")
        return super().conv2d_backward_input(*args, **settings)


class Doubled(Linear):
    """A layer of ours with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2.0


class Plus(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


def linear(inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    return Linear(inputs, outputs, bias=bias, dtype="float64", seed=inputs + 10 * outputs)


def mlp() -> Sequential:
    return Sequential(linear(5, 4), Tanh(), linear(4, 3))


def twice() -> Sequential:
    """One layer at two places, with different activations behind it."""
    layer = linear(5, 5)
    return Sequential(layer, ReLU(), layer, Tanh(), linear(5, 3))


def nested() -> Sequential:
    chain = Sequential(linear(5, 5), Tanh())
    return Sequential(chain, Sequential(chain, linear(5, 3, bias=False)), LogSoftmax())


def residual() -> Sequential:
    """A block whose second one is its own shortcut, and a shortcut with layers."""
    inner = Residual(Tanh(), linear(4, 4))
    outer = Residual(linear(5, 4), ReLU(), inner, shortcut=linear(5, 4, bias=False))
    return Sequential(outer, ReLU(), Residual(linear(4, 4), Tanh(), linear(4, 4)), linear(4, 3))


NETWORKS: dict[str, Callable[[], Sequential]] = {
    "mlp": mlp,
    "twice": twice,
    "nested": nested,
    "residual": residual,
    "residual first": lambda: Sequential(Residual(Tanh(), shortcut=linear(5, 5)), linear(5, 3)),
    "activation first": lambda: Sequential(Sigmoid(), Identity(), linear(5, 3), GELU()),
    "activation twice": lambda: Sequential(linear(5, 3), GELU("tanh"), LeakyReLU(0.2)),
    "one layer": lambda: Sequential(linear(5, 3)),
}


@pytest.fixture(params=NETWORKS)
def model(request: pytest.FixtureRequest) -> Sequential:
    return NETWORKS[request.param]()


def spec_of(model: Sequential, *shape: int) -> NetworkSpec:
    spec = model.spec(shape)
    assert spec is not None
    return spec


def arrays_of(model: Module) -> dict[str, Array]:
    return {name: holder.data for name, holder in model.named_arrays().items()}


def batch(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# -- NetworkSpec: what it says
# -----------------------------------------------------------------------------


def test_spec_names_layers_as_the_model_does() -> None:
    assert spec_of(mlp(), 5).layers == (
        ("0", LinearSpec(5, 4)),
        ("1", ActivationSpec(Activation("tanh"))),
        ("2", LinearSpec(4, 3)),
    )
    assert [name for name, _ in spec_of(twice(), 5).layers] == ["0", "1", "0", "3", "4"]
    assert [name for name, _ in spec_of(nested(), 5).layers] == [
        "0.0",
        "0.1",
        "0.0",
        "0.1",
        "1.1",
        "2",
    ]


def test_shapes() -> None:
    spec = spec_of(mlp(), 5)
    assert spec.shapes == ((5,), (4,), (4,), (3,))
    assert spec.output_shape == (3,)
    assert NetworkSpec((), (2, 3)).shapes == ((2, 3),)


def test_shapes_that_do_not_fit_are_refused_when_the_spec_is_made() -> None:
    with pytest.raises(ShapeError, match=r"expected samples of shape \(5,\), got \(4,\)"):
        mlp().spec((4,))
    with pytest.raises(ShapeError, match=r"expected samples of shape \(3,\), got \(4,\)"):
        Sequential(Linear(5, 4), Linear(3, 2)).spec((5,))


def test_specs_are_values() -> None:
    assert spec_of(mlp(), 5) == spec_of(mlp(), 5)
    assert hash(spec_of(mlp(), 5)) == hash(spec_of(mlp(), 5))
    assert spec_of(mlp(), 5) != spec_of(twice(), 5)


def test_fused_joins_an_activation_to_the_linear_layer_before_it() -> None:
    fused = spec_of(Sequential(Linear(5, 4), ReLU(), Linear(4, 3), GELU("tanh")), 5).fused
    assert fused.layers == (
        ("0", LinearSpec(5, 4, activation=RELU)),
        ("2", LinearSpec(4, 3, activation=GELU_TANH)),
    )
    assert fused.fused == fused


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ((ReLU(), Linear(5, 5)), ["0", "1"]),
        ((Linear(5, 5), ReLU(), Tanh()), ["0", "2"]),
        ((Linear(5, 5), Identity(), Tanh()), ["0"]),
        ((Linear(5, 5), Softmax()), ["0", "1"]),
        ((Linear(5, 5), Softmax(), ReLU()), ["0", "1", "2"]),
        ((ReLU(), Tanh()), ["0", "1"]),
        ((), []),
    ],
)
def test_fused_leaves_everything_else_alone(layers: Any, names: list[str]) -> None:
    spec = spec_of(Sequential(*layers), 5)
    assert [name for name, _ in spec.fused.layers] == names
    assert spec.fused.output_shape == spec.output_shape


def test_fused_keeps_two_activations_of_one_layer_apart() -> None:
    assert spec_of(twice(), 5).fused.layers[:2] == (
        ("0", LinearSpec(5, 5, activation=RELU)),
        ("0", LinearSpec(5, 5, activation=Activation("tanh"))),
    )


# -- NetworkSpec: joints
# -----------------------------------------------------------------------------------


def joints_of(*layers: Any) -> list[tuple[str | None, bool]]:
    """Return for each layer whose derivative it takes over, and whether its own is taken over."""
    joints = spec_of(Sequential(*layers), 6, 6, 1).fused._joints
    return [
        (None if "x_activation" not in joint else joint["x_activation"].name, "takes_dz" in joint)
        for joint in joints
    ]


@pytest.mark.parametrize(
    ("between", "activation", "is_joined"),
    [
        ((), ReLU(), True),
        ((Dropout(0.5),), ReLU(), True),
        ((MaxPool2d(2, 1),), Tanh(), True),
        ((Dropout(0.5),), Tanh(), False),
        ((AvgPool2d(2),), ReLU(), False),
        ((MaxPool2d(2),), GELU(), False),
    ],
)
def test_a_layer_takes_over_the_derivative_below_if_what_is_between_passes_it(
    between: Any, activation: Any, is_joined: bool
) -> None:
    convolution = (Conv2d(1, 2, 3), activation)
    size = np.prod(spec_of(Sequential(*convolution, *between), 6, 6, 1).output_shape)
    for last in ((Flatten(), Linear(int(size), 2)), (Conv2d(2, 3, 1),)):
        joints = joints_of(*convolution, *between, *last)
        name = convolution[1].spec.activation.name
        assert joints[0] == (None, is_joined)
        assert joints[-1] == (name if is_joined else None, False)


@pytest.mark.parametrize("between", [(), (Dropout(0.5),), (ReLU(),)])
def test_places_of_pooling_tell_the_derivative_of_relu(between: Any) -> None:
    last = (Flatten(), Linear(8, 2))
    joints = joints_of(Conv2d(1, 2, 3), ReLU(), MaxPool2d(2), *between, *last)
    assert joints[0] == (None, True)
    assert joints[-1] == (None, False)


@pytest.mark.parametrize("activation", [ReLU, Tanh])
def test_joined_layers_have_the_gradients_of_single_ones(
    activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (
        Conv2d(2, 3, 3, dtype="float64", seed=1),
        activation(),
        Conv2d(3, 4, 2, padding=1, dtype="float64", seed=2),
        activation(),
        MaxPool2d(3, 2, 1),
        Dropout(0.5),
        Flatten(),
        Linear(36, 5, dtype="float64", seed=3),
        activation(),
        Linear(5, 2, dtype="float64", seed=4),
    )
    model, rng = Sequential(*layers), np.random.default_rng(0)
    x, dy = rng.standard_normal((3, 6, 6, 2)), rng.standard_normal((3, 2))
    call = Call(training=True, step=3, seed=1)

    def gradients() -> dict[str, Any]:
        network = spec_of(model, *x.shape[1:]).fused
        return dict(network.vjp(NumpyBackend(), model.state_dict(), x, call)[1](dy))

    found = gradients()
    joints = spec_of(model, *x.shape[1:]).fused._joints
    assert ["pool" in joint for joint in joints] == [False, True, *(False,) * 5]
    monkeypatch.setattr(NetworkSpec, "_joints", ({},) * len(layers))
    expected = gradients()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(value).max() > 0
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-14)


# -- NetworkSpec: files
# ------------------------------------------------------------------------------------


def test_round_trip_through_json(model: Sequential) -> None:
    spec = spec_of(model, 5)
    for one in (spec, spec.fused):
        assert NetworkSpec.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_to_dict() -> None:
    assert spec_of(Sequential(Linear(5, 4), Softmax()), 5).to_dict() == {
        "input_shape": [5],
        "layers": [
            {
                "name": "0",
                "kind": "linear",
                "in_features": 5,
                "out_features": 4,
                "bias": True,
                "activation": {"name": "identity", "slope": 0.01},
            },
            {"name": "1", "kind": "softmax", "log": False},
        ],
    }


def changed(**layer: Any) -> dict[str, Any]:
    """Return a description whose first layer has other fields."""
    description = spec_of(mlp(), 5).to_dict()
    description["layers"][0] |= layer
    return description


@pytest.mark.parametrize(
    "description",
    [
        {},
        None,
        [],
        "network",
        {"layers": []},
        {"input_shape": [5]},
        {"layers": None, "input_shape": [5]},
        {"layers": [], "input_shape": 5},
        {"layers": [], "input_shape": ["wide"]},
        {"layers": ["linear"], "input_shape": [5]},
        {"layers": [{"kind": "linear", "in_features": 5, "out_features": 4}], "input_shape": [5]},
        {"layers": [{"name": "0"}], "input_shape": [5]},
        changed(kind="dense"),
        changed(in_features=-5),
        changed(in_features=5.5),
        changed(activation={"name": "step"}),
        changed(activation={"shape": "round"}),
        changed(color="red"),
    ],
)
def test_from_dict_refuses(description: Any) -> None:
    with pytest.raises(FileFormatError, match=r"^expected "):
        NetworkSpec.from_dict(description)


# -- NetworkSpec: the derivative
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_vjp_is_the_tapes(model: Sequential, fused: bool) -> None:
    spec, x, dy = spec_of(model, 5), batch(6, 5), batch(6, 3, seed=1)
    y, pullback = (spec.fused if fused else spec).vjp(OPS, arrays_of(model), x, Call())
    gradients = pullback(dy)
    expected, tape = TapedNetwork(model, (5,)).vjp(OPS, arrays_of(model), x, Call())
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in tape(dy).items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-12, atol=1e-14)


def test_vjp_is_the_derivative(model: Sequential) -> None:
    spec, x, dy, arrays = spec_of(model, 5), batch(6, 5), batch(6, 3, seed=1), arrays_of(model)
    gradients = spec.vjp(OPS, arrays, x, Call())[1](dy)
    for name, array in arrays.items():

        def value(changed: Array, name: str = name) -> Any:
            return np.vdot(dy, spec.vjp(OPS, arrays | {name: changed}, x, Call())[0])

        assert_derivative(gradients[name], value, array)


def test_vjp_leaves_its_inputs_alone(model: Sequential) -> None:
    x, dy, arrays = batch(6, 5), batch(6, 3, seed=1), arrays_of(model)
    for array in (x, dy, *arrays.values()):
        array.flags.writeable = False
    spec_of(model, 5).fused.vjp(OPS, arrays, x, Call())[1](dy)


def test_nothing_is_computed_before_the_first_layer_with_parameters() -> None:
    model = Sequential(Sigmoid(), Tanh(), linear(5, 4), ReLU(), linear(4, 3), GELU())
    spy = Spy()
    _, pullback = spec_of(model, 5).vjp(spy, arrays_of(model), batch(6, 5), Call())
    pullback(batch(6, 3))
    assert spy.calls == ["gelu", ("linear", True), "relu", ("linear", False)]


@pytest.mark.parametrize(
    ("trained", "calls"),
    [
        ({"0.bias", "2.weight", "2.bias"}, ["weight", "input", "gelu"]),
        ({"2.weight", "2.bias"}, ["weight"]),
        ({"0.weight", "2.bias"}, ["weight", "input", "gelu", "weight"]),
        ({"2.bias"}, []),
    ],
)
def test_only_what_is_trained_has_gradients(trained: set[str], calls: list[str]) -> None:
    convolutions = (Conv2d(*sizes, 3, dtype="float64", seed=0) for sizes in ((2, 3), (3, 2)))
    first, second = convolutions
    model, x = Sequential(first, GELU(), second), batch(2, 6, 6, 2)
    spec, arrays, dy = model.spec((6, 6, 2)), arrays_of(model), batch(2, 2, 2, 2, seed=1)
    assert spec is not None
    _, pullback = spec.fused.vjp(OPS, arrays, x, Call())
    expected, spy = pullback(dy), Spy()
    _, pullback = spec.fused.vjp(spy, arrays, x, Call(trained=frozenset(trained)))
    found = pullback(dy)
    assert spy.calls == calls
    for name in trained:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_a_network_without_parameters_has_no_gradients() -> None:
    spy = Spy()
    y, pullback = spec_of(Sequential(Tanh(), ReLU()), 3).vjp(spy, {}, batch(2, 3), Call())
    assert pullback(np.ones((2, 3))) == {}
    assert spy.calls == []
    assert y.shape == (2, 3)


@pytest.mark.parametrize("rows", [0, 1])
def test_small_and_empty_networks(rows: int) -> None:
    model = Sequential(linear(5, 1), ReLU(), linear(1, 3))
    y, pullback = spec_of(model, 5).fused.vjp(OPS, arrays_of(model), batch(rows, 5), Call())
    gradients = pullback(np.ones((rows, 3)))
    assert y.shape == (rows, 3)
    np.testing.assert_array_equal(gradients["2.bias"], np.full(3, rows))
    assert {name: g.shape for name, g in gradients.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }


# -- Sequential
# --------------------------------------------------------------------------------------------


def test_sequential_is_a_sequence() -> None:
    layers = [Linear(2, 3), ReLU(), Linear(3, 1)]
    model = Sequential(*layers)
    assert len(model) == 3
    assert list(model) == layers
    assert model[1] is layers[1]
    assert model[-1] is layers[2]


def test_sequential_runs_its_layers_in_order() -> None:
    model = Sequential(Plus(), Linear(1, 1), Sequential(ReLU(), Plus()))
    model.load_state_dict({"1.weight": [[3]], "1.bias": [-1]})
    np.testing.assert_array_equal(model([[1], [-2]]), [[6], [1]])


def test_an_empty_chain_returns_its_input() -> None:
    np.testing.assert_array_equal(Sequential()(np.ones((2, 3))), np.ones((2, 3)))


@pytest.mark.parametrize("layer", [[ReLU()], ReLU, "relu", None])
def test_sequential_refuses_what_is_no_module(layer: Any) -> None:
    with pytest.raises(ConfigError, match=r"Sequential: expected layers, .* got "):
        Sequential(Linear(2, 2), layer)


def test_a_list_of_layers_will_do() -> None:
    layers = [Linear(2, 3), ReLU(), Linear(3, 1)]
    for given in (layers, tuple(layers)):
        assert Sequential(given).layers == Sequential(*layers).layers
    assert len(Sequential([])) == 0
    with pytest.raises(ConfigError, match=r"Sequential: expected layers, .* got list"):
        Sequential(layers, layers)
    with pytest.raises(ConfigError, match=r"Sequential: expected layers, .* got list"):
        Sequential([layers])


def test_spec_is_none_for_modules_of_other_kinds() -> None:
    for module in (Plus(), Sequential(Plus()), Doubled(5, 5)):
        model = Sequential(Linear(5, 5), module)
        assert model.flat_layers() is None
        assert model.spec((5,)) is None


def test_spec_is_none_for_layers_that_share_an_array() -> None:
    one, other = Linear(5, 5), Linear(5, 5)
    other.weight = one.weight
    assert Sequential(one, other).spec((5,)) is None
    assert Sequential(Sequential(one), Sequential(other)).spec((5,)) is None
    assert Sequential(other).spec((5,)) is not None


@dataclass(frozen=True)
class MaskSpec(LayerSpec):
    layer_idx: int = 0


def test_layers_with_masks_are_numbered_through_the_whole_network() -> None:
    first, second, third = (Layer(MaskSpec()) for _ in range(3))
    Sequential(first, Sequential(second, first), Plus(), Sequential(third))
    assert [layer.spec.layer_idx for layer in (first, second, third)] == [0, 1, 2]


# -- Sequential.from_spec
# ----------------------------------------------------------------------------------


def test_from_spec_makes_an_equal_network(model: Sequential) -> None:
    spec, x = spec_of(model, 5), batch(6, 5)
    made = Sequential.from_spec(spec, arrays_of(model), dtype="float64")
    assert made.dtype == "float64"
    np.testing.assert_array_equal(made(x), model(x))
    assert made.num_parameters == model.num_parameters
    assert [layer for _, layer in spec_of(made, 5).layers] == [layer for _, layer in spec.layers]


def test_from_spec_owns_its_arrays_and_keeps_classes() -> None:
    model = mlp()
    made = Sequential.from_spec(spec_of(model, 5), arrays_of(model))
    assert made.dtype == "float32"
    assert [type(layer) for layer in made] == [Linear, Tanh, Linear]
    made[0].weight.data += 1
    np.testing.assert_array_equal(model[0].weight.data, mlp()[0].weight.data)


def test_from_spec_takes_a_fused_spec() -> None:
    model, x = mlp(), batch(6, 5)
    made = Sequential.from_spec(spec_of(model, 5).fused, arrays_of(model), dtype="float64")
    assert len(made) == 2
    np.testing.assert_array_equal(made(x), model(x))


def test_from_spec_refuses_two_specs_under_one_name() -> None:
    model = twice()
    with pytest.raises(ConfigError, match="expected one spec for the layer 0, got LinearSpec"):
        Sequential.from_spec(spec_of(model, 5).fused, arrays_of(model))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"2.bias": None}, ConfigError, r"missing \['2.bias'\]"),
        ({"3.weight": np.ones(1)}, ConfigError, "got foreign ones: 3.weight"),
        (
            {"0.weight": np.ones((4, 5))},
            ShapeError,
            r"0.weight: expected shape \(5, 4\), got \(4, 5\)",
        ),
    ],
)
def test_from_spec_refuses_arrays(change: dict[str, Any], error: Any, message: str) -> None:
    arrays = {
        name: array for name, array in (arrays_of(mlp()) | change).items() if array is not None
    }
    with pytest.raises(error, match=message):
        Sequential.from_spec(spec_of(mlp(), 5), arrays)


# -- layers that do not chain
# --------------------------------------------------------------------------------


def unchained() -> Sequential:
    return Sequential(linear(5, 4), ReLU(), Sequential(linear(4, 3), linear(2, 1)))


def test_a_layer_that_does_not_chain_is_named_by_its_place() -> None:
    match = (
        r"layer 2.1: Linear: expected samples of shape \(2,\), got \(3,\), which layer "
        r"2.0 \(Linear\) gives"
    )
    with pytest.raises(ShapeError, match=match):
        unchained().spec((5,))
    with pytest.raises(ShapeError, match=r"layer 0: .* got \(6,\), which is a row of x"):
        unchained().spec((6,))


@pytest.mark.parametrize(
    ("layers", "sample", "told"),
    [
        (
            [Conv2d(3, 2, 3)],
            (3, 8, 8),
            r"\(3, 8, 8\), .*; channels come last: x\.transpose\(0, 2, 3, 1\)",
        ),
        (
            [Conv2d(1, 2, 3)],
            (8, 8),
            r"\(8, 8\), which is a row of x; x\[\.\.\., None\] has one more axis",
        ),
        ([linear(1, 2)], (), r"got \(\), which is a row of x; x\[\.\.\., None\]"),
        ([linear(64, 2)], (8, 8), r"which is a row of x; nn\.Flatten\(\) before it gives \(64,\)"),
        (
            [Conv2d(1, 2, 3), Sigmoid(), linear(2, 3)],
            (8, 8, 1),
            r"which layer 1 \(Sigmoid\) gives; nn\.Flatten\(\) before it gives \(72,\)$",
        ),
        ([linear(5, 4), linear(3, 2)], (5,), r"layer 0 \(Linear\) gives$"),
    ],
)
def test_frequent_slips_come_with_what_mends_them(
    layers: list[Module], sample: tuple[int, ...], told: str
) -> None:
    with pytest.raises(ShapeError, match=told):
        Sequential(layers).spec(sample)


def test_so_it_is_in_a_call() -> None:
    with pytest.raises(
        ShapeError, match=r"^layer 2.1: linear: expected x of shape \(M, 2\) .* got x \(1, 3\)$"
    ):
        unchained()(np.zeros((1, 5)))
