"""plan: which engine runs, why, with how much memory; and running a plan again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError
from warpfit.training.plan import resolve_precision

X, LABELS = blobs(50)


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    return wf.fit(model, X, LABELS, optimizer=optimizer or adam(model), verbose=False, **settings)


def test_auto_takes_the_engine_that_there_is_and_says_so() -> None:
    plan = fit(mlp(6, 3), epochs=0).plan
    assert (plan.engine, plan.device, plan.precision) == ("layerwise", "cpu", "float32")
    assert plan.reason == "layerwise runs every network"
    assert fit(mlp(6, 3), epochs=0, engine="layerwise").plan.reason == "engine 'layerwise' was asked for"


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
    assert resolve_precision("float32", "float64", "cpu") == "float32"


def test_a_plan_is_printable() -> None:
    text = repr(fit(mlp(6, 3), epochs=0).plan)
    for part in ("engine='layerwise'", "precision='float32'", "LinearSpec(in_features=6", "AdamSpec("):
        assert part in text


@pytest.mark.parametrize(("num_rows", "batch_size"), [(9, 4), (3, 1)])
def test_a_last_batch_too_small_for_a_layer_is_found_before_the_first_step(
    num_rows: int, batch_size: int
) -> None:
    model = nn.Sequential(nn.Linear(3, 4, seed=0), nn.BatchNorm1d(4), nn.Linear(4, 2, seed=1))
    before = model.state_dict()
    x, y = np.ones((num_rows, 3), np.float32), np.zeros(num_rows, int)
    with pytest.raises(ConfigError, match=r"at least 2 rows.*leave 1 for the last"):
        wf.fit(model, x, y, optimizer=optim.SGD(model.parameters()), batch_size=batch_size, verbose=False)
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
