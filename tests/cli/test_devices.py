"""Commands and devices: where they run, what they say of it, and the cache of compiled kernels."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.commands import Invoke
from support.devices import no_gpu, open_devices
from support.fake_driver import FakeDriver
from warpfit.backends.cuda import autotune, jit
from warpfit.errors import CompileError, KernelError

MODEL = "run/model.safetensors"
SMALL = ("--hidden", "4", "--epochs", "2", "--batch-size", "32", "--out", "run")
LAYERWISE = (*SMALL, "--engine", "layerwise")


@pytest.fixture(autouse=True)
def kernel_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of kernels."""
    monkeypatch.setenv("WARPFIT_CACHE_DIR", str(tmp_path / "kernel cache"))
    return tmp_path / "kernel cache" / "kernels"


def test_training_and_evaluating_on_a_device(invoke: Invoke, blobs: Path, cuda: str) -> None:
    outcome = invoke("train", "--data", blobs, *LAYERWISE, "--device", cuda)
    assert (outcome.code, outcome.err) == (0, "")
    assert "layerwise on cuda:0 in float32" in outcome.out
    assert 'device = "cuda:0"' in Path("run/config.toml").read_text()
    results = [
        json.loads(invoke("evaluate", MODEL, "--device", d, "--json").out)
        for d in ("cpu", "cuda:0")
    ]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-5)
    assert results[0]["accuracy"] == results[1]["accuracy"]


def test_several_devices_train_one_network(invoke: Invoke, blobs: Path) -> None:
    losses = {}
    for device in ("cpu", "cpu,cpu"):
        asked = (*LAYERWISE, "--device", device, "--checkpoint-every", "1")
        outcome = invoke("train", "--data", blobs, *asked, "--out", device)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"layerwise on {device.replace(',', ', ')} in float32" in outcome.out
        losses[device] = json.loads(Path(device, "history.json").read_text())["epochs"]["loss"]
    assert losses["cpu,cpu"] == pytest.approx(losses["cpu"], rel=1e-5)
    assert 'device = "cpu,cpu"' in Path("cpu,cpu/config.toml").read_text()
    outcome = invoke("train", "--resume", "cpu,cpu", "--epochs", "3", "--out", "cpu,cpu")
    assert (outcome.code, outcome.err) == (0, "")
    assert "layerwise on cpu, cpu in float32" in outcome.out


def test_several_devices_take_the_networks_of_a_sweep_in_turn(invoke: Invoke, blobs: Path) -> None:
    tables = []
    for device in ("cpu", "cpu,cpu"):
        asked = ("--hidden", "4", "--epochs", "2", "--lr", "0.1,0.2", "--jobs", "1")
        outcome = invoke("sweep", "--data", blobs, *asked, "--device", device, "--out", device)
        assert (outcome.code, outcome.err) == (0, "")
        rows = csv.DictReader(Path(device, "sweep.csv").read_text().splitlines())
        tables.append([(row["lr"], row["val_loss"], row["rank"]) for row in rows])
        assert 'device = "cpu"' in Path(device, "best.toml").read_text()
    assert "in turn by cpu, cpu, whichever is free" in outcome.out
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_device_trains_by_graphs_if_asked_to(invoke: Invoke, blobs: Path, cuda: str) -> None:
    settings = (*SMALL, "--engine", "graph", "--checkpoint-every", "1")
    outcome = invoke("train", "--data", blobs, *settings, "--device", cuda)
    assert (outcome.code, outcome.err) == (0, "")
    assert "graph on cuda:0 in float16" in outcome.out
    assert "engine 'graph' was asked for; the data suits float16; graphs of" in outcome.out
    outcome = invoke("train", "--resume", "run", "--epochs", "3", "--out", "again")
    assert (outcome.code, outcome.err) == (0, "")
    assert "graph on cuda:0 in float16" in outcome.out
    outcome = invoke("train", "--data", blobs, *settings, "--device", "cpu")
    assert outcome.code == 2
    assert "engine 'graph': expected a CUDA device, got 'cpu'" in outcome.err


