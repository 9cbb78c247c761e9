"""The runtime over a driver that we made up: which device is opened, loading, launches, tensor
maps.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from emulator.runtime import EmulatedRuntime
from support.devices import no_gpu
from support.fake_driver import BLOCK, GIB, FakeDriver, function
from warpfit import backends
from warpfit.backends.cuda import jit, runtime
from warpfit.backends.cuda.driver import DeviceInfo
from warpfit.backends.cuda.runtime import Runtime
from warpfit.errors import ConfigError, DeviceError, DeviceWarning, KernelError


def test_only_the_device_that_is_opened_gets_a_context(driver: FakeDriver) -> None:
    driver.count = 3
    runtime.devices()
    assert not driver.contexts
    runtime.open_device(2)
    wait_for_contexts()
    assert driver.contexts == [2]


def wait_for_contexts() -> None:
    for thread in threading.enumerate():
        if thread.name == "making a context":
            thread.join()


def test_a_card_is_known_before_its_device_is_open(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[Any] = []
    monkeypatch.setattr(jit, "compile_ahead", lambda kernels, arch: announced.append(arch))
    card = backends.target_of("cuda")
    wait_for_contexts()
    assert driver.contexts == [0]
    assert not driver.calls["current 0"]
    device = runtime.open_device(0)
    assert card == (device.arch, device.num_multiprocessors, device.max_shared_bytes)
    card.compile_ahead([])
    assert announced == ["sm_90a"]
    assert backends.target_of("auto") is device
    assert backends.target_of("cpu") is None
    with pytest.raises(DeviceError, match="got 'cuda:1'"):
        backends.target_of("cuda:1")


def test_an_index_out_of_range(driver: FakeDriver) -> None:
    driver.count = 2
    assert backends.resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(DeviceError, match="expected a device among cuda:0 to cuda:1, got 'cuda:2'"):
        backends.resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "", None])
def test_unknown_names(driver: FakeDriver, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected one device, 'auto', 'cpu', 'cuda' or 'cuda:1', \.\.\., got"
    ):
        backends.resolve_device(name)


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


def test_threads_that_open_a_device_at_once(driver: FakeDriver, short_turns: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(runtime.open_device, [0] * 8))) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_forked_from_one_that_uses_a_device_is_told_so(
    driver: FakeDriver, device: Runtime
) -> None:
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            runtime.open_device(0)
        except DeviceError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read() == (
            "expected a CUDA device for 'cuda:0', but this process was forked from one that uses "
            "CUDA, which no child can (start it by the method 'spawn' or 'forkserver')"
        )
    os.wait()


def test_loading_asks_for_all_shared_memory(
    driver: FakeDriver, device: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "cubin", lambda name, defines, arch: b"code")
    assert device.load("binary", (("DTYPE", "float32"),)).name == "binary"
    assert driver.calls[f"dynamic shared {227 * 1024 - 1024}"] == 1


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


def test_a_tensor_map_tells_the_driver_of_images(driver: FakeDriver, device: Runtime) -> None:
    found = device.image_map(4096, "float16", (5, 7, 6, 72), (2, 8, 4), (2, 1))
    assert found == bytes(range(128))
    (settings,) = driver.maps
    of_images = ("float16", 4, 4096, [72, 6, 7, 5], [144, 864, 6048])
    of_boxes = ([64, 4, 16, 2], [1, 1, 2, 1], "no interleave", "swizzle 128", "L2 128", "zeros")
    assert settings == (*of_images, *of_boxes)


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": (5, 0, 6, 64)}, r"images for a tensor map, got none: \(5, 0, 6, 64\)"),
        ({"shape": (5, 7, 6, 60)}, "rows of a multiple of 16 bytes"),
        ({"pointer": 4100}, "a matrix at a multiple of 16 bytes"),
        ({"box": (4, 8, 16)}, "boxes of 1 to 256 rows"),
        ({"box": (1, 2, 64), "steps": (1, 5)}, "boxes over 1 to 256 images, rows and columns"),
        ({"box": (1, 2, 4), "steps": (9, 1)}, "in steps of at most 8"),
    ],
)
def test_tensor_maps_of_images_that_cannot_be(
    driver: FakeDriver, changed: dict[str, Any], message: str, emulated: bool
) -> None:
    possible = {
        "pointer": 4096,
        "dtype_name": "float16",
        "shape": (5, 7, 6, 64),
        "box": (1, 8, 8),
        "steps": (1, 1),
    }
    device = EmulatedRuntime() if emulated else runtime.open_device(0)
    assert len(device.image_map(**possible)) == 128
    with pytest.raises(DeviceError, match=message):
        device.image_map(**{**possible, **changed})


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
