"""Streams and graphs, over a driver that we made up: what waits for what, and what a capture
takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from support.fake_driver import BLOCK, GRID, FakeDriver, Result, function, launch
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.runtime import Runtime
from warpfit.backends.cuda.streams import NOT_READY, Graph
from warpfit.errors import DeviceError, KernelError


def test_a_stream_is_idle_when_all_has_ended_well_or_not(
    driver: FakeDriver, device: Runtime
) -> None:
    driver.pending = [NOT_READY]
    assert [device.is_idle(), device.is_idle()] == [False, True]
    driver.faulty = {"add"}
    launch(device, "add")
    assert device.is_idle()
    with pytest.raises(KernelError, match="the kernel was add"):
        device.synchronize()


@pytest.mark.parametrize(("asked", "waits"), [(None, 1), (1, 1), (4711, 4711)])
def test_other_streams_wait_for_what_was_started(
    driver: FakeDriver, device: Runtime, asked: int | None, waits: int
) -> None:
    device.let_wait(asked)
    assert driver.waits == [(waits, "event")]


def test_kernels_beside_others_come_after_what_was_before_and_before_what_follows_a_join(
    driver: FakeDriver, device: Runtime
) -> None:
    launch(device, "before")
    for name in ("one", "other"):
        with device.beside():
            launch(device, name)
    launch(device, "meanwhile")
    assert driver.launched == ["before", "one", "other", "meanwhile"]
    own, one, other, meanwhile = driver.streams
    assert meanwhile == own
    assert len({own, one, other}) == 3
    assert driver.waits == [(one, "event"), (other, "event")]
    device.join()
    assert driver.waits[2:] == [(own, "event")] * 2
    assert driver.records[-2:] == [(one, "event"), (other, "event")]
    with device.beside():
        launch(device, "again")
    assert driver.streams[-1] == one


def test_a_join_is_for_the_kernels_of_its_thread(driver: FakeDriver, device: Runtime) -> None:
    with device.beside():
        launch(device, "one")
    with ThreadPoolExecutor(1) as other:
        other.submit(device.join).result()
        assert driver.waits == [
            (driver.streams[0], "event")
        ]  # none but that of "one" for what came before
        with device.beside():
            other.submit(launch, device, "meanwhile").result()
            launch(device, "two")
    one, meanwhile, two = driver.streams
    assert len({one, meanwhile, two}) == 3
    device.join()
    own = meanwhile
    assert driver.waits[-2:] == [(own, "event")] * 2
    assert driver.records[-2:] == [(one, "event"), (two, "event")]


def test_a_thread_may_have_a_stream_of_its_own(driver: FakeDriver, device: Runtime) -> None:
    waited: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.append("begins")
        yield
        waited.append("ends")

    launch(device, "before")
    with device.own_stream(waiting), ThreadPoolExecutor(1) as other:
        launch(device, "own")
        other.submit(launch, device, "meanwhile").result()
        device.synchronize()
        assert waited == ["begins", "ends"]
        own_stream = device.thread_stream
        shared, own, meanwhile = driver.streams
        assert shared == meanwhile != own
        assert driver.waits == [(own, "event")]  # for what came before
        device.hand_over()
        assert driver.waits[1:] == [(shared, "event")]
        assert driver.records[-1] == (own, "event")
    launch(device, "after")
    assert device.thread_stream is not own_stream
    assert driver.streams[-1] == shared
    assert driver.waits[2:] == [(shared, "event")]
    device.synchronize()
    assert len(waited) == 2


def test_a_graph_repeats_what_was_captured(driver: FakeDriver, device: Runtime) -> None:
    memory = device.allocate(8)
    with device.capture() as graph:
        launch(device, "first", "second")
        device.launch_cluster(function("third"), GRID, BLOCK, 0, 0, 4, False)
        device.copy(memory.pointer, memory.pointer + 4, 4)
        device.fill(memory.pointer, 4)
        launch(device, "first")
    assert driver.launched == []
    assert driver.calls["graph upload"] == driver.calls["graph destroyed"] == 1
    assert list(graph.names) == ["first", "second", "third"]
    graph.launch()
    graph.launch()
    assert driver.graphs == [["first", "second", "third", "DtoD", "fill", "first"]] * 2
    launch(device, "first")
    assert driver.launched == ["first"]


def test_a_graph_goes_with_its_last_user(driver: FakeDriver, device: Runtime) -> None:
    with device.capture() as graph:
        launch(device, "first")
    assert driver.calls["executable destroyed"] == 0
    del graph
    assert driver.calls["executable destroyed"] == 1


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_graph_that_goes_during_a_capture_is_destroyed_after_it(
    driver: FakeDriver, device: Runtime, is_elsewhere: bool
) -> None:
    graphs = []
    for _ in range(2):
        with device.capture() as graph:
            launch(device, "first")
        graphs.append(graph)
    del graph
    with device.capture() as kept, ThreadPoolExecutor(1) as pool:
        launch(device, "second")
        if is_elsewhere:
            pool.submit(graphs.clear).result()
        else:
            graphs.clear()
        assert driver.calls["executable destroyed"] == 0
    assert driver.calls["executable destroyed"] == 2
    kept.launch()


REFUSED = {
    "an allocation of 8 bytes": lambda device: device.allocate(8),
    "memory shared with the host": lambda device: device.share(8),
    "an upload of 8 bytes": lambda device: device.upload(0, np.zeros(1)),
    "a download of 8 bytes": lambda device: device.download(np.zeros(1), 0),
    "a buffer for uploads": lambda device: device.create_upload_buffer(8),
    "loading binary": lambda device: device.load("binary", ()),
    "another stream's wait": lambda device: device.let_wait(None),
    "a kernel beside others": lambda device: device.beside().__enter__(),
    "a wait for other kernels": lambda device: device.join(),
    "a wait for the device": lambda device: device.synchronize(),
    "another capture": lambda device: device.capture().__enter__(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_capture_refuses_what_no_graph_can_repeat(
    driver: FakeDriver, device: Runtime, what: str
) -> None:
    message = (
        f"expected launches, copies and fills only while a graph is captured on cuda:0, got {what}$"
    )
    graphs = []

    def captured() -> None:
        with device.capture() as graph:
            graphs.append(graph)
            launch(device, "first")
            REFUSED[what](device)

    with pytest.raises(DeviceError, match=message):
        captured()
    with pytest.raises(DeviceError, match="expected a graph whose capture on cuda:0 has ended"):
        graphs[0].launch()
    assert not driver.capturing
    assert gc.isenabled()
    launch(device, "second")
    assert driver.launched == ["second"]


def test_a_graph_is_not_launched_within_a_capture(driver: FakeDriver, device: Runtime) -> None:
    with device.capture() as graph:
        launch(device, "first")
    with pytest.raises(DeviceError, match="got the launch of a graph"), device.capture():
        graph.launch()


def test_what_the_driver_does_not_take(driver: FakeDriver, device: Runtime) -> None:
    driver.instantiation = Result.CUDA_ERROR_INVALID_VALUE
    with (
        pytest.raises(KernelError, match="making a captured graph executable failed on cuda:0"),
        device.capture(),
    ):
        launch(device, "first")
    assert not driver.capturing


def test_other_threads_are_not_captured(driver: FakeDriver, device: Runtime) -> None:
    def work() -> None:
        launch(device, "elsewhere")
        device.fill(device.allocate(8).pointer, 8)
        device.synchronize()

    with device.capture() as graph, ThreadPoolExecutor(1) as pool:
        launch(device, "here")
        pool.submit(work).result()
    assert driver.launched == ["elsewhere"]
    graph.launch()
    assert driver.graphs == [["here"]]


def test_kernels_of_a_graph_that_take_turns_come_early(driver: FakeDriver, device: Runtime) -> None:
    with device.capture():
        device.launch(function("polite", takes_turn=True), GRID, BLOCK, 0, 0)
        device.launch(function("other"), GRID, BLOCK, 0, 0)
        device.launch_cluster(function("polite", takes_turn=True), GRID, BLOCK, 0, 0, 2, False)
    early = [
        attributes.get("programmaticStreamSerializationAllowed") for attributes in driver.attributes
    ]
    assert early == [1, None, 1]


def test_a_stream_goes_beside_from_a_fork_to_a_merge(driver: FakeDriver, device: Runtime) -> None:
    launch(device, "before")
    side = device.fork()
    own = driver.streams[-1]
    assert side.handle != own
    assert driver.records[-1] == (own, "event")
    assert driver.waits == [(side.handle, "event")]
    device.merge(side.record())
    assert driver.records[-1] == (side.handle, "event")
    assert driver.waits[1:] == [(own, "event")]
    assert device.fork(side) is side
    assert driver.priorities[side.handle] < driver.priorities[own]


def test_a_captured_kernel_behind_a_merge_waits_for_both_streams(
    driver: FakeDriver, device: Runtime
) -> None:
    with device.capture():
        device.launch(function("first", takes_turn=True), GRID, BLOCK, 0, 0)
        side = device.fork()
        (capturing,) = driver.capturing
        assert driver.records[-1] == (capturing, "event")
        device.merge(side.record())
        assert driver.waits[-1] == (capturing, "event")
        for name in ("merged", "next"):
            device.launch(function(name, takes_turn=True), GRID, BLOCK, 0, 0)
    early = [each.get("programmaticStreamSerializationAllowed") for each in driver.attributes]
    assert early == [1, None, 1]
    assert driver.calls["graph of flags 8"] == 1  # of priorities of its own


def test_captures_take_turns(driver: FakeDriver, device: Runtime, short_turns: None) -> None:
    def captured(name: str) -> Graph:
        with device.capture() as graph:
            launch(device, *[name] * 20)
        return graph

    names = [f"kernel {idx}" for idx in range(20)]
    with ThreadPoolExecutor(4) as pool:
        graphs = list(pool.map(captured, names))
    for graph in graphs:
        graph.launch()
    assert driver.graphs == [[name] * 20 for name in names]
    assert gc.isenabled()


def test_a_faulty_graph_names_its_kernels(driver: FakeDriver, device: Runtime) -> None:
    with device.capture() as graph:
        launch(device, "add", "subtract", "add")
    device.synchronize()
    driver.faulty = {"subtract"}
    graph.launch()
    with pytest.raises(KernelError, match="the kernel is one of add, subtract"):
        device.synchronize()


def test_debugging_waits_for_each_graph(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    device = runtime.open_device(0)
    with device.capture() as graph:
        launch(device, "first", "second")
    assert driver.calls["synchronize"] == 0
    graph.launch()
    assert driver.calls["synchronize"] == 1
