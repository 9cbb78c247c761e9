"""What a step is made of: one operation for the loss where there is one, else several with the same
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, blobs, mlp, relative_difference, sgd
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.launch import Kernel
from warpfit.engines import steps
from warpfit.engines.steps import Run
from warpfit.optim.base import Optimizer
from warpfit.optim.schedules import Constant
from warpfit.optim.sgd import SGDSpec

NUM_ROWS, BATCH = 70, 16
pytestmark = pytest.mark.in_turns(16)

STEPS_OF_LOSS = {
    "softmax_cross_entropy_step",
    "linear_cross_entropy_step",
    "element_loss_step",
}
LOSSES = [
    "cross_entropy",
    {"name": "cross_entropy", "label_smoothing": 0.1},
    "mse",
    {"name": "mse", "half": True},
    "absolute_error",
    {"name": "huber", "delta": 0.2},
    "binary_cross_entropy",
    {"name": "binary_cross_entropy", "sum_outputs": True},
]


def small() -> nn.Sequential:
    return mlp(6, 8, 3, activation=nn.Tanh)


def fit(model: nn.Module, loss: Any, make_optimizer: Any = sgd, **settings: Any) -> wf.History:
    x, labels = blobs(NUM_ROWS)
    is_softmax = losses.resolve(loss).name == "cross_entropy"
    y = labels if is_softmax else np.eye(3, dtype="f4")[labels]
    asked = {"engine": "layerwise", "epochs": 2, "batch_size": BATCH, "seed": 5, "verbose": False}
    return wf.fit(model, x, y, loss=loss, optimizer=make_optimizer(model), **(asked | settings))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched."""
    found: list[str] = []
    launch = Kernel.__call__

    def noted(kernel: Kernel, *args: Any, **kwargs: Any) -> None:
        found.append(kernel.name)
        launch(kernel, *args, **kwargs)

    monkeypatch.setattr(Kernel, "__call__", noted)
    return found


def of_losses(launched: list[str]) -> list[str]:
    parts = ("cast", "record_step", "count_correct")
    return [
        name
        for name in launched
        if "entropy" in name or "error" in name or "loss" in name or name in parts
    ]


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "binary_cross_entropy"])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("engine", ["layerwise", "graph"])
def test_the_loss_of_a_step_is_one_kernel(
    cuda: str, launched: list[str], engine: str, precision: str, loss: str
) -> None:
    settings = {
        "device": cuda,
        "precision": precision,
        "engine": engine,
        "epochs": 1,
        "batch_size": NUM_ROWS,
    }
    fit(small(), loss, **settings)
    (name,) = of_losses(launched)
    assert name in STEPS_OF_LOSS


def test_a_penalty_takes_separate_operations(cuda: str, launched: list[str]) -> None:
    fit(
        small(), "mse", lambda model: sgd(model, l2=0.1), device=cuda, epochs=1, batch_size=NUM_ROWS
    )
    names = ["element_loss_forward", "element_loss_backward", "record_step"]
    assert of_losses(launched) == names


def test_a_dynamic_scale_takes_separate_operations(cuda: str, launched: list[str]) -> None:
    settings = {"device": cuda, "precision": "float16", "loss_scale": "dynamic"}
    fit(small(), "cross_entropy", **settings)
    assert STEPS_OF_LOSS.isdisjoint(launched)


def test_a_module_of_ones_own_takes_separate_operations(cuda: str, launched: list[str]) -> None:
    fit(Taped(small()), "cross_entropy", device=cuda)
    assert STEPS_OF_LOSS.isdisjoint(launched)


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_one_operation_has_the_numbers_of_several(
    cuda: str, monkeypatch: pytest.MonkeyPatch, loss: Any, precision: str, weighted: bool
) -> None:
    settings: dict[str, Any] = {"device": cuda, "precision": precision}
    if weighted:
        settings["sample_weight"] = np.linspace(0.5, 2, NUM_ROWS)
        if losses.resolve(loss).name == "cross_entropy":
            settings["class_weight"] = "balanced"
    models = [small(), small()]
    history = fit(models[0], loss, **settings)
    monkeypatch.setattr(Run, "_loss_at_once", lambda *_: None)
    monkeypatch.setattr(steps, "joins_last_layer", lambda *_: False)
    expected = fit(models[1], loss, **settings)
    limit = 2e-6 if precision == "float32" else 1e-3
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=limit)
    assert [r.accuracy for r in history.reports] == [r.accuracy for r in expected.reports]
    assert relative_difference(*models) < limit


def test_a_loss_of_ones_own_does_not_inherit_the_operation(
    cuda: str, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses.Loss, "by_name", dict(losses.Loss.by_name))

    @dataclass(frozen=True)
    class Doubled(losses.MeanSquaredError):
        name: ClassVar[str] = "doubled"

        def vjp(self, ops: Any, *args: Any, **weights: Any) -> Any:
            loss, weight, gradient = super().vjp(ops, *args, **weights)
            return loss, weight, lambda: ops.binary("add", gradient(), gradient())

    model = small()
    fit(model, Doubled(), device=cuda)
    assert STEPS_OF_LOSS.isdisjoint(launched)
    twice = small()
    fit(twice, "mse", lambda model: sgd(model, 0.2), device=cuda)
    assert relative_difference(model, twice) < 1e-5


# -- gradients that an update computes
# ---------------------------------------------------------------------


@dataclass(frozen=True)
class SignSpec(SGDSpec):
    """w ← w - lr · the sign of the gradient."""

    kind: ClassVar[str] = "sign"

    def apply(self, ops: Any, parameters: Any, gradients: Any, slots: Any, **numbers: Any) -> None:
        signs = [ops.unary("sign", gradient) for gradient in gradients]
        super().apply(ops, parameters, signs, slots, **numbers)


class Sign(Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, SignSpec(Constant(0.125)))


def test_an_optimizer_of_others_gets_gradients_that_it_can_look_at(cuda: str) -> None:
    model = small()
    before = [parameter.data.copy() for parameter in model.parameters()]
    fit(
        model,
        "cross_entropy",
        lambda m: Sign(m.parameters()),
        device=cuda,
        precision="float16",
        epochs=1,
    )
    for parameter, start in zip(model.parameters(), before, strict=True):
        eighths = (np.asarray(parameter.data) - start) * 8
        np.testing.assert_allclose(eighths, eighths.round(), atol=1e-5)


def test_updates_are_joined_only_where_nothing_else_looks_at_gradients(
    cuda: str, launched: list[str]
) -> None:
    def is_joined(**settings: Any) -> bool:
        launched.clear()
        model = small()
        optimizer = optim.SGD(model.parameters(), 0.1, **settings)
        fit(model, "cross_entropy", lambda _: optimizer, device=cuda, precision="float16", epochs=1)
        return "linear_update_sm90" in launched

    runtime = backends.get(cuda).runtime
    assert is_joined() == (jit.generation(runtime.arch) == 90)
    assert not is_joined(clip_norm=1.0)
    assert not is_joined(l2=0.1)
