"""plan: which engine runs, why, with how much memory; and running a plan again."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from support.devices import open_emulated
from support.training import Taped, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import losses, nn, optim
from warpfit.engines import launch_plan
from warpfit.engines.base import TrainingData
from warpfit.engines.graph import GraphEngine
from warpfit.engines.one_launch import OneLaunchEngine
from warpfit.errors import ConfigError, Obstacle
from warpfit.training.plan import resolve_precision

X, LABELS = blobs(50)


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    return wf.fit(model, X, LABELS, optimizer=optimizer or adam(model), verbose=False, **settings)


def test_auto_takes_the_engine_that_there_is_and_says_so() -> None:
    plan = fit(mlp(6, 3), epochs=0).plan
    assert (plan.engine, plan.device, plan.precision) == ("layerwise", "cpu", "float32")
    assert plan.reason == "on the CPU there is one engine, layerwise"
    assert (
        fit(mlp(6, 3), epochs=0, engine="layerwise").plan.reason
        == "engine 'layerwise' was asked for"
    )


def test_a_plan_holds_what_was_asked_for() -> None:
    model = mlp(6, 8, 3)
    optimizer = sgd(model, optim.Step(0.1))
    plan = fit(model, optimizer, epochs=7, batch_size=9, shuffle=False, class_weight=[1, 2, 3]).plan
    assert (plan.epochs, plan.batch_size, plan.shuffle) == (7, 9, False)
    assert plan.network == model.spec((6,))
    assert plan.loss == losses.SoftmaxCrossEntropy(class_weight=(1.0, 2.0, 3.0))
    assert plan.optimizer == optimizer.spec
    assert plan.trained == tuple(model.state_dict())


def test_bytes_add_up() -> None:
    def measure(model: nn.Module, optimizer: Any, batch_size: int = 10) -> int:
        return fit(model, optimizer, epochs=0, batch_size=batch_size).plan.bytes

    model = mlp(6, 8, 3)
    data, parameters = X.nbytes + LABELS.nbytes, 4 * (6 * 8 + 8 + 8 * 3 + 3)
    activations = 4 * (6 + 8 + 8 + 3)
    assert measure(model, sgd(model)) == data + 2 * parameters + 2 * 10 * activations
    assert measure(model, sgd(model), 20) - measure(model, sgd(model)) == 2 * 10 * activations
    assert measure(model, adam(model)) - measure(model, sgd(model)) == 2 * parameters
    assert measure(mlp(6, 8, 3, dtype="float64"), None) > measure(mlp(6, 8, 3), None)
    assert measure(Taped(mlp(6, 8, 3)), None) >= data + 4 * parameters


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_plan_repeats_its_run(loss: str) -> None:
    outputs = 3 if loss == "cross_entropy" else 1
    first, second = mlp(6, 8, outputs), mlp(6, 8, outputs)
    schedule = optim.Cosine(0.1)
    class_weight = "balanced" if loss == "cross_entropy" else None
    asked = {"loss": loss, "batch_size": 9, "epochs": 3, "shuffle": False, "precision": "float64"}
    history = fit(first, sgd(first, schedule, momentum=0.9), class_weight=class_weight, **asked)
    again = fit(second, sgd(second, 0.5, momentum=0.5), plan=history.plan)
    assert_same_weights(first, second)
    assert again.plan == history.plan
    assert again.plan.reason == history.plan.reason
    np.testing.assert_array_equal(again.step_losses, history.step_losses)
    assert again["lr"] == history["lr"]


def test_a_plan_may_be_changed() -> None:
    first, second, third = (mlp(6, 8, 3) for _ in range(3))
    plan = replace(fit(first, epochs=3).plan, epochs=2)
    fit(second, plan=plan)
    fit(third, epochs=2)
    assert_same_weights(second, third)


def test_precision() -> None:
    assert resolve_precision("auto", "float64", "cpu") == "float64"
    assert resolve_precision("auto", "float32", "cpu") == "auto"
    assert resolve_precision("float32", "float64", "cpu") == "float32"


# -- engine and precision on a CUDA device
# -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:[xy] .*standardise")
@pytest.mark.parametrize(
    ("settings", "precision", "reason"),
    [
        ({}, "float16", "one_launch runs it; the data suits float16; one block"),
        (
            {"x": (255 * X).astype("uint8")},
            "float16",
            "one_launch runs it; the data suits float16; one block",
        ),
        (
            {"x": (255 * X).astype("int64")},
            "float16",
            "one_launch runs it; the data suits float16; one block",
        ),
        (
            {"x": np.where(X.max() > X, X, -1025)},
            "bfloat16",
            "x reaches 1025, float16 is for at most 1024; one",
        ),
        ({"precision": "bfloat16"}, "bfloat16", "one_launch runs it; one block"),
        ({"precision": "float16", "loss_scale": 512}, "float16", "one_launch runs it; one block"),
        (
            {"loss": "mse", "y": 2000 * X[:, :3]},
            "bfloat16",
            r"y reaches \S+, float16 is for at most 1024; one block",
        ),
    ],
)
def test_auto_takes_one_launch_where_it_can(
    cuda: str, settings: dict[str, Any], precision: str, reason: str
) -> None:
    model = mlp(6, 3)
    data = {"x": X, "y": LABELS}
    asked = {
        **data,
        "optimizer": sgd(model),
        "device": cuda,
        "epochs": 0,
        "verbose": False,
        **settings,
    }
    plan = wf.fit(model, **asked).plan
    assert (plan.engine, plan.precision) == ("one_launch", precision)
    assert re.search(reason, plan.reason)
    scale = 2.0**15 if precision == "float16" else 1.0
    assert plan.loss_scale == settings.get("loss_scale", scale)
    assert wf.fit(model, **{**asked, "engine": "one_launch"}).plan == replace(
        plan,
        reason=plan.reason.replace("one_launch runs it", "engine 'one_launch' was asked for"),
        asked=("one_launch", asked.get("precision", "auto")),
    )


@pytest.mark.parametrize(
    ("loss", "largest_x", "largest_y", "over"),
    [
        ("cross_entropy", 900.0, None, 1),
        ("huber", 900.0, 900.0, 1),
        ("mse", 0.5, 0.25, 1),
        ("mse", 100.0, 0.25, 256),
        ("mse", 0.5, 900.0, 2048),
    ],
)
def test_errors_that_may_be_large_to_begin_with_are_scaled_less(
    cuda: str, loss: str, largest_x: float, largest_y: float | None, over: float
) -> None:
    x = X * (largest_x / np.abs(X).max())
    y = LABELS if largest_y is None else X[:, :3] * (largest_y / np.abs(X[:, :3]).max())
    model = mlp(6, 3)
    settings: dict[str, Any] = {"loss": loss, "device": cuda, "epochs": 0}
    plan = wf.fit(model, x, y, optimizer=sgd(model), verbose=False, **settings).plan
    assert plan.engine == "one_launch"
    assert plan.loss_scale == 2.0**15 / over


@pytest.mark.parametrize(
    ("make", "settings", "precision", "obstacle"),
    [
        (
            lambda: mlp(6, 3),
            {"precision": "tf32"},
            "tf32",
            "precision 'float16', 'bfloat16' or 'float32', got 'tf32'",
        ),
        (
            lambda: mlp(6, 3, dtype="float64"),
            {},
            "float64",
            "precision 'float16', 'bfloat16' or 'float32', got 'float64'",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
            {},
            "float16",
            "linear layers, activations and dropout, got layer_norm",
        ),
        (lambda: mlp(6, 200), {}, "float16", "at most 128 outputs, got 200"),
        (
            lambda: nn.Sequential(nn.Linear(6, 3, bias=False)),
            {"precision": "float16"},
            "float16",
            "layers with a bias, got layer 0 without one",
        ),
        (
            lambda: mlp(6, 5, 5, 3),
            {"optimizer": partial(adam, l2=1.0, clip_norm=2.0)},
            "float16",
            "clip_norm or l2, not both, got 2.0",
        ),
    ],
)
def test_auto_takes_graphs_and_says_what_is_in_the_way_of_one_launch(
    cuda: str, make: Any, settings: dict[str, Any], precision: str, obstacle: str
) -> None:
    model = make()
    settings = {"optimizer": sgd, **settings}
    settings["optimizer"] = settings["optimizer"](model)
    plan = fit(model, device=cuda, epochs=0, **settings).plan
    assert (plan.engine, plan.precision) == ("graph", precision)
    assert plan.reason.startswith(f"graph runs it; one_launch: expected {obstacle}; ")
    assert type(plan.loss_scale) is float


@pytest.mark.parametrize(
    ("make", "settings", "obstacles"),
    [
        (
            lambda: Taped(mlp(6, 3)),
            {},
            "one_launch: expected a Sequential of known layers, got another module; "
            "graph: expected a Sequential of the package's layers, got a module of its own",
        ),
        (
            lambda: mlp(6, 3),
            {"precision": "float16", "loss_scale": "dynamic"},
            "one_launch: expected a fixed loss_scale, got dynamic; graph: expected a fixed "
            "loss_scale, got 'dynamic', which the host finds after each step",
        ),
    ],
)
def test_auto_says_what_is_in_the_way_of_all_but_layerwise(
    cuda: str, make: Any, settings: dict[str, Any], obstacles: str
) -> None:
    model = make()
    plan = fit(model, sgd(model), device=cuda, epochs=0, **settings).plan
    assert (plan.engine, plan.reason) == ("layerwise", obstacles)


def test_layerwise_computes_in_the_parameters_dtype(cuda: str) -> None:
    for dtype in ("float32", "float64"):
        model = mlp(6, 3, dtype=dtype)
        plan = fit(model, sgd(model), device=cuda, engine="layerwise", epochs=0).plan
        assert (plan.precision, plan.reason) == (dtype, "engine 'layerwise' was asked for")


@on_emulator
@pytest.mark.filterwarnings("ignore:[xy] .*standardise")
@pytest.mark.parametrize(
    ("arch", "x", "engine", "reason"),
    [
        ("sm_70", X, "graph", "one_launch: expected tensor cores, of sm_75 or later, got sm_70"),
        ("sm_75", X, "one_launch", "the data suits float16"),
        ("sm_75", 2000 * X, "graph", "tensor cores of sm_75 do not multiply bfloat16"),
    ],
)
def test_devices_without_the_tensor_cores_for_it(
    monkeypatch: pytest.MonkeyPatch, arch: str, x: Any, engine: str, reason: str
) -> None:
    open_emulated(monkeypatch, arch=arch)
    model = mlp(6, 3)
    plan = wf.fit(
        model, x, LABELS, optimizer=sgd(model), device="cuda", epochs=0, verbose=False
    ).plan
    assert plan.engine == engine
    assert reason in plan.reason
    assert plan.precision == ("float16" if engine == "one_launch" else "float32")


def test_a_resumed_run_keeps_engine_and_precision(cuda: str, tmp_path: Any) -> None:
    def train(**settings: Any) -> tuple[nn.Module, wf.History]:
        model = mlp(6, 3)
        return model, fit(model, sgd(model, momentum=0.9), device=cuda, batch_size=16, **settings)

    whole, _ = train(epochs=3)
    train(epochs=2, callbacks=[wf.Checkpoint(tmp_path / "run")])
    resumed, history = train(epochs=3, resume_from=tmp_path / "run")
    assert (history.plan.engine, history.plan.precision) == ("one_launch", "float16")
    assert_same_weights(resumed, whole)
    with pytest.raises(ConfigError, match="differs in precision"):
        train(epochs=3, resume_from=tmp_path / "run", precision="float32")


# -- what engines prepare
# ----------------------------------------------------------------------------------


@pytest.fixture
def within_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it pay to validate within launches."""
    monkeypatch.setattr(launch_plan, "MICROSECONDS_BETWEEN_LAUNCHES", 1e6)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("sizes", [(6, 8, 3), (6, 80, 8, 3)], ids=str)
