"""Checkpoints: a resumed run ends with the bits of one that was never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.files import rewrite
from support.training import (
    InterruptAt,
    Taped,
    adam,
    assert_same_weights,
    blobs,
    mlp,
    sgd,
    unchanged,
)
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError, DataWarning, DivergedError, FileFormatError
from warpfit.training import loop
from warpfit.training.run import Run

X, LABELS = blobs(60)
VALIDATION = blobs(30, seed=1)
STEPS = 4  # an epoch: 16 + 16 + 16 + 12 rows


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 6, "batch_size": 16, "seed": 5, "verbose": False, **settings}
    return wf.fit(model, X, LABELS, optimizer=optimizer or adam(model), **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.checkpoint"


def momentum(model: nn.Module) -> optim.SGD:
    return sgd(model, optim.Cosine(0.1, warmup_epochs=1), momentum=0.9, nesterov=True)


def plateau(model: nn.Module) -> optim.SGD:
    return sgd(model, optim.ReduceOnPlateau(1.0, factor=0.5, patience=0, threshold=0.03))


def rmsprop(model: nn.Module) -> optim.RMSprop:
    return optim.RMSprop(model.parameters(), 0.01)


def normalised() -> nn.Sequential:
    layers = mlp(6, 8, 3)
    return nn.Sequential(layers[0], nn.BatchNorm1d(8), layers[1], nn.Dropout(0.3), layers[2])


MODELS = {
    "chain": lambda: mlp(6, 8, 3),
    "float64": lambda: mlp(6, 8, 3, dtype="float64"),
    "taped": lambda: Taped(mlp(6, 8, 3)),
    "batch norm and dropout": normalised,
    "taped batch norm and dropout": lambda: Taped(normalised()),
}

RUNS = [
    *((name, adam) for name in MODELS),
    ("chain", sgd),
    ("chain", momentum),
    ("chain", rmsprop),
    ("chain", plateau),
    ("taped", plateau),
]


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(("name", "make_optimizer"), RUNS)
@pytest.mark.parametrize("stop_after", [0, 1, 2 * STEPS, 3 * STEPS + 2])
def test_resumed_after_an_interrupt(
    name: str, make_optimizer: Any, stop_after: int, path: Path
) -> None:
    whole, stopped, resumed = (MODELS[name]() for _ in range(3))
    optimizer, resumed_optimizer = make_optimizer(whole), make_optimizer(resumed)
    settings = {"validation_data": VALIDATION}
    history = fit(whole, optimizer, **settings)
    callbacks = [wf.Checkpoint(path, every=100), InterruptAt(stop_after)]
    epochs = 6 if stop_after else 0
    fit(stopped, make_optimizer(stopped), callbacks=callbacks, epochs=epochs, **settings)
    after = fit(resumed, resumed_optimizer, resume_from=path, **settings)

    assert_same_weights(resumed, whole)
    np.testing.assert_equal(resumed_optimizer.state_dict(), optimizer.state_dict())
    np.testing.assert_array_equal(after.step_losses, history.step_losses)
    for column in ("epoch", "loss", "accuracy", "lr", "val_loss", "val_accuracy"):
        assert after[column] == history[column]


def test_resumed_with_more_epochs(path: Path) -> None:
    whole, first, resumed = (mlp(6, 8, 3) for _ in range(3))
    fit(whole)
    fit(first, epochs=2, callbacks=[wf.Checkpoint(path)])
    history = fit(resumed, epochs=6, resume_from=path)
    assert_same_weights(resumed, whole)
    assert history["epoch"] == [1, 2, 3, 4, 5, 6]


def test_resumed_again_and_again_at_the_same_path(path: Path) -> None:
    whole = mlp(6, 8, 3)
    fit(whole)
    fit(mlp(6, 8, 3), epochs=1, callbacks=[wf.Checkpoint(path)])
    for epochs in range(2, 7):
        model = mlp(6, 8, 3)
        fit(model, epochs=epochs, callbacks=[wf.Checkpoint(path)], resume_from=path)
    assert_same_weights(model, whole)


def test_a_run_that_is_done_resumes_to_its_end(path: Path) -> None:
    done, again = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(done, callbacks=[wf.Checkpoint(path)])
    history = fit(again, resume_from=path)
    assert_same_weights(done, again)
    assert len(history) == 6


def test_a_continued_optimizer_is_in_the_checkpoint(path: Path) -> None:
    whole, stopped, resumed = (mlp(6, 8, 3) for _ in range(3))
    optimizers = [adam(model) for model in (whole, stopped, resumed)]
    for model, optimizer in zip((whole, stopped), optimizers, strict=False):
        fit(model, optimizer, epochs=1)
    fit(whole, optimizers[0])
    fit(stopped, optimizers[1], callbacks=[wf.Checkpoint(path), InterruptAt(9)])
    fit(resumed, optimizers[2], resume_from=path)
    assert optimizers[2].step_count == 7 * STEPS
    assert_same_weights(resumed, whole)


def test_weights_of_rows_and_classes_resume(path: Path) -> None:
    settings = {"sample_weight": np.linspace(0, 2, 60), "class_weight": "balanced"}
    whole, resumed = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(whole, **settings)
    fit(mlp(6, 8, 3), callbacks=[wf.Checkpoint(path), InterruptAt(13)], **settings)
    fit(resumed, resume_from=path, **settings)
    assert_same_weights(resumed, whole)


class Residual(nn.Module):
    """A module with a parameter that is a single number."""

    def __init__(self) -> None:
        self.inner = nn.Linear(6, 3, seed=1)
        self.scale = nn.Parameter(np.ones((), np.float32))

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


def test_a_parameter_of_one_number_resumes(path: Path) -> None:
    whole, resumed = Residual(), Residual()
    fit(whole)
    fit(Residual(), callbacks=[wf.Checkpoint(path), InterruptAt(13)])
    fit(resumed, resume_from=path)
    assert_same_weights(resumed, whole)


# -- callbacks in a checkpoint
# -------------------------------------------------------------------------------


def stopping() -> wf.EarlyStopping:
    return wf.EarlyStopping(patience=2, min_delta=0.01)


@pytest.mark.parametrize("stop_after", [2 * STEPS, 5 * STEPS + 1, 7 * STEPS + 3])
def test_early_stopping_resumes_with_its_best_weights(stop_after: int, path: Path) -> None:
    settings = {"epochs": 40, "validation_data": VALIDATION}
    whole, resumed = mlp(6, 8, 3), mlp(6, 8, 3)
    expected = fit(whole, adam(whole, 0.05), callbacks=[stopping()], **settings)
    assert 8 < len(expected) < 40
    model = mlp(6, 8, 3)
    callbacks = [InterruptAt(stop_after), stopping(), wf.Checkpoint(path)]
    fit(model, adam(model, 0.05), callbacks=callbacks, **settings)
    again = stopping()
    history = fit(
        resumed,
        adam(resumed, 0.05),
        callbacks=[wf.Checkpoint(path), again],
        resume_from=path,
        **settings,
    )
    assert history["val_loss"] == expected["val_loss"]
    assert history.stopped_by == expected.stopped_by
    assert_same_weights(resumed, whole)


def waiting(model: nn.Module) -> optim.SGD:
    """An optimizer whose schedule lowers the rate after three epochs without enough gain, and then
    rests for three.
    """
    return sgd(model, optim.ReduceOnPlateau(1.0, factor=0.5, patience=2, threshold=0.2, cooldown=3))


@pytest.mark.parametrize("epochs", [2, 5, 15, 21, 27])
def test_a_plateau_and_a_stop_resume_in_the_midst_of_waiting(epochs: int, path: Path) -> None:
    settings = {"validation_data": VALIDATION, "batch_size": 30}
    whole, resumed = mlp(6, 8, 3), mlp(6, 8, 3)
    rule = {"patience": 5, "min_delta": 0.03}
    expected = fit(
        whole, waiting(whole), epochs=30, callbacks=[wf.EarlyStopping(**rule)], **settings
    )
    assert len(expected) == 29
    assert sorted(set(expected["lr"])) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    model = mlp(6, 8, 3)
    callbacks = [wf.EarlyStopping(**rule), wf.Checkpoint(path)]
    fit(model, waiting(model), epochs=epochs, callbacks=callbacks, **settings)
    stopping = wf.EarlyStopping(**rule)
    history = fit(
        resumed, waiting(resumed), epochs=30, callbacks=[stopping], resume_from=path, **settings
    )
    for column in ("epoch", "loss", "lr", "val_loss"):
        assert history[column] == expected[column]
    assert history.stopped_by == expected.stopped_by
    assert_same_weights(resumed, whole)


def test_an_interrupt_between_epochs_resumes_too(path: Path) -> None:
    class InterruptLast(wf.Callback):
        """Comes after early stopping, which has seen the epoch when the interrupt comes."""

        def on_epoch_end(self, run: Run) -> None:
            if run.report.epoch == 8:
                raise KeyboardInterrupt

    settings = {"epochs": 40, "validation_data": VALIDATION}
    whole, resumed = mlp(6, 8, 3), mlp(6, 8, 3)
    expected = fit(whole, plateau(whole), callbacks=[stopping()], **settings)
    assert len(expected) == 9  # epoch 8 is the first of two that stop it
    model = mlp(6, 8, 3)
    fit(
        model,
        plateau(model),
        callbacks=[wf.Checkpoint(path), stopping(), InterruptLast()],
        **settings,
    )
    history = fit(resumed, plateau(resumed), callbacks=[stopping()], resume_from=path, **settings)
    assert history["epoch"] == expected["epoch"]
    assert history["val_loss"] == expected["val_loss"]
    assert_same_weights(resumed, whole)


def test_a_run_that_early_stopping_ended_resumes_to_its_end(path: Path) -> None:
    settings = {"epochs": 40, "validation_data": VALIDATION}
    done, again, longer, other = (mlp(6, 8, 3) for _ in range(4))
    callbacks = [stopping(), wf.Checkpoint(path)]
    expected = fit(done, plateau(done), callbacks=callbacks, **settings)
    assert len(expected) == 9
    resumed: dict[str, Any] = {"resume_from": path, **settings}
    history = fit(again, plateau(again), callbacks=[stopping()], **resumed)
    assert (history["epoch"], history.stopped_by) == (expected["epoch"], expected.stopped_by)
    assert_same_weights(again, done)
    # One that lets more epochs pass goes on, and so does one of other data.
    patient = wf.EarlyStopping(patience=3, min_delta=0.01)
    assert len(fit(longer, plateau(longer), callbacks=[patient], **resumed)) > 9
    resumed |= {"validation_data": blobs(30, seed=2), "new_data": True}
    assert len(fit(other, plateau(other), callbacks=[stopping()], **resumed)) > 9


def test_early_stopping_by_another_column_begins_anew(path: Path) -> None:
    settings = {"validation_data": VALIDATION}
    other = wf.EarlyStopping("val_accuracy", patience=1)
    fit(mlp(6, 8, 3), epochs=2, callbacks=[stopping(), wf.Checkpoint(path)], **settings)
    history = fit(mlp(6, 8, 3), epochs=3, callbacks=[other], resume_from=path, **settings)
    assert (other.best_epoch, other.best) == (3, history["val_accuracy"][-1])


def test_several_early_stoppings_are_known_by_their_columns(path: Path) -> None:
    def both() -> list[wf.EarlyStopping]:
        return [wf.EarlyStopping(column, patience=9) for column in ("val_loss", "val_accuracy")]

    settings: dict[str, Any] = {"validation_data": VALIDATION}
    written = both()
    fit(mlp(6, 8, 3), epochs=4, callbacks=[*written, wf.Checkpoint(path)], **settings)
    found = both()
    swapped = [wf.EarlyStopping("loss"), *reversed(found)]
    fit(mlp(6, 8, 3), epochs=4, callbacks=swapped, resume_from=path, **settings)
    for before, after in zip(written, found, strict=True):
        assert (after.best, after.best_epoch) == (before.best, before.best_epoch)
    assert swapped[0].best is None


def test_early_stopping_may_join_or_leave_a_resumed_run(path: Path) -> None:
    fit(mlp(6, 8, 3), callbacks=[wf.Checkpoint(path), InterruptAt(9)])
    used = wf.EarlyStopping("loss")
    fit(mlp(6, 3), callbacks=[used])
    joined, whole = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(joined, callbacks=[used, wf.Checkpoint(path)], resume_from=path)
    assert used.best_epoch == 6
    fit(whole)
    assert_same_weights(joined, whole)
    left = mlp(6, 8, 3)
    fit(left, resume_from=path)
    assert_same_weights(left, whole)


def test_a_users_callback_resumes_what_it_remembers(path: Path) -> None:
    class Average(wf.Callback):
        def __init__(self) -> None:
            self.resume({}, {})

        def on_epoch_end(self, run: Run) -> None:
            self.count += 1
            self.sum = self.sum + run.state.parameters["0.bias"]

        def checkpoint_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
            return {"count": self.count}, {"sum": self.sum}

        def resume(self, numbers: dict[str, Any], arrays: dict[str, Any]) -> None:
            self.count, self.sum = (
                numbers.get("count", 0),
                arrays.get("sum", np.zeros(8, np.float32)),
            )

    whole, first, resumed = Average(), Average(), Average()
    fit(mlp(6, 8, 3), callbacks=[whole])
    fit(mlp(6, 8, 3), callbacks=[first, wf.Checkpoint(path), InterruptAt(9)])
    assert first.count == 2
    fit(mlp(6, 8, 3), callbacks=[wf.Callback(), resumed], resume_from=path)
    assert resumed.count == whole.count == 6
    np.testing.assert_array_equal(resumed.sum, whole.sum)


class Counts(wf.Callback):
    """Keeps an array as it was given."""

    def __init__(self, array: Any = None) -> None:
        self.array = array

    def checkpoint_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"array": self.array}

    def resume(self, numbers: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.array = arrays["array"]


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", ">f4", ">i8"])
def test_arrays_of_a_users_callback_keep_their_dtype(dtype: str, path: Path) -> None:
    given, found = np.array([0, 1, 1], dtype), Counts()
    fit(mlp(6, 3), epochs=1, callbacks=[Counts(given), wf.Checkpoint(path)])
    fit(mlp(6, 3), epochs=2, callbacks=[found], resume_from=path)
    in_our_order = given.astype(given.dtype.newbyteorder("="))
    np.testing.assert_array_equal(found.array, in_our_order, strict=True)


@pytest.mark.parametrize("array", [np.array(["a"]), np.zeros(2, np.longdouble)])
def test_an_array_that_no_file_can_hold(array: Any, path: Path) -> None:
    words = f"expected an array of numbers as callbacks/0/array, got {array.dtype}"
    with pytest.raises(ConfigError, match=words):
        fit(mlp(6, 3), callbacks=[Counts(array), wf.Checkpoint(path)])
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        (
            "callbacks/0/0.weight",
            (8, 6),
            "expected best weights in the model's shapes and dtype, found others",
        ),
        (
            "callbacks/0/other",
            (1,),
            "expected best weights in the model's shapes and dtype, found others",
        ),
        ("parameters/0.weight", (8, 6), "under parameters/ in the model's shapes, found others"),
        ("slots/first_moment/0.weight", (48,), "under slots/first_moment/ in the model's shapes"),
    ],
)
def test_arrays_of_other_shapes(name: str, shape: tuple[int, ...], match: str, path: Path) -> None:
    settings = {"validation_data": VALIDATION}
    fit(mlp(6, 8, 3), epochs=2, callbacks=[stopping(), wf.Checkpoint(path)], **settings)
    rewrite(path, lambda header, arrays: arrays.update({name: np.zeros(shape, "f4")}))
    model = mlp(6, 8, 3)
    optimizer = adam(model)
    with unchanged(model, optimizer), pytest.raises(FileFormatError, match=match):
        fit(model, optimizer, callbacks=[stopping()], resume_from=path, **settings)


def test_best_weights_of_another_dtype(path: Path) -> None:
    settings = {"validation_data": VALIDATION}
    fit(mlp(6, 3), epochs=2, callbacks=[stopping(), wf.Checkpoint(path)], **settings)
    integers = {"callbacks/0/0.weight": np.zeros((6, 3), "i8")}
    rewrite(path, lambda header, arrays: arrays.update(integers))
    with pytest.raises(FileFormatError, match="in the model's shapes and dtype, found others"):
        fit(mlp(6, 3), callbacks=[stopping()], resume_from=path, **settings)


def test_a_callback_that_cannot_read_what_is_stored(path: Path) -> None:
    class Picky(wf.Callback):
        def checkpoint_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
            return {"counts": [1, 2]}, {}

        def resume(self, numbers: dict[str, Any], arrays: dict[str, Any]) -> None:
            if numbers:
                self.count = numbers["count"]

    fit(mlp(6, 3), epochs=1, callbacks=[Picky(), wf.Checkpoint(path)])
    model = mlp(6, 3)
    optimizer = adam(model)
    with (
        unchanged(model, optimizer),
        pytest.raises(FileFormatError, match="holds no state of these callbacks: 'count'"),
    ):
        fit(model, optimizer, callbacks=[Picky()], resume_from=path)


# -- when it is written
# --------------------------------------------------------------------------------------


def test_it_is_written_every_n_epochs_and_at_the_end(path: Path) -> None:
    written: list[int] = []

    class Watcher(wf.Callback):
        def on_start(self, run: Run) -> None:
            assert not path.exists()

        def on_step(self, step: int, steps_per_epoch: int) -> None:
            if step == 1 and path.exists():
                written.append(path.stat().st_mtime_ns)

    fit(mlp(6, 8, 3), epochs=7, callbacks=[wf.Checkpoint(path, every=3), Watcher()])
    # Steps 1 of epochs 4, 5, 6 see the first file, that of epoch 7 the second; the third comes at
    # the end.
    assert [written.count(when) for when in sorted(set(written))] == [3, 1]
    assert path.stat().st_mtime_ns > written[-1]
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_is_readable_by_all_who_may_read_files_here(path: Path) -> None:
    (path.parent / "plain").touch()
    fit(mlp(6, 8, 3), epochs=1, callbacks=[wf.Checkpoint(path)])
    assert path.stat().st_mode == (path.parent / "plain").stat().st_mode


def test_divergence_leaves_the_last_good_checkpoint(path: Path) -> None:
    model, resumed = mlp(6, 1), mlp(6, 1)
    x, y = 30 * X, X[:, 0]
    settings = {"loss": "mse", "batch_size": 60, "verbose": False}
    with pytest.raises(DivergedError) as caught:
        wf.fit(
            model,
            x,
            y,
            optimizer=sgd(model, 0.01),
            epochs=100,
            callbacks=[wf.Checkpoint(path)],
            **settings,
        )
    last = caught.value.epoch - 1
    assert last > 1
    history = wf.fit(
        resumed, x, y, optimizer=sgd(resumed, 0.01), epochs=last, resume_from=path, **settings
    )
    assert len(history) == last
    assert_same_weights(resumed, model)
    assert all(np.isfinite(values).all() for values in resumed.state_dict().values())


# -- kills
# --------------------------------------------------------------------------------------------------

ENDLESS = """
import sys
import numpy as np
import warpfit as wf
x = np.random.default_rng(0).uniform(size=(8, 300)).astype("f4")
model = wf.nn.Sequential(wf.nn.Linear(300, 300, seed=0), wf.nn.ReLU(), wf.nn.Linear(300, 2, seed=1))
wf.fit(model, x, np.arange(8) % 2, optimizer=wf.optim.Adam(model.parameters()),
       epochs=10**6, batch_size=8, callbacks=[wf.Checkpoint(sys.argv[1])],
       resume_from=sys.argv[2] if len(sys.argv) > 2 else None)
