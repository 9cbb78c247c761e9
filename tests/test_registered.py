"""Every place that has a table of activations, losses or optimizers: it takes each registered one,
or refuses it.

A made-up one is refused in each of them, by an error of the package. A place that a change adds
belongs here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from support.kernels import VARIANTS
from support.training import mlp
from support.unchecked import unchecked
from warpfit import backends, losses, optim, standard_checks
from warpfit.apps.notebook.trainer import OPTIMIZERS as OF_DEMO
from warpfit.apps.playground.messages import BOUNDS
from warpfit.backends import Activation
from warpfit.backends.activations import ACTIVATIONS
from warpfit.backends.base import ELEMENT_LOSSES, LossTerms
from warpfit.backends.cuda import jit, loss, many_small_networks_sm90
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.engines import at_once, launch_network, launch_settings
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.graph import _in_the_way as in_the_way_of_graphs
from warpfit.errors import CompileError, ConfigError, WarpfitError, required
from warpfit.estimators import MLPRegressor, onnx_graph, sklearn_models
from warpfit.estimators import recipes as of_estimators
from warpfit.losses import Loss
from warpfit.losses.elements import ElementLoss
from warpfit.nn import Layer
from warpfit.nn.activations import ActivationLayer, ActivationSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.spec import LayerSpec
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.nadam import NAdamSpec
from warpfit.optim.schedules import Schedule
from warpfit.training import recipes
from warpfit.training.evaluate import network_of
from warpfit.training.settings import LOSSES, OPTIMIZERS, TrainSettings

MADE_UP = "made_up"
DOCS = Path(__file__).resolve().parents[1] / "docs"
API = (DOCS / "api.md").read_text()
# What scikit-learn has; its logistic is the sigmoid.
SKLEARNS = {"identity", "relu", "tanh", "sigmoid"}
OPS = backends.get("cpu")


@dataclass(frozen=True)
class MadeUpLoss(Loss):
    name: ClassVar[str] = ""  # so that nothing else finds it


MadeUpLoss.name = MADE_UP


@dataclass(frozen=True)
class MadeUpElementLoss(ElementLoss):
    def terms(self, outputs: int) -> LossTerms:
        return LossTerms(MADE_UP)


class MadeUpSpec(OptimizerSpec):
    kind: ClassVar[str] = MADE_UP


del OptimizerSpec.by_kind[MADE_UP]


def plan_with(
    loss: Loss | None = None, optimizer: OptimizerSpec | None = None
) -> tuple[Plan, TrainingData]:
    """Return a plan of a small network for a GPU, and data for it."""
    model = mlp(4, 20, 2)
    loss = loss or losses.MeanSquaredError()
    is_of_labels = isinstance(loss, losses.SoftmaxCrossEntropy)
    y = np.zeros(16, np.int64) if is_of_labels else np.zeros((16, 2), np.float32)
    return Plan(
        engine="one_launch",
        device="cuda:0",
        precision="float16",
        network=network_of(model, (4,)),
        loss=loss,
        optimizer=optimizer or optim.SGD(model.parameters()).spec,
        batch_size=16,
        epochs=1,
        trained=tuple(model.state_dict()),
        num_rows=16,
        loss_scale=1024.0,
    ), TrainingData(np.zeros((16, 4), np.float32), y)


def raise_first(obstacles: Iterable[Any]) -> None:
    """Raise the first of an engine's obstacles, if there is one."""
    for obstacle in obstacles:
        raise ConfigError(str(obstacle))


