"""Steps that take narrow networks through all layers at once: the same for both engines, and near
those that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, assert_same_weights, blobs, mlp, relative_difference, sgd
from warpfit import losses, nn, optim
from warpfit.backends.cuda import narrow_step
from warpfit.errors import DivergedError
from warpfit.optim import schedules

pytestmark = pytest.mark.in_turns(8)

NUM_ROWS, BATCH = 700, 300  # two batches of 300 and one of 100
AT_ONCE = "each through all layers at once"


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the rows from which on batches are taken at once; all are at first."""

    def take(least_rows: int) -> None:
        monkeypatch.setattr(narrow_step, "LEAST_ROWS", least_rows)
        narrow_step.choose.cache_clear()

    take(1)
    return take


def fit(
    engine: str, model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any
) -> wf.History:
    asked = {"engine": engine, "epochs": 3, "batch_size": BATCH, "seed": 5, "precision": "float16"}
    return wf.fit(
        model, x, y, optimizer=optimizer or adam(model), **(asked | settings), verbose=False
    )


def small() -> nn.Sequential:
    return mlp(6, 24, 16, 3)


OPTIMIZERS = {
    "sgd": lambda model: sgd(model, schedules.Cosine(0.1)),
    "nesterov": lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda model: optim.AdamW(model.parameters(), 0.01),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), 0.01, momentum=0.5),
}


def assert_alike(
    takes: Callable[[int], None],
    make_model: Any,
    x: Any,
    y: Any,
    make_optimizer: Any = adam,
    **settings: Any,
) -> None:
    """Assert that both engines come to the same bits, and near to what layers come to one by
    one.
    """
    models = [make_model() for _ in range(3)]
    histories = [
        fit(engine, model, x, y, make_optimizer(model), **settings)
        for engine, model in zip(("graph", "layerwise"), models, strict=False)
    ]
    takes(10_000)
    histories.append(fit("graph", models[2], x, y, make_optimizer(models[2]), **settings))
    graph, layerwise, one_by_one = histories
    assert AT_ONCE in graph.plan.reason
    assert AT_ONCE not in one_by_one.plan.reason
    np.testing.assert_array_equal(graph.step_losses, layerwise.step_losses)
    assert [report.accuracy for report in graph.reports] == [
        report.accuracy for report in layerwise.reports
    ]
    assert_same_weights(models[0], models[1])
    tolerance = 1e-2 if settings.get("precision") == "bfloat16" else 2e-3
    np.testing.assert_allclose(graph.step_losses, one_by_one.step_losses, rtol=2 * tolerance)
    for report, other in zip(graph.reports, one_by_one.reports, strict=True):
        if other.accuracy is not None:
            assert abs(report.accuracy - other.accuracy) <= 4 / NUM_ROWS + tolerance
    assert relative_difference(models[0], models[2]) <= 5 * tolerance


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_optimizers(cuda: str, takes: Callable[[int], None], name: str, precision: str) -> None:
    x, y = blobs(NUM_ROWS)
    assert_alike(takes, small, x, y, OPTIMIZERS[name], device=cuda, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mse", "absolute_error", "huber", "binary_cross_entropy"])
def test_losses_of_numbers(cuda: str, takes: Callable[[int], None], name: str) -> None:
    x, labels = blobs(NUM_ROWS)
    assert_alike(takes, small, x, np.eye(3, dtype="f4")[labels], device=cuda, loss=name)


@pytest.mark.parametrize("num_features", [5, 8])
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_rows_of_any_dtype(
    cuda: str, takes: Callable[[int], None], dtype: str, num_features: int
) -> None:
    x, y = blobs(NUM_ROWS, num_features)
    x = (200 * x).astype("uint8") if dtype == "uint8" else x.astype(dtype)
    smoothed = losses.SoftmaxCrossEntropy(label_smoothing=0.1)
    settings = {"device": cuda, "loss": smoothed, "shuffle": False, "batch_size": 301}
    assert_alike(takes, lambda: mlp(num_features, 24, 3), x, y, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU])
def test_activations(cuda: str, takes: Callable[[int], None], activation: Any) -> None:
    x, y = blobs(NUM_ROWS)
    assert_alike(takes, lambda: mlp(6, 24, 16, 3, activation=activation), x, y, device=cuda)


def test_a_short_batch_that_is_left_to_other_kernels(
    cuda: str, takes: Callable[[int], None]
) -> None:
    takes(200)
    x, y = blobs(NUM_ROWS)
    assert_alike(takes, small, x, y, device=cuda, epochs=4)


@pytest.mark.parametrize("names", [("4.weight", "4.bias"), ("0.weight", "2.bias", "4.weight")])
def test_parameters_that_are_not_trained(
    cuda: str, takes: Callable[[int], None], names: Any
) -> None:
    x, y = blobs(NUM_ROWS)
    some = lambda model: optim.SGD([dict(model.named_parameters())[name] for name in names], 0.1)  # noqa: E731
    assert_alike(takes, small, x, y, some, device=cuda)


def test_a_loss_that_is_not_finite_ends_the_run(cuda: str, takes: Callable[[int], None]) -> None:
    x, y = blobs(NUM_ROWS)
    model = small()
    with pytest.raises(DivergedError):
        fit("graph", model, x, y, sgd(model, 1e30), device=cuda, precision="bfloat16")


LEFT_TO_OTHERS: dict[str, dict[str, Any]] = {
    "sample weights": {"sample_weight": np.ones(NUM_ROWS)},
    "class weights": {"class_weight": "balanced"},
    "a clipped gradient": {"make_optimizer": lambda model: adam(model, clip_norm=1.0)},
    "a penalty": {"make_optimizer": lambda model: adam(model, l2=0.1)},
    "float32": {"precision": "float32"},
    "dropout": {
        "make_model": lambda: nn.Sequential(
            nn.Linear(6, 8, seed=1), nn.Dropout(0.5), nn.Linear(8, 3, seed=2)
        )
    },
    "a wide network": {"make_model": lambda: mlp(6, 264, 3)},
}


@pytest.mark.parametrize("name", LEFT_TO_OTHERS)
def test_what_is_left_to_other_kernels(cuda: str, takes: Callable[[int], None], name: str) -> None:
    x, y = blobs(NUM_ROWS)
    settings = {
        "make_model": small,
        "make_optimizer": adam,
        "device": cuda,
        "epochs": 1,
    } | LEFT_TO_OTHERS[name]
    model = settings.pop("make_model")()
    history = fit("graph", model, x, y, settings.pop("make_optimizer")(model), **settings)
    assert AT_ONCE not in history.plan.reason
    assert np.isfinite(history.reports[-1].loss)
