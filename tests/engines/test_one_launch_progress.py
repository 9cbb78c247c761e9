"""What the host hears of a launch while it runs, and Ctrl-C, which ends it after an epoch."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import NO_GPU, on_emulator, on_gpu
from emulator.runtime import EmulatedRuntime, Memory
from support.one_launch import BATCH, NUM_ROWS, Spike, data, fit
from support.training import assert_same_weights, blobs, mlp
from warpfit import nn, optim
from warpfit.backends.cuda import runtime
from warpfit.engines import launch_talk, pace
from warpfit.errors import DivergedError

SIZES = (6, 20, 9, 3)
X, LABELS = data(SIZES)
VALIDATION = data(SIZES, num_rows=2 * BATCH + 5)
EPOCHS = 100 if NO_GPU else 200  # the host looks while the launch runs
# The launches of a run: the first epoch, and all others.
AT_ONCE = EPOCHS - 1


class Concurrent(EmulatedRuntime):
    """An emulated device on which training runs while the host goes on; what is started meanwhile
    comes after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "cuda:0"
        self.stream, self.started = ThreadPoolExecutor(1), [Future[Any]()]
        self.started[0].set_result(None)
        self.kept: list[Memory] = []  # that what was started may still use

    def _start(self, act: Any, *settings: Any) -> None:
        self.started.append(self.stream.submit(act, *settings))

    def _in_turn(self, act: Any, *settings: Any) -> None:
        act(*settings) if self.is_idle() else self._start(act, *settings)

    def is_idle(self) -> bool:
        return self.started[-1].done()

    def synchronize(self) -> None:
        for act in self.started:
            act.result()

    def launch_cluster(self, function: Any, *settings: Any) -> None:
        trains = function.variant[0] == "one_launch_layers"
        (self._start if trains else self._in_turn)(super().launch_cluster, function, *settings)

    def allocate(self, nbytes: int) -> Memory:
        self.kept.append(super().allocate(nbytes))
        return self.kept[-1]

    def upload(self, pointer: int, host: np.ndarray) -> None:
        self._in_turn(super().upload, pointer, host.copy())

    def download(self, *settings: Any) -> None:
        self.synchronize()
        super().download(*settings)

    def copy(self, *settings: Any) -> None:
        self._in_turn(super().copy, *settings)

    def fill(self, *settings: Any, at_once: bool = False) -> None:
        self._in_turn(super().fill, *settings)


@pytest.fixture(autouse=True)
def concurrent(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, by_layers: None
) -> Iterator[Any]:
    """The device; it and the host talk after each epoch, as networks run layer by layer."""
    device: Any = None
    if request.node.get_closest_marker("gpu"):
        device = runtime.open_device(0)
    else:
        device = Concurrent()
        monkeypatch.setitem(runtime._OPEN, 0, device)
    monkeypatch.setattr(launch_talk, "PASSES_BETWEEN_TALKS", 1)
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf)
    monkeypatch.setattr(pace, "GROWTH", AT_ONCE)
    yield device
    if isinstance(device, Concurrent):
        device.stream.shutdown()


class Listens(wf.Callback):
    """Hears of reports: notes whether the launch still ran, and raises at one."""

    needs_run = False

    def __init__(self, device: Concurrent, raises_at: int | None = None, error: Any = None) -> None:
        self.device, self.raises_at, self.error = device, raises_at, error
        self.ran: list[bool] = []

    def on_epoch_end(self, run: Any) -> None:
        self.ran.append(not self.device.is_idle())
        if run.report.epoch == self.raises_at:
            raise self.error


