from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from warpfit import Tensor
from warpfit.backends import NumpyBackend
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.nn import Parameter
from warpfit.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    Lion,
    NAdam,
    Optimizer,
    RMSprop,
)

NAN = float("nan")
SHAPES = ((3, 4), (4,))

Make = Callable[[Sequence[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.02, momentum=0.9),
    "nesterov": lambda p: SGD(p, 0.02, momentum=0.9, nesterov=True),
    "scikit-learn's momentum": lambda p: SGD(
        p, 0.02, momentum=0.9, nesterov=True, lr_in_velocity=True
    ),
    "adam": lambda p: Adam(p, 0.1),
    "scikit-learn's adam": lambda p: Adam(p, 0.1, eps_before_correction=True),
    "adamw": lambda p: AdamW(p, 0.1, weight_decay=1e-4),
    "rmsprop": lambda p: RMSprop(p, 0.005),
    "rmsprop, momentum": lambda p: RMSprop(p, 0.001, momentum=0.9),
    "lion": lambda p: Lion(p, 0.01),
    "adagrad": lambda p: Adagrad(p, 0.5),
    "adadelta": lambda p: Adadelta(p, eps=1e-4),
    "nadam": lambda p: NAdam(p, 0.1),
    "clipped": lambda p: SGD(p, 0.1, clip_norm=5.0),
}


@pytest.fixture
def torch() -> Iterator[Any]:
    """Return PyTorch, whose optimizers count in float32 unless numbers are float64 by default."""
    found = pytest.importorskip("torch")
    before = found.get_default_dtype()
    found.set_default_dtype(found.float64)
    yield found
    found.set_default_dtype(before)


@pytest.fixture(params=OPTIMIZERS)
def make(request: pytest.FixtureRequest) -> Make:
    return OPTIMIZERS[request.param]


def new_parameters(dtype: str = "float64") -> list[Parameter]:
    rng = np.random.default_rng(0)
    return [Parameter(rng.standard_normal(shape).astype(dtype)) for shape in SHAPES]


def gradients(step: int, dtype: str = "float64") -> list[Any]:
    rng = np.random.default_rng(100 + step)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


def give(parameters: Sequence[Tensor], step: int) -> None:
    for parameter, gradient in zip(
        parameters, gradients(step, str(parameters[0].dtype)), strict=True
    ):
        parameter.grad = gradient


def train(optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        give(optimizer.parameters, step)
        optimizer.step()


def snapshot(parameters: Sequence[Tensor]) -> list[Any]:
    return [parameter.data.copy() for parameter in parameters]


def assert_equal_lists(one: Sequence[Any], other: Sequence[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


# -- one step by hand
# --------------------------------------------------------------------------------------


def one_step(optimizer_class: Any, w: Any = 1.0, g: Any = 2.0, **settings: Any) -> float:
    parameter = Parameter(np.array([w]))
    parameter.grad = np.array([g])
    optimizer_class([parameter], **settings).step()
    return float(parameter.data[0])


def test_first_steps() -> None:
    assert one_step(SGD, lr=0.1) == pytest.approx(1 - 0.1 * 2)
    assert one_step(SGD, lr=0.1, momentum=0.9) == pytest.approx(1 - 0.1 * 2)
    assert one_step(SGD, lr=0.1, momentum=0.9, nesterov=True) == pytest.approx(
        1 - 0.1 * (2 + 0.9 * 2)
    )
    assert one_step(SGD, lr=0.1, weight_decay=0.5) == pytest.approx(1 - 0.1 * (2 + 0.5))
    assert one_step(SGD, lr=0.1, clip_norm=0.5) == pytest.approx(1 - 0.1 * 0.5, rel=1e-6)
    assert one_step(Adam, lr=0.1) == pytest.approx(1 - 0.1)
    assert one_step(Adam, lr=0.1, eps=1.0) == pytest.approx(1 - 0.1 * 2 / 3)
    assert one_step(AdamW, lr=0.1, weight_decay=0.5) == pytest.approx(1 - 0.1 * 0.5 - 0.1)
    assert one_step(RMSprop, lr=0.1, alpha=0.75) == pytest.approx(1 - 0.1 * 2 / 1)
    assert one_step(RMSprop, lr=0.1, alpha=0.75, eps=1.0) == pytest.approx(1 - 0.1 * 2 / 2)


def test_eps_before_correction_is_scikit_learns_form() -> None:
    m, v = 0.1 * 2, 0.001 * 4
    rate = 0.1 * np.sqrt(1 - 0.999) / (1 - 0.9)
    expected = 1 - rate * m / (np.sqrt(v) + 0.01)
    assert one_step(Adam, lr=0.1, eps=0.01, eps_before_correction=True) == pytest.approx(expected)


def test_lr_in_velocity_remembers_the_rate_of_each_step() -> None:
    parameter = Parameter(np.array([1.0]))
    optimizer = SGD([parameter], momentum=0.5, lr_in_velocity=True)
    for lr in (1.0, 0.1):
        parameter.grad = np.array([2.0])
        optimizer.step(lr)
    assert optimizer.slots["velocity"][0] == pytest.approx(0.5 * -2 - 0.1 * 2)
    assert parameter.data == pytest.approx(1 - 2 - 1.2)


def test_defaults_are_pytorchs() -> None:
    parameters = new_parameters()
    adam, adamw, rmsprop = Adam(parameters).spec, AdamW(parameters).spec, RMSprop(parameters).spec
    assert (adam.lr.lr, adam.betas, adam.eps, adam.weight_decay) == (1e-3, (0.9, 0.999), 1e-8, 0)
    assert (adamw.lr.lr, adamw.weight_decay, adamw.decoupled) == (1e-3, 0.01, True)
    assert (rmsprop.lr.lr, rmsprop.alpha, rmsprop.eps, rmsprop.momentum) == (0.01, 0.99, 1e-8, 0)
    assert not adam.decoupled


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_optimizer_finds_the_bottom_of_a_bowl(make: Make, dtype: str) -> None:
    slope, bottom = np.array([1, 3, 10], dtype), np.array([2, -1, 0.5], dtype)
    parameter = Parameter(np.zeros(3, dtype))
    optimizer = make([parameter])
    for _ in range(1500):
        parameter.grad = slope * (parameter.data - bottom)
        optimizer.step()
    assert parameter.data.dtype == dtype
    np.testing.assert_allclose(parameter.data, bottom, atol=0.005)


# -- PyTorch
# -----------------------------------------------------------------------------------------------

PAIRS: dict[str, tuple[Callable[..., Optimizer], str, dict[str, Any]]] = {
    "sgd": (SGD, "SGD", {"lr": 0.1}),
    "weight decay": (SGD, "SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (SGD, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "momentum, weight decay": (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "adam": (Adam, "Adam", {}),
    "adam, settings": (
        Adam,
        "Adam",
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 0.1, "weight_decay": 0.1},
    ),
    "adamw": (AdamW, "AdamW", {}),
    "adamw, settings": (
        AdamW,
        "AdamW",
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 0.1, "weight_decay": 0.1},
    ),
    "rmsprop": (RMSprop, "RMSprop", {}),
    "rmsprop, momentum": (RMSprop, "RMSprop", {"momentum": 0.9}),
    "rmsprop, settings": (
        RMSprop,
        "RMSprop",
        {"lr": 0.1, "alpha": 0.5, "eps": 0.1, "weight_decay": 0.1, "momentum": 0.5},
    ),
    "adagrad": (Adagrad, "Adagrad", {}),
    "adagrad, settings": (
        Adagrad,
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "eps": 0.1, "weight_decay": 0.1},
    ),
    "adadelta": (Adadelta, "Adadelta", {}),
    "adadelta, settings": (
        Adadelta,
        "Adadelta",
        {"lr": 0.5, "rho": 0.5, "eps": 0.1, "weight_decay": 0.1},
    ),
    "nadam": (NAdam, "NAdam", {}),
    "nadam, settings": (
        NAdam,
        "NAdam",
        {
            "lr": 0.1,
            "betas": (0.5, 0.9),
            "eps": 0.1,
            "weight_decay": 0.1,
            "momentum_decay": 0.3,
        },
    ),
}


@pytest.mark.parametrize("clip_norm", [None, 1.5])
@pytest.mark.parametrize("name", PAIRS)
def test_steps_are_pytorchs(torch: Any, name: str, clip_norm: float | None) -> None:
    ours_class, theirs_name, settings = PAIRS[name]
    ours = new_parameters()
    theirs = [torch.nn.Parameter(torch.tensor(parameter.data)) for parameter in ours]
    optimizer = ours_class(ours, **settings, clip_norm=clip_norm)
    reference = getattr(torch.optim, theirs_name)(theirs, **settings)
    for step in range(30):
        give(ours, step)
        for parameter, gradient in zip(theirs, gradients(step), strict=True):
            parameter.grad = torch.tensor(gradient)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs, clip_norm)
        optimizer.step()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.data, other.detach().numpy(), rtol=1e-11, atol=1e-13)


