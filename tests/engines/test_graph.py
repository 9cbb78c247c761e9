"""The graph engine: the bits of layerwise, from graphs that never run with an earlier step's
numbers or rows.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import warpfit as wf
from conftest import on_gpu
from support.training import InterruptAt, Taped, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.arrays import StepBuffers
from warpfit.engines import graph, pace, steps
from warpfit.engines.graph import period_of, sizes_of_graphs, steps_of_graph
from warpfit.errors import ConfigError, DeviceError, DivergedError
from warpfit.optim import schedules

SO_FEW = 1e-9  # launches, that graphs are as long as they may be
NUM_ROWS, BATCH = 70, 16  # four batches of 16 and one of 6


pytestmark = pytest.mark.in_turns(16)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs of the engine, whose graphs have two steps of a small network, one of a larger."""
    found: list[Any] = []
    train = graph._Run.train_epoch

    def noted(run: Any, *settings: Any) -> Any:
        if run not in found:
            found.append(run)
        return train(run, *settings)

    monkeypatch.setattr(graph._Run, "train_epoch", noted)
    monkeypatch.setattr(graph, "MOST_OPERATIONS", 40)
    monkeypatch.setattr(graph, "LAUNCHES_OF_OPERATION", SO_FEW)
    return found


def fit(
    engine: str, model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any
) -> wf.History:
    # 'auto' is not the same for both engines.
    precision = str(model.parameters()[0].dtype)
    asked = {"engine": engine, "epochs": 3, "batch_size": BATCH, "seed": 5, "precision": precision}
    asked["verbose"] = False
    return wf.fit(model, x, y, optimizer=optimizer or sgd(model), **(asked | settings))


def assert_same_slots(a: Any, b: Any) -> None:
    np.testing.assert_equal(a.state_dict(), b.state_dict())


def assert_same_bits(
    make_model: Any, x: Any, y: Any, make_optimizer: Any = sgd, **settings: Any
) -> tuple[wf.History, nn.Module]:
    """Assert that both engines give the same reports, weights and slots; return the graph's history
    and model.
    """
    models = [make_model(), make_model()]
    optimizers = [make_optimizer(model) for model in models]
    expected = fit("layerwise", models[0], x, y, optimizers[0], **settings)
    history = fit("graph", models[1], x, y, optimizers[1], **settings)
    assert history.plan.engine == "graph"
    np.testing.assert_array_equal(history.step_losses, expected.step_losses)
    for report, other in zip(history.reports, expected.reports, strict=True):
        assert (report.loss, report.accuracy, report.lr) == (other.loss, other.accuracy, other.lr)
        assert (report.val_loss, report.val_accuracy) == (other.val_loss, other.val_accuracy)
    assert_same_weights(models[1], models[0])
    assert_same_slots(optimizers[1], optimizers[0])
    return history, models[1]


def copied(run: Any) -> list[int]:
    """Return which of a run's sources each step copies: x, y, sample weights."""
    return list(run.source._windows)


def small() -> nn.Sequential:
    return mlp(6, 8, 3)


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, seed=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(36, 3, seed=2),
    )


def normed_images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, seed=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 3, seed=2),
    )


def residual() -> nn.Sequential:
    block = (nn.Conv2d(4, 4, 3, padding=1, seed=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2))
    down = nn.Conv2d(4, 8, 1, stride=2, bias=False, seed=3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, seed=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Residual(*block, nn.Conv2d(4, 4, 3, padding=1, seed=4), nn.BatchNorm2d(4)),
        nn.ReLU(),
        nn.Residual(nn.Conv2d(4, 8, 3, stride=2, padding=1, seed=5), shortcut=down),
        nn.GlobalAvgPool2d(),
        nn.Linear(8, 3, seed=6),
    )


def grouped() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 72, 3, padding="same", seed=1),
        nn.GroupNorm(2, 72),
        nn.ReLU(),
        nn.Conv2d(72, 72, 1, groups=2, seed=3),
        nn.Conv2d(72, 72, 3, stride=2, groups=72, seed=4),
        nn.GlobalAvgPool2d(),
        nn.Linear(72, 3, seed=2),
    )


