"""Networks of a sweep that share a GPU, each trained as by `fit`."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Thread, current_thread, main_thread
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import assert_same_weights, blobs
from warpfit import nn, optim
from warpfit.backends.cuda import CudaBackend
from warpfit.engines import graph
from warpfit.sweep import side_by_side
from warpfit.sweep.tasks import Task

X, Y = blobs(90)
IMAGES = np.random.default_rng(0).random((24, 6, 6, 1), np.float32)
GIVEN: dict[str, Any] = {"epochs": 2, "batch_size": 16, "verbose": False}


def convolutional(candidate: dict[str, Any]) -> Any:
    """Return a network with what a seed decides in each step, and a state beside parameters."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(16, 3),
    )
    return model, optim.Adam(model.parameters(), lr=candidate["lr"])


def each(candidates: Any) -> Any:
    """Return a candidate for each value of the only setting, if that is what is given."""
    if isinstance(candidates, list):
        return candidates
    ((name, values),) = candidates.items()
    return [{name: value} for value in values]


def sweep(cuda: str, candidates: Any, **arguments: Any) -> wf.Sweep:
    given = {"engine": "graph", "device": cuda, **GIVEN, **arguments}
    return wf.fit_many(build, X, Y, candidates=each(candidates), **given)


def begun_and_done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list that is told when a network begins, and when it is done."""
    told: list[tuple[str, int]] = []
    train = side_by_side.train

    def telling(task: Task) -> Any:
        told.append(("begun", task.number))
        try:
            return train(task)
        finally:
            told.append(("done", task.number))

    monkeypatch.setattr(side_by_side, "train", telling)
    return told


def most_at_once(told: list[tuple[str, int]]) -> int:
    return max(np.cumsum([1 if what == "begun" else -1 for what, _ in told]))


def test_each_has_the_bits_of_a_fit(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = begun_and_done(monkeypatch)
    labels = np.arange(24) % 3
    candidates = [{"lr": 0.01, "seed": 1}, {"lr": 0.03, "seed": 2}, {"lr": 0.02, "epochs": 3}]
    rows = {"validation_data": (IMAGES[:9], labels[:9]), "device": cuda}
    found = wf.fit_many(convolutional, IMAGES, labels, candidates=candidates, **GIVEN, **rows)
    assert "3 side by side by `fit`: graph runs it" in found.plan.reason
    assert found.plan.at_once == 3
    assert most_at_once(told) > 1
    for candidate, model, history in zip(candidates, found.models, found.histories, strict=True):
        seed, epochs = candidate.get("seed", 0), candidate.get("epochs", 2)
        wf.manual_seed(seed)
        alone, optimizer = convolutional(candidate)
        settings = {**GIVEN, **rows, "epochs": epochs, "seed": seed}
        expected = wf.fit(alone, IMAGES, labels, optimizer=optimizer, **settings)
        assert_same_weights(model, alone)
        for name in ("loss", "val_loss", "val_accuracy"):
            assert history[name] == expected[name]


def test_as_many_share_the_gpu_as_have_room(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = begun_and_done(monkeypatch)
    monkeypatch.setattr(side_by_side, "MOST_AT_ONCE", 2)
    found = sweep(cuda, {"seed": [1, 2, 3]})
    assert found.plan.at_once == 2
    assert most_at_once(told) == 2
    monkeypatch.setattr(side_by_side, "MEMORY_SHARE", 0)
    del told[:]
    assert "one after the other by `fit`" in sweep(cuda, {"seed": [1, 2, 3]}).plan.reason
    assert not told


def test_networks_of_several_shapes_share_the_gpu(cuda: str) -> None:
    found = sweep(cuda, {"width": [4, 8, 12]})
    assert "3 side by side by `fit`" in found.plan.reason
    assert found.counts() == {"done": 3}


def test_one_that_diverges_leaves_the_others_alone(cuda: str) -> None:
    found = sweep(cuda, {"lr": [0.1, 1e8, 0.2]}, precision="float16")
    assert [record["status"] for record in found] == ["done", "diverged", "done"]
    assert_same_weights(found.models[2], sweep(cuda, [{"lr": 0.2}], precision="float16").models[0])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_graphs_of_one_serve_the_next_that_is_alike(
    cuda: str, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    made: list[Any] = []
    init = graph._Run.__init__
    monkeypatch.setattr(
        graph._Run, "__init__", lambda self, *given: (made.append(self), init(self, *given))[1]
    )
    monkeypatch.setattr(side_by_side, "MOST_AT_ONCE", 2)
    rates = [0.1, 1e8, 0.2, 0.3, 0.05, 0.1]
    candidates = [
        {"lr": lr, "seed": seed, "epochs": 2 + seed % 2, "optimizer": optimizer}
        for seed, lr in enumerate(rates)
    ]
    settings = {"precision": "float16", "validation_data": (X[:20], Y[:20])}
    found = sweep(cuda, candidates, **settings)
    assert len(made) == 2
    assert "diverged" in found.counts() or optimizer == "adam"
    for candidate, record, model in zip(candidates, found, found.models, strict=True):
        if record["status"] == "diverged":
            continue
        wf.manual_seed(candidate["seed"])
        alone, own = build(candidate)
        given = {**GIVEN, **settings, "epochs": candidate["epochs"], "seed": candidate["seed"]}
        history = wf.fit(alone, X, Y, optimizer=own, engine="graph", device=cuda, **given)
        assert_same_weights(model, alone)
        assert record["val_loss"] == history["val_loss"][-1]


def test_what_graphs_depend_on_makes_others(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    init = graph._Run.__init__
    monkeypatch.setattr(
        graph._Run, "__init__", lambda self, *given: (made.append(self), init(self, *given))[1]
    )
    monkeypatch.setattr(side_by_side, "MOST_AT_ONCE", 2)
    candidates = [{"dropout": 0.5, "seed": seed} for seed in range(4)]
    assert sweep(cuda, candidates).counts() == {"done": 4}
    assert len(made) == 4  # whose dropout goes by the seed


def test_a_turn_that_an_interrupt_ends_is_handed_on_once() -> None:
    class Interrupted:
        num_releases = 0

        def acquire(self, timeout: float) -> bool:
            return True

        def release(self) -> None:
            self.num_releases += 1
            if self.num_releases == 1:
                raise KeyboardInterrupt

    lock: Any = Interrupted()
    turn = side_by_side.Turn(lock)
    turn.take()
    with pytest.raises(KeyboardInterrupt):
        turn.hand_on()
    turn.hand_on()
    assert lock.num_releases == 1


def test_a_thread_with_its_own_stream_has_its_own_counters(kernel_runtime: Any) -> None:
    """Kernels of two threads run at once, and each counts its blocks."""
    ops = CudaBackend(kernel_runtime)
    shared = ops.arrivals(4)
    with kernel_runtime.own_stream(nullcontext):
        own = ops.arrivals(4)
        assert ops.arrivals(4) is own
    assert own.pointer != shared.pointer
    assert ops.arrivals(4) is shared
    assert [*ops._arrivals.values()] == [shared]  # the other's went with its stream


def test_after_ctrl_c_those_at_work_are_interrupted_and_no_more_begin(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = begun_and_done(monkeypatch)

    class Breaking(wf.Callback):
        """Does what Ctrl-C does, once two networks are at work."""

        needs_run = False

        def on_epoch_end(self, run: Any) -> None:
            if len(told) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "MOST_AT_ONCE", 2)
    # Neither is done before the other has begun.
    found = sweep(cuda, {"lr": [0.1, 0.2, 0.3]}, callbacks=[Breaking()], epochs=10_000)
    assert found.interrupted
    assert found.counts() == {"interrupted": 2, "not started": 1}
    assert len(told) == 4


def test_ctrl_c_between_two_outcomes(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warpfit.sweep.progress.SweepProgress.tell", interrupted)
    monkeypatch.setattr(side_by_side, "MOST_AT_ONCE", 2)
    found = sweep(cuda, {"seed": [1, 2, 3, 4, 5]}, epochs=5)
    assert found.interrupted
    assert len(found.records) < 5 or "interrupted" in found.counts()


class Looking(wf.Callback):
    """Looks at the model after each epoch."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_epoch_end(self, run: Any) -> None:
        self.sums.append(sum(float(abs(array).sum()) for array in run.model.state_dict().values()))