def test_a_device_trains_in_one_launch_where_it_can(invoke: Invoke, blobs: Path, cuda: str) -> None:
    outcome = invoke("train", "--data", blobs, *SMALL, "--device", cuda, "--checkpoint-every", "1")
    assert (outcome.code, outcome.err) == (0, "")
    assert "one_launch on cuda:0 in float16" in outcome.out
    assert "one_launch runs it; the data suits float16; one block" in outcome.out
    config = Path("run/config.toml").read_text()
    assert 'engine = "one_launch"' in config
    assert 'precision = "float16"' in config
    outcome = invoke("train", "--resume", "run", "--epochs", "3", "--out", "again")
    assert (outcome.code, outcome.err) == (0, "")
    assert "one_launch on cuda:0 in float16" in outcome.out
    asked = ("--data", blobs, *SMALL, "--device", cuda, "--precision")
    outcome = invoke("train", *asked, "float32", "--out", "float32")
    assert "one_launch on cuda:0 in float32" in outcome.out
    outcome = invoke("train", *asked, "tf32", "--out", "tf32")
    assert "graph on cuda:0 in tf32" in outcome.out
    assert (
        "one_launch: expected precision 'float16', 'bfloat16' or 'float32', got 'tf32'"
        in outcome.out
    )


def test_predicting_on_a_device(invoke: Invoke, tiny_images: Path, cuda: str) -> None:
    from PIL import Image

    assert invoke("train", "--data", tiny_images, *SMALL, "--device", "cpu").code == 0
    Image.fromarray(np.load(tiny_images)["x"][0]).save("image.png")
    found = [
        json.loads(invoke("predict", MODEL, "image.png", "--device", d, "--json").out)[
            "predictions"
        ][0]
        for d in ("cpu", cuda)
    ]
    assert found[0]["label"] == found[1]["label"] == "above"
    assert found[0]["probability"] == pytest.approx(found[1]["probability"], rel=1e-5)


def test_gradcheck_on_a_device(invoke: Invoke, cuda: str) -> None:
    outcome = invoke(
        "gradcheck", "--only", "Linear(4, 3) + tanh", "--dtype", "float64", "--device", cuda
    )
    assert outcome.code == 0
    assert "1 of 1 checks passed" in outcome.out