def test_a_launch_is_found_once(
    cuda: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, sizes: tuple[int, ...]
) -> None:
    found: list[str] = []
    chosen, prepare = launch_plan._chosen, OneLaunchEngine.prepare

    def noted(network: Any, card: Any, by_layers: bool) -> Any:
        found.append("launch")
        return chosen(network, card, by_layers)

    def prepared(self: Any, *given: Any) -> Any:
        found.append("prepared")
        return prepare(self, *given)

    monkeypatch.setattr(launch_plan, "_chosen", noted)
    monkeypatch.setattr(OneLaunchEngine, "prepare", prepared)
    model = mlp(*sizes)
    # Layer by layer the kernel validates and stops itself; for one hidden layer, or small layers,
    # there is another that might.
    more = {"validation_data": (X, LABELS)} if len(sizes) > 3 else {}
    callbacks = (
        [wf.EarlyStopping("loss"), wf.Checkpoint(tmp_path / "run")] if len(sizes) > 3 else []
    )
    fit(model, device=cuda, epochs=2, callbacks=callbacks, **more)
    assert found == ["prepared", "launch"]


def test_a_plan_says_what_is_done_within_launches(
    cuda: str, within_launches: None, tmp_path: Any
) -> None:
    """Another kernel trains the network with validation rows, and so its plan is another."""
    path, validated = tmp_path / "run", {"validation_data": (X[:20], LABELS[:20])}
    plain = fit(mlp(6, 8, 3), device=cuda, epochs=1).plan
    checkpoint = wf.Checkpoint(path)
    plan = fit(mlp(6, 8, 3), device=cuda, epochs=1, callbacks=[checkpoint], **validated).plan
    kernel = plain.prepared.launch.kernel
    assert (kernel, plain.prepared.validates) == ("one_launch_small_sm90", False)
    assert (plan.prepared.launch.kernel, plan.prepared.validates) == ("one_launch_layers", True)
    assert plan != plain
    assert "layer by layer" in plan.reason
    assert plan.identity() == plain.identity()
    stopping = fit(mlp(6, 8, 3), device=cuda, epochs=1, callbacks=[wf.EarlyStopping("loss")]).plan
    assert (stopping.prepared.validates, stopping.prepared.stops) == (False, True)
    # Any kernel goes on from the state that another has left.
    models = [mlp(6, 8, 3) for _ in range(2)]
    resumed = [fit(models[0], device=cuda, epochs=2, resume_from=path).plan]
    resumed.append(fit(models[1], device=cuda, epochs=2, resume_from=path, **validated).plan)
    assert [own.prepared.launch.kernel for own in resumed] == [kernel, "one_launch_layers"]
    for own, other in zip(*(model.parameters() for model in models), strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), atol=2e-3)


