"""The thread that trains: newest request first, stopping, going on, failing, ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.playground import SETTINGS, small_data
from warpfit.apps.playground.messages import PointChoice, Settings, Train
from warpfit.apps.playground.trainer import Ended, Event, Reported, Started, Trainer, Turns

TRAIN = Train("digits", Settings(**SETTINGS), None, afresh=True, epochs=2)
LONG = replace(TRAIN, settings=replace(TRAIN.settings, epochs=1000), epochs=1000)


class Listener:
    """Hears a trainer's events, and waits for some."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait(self, wanted: Callable[[Event], object]) -> Event:
        """Return the first event that is wanted, and forget it and all before."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(wanted, self.events)), timeout=20), (
                self.events
            )
            idx = next(idx for idx, event in enumerate(self.events) if wanted(event))
            found, self.events = self.events[idx], self.events[idx + 1 :]
            return found

    def wait_for(self, kind: type[Any]) -> Any:
        return self.wait(lambda event: isinstance(event, kind))


@contextmanager
def training(device: str = "cpu", num_rows: int = 60) -> Iterator[tuple[Trainer, Listener]]:
    listener = Listener()
    trainer = Trainer(small_data(num_rows), device, Turns(), listener)
    try:
        yield trainer, listener
    finally:
        assert trainer.close()


def test_a_training_is_told_from_start_to_end() -> None:
    with training() as (trainer, heard):
        request = replace(TRAIN, settings=replace(TRAIN.settings, epochs=30), epochs=30)
        trainer.train(request)
        started = heard.wait_for(Started)
        assert (started.number, started.request, started.goes_on) == (1, request, False)
        assert (started.plan.engine, started.plan.epochs) == ("layerwise", 30)
        assert started.num_parameters == 64 * 8 + 8 + 8 * 3 + 3
        reports = [heard.wait_for(Reported) for _ in range(30)]
        assert [each.report.epoch for each in reports] == list(range(1, 31))
        assert [each.network.epoch for each in reports] == list(range(1, 31))
        assert heard.wait_for(Ended) == Ended(1, request, "finished")
        data = trainer.digits
        probabilities = reports[-1].network.probabilities(data.x_test)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        right = (probabilities.argmax(axis=1) == data.y_test).mean()
        assert right == pytest.approx(reports[-1].report.val_accuracy)
        assert right > 0.9
        # What was told of an epoch does not change with the next.
        first = {name: array.copy() for name, array in reports[0].network.arrays.items()}
        assert any((first[name] != reports[-1].network.arrays[name]).any() for name in first)


def test_training_goes_on_unless_it_is_to_start_afresh_or_is_another() -> None:
    with training() as (trainer, heard):
        trainer.train(TRAIN)
        heard.wait_for(Ended)
        for request, epoch, goes_on in [
            (replace(TRAIN, afresh=False), 2, True),
            (replace(TRAIN, afresh=False, settings=replace(TRAIN.settings, epochs=7)), 4, True),
            (replace(TRAIN, afresh=False, settings=replace(TRAIN.settings, width=9)), 0, False),
            (TRAIN, 0, False),
        ]:
            trainer.train(replace(request, epochs=request.settings.epochs))
            started = heard.wait_for(Started)
            assert (started.network.epoch, started.goes_on) == (epoch, goes_on)
            heard.wait_for(Ended)


def test_what_is_missing_of_the_epochs_is_trained() -> None:
    with training() as (trainer, heard):
        trainer.train(LONG)
        heard.wait_for(Reported)
        trainer.stop()
        assert heard.wait_for(Ended).how == "stopped"
        trainer.train(replace(LONG, afresh=False))
        started = heard.wait_for(Started)
        assert started.goes_on
        assert started.network.epoch + started.plan.epochs == 1000


def test_the_newest_request_wins() -> None:
    with training() as (trainer, heard):
        trainer.train(LONG)
        heard.wait_for(Reported)
        for _ in range(5):
            trainer.train(LONG)
        trainer.train(TRAIN)
        assert (
            heard.wait(lambda event: isinstance(event, Ended) and event.number == 1).how
            == "stopped"
        )
        started = heard.wait(lambda event: isinstance(event, Started) and event.number == 7)
        assert started.request == TRAIN
        assert (
            heard.wait(lambda event: isinstance(event, Ended) and event.number == 7).how
            == "finished"
        )


def test_a_step_is_enough_to_stop_after() -> None:
    with training(num_rows=60_000) as (trainer, heard):
        trainer.train(
            replace(LONG, settings=replace(LONG.settings, batch_size=1))
        )  # an epoch takes seconds
        heard.wait_for(Started)
        trainer.stop()
        assert heard.wait_for(Ended).how == "stopped"
        assert not heard.events


def test_a_reset_shows_a_network_that_knows_nothing() -> None:
    with training() as (trainer, heard):
        trainer.train(replace(TRAIN, epochs=0))
        started = heard.wait_for(Started)
        assert (started.plan.epochs, started.network.epoch) == (0, 0)
        assert heard.wait_for(Ended).how == "finished"
        assert not heard.events


def test_tasks_have_networks_of_their_own() -> None:
    points = replace(TRAIN, task="points", points=PointChoice("blobs", 0.1))
    with training() as (trainer, heard):
        trainer.train(TRAIN)
        heard.wait_for(Ended)
        trainer.train(points)
        assert heard.wait_for(Started).data.name == "blobs"
        heard.wait_for(Ended)
        trainer.train(replace(TRAIN, afresh=False))
        assert heard.wait_for(Started).goes_on


def test_failures_are_told_and_forgotten() -> None:
    wild = replace(
        LONG,
        settings=replace(
            LONG.settings, lr=10.0, depth=4, width=512, activation="silu", epochs=1000
        ),
    )
    with training() as (trainer, heard):
        trainer.train(wild)
        ended = heard.wait_for(Ended)
        assert ended.how == "failed"
        assert "the loss or a weight is not finite" in ended.reason
        trainer.train(replace(wild, afresh=False))
        assert not heard.wait_for(Started).goes_on
        trainer.stop()


def test_a_fault_of_ours_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh no")

    with training() as (trainer, heard):
        monkeypatch.setattr("warpfit.apps.playground.trainer.fit", fail)
        trainer.train(TRAIN)
        assert (
            heard.wait_for(Ended).reason
            == "unexpected ZeroDivisionError: oh no (please report this)"
        )
        monkeypatch.undo()
        trainer.train(TRAIN)
        assert heard.wait(lambda event: isinstance(event, Ended)).how == "finished"


def test_closing_ends_the_thread_in_the_middle_of_a_training() -> None:
    with training() as (trainer, heard):
        trainer.train(LONG)
        heard.wait_for(Reported)
        assert trainer.close()
        assert heard.wait_for(Ended).how == "stopped"


def test_on_a_gpu(cuda: str) -> None:
    with training(f"{cuda}:0", num_rows=32) as (trainer, heard):
        trainer.train(TRAIN)
        started = heard.wait_for(Started)
        assert started.plan.engine in ("one_launch", "graph", "layerwise")
        last = [heard.wait_for(Reported) for _ in range(2)][-1]
        assert heard.wait_for(Ended).how == "finished"
        assert last.network.probabilities(trainer.digits.x_test).shape == (32, 3)
        trainer.train(replace(TRAIN, afresh=False))
        assert heard.wait_for(Started).goes_on
        assert heard.wait_for(Ended).how == "finished"


def test_turns_go_round() -> None:
    turns, order = Turns(), []
    barrier = threading.Barrier(3)

    def work(name: str) -> None:
        barrier.wait()
        with turns:
            for _ in range(3):
                order.append(name)
                time.sleep(0.02)
                turns.pass_on()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == order[:3] * 3
    assert sorted(order[:3]) == ["a", "b", "c"]