def augmented() -> nn.Sequential:
    layers = (nn.Conv2d(1, 4, 3, seed=1), nn.ReLU(), nn.RandomShift((1, 2)), nn.RandomFlip())
    head = (nn.RandomCrop((5, 4)), nn.Flatten(), nn.Dropout(0.25), nn.Linear(80, 3, seed=2))
    turns = (nn.RandomFlip(alternate=2), nn.RandomShift((1, 2), padding_mode="reflect"))
    covered = (nn.RandomCutout((2, 3)), *turns)
    return nn.Sequential(nn.RandomFlip(), nn.RandomShift(2), *covered, *layers, *head)


def sequences() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(1, 4, 3, padding="same", seed=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3, seed=2),
    )


def normed() -> nn.Sequential:
    layers = (nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.5))
    return nn.Sequential(nn.Linear(6, 8, seed=1), *layers, nn.Linear(8, 3, seed=2))


def shared() -> nn.Sequential:
    twice = nn.Linear(6, 6, seed=1)
    return nn.Sequential(twice, nn.Tanh(), twice, nn.Softmax(), nn.Linear(6, 3, seed=2))


NETWORKS = {
    "mlp": small,
    "cnn": cnn,
    "normed": normed,
    "normed_images": normed_images,
    "residual": residual,
    "sequences": sequences,
    "grouped": grouped,
    "augmented": augmented,
    "shared": shared,
}
OPTIMIZERS = {
    "sgd": sgd,
    "nesterov": lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "lr_in_velocity": lambda model: sgd(model, momentum=0.9, lr_in_velocity=True),
    "adam": lambda model: adam(model, weight_decay=1e-3),
    "adam_scikit": lambda model: adam(model, eps_before_correction=True),
    "adamw": lambda model: optim.AdamW(model.parameters(), 0.01, clip_norm=0.5),
    "lion": lambda model: optim.Lion(model.parameters(), optim.Cosine(0.01), weight_decay=0.1),
    "muon": lambda model: optim.Muon(model.parameters(), optim.Cosine(0.01), normalize=True),
    "adagrad": lambda model: optim.Adagrad(model.parameters(), 0.01, lr_decay=0.1),
    "adadelta": lambda model: optim.Adadelta(model.parameters(), optim.Cosine(1.0)),
    "nadam": lambda model: optim.NAdam(model.parameters(), 0.01, momentum_decay=0.1),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), 0.01, momentum=0.5),
    "l2": lambda model: sgd(model, l2=0.1, clip_norm=1.0),
}


def data_for(make_model: Any) -> tuple[Any, Any]:
    if make_model in (cnn, normed_images, residual, grouped, augmented):
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (20, 8, 8, 1)).astype(np.uint8), rng.integers(0, 3, 20)
    x, y = blobs(NUM_ROWS)
    return (x[..., np.newaxis], y) if make_model is sequences else (x, y)


# -- the bits of layerwise
# -----------------------------------------------------------------------------------


@pytest.mark.in_turns(32)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16", "bfloat16"])
def test_networks(cuda: str, runs: list[Any], name: str, precision: str) -> None:
    make_model = NETWORKS[name]
    x, y = data_for(make_model)
    # float16's own scale is too much for gradients of a batch norm of so few rows.
    scale = {"loss_scale": 64.0} if precision == "float16" else {}
    assert_same_bits(
        make_model, x, y, adam, device=cuda, precision=precision, batch_size=8, **scale
    )
    assert all(graph is not None for graph in runs[0].graphs.values())


@pytest.mark.in_turns(32)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizers(cuda: str, runs: list[Any], name: str, dtype: str) -> None:
    x, y = blobs(NUM_ROWS, dtype=dtype)
    assert_same_bits(
        lambda: mlp(6, 8, 3, dtype=dtype), x, y, OPTIMIZERS[name], device=cuda, batch_size=12
    )
    assert [sizes for sizes, _ in runs[0].graphs] == [(12, 12), (12, 10)]
    assert None not in runs[0].graphs.values()