def test_equal_plans_give_equal_bits_validation_included(cuda: str, within_launches: None) -> None:
    first, second = mlp(6, 8, 3), mlp(6, 8, 3)
    history = fit(first, device=cuda, epochs=2, validation_data=(X[:20], LABELS[:20]))
    again = fit(second, plan=history.plan, validation_data=(X[20:40], LABELS[20:40]))
    assert again.plan == history.plan
    assert_same_weights(first, second)


@pytest.mark.parametrize("engine", ["layerwise", "graph", "one_launch"])
def test_what_is_prepared_is_printed_and_pickled(cuda: str, engine: str) -> None:
    plan = fit(mlp(6, 8, 3), device=cuda, engine=engine, epochs=0).plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert repr(plan.prepared) in repr(plan)
    assert plan.prepared.reason in plan.reason


def test_obstacles_are_values() -> None:
    draft = fit(mlp(6, 3), epochs=0).plan
    for engine in (OneLaunchEngine(), GraphEngine()):
        found = engine.prepare(draft, TrainingData(X, LABELS))
        assert isinstance(found, Obstacle)
        assert str(found).startswith("expected a CUDA device, got ")


def test_a_plan_is_printable() -> None:
    text = repr(fit(mlp(6, 3), epochs=0).plan)
    for part in (
        "engine='layerwise'",
        "precision='float32'",
        "LinearSpec(in_features=6",
        "AdamSpec(",
    ):
        assert part in text


@pytest.mark.parametrize(("num_rows", "batch_size"), [(9, 4), (3, 1)])
def test_a_last_batch_too_small_for_a_layer_is_found_before_the_first_step(
    num_rows: int, batch_size: int
) -> None:
    model = nn.Sequential(nn.Linear(3, 4, seed=0), nn.BatchNorm1d(4), nn.Linear(4, 2, seed=1))
    before = model.state_dict()
    x, y = np.ones((num_rows, 3), np.float32), np.arange(num_rows) % 2
    with pytest.raises(ConfigError, match=r"at least 2 rows.*leave 1 for the last"):
        wf.fit(
            model,
            x,
            y,
            optimizer=optim.SGD(model.parameters()),
            batch_size=batch_size,
            verbose=False,
        )
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
