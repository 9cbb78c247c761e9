"""The runtime over a driver that is not there, or that we made up: what it asks, and what its
errors say.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime
from support.devices import no_gpu, open_devices
from support.fake_driver import GIB, FakeDriver, Result
from warpfit import backends
from warpfit.backends.cuda import context, jit, runtime
from warpfit.backends.cuda.context import LAUNCHES_REMEMBERED
from warpfit.backends.cuda.driver import DeviceInfo, arch_of
from warpfit.backends.cuda.runtime import Runtime
from warpfit.backends.cuda.streams import NOT_READY, Graph
from warpfit.backends.cuda.transfers import STAGING_BYTES
from warpfit.errors import ConfigError, DeviceError, DeviceWarning, KernelError

GRID, BLOCK = (4, 1, 1), (256, 1, 1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver without faults, with one device that nobody has opened."""
    fake = FakeDriver()
    fake.install(monkeypatch)
    open_devices(monkeypatch)
    nowhere = SimpleNamespace()
    for module in (context, runtime):
        monkeypatch.setattr(module, "active", nowhere)
    return fake


@pytest.fixture
def device(driver: FakeDriver) -> Runtime:
    return runtime.open_device(0)


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Threads take turns so often that none is safe from the others by chance."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def function(name: str, *, takes_turn: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, handle=name, takes_turn=takes_turn)


def launch(device: Runtime, *names: str) -> None:
    for name in names:
        device.launch(function(name), GRID, BLOCK, 0, 0)


# -- no device
# -----------------------------------------------------------------------------------------------


def test_without_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver().install(monkeypatch)
    no_gpu(monkeypatch)
    with pytest.raises(
        DeviceError, match=r"'cuda:0', but no NVIDIA driver was found \(libcuda.so.1"
    ):
        backends.resolve_device("cuda")
    assert runtime.devices() == []


@pytest.mark.parametrize("missing", ["cuda", "cuda.core"])
def test_without_cuda_core(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        DeviceError, match=r"but cuda-core is not installed \(pip install 'warpfit\[cuda\]'\)"
    ):
        backends.get("cuda")


@pytest.mark.parametrize(
    ("version", "bindings", "remedy"),
    [
        (
            12040,
            "13.1.0",
            r"CUDA 12.4, .* CUDA 13 \(update the driver, or pip install 'warpfit\[cu12\]'\)",
        ),
        (11080, "12.9.0", r"CUDA 11.8, .* CUDA 12 \(update the driver\)"),
    ],
)
def test_a_driver_too_old_for_the_bindings(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, version: int, bindings: str, remedy: str
) -> None:
    driver.version = version
    driver.install(monkeypatch, bindings)
    with pytest.raises(DeviceError, match=f"the driver is for {remedy}"):
        backends.get("cuda:0")


def test_a_newer_driver_serves_older_bindings(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.install(monkeypatch, "12.9.0")
    assert backends.resolve_device("cuda") == "cuda:0"


@pytest.mark.parametrize("fault", [{"count": 0}, {"init": Result.CUDA_ERROR_NO_DEVICE}])
def test_a_driver_that_sees_no_device(driver: FakeDriver, fault: dict[str, int]) -> None:
    vars(driver).update(fault)
    with pytest.raises(DeviceError, match=r"sees no device .*CUDA_VISIBLE_DEVICES"):
        backends.get("cuda")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Result.CUDA_ERROR_INVALID_VALUE, r"CUDA_ERROR_INVALID_VALUE \(words for 1\)"),
        (4711, "error 4711"),
    ],
)
def test_a_driver_that_does_not_start(driver: FakeDriver, error: Result, words: str) -> None:
    driver.init = error
    with pytest.raises(DeviceError, match=f"does not start: {words}"):
        backends.get("cuda")


def test_only_the_device_that_is_opened_gets_a_context(driver: FakeDriver) -> None:
    driver.count = 3
    runtime.devices()
    assert not driver.contexts
    runtime.open_device(2)
    assert driver.contexts == [2]


def test_an_index_out_of_range(driver: FakeDriver) -> None:
    driver.count = 2
    assert backends.resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(DeviceError, match="expected a device among cuda:0 to cuda:1, got 'cuda:2'"):
        backends.resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "", None])
def test_unknown_names(driver: FakeDriver, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected device 'auto', 'cpu', 'cuda' or 'cuda:1', \.\.\., got"
    ):
        backends.resolve_device(name)


# -- 'auto'
# --------------------------------------------------------------------------------------------------