# -- settings
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer_class", "settings", "message"),
    [
        (SGD, {"lr": -0.1}, "Constant: expected a learning rate that is finite and at least 0"),
        (SGD, {"lr": NAN}, "Constant: expected a learning rate"),
        (SGD, {"lr": "fast"}, "expected a learning rate or a schedule, got 'fast'"),
        (SGD, {"lr": None}, "expected a learning rate or a schedule, got None"),
        (SGD, {"momentum": 1.1}, r"sgd: expected momentum in \[0, 1\], got 1.1"),
        (SGD, {"momentum": -0.1}, r"sgd: expected momentum in \[0, 1\]"),
        (SGD, {"nesterov": True}, "sgd: expected momentum above 0 for nesterov, got 0.0"),
        (SGD, {"weight_decay": -1}, "sgd: expected weight_decay of at least 0, got -1"),
        (SGD, {"clip_norm": 0}, "sgd: expected clip_norm above 0 or None, got 0"),
        (SGD, {"clip_norm": NAN}, "sgd: expected clip_norm above 0 or None"),
        (SGD, {"l2": -1}, "sgd: expected l2 of at least 0, got -1"),
        (Adam, {"betas": (0.9, 1.0)}, r"adam: expected betas in \[0, 1\), got \(0.9, 1.0\)"),
        (Adam, {"betas": (-0.1, 0.9)}, r"adam: expected betas in \[0, 1\)"),
        (Adam, {"betas": (0.9,)}, r"adam: expected betas as two numbers, got \(0.9,\)"),
        (Adam, {"betas": (0.9, 0.99, 0.999)}, "adam: expected betas as two numbers"),
        (Adam, {"betas": 0.9}, "adam: expected betas as two numbers, got 0.9"),
        (Adam, {"eps": "small"}, "adam: expected eps to be a number, got 'small'"),
        (SGD, {"momentum": None}, "sgd: expected momentum to be a number, got None"),
        (SGD, {"nesterov": 1}, "sgd: expected nesterov to be True or False, got 1"),
        (SGD, {"weight_decay": True}, "sgd: expected weight_decay to be a number, got True"),
        (Adam, {"eps": 0}, "adam: expected eps above 0, got 0"),
        (AdamW, {"weight_decay": NAN}, "adamw: expected weight_decay of at least 0, got nan"),
        (RMSprop, {"alpha": 1}, r"rmsprop: expected alpha in \[0, 1\), got 1"),
        (RMSprop, {"eps": -1e-8}, "rmsprop: expected eps above 0"),
        (RMSprop, {"momentum": 2}, r"rmsprop: expected momentum in \[0, 1\)"),
        (RMSprop, {"weight_decay": -1}, "rmsprop: expected weight_decay of at least 0"),
        (Adagrad, {"lr_decay": -1}, "adagrad: expected lr_decay of at least 0, got -1"),
        (Adagrad, {"eps": 0}, "adagrad: expected eps above 0, got 0"),
        (Adadelta, {"rho": 1}, r"adadelta: expected rho in \[0, 1\), got 1"),
        (Adadelta, {"eps": 0}, "adadelta: expected eps above 0, got 0"),
        (NAdam, {"momentum_decay": -1}, "nadam: expected momentum_decay of at least 0, got -1"),
        (NAdam, {"betas": (0.9, 1.0)}, r"nadam: expected betas in \[0, 1\)"),
    ],
)
def test_refuses_settings(optimizer_class: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optimizer_class(new_parameters(), **settings)


def test_refuses_what_are_no_parameters() -> None:
    with pytest.raises(ConfigError, match="sgd: expected a sequence of parameters, got array"):
        SGD(np.array(3), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sgd: expected parameters to optimise, got none"):
        SGD([])
    with pytest.raises(ConfigError, match="adam: expected parameters, got ndarray"):
        Adam([np.ones(2)])  # type: ignore[list-item]
    parameters = new_parameters()
    with pytest.raises(
        ConfigError, match="sgd: expected each parameter once, got one several times"
    ):
        SGD(parameters + parameters[:1])


def test_takes_any_iterable_of_parameters() -> None:
    parameters = new_parameters()
    assert SGD(iter(parameters)).parameters == parameters  # type: ignore[arg-type]


def test_specs_are_values() -> None:
    parameters = new_parameters()
    assert SGD(parameters, 0.1).spec == SGD(new_parameters(), 0.1).spec
    assert Adam(parameters, betas=[0.9, 0.99]).spec == Adam(parameters, betas=(0.9, 0.99)).spec  # type: ignore[arg-type]
    assert hash(Adam(parameters).spec) != hash(AdamW(parameters).spec)
    description = SGD(parameters, Cosine(0.1), momentum=0.9, clip_norm=1.0).spec.to_dict()
    assert json.loads(json.dumps(description)) == {
        "kind": "sgd",
        "lr": {"name": "cosine", "lr": 0.1, "final_lr": 0.0, "warmup_epochs": 0.0},
        "clip_norm": 1.0,
        "l2": 0.0,
        "l2_by_weight": False,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
        "lr_in_velocity": False,
    }


def test_repr() -> None:
    text = repr(Adam(new_parameters(), 0.1))
    assert text.startswith("Adam(2 parameters, AdamSpec(lr=Constant(lr=0.1), ")


# -- steps
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("sgd", set()),
        ("momentum", {"velocity"}),
        ("adam", {"first_moment", "second_moment"}),
        ("adamw", {"first_moment", "second_moment"}),
        ("rmsprop", {"square_average"}),
        ("adagrad", {"square_sum"}),
        ("adadelta", {"square_average", "step_average"}),
        ("nadam", {"first_moment", "second_moment"}),
        ("rmsprop, momentum", {"square_average", "velocity"}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slots(name: str, slots: set[str], dtype: str) -> None:
    optimizer = OPTIMIZERS[name](new_parameters(dtype))
    assert optimizer.slots == {}
    made = optimizer.make_slots()
    assert set(made) == set(optimizer.spec.slot_names) == slots
    for arrays in made.values():
        assert [array.shape for array in arrays] == list(SHAPES)
        assert all((array == 0).all() and array.dtype == dtype for array in arrays)
    train(optimizer, range(1))
    assert all((array != 0).all() for arrays in optimizer.slots.values() for array in arrays)


def test_steps_change_arrays_in_place_and_are_counted() -> None:
    parameters = new_parameters()
    arrays = [parameter.data for parameter in parameters]
    optimizer = Adam(parameters)
    train(optimizer, range(3))
    assert optimizer.step_count == 3
    assert all(parameter.data is array for parameter, array in zip(parameters, arrays, strict=True))
    assert_equal_lists([p.grad for p in parameters], gradients(2))


def test_a_parameter_without_gradient_stays(make: Make) -> None:
    parameters = new_parameters()
    optimizer = make(parameters)
    train(optimizer, range(2))
    before, slots = (
        parameters[0].data.copy(),
        [arrays[0].copy() for arrays in optimizer.slots.values()],
    )
    moved = parameters[1].data.copy()
    give(parameters, 2)
    parameters[0].grad = None
    optimizer.step()
    np.testing.assert_array_equal(parameters[0].data, before)
    assert_equal_lists([arrays[0] for arrays in optimizer.slots.values()], slots)
    assert (parameters[1].data != moved).all()


def test_a_step_without_any_gradient_changes_nothing() -> None:
    parameters = new_parameters()
    before = snapshot(parameters)
    optimizer = SGD(parameters, weight_decay=0.1)
    optimizer.step()
    assert_equal_lists(snapshot(parameters), before)


def test_zero_grad_forgets_gradients() -> None:
    optimizer = SGD(new_parameters())
    give(optimizer.parameters, 0)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in optimizer.parameters)


def test_clip_norm_scales_all_gradients_together() -> None:
    parameters = new_parameters()
    before = snapshot(parameters)
    norm = np.sqrt(sum(np.vdot(g, g) for g in gradients(0)))
    give(parameters, 0)
    SGD(parameters, 1.0, clip_norm=0.5).step()
    for start, parameter, gradient in zip(before, parameters, gradients(0), strict=True):
        np.testing.assert_allclose(parameter.data, start - 0.5 / norm * gradient, rtol=1e-5)


def test_clip_norm_leaves_small_gradients_alone() -> None:
    clipped, free = new_parameters(), new_parameters()
    train(SGD(clipped, 0.1, clip_norm=100), range(3))
    train(SGD(free, 0.1), range(3))
    assert_equal_lists(snapshot(clipped), snapshot(free))


def test_l2_shrinks_weights_but_not_biases() -> None:
    parameters = new_parameters()
    (w, b), (gw, gb) = snapshot(parameters), gradients(0)
    give(parameters, 0)
    SGD(parameters, 0.1, l2=0.5).step(num_rows=10)
    np.testing.assert_allclose(parameters[0].data, w - 0.1 * (gw + 0.05 * w), rtol=1e-12)
    np.testing.assert_allclose(parameters[1].data, b - 0.1 * gb, rtol=1e-12)


def test_l2_returns_the_penalty() -> None:
    parameters = new_parameters()
    spec, arrays = Adam(parameters, l2=0.5).spec, snapshot(parameters)
    penalty = spec.add_penalty(NumpyBackend(), arrays, gradients(0), num_rows=10)
    assert float(penalty) == pytest.approx(0.5 / 10 / 2 * np.vdot(arrays[0], arrays[0]))
    without = Adam(parameters).spec
    assert without.add_penalty(NumpyBackend(), arrays, gradients(0), num_rows=10) is None


def test_l2_joins_the_gradient_before_it_is_clipped() -> None:
    parameter = Parameter(np.array([[3.0, 4.0]]))
    parameter.grad = np.zeros((1, 2))
    SGD([parameter], 1.0, l2=1.0, clip_norm=0.5).step(num_rows=1)
    np.testing.assert_allclose(parameter.data, [[3 - 0.3, 4 - 0.4]], rtol=1e-6)


def test_l2_needs_the_number_of_rows() -> None:
    parameters = new_parameters()
    optimizer = SGD(parameters, l2=0.1)
    before = snapshot(parameters)
    give(parameters, 0)
    with pytest.raises(
        ConfigError, match="step: expected num_rows= for an optimizer with l2, got None"
    ):
        optimizer.step()
    assert_equal_lists(snapshot(parameters), before)
    assert optimizer.step_count == 0


def test_a_schedule_needs_the_rate_of_the_step() -> None:
    parameters = new_parameters()
    optimizer = SGD(parameters, Cosine(0.1))
    (w, b), (gw, gb) = snapshot(parameters), gradients(0)
    give(parameters, 0)
    with pytest.raises(
        ConfigError, match=r"step: expected lr= for the schedule Cosine\(lr=0.1.* outside fit"
    ):
        optimizer.step()
    assert optimizer.step_count == 0
    optimizer.step(lr=0.5)
    assert_equal_lists(snapshot(parameters), [w - 0.5 * gw, b - 0.5 * gb])


def test_the_rate_of_a_step_takes_precedence() -> None:
    parameters = new_parameters()
    before = snapshot(parameters)
    give(parameters, 0)
    SGD(parameters, 0.1).step(lr=0.0)
    assert_equal_lists(snapshot(parameters), before)


@pytest.mark.parametrize(
    ("gradient", "error"), [(np.ones((4, 3)), ShapeError), (np.ones((3, 4), "float32"), DTypeError)]
)
def test_a_gradient_that_does_not_fit_changes_nothing(
    make: Make, gradient: Any, error: Any
) -> None:
    parameters = new_parameters()
    optimizer = make(parameters)
    before = snapshot(parameters)
    give(parameters, 0)
    parameters[0].grad = gradient
    with pytest.raises(error):
        optimizer.step()
    assert_equal_lists(snapshot(parameters), before)
    assert optimizer.step_count == 0


@pytest.mark.parametrize("size", [0, 1])
def test_small_and_empty_parameters(make: Make, size: int) -> None:
    parameter = Parameter(np.ones((size, 3)))
    optimizer = make([parameter])
    parameter.grad = np.ones((size, 3))
    optimizer.step()
    assert parameter.data.shape == (size, 3)
    assert (parameter.data < 1).all()


# -- state
# -------------------------------------------------------------------------------------------------


def test_a_restored_optimizer_goes_on_bit_for_bit(make: Make) -> None:
    straight, interrupted = new_parameters(), new_parameters()
    train(make(straight), range(10))
    first = make(interrupted)
    train(first, range(5))
    resumed = [Parameter(parameter.data.copy()) for parameter in interrupted]
    second = make(resumed)
    second.load_state_dict(first.state_dict())
    assert second.step_count == 5
    train(second, range(5, 10))
    assert_equal_lists(snapshot(resumed), snapshot(straight))


def test_state_dict_holds_copies() -> None:
    optimizer = SGD(new_parameters(), momentum=0.9)
    assert optimizer.state_dict()["step_count"] == 0
    assert_equal_lists(
        optimizer.state_dict()["slots"]["velocity"], [np.zeros(shape) for shape in SHAPES]
    )
    train(optimizer, range(1))
    state = optimizer.state_dict()
    state["slots"]["velocity"][0] += 1
    assert_equal_lists(optimizer.slots["velocity"], gradients(0))


def test_load_state_dict_takes_lists_and_keeps_the_dtype() -> None:
    optimizer = SGD([Parameter(np.zeros(2, "float32"))], momentum=0.9)
    optimizer.load_state_dict({"step_count": 3, "slots": {"velocity": [[1, 2]]}})
    assert optimizer.step_count == 3
    assert optimizer.slots["velocity"][0].dtype == "float32"
    np.testing.assert_array_equal(optimizer.slots["velocity"][0], [1, 2])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"step_count": None},
            ConfigError,
            r"expected a state with step_count and slots, got \['slots'\]",
        ),
        (
            {"slots": None},
            ConfigError,
            r"expected a state with step_count and slots, got \['step_count'\]",
        ),
        ({"lr": 0.1}, ConfigError, "expected a state with step_count and slots, got"),
        ({"slots": {}}, ConfigError, r"expected the slots \['velocity'\], got \[\]"),
        (
            {"slots": {"speed": []}},
            ConfigError,
            r"expected the slots \['velocity'\], got \['speed'\]",
        ),
        (
            {"slots": {"velocity": [np.ones((3, 4))]}},
            ShapeError,
            r"slot velocity: expected shapes \[\(3, 4\), \(4,\)\], got \[\(3, 4\)\]",
        ),
        (
            {"slots": {"velocity": [np.ones((3, 4)), np.ones(3)]}},
            ShapeError,
            r"got \[\(3, 4\), \(3,\)\]",
        ),
        ({"slots": {"velocity": [np.ones((3, 4)), ["a"] * 4]}}, DTypeError, "expected numbers"),
    ],
)
def test_load_state_dict_changes_nothing_on_an_error(
    change: dict[str, Any], error: Any, message: str
) -> None:
    optimizer = SGD(new_parameters(), momentum=0.9)
    train(optimizer, range(2))
    before = optimizer.state_dict()
    state = {"step_count": 7, "slots": {"velocity": gradients(5)}} | change
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(
            {name: value for name, value in state.items() if value is not None}
        )
    assert optimizer.step_count == 2
    assert_equal_lists(optimizer.slots["velocity"], before["slots"]["velocity"])
