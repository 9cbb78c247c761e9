"""Runs a command of ``warpfit`` with a clock for each of its stages, and writes what they show when
the model is saved.

At any moment one clock runs, that of the innermost stage of the main thread: what a stage waits for
counts, what other stages within it take does not. So all of them add up to the whole. Stages are
calls of functions, of which none is called for every step, and imports wherever they happen.

    python benchmarks/stages.py SECONDS.json NANOSECONDS train --data mnist ...

NANOSECONDS is `time.time_ns()` from before the process was started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from threading import get_ident
from time import perf_counter, time_ns
from typing import Any

START, IMPORTS, TRAINING, SAVING, OTHER = (
    "start of Python",
    "imports",
    "training",
    "saving",
    "other",
)
# Stages, with the functions that are theirs.
FUNCTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "loading of data": (("warpfit.training.jobs", "open_data"),),
    "opening the device": (
        ("warpfit.backends.cuda.runtime", "why_unavailable"),
        ("warpfit.backends.cuda.runtime", "open_device"),
    ),
    "compiling kernels": (("warpfit.backends.cuda.jit", "compile_kernel"),),
    "loading kernels": (("warpfit.backends.cuda.runtime", "Runtime.load"),),
    "uploading": (("warpfit.backends.cuda.runtime", "Runtime.upload"),),
    "checks and plan": (("warpfit.training.jobs", "fit"),),
    TRAINING: (),
    "validation": (("warpfit.training.loop", "evaluate_network"),),
    "test": (("warpfit.training.trained", "TrainedModel.test_on"),),
}
STAGES = (START, IMPORTS, *FUNCTIONS, SAVING, OTHER)


class Clocks:
    """The seconds of each stage of the thread that makes them, which starts with `OTHER`."""

    def __init__(
        self, now: Callable[[], float] = perf_counter, stages: Iterable[str] = STAGES
    ) -> None:
        self.seconds = dict.fromkeys(stages, 0.0)
        self._now, self._thread = now, get_ident()
        self._stages, self._since = [OTHER], now()

    def switch(self) -> None:
        """Put what has passed since the last switch to the stage that runs."""
        now = self._now()
        self.seconds[self._stages[-1]] += now - self._since
        self._since = now

    def enter(self, stage: str) -> None:
        self.switch()
        self._stages.append(stage)

    def leave(self) -> None:
        self.switch()
        self._stages.pop()

    def timed(self, function: Any, stage: str) -> Any:
        """Return the function with its calls as a stage."""

        @wraps(function)
        def call(*arguments: Any, **settings: Any) -> Any:
            if get_ident() != self._thread:
                return function(*arguments, **settings)
            self.enter(stage)
            try:
                return function(*arguments, **settings)
            finally:
                self.leave()

        return call

    def timed_steps(self, generator_of: Any, stage: str) -> Any:
        """Return the generator function with the time to each of its values as a stage."""

        @wraps(generator_of)
        def call(*arguments: Any, **settings: Any) -> Iterator[Any]:
            values = generator_of(*arguments, **settings)
            take = self.timed(lambda: next(values, None), stage)
            while (value := take()) is not None:
                yield value

        return call


def replace(module: str, name: str, changed: Callable[[Any], Any]) -> None:
    """Put what `changed` makes of a function, or of a class's, in its place."""
    *classes, name = name.split(".")
    owner: Any = import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    setattr(owner, name, changed(getattr(owner, name)))


def install(clocks: Clocks, report: Callable[[], None]) -> None:
    """Let calls of all stages' functions be timed, and the report be made when the model is
    saved.
    """
    # What the interpreter calls for a module that is not there yet.
    replace("_frozen_importlib", "_find_and_load", partial(clocks.timed, stage=IMPORTS))
    for stage, functions in FUNCTIONS.items():
        for module, name in functions:
            replace(module, name, partial(clocks.timed, stage=stage))
    for engine in import_module("warpfit.training.plan").ENGINES.values():
        engine.run = clocks.timed_steps(engine.run, TRAINING)

    def saved(save: Any) -> Any:
        timed = clocks.timed(save, SAVING)

        def call(*arguments: Any) -> None:
            timed(*arguments)
            report()

        return call

    replace("warpfit.training.trained", "TrainedModel.save", saved)


def main() -> None:
    path, started_ns, *arguments = sys.argv[1:]
    clocks = Clocks()
    clocks.seconds[START] = (time_ns() - int(started_ns)) / 1e9

    def report() -> None:
        clocks.switch()
        Path(path).write_text(json.dumps(clocks.seconds), encoding="utf-8")

    install(clocks, report)
    import_module("warpfit.cli").main(arguments)


if __name__ == "__main__":
    main()