def assert_refused(place: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(WarpfitError) as caught:
        place(value)
    assert MADE_UP in str(caught.value).lower().replace("madeup", MADE_UP)


def is_taken(place: Callable[[Any], Any], value: Any) -> bool:
    """Return whether a place takes a value; what it does not take it refuses by an error of the
    package.
    """
    try:
        place(value)
    except WarpfitError:
        return False
    return True


# -- activations
# -----------------------------------------------------------------------------------------------

Z = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def by_numpy(activation: Activation) -> None:
    OPS.activation_forward(activation, Z)


def by_numpys_derivative(activation: Activation) -> None:
    OPS.activation_backward(activation, Z, Z, Z)


def as_layer(activation: Activation) -> None:
    layer = Layer.from_spec(ActivationSpec(activation))
    assert f"nn.{type(layer).__name__}(" in API


def as_setting(activation: Activation) -> None:
    recipes.make_model(TrainSettings(activation=activation.name, hidden=(3,)), (4,), 2)


def in_playground(activation: Activation) -> None:
    TrainSettings(activation=BOUNDS["activation"].check("activation", activation.name))


def of_estimator(activation: Activation) -> None:
    names = {ours: theirs for theirs, ours in of_estimators.ACTIVATIONS.items()}
    name = names.get(activation.name, activation.name)
    assert of_estimators.hidden_activation(name) == activation
    MLPRegressor(activation=name)._validate_params()


def in_onnx(activation: Activation) -> None:
    pytest.importorskip("onnx")
    graph = onnx_graph._Graph(None)
    assert (activation.formula.onnx(graph, "z", activation.slope) == "z") == (
        activation.name == "identity"
    )


def in_small_networks(activation: Activation) -> None:
    network = TrainedNetwork("float16", (32, 64, 2), (activation,), (False,), 128, "mse")
    required(many_small_networks_sm90.choose_small(network, "sm_90a", 227 << 10))


PLACES_OF_ACTIVATIONS = [
    by_numpy,
    by_numpys_derivative,
    as_layer,
    as_setting,
    in_playground,
    of_estimator,
    in_onnx,
]


@pytest.mark.parametrize("place", PLACES_OF_ACTIVATIONS, ids=lambda place: place.__name__)
def test_all_activations_of_the_table_are_known(place: Callable[[Activation], None]) -> None:
    for name in ACTIVATIONS:
        place(Activation(name))


def test_pages_have_all_activations_and_optimizers() -> None:
    """Coming from a framework one looks here; identities and approximations need no line."""
    known = {
        kind.__name__
        for kind in (*ActivationLayer.by_name.values(), *optim.Optimizer.by_name.values())
    }
    keras, sklearn = ((DOCS / page).read_text() for page in ("from-keras.md", "scikit-learn.md"))
    assert {name for name in known - {"Identity"} if f".{name}`" not in keras} == set()
    assert {name for name in set(ACTIVATIONS) - SKLEARNS if f"`'{name}'`" not in sklearn} == set()


def test_other_activations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(Activation, MADE_UP)
    assert_refused(of_estimators.hidden_activation, MADE_UP)
    assert_refused(lambda name: BOUNDS["activation"].check("activation", name), MADE_UP)
    monkeypatch.setitem(ACTIVATIONS, MADE_UP, ACTIVATIONS["tanh"])
    assert_refused(as_layer, Activation(MADE_UP))


def test_small_networks_take_activations_whose_derivatives_follow_from_values() -> None:
    for name in ACTIVATIONS:
        assert is_taken(in_small_networks, Activation(name)) != Activation(name).needs_input


def test_what_estimators_give_out_is_known_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    graph = onnx_graph._Graph(SimpleNamespace(out_activation_=MADE_UP))
    for name in of_estimators.OUTPUT_FUNCTIONS:
        monkeypatch.setattr(graph.estimator, "out_activation_", name)
        assert (graph._output_activation("z") == "z") == (name == "identity")
    monkeypatch.setattr(graph.estimator, "out_activation_", MADE_UP)
    assert_refused(graph._output_activation, "z")


def test_gradcheck_covers_all_activations() -> None:
    cases = [name for name, *_ in standard_checks.standard_checks()]
    assert all(any(name.endswith(f"+ {known} float64") for name in cases) for known in ACTIVATIONS)


def test_kernels_have_the_activations_of_the_package() -> None:
    listed = re.findall(
        r"DO\((\w+), ([yz])\)", (jit.KERNELS / "ops" / "activation" / "activation.cuh").read_text()
    )
    assert [name for name, _ in listed] == list(ACTIVATIONS)
    assert {name: reads == "z" for name, reads in listed} == {
        name: Activation(name).needs_input for name in ACTIVATIONS
    }


# -- losses
# --------------------------------------------------------------------------------------------------


def in_kernels_settings(loss: Loss) -> None:
    launch_settings.loss_settings(loss, 2)


def in_one_launch(loss: Loss) -> None:
    raise_first(launch_network._in_the_way(plan_with(loss)[0]))


def in_graph(loss: Loss) -> None:
    raise_first(in_the_way_of_graphs(*plan_with(loss)))


def as_setting_of_loss(loss: Loss) -> None:
    assert recipes.make_loss(TrainSettings(loss=loss.name)) == loss


def in_steps_at_once(loss: Loss) -> None:
    if at_once.narrow_loss(*plan_with(loss)) is None:
        raise ConfigError(f"not {loss.name}")
    assert at_once.finds_targets(*plan_with(loss))


IN_ONE_KERNEL = {"cross_entropy", *ELEMENT_LOSSES}
PLACES_OF_LOSSES: dict[Callable[[Loss], None], Iterable[str]] = {
    in_kernels_settings: IN_ONE_KERNEL,
    in_one_launch: IN_ONE_KERNEL,
    in_graph: Loss.by_name,
    in_steps_at_once: IN_ONE_KERNEL,
    as_setting_of_loss: set(LOSSES) - {"auto"},
}


@pytest.mark.parametrize("place", PLACES_OF_LOSSES, ids=lambda place: place.__name__)
def test_losses_are_known_or_refused(place: Callable[[Loss], None]) -> None:
    taken = {name for name, kind in Loss.by_name.items() if is_taken(place, kind())}
    assert taken == set(PLACES_OF_LOSSES[place])
    assert_refused(place, MadeUpLoss())


def test_losses_agree_on_which_count_right_rows() -> None:
    assert {name for name, kind in Loss.by_name.items() if kind.counts_correct} == set(
        loss.COUNTING_LOSSES
    )


def test_what_outputs_mean_is_known_or_refused() -> None:
    outputs = np.zeros((2, 3), np.float32)
    for meaning in (
        lambda loss: loss.probabilities(OPS, outputs),
        lambda loss: loss.labels(outputs),
        lambda loss: loss.num_outputs(3),
    ):
        taken = {name for name, kind in Loss.by_name.items() if is_taken(meaning, kind())}
        assert taken <= set(loss.COUNTING_LOSSES)
        assert "cross_entropy" in taken
        assert_refused(meaning, MadeUpLoss())


def test_every_loss_is_documented_checked_and_has_its_operation() -> None:
    for kind in Loss.by_name.values():
        assert f"losses.{kind.__name__}(" in API
    assert not unchecked()
    outputs = np.zeros((2, 3), np.float32)
    with pytest.raises(ConfigError, match=MADE_UP):
        MadeUpElementLoss().vjp(OPS, outputs, outputs)


# -- optimizers
# ------------------------------------------------------------------------------------------------


def in_step_settings(spec: OptimizerSpec) -> None:
    launch_settings.step_settings(spec, np.ones(3), 0)


def in_rule_settings(spec: OptimizerSpec) -> None:
    launch_settings.rule_settings(spec)


def in_one_launch_by(spec: OptimizerSpec) -> None:
    raise_first(launch_network._in_the_way(plan_with(optimizer=spec)[0]))


def in_graph_by(spec: OptimizerSpec) -> None:
    raise_first(in_the_way_of_graphs(*plan_with(optimizer=spec)))


def in_joined_updates(spec: OptimizerSpec) -> None:
    if not at_once.joins_updates(plan_with(optimizer=spec)[0]):
        raise ConfigError(f"not {spec.kind}")


PLACES_OF_OPTIMIZERS = [
    in_step_settings,
    in_rule_settings,
    in_one_launch_by,
    in_graph_by,
    in_joined_updates,
]


def made(name: str, **settings: Any) -> OptimizerSpec:
    """Return the optimizer of this name on the command line."""
    resolved = TrainSettings(optimizer=name, **settings).resolved(num_rows=9, has_classes=True)
    return recipes.make_optimizer(resolved, mlp(4, 2)).spec


@pytest.mark.parametrize("place", PLACES_OF_OPTIMIZERS, ids=lambda place: place.__name__)
def test_optimizers_are_known_or_refused(place: Callable[[OptimizerSpec], None]) -> None:
    for name in OPTIMIZERS:
        if place is in_graph_by or made(name).follows_its_rule:
            place(made(name))
            continue
        with pytest.raises(ConfigError, match=name):
            place(made(name))
    of_the_package = MadeUpSpec(optim.Constant(0.1))
    assert_refused(place, of_the_package)


def test_a_rule_that_looks_ahead_takes_no_penalty_in_kernels_of_whole_runs() -> None:
    spec = NAdamSpec(optim.Constant(0.1), l2=0.5)
    for place in (in_step_settings, in_rule_settings, in_one_launch_by):
        with pytest.raises(ConfigError, match=r"no l2 of nadam.*0.5"):
            place(spec)


def test_joined_updates_leave_unknown_optimizers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUpSpec, "__module__", "warpfit.optim.made_up")
    assert not at_once.joins_updates(plan_with(optimizer=MadeUpSpec(optim.Constant(0.1)))[0])


