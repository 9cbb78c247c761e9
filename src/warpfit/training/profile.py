"""Profiles a run: a Chrome trace of its epochs, steps and launches, and NVTX ranges of the same."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

from warpfit.files import PathLike, as_path, atomic_path
from warpfit.training.callbacks import Callback
from warpfit.training.run import Run

# Launches that a trace shows, the first ones: each is some 200 bytes of the file for the host and
# for the device.
MOST_LAUNCHES = 20_000

HOST, DEVICE = 1, 2  # processes of the trace
EPOCHS, STEPS, LAUNCHES = 1, 2, 3  # threads of the host's
KERNELS = 1  # and of the device's
TRACKS = {
    (HOST, EPOCHS): "epochs",
    (HOST, STEPS): "steps",
    (HOST, LAUNCHES): "launches",
    (DEVICE, KERNELS): "kernels and graphs",
}


class Profile(Callback):
    """Writes a trace of the run, which https://ui.perfetto.dev and chrome://tracing show.

    On the host: the run, its epochs, the steps of ``'layerwise'``, and the calls that launch
    kernels and graphs. On a GPU: how long each launch takes there, by events before and after it,
    which cost some microseconds each. Epochs that an engine trains at once are drawn one after the
    other, with equal shares of the time. While it runs, NVTX ranges say the same to Nsight Systems,
    if there is a library for that.

    Parameters
    ----------
    path : path of the trace, a JSON file that is written when the run ends

    Attributes
    ----------
    notes : list of str
        What is missing from the trace or the ranges, and why.

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=2, callbacks=[wf.Profile("trace.json")])
    """

    needs_run = False
    writes_file = True

    def __init__(self, path: PathLike) -> None:
        self.path = as_path("Profile's path", path)
        self.notes: list[str] = []
        self._ranges: Any = None
        self._launches: _Launches | None = None

    def on_start(self, run: Run) -> None:
        self._ranges = nvtx_ranges()
        self.notes = [self._ranges.missing] if isinstance(self._ranges, _NoRanges) else []
        self._spans: list[dict[str, Any]] = []
        self._has_steps = run.plan.engine == "layerwise"
        runtime = getattr(run.ops, "runtime", None)
        if runtime is not None:
            self._launches = runtime.watcher = _Launches(runtime, self._ranges)
        self._start = self._epoch_start = self._step_start = perf_counter()
        self._ranges.push(f"{run.plan.engine}, epochs from {run.state.epoch + 1}")

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        if self._has_steps:  # other engines start many at once
            now = perf_counter()
            self._add(HOST, STEPS, f"step {step}", self._step_start, now)
            self._step_start = now

    def on_epoch_end(self, run: Run) -> None:
        report, now = run.report, perf_counter()
        end = self._epoch_start + report.seconds
        numbers = {
            "loss": report.loss,
            "accuracy": report.accuracy,
            "rows": report.num_rows,
            "lr": report.lr,
        }
        self._add(HOST, EPOCHS, f"epoch {report.epoch}", self._epoch_start, end, numbers)
        if (
            report.epoch < run.state.epoch
        ):  # of those that were trained at once, others are still to come
            self._epoch_start = end
            return
        if now > end:
            self._add(HOST, EPOCHS, "validation and callbacks", end, now)
        self._epoch_start = self._step_start = now
        self._ranges.pop()
        self._ranges.push(f"{run.plan.engine}, epochs from {run.state.epoch + 1}")

    def on_end(self, run: Run) -> None:
        self._add(
            HOST, EPOCHS, f"{run.plan.engine} on {run.plan.device}", self._start, perf_counter()
        )
        if self._launches is not None:
            self._launches.ended(self._add)
            if self._launches.num_left_out:
                self.notes.append(
                    f"{self._launches.num_left_out:,} launches after the first {MOST_LAUNCHES:,}"
                )
        plan = run.plan
        outer_first = sorted(self._spans, key=lambda span: (span["ts"], -span["dur"]))
        trace = {
            "traceEvents": [*_names_of_tracks(plan.device), *outer_first],
            "displayTimeUnit": "ms",
            "otherData": {
                "engine": plan.engine,
                "device": plan.device,
                "precision": plan.precision,
                "reason": plan.reason,
                "missing": "; ".join(self.notes),
            },
        }
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(trace) + "\n", encoding="utf-8")

    def close(self) -> None:
        if self._ranges is not None:
            self._ranges.pop()
        if self._launches is not None:
            self._launches.runtime.watcher = None
        self._ranges = self._launches = None

    def _add(
        self,
        process: int,
        thread: int,
        name: str,
        start: float,
        end: float,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """Note a span; times are those of `perf_counter`."""
        # Whole nanoseconds, so that one that begins where another ends does not overlap it.
        first, last = (round((time - self._start) * 1e9) for time in (start, end))
        self._spans.append(
            {
                "name": name,
                "ph": "X",
                "pid": process,
                "tid": thread,
                "ts": first / 1e3,
                "dur": (last - first) / 1e3,
                **({} if arguments is None else {"args": arguments}),
            }
        )


def _names_of_tracks(device: str) -> list[dict[str, Any]]:
    """Return what a trace says of its processes and threads."""
    processes = {HOST: "host", DEVICE: device}
    tracks = [(key, name) for key, name in TRACKS.items() if device != "cpu" or key[0] == HOST]
    found = [
        {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}}
        for number, name in processes.items()
        if number in {process for (process, _), _ in tracks}
    ]
    return found + [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
        for (process, thread), name in tracks
    ]


class _Launch(NamedTuple):
    """A launch under way: its name, when the host began, and the device's event before it."""

    name: str
    start: float
    before: Any