@pytest.mark.parametrize(
    "loss", ["mse", "absolute_error", "huber", "binary_cross_entropy", "poisson"]
)
def test_losses_with_weights(cuda: str, runs: list[Any], loss: str) -> None:
    x, labels = blobs(NUM_ROWS)
    settings = {"loss": loss, "sample_weight": np.linspace(0.5, 2, NUM_ROWS), "device": cuda}
    for batch_size in (BATCH, 7):
        assert_same_bits(small, x, np.eye(3, dtype="f4")[labels], batch_size=batch_size, **settings)


@pytest.mark.in_turns(32)
@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
@pytest.mark.parametrize("outputs", [1, 4, 5, 16])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_targets_are_read_where_they_lie(
    cuda: str, runs: list[Any], loss: str, outputs: int, precision: str, shuffle: bool
) -> None:
    x, _ = blobs(NUM_ROWS)
    y = np.random.default_rng(1).uniform(0, 1, (NUM_ROWS, outputs)).astype("f4")
    settings = {"loss": loss, "batch_size": 7, "precision": precision, "shuffle": shuffle}
    assert_same_bits(lambda: mlp(6, 8, outputs), x, y, device=cuda, **settings)
    assert copied(runs[0]) == [0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0]),
        ({"sample_weight": np.linspace(0.5, 2, NUM_ROWS)}, [0, 2]),
        ({"class_weight": "balanced"}, [0, 1]),
        ({"optimizer": OPTIMIZERS["l2"]}, [0, 1]),
    ],
)
def test_what_of_a_step_is_copied(
    cuda: str, runs: list[Any], settings: dict[str, Any], expected: list[int]
) -> None:
    settings = dict(settings)
    make_optimizer = settings.pop("optimizer", sgd)
    assert_same_bits(small, *blobs(NUM_ROWS), make_optimizer, device=cuda, batch_size=7, **settings)
    assert copied(runs[0]) == expected