def test_those_whose_callbacks_look_at_them_come_one_after_the_other(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = begun_and_done(monkeypatch)
    found = sweep(cuda, {"seed": [1, 2]}, callbacks=[Looking()])
    assert "one after the other by `fit`" in found.plan.reason
    assert not told
    assert found.counts() == {"done": 2}


def test_they_stop_early_and_are_halved(cuda: str) -> None:
    candidates = {"lr": [0.05, 0.1, 0.2, 0.4]}
    rows = {"validation_data": (X[:20], Y[:20]), "epochs": 4}
    stopping = wf.EarlyStopping("val_loss", patience=1, min_delta=0.05)
    found = sweep(cuda, candidates, callbacks=[stopping], halving=2, **rows)
    assert found.counts().keys() <= {"done", "stopped"}
    on_cpu = wf.fit_many(
        build,
        X,
        Y,
        candidates=each(candidates),
        callbacks=[stopping],
        halving=2,
        **{**GIVEN, **rows, "device": "cpu"},
    )
    assert [record["epochs"] for record in found] == [record["epochs"] for record in on_cpu]


def test_what_a_thread_raises_ends_the_sweep(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exits(wf.Callback):
        needs_run = False

        def on_epoch_end(self, run: Any) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        sweep(cuda, {"seed": [1, 2, 3]}, callbacks=[Exits()])


def images_sweep(cuda: str, **arguments: Any) -> wf.Sweep:
    candidates = [{"lr": 0.01, "seed": seed} for seed in range(4)]
    labels = np.arange(len(IMAGES)) % 3
    given = {"candidates": candidates, "device": cuda, **GIVEN, **arguments}
    return wf.fit_many(convolutional, IMAGES, labels, **given)


def test_ctrl_c_while_threads_begin_ends_all(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedAtTheSecond(Thread):
        begun = 0

        def start(self) -> None:
            super().start()
            InterruptedAtTheSecond.begun += 1
            if InterruptedAtTheSecond.begun == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "Thread", InterruptedAtTheSecond)
    told = begun_and_done(monkeypatch)
    found = images_sweep(cuda)
    assert found.counts().get("done", 0) < 4
    assert not any(isinstance(thread, InterruptedAtTheSecond) for thread in enumerate_threads())
    assert told.count(("begun", 3)) == 0


def test_a_metric_of_the_users_is_called_by_the_main_thread(cuda: str) -> None:
    threads = set()

    def metric(model: Any, x: Any, y: Any) -> float:
        threads.add(current_thread())
        return 0.5

    rows = IMAGES[:9], np.arange(9) % 3
    images_sweep(cuda, metric=metric, validation_data=rows)
    assert threads == {main_thread()}


@pytest.mark.parametrize("what", ["folds", "WARPFIT_DEBUG", "WARPFIT_AUTOTUNE"])
def test_what_does_not_go_side_by_side(
    cuda: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    arguments: dict[str, Any] = {}
    if what == "folds":
        arguments["folds"] = [(np.arange(16), np.arange(16, 24))]
    else:
        monkeypatch.setenv(what, "1")
    told = begun_and_done(monkeypatch)
    assert images_sweep(cuda, **arguments).counts() == {"done": 4}
    assert not told