def interrupting(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let Ctrl-C come while the host waits for the launch to get so far."""
    epochs_done = launch_talk.Talk.epochs_done.fget

    def looks(self: Any) -> int:
        done = epochs_done(self)
        if done >= after and len(self.records) == AT_ONCE and not self.progress["is_asked_to_end"]:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(launch_talk.Talk, "epochs_done", property(looks))


def train(model: nn.Module, *callbacks: wf.Callback, **settings: Any) -> wf.History:
    asked = {"epochs": EPOCHS, "callbacks": callbacks, **settings}
    asked.setdefault("optimizer", optim.SGD(model.parameters(), 0.05, momentum=0.9))
    return fit(model, X, LABELS, **asked)


def without_seconds(history: wf.History) -> Any:
    return [replace(report, seconds=0) for report in history], history.step_losses.tolist()


@on_emulator
@pytest.mark.slow
def test_reports_come_while_the_kernel_runs(
    concurrent: Concurrent, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens, alone = Listens(concurrent), mlp(*SIZES)
    model = mlp(*SIZES)
    history = train(model, listens, validation_data=VALIDATION, report_every=2)
    assert sum(listens.ran) > 3
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", 0.0)
    expected = train(alone, validation_data=VALIDATION, report_every=2)
    assert without_seconds(history) == without_seconds(expected)
    assert min(history["seconds"]) > 0
    assert_same_weights(model, alone)


@on_emulator
@pytest.mark.parametrize(
    ("cluster", "settings"),
    [
        pytest.param(2, {"validation_data": VALIDATION}, marks=pytest.mark.slow),
        (1, {}),
        pytest.param(4, {"report_every": 3, "validation_data": VALIDATION}, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_the_run_with_the_epochs_that_were_done(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    tmp_path: Any,
    cluster: int,
    settings: dict[str, Any],
) -> None:
    only_cluster(cluster)
    stopped, whole, expected, resumed = (mlp(6, 40, 33, 3) for _ in range(4))
    path = tmp_path / "run"
    with monkeypatch.context() as context:
        interrupting(context, 2)
        history = train(stopped, wf.Checkpoint(path, every=1000), **settings)
    assert history.stopped_by == "interrupt"
    last = max(history["epoch"])
    assert 3 <= last < EPOCHS
    if settings:
        train(whole, **settings)
        continued = train(resumed, resume_from=path, **settings)
        assert_same_weights(resumed, whole)
        assert continued["epoch"][: len(history)] == history["epoch"]
    if "report_every" not in settings:
        train(expected, epochs=last)
        assert_same_weights(stopped, expected)


@on_emulator
def test_ctrl_c_while_a_callback_works_leaves_the_last_border(concurrent: Concurrent) -> None:
    stopped, expected = mlp(*SIZES), mlp(*SIZES)
    history = train(stopped, Listens(concurrent, 5, KeyboardInterrupt()))
    assert (history.stopped_by, history["epoch"]) == ("interrupt", [1])
    train(expected, epochs=1)
    assert_same_weights(stopped, expected)


@on_emulator
def test_an_error_of_a_callback_ends_the_launch(concurrent: Concurrent) -> None:
    model = mlp(*SIZES)
    with pytest.raises(RuntimeError, match="no paper"):
        train(model, Listens(concurrent, 5, RuntimeError("no paper")))
    expected = mlp(*SIZES)
    train(expected, epochs=1)
    assert_same_weights(model, expected)


@on_emulator
def test_divergence_is_told_at_once(concurrent: Concurrent) -> None:
    x, found = X.copy(), []
    x[20] = 1e6  # beyond float16
    model = mlp(*SIZES)
    for epochs in (1, EPOCHS):
        with pytest.raises(DivergedError) as error:
            fit(model, x, LABELS, epochs=epochs)
        found.append((error.value.epoch, error.value.step))
    assert found[0] == found[1]
    model = mlp(6, 3)
    x, labels = blobs(NUM_ROWS)
    y = np.eye(3, dtype="f4")[labels]
    with pytest.raises(DivergedError) as error:  # every step multiplies the error, by less than two
        fit(model, x, y, optim.SGD(model.parameters(), 1.4), loss="mse", epochs=EPOCHS)
    assert 1 < error.value.epoch < EPOCHS


@pytest.mark.slow
@on_emulator
@pytest.mark.parametrize("stopping", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_epoch_is_told_twice_where_float16_overflows(
    concurrent: Concurrent, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    found: list[Any] = []
    rate = Spike(0.05, at=40 * -(-NUM_ROWS // BATCH) + 2, peak=1e4)
    for seconds in (np.inf, 0.0):
        monkeypatch.setattr(pace, "LAUNCH_SECONDS", seconds)
        model, listens = mlp(*SIZES), Listens(concurrent)
        rules = [wf.EarlyStopping(patience=45)] if stopping else []
        history = train(
            model,
            listens,
            *rules,
            optimizer=optim.SGD(model.parameters(), rate),
            precision="auto",
            validation_data=VALIDATION,
        )
        assert history.precisions == {1: "float16", 41: "bfloat16"}
        assert history["epoch"] == list(range(1, len(history) + 1))
        assert len(listens.ran) == len(history)
        states = [rule.checkpoint_state()[0] for rule in rules]
        found.append((without_seconds(history), states, model.to("cpu").state_dict()))
        assert (len(history) < EPOCHS) == stopping
    np.testing.assert_equal(*found)


@on_emulator
@pytest.mark.slow
def test_early_stopping_hears_of_reports_meanwhile(
    concurrent: Concurrent, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    found: list[Any] = []
    for seconds in (np.inf, 0.0):
        monkeypatch.setattr(pace, "LAUNCH_SECONDS", seconds)
        model, stopping = mlp(*SIZES), wf.EarlyStopping(patience=60)
        history = train(model, stopping, validation_data=VALIDATION)
        numbers, arrays = stopping.checkpoint_state()
        found.append(
            (without_seconds(history), history.stopped_by, numbers, model.to("cpu").state_dict())
        )
        assert arrays
    np.testing.assert_equal(*found)
    assert found[0][1].startswith("early stopping")
    # Ctrl-C leaves the best of the epochs that were done.
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf)
    stopped, resumed, stopping = mlp(*SIZES), mlp(*SIZES), wf.EarlyStopping(patience=60)
    checkpoint = wf.Checkpoint(tmp_path / "run", every=1000)
    with monkeypatch.context() as context:
        interrupting(context, 1)
        history = train(stopped, stopping, checkpoint, validation_data=VALIDATION)
    assert history.stopped_by == "interrupt"
    assert stopping.best == min(history["val_loss"])
    stopping = wf.EarlyStopping(patience=60)
    train(resumed, stopping, validation_data=VALIDATION, resume_from=checkpoint.path)
    np.testing.assert_equal(resumed.to("cpu").state_dict(), found[0][3])


@on_emulator
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [{}, {"l2": 0.02}], ids=str)
@pytest.mark.parametrize("replicas", [1, 2])
def test_talking_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    optimizer: dict[str, Any],
    replicas: int,
) -> None:
    only_cluster(4)
    only_replicas(replicas)
    found = []
    for passes in (1, 30, 1000):
        monkeypatch.setattr(launch_talk, "PASSES_BETWEEN_TALKS", passes)
        model = mlp(6, 40, 33, 3)
        settings = {"epochs": 20, "batch_size": 16 * replicas}
        history = fit(model, X, LABELS, optim.SGD(model.parameters(), 0.2, **optimizer), **settings)
        assert ("clusters" in history.plan.reason) == (replicas > 1)
        found.append((without_seconds(history), model.to("cpu").state_dict()))
    np.testing.assert_equal(found[1], found[0])
    np.testing.assert_equal(found[2], found[0])


@pytest.mark.gpu
@on_gpu
def test_a_gpu_reports_meanwhile_and_hears_of_ctrl_c(concurrent: Any) -> None:
    x, y = blobs(20_000)
    compiled, stopped, expected = (mlp(*SIZES) for _ in range(3))
    fit(compiled, x, y, epochs=1)
    listens = Listens(concurrent)
    threading.Timer(1.0, _thread.interrupt_main).start()
    history = fit(stopped, x, y, epochs=5000, callbacks=[listens])
    assert (history.stopped_by, sum(listens.ran) > 10) == ("interrupt", True)
    fit(expected, x, y, epochs=len(history))
    assert_same_weights(stopped, expected)
