"""Properties that are computed once for each object, side by side."""

from __future__ import annotations

from threading import Barrier, Thread

from warpfit.engines.unlocked import UnlockedProperty


class Meeting:
    def __init__(self, barrier: Barrier) -> None:
        self.barrier, self.calls = barrier, 0

    @UnlockedProperty
    def number(self) -> int:
        self.calls += 1
        self.barrier.wait(timeout=10)
        return self.calls


def test_two_objects_compute_it_at_the_same_time_and_once_each() -> None:
    barrier = Barrier(2)
    meetings = [Meeting(barrier), Meeting(barrier)]
    threads = [Thread(target=lambda own=each: own.number) for each in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.number for each in meetings] == [1, 1]


def test_a_class_has_the_property_itself() -> None:
    assert isinstance(Meeting.number, UnlockedProperty)
