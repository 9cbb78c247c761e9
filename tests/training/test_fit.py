"""What fit learns, from which data, and what it leaves behind in model and optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.numeric import layouts
from support.training import (
    InterruptAt,
    Numbers,
    Taped,
    adam,
    assert_same_weights,
    blobs,
    mlp,
    relative_difference,
    same_weights,
    sgd,
)
from warpfit import losses, nn, optim
from warpfit.optim.schedules import PlateauState, Progress


def fit(model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 3, "batch_size": 16, "seed": 5, "verbose": False, **settings}
    return wf.fit(model, x, y, optimizer=optimizer or adam(model), **settings)


# -- learning
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> tuple[Numbers, Numbers]:
    sklearn = pytest.importorskip("sklearn.datasets")
    x, y = sklearn.load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


def test_digits_are_learnt(digits: tuple[Numbers, Numbers]) -> None:
    x, y = digits
    model = mlp(64, 64, 10)
    history = fit(
        model, x[:1400], y[:1400], epochs=20, batch_size=32, validation_data=(x[1400:], y[1400:])
    )
    assert wf.evaluate(model, x[1400:], y[1400:]).accuracy > 0.92
    assert history["val_accuracy"][-1] == wf.evaluate(model, x[1400:], y[1400:]).accuracy
    assert history["accuracy"][-1] > 0.99
    assert history["loss"][-1] < history["loss"][0] / 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", ["mse", "absolute_error", "huber", losses.Huber(0.1)])
def test_every_regression_loss_learns_a_plane(loss: Any, dtype: str) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (256, 3)).astype(dtype)
    y = x @ np.array([1.0, -2.0, 0.5], dtype) + 0.3
    model = mlp(3, 1, dtype=dtype)
    schedule = optim.Cosine(0.1)
    history = fit(model, x, y, adam(model, schedule), loss=loss, epochs=30, batch_size=32)
    assert history["loss"][-1] < 1e-2 * history["loss"][0]
    np.testing.assert_allclose(model[0].weight.data, [[1], [-2], [0.5]], atol=0.02)


def test_multilabel_binary_cross_entropy_learns() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (400, 2)).astype(np.float32)
    targets = x > 0
    model = mlp(2, 16, 2)
    history = fit(model, x, targets, loss="binary_cross_entropy", epochs=20)
    assert history["accuracy"][-1] > 0.93
    assert wf.evaluate(model, x, targets, loss="binary_cross_entropy").accuracy > 0.93


def test_two_classes_as_one_column_or_a_vector() -> None:
    x, labels = blobs(100, num_classes=2)
    vector, column = mlp(6, 1), mlp(6, 1)
    fit(vector, x, labels, loss="binary_cross_entropy")
    fit(column, x, labels.reshape(-1, 1).astype(float), loss="binary_cross_entropy")
    assert_same_weights(vector, column)


def test_targets_of_several_outputs() -> None:
    x, y = blobs(100)
    model = mlp(6, 4)
    fit(model, x, np.stack([y, y, -y, y], axis=1), loss="mse")
    assert wf.predict(model, x).shape == (100, 4)


# -- inputs
# --------------------------------------------------------------------------------------------------


def test_bytes_mean_255ths() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (100, 6), dtype=np.uint8)
    for dtype in ("float32", "float64"):
        from_bytes, from_floats = mlp(6, 8, 3, dtype=dtype), mlp(6, 8, 3, dtype=dtype)
        labels = pixels[:, 0] % 3
        fit(from_bytes, pixels, labels)
        fit(from_floats, (pixels / 255).astype(dtype), labels)
        assert_same_weights(from_bytes, from_floats)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "bool", ">f4"])
def test_other_dtypes_are_taken_at_their_value(dtype: str) -> None:
    x = (blobs(100)[0] * 3).astype(dtype)
    labels = blobs(100)[1]
    given, converted = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(given, x, labels)
    fit(converted, x.astype(np.float32), labels)
    assert_same_weights(given, converted)
    assert given.dtype == "float32"


def test_layouts_of_memory_do_not_matter() -> None:
    x, labels = blobs(100)
    expected = mlp(6, 8, 3)
    fit(expected, x, labels)
    for _, array in layouts(x):
        model = mlp(6, 8, 3)
        fit(model, array, labels[::-1].copy()[::-1])
        assert_same_weights(model, expected)


def test_lists_are_arrays() -> None:
    x, labels = blobs(40)
    from_lists, from_arrays = mlp(6, 3), mlp(6, 3)
    fit(
        from_lists,
        x.tolist(),
        labels.tolist(),
        sample_weight=[1.0] * 40,
        validation_data=[x.tolist(), labels],
    )
    fit(from_arrays, x, labels)
    assert relative_difference(from_lists, from_arrays) < 1e-6


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint64"])
def test_labels_of_any_integer_dtype(dtype: str) -> None:
    x, labels = blobs(40)
    given, expected = mlp(6, 3), mlp(6, 3)
    fit(given, x, labels.astype(dtype))
    fit(expected, x, labels)
    assert_same_weights(given, expected)


def test_inputs_stay_as_they_are() -> None:
    x, labels = blobs(50)
    pixels = (x * 255).astype(np.uint8)
    weights = np.linspace(0, 2, 50)
    given = (x, pixels, labels, weights)
    before = [array.copy() for array in given]
    for rows in (x, pixels):
        fit(mlp(6, 8, 3), rows, labels, sample_weight=weights, validation_data=(rows, labels))
    for array, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("batch_size", [1, 7, 50, 64, np.int64(25)])
def test_batch_sizes(batch_size: Any) -> None:
    x, labels = blobs(50)
    history = fit(mlp(6, 3), x, labels, batch_size=batch_size, epochs=np.int64(2))
    assert len(history.step_losses) == 2 * -(-50 // batch_size)


def test_one_row_is_enough() -> None:
    x, labels = blobs(1)
    assert len(fit(mlp(6, 3), x, labels)) == 3


def test_no_epochs_change_nothing() -> None:
    x, labels = blobs(50)
    model = mlp(6, 3)
    history = fit(model, x, labels, epochs=0)
    assert_same_weights(model, mlp(6, 3))
    assert len(history) == 0
    assert history.stopped_by == "epochs"


# -- what comes back
# -----------------------------------------------------------------------------------------


def test_precision_is_the_models_dtype_unless_asked_for() -> None:
    x, labels = blobs(50)
    for dtype in ("float32", "float64"):
        model = mlp(6, 3, dtype=dtype)
        assert fit(model, x, labels).plan.precision == model.dtype == dtype
    wide, narrow = mlp(6, 3), mlp(6, 3, dtype="float64")
    optimizer = adam(wide)
    fit(wide, x, labels, optimizer, precision="float64")
    fit(narrow, x, labels, precision="float32")
    assert (wide.dtype, narrow.dtype) == ("float64", "float32")
    assert optimizer.slots["first_moment"][0].dtype == "float64"


def test_targets_keep_their_precision_in_a_more_precise_run() -> None:
    x = np.zeros((4, 1))
    y = np.full(4, 1 / 3)
    model = nn.Sequential(nn.Linear(1, 1))
    model.load_state_dict({"0.weight": np.zeros((1, 1)), "0.bias": np.zeros(1)})
    history = fit(model, x, y, sgd(model, 0.0), loss="mse", precision="float64", epochs=1)
    assert history.step_losses[0] == (1 / 3) ** 2


@pytest.mark.parametrize("make_optimizer", [adam, lambda model: sgd(model, momentum=0.9)])
def test_a_second_run_goes_on_with_slots_and_steps(make_optimizer: Any) -> None:
    x, labels = blobs(48)
    once, twice = mlp(6, 8, 3), mlp(6, 8, 3)
    optimizer, optimizer_of_two = make_optimizer(once), make_optimizer(twice)
    fit(once, x, labels, optimizer, epochs=4, shuffle=False)
    for _ in range(2):
        fit(twice, x, labels, optimizer_of_two, epochs=2, shuffle=False)
    assert optimizer_of_two.step_count == optimizer.step_count == 12
    assert_same_weights(once, twice)
    np.testing.assert_equal(optimizer_of_two.state_dict(), optimizer.state_dict())
    assert any(slot.any() for slots in optimizer.slots.values() for slot in slots)


def test_a_new_optimizer_starts_anew() -> None:
    x, labels = blobs(48)
    model, other = mlp(6, 8, 3), mlp(6, 8, 3)
    optimizer = adam(model)
    for _ in range(2):
        fit(model, x, labels, optimizer)
        fit(other, x, labels)
    assert not same_weights(model, other)


def test_explicit_steps_and_fit_share_an_optimizer() -> None:
    x, labels = blobs(16)
    mixed, fitted = mlp(6, 3), mlp(6, 3)
    optimizer = adam(mixed)
    fit(mixed, x, labels, optimizer, epochs=1)
    _, gradient = losses.SoftmaxCrossEntropy.forward_and_grad(nn.forward(mixed, x), labels)
    nn.backward(mixed, gradient)
    optimizer.step()
    fit(fitted, x, labels, epochs=2)
    assert optimizer.step_count == 2
    assert relative_difference(mixed, fitted) < 1e-6


def test_parameters_that_the_optimizer_does_not_hold_stay() -> None:
    x, labels = blobs(48)
    model = mlp(6, 8, 3)
    start = model.state_dict()
    optimizer = optim.Adam(model[2].parameters(), 0.01)
    history = fit(model, x, labels, optimizer)
    end = model.state_dict()
    changed = {name for name in start if not np.array_equal(start[name], end[name])}
    assert changed == {"2.weight", "2.bias"} == set(history.plan.trained)


def test_two_runs_are_bit_identical_and_seeds_differ() -> None:
    x, labels = blobs(50)
    models = [mlp(6, 8, 3) for _ in range(3)]
    histories = [
        fit(model, x, labels, seed=seed) for model, seed in zip(models, (7, 7, 8), strict=True)
    ]
    assert_same_weights(models[0], models[1])
    np.testing.assert_array_equal(histories[0].step_losses, histories[1].step_losses)
    assert not same_weights(models[0], models[2])


def test_without_shuffling_seeds_do_not_matter_and_rows_keep_their_order() -> None:
    x, labels = blobs(50)
    models = [mlp(6, 8, 3) for _ in range(3)]
    for model, seed, shuffle in zip(models, (1, 2, 2), (False, False, True), strict=True):
        fit(model, x, labels, seed=seed, shuffle=shuffle)
    assert_same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


# -- models
# --------------------------------------------------------------------------------------------------


class Subclass(nn.Sequential):
    """A Sequential of a user's own kind, whose forward is the user's business."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU, nn.LeakyReLU]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_tape_gives_what_the_layers_give(activation: Any, dtype: str) -> None:
    x, labels = blobs(50)
    chain = mlp(6, 8, 3, dtype=dtype, activation=activation)
    taped = Taped(mlp(6, 8, 3, dtype=dtype, activation=activation))
    history = fit(chain, x, labels)
    through_tape = fit(taped, x, labels)
    assert_same_weights(chain, taped)
    np.testing.assert_array_equal(history.step_losses, through_tape.step_losses)