def test_where_auto_falls_back_a_line_says_so(
    invoke: Invoke, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch)
    line = f"device 'auto' is the CPU: {wf.backends.cuda.runtime.why_unavailable()}"
    for arguments in (
        ("train", "--data", blobs, *SMALL),
        ("evaluate", MODEL),
        ("gradcheck", "--only", "square float64"),
    ):
        outcome = invoke(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.splitlines().count(line) == 1
    assert line not in invoke("evaluate", MODEL, "--device", "cpu").out
    json.loads(invoke("evaluate", MODEL, "--json").out)
    assert invoke("train", "--data", blobs, *SMALL, "--quiet").out == ""


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--data", "blobs.npz"),
        ("evaluate", MODEL),
        ("predict", MODEL, "."),
        ("gradcheck",),
    ],
)
def test_a_device_that_is_not_there(
    invoke: Invoke, blobs: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    no_gpu(monkeypatch)
    assert invoke("train", "--data", blobs, *SMALL, "--device", "cpu").code == 0
    outcome = invoke(*command, "--device", "cuda")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("warpfit: expected a CUDA device for 'cuda:0', but ")
    assert outcome.err.count("\n") == 1


def test_a_kernel_that_does_not_compile(
    invoke: Invoke, blobs: Path, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CompileError("kernel add does not compile:\nadd.cu(3): error: no")

    monkeypatch.setattr("warpfit.backends.cuda.CudaBackend.begin_step", fail)
    outcome = invoke("train", "--data", blobs, *LAYERWISE, "--device", cuda)
    assert outcome.code == 1
    assert outcome.err == "warpfit: kernel add does not compile:\nadd.cu(3): error: no\n"


def test_a_kernel_that_fails_is_not_the_users_fault(
    invoke: Invoke, blobs: Path, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KernelError("a kernel failed on cuda:0")

    monkeypatch.setattr("warpfit.backends.cuda.CudaBackend.begin_step", fail)
    outcome = invoke("train", "--data", blobs, *LAYERWISE, "--device", cuda)
    assert (outcome.code, outcome.err) == (1, "warpfit: a kernel failed on cuda:0\n")


@pytest.mark.parametrize(("named", "code"), [("", 0), ("auto", 0), ("cpu", 0), ("gpu", 2)])
def test_the_environment_names_the_device(
    invoke: Invoke, blobs: Path, monkeypatch: pytest.MonkeyPatch, named: str, code: int
) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setenv("WARPFIT_DEVICE", named)
    outcome = invoke("train", "--data", blobs, *SMALL)
    assert outcome.code == code
    error = (
        "warpfit: expected WARPFIT_DEVICE as 'auto', 'cpu', 'cuda' or 'cuda:1', ..., got 'gpu'\n"
    )
    assert outcome.err == (error if code else "")


def test_info_lists_every_device(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.count = 2
    driver.install(monkeypatch)
    open_devices(monkeypatch)
    lines = [line.strip() for line in invoke("info").out.splitlines()]
    for index in range(2):
        assert f"cuda:{index}  Fake {index}, sm_90a, 2 GiB, driver for CUDA 13.0" in lines


def test_info_says_why_there_is_no_device(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    reason = wf.backends.cuda.runtime.why_unavailable()
    assert f"cuda  not available: {reason}" in invoke("info").out


def test_the_cache_is_shown_and_cleared(
    invoke: Invoke, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f"0 kernels, 0.0 MiB, in {kernel_cache}"
    assert invoke("cache").out == invoke("cache", "show").out == f"{shown}\n"
    assert any(
        line.split(maxsplit=1) == ["kernels", shown] for line in invoke("info").out.splitlines()
    )
    monkeypatch.setattr(jit, "compile_kernel", lambda *_: (bytes(3 << 19), ""))
    for dtype in ("float32", "float64"):
        jit.cubin("gather_rows", (("DTYPE", dtype),), "sm_90a")
    shown = f"2 kernels, 3.0 MiB, in {kernel_cache}"
    assert invoke("cache").out == f"{shown}\n"
    timed = autotune.tuned_folder() / "of a product.json"
    timed.parent.mkdir(parents=True, exist_ok=True)
    timed.write_text("{}")
    assert invoke("cache", "clear").out == f"removed {shown}\n"
    assert not timed.exists()
    assert invoke("cache").out.startswith("0 kernels")


def test_an_entry_that_cannot_be_removed(
    misuse: Invoke, invoke: Invoke, kernel_cache: Path
) -> None:
    (kernel_cache / "folder.cubin").mkdir(parents=True)
    assert "1 kernel," in invoke("cache").out
    assert f"cannot clear the cache: Is a directory: {kernel_cache}" in misuse("cache", "clear").err


def test_the_cache_is_built_for_a_card_that_is_not_there(
    invoke: Invoke, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "compile_kernel", lambda *_: (b"code", ""))
    small = ("cache", "build", "--arch", "sm_90", "--hidden", "32", "--optimizer", "adam")
    counts = [
        re.fullmatch(r"(\d+) kernels for sm_90a, (\d+) of them new, in .* s", line)
        for line in (invoke(*small).out.splitlines()[0], invoke(*small).out.splitlines()[0])
    ]
    (num_kernels, num_new), (again, new_again) = (
        map(int, found.groups()) for found in counts if found
    )
    assert num_kernels == num_new == again == len(list(kernel_cache.glob("*-sm_90a-*"))) > 3
    assert new_again == 0
    usual = invoke("cache", "build", "--arch", "sm_80").out.splitlines()
    assert usual[0].startswith("13 kernels for sm_80, 13 of them new")
    assert usual[1].startswith(f"{num_kernels + 13} kernels")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("build", "--arch", "sm_10"), "expected an architecture among sm_75, .*, got 'sm_10'"),
        (("build", "--arch", "sm_75", "--hidden", "4096,4096"), "expected at most .* bytes of"),
        (("build", "--arch", "sm_90", "--optimizer", "none"), "expected optimizer among .*'none'"),
        (("build",), "expected a CUDA device .*; --arch names one that need not be here"),
        (("clear", "--batch-size", "8"), "expected --batch-size with build only"),
        (("drop",), "expected show, clear or build, got 'drop'"),
    ],
)
def test_misuse_of_the_cache(
    misuse: Invoke, flags: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch)
    assert re.match(f"warpfit: {error}", misuse("cache", *flags).err)
