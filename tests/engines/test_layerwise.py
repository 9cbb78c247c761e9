"""The layerwise engine, step by step, against loops and formulas written out here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, assert_same_weights, blobs, mlp, relative_difference, sgd
from warpfit import backends, losses, nn, optim
from warpfit.data import DataLoader, epoch_order
from warpfit.engines.base import EpochReport, TrainingData
from warpfit.engines.layerwise import Layerwise
from warpfit.engines.steps import KEYED_EPOCHS
from warpfit.errors import DivergedError
from warpfit.training.state import state_of

NUM_ROWS, BATCH = 70, 16  # four batches of 16 and one of 6


def fit(model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 2, "batch_size": BATCH, "seed": 5, "verbose": False, **settings}
    return wf.fit(model, x, y, optimizer=optimizer or sgd(model), **settings)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("shuffle", [True, False])
def test_fit_equals_the_explicit_style_step_by_step(
    dtype: str, make_optimizer: Any, shuffle: bool
) -> None:
    x, y = blobs(NUM_ROWS, dtype=dtype)
    by_fit, by_hand = mlp(6, 8, 3, dtype=dtype), mlp(6, 8, 3, dtype=dtype)
    history = fit(by_fit, x, y, make_optimizer(by_fit), epochs=3, shuffle=shuffle)

    optimizer, step_losses = make_optimizer(by_hand), []
    loader = DataLoader(x, y, BATCH, seed=5, shuffle=shuffle)
    for _ in range(3):
        for rows, labels in loader:
            logits = nn.forward(by_hand, rows)
            loss, gradient = losses.SoftmaxCrossEntropy.forward_and_grad(logits, labels)
            nn.backward(by_hand, gradient)
            optimizer.step()
            step_losses.append(loss)
    np.testing.assert_allclose(history.step_losses, step_losses, atol=1e-6, rtol=0)
    assert relative_difference(by_fit, by_hand) < 1e-6


def test_fit_equals_a_loop_over_the_tape() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    by_fit, by_tape = mlp(6, 8, 3, dtype="float64"), mlp(6, 8, 3, dtype="float64")
    history = fit(by_fit, x, y, epochs=1)

    optimizer, step_losses = sgd(by_tape), []
    for rows, labels in DataLoader(x, y, BATCH, seed=5):
        loss = losses.SoftmaxCrossEntropy()(by_tape(wf.tensor(rows, dtype="float64")), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_losses.append(float(loss.data))
    np.testing.assert_allclose(history.step_losses, step_losses, rtol=1e-12)
    assert relative_difference(by_fit, by_tape) < 1e-12


def test_the_short_batch_counts_divided_by_its_own_size() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.normal(size=(5, 1))
    model = mlp(4, 1, dtype="float64")
    weight, bias = model[0].weight.data.copy(), model[0].bias.data.copy()
    expected = []
    for rows in (slice(0, 3), slice(3, 5)):
        error = x[rows] @ weight + bias - y[rows]
        expected.append((error**2).mean())
        weight -= 0.1 * 2 * x[rows].T @ error / len(error)
        bias -= 0.1 * 2 * error.sum(axis=0) / len(error)
    history = fit(model, x, y, loss="mse", epochs=1, batch_size=3, shuffle=False)
    np.testing.assert_allclose(history.step_losses, expected, rtol=1e-12)
    np.testing.assert_allclose(model[0].weight.data, weight, rtol=1e-12)
    np.testing.assert_allclose(model[0].bias.data, bias, rtol=1e-12)
    # The epoch's loss is the mean over rows, not over batches.
    assert history["loss"] == [pytest.approx((3 * expected[0] + 2 * expected[1]) / 5, rel=1e-12)]


def test_accuracy_is_that_of_the_rows_before_their_update() -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 8, 3)
    before = wf.evaluate(model, x, y)
    (report,) = fit(model, x, y, sgd(model, 0.0), epochs=1)
    assert report.accuracy == before.accuracy
    assert report.loss == pytest.approx(before.loss, rel=1e-6)
    assert (report.epoch, report.num_rows, len(report.step_losses)) == (1, NUM_ROWS, 5)
    assert report.seconds > 0


@pytest.mark.parametrize("loss", ["mse", "absolute_error", "huber"])
def test_losses_without_right_and_wrong_report_no_accuracy(loss: str) -> None:
    x, y = blobs(NUM_ROWS)
    (report,) = fit(mlp(6, 1), x, y, loss=loss, epochs=1)
    assert report.accuracy is None


def test_the_penalty_joins_the_loss_with_each_batchs_own_size() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    model = mlp(6, 8, 3, dtype="float64")
    squares = sum(
        float((p.data**2).sum()) for n, p in model.named_parameters() if n.endswith("weight")
    )
    with_l2 = fit(model, x, y, sgd(model, 0.0, l2=0.3), epochs=1)
    without = fit(model, x, y, sgd(model, 0.0), epochs=1)
    sizes = np.array([16, 16, 16, 16, 6])
    np.testing.assert_allclose(
        with_l2.step_losses - without.step_losses, 0.3 / (2 * sizes) * squares, rtol=1e-9
    )


def test_the_penalty_may_be_over_the_sum_of_weights() -> None:
    x, y = blobs(16, dtype="float64")
    weights = np.linspace(0, 3, 16)
    for penalties, divisor in (
        ({"l2": 0.3}, 16),
        ({"l2": 0.3, "l2_by_weight": True}, weights.sum()),
    ):
        model, plain = mlp(6, 3, dtype="float64"), mlp(6, 3, dtype="float64")
        start = model[0].weight.data.copy()
        with_l2 = fit(model, x, y, sgd(model, **penalties), epochs=1, sample_weight=weights)
        without = fit(plain, x, y, epochs=1, sample_weight=weights)
        difference = plain[0].weight.data - model[0].weight.data
        np.testing.assert_allclose(difference, 0.1 * 0.3 / divisor * start, rtol=1e-9)
        penalty = with_l2.step_losses[0] - without.step_losses[0]
        np.testing.assert_allclose(penalty, 0.3 / (2 * divisor) * (start**2).sum(), rtol=1e-9)


def test_rows_of_no_weight_have_no_penalty() -> None:
    x, y = blobs(2 * BATCH, dtype="float64")
    model = mlp(6, 3, dtype="float64")
    settings = {"epochs": 1, "shuffle": False, "sample_weight": np.repeat([1.0, 0.0], BATCH)}
    history = fit(model, x, y, sgd(model, l2=0.3, l2_by_weight=True), **settings)
    assert history.step_losses[0] > 0 == history.step_losses[1]


def test_the_penaltys_gradient_shrinks_weights_but_not_biases() -> None:
    x, y = blobs(16, dtype="float64")
    plain, penalised = mlp(6, 3, dtype="float64"), mlp(6, 3, dtype="float64")
    start = plain[0].weight.data.copy()
    fit(plain, x, y, epochs=1)
    fit(penalised, x, y, sgd(penalised, l2=0.3), epochs=1)
    np.testing.assert_allclose(
        plain[0].weight.data - penalised[0].weight.data, 0.1 * 0.3 / 16 * start, rtol=1e-9
    )
    np.testing.assert_array_equal(plain[0].bias.data, penalised[0].bias.data)


def test_gradients_are_clipped_by_their_joint_norm() -> None:
    x, y = blobs(16, dtype="float64")
    start, free, clipped, loose = (mlp(6, 8, 3, dtype="float64") for _ in range(4))
    fit(free, x, y, epochs=1)
    fit(clipped, x, y, sgd(clipped, clip_norm=1e-3), epochs=1)
    fit(loose, x, y, sgd(loose, clip_norm=1e3), epochs=1)
    assert_same_weights(free, loose)

    def moved(model: nn.Module) -> np.ndarray:
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        return np.concatenate([(p.data - q.data).ravel() for p, q in pairs])

    norm = np.linalg.norm(moved(free)) / 0.1
    assert norm > 1e-3
    scale = 1e-3 / (norm + 1e-6)  # PyTorch's formula
    np.testing.assert_allclose(moved(clipped), scale * moved(free), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_float32_agrees_with_float64_after_a_hundred_steps(activation: Any) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 1600)
    strokes = rng.random((10, 784)) < 0.2
    x = (strokes[labels] * rng.integers(0, 256, (1600, 784))).astype(np.uint8)
    models = []
    for dtype in ("float32", "float64"):
        model = mlp(784, 256, 10, dtype=dtype, activation=activation)
        history = fit(model, x, labels, epochs=4, batch_size=64)
        assert len(history.step_losses) == 100
        models.append(model)
    # The same start: float64 values rounded to float32.
    assert 0 < relative_difference(*models) < 1e-4


def test_a_learning_rate_belongs_to_its_step() -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 3)
    schedule = optim.Cosine(0.3, warmup_epochs=1.5)
    history = fit(model, x, y, sgd(model, schedule), epochs=4)
    rates = [schedule.rate(optim.schedules.Progress(5 * epoch + 4, 20, 5)) for epoch in range(4)]
    assert history["lr"] == rates


def _training(model: nn.Sequential, epochs: int, **changes: Any) -> tuple[Any, Any, TrainingData]:
    x, y = blobs(NUM_ROWS)
    plan = fit(mlp(6, 8, 3), x, y, epochs=epochs).plan
    state = state_of(model, sgd(model), backends.get("cpu"), "float32", seed=5)
    return replace(plan, **changes), state, TrainingData(x, y)


def test_run_yields_after_every_epoch_and_can_be_cut_anywhere() -> None:
    model = mlp(6, 8, 3)
    plan, whole, data = _training(model, 4)
    _, cut, _ = _training(model, 4)
    reports = list(Layerwise().run(plan, whole, data, 4))
    parts = [report for _ in range(4) for report in Layerwise().run(plan, cut, data, 1)]
    assert [report.loss for report in reports] == [report.loss for report in parts]
    assert [report.epoch for report in parts] == [1, 2, 3, 4]
    assert (whole.step, whole.epoch) == (cut.step, cut.epoch) == (20, 4)
    np.testing.assert_equal(whole.parameters, cut.parameters)


def test_run_waits_between_epochs() -> None:
    plan, state, data = _training(mlp(6, 8, 3), 2)
    epochs = Layerwise().run(plan, state, data, 2)
    assert isinstance(next(epochs), EpochReport)
    assert state.epoch == 1


def test_the_listener_hears_every_step() -> None:
    plan, state, data = _training(mlp(6, 8, 3), 2)
    heard: list[tuple[int, int]] = []
    list(Layerwise().run(plan, state, data, 2, lambda *step: heard.append(step)))
    assert heard == [(step, 5) for step in range(1, 6)] * 2


def test_the_plateaus_scale_multiplies_the_learning_rate() -> None:
    plan, state, data = _training(mlp(6, 8, 3), 1)
    state.plateau = replace(state.plateau, scale=0.25)
    (report,) = Layerwise().run(plan, state, data, 1)
    assert report.lr == 0.1 * 0.25


def test_rows_come_in_the_epoch_order() -> None:
    x = np.arange(10.0).reshape(10, 1)
    model = nn.Sequential(nn.Linear(1, 1, dtype="float64", bias=False))
    model[0].weight.data[...] = 0
    history = fit(model, x, x, sgd(model, 0.0), loss="mse", epochs=2, batch_size=4)
    order = np.concatenate([epoch_order(10, 5, epoch).reshape(-1) for epoch in range(2)])
    batches = [order[a:b] for a, b in ((0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20))]
    np.testing.assert_allclose(
        history.step_losses, [(rows.astype(float) ** 2).mean() for rows in batches]
    )


def test_orders_go_on_past_the_epochs_whose_keys_are_found_together() -> None:
    x, epochs = np.arange(9.0)[:, None], KEYED_EPOCHS + 2
    model = mlp(1, 1, dtype="float64")
    history = fit(
        model, x, x, sgd(model, lr=0.0), loss="absolute_error", epochs=epochs, batch_size=1
    )
    weight, bias = model[0].weight.data.item(), model[0].bias.data.item()
    errors = np.abs(weight * x[:, 0] + bias - x[:, 0])
    expected = np.concatenate([errors[epoch_order(9, 5, epoch)] for epoch in range(epochs)])
    np.testing.assert_allclose(history.step_losses, expected, rtol=1e-12)


def diverge(model: nn.Module, lr: float, **settings: Any) -> DivergedError:
    x, y = blobs(NUM_ROWS)
    with pytest.raises(DivergedError) as caught:
        fit(model, 1e3 * x, y, sgd(model, lr), loss="mse", **settings)
    return caught.value


def test_divergence_names_epoch_step_rate_and_the_last_finite_loss() -> None:
    error = diverge(mlp(6, 8, 1), 1e4, epochs=5)
    assert error.epoch == 1
    assert 1 < error.step <= 5
    assert error.lr == 1e4
    assert error.last_finite_loss is not None
    assert np.isfinite(error.last_finite_loss)
    assert f"epoch 1, step {error.step}, at learning rate 10000" in str(error)


def test_divergence_counts_steps_over_the_whole_run() -> None:
    error = diverge(mlp(6, 1), 1e-5, batch_size=NUM_ROWS, epochs=100)
    assert error.epoch == error.step > 1


def test_divergence_in_the_first_step_knows_no_finite_loss() -> None:
    model = mlp(6, 8, 1)
    model[0].weight.data[...] = 1e38
    assert diverge(model, 0.1).last_finite_loss is None


def test_weights_that_the_last_step_ruins_are_a_divergence() -> None:
    model = mlp(6, 8, 1)
    start = model.state_dict()
    error = diverge(model, 1e38, epochs=1, batch_size=NUM_ROWS)
    assert (error.epoch, error.step) == (1, 1)
    assert error.last_finite_loss is not None
    np.testing.assert_equal(model.state_dict(), start)