def test_names_of_optimizers_stand_for_all_that_are_registered() -> None:
    specs = [made(name) for name in OPTIMIZERS]
    ours = {
        kind
        for kind, spec in OptimizerSpec.by_kind.items()
        if spec.__module__.startswith("warpfit.")
    }
    assert {spec.kind for spec in specs} == ours
    assert set(OPTIMIZERS) == {BOUNDS["optimizer"].check("optimizer", name) for name in OPTIMIZERS}
    assert {settings["optimizer"] for settings in OF_DEMO.values()} == set(OPTIMIZERS)
    for settings in OF_DEMO.values():
        made(settings["optimizer"], **{k: v for k, v in settings.items() if k != "optimizer"})
    for kind in optim.Optimizer.by_name.values():
        assert f"optim.{kind.__name__}(" in API
    assert_refused(made, MADE_UP)
    assert_refused(lambda name: BOUNDS["optimizer"].check("optimizer", name), MADE_UP)


def test_solvers_are_known_or_refused() -> None:
    def make(solver: str) -> Any:
        estimator = MLPRegressor(solver=solver)
        return of_estimators.make_optimizer(estimator, mlp(4, 2), optim.Constant(0.1))

    assert [make(solver).spec.kind for solver in ("sgd", "adam", "adamw")] == [
        "sgd",
        "adam",
        "adam",
    ]
    assert_refused(make, MADE_UP)
    with pytest.raises(ConfigError, match=MADE_UP):
        of_estimators.make_schedule(MADE_UP, 0.1, power=0.5, num_rows=9, seen=0)
    unknown = type(MADE_UP, (), {})()
    assert_refused(
        lambda optimizer: sklearn_models._take_optimizer(SimpleNamespace(), optimizer), unknown
    )