def test_auto_is_the_first_device(driver: FakeDriver) -> None:
    with warnings.catch_warnings(action="error"):
        assert backends.resolve_device("auto") == "cuda:0"


def test_auto_falls_back_to_the_cpu_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.warns(
        DeviceWarning, match="device 'auto' is the CPU: no NVIDIA driver was found"
    ) as caught:
        assert [backends.resolve_device("auto") for _ in range(3)] == ["cpu"] * 3
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the caller's line, not one of ours


def test_a_driver_without_cuda_core_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setattr("warpfit.backends.cuda.driver.library", object)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert runtime.why_unavailable() == "cuda-core is not installed (pip install 'warpfit[cuda]')"


# -- a device
# ------------------------------------------------------------------------------------------------


def test_what_a_device_is(driver: FakeDriver, device: Runtime) -> None:
    driver.count = 2
    assert runtime.devices() == [
        DeviceInfo(f"cuda:{index}", f"Fake {index}", "sm_90a", 2 * GIB, "13.0")
        for index in range(2)
    ]
    assert (device.name, device.index, device.arch) == ("cuda:0", 0, "sm_90a")
    assert device.num_multiprocessors == 132
    assert device.max_shared_bytes == 227 * 1024
    assert device.memory_info() == (driver.free, 2 * GIB)


def test_a_device_is_opened_once(driver: FakeDriver, device: Runtime) -> None:
    assert runtime.open_device(0) is device
    assert driver.calls["current 0"] == 1


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((12, 0), "sm_120a"),
    ],
)
def test_architectures(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(*capability) == arch


def test_devices_take_turns_as_the_threads_current_one(driver: FakeDriver, device: Runtime) -> None:
    driver.count = 2
    other = runtime.open_device(1)
    for each in (device, device, other, device):
        launch(each, "add")
    assert driver.calls["current 0"] == 3  # when opened, and twice after the other
    assert driver.calls["current 1"] == 2


# -- memory
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 1000, STAGING_BYTES, 3 * STAGING_BYTES + 1])
def test_bytes_come_back_as_they_went(device: Runtime, nbytes: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    first, second = device.allocate(nbytes), device.allocate(nbytes)
    sent = values.copy()
    device.upload(first.pointer, sent)
    sent[:] = 0
    device.copy(second.pointer, first.pointer, nbytes)
    device.fill(first.pointer, nbytes, 7)
    for memory, expected in ((second, values), (first, np.full_like(values, 7))):
        received = np.empty_like(values)
        device.download(received, memory.pointer)
        np.testing.assert_array_equal(received, expected)


def test_threads_that_upload_at_once(device: Runtime, short_turns: None) -> None:
    def come_back(value: int) -> bool:
        sent, memory = np.full(1 << 18, value, np.uint8), device.allocate(1 << 18)
        received = np.empty_like(sent)
        device.upload(memory.pointer, sent)
        device.download(received, memory.pointer)
        return bool((received == value).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(come_back, range(200)))


def test_threads_that_open_a_device_at_once(driver: FakeDriver, short_turns: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(runtime.open_device, [0] * 8))) == 1


def test_uploads_do_not_wait_for_the_device(driver: FakeDriver, device: Runtime) -> None:
    memory = device.allocate(3 * STAGING_BYTES)
    for number in range(3):
        device.upload(memory.pointer, np.full(10, number))
    device.upload(memory.pointer, np.zeros(3 * STAGING_BYTES, np.uint8))
    assert driver.calls["synchronize"] == 0
    assert driver.calls["HtoD"] == 6


def test_out_of_memory_says_how_much_and_can_be_recovered_from(
    driver: FakeDriver, device: Runtime
) -> None:
    held = device.allocate(int(1.5 * GIB))
    with pytest.raises(
        DeviceError,
        match=r"out of memory on cuda:0: asked for 1.00 GiB, 512.0 MiB of 2.00 GiB free",
    ):
        device.allocate(GIB)
    assert driver.calls["synchronize"] == 1  # what is freed in the stream's order may suffice
    del held
    assert device.allocate(GIB).nbytes == GIB


def test_memory_goes_with_its_last_array(driver: FakeDriver, device: Runtime) -> None:
    from warpfit.backends.cuda import DeviceArray

    array = DeviceArray.allocate(device, (256, 1024), "float32")
    row = array[3]
    del array
    assert driver.free == driver.total - 2**20
    del row
    assert driver.free == driver.total


def test_what_the_pool_holds_for_no_array_is_left_too(driver: FakeDriver) -> None:
    driver.reserved, driver.used = 700, 300
    assert runtime.open_device(0).memory_left() == driver.free + 400