"""


def kill_while_it_writes(path: Path, seconds: float) -> None:
    resume = [str(path)] if path.exists() else []
    before = path.stat().st_mtime_ns if path.exists() else 0
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path), *resume])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_mtime_ns > before):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_goes_on(path: Path) -> None:
    draw = random.Random(0)
    x = np.random.default_rng(0).uniform(size=(8, 300)).astype("f4")
    done = 0
    for _ in range(4):
        kill_while_it_writes(path, draw.uniform(0, 0.05))
        model = mlp(300, 300, 2)
        history = wf.fit(
            model,
            x,
            np.arange(8) % 2,
            optimizer=optim.Adam(model.parameters()),
            epochs=10**6,
            batch_size=8,
            verbose=False,
            resume_from=path,
            callbacks=[InterruptAt(1)],
        )
        assert len(history) > done
        done = len(history)
    whole = mlp(300, 300, 2)
    wf.fit(
        whole,
        x,
        np.arange(8) % 2,
        optimizer=optim.Adam(whole.parameters()),
        epochs=done,
        batch_size=8,
        verbose=False,
    )
    assert_same_weights(model, whole)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_writes_a_checkpoint_and_ends_well(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = errors.decode().splitlines()
    assert lines
    assert all(line.startswith("epoch ") for line in lines)


# -- what does not go on
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batch_size": 8}, r"differs in batch_size \(16 there, 8 here\)"),
        ({"seed": 6}, r"differs in seed \(5 there, 6 here\)"),
        ({"shuffle": False}, "differs in shuffle"),
        ({"precision": "float64"}, "differs in precision"),
        (
            {"loss": losses.SoftmaxCrossEntropy(0.1)},
            r"differs in loss.label_smoothing \(0.0 there, 0.1 here\)$",
        ),
        (
            {"class_weight": [1, 2, 3]},
            r"differs in loss.class_weight \(None there, \[1.0, 2.0, 3.0\] here\)$",
        ),
        ({"optimizer": sgd}, r"differs in optimizer \('adam' there, 'sgd' here\)$"),
        (
            {"optimizer": lambda model: adam(model, 0.02)},
            r"differs in optimizer.lr.lr \(0.01 there, 0.02 here\)$",
        ),
        (
            {"optimizer": lambda model: adam(model, clip_norm=1.0)},
            r"differs in optimizer.clip_norm \(None there, 1.0 here\)$",
        ),
        (
            {"optimizer": lambda model: optim.Adam(model[2].parameters(), 0.01)},
            "differs in trained",
        ),
        (
            {"model": lambda: mlp(6, 9, 3)},
            r"differs in network.layers\[0\].out_features \(8 there, 9 here\), "
            r"network.layers\[2\].in_features \(8 there, 9 here\)$",
        ),
        (
            {"model": lambda: mlp(6, 8, 3, activation=nn.Tanh)},
            r"differs in network.layers\[1\].activation \('relu' there, 'tanh' here\)$",
        ),
        (
            {"model": lambda: nn.Sequential(*list(mlp(6, 8, 3))[::2])},
            "the number of network.layers ",
        ),
        (
            {"model": lambda: Taped(mlp(6, 8, 3))},
            r"differs in network \('input_shape, layers' there, 'input_shape, module' here\), "
            r"trained",
        ),
        (
            {"batch_size": 8, "shuffle": False},
            r"batch_size \(16 there, 8 here\), shuffle \(True there, False here\)$",
        ),
        (
            {"batch_size": 8, "shuffle": False, "seed": 1, "report_every": 2},
            r"report_every \(1 there, 2 here\) and 1 more$",
        ),
        ({"epochs": 1}, "expected epochs to be at least the 2 that .* has done, got 1"),
    ],
)
def test_other_runs(changes: dict[str, Any], match: str, path: Path) -> None:
    fit(mlp(6, 8, 3), epochs=2, callbacks=[wf.Checkpoint(path)])
    settings = dict(changes)
    model = settings.pop("model", lambda: mlp(6, 8, 3))()
    optimizer = settings.pop("optimizer", adam)(model)
    with unchanged(model, optimizer), pytest.raises(ConfigError, match=match):
        fit(model, optimizer, resume_from=path, **settings)


def test_other_modules_of_ones_own(path: Path) -> None:
    fit(Taped(mlp(6, 8, 3)), epochs=1, callbacks=[wf.Checkpoint(path)])
    message = (
        r"differs in network.module \('\(0\): Linear\(6, 8, 56 parameters\)' there, "
        r"'\(0\): Linear\(6, 9, 63 parameters\)' here\)"
    )
    with pytest.raises(ConfigError, match=message):
        fit(Taped(mlp(6, 9, 3)), resume_from=path)


# -- other data
# ----------------------------------------------------------------------------------------------

LARGE = np.random.default_rng(0).normal(size=(3000, 6)).astype("f4")


def changed(rows: Any, place: Any = -1) -> Any:
    """Return a copy with another number in one place."""
    rows = rows.copy()
    rows[place] = (rows[place] + 1) % 3
    return rows


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"x": changed(X, (30, 2))}, "another x;"),
        ({"x": X.astype("f8")}, "another x;"),
        ({"y": changed(LABELS)}, "another y;"),
        ({"x": X[::-1], "y": LABELS[::-1]}, "another x, y;"),
        ({"x": X[:50], "y": LABELS[:50]}, r"another x, y \(60 rows there, 50 here\);"),
        ({"sample_weight": np.ones(60)}, "another sample_weight;"),
    ],
)
def test_other_data_is_refused_unless_it_is_meant(
    data: dict[str, Any], found: str, path: Path
) -> None:
    settings = {"batch_size": 16, "verbose": False}
    fit(mlp(6, 8, 3), epochs=2, callbacks=[wf.Checkpoint(path)], seed=0)
    model = mlp(6, 8, 3)
    optimizer = adam(model)
    settings |= {"optimizer": optimizer, "resume_from": path, **data}
    x, y = settings.pop("x", X), settings.pop("y", LABELS)
    message = f"expected the data that {path} was trained on, got {found} .*new_data=True"
    with unchanged(model, optimizer), pytest.raises(ConfigError, match=message):
        wf.fit(model, x, y, epochs=4, **settings)
    history = wf.fit(model, x, y, epochs=4, new_data=True, **settings)
    assert history["epoch"] == [1, 2, 3, 4]
    assert history["num_rows"] == [60, 60, len(x), len(x)]


def test_going_on_with_new_data_is_training_on_from_there(path: Path) -> None:
    more, labels = blobs(100, seed=3)
    resumed, whole = mlp(6, 8, 3), mlp(6, 8, 3)
    settings = {"shuffle": False, "batch_size": 16, "verbose": False}
    optimizer = adam(whole)
    fit(whole, optimizer, epochs=2, callbacks=[wf.Checkpoint(path)], **settings)
    wf.fit(whole, more, labels, optimizer=optimizer, epochs=1, seed=5, **settings)
    settings |= {"resume_from": path, "new_data": True, "seed": 5}
    wf.fit(resumed, more, labels, optimizer=adam(resumed), epochs=3, **settings)
    assert_same_weights(resumed, whole)


def test_rows_to_validate_on_must_be_the_same_only_where_they_decide(path: Path) -> None:
    other = blobs(30, seed=2)
    fit(mlp(6, 8, 3), epochs=2, callbacks=[wf.Checkpoint(path)], validation_data=VALIDATION)
    fit(mlp(6, 8, 3), resume_from=path, validation_data=other)
    fit(mlp(6, 8, 3), resume_from=path)
    fit(mlp(6, 8, 3), resume_from=path, callbacks=[stopping()], validation_data=VALIDATION)
    message = "another validation x, validation y"
    with pytest.raises(ConfigError, match=message):
        fit(mlp(6, 8, 3), resume_from=path, callbacks=[stopping()], validation_data=other)
    model = mlp(6, 8, 3)
    fit(
        model, plateau(model), epochs=2, callbacks=[wf.Checkpoint(path)], validation_data=VALIDATION
    )
    with pytest.raises(ConfigError, match=message):
        fit(model, plateau(model), resume_from=path, validation_data=other)


def test_data_is_looked_at_for_checkpoints_only(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(loop, "data_digests", lambda *data: looked.append(1) or {})
    fit(mlp(6, 8, 3), epochs=3)
    assert looked == []
    fit(mlp(6, 8, 3), epochs=3, callbacks=[wf.Checkpoint(path)])
    assert looked == [1]


def test_files_that_are_no_checkpoints(path: Path) -> None:
    model = mlp(6, 8, 3)
    wf.save(model, path)
    with pytest.raises(
        FileFormatError,
        match=r"found a warpfit-model file, which warpfit\.load reads",
    ):
        fit(model, resume_from=path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="is no readable warpfit-checkpoint file"):
        fit(model, resume_from=path)
    fit(model, epochs=1, callbacks=[wf.Checkpoint(path)])
    with pytest.raises(
        FileFormatError,
        match=r"found a warpfit-checkpoint file, which fit\(..., resume_from=...\) reads",
    ):
        wf.load(path)


def test_numbers_that_are_not_finite_are_warned_of(path: Path) -> None:
    fit(mlp(6, 8, 3), epochs=1, callbacks=[wf.Checkpoint(path)])
    rewrite(path, lambda header, arrays: arrays["parameters/0.weight"].fill(np.inf))
    with (
        pytest.warns(DataWarning, match="holds NaN or infinity in parameters/0.weight$"),
        pytest.raises(DivergedError),
    ):
        fit(mlp(6, 8, 3), resume_from=path)


def test_a_learning_rate_of_numpys_can_be_stored(path: Path) -> None:
    def optimizer(model: nn.Module) -> optim.SGD:
        return sgd(model, optim.Exponential(np.float32(0.1), 0.5), momentum=np.float32(0.5))

    whole, resumed = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(whole, optimizer(whole), batch_size=np.int64(16))
    fit(
        resumed,
        optimizer(resumed),
        batch_size=np.int64(16),
        epochs=2,
        callbacks=[wf.Checkpoint(path)],
    )
    fit(resumed, optimizer(resumed), resume_from=path)
    assert_same_weights(resumed, whole)
