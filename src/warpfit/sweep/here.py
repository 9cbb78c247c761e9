"""Networks that this process trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event

from warpfit import backends
from warpfit.errors import WarpfitError
from warpfit.sweep.folds import SweepData
from warpfit.sweep.planning import plan_groups
from warpfit.sweep.runner import OneByOne, Runner
from warpfit.sweep.tasks import Outcome, Task, errors_told, unfinished
from warpfit.sweep.threads import is_set
from warpfit.sweep.together import Together

CPU = "cpu"


def runner_here(device: str, note: str = "", *, keeps_models: bool = True) -> Runner:
    """Return the runner of networks on a device of this process; a note says why not in other
    processes, and `keeps_models` whether all models are wanted.
    """
    if device != CPU:
        return Together(device, keeps_models)
    words = "one network after the other, with one BLAS thread"
    return OneByOne(has_one_thread=True, why=f"{words}; {note}" if note else words)


def run_here(
    tasks: Sequence[Task],
    stop: Event | None = None,
    *,
    runner: Runner | None = None,
    keeps_models: bool = True,
) -> list[Outcome]:
    """Train networks in this process, and return what came of them, in the order of their numbers.

    By a runner, if one is given. Else on a GPU, by what trains many there; on the CPU one after the
    other, with as many BLAS threads as there are. After Ctrl-C only those are returned that were at
    work before it. `keeps_models` as `Together` takes it.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C before any was at work, or with a runner, and once `stop` is set.
    """
    device = backends.resolve_device(tasks[0].arguments["device"]) if tasks else CPU
    if runner is not None and tasks:
        found = _run_planned(tasks, runner)
    elif device == CPU or len(tasks) == 1:
        found = OneByOne().run_tasks(tasks)
    else:
        found = _run_planned(placed(tasks, device), Together(device, keeps_models))
    outcomes: list[Outcome] = []
    try:
        for outcome in found:
            outcomes.append(outcome)
            if is_set(stop):
                break
    except KeyboardInterrupt:  # those at work say that it came
        if not outcomes or runner is not None:
            raise
    if is_set(stop):
        raise KeyboardInterrupt
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _run_planned(tasks: Sequence[Task], runner: Runner) -> Iterator[Outcome]:
    """Train networks by a runner; those that cannot be planned fail, and no others."""
    able = list(tasks)
    try:
        groups = plan_groups(able)
    except WarpfitError:
        able = []
        for task in tasks:
            outcome = unfinished(task)
            with errors_told(outcome):
                plan_groups([task])
                able.append(task)
            if outcome.error is not None:
                yield outcome
        groups = plan_groups(able)
    yield from runner.run(groups)


def placed(tasks: Sequence[Task], device: str) -> list[Task]:
    """Return the tasks with their rows on a device, where each array is once, however many tasks
    have it.
    """
    arrays: dict[int, SweepData] = {}
    data: dict[int, SweepData] = {}
    for task in tasks:
        own = task.data
        if id(own) in data:
            continue
        if id(own.x) not in arrays:
            arrays[id(own.x)] = own.on(device)
        data[id(own)] = own.at(arrays[id(own.x)])
    return [replace(task, data=data[id(task.data)]) for task in tasks]
