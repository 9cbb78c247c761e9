from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.devices import no_gpu
from warpfit import Tensor
from warpfit.errors import ConfigError, DeviceError, DTypeError, ShapeError
from warpfit.nn import Buffer, Linear, Module, Parameter, ReLU, Sequential


class Scaled(Module):
    """A user's own network: a parameter and a buffer of its own, modules of ours, and things that
    are neither.
    """

    def __init__(self, width: int = 3) -> None:
        self.note = "not a module"
        self.scale = Parameter(np.full(width, 2, "float32"))
        self.inner = Sequential(Linear(width, width, seed=0), ReLU())
        self.offset = Buffer(np.ones(width, "float32"))
        self.head = Linear(width, 2, bias=False, seed=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x) * self.scale + self.offset.data)


class Mode(Module):
    """Returns its input and writes down the mode it ran in."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.training)
        return x


def snapshot(module: Module) -> dict[str, Any]:
    return {name: holder.data.copy() for name, holder in module.named_arrays().items()}


def assert_same_arrays(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
        assert one[name].dtype == other[name].dtype


# -- the tree
# ----------------------------------------------------------------------------------------------


def test_names_follow_the_attributes() -> None:
    model = Scaled()
    assert [name for name, _ in model.named_parameters()] == [
        "scale",
        "inner.0.weight",
        "inner.0.bias",
        "head.weight",
    ]
    assert [name for name, _ in model.named_buffers()] == ["offset"]
    assert list(model.named_arrays()) == [name for name, _ in model.named_parameters()] + ["offset"]
    assert [name for name, _ in model.named_modules()] == [
        "",
        "inner",
        "inner.0",
        "inner.1",
        "head",
    ]
    assert [name for name, _ in model.named_children()] == ["inner", "head"]


def test_names_take_a_prefix() -> None:
    assert [name for name, _ in Scaled().named_modules("net")][:3] == [
        "net",
        "net.inner",
        "net.inner.0",
    ]


def test_parameters_are_the_attributes_themselves() -> None:
    model = Scaled()
    scale, weight, bias, head = model.parameters()
    assert scale is model.scale
    assert weight is model.inner[0].weight
    assert bias is model.inner[0].bias
    assert head is model.head.weight
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_layer_that_stands_twice_is_walked_once() -> None:
    layer = Linear(3, 3)
    model = Sequential(layer, ReLU(), layer)
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    assert [name for name, _ in model.named_modules()] == ["", "0", "1"]
    assert model.num_parameters == 12


def test_a_shared_parameter_is_walked_once() -> None:
    one, other = Linear(3, 3), Linear(3, 3)
    other.weight = one.weight
    model = Sequential(one, other)
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert model.num_parameters == 15


def test_a_chain_that_stands_twice_is_walked_once() -> None:
    chain = Sequential(Linear(2, 2))
    assert [name for name, _ in Sequential(chain, chain).named_parameters()] == [
        "0.0.weight",
        "0.0.bias",
    ]


def test_a_module_that_holds_itself_is_walked_once() -> None:
    model = Scaled()
    model.itself = model
    assert len(model.parameters()) == 4


def test_number_of_parameters_leaves_buffers_out() -> None:
    assert Scaled().num_parameters == 3 + 12 + 6
    assert ReLU().num_parameters == 0


# -- calling
# -----------------------------------------------------------------------------------------------


def test_a_call_on_an_array_gives_an_array_and_records_nothing() -> None:
    model = Scaled()
    y = model(np.ones((4, 3), "float32"))
    assert type(y) is np.ndarray
    assert y.shape == (4, 2)
    assert y.dtype == "float32"


def test_a_call_on_a_tensor_gives_a_tensor_with_the_same_numbers() -> None:
    model, x = Scaled(), np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
    y = model(Tensor(x))
    assert isinstance(y, Tensor)
    assert y.requires_grad
    np.testing.assert_array_equal(y.data, model(x))


@pytest.mark.parametrize(
    "x", [[[1, 2, 3]], np.array([[1, 2, 3]]), np.array([[1, 2, 3]], "float16")]
)
def test_a_call_converts_numbers_to_the_parameters_dtype(x: Any) -> None:
    expected = Scaled()(np.array([[1, 2, 3]], "float32"))
    result = Scaled()(x)
    assert result.dtype == "float32"
    np.testing.assert_array_equal(result, expected)


def test_a_call_takes_bytes_as_parts_of_255() -> None:
    x = np.array([[0, 51, 255]], "uint8")
    np.testing.assert_array_equal(Scaled()(x), Scaled()(np.array([[0, 0.2, 1]], "float32")))


def test_a_call_takes_any_layout_and_leaves_its_input_alone() -> None:
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))
    before = x.copy()
    x.flags.writeable = False
    np.testing.assert_allclose(Scaled()(x), Scaled()(before), rtol=1e-6)
    np.testing.assert_array_equal(x, before)


def test_a_call_refuses_what_holds_no_numbers() -> None:
    with pytest.raises(DTypeError, match="expected numbers"):
        Scaled()(np.array([["a", "b", "c"]]))


def test_a_module_without_forward_says_so() -> None:
    class Empty(Module):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty defines no forward\(x\)"):
        Empty()(np.ones((1, 1)))


# -- state
# -------------------------------------------------------------------------------------------------


def test_state_dict_holds_copies() -> None:
    model = Scaled()
    before, state = snapshot(model), model.state_dict()
    assert_same_arrays(state, before)
    for array in state.values():
        array += 1
    assert_same_arrays(snapshot(model), before)


def test_state_dict_round_trip_changes_arrays_in_place() -> None:
    source, model = Scaled(), Scaled()
    source.scale.data[:] = [1, 2, 3]
    source.offset.data[:] = [4, 5, 6]
    arrays = [holder.data for holder in model.named_arrays().values()]
    model.load_state_dict(source.state_dict())
    assert_same_arrays(snapshot(model), snapshot(source))
    assert all(
        holder.data is array
        for holder, array in zip(model.named_arrays().values(), arrays, strict=True)
    )


def test_load_state_dict_keeps_the_models_dtype() -> None:
    model, other = Linear(2, 2, seed=0), Linear(2, 2, seed=0, dtype="float64")
    model.load_state_dict(other.state_dict())
    assert model.weight.dtype == "float32"
    np.testing.assert_array_equal(model.weight.data, other.weight.data.astype("float32"))


def test_load_state_dict_takes_lists() -> None:
    model = Linear(2, 1)
    model.load_state_dict({"weight": [[1], [2]], "bias": [3]})
    np.testing.assert_array_equal(model([[10, 100]]), [[213]])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"head.weight": None}, ConfigError, r"missing \['head.weight'\] and foreign \[\]"),
        ({"tail": np.ones(1)}, ConfigError, r"missing \[\] and foreign \['tail'\]"),
        (
            {"head.weight": np.ones((2, 3))},
            ShapeError,
            r"head.weight: expected shape \(3, 2\), got \(2, 3\); PyTorch's are transposed",
        ),
        ({"offset": np.ones(4)}, ShapeError, r"offset: expected shape \(3,\), got \(4,\)$"),
        ({"offset": np.array(["a", "b", "c"])}, DTypeError, "expected numbers"),
    ],
)
def test_load_state_dict_changes_nothing_on_an_error(
    change: dict[str, Any], error: Any, message: str
) -> None:
    model = Scaled()
    before = snapshot(model)
    state = {name: array + 1 for name, array in model.state_dict().items()} | change
    with pytest.raises(error, match=message):
        model.load_state_dict({name: array for name, array in state.items() if array is not None})
    assert_same_arrays(snapshot(model), before)


def test_train_and_eval_switch_everything_below() -> None:
    model = Scaled()
    assert model.training
    assert model.eval() is model
    assert [module.training for _, module in model.named_modules()] == [False] * 5
    assert model.train() is model
    assert [module.training for _, module in model.named_modules()] == [True] * 5
    model.inner.eval()
    assert [module.training for _, module in model.named_modules()] == [
        True,
        False,
        False,
        False,
        True,
    ]
    model.train(False)
    assert not model.head.training


def test_the_mode_of_one_module_is_not_anothers() -> None:
    Scaled().eval()
    assert Scaled().training
    assert Module.training


def test_zero_grad_forgets_gradients() -> None:
    model = Scaled()
    model(Tensor(np.ones((1, 3), "float32"))).backward(np.ones((1, 2)))
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


# -- devices and dtypes
# ------------------------------------------------------------------------------------


def test_to_another_dtype_converts_parameters_and_buffers() -> None:
    model = Scaled()
    before = snapshot(model)
    parameters = model.parameters()
    assert model.to(dtype="float64") is model
    assert model.dtype == "float64"
    assert model.parameters() == parameters
    for name, array in snapshot(model).items():
        assert array.dtype == "float64"
        np.testing.assert_array_equal(array, before[name])
    assert model(np.ones((1, 3))).dtype == "float64"
    assert_same_arrays(snapshot(model.to("cpu", dtype="float32")), before)


@pytest.mark.parametrize("device", ["cpu", "auto", None])
def test_to_the_same_device_changes_nothing(device: str | None) -> None:
    model = Scaled()
    before = snapshot(model)
    assert_same_arrays(snapshot(model.to(device)), before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "single"])
def test_to_refuses_other_dtypes(dtype: str) -> None:
    model = Scaled()
    before = snapshot(model)
    with pytest.raises(DTypeError, match=f"expected dtype float32 or float64, got '{dtype}'"):
        model.to(dtype=dtype)
    assert_same_arrays(snapshot(model), before)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_to_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(DeviceError, match=r"expected a CUDA device for 'cuda:[01]', but "):
        Scaled().to(device)


def test_to_an_unknown_device() -> None:
    with pytest.raises(ConfigError, match=r"expected one device, 'auto', 'cpu', .* got 'tpu'"):
        Scaled().to("tpu")


def test_a_module_without_parameters_is_on_the_cpu_in_float32() -> None:
    assert ReLU().backend.name == Scaled().backend.name
    assert ReLU().dtype == "float32"


# -- text
# --------------------------------------------------------------------------------------------------


def test_repr_shows_the_tree_with_counts() -> None:
    model = Sequential(Linear(784, 256), ReLU(), Sequential(Linear(256, 10, bias=False)))
    assert repr(model) == (
        "Sequential(\n  (0): Linear(784, 256, 200,960 parameters)\n  (1): ReLU()\n  (2): "
        "Sequential(\n    (0): Linear(256, 10, bias=False, 2,560 parameters)\n  )  # 2,560 "
        "parameters\n)  # 203,520 parameters"
    )


def test_repr_of_modules_without_parameters_or_children() -> None:
    assert repr(ReLU()) == "ReLU()"
    assert repr(Sequential()) == "Sequential()"
    assert repr(Sequential(ReLU())) == "Sequential(\n  (0): ReLU()\n)  # no parameters"


def test_repr_of_a_custom_module() -> None:
    assert repr(Scaled()).splitlines()[0] == "Scaled("
    assert repr(Scaled()).splitlines()[-1] == ")  # 21 parameters"


def test_summary_of_nested_chains() -> None:
    model = Sequential(Linear(784, 256), ReLU(), Sequential(Linear(256, 10, bias=False)))
    assert model.summary((784,)).splitlines() == [
        "input          (784,)         ",
        "0      Linear  (256,)  200,960",
        "1      ReLU    (256,)        0",
        "2.0    Linear  (10,)     2,560",
        "total                  203,520",
    ]


def test_summary_of_a_custom_module() -> None:
    rows = [line.split() for line in Scaled().summary([3]).splitlines()]
    assert rows == [
        ["input", "(3,)"],
        ["inner.0", "Linear", "(3,)", "12"],
        ["inner.1", "ReLU", "(3,)", "0"],
        ["head", "Linear", "(2,)", "6"],
        ["total", "21"],
    ]


def test_summary_shows_a_layer_that_stands_twice_once() -> None:
    layer = Linear(3, 3)
    assert [line.split()[0] for line in Sequential(layer, layer).summary((3,)).splitlines()] == [
        "input",
        "0",
        "total",
    ]


def test_summary_runs_in_evaluation_and_restores_every_mode() -> None:
    model = Sequential(Mode(), Mode(), Linear(2, 2))
    model[1].eval()
    model.summary((2,))
    assert model[0].seen == model[1].seen == [False]
    assert [module.training for _, module in model.named_modules()] == [True, True, False, True]


def test_summary_of_a_wrong_shape_leaves_the_modes_alone() -> None:
    model = Scaled()
    with pytest.raises(ShapeError):
        model.summary((4,))
    assert [module.training for _, module in model.named_modules()] == [True] * 5


def test_calls_outside_a_summary_are_not_in_it() -> None:
    model = Scaled()
    first = model.summary((3,))
    model(np.ones((1, 3)))
    assert model.summary((3,)) == first
