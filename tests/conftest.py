"""Where tests run: the CPU unless they ask for a CUDA device, which the emulator stands in for."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from threading import Thread
from typing import Any

import pytest

from emulator.build import build_scheduler, gxx_missing
from emulator.runtime import EmulatedRuntime
from support.both_ends import BothEnds
from support.environment import start_clean
from support.few_reports import tell_less
from support.strict import FILTERS
from support.turns import COLLECTED, is_slow_as_a_whole, mark_turns
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.memory import Memory

start_clean()
os.environ["WARPFIT_DEVICE"] = "cpu"  # is what device 'auto' is, on a machine with a GPU too
os.fsync = lambda fd: None  # what tests write need not outlast a power cut
NO_GXX = gxx_missing()
NO_GPU = runtime.why_unavailable()

# For tests of the tests.
pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings of ours errors; begin what every emulated kernel needs, once."""
    for line in FILTERS:
        config.addinivalue_line("filterwarnings", line)
    if NO_GXX is None and getattr(config.option, "numprocesses", None):
        Thread(target=build_scheduler).start()  # while the processes of pytest-xdist collect
    if worker := getattr(config, "workerinput", {}).get("workerid"):
        config.pluginmanager.register(BothEnds(worker))
        tell_less(config)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why tests were skipped, a line for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    if NO_GPU:
        terminalreporter.write_line(f"what runs on the emulator did not run on a GPU: {NO_GPU}")


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[Any] | None:
    """Make no cases of a test that is slow as a whole where none of them would run."""
    leaves_slow = collector.config.option.markexpr == "not slow"
    return [] if leaves_slow and is_slow_as_a_whole(name, obj) else None


def pytest_collection() -> None:
    """Leave collecting garbage for later: the cases, a million objects, are none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let nothing that collects garbage look through all cases, and let it look more seldom: what
    tests make in a hurry is gone without.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Let cases take turns, before any are deselected, and after what the folders' own conftest.py
    mark.
    """
    nameless = [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]{8}", item.nodeid)]
    if nameless:  # xdist's processes would not agree on their names
        raise pytest.UsageError(
            f"expected cases named the same in every process, got {nameless[0]}"
        )
    mark_turns(items)
    config.stash[COLLECTED] = list(items)
    leave_constants_alone()


def leave_constants_alone() -> None:
    """Let Hypothesis try no constants of our sources, all of which each process would read for
    them, and what is tried not change with them.
    """
    providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


on_emulator = pytest.mark.skipif(NO_GXX is not None, reason=str(NO_GXX))
on_gpu = pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))

# A fixture's parameter; thousands of cases that are skipped take a minute.
ON_A_GPU = [] if NO_GPU else [pytest.param("gpu", marks=pytest.mark.gpu)]


def cases_on_a_gpu(cases: list[Any]) -> list[Any]:
    """Return the cases of a test for a GPU; where there is none, the first, which says so."""
    return cases[:1] if NO_GPU else cases


class PoisonedRuntime(runtime.Runtime):
    """A device whose memory is full of NaN when it is allocated, so that what is not written
    shows.
    """

    def allocate(self, nbytes: int) -> Memory:
        memory = super().allocate(nbytes)
        self.fill(memory.pointer, nbytes, 0xFF, at_once=True)  # a graph would do it at each launch
        return memory


@pytest.fixture(scope="session", autouse=True)
def poisoned_gpu() -> None:
    """Let the first GPU, where there is one, be poisoned for all tests."""
    if NO_GPU is None:
        runtime._OPEN[0] = PoisonedRuntime(0)


@pytest.fixture(scope="session")
def emulated_runtime() -> EmulatedRuntime:
    """The emulated device that all tests share, with the kernels it has loaded, under the first
    GPU's name.
    """
    emulated = EmulatedRuntime()
    emulated.name = "cuda:0"
    return emulated


@pytest.fixture(
    params=[pytest.param("emulator", marks=on_emulator), *ON_A_GPU],
)
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The name of a CUDA device: an emulated one, and the first real one where there is one."""
    if request.param == "emulator":
        emulated = request.getfixturevalue("emulated_runtime")
        monkeypatch.setitem(runtime._OPEN, 0, emulated)
    return "cuda"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("emulator", marks=on_emulator),
        *ON_A_GPU,
    ],
)
def kernel_runtime(request: pytest.FixtureRequest) -> Any:
    """What kernels run on: the emulator, and the first GPU where there is one."""
    return runtime.open_device(0) if request.param == "gpu" else EmulatedRuntime()


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("forward", marks=on_emulator),
        pytest.param("reverse", marks=on_emulator),
        *ON_A_GPU,
    ],
)
def kernel_runtime_of_any_order(request: pytest.FixtureRequest) -> Any:
    """As `kernel_runtime`, on the emulator with threads and blocks from the last to the first
    too.
    """
    if request.param == "gpu":
        return runtime.open_device(0)
    return EmulatedRuntime(reverse=True) if request.param == "reverse" else EmulatedRuntime()