def test_an_upload_buffer_copies_beside_what_the_device_does(
    driver: FakeDriver, device: Runtime
) -> None:
    buffer = device.create_upload_buffer(100)
    own, other = 77, 78  # the streams
    (_, released), *_ = driver.records
    assert driver.records == [(own, released)]
    buffer.await_host()
    buffer.host[:] = np.arange(100)
    buffer.send(60)
    (_, sent) = driver.records[-1]
    assert driver.copies == [other]
    assert driver.waits == [(other, released)]
    assert driver.records[-1] == (other, sent) != (other, released)
    buffer.receive()
    assert driver.waits[-1] == (own, sent)
    received = np.empty(60, np.uint8)
    device.download(received, buffer.memory.pointer)
    np.testing.assert_array_equal(received, np.arange(60))
    buffer.release()
    assert driver.records[-1] == (own, released)
    free = driver.free
    buffer.close()
    buffer.close()
    assert driver.free == free + 100
    assert driver.calls["event sync"] == 2
    device.create_upload_buffer(1).send(1)
    assert driver.copies[-1] == other  # all of them share a stream


def test_an_upload_buffer_tells_what_is_missing(driver: FakeDriver, device: Runtime) -> None:
    driver.most_pinned = 2**20
    with pytest.raises(
        DeviceError, match=r"cannot pin 2.0 MiB of the host's memory: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        device.create_upload_buffer(2**21)
    assert driver.free == driver.total
    buffer = device.create_upload_buffer(10)
    driver.faulty = {"train"}
    launch(device, "train")
    with pytest.raises(KernelError, match=r"an upload failed .*; the kernel was train"):
        buffer.await_host()
    buffer.close()


# -- kernels
# -------------------------------------------------------------------------------------------------


def test_loading_asks_for_all_shared_memory(
    driver: FakeDriver, device: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "cubin", lambda name, defines, arch: b"code")
    assert device.load("binary", (("DTYPE", "float32"),)).name == "binary"
    assert driver.calls[f"dynamic shared {227 * 1024 - 1024}"] == 1


def test_an_illegal_access_names_the_one_kernel_it_can_be(
    driver: FakeDriver, device: Runtime
) -> None:
    driver.faulty = {"softmax_forward"}
    launch(device, "softmax_forward", "softmax_forward")
    with pytest.raises(
        KernelError,
        match=r"^a kernel failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS \(words for 700\); "
        r"the kernel was softmax_forward$",
    ):
        device.synchronize()


def test_an_illegal_access_names_all_kernels_since_the_last_wait(
    driver: FakeDriver, device: Runtime
) -> None:
    launch(device, "early")
    device.synchronize()
    driver.faulty = {"second"}
    launch(device, "first", "second", "first")
    with pytest.raises(DeviceError, match=r"one of first, second \(WARPFIT_DEBUG=1 ") as caught:
        device.download(np.empty(1), device.allocate(8).pointer)
    assert "early" not in str(caught.value)


def test_only_the_last_launches_are_remembered(driver: FakeDriver, device: Runtime) -> None:
    driver.faulty = {"k0"}
    launch(device, *(f"k{number}" for number in range(LAUNCHES_REMEMBERED + 1)))
    with pytest.raises(DeviceError, match=r"one of k1, k2, .*, k16 "):
        device.synchronize()


def test_debugging_waits_for_each_launch(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    device = runtime.open_device(0)
    driver.faulty = {"second"}
    launch(device, "first")
    assert driver.calls["synchronize"] == 1
    with pytest.raises(DeviceError, match=r"the kernel was second$"):
        launch(device, "second")


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_debugging_nothing_waits(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("WARPFIT_DEBUG", value)
    launch(runtime.open_device(0), "first", "second")
    assert driver.calls["synchronize"] == 0


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


def test_memory_that_host_and_device_share(driver: FakeDriver, device: Runtime) -> None:
    memory = device.share(40)
    assert memory.pointer == memory.host.ctypes.data
    assert (memory.host.shape, memory.host.dtype, memory.host.any()) == ((40,), np.uint8, False)
    driver.most_pinned = 2**20
    with pytest.raises(
        DeviceError, match=r"cannot pin 2.0 MiB of the host's memory: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        device.share(2**21)


def test_a_launch_that_is_refused(device: Runtime) -> None:
    with pytest.raises(
        DeviceError, match=r"launching add with grid \(0, 1, 1\) and block \(256, 1, 1\) failed"
    ):
        device.launch(function("add"), (0, 1, 1), BLOCK, 0, 0)


@pytest.mark.parametrize(("cluster", "is_cooperative"), [(4, False), (1, True), (16, True)])
def test_launches_of_blocks_that_wait_for_each_other(
    driver: FakeDriver, device: Runtime, cluster: int, is_cooperative: bool
) -> None:
    train = function("train", takes_turn=True)
    device.launch_cluster(train, (32, 1, 1), BLOCK, 0, 0, cluster, is_cooperative)
    (attributes,) = driver.attributes
    size = attributes.pop("clusterDim", None)
    assert (vars(size) if size else None) == (
        {"x": cluster, "y": 1, "z": 1} if cluster > 1 else None
    )
    assert attributes == ({"cooperative": 1} if is_cooperative else {})
    assert driver.calls["any cluster 1"] == (cluster > 1)
    words = (
        rf"launching train with grid \(0, 1, 1\) in clusters of {cluster} blocks of "
        r"\(256, 1, 1\) failed"
    )
    with pytest.raises(DeviceError, match=words):
        device.launch_cluster(train, (0, 1, 1), BLOCK, 0, 0, cluster, is_cooperative)


# -- tensor maps
# ---------------------------------------------------------------------------------------------


def test_a_tensor_map_tells_the_driver_of_a_matrix(driver: FakeDriver, device: Runtime) -> None:
    found = device.tensor_map(4096, "bfloat16", 100, 60, 72, 128, 64)
    assert found == bytes(range(128))
    (settings,) = driver.maps
    of_boxes = ([64, 128], [1, 1], "no interleave", "swizzle 128", "L2 256", "zeros")
    assert settings == ("bfloat16", 2, 4096, [60, 100], [144], *of_boxes)
    device.tensor_map(4096, "float32", 100, 60, 72, 8, 32)
    assert driver.maps[-1][:6] == ("float32", 2, 4096, [60, 100], [288], [32, 8])
    device.tensor_map(4096, "tf32", 100, 60, 72, 8, 32)
    assert driver.maps[-1][:6] == ("tf32", 2, 4096, [60, 100], [288], [32, 8])


def test_a_tensor_map_that_the_driver_refuses(driver: FakeDriver, device: Runtime) -> None:
    driver.refuses_maps = True
    with pytest.raises(
        KernelError,
        match=r"a tensor map of 9 by 60 numbers failed on cuda:0: CUDA_ERROR_INVALID_VALUE",
    ):
        device.tensor_map(4096, "bfloat16", 9, 60, 72, 128, 64)


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pointer": 4104}, "a matrix at a multiple of 16 bytes for a tensor map, got 0x1008"),
        ({"pointer": 0}, "a matrix at a multiple of 16 bytes for a tensor map, got 0x0"),
        (
            {"dtype_name": "float64"},
            "a tensor map of float16, bfloat16, float32, tf32, got one of float64",
        ),
        ({"rows": 0}, "at least one row and column for a tensor map, got 0 and 60"),
        ({"columns": 0}, "at least one row and column for a tensor map, got 100 and 0"),
        ({"leading_dimension": 60}, "rows of a multiple of 16 bytes, .* got 60 columns of 2 bytes"),
        (
            {"leading_dimension": 56},
            "rows of .* with at least 60 columns, .* got 56 columns of 2 bytes",
        ),
        ({"box_rows": 257}, "boxes of 1 to 256 rows and columns for a tensor map, got 257 by 64"),
        ({"box_columns": 0}, "boxes of 1 to 256 rows and columns for a tensor map, got 64 by 0"),
        (
            {"box_columns": 128},
            "boxes with a multiple of 16 bytes in a row, at most 128, .* got 256",
        ),
        (
            {"dtype_name": "float32"},
            "boxes with a multiple of 16 bytes in a row, at most 128, .* got 256",
        ),
        ({"box_columns": 12}, "boxes with a multiple of 16 bytes in a row, at most 128, .* got 24"),
    ],
)
def test_tensor_maps_that_cannot_be(
    driver: FakeDriver, changed: dict[str, Any], message: str, emulated: bool
) -> None:
    possible = {
        "pointer": 4096, "dtype_name": "float16", "rows": 100, "columns": 60,
        "leading_dimension": 72,
        "box_rows": 64, "box_columns": 64,
    }  # fmt: skip
    device = EmulatedRuntime() if emulated else runtime.open_device(0)
    assert len(device.tensor_map(**possible)) == 128
    with pytest.raises(DeviceError, match=f"^expected {message}"):
        device.tensor_map(**{**possible, **changed})


# -- other streams
# -------------------------------------------------------------------------------------------


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


# -- graphs
# ------------------------------------------------------------------------------------------------


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