# -- names
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attribute", "registry"),
    [
        (losses.MeanSquaredError, "name", Loss.by_name),
        (optim.Cosine, "name", Schedule.by_name),
        (type(made("sgd")), "kind", OptimizerSpec.by_kind),
        (LinearSpec, "kind", LayerSpec.by_kind),
    ],
)
def test_who_derives_from_a_class_does_not_take_its_name(
    kind: type, attribute: str, registry: Any
) -> None:
    before = dict(registry)
    derived = type("Derived", (kind,), {})
    assert registry == before
    assert getattr(derived, attribute) == "Derived"


# -- kernels
# --------------------------------------------------------------------------------------------------


def with_made_up(name: str) -> list[tuple[str, dict[str, str]]]:
    """Return for every kernel that takes a define of this name a variant with a made-up value."""
    kernels = [
        (kernel, next((d for d in found if name in d), None)) for kernel, found in VARIANTS.items()
    ]
    prefix = "Activation::" if name == "ACTIVATIONS" else ""
    return [
        (
            kernel,
            {
                **defines,
                name: re.sub(r"\w+(?=[,}])", MADE_UP, defines[name]) if prefix else MADE_UP,
            },
        )
        for kernel, defines in kernels
        if defines is not None
    ]


@pytest.mark.in_turns(4)
@pytest.mark.skipif(find_spec("cuda") is None, reason="cuda-core is not installed")
@pytest.mark.parametrize("name", ["ACTIVATION", "ACTIVATIONS", "LOSS", "OPTIMIZER"])
def test_kernels_do_not_compile_with_what_they_do_not_know(name: str) -> None:
    found = with_made_up(name)
    assert found
    for kernel, defines in found:
        with pytest.raises(CompileError, match=MADE_UP):
            jit.compile_kernel(kernel, tuple(defines.items()), "sm_90a")