class _Launched(NamedTuple):
    name: str
    start: float
    end: float
    before: Any
    after: Any


class _Launches:
    """Watches the launches of a device; see ``Runtime.watcher``."""

    def __init__(self, runtime: Any, ranges: Any) -> None:
        self.runtime, self.num_left_out = runtime, 0
        self._ranges, self._launched = ranges, list[_Launched]()
        runtime.synchronize()
        # The device's clock and the host's, at one moment.
        self._first, self._first_seconds = runtime.mark(), perf_counter()

    def begin(self, name: str) -> _Launch | None:
        if self.runtime.is_capturing():
            return None
        if len(self._launched) >= MOST_LAUNCHES:
            self.num_left_out += 1
            return None
        self._ranges.push(name)
        return _Launch(name, perf_counter(), self.runtime.mark())

    def end(self, launch: _Launch) -> None:
        now = perf_counter()
        self._launched.append(_Launched(*launch[:2], now, launch.before, self.runtime.mark()))
        self._ranges.pop()

    def ended(self, add: Any) -> None:
        """Wait for the device, and add a span for each launch on the host and on the device."""
        runtime = self.runtime
        runtime.synchronize()
        for launch in self._launched:
            add(HOST, LAUNCHES, launch.name, launch.start, launch.end)
            start = self._first_seconds + runtime.seconds_between(self._first, launch.before)
            end = start + runtime.seconds_between(launch.before, launch.after)
            add(DEVICE, KERNELS, launch.name, start, end)
        self._launched.clear()


class _NoRanges:
    """Stands for NVTX where there is none."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def push(self, name: str) -> None:
        """Leave it."""

    def pop(self) -> None:
        """Leave it."""


class _PackageRanges:
    """Of the package ``nvtx``."""

    def __init__(self) -> None:
        import nvtx

        self.push, self.pop = nvtx.push_range, nvtx.pop_range


class _LibraryRanges:
    """Of the toolkit's library."""

    def __init__(self) -> None:
        import ctypes
        from ctypes.util import find_library

        library = ctypes.CDLL(find_library("nvToolsExt") or "libnvToolsExt.so.1")
        self._push, self._pop = library.nvtxRangePushA, library.nvtxRangePop
        self._push.argtypes, self._pop.argtypes = [ctypes.c_char_p], []

    def push(self, name: str) -> None:
        self._push(name.encode())

    def pop(self) -> None:
        self._pop()


def nvtx_ranges() -> Any:
    """Return what opens and closes NVTX ranges in this process: ``push(name)`` and ``pop()``."""
    if find_spec("nvtx") is not None:
        return _PackageRanges()
    with suppress(OSError, AttributeError):
        return _LibraryRanges()
    return _NoRanges(
        "NVTX ranges: neither the package nvtx nor the toolkit's libnvToolsExt is installed"
    )
