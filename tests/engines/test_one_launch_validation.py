"""Validation within the launch, by the kernel that goes layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from engines.test_one_launch_layers import CASES, OPTIMIZERS, REPLICATED, Case
from support.devices import open_in_both_orders
from support.one_launch import BATCH, LIMITS, NUM_ROWS, data, fit
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.engines import launch_plan

pytestmark = [pytest.mark.usefixtures("by_layers"), pytest.mark.in_turns(4)]

SIZES = (6, 20, 9, 3)
X, LABELS = data(SIZES)
VALIDATION = data(SIZES, num_rows=2 * BATCH + 5)


class Looks(wf.Callback):
    """Lets each epoch be a launch of its own."""

    def on_epoch_end(self, run: Any) -> None:
        pass


def small() -> nn.Sequential:
    return mlp(*SIZES, activation=nn.Tanh)


def train(**settings: Any) -> wf.History:
    """Train a small network by the kernel that the tests of stopping compile, too."""
    model = small()
    optimizer = sgd(model, momentum=0.9)
    return fit(model, X, LABELS, optimizer, validation_data=VALIDATION, **settings)


def assert_validates_as_numpy(
    case: Case, launches: list[int], validation: Any, rows: Any = None, **settings: Any
) -> None:
    """Train on both, and compare what came out of the validation data; it changes nothing of the
    training.
    """
    found = []
    x, y = rows or data(case.sizes, case.loss, 3 * case.batch_size + 2)
    settings = {"loss": case.loss, "batch_size": case.batch_size, "epochs": 3, **settings}
    for device, validated in (("cpu", validation), ("cuda", validation), ("cuda", None)):
        model = case.make()
        own = {**settings, "device": device, "validation_data": validated}
        own |= {"precision": case.precision} if device == "cuda" else {}
        found.append((model, fit(model, x, y, OPTIMIZERS[case.optimizer](model), **own)))
    (_, expected), (validated, history), (plain, other) = found
    assert launches == [1, 2, 1, 2]
    limit = LIMITS[case.precision]
    np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=limit, atol=limit)
    if expected["val_accuracy"][0] is None:
        assert history["val_accuracy"] == [None] * 3
    else:  # a row may lie between two classes
        np.testing.assert_allclose(
            history["val_accuracy"], expected["val_accuracy"], atol=1.01 / len(validation[0])
        )
    assert_same_weights(validated, plain)
    np.testing.assert_array_equal(history.step_losses, other.step_losses)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i != 1 else ()) for i, case in enumerate(CASES)],
    ids=str,
)
def test_it_validates_as_numpy(
    cuda: str, only_cluster: Callable[..., None], launches: list[int], case: Case
) -> None:
    only_cluster(case.cluster)
    x, y = data(case.sizes, case.loss, 3 * case.batch_size + 2 * case.batch_size // 3 + 6)
    assert_validates_as_numpy(case, launches, (x[4:], y[4:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "case"),
    [
        pytest.param(*item, marks=pytest.mark.slow if i != 1 else ())
        for i, item in enumerate(REPLICATED)
    ],
    ids=str,
)
def test_replicas_validate_as_numpy(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    launches: list[int],
    replicas: int,
    case: Case,
) -> None:
    only_replicas(replicas)
    test_it_validates_as_numpy(cuda, only_cluster, launches, case)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, BATCH - 1, BATCH, BATCH + 1, 9 * BATCH])
@pytest.mark.parametrize("sizes", [(6, 3), SIZES])
def test_any_number_of_rows(
    cuda: str, launches: list[int], num_rows: int, sizes: tuple[int, ...]
) -> None:
    case = Case(sizes, BATCH, 1)
    assert_validates_as_numpy(case, launches, data(sizes, num_rows=num_rows))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [{"clip_norm": 0.3}, {"l2": 0.5}], ids=str)
@pytest.mark.parametrize("cluster", [1, 4])
def test_clipping_and_penalties(
    cuda: str,
    only_cluster: Callable[..., None],
    launches: list[int],
    monkeypatch: pytest.MonkeyPatch,
    optimizer: dict[str, float],
    cluster: int,
) -> None:
    only_cluster(cluster)
    monkeypatch.setitem(
        OPTIMIZERS, "own", lambda model: optim.SGD(model.parameters(), 0.05, **optimizer)
    )
    case = Case((6, 17 * cluster, 33, 3), BATCH, cluster, optimizer="own")
    assert_validates_as_numpy(case, launches, VALIDATION)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classes_have_weights_and_samples_have_none(
    cuda: str, launches: list[int], smoothing: float
) -> None:
    loss = losses.SoftmaxCrossEntropy(smoothing, class_weight=(0.5, 2.0, 0.0))
    weights = np.random.default_rng(3).random(NUM_ROWS)
    case = Case(SIZES, BATCH, 2, loss)
    assert_validates_as_numpy(case, launches, VALIDATION, (X, LABELS), sample_weight=weights)


@pytest.mark.slow
def test_rows_of_another_dtype(cuda: str, launches: list[int]) -> None:
    x = np.random.default_rng(1).integers(0, 255, (40, 6)).astype("uint8")
    assert_validates_as_numpy(Case(SIZES, BATCH, 2), launches, (x, VALIDATION[1][:1].repeat(40)))


@pytest.mark.parametrize("report_every", [pytest.param(1, marks=pytest.mark.slow), 2, 4])
def test_epochs_that_are_not_reported_are_not_validated(
    cuda: str, launches: list[int], report_every: int
) -> None:
    whole = train(epochs=7, callbacks=[Looks()])
    history = train(epochs=7, report_every=report_every)
    assert launches == [1] * 7 + [1, 6]
    reported = [report for report in whole if report.epoch % report_every == 0 or report.epoch == 7]
    for column in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy"):
        assert history[column] == [getattr(report, column) for report in reported]


def test_borders_are_where_somebody_looks(cuda: str, launches: list[int], tmp_path: Any) -> None:
    checkpoint = wf.Checkpoint(tmp_path / "run", every=3)
    train(epochs=6, callbacks=[checkpoint])
    assert launches == [1, 2, 3]
    launches.clear()
    model = small()
    watching = sgd(model, optim.ReduceOnPlateau(0.1, factor=0.1, patience=1), momentum=0.9)
    history = fit(model, X, LABELS, watching, epochs=4, validation_data=VALIDATION, report_every=2)
    assert launches == [1, 1, 2]
    assert None not in history["val_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SIZES, (6, 3)], ids=str)
def test_batches_and_units_of_which_shared_memory_holds_one(
    cuda: str, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    models = [mlp(*sizes) for _ in range(2)]
    histories = [fit(models[0], X, LABELS, validation_data=VALIDATION)]
    shape = histories[0].plan.prepared.launch
    while shape.x_slots + shape.unit_copies > 2 and shape.x_slots > 1:
        limit = shape.shared_bytes - 1
        monkeypatch.setattr(backends.get(cuda).runtime, "max_shared_bytes", limit)
        history = fit(mlp(*sizes), X, LABELS, epochs=0)
        shape = history.plan.prepared.launch
    histories.append(fit(models[1], X, LABELS, validation_data=VALIDATION))
    assert_same_weights(*models)
    assert histories[0]["val_loss"] == histories[1]["val_loss"]


@on_emulator
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_order_of_threads_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, only_cluster: Callable[..., None], cluster: int
) -> None:
    only_cluster(cluster)
    found = []
    for _ in open_in_both_orders(monkeypatch):
        model = small()
        history = fit(model, X, LABELS, validation_data=VALIDATION)
        found.append((history["val_loss"], history["val_accuracy"], model.to("cpu").state_dict()))
    np.testing.assert_equal(found[0], found[1])


@pytest.mark.slow
def test_debug_builds(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    launches: list[int],
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    test_it_validates_as_numpy(cuda, only_cluster, launches, CASES[0])


# -- what is validated on the way, as other engines do
# --------------------------------------------------------


@pytest.mark.slow
def test_numbers_beyond_float16_are_validated_in_float32(cuda: str, launches: list[int]) -> None:
    x, labels = VALIDATION
    history = fit(small(), X, LABELS, validation_data=(1e5 * x, labels))
    assert launches == [1, 1]
    assert np.isfinite(history["val_loss"]).all()


@pytest.mark.slow
def test_the_other_kernel_leaves_validation_to_others(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_layers.cache_clear()
    monkeypatch.setattr(one_launch, "suits", lambda network: True)
    monkeypatch.setattr(launch_plan, "MICROSECONDS_BETWEEN_LAUNCHES", 0.0)  # else it is not taken
    history = fit(mlp(6, 8, 3), X, LABELS, validation_data=VALIDATION, epochs=4)
    assert "layer by layer" not in history.plan.reason
    assert launches == [1, 1, 1, 1]


@pytest.mark.slow
def test_batches_that_the_device_has_no_room_for(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    monkeypatch.setattr(launch_plan, "memory_left", lambda plan: 4000)
    monkeypatch.setattr(launch_plan, "_is_to_stream", lambda *_: False)
    fit(small(), x, y, validation_data=VALIDATION)
    assert launches == [1, 1]