class Residual(nn.Module):
    """Two layers around a sum, and a parameter that is a single number."""

    def __init__(self) -> None:
        self.inner = nn.Linear(6, 6, seed=1, dtype="float64")
        self.outer = nn.Linear(6, 3, seed=2, dtype="float64")
        self.scale = nn.Parameter(np.ones(()))

    def forward(self, x: Any) -> Any:
        return self.outer((x + self.inner(x)) * self.scale)


def test_a_users_module_trains_as_the_tape_says() -> None:
    x, labels = blobs(50, dtype="float64")
    fitted, by_hand = Residual(), Residual()
    history = fit(fitted, x, labels, epochs=2)
    optimizer, step_losses = adam(by_hand), []
    loader = wf.data.DataLoader(x, labels, 16, seed=5)
    for _ in range(2):
        for rows, targets in loader:
            loss = losses.SoftmaxCrossEntropy()(by_hand(wf.tensor(rows, dtype="float64")), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_losses.append(float(loss.data))
    np.testing.assert_allclose(history.step_losses, step_losses, rtol=1e-12)
    assert relative_difference(fitted, by_hand) < 1e-12
    assert fitted.scale.data != 1
    assert fitted.scale.shape == ()


@pytest.mark.parametrize("wrap", [lambda model: model, Taped])
def test_no_stale_gradients_stay(wrap: Any) -> None:
    x, labels = blobs(20)
    model = wrap(mlp(6, 3))
    _, gradient = losses.SoftmaxCrossEntropy.forward_and_grad(nn.forward(model, x), labels)
    nn.backward(model, gradient)
    fit(model, x, labels)
    assert [parameter.grad for parameter in model.parameters()] == [None, None]


def test_a_subclass_of_sequential_runs_its_own_forward() -> None:
    x, labels = blobs(50)
    doubled, plain = Subclass(nn.Linear(6, 3, seed=0)), mlp(6, 3)
    np.testing.assert_allclose(wf.predict(doubled, x), 2 * wf.predict(plain, x), rtol=1e-6)
    history = fit(doubled, x, labels, sgd(doubled), epochs=1, batch_size=50)
    assert history.step_losses[0] == pytest.approx(
        losses.SoftmaxCrossEntropy()(2 * wf.predict(plain, x), labels), rel=1e-6
    )
    assert not same_weights(doubled, plain)


class Scaled(nn.Linear):
    """A user's layer on top of one of ours."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def test_a_users_layer_runs_its_own_forward() -> None:
    x, labels = blobs(50)
    layer, subclass = nn.Sequential(Scaled(6, 3, seed=0)), Subclass(nn.Linear(6, 3, seed=0))
    fit(layer, x, labels)
    fit(subclass, x, labels)
    assert_same_weights(layer, subclass)


def test_chains_in_chains_and_users_modules_in_chains() -> None:
    x, labels = blobs(50)

    def layers() -> list[nn.Module]:
        return list(mlp(6, 8, 3))

    flat = nn.Sequential(*layers())
    nested = nn.Sequential(nn.Sequential(*layers()[:2]), layers()[2])
    mixed = nn.Sequential(Taped(layers()[0]), *layers()[1:])
    for model in (flat, nested, mixed):
        fit(model, x, labels)
    assert_same_weights(flat, nested)
    assert_same_weights(flat, mixed)


def test_a_layer_used_twice_learns_from_both_places() -> None:
    x, labels = blobs(50, dtype="float64")
    shared = [nn.Linear(6, 6, seed=0, dtype="float64"), nn.Tanh()]
    model = nn.Sequential(*shared, *shared, nn.Linear(6, 3, seed=1, dtype="float64"))
    shared_on_tape = [nn.Linear(6, 6, seed=0, dtype="float64"), nn.Tanh()]
    taped = Taped(
        nn.Sequential(*shared_on_tape, *shared_on_tape, nn.Linear(6, 3, seed=1, dtype="float64"))
    )
    fit(model, x, labels)
    fit(taped, x, labels)
    assert len(model.parameters()) == 4
    assert relative_difference(model, taped) < 1e-12


# -- weights, smoothing
# --------------------------------------------------------------------------------------


def test_a_class_weight_is_a_sample_weight_for_the_class() -> None:
    x, labels = blobs(50, dtype="float64")
    by_class, by_row, by_sequence, by_loss = (mlp(6, 3, dtype="float64") for _ in range(4))
    fit(by_class, x, labels, class_weight={1: 3.0, 2: 0.5})
    fit(by_row, x, labels, sample_weight=np.array([1, 3, 0.5])[labels])
    fit(by_sequence, x, labels, class_weight=np.array([1, 3, 0.5]))
    fit(by_loss, x, labels, loss=losses.SoftmaxCrossEntropy(class_weight=(1, 3, 0.5)))
    assert relative_difference(by_class, by_row) < 1e-12
    assert_same_weights(by_class, by_sequence)
    assert_same_weights(by_class, by_loss)


def test_balanced_weights_are_scikit_learns() -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    x, labels = blobs(50)
    labels[:20] = 0
    history = fit(mlp(6, 3), x, labels, class_weight="balanced")
    expected = utils.compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(history.plan.loss.class_weight, expected)


def test_balanced_weights_of_a_class_that_is_missing_are_finite() -> None:
    x, labels = blobs(50)
    history = fit(mlp(6, 4), x, labels, class_weight="balanced")
    assert history.plan.loss.class_weight[3] == 50 / 4


LOSSES = ["cross_entropy", "mse", "absolute_error", "huber", "binary_cross_entropy"]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch_size", [16, 50])
def test_rows_of_weight_zero_have_no_influence(loss: str, batch_size: int) -> None:
    x, labels = blobs(50, num_classes=2)
    outputs = 2 if loss == "cross_entropy" else 1
    weights = np.ones(50)
    weights[::3] = 0
    altered = x.copy(), labels.copy()
    altered[0][::3] = 0.5
    altered[1][::3] = 1 - labels[::3]
    one, other = mlp(6, outputs), mlp(6, outputs)
    first = fit(one, x, labels, loss=loss, sample_weight=weights, batch_size=batch_size)
    second = fit(other, *altered, loss=loss, sample_weight=weights, batch_size=batch_size)
    assert_same_weights(one, other)
    np.testing.assert_array_equal(first.step_losses, second.step_losses)
    assert first["loss"] == second["loss"]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_of_two_is_the_row_twice(loss: str) -> None:
    x, labels = blobs(10, num_classes=2, dtype="float64")
    outputs = 2 if loss == "cross_entropy" else 1
    weighted, repeated = (mlp(6, outputs, dtype="float64") for _ in range(2))
    weights = np.array([2, 2, 1, 1, 1, 0, 1, 1, 1, 1])
    first = fit(weighted, x, labels, sgd(weighted), loss=loss, sample_weight=weights)
    rows = np.repeat(np.arange(10), weights)
    second = fit(repeated, x[rows], labels[rows], sgd(repeated), loss=loss)
    assert relative_difference(weighted, repeated) < 1e-12
    np.testing.assert_allclose(first.step_losses, second.step_losses, rtol=1e-12)


def test_a_batch_whose_weights_are_zero_changes_nothing() -> None:
    x, labels = blobs(20)
    weights = np.repeat([1.0, 0.0], [10, 10])
    first, second = mlp(6, 3), mlp(6, 3)
    settings = {"batch_size": 10, "shuffle": False, "epochs": 1}
    (report,) = fit(first, x, labels, sgd(first), sample_weight=weights, **settings)
    fit(second, x[:10], labels[:10], sgd(second), **settings)
    assert report.step_losses[1] == 0
    assert_same_weights(first, second)


def test_the_epochs_loss_is_the_mean_over_weights() -> None:
    x, labels = blobs(50, dtype="float64")
    model = mlp(6, 3, dtype="float64")
    weights = np.linspace(0, 3, 50)
    (report,) = fit(model, x, labels, sgd(model, 0.0), sample_weight=weights, epochs=1)
    assert report.loss == pytest.approx(
        wf.evaluate(model, x, labels, sample_weight=weights).loss, rel=1e-12
    )


def test_label_smoothing_is_in_the_loss() -> None:
    x, labels = blobs(20, dtype="float64")
    model = mlp(6, 3, dtype="float64")
    z = wf.predict(model, x)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    targets = 0.8 * np.eye(3)[labels] + 0.2 / 3
    loss = losses.SoftmaxCrossEntropy(label_smoothing=0.2)
    history = fit(model, x, labels, sgd(model), loss=loss, batch_size=20, epochs=1)
    assert history["loss"] == [pytest.approx(-(targets * log_p).sum(axis=1).mean(), rel=1e-12)]


def test_class_weights_keep_the_losss_smoothing() -> None:
    x, labels = blobs(20)
    history = fit(
        mlp(6, 3), x, labels, loss=losses.SoftmaxCrossEntropy(0.2), class_weight=[1, 2, 3]
    )
    assert history.plan.loss == losses.SoftmaxCrossEntropy(0.2, (1.0, 2.0, 3.0))


# -- learning rates
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        optim.Step(0.1, every=2, factor=0.5),
        optim.Exponential(0.1, 0.5),
        optim.Cosine(0.1, final_lr=0.01, warmup_epochs=1),
        optim.OneCycle(0.1),
    ],
)
def test_reports_show_the_learning_rate_of_the_epochs_last_step(schedule: optim.Schedule) -> None:
    x, labels = blobs(50)
    model = mlp(6, 3)
    history = fit(model, x, labels, sgd(model, schedule), epochs=5)
    assert history["lr"] == [schedule.rate(Progress(4 * epoch + 3, 20, 4)) for epoch in range(5)]
    assert len(set(history["lr"])) > 1


@pytest.mark.parametrize("validated", [True, False])
def test_the_rate_falls_on_a_plateau_of_the_validation_loss_if_there_is_one(
    validated: bool,
) -> None:
    x, labels = blobs(60)
    model = mlp(6, 3)
    schedule = optim.ReduceOnPlateau(0.1, factor=0.5, patience=1, threshold=0.2)
    validation = (x[:10], labels[:10]) if validated else None
    history = fit(model, x, labels, sgd(model, schedule), epochs=12, validation_data=validation)
    state, expected = PlateauState(), []
    for loss in history["val_loss" if validated else "loss"]:
        expected.append(0.1 * state.scale)
        state = schedule.observe(state, loss)
    assert history["lr"] == expected
    assert history["lr"][-1] < history["lr"][0]


def test_the_optimizer_does_what_the_rate_says() -> None:
    x, labels = blobs(16, dtype="float64")
    scheduled, by_hand = mlp(6, 3, dtype="float64"), mlp(6, 3, dtype="float64")
    schedule = optim.Exponential(0.5, 0.5)
    fit(scheduled, x, labels, sgd(scheduled, schedule), epochs=3, shuffle=False)
    for lr in (0.5, 0.25, 0.125):
        fit(by_hand, x, labels, sgd(by_hand, lr), epochs=1, shuffle=False)
    assert relative_difference(scheduled, by_hand) < 1e-12


# -- validation, reports
# -------------------------------------------------------------------------------------


def test_validation_is_evaluation_after_each_epoch() -> None:
    x, labels = blobs(80)
    model = mlp(6, 8, 3)
    optimizer = adam(model)
    seen = []
    for _ in range(3):
        history = fit(
            model, x[:50], labels[:50], optimizer, epochs=1, validation_data=(x[50:], labels[50:])
        )
        seen.append(wf.evaluate(model, x[50:], labels[50:]))
        assert (history["val_loss"], history["val_accuracy"]) == (
            [seen[-1].loss],
            [seen[-1].accuracy],
        )
    assert len({result.loss for result in seen}) == 3


def test_validation_does_not_change_the_run() -> None:
    x, labels = blobs(50)
    with_it, without = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(with_it, x, labels, validation_data=((x * 255).astype(np.uint8), labels))
    fit(without, x, labels)
    assert_same_weights(with_it, without)


@pytest.mark.parametrize(
    ("report_every", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])]
)
def test_reports_come_every_so_often_and_after_the_last_epoch(
    report_every: int, epochs: list[int]
) -> None:
    x, labels = blobs(50)
    told: list[int] = []

    class Told(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            told.append(run.report.epoch)

    model, every = mlp(6, 3), mlp(6, 3)
    history = fit(model, x, labels, epochs=5, report_every=report_every, callbacks=[Told()])
    fit(every, x, labels, epochs=5)
    assert history["epoch"] == told == epochs
    assert_same_weights(model, every)


# -- interrupts
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda model: model, Taped])
def test_an_interrupt_leaves_the_last_whole_epoch(wrap: Any) -> None:
    x, labels = blobs(50)
    stopped, whole = wrap(mlp(6, 8, 3)), wrap(mlp(6, 8, 3))
    optimizer, expected = adam(stopped), adam(whole)
    history = fit(stopped, x, labels, optimizer, epochs=9, callbacks=[InterruptAt(11)])
    fit(whole, x, labels, expected, epochs=2)
    assert history.stopped_by == "interrupt"
    assert history["epoch"] == [1, 2]
    assert_same_weights(stopped, whole)
    np.testing.assert_equal(optimizer.state_dict(), expected.state_dict())


def test_an_interrupt_between_epochs_leaves_reports_that_fit_the_weights() -> None:
    class InterruptAfterEpoch(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            if run.report.epoch == 3:
                raise KeyboardInterrupt

    x, labels = blobs(50)
    stopped, whole = mlp(6, 8, 3), mlp(6, 8, 3)
    history = fit(stopped, x, labels, epochs=9, callbacks=[InterruptAfterEpoch()])
    fit(whole, x, labels, epochs=len(history))
    assert history["epoch"] == [1, 2]
    assert_same_weights(stopped, whole)


def test_an_error_in_a_callback_leaves_the_last_whole_epoch() -> None:
    class Broken(wf.Callback):
        def on_step(self, step: int, steps_per_epoch: int) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 6:
                raise RuntimeError("a user's own error")

    x, labels = blobs(50)
    stopped, whole = mlp(6, 8, 3), mlp(6, 8, 3)
    with pytest.raises(RuntimeError, match="a user's own error"):
        fit(stopped, x, labels, callbacks=[Broken()])
    fit(whole, x, labels, epochs=1)
    assert_same_weights(stopped, whole)


def test_divergence_leaves_the_last_whole_epoch() -> None:
    x, _ = blobs(50)
    diverged, whole = mlp(6, 1), mlp(6, 1)
    settings = {"loss": "mse", "batch_size": 10}
    with pytest.raises(wf.errors.DivergedError) as caught:
        fit(diverged, 30 * x, x[:, 0], sgd(diverged, 0.01), epochs=50, **settings)
    assert caught.value.epoch > 2
    fit(whole, 30 * x, x[:, 0], sgd(whole, 0.01), epochs=caught.value.epoch - 1, **settings)
    assert_same_weights(diverged, whole)
    assert all(np.isfinite(values).all() for values in diverged.state_dict().values())