def test_weights_of_classes_and_label_smoothing(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)
    loss = losses.resolve({"name": "cross_entropy", "label_smoothing": 0.1})
    weights = np.linspace(0.5, 2, NUM_ROWS)
    assert_same_bits(
        small, x, y, loss=loss, class_weight="balanced", sample_weight=weights, device=cuda
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l2_by_weight(cuda: str, runs: list[Any], dtype: str) -> None:
    x, y = blobs(NUM_ROWS, dtype=dtype)
    weights = np.linspace(0.5, 2, NUM_ROWS)
    weights[:32] = 0  # of the first two batches
    assert_same_bits(
        lambda: mlp(6, 8, 3, dtype=dtype),
        x,
        y,
        lambda model: adam(model, l2=0.1, l2_by_weight=True),
        device=cuda,
        sample_weight=weights,
        shuffle=False,
    )


@pytest.mark.parametrize("num_features", [3, 5, 7])
def test_rows_that_begin_at_any_address(cuda: str, runs: list[Any], num_features: int) -> None:
    x, y = blobs(NUM_ROWS, num_features)
    assert_same_bits(lambda: mlp(num_features, 5, 3), x, y, device=cuda, batch_size=7)
    bytes_of_x = (x * 255).astype(np.uint8)
    assert_same_bits(
        lambda: mlp(num_features, 5, 3),
        bytes_of_x,
        y,
        device=cuda,
        batch_size=7,
        precision="float16",
    )


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_images_that_begin_at_any_address(
    cuda: str, runs: list[Any], channels: int, precision: str
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((24, 5, 5, channels), dtype="f4"), rng.integers(0, 3, 24)

    def make_model() -> nn.Sequential:
        layers = (
            nn.Conv2d(channels, 4, 3, seed=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36, 3, seed=2),
        )
        return nn.Sequential(*layers)

    assert_same_bits(
        make_model,
        x,
        y,
        device=cuda,
        batch_size=7,
        precision=precision,
    )


@pytest.mark.parametrize(
    ("num_rows", "batch_size"), [(1, 1), (1, 16), (5, 16), (16, 16), (17, 16), (32, 16)]
)
def test_any_number_of_rows(cuda: str, runs: list[Any], num_rows: int, batch_size: int) -> None:
    x, y = blobs(num_rows)
    assert_same_bits(small, x, y, adam, device=cuda, batch_size=batch_size, epochs=4)


@pytest.mark.parametrize("largest", [0, 24 * BATCH])
def test_arrays_too_large_to_be_put_in_order(
    cuda: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    x, y = blobs(NUM_ROWS)
    monkeypatch.setattr(steps, "EPOCH_COPY_BYTES", largest)
    weights = np.linspace(0.5, 2, NUM_ROWS, dtype="f4")
    assert_same_bits(small, x, y, device=cuda, sample_weight=weights)


@pytest.mark.slow
def test_long_graphs(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    assert_same_bits(normed, x, y, adam, device=cuda, batch_size=4, epochs=4)


@pytest.mark.gpu
@on_gpu
def test_ten_thousand_replays() -> None:
    x, y = blobs(64)
    model = mlp(6, 512, 512, 3)
    history = fit(
        "graph", model, x, y, epochs=10_000, batch_size=32, device="cuda", precision="float16"
    )
    assert len(history) == 10_000
    assert history.reports[-1].loss < history.reports[0].loss / 10


@pytest.mark.slow
def test_two_runs_of_one_model(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)
    models, optimizers = [small(), small()], []
    for engine, model in zip(("layerwise", "graph"), models, strict=True):
        optimizers.append(adam(model))
        for batch_size in (BATCH, 32, 5):
            fit(engine, model, x, y, optimizers[-1], device=cuda, batch_size=batch_size)
    assert_same_weights(*models)
    assert optimizers[0].step_count == optimizers[1].step_count


# -- what changes between steps and epochs
# -----------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.OneCycle(0.1),
        schedules.Cosine(0.1, warmup_epochs=1),
        schedules.ReduceOnPlateau(0.5, factor=0.5, patience=0, threshold=0.2),
    ],
)
def test_schedules(cuda: str, runs: list[Any], schedule: Any) -> None:
    x, y = blobs(NUM_ROWS)
    history, _ = assert_same_bits(
        small,
        x,
        y,
        lambda model: adam(model, schedule),
        device=cuda,
        epochs=6,
        validation_data=(x, y),
    )
    assert len({report.lr for report in history.reports}) > 1


class Halve(wf.Callback):
    """Halves the rate after the epochs given."""

    def __init__(self, *epochs: int) -> None:
        self.epochs = epochs

    def on_epoch_end(self, run: Any) -> None:
        if run.report.epoch in self.epochs:
            run.scale_lr(0.5)


@pytest.mark.parametrize("make_optimizer", [sgd, adam, OPTIMIZERS["adamw"]])
def test_a_callback_that_changes_the_rate(cuda: str, runs: list[Any], make_optimizer: Any) -> None:
    x, y = blobs(NUM_ROWS)
    history, _ = assert_same_bits(
        small, x, y, make_optimizer, device=cuda, epochs=5, callbacks=[Halve(1, 3, 4)]
    )
    assert len({report.lr for report in history.reports}) == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_has_its_own_order(cuda: str, runs: list[Any], shuffle: bool) -> None:
    x, y = blobs(NUM_ROWS)
    history, _ = assert_same_bits(
        small, x, y, lambda model: sgd(model, 1e-30), device=cuda, shuffle=shuffle, epochs=5
    )
    losses = {tuple(report.step_losses) for report in history.reports}
    assert len(losses) == (5 if shuffle else 1)


def test_every_step_has_its_own_masks(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(16)
    model = nn.Sequential(nn.Linear(6, 32, seed=1), nn.Dropout(0.5), nn.Linear(32, 3, seed=2))
    history = fit("graph", model, x, y, sgd(model, 1e-30), device=cuda, shuffle=False, epochs=6)
    assert len(set(history.step_losses)) == 6


# -- whole runs
# ------------------------------------------------------------------------------------------------


class Steps(wf.Callback):
    """Keeps what listeners to steps are told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self.told.append((step, steps_per_epoch))


def test_listeners_hear_of_every_step(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)
    model, listener = small(), Steps()
    fit("graph", model, x, y, device=cuda, callbacks=[listener])
    assert listener.told == [(step + 1, 5) for step in range(5)] * 3


@pytest.mark.parametrize("step", [1, 7, 12])
def test_ctrl_c_leaves_the_last_whole_epoch(
    cuda: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(pace, "GROWTH", 1)  # or the last of those that were trained at once
    x, y = blobs(NUM_ROWS)
    whole, interrupted = small(), small()
    optimizers = adam(whole), adam(interrupted)
    fit("layerwise", whole, x, y, optimizers[0], device=cuda, epochs=(step - 1) // 5)
    callbacks = [InterruptAt(step)]
    history = fit(
        "graph", interrupted, x, y, optimizers[1], device=cuda, epochs=9, callbacks=callbacks
    )
    assert history.stopped_by == "interrupt"
    assert_same_weights(interrupted, whole)
    assert optimizers[0].step_count == optimizers[1].step_count == (step - 1) // 5 * 5


@pytest.fixture
def epochs_at_once(monkeypatch: pytest.MonkeyPatch, cuda: str) -> list[int]:
    """How many epochs are trained at once, each time; they may take as long as they like, and what
    `small` needs is loaded.
    """
    found: list[int] = []
    fit("graph", small(), *blobs(NUM_ROWS), device=cuda, epochs=1)
    train = graph._Run.epochs

    def noted(run: Any, count: int) -> Any:
        found.append(count)
        return train(run, count)

    monkeypatch.setattr(graph._Run, "epochs", noted)
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf)
    return found


def test_operations_whose_kernels_are_loaded_are_captured_at_once(
    cuda: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    fit("graph", normed(), x, y, device=cuda, epochs=1)
    were_captured: list[bool] = []
    start = graph._Run._start_each

    def noted(run: Any, *given: Any) -> None:
        were_captured.append(run.ops.runtime.is_capturing())
        start(run, *given)

    monkeypatch.setattr(graph._Run, "_start_each", noted)
    assert_same_bits(normed, x, y, device=cuda, epochs=2)
    assert were_captured
    assert all(were_captured)


def test_a_failure_in_a_capture_is_told(
    cuda: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a capture refuses is started one by one instead."""
    start = graph._Run._start_each

    def failing(run: Any, *given: Any) -> None:
        if run.ops.runtime.is_capturing():
            raise DeviceError("expected a device, got none")
        start(run, *given)

    monkeypatch.setattr(graph._Run, "_start_each", failing)
    with pytest.raises(DeviceError, match=r"^expected a device, got none"):
        fit("graph", small(), *blobs(NUM_ROWS), device=cuda, epochs=1)


def test_zeros_in_a_graph_are_zeros_at_each_launch(cuda: str) -> None:
    ops: Any = backends.get(cuda)
    one = ops.asarray(np.ones(4, np.float32))

    def add_one() -> Any:
        total = ops.zeros((4,), "float32")
        ops.assign(total, ops.binary("add", total, one))
        return total

    add_one()  # loads the kernel
    # More than a pool holds that has nothing to hold; the emulator has none, and fills all of it.
    nbytes = 1 if ops.runtime.card == "emulator" else 2**28
    with ops.runtime.capture(allocates=True) as captured:
        ops.runtime.allocate(nbytes)
        total = add_one()
    for _ in range(2):
        captured.launch()
    np.testing.assert_array_equal(total.numpy(), 1)


@pytest.mark.parametrize("every", [3, 100])
def test_epochs_are_trained_at_once_up_to_a_border(
    cuda: str, runs: list[Any], epochs_at_once: list[int], tmp_path: Any, every: int
) -> None:
    x, y = blobs(NUM_ROWS)
    checkpoints = [wf.Checkpoint(tmp_path / "run.ckpt", every=every)]
    assert_same_bits(normed, x, y, adam, device=cuda, epochs=1)  # loads the kernels
    del epochs_at_once[:]
    assert_same_bits(normed, x, y, adam, device=cuda, epochs=12, callbacks=checkpoints)
    assert epochs_at_once == ([1, 2, 3, 3, 3] if every == 3 else [1, 4, 7])


def test_ctrl_c_leaves_the_last_epochs_that_were_trained_at_once(
    cuda: str, runs: list[Any], epochs_at_once: list[int]
) -> None:
    x, y = blobs(NUM_ROWS)
    whole, interrupted = small(), small()
    fit("layerwise", whole, x, y, device=cuda, epochs=5)
    callbacks = [InterruptAt(38)]  # in the eighth epoch, of those after the fifth
    history = fit("graph", interrupted, x, y, device=cuda, epochs=9, callbacks=callbacks)
    assert (history.stopped_by, len(history.reports), epochs_at_once) == (
        "interrupt",
        5,
        [1, 4, 4],
    )
    assert_same_weights(interrupted, whole)


def test_what_diverges_among_epochs_at_once_is_told_by_its_step(
    cuda: str, runs: list[Any], epochs_at_once: list[int]
) -> None:
    class Bursting(schedules.Schedule):  # without a name, by which others would find it
        def rates(self, progress: Any, count: int) -> Any:
            return np.where(progress.step + np.arange(count) < 17, self.lr, 1e30)

    x, y, messages = *blobs(NUM_ROWS), []
    for engine in ("layerwise", "graph"):
        model = small()
        with pytest.raises(DivergedError, match="epoch 4, step") as caught:
            fit(engine, model, x, y, sgd(model, lr=Bursting(1e-3)), device=cuda, epochs=9)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert epochs_at_once == [1, 4]


def test_a_resumed_run_gives_the_bits_of_one_that_never_stopped(
    cuda: str, runs: list[Any], tmp_path: Any
) -> None:
    x, y = blobs(NUM_ROWS)
    whole, first, second = (normed() for _ in range(3))
    fit("layerwise", whole, x, y, adam(whole), device=cuda, epochs=5)
    path = tmp_path / "run.ckpt"
    fit("graph", first, x, y, adam(first), device=cuda, epochs=2, callbacks=[wf.Checkpoint(path)])
    fit("graph", second, x, y, adam(second), device=cuda, epochs=5, resume_from=path)
    assert_same_weights(second, whole)


def test_early_stopping_keeps_the_best(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)
    history, _ = assert_same_bits(
        small,
        x,
        y,
        lambda model: sgd(model, 2.0),
        device=cuda,
        epochs=20,
        validation_data=(x, y),
        callbacks=[wf.EarlyStopping(patience=1)],
    )
    assert history.stopped_by != "epochs"


@pytest.mark.parametrize("epoch", [1, 3])
def test_divergence_names_epoch_and_step(cuda: str, runs: list[Any], epoch: int) -> None:
    x, y = blobs(NUM_ROWS)
    targets = np.eye(3)[y]

    class Raise(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            if run.report.epoch == epoch - 1:
                run.scale_lr(1e30)

    messages = []
    for engine in ("layerwise", "graph"):
        model = small()
        rate = 1e15 if epoch == 1 else 1e-3
        with pytest.raises(DivergedError, match=f"epoch {epoch}, step") as caught:
            fit(
                engine,
                model,
                x,
                targets,
                sgd(model, rate),
                loss="mse",
                device=cuda,
                callbacks=[Raise()],
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_failed_capture_leaves_the_device_usable(
    cuda: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    step = graph._Run.step

    def reading(run: Any, batch: Any, *others: Any) -> bool:
        batch[0].numpy()
        return step(run, batch, *others)

    with monkeypatch.context() as patched:
        patched.setattr(graph._Run, "step", reading)
        with pytest.raises(
            DeviceError, match="only while a graph is captured on cuda:0, got a download of"
        ):
            fit("graph", small(), x, y, device=cuda)
    assert_same_bits(small, x, y, device=cuda)


def test_later_epochs_ask_for_no_more_memory(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)
    held: list[int] = []

    class Memory(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            held.append(len(runs[0].ops.step_memory()))

    fit("graph", normed(), x, y, device=cuda, epochs=6, callbacks=[Memory()])
    assert len(set(held[1:])) == 1


def test_graphs_keep_buffers_that_are_replaced(cuda: str, runs: list[Any]) -> None:
    x, y = blobs(NUM_ROWS)

    class Replace(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            if runs and run.report.epoch == 2:  # all graphs are there
                runs[0].ops._buffers, runs[0].ops._arrivals = StepBuffers(runs[0].ops.runtime), {}

    assert_same_bits(normed, x, y, adam, device=cuda, epochs=4, callbacks=[Replace()])


@pytest.fixture
def gpu() -> Any:
    reason = runtime.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return runtime.open_device(0)


@pytest.mark.gpu
def test_many_graphs_take_no_more_memory(gpu: Any) -> None:
    x, y = blobs(2000)
    model, used = small(), []

    class Memory(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            gc.collect()
            gpu.synchronize()
            used.append(gpu.memory_in_use())

    fit(
        "graph",
        model,
        x,
        y,
        adam(model),
        device="cuda",
        epochs=8,
        batch_size=1,
        callbacks=[Memory()],
    )
    assert used[-1] <= used[2]


# -- what it takes
# ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_plan_says_how_many_steps_a_graph_has(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LAUNCHES_OF_OPERATION", SO_FEW)
    x, y = blobs(NUM_ROWS)
    model = small()
    plan = fit("graph", model, x, y, device=cuda, batch_size=1).plan
    assert plan.reason == "engine 'graph' was asked for; graphs of 24 of the 70 steps of an epoch"


def test_the_cpu_has_no_graphs() -> None:
    x, y = blobs(NUM_ROWS)
    with pytest.raises(ConfigError, match="engine 'graph': expected a CUDA device, got 'cpu'"):
        fit("graph", small(), x, y, device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": Taped(small())},
            "expected a Sequential of the package's layers, got a module of its own",
        ),
        (
            {"precision": "float16", "loss_scale": "dynamic"},
            "expected a fixed loss_scale, got 'dynamic'",
        ),
    ],
)
def test_what_needs_the_host_is_refused(cuda: str, settings: dict[str, Any], message: str) -> None:
    x, labels = blobs(NUM_ROWS)
    model = settings.pop("model", None) or small()
    optimizer = sgd(model)
    with pytest.raises(ConfigError, match=f"engine 'graph': .*{message}"):
        fit(
            "graph",
            model,
            x,
            np.eye(3, dtype="f4")[labels],
            optimizer,
            **({"loss": "mse"} | settings),
            device=cuda,
        )


@dataclass(frozen=True)
class Quartic(losses.Loss):
    """The mean of (p - t)^4, of the backend's operations alone."""

    name: ClassVar[str] = ""

    def vjp(self, ops: Any, outputs: Any, targets: Any, **weights: Any) -> Any:
        distance = ops.binary("sub", outputs, targets)
        cube = ops.binary("mul", ops.unary("square", distance), distance)
        loss = ops.reduce("mean", ops.binary("mul", cube, distance))
        total = ops.reduce("sum", ops.full((len(outputs),), 1.0, str(outputs.dtype)))
        return loss, total, lambda: ops.binary("mul", cube, 4 / outputs.size)


class Taped4(Quartic):
    """The same by tensors, which ask for memory of their own."""

    name: ClassVar[str] = ""

    def vjp(self, ops: Any, outputs: Any, targets: Any, **weights: Any) -> Any:
        prediction = wf.Tensor(outputs, requires_grad=True)
        loss = ((prediction - targets) ** 4).mean()
        return loss.data, ops.full((), 1.0, str(outputs.dtype)), lambda: outputs


@dataclass(frozen=True)
class SlowSpec(optim.OptimizerSpec):
    """w ← w - lr / step · m with m ← m / 2 + g."""

    kind: ClassVar[str] = ""
    slot_names = ("sum",)

    def numbers(self, step: int, lr: float) -> tuple[float, ...]:
        return (lr / step,)

    def apply(self, ops: Any, parameters: Any, gradients: Any, slots: Any, **now: Any) -> None:
        (rate,) = (
            self.numbers(now["step"], now["lr"]) if now["numbers"] is None else [now["numbers"][0]]
        )
        for w, g, m in zip(parameters, gradients, slots["sum"], strict=True):
            ops.assign(m, ops.binary("add", ops.binary("mul", m, 0.5), g))
            ops.assign(w, ops.binary("sub", w, ops.binary("mul", m, rate)))


class DeafSpec(SlowSpec):
    kind: ClassVar[str] = ""

    def apply(self, ops: Any, parameters: Any, gradients: Any, slots: Any, **now: Any) -> None:
        super().apply(
            ops, parameters, gradients, slots, **(now | {"numbers": None, "step": now["step"] + 1})
        )


class ReadingSpec(SlowSpec):
    kind: ClassVar[str] = ""

    def apply(self, ops: Any, parameters: Any, gradients: Any, slots: Any, **now: Any) -> None:
        if np.isfinite(ops.to_numpy(gradients[0])).all():
            super().apply(ops, parameters, gradients, slots, **now)


def own(spec: type[SlowSpec] = SlowSpec) -> Any:
    return lambda model: optim.Optimizer(model.parameters(), spec(schedules.Cosine(0.1)))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_losses_and_optimizers_of_ones_own(cuda: str, runs: list[Any], precision: str) -> None:
    x, labels = blobs(NUM_ROWS)
    settings = {"loss": Quartic(), "device": cuda, "precision": precision}
    assert_same_bits(small, x, np.eye(3, dtype="f4")[labels], own(), **settings)
    model = small()
    history = wf.fit(model, x, labels, optimizer=own()(model), epochs=1, device=cuda, verbose=False)
    assert history.plan.engine == "graph"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"loss": Taped4()},
            "a loss of the backend's operations alone, got Taped4: .*an allocation",
        ),
        ({"optimizer": own(DeafSpec)}, "got DeafSpec: its update does not follow `numbers`"),
        (
            {"optimizer": own(ReadingSpec)},
            "an optimizer of the backend's operations alone, got ReadingSpec: ",
        ),
    ],
    ids=["a tape", "its own numbers", "reads the device"],
)
def test_what_needs_the_host_of_ones_own_is_refused(
    cuda: str, settings: dict[str, Any], message: str
) -> None:
    x, labels = blobs(NUM_ROWS)
    model = small()
    optimizer = settings.get("optimizer", sgd)(model)
    y, loss = np.eye(3, dtype="f4")[labels], settings.get("loss", "mse")
    with pytest.raises(ConfigError, match=message):
        fit("graph", model, x, y, optimizer, loss=loss, device=cuda)
    history = fit("auto", model, x, y, optimizer, loss=loss, device=cuda, epochs=1)
    assert history.plan.engine == "layerwise"


@pytest.mark.parametrize("num_layers", [1, 3, 40, 1000])
@pytest.mark.parametrize("steps_per_epoch", [1, 2, 17, 938, 100_000])
@pytest.mark.parametrize("period", [1, 2, 16])
def test_graphs_are_neither_long_nor_uneven(
    num_layers: int, steps_per_epoch: int, period: int
) -> None:
    steps = steps_of_graph(num_layers, steps_per_epoch, period)
    operations = num_layers * graph.OPERATIONS_OF_LAYER + graph.OTHER_OPERATIONS
    assert 1 <= steps <= max(1, min(steps_per_epoch, graph.MOST_OPERATIONS // operations))
    sizes = sizes_of_graphs(steps_per_epoch * 8 - 3, 8, steps)
    assert sum(map(sum, sizes)) == steps_per_epoch * 8 - 3
    assert len(set(sizes)) <= 2
    is_short = len(sizes) == 1 or graph.MOST_OPERATIONS // operations < period
    assert is_short or steps % period == 0


def test_graphs_of_short_runs_are_short() -> None:
    lengths = [steps_of_graph(7, 235, epochs=epochs) for epochs in (1, 3, 10, 100, 1000)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1
    assert lengths[-1] == steps_of_graph(7, 235)


@pytest.mark.parametrize(
    ("bytes_of_batches", "period"), [([16, 3200], 1), ([24, 16], 2), ([4, 24], 4), ([7, 48], 16)]
)
def test_batches_lie_alike_after_a_period(bytes_of_batches: list[int], period: int) -> None:
    assert period_of(bytes_of_batches) == period


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "steps", "sizes"),
    [
        (70, 16, 2, [(16, 16), (16, 16), (6,)]),
        (64, 16, 3, [(16, 16, 16), (16,)]),
        (5, 16, 1, [(5,)]),
        (1, 1, 1, [(1,)]),
    ],
)
def test_sizes_of_graphs(num_rows: int, batch_size: int, steps: int, sizes: list[Any]) -> None:
    assert sizes_of_graphs(num_rows, batch_size, steps) == sizes
