"""Runs programs of one library for `bench ladder`, and prints what each did as a line of JSON.

    python benchmarks/peers/ladder_worker.py FOLDER LIBRARY NAME...

FOLDER has task.json, x.npy and y.npy, as `ladder_peers` writes them. The first line tells that the
library is there and its device found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `peers`

MARK = "ladder: "
# Of a trainer that may train on the first steps of an epoch only: steps by which it is found out
# how many.
PROBE_STEPS = 40

Task = dict[str, Any]


# -- programs
# -------------------------------------------------------------------------------------------------


def numpy_by_hand(task: Task) -> Any:
    from peers import numpy_loop

    return numpy_loop.Trainer(task["sizes"], *task["data"], **_settings(task))


def torch_dataloader(task: Task) -> Any:
    from peers import torch_eager, torch_loader

    model = torch_eager.mlp(task["sizes"])
    return torch_loader.Trainer(model, *task["data"], **_settings(task), device=_torch_device(task))


def torch_preloaded(task: Task, precision: str = "float32") -> Any:
    from peers import torch_eager

    return _torch_trainer(task, torch_eager.mlp(task["sizes"]), precision)


def torch_amp(task: Task) -> Any:
    return torch_preloaded(task, "bfloat16")


def torch_compile(task: Task) -> Any:
    import torch

    from peers import torch_eager

    model: Any = torch.compile(
        torch_eager.mlp(task["sizes"]).to(_torch_device(task)), dynamic=False
    )
    return _torch_trainer(task, model, "bfloat16")


def torch_graph(task: Task) -> Any:
    from peers import torch_graph

    return torch_graph.Trainer(
        task["sizes"],
        *task["data"],
        **_settings(task),
        precision="bfloat16",
        device=_torch_device(task),
    )


def jax_scan(task: Task) -> Any:
    from peers import jax_scan

    on_gpu: dict[str, Any] = {"precision": "bfloat16", "unroll": 32}
    on_cpu: dict[str, Any] = {"precision": "float32", "unroll": 1}
    settings = on_cpu if task["device"] == "cpu" else on_gpu
    return jax_scan.Trainer(task["sizes"], *task["data"], **_settings(task), **settings)


def cublas(task: Task) -> Any:
    return LibraryRung(task, "no-readback", "cublas")


def cudnn(task: Task) -> Any:
    return LibraryRung(task, "fewer-reports", "cudnn")


PROGRAMS: dict[str, Callable[[Task], Any]] = {
    "numpy-by-hand": numpy_by_hand,
    "cublas": cublas,
    "cudnn": cudnn,
    "torch-dataloader": torch_dataloader,
    "torch-preloaded": torch_preloaded,
    "torch-amp": torch_amp,
    "torch-compile": torch_compile,
    "torch-graph": torch_graph,
    "jax-scan": jax_scan,
}


def _settings(task: Task) -> dict[str, Any]:
    return {"batch_size": task["batch"], "lr": task["lr"]}


def _torch_device(task: Task) -> str:
    """Return the device, or raise RuntimeError if PyTorch does not have it."""
    import torch

    if task["device"] != "cpu" and not torch.cuda.is_available():
        raise RuntimeError("expected a PyTorch that sees the GPU, got one that does not")
    return str(task["device"])


def _torch_trainer(task: Task, model: Any, precision: str) -> Any:
    from peers import torch_eager

    return torch_eager.Trainer(
        model, *task["data"], **_settings(task), precision=precision, device=_torch_device(task)
    )


class LibraryRung:
    """A rung of the ladder with operations of libraries in place of ours; see
    `peers.library_ops`.
    """

    def __init__(self, task: Task, rung: str, ops: str) -> None:
        from dataclasses import replace

        from peers.library_ops import ops_of
        from warpfit.apps.ladder.rungs import RUNGS
        from warpfit.apps.ladder.task import Task as OurTask
        from warpfit.apps.ladder.trainer import StepByStep

        _torch_device(task)
        own = OurTask(task["sizes"], task["batch"], task["lr"], *task["data"], seed=task["seed"])
        (recipe,) = (other.recipe for other in RUNGS if other.name == rung)
        assert recipe is not None
        recipe = replace(recipe, product_kernel=None)  # products are the library's
        own_ops, self.stream = ops_of(task["device"], ops)
        trainer = StepByStep(own, task["device"], recipe, own_ops)
        self.steps, self._epochs = own.steps, trainer.run(len(own.x), epochs_of(task))

    def epoch(self) -> tuple[float | None, float | None]:
        """Train for an epoch; return loss and accuracy if it has any."""
        import torch

        with torch.cuda.stream(self.stream):
            done = next(self._epochs)
        return done.loss, done.accuracy


# -- measurement
# ----------------------------------------------------------------------------------------------


def epochs_of(task: Task) -> int:
    """Return the epochs of a program: one is its first call, and one at least comes after that."""
    return max(2, int(task["epochs"]))


def measured(make: Callable[[Task], Any], task: Task) -> dict[str, Any]:
    """Return what a program does within its seconds, as `ladder_peers.Measured` has it."""
    start = perf_counter()
    trainer = make(task)
    steps = _affordable(trainer, task)
    settings = {} if steps == trainer.steps else {"most_steps": steps}
    loss, accuracy = trainer.epoch(**settings)
    first_call = perf_counter() - start
    seconds: list[float] = []
    while len(seconds) < epochs_of(task) - 1 and (not seconds or sum(seconds) < task["seconds"]):
        begin = perf_counter()
        loss, accuracy = trainer.epoch(**settings)  # if the last epoch has them
        seconds.append(perf_counter() - begin)
    first_call = max(0.0, first_call - min(seconds))
    return {
        "first_call": first_call,
        "seconds": seconds,
        "steps": steps,
        "loss": loss,
        "accuracy": accuracy,
    }


def _affordable(trainer: Any, task: Task) -> int:
    """Return the steps of an epoch: all, or of a trainer that can, as many as leave time for two
    epochs and a first.
    """
    if "most_steps" not in trainer.epoch.__code__.co_varnames:
        return int(trainer.steps)
    trainer.epoch(most_steps=2)
    begin = perf_counter()
    trainer.epoch(most_steps=PROBE_STEPS)
    a_step = (perf_counter() - begin) / min(PROBE_STEPS, trainer.steps)
    return int(min(trainer.steps, max(1, task["seconds"] / 2 / a_step)))


def reason(error: Exception) -> str:
    """Return an error's class and first line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def tell(what: dict[str, Any]) -> None:
    """Print a line for whoever started this process."""
    print(MARK + json.dumps(what), flush=True)


def load(folder: Path) -> Task:
    """Return the task, with its rows."""
    task: Task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    task["sizes"] = tuple(task["sizes"])
    task["data"] = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    return task


def prepare(library: str, task: Task) -> None:
    """Import a library and let it find its device: that is no program's first call."""
    if library == "torch":
        import torch

        if task["device"] != "cpu" and torch.cuda.is_available():
            torch.zeros(1, device=task["device"])
    elif library == "jax":
        import jax

        if task["device"] == "cpu":
            jax.config.update("jax_platforms", "cpu")
        elif jax.default_backend() != "gpu":
            raise RuntimeError(f"expected JAX on a GPU, got it on {jax.default_backend()}")


def main() -> None:
    folder, library, *names = sys.argv[1:]
    task = load(Path(folder))
    prepare(library, task)
    tell({"ready": library})
    for name in names:
        try:
            found = measured(PROGRAMS[name], task)
        except Exception as error:  # one that is missing something must not take the others with it
            found = {"reason": reason(error)}
        tell(found)


if __name__ == "__main__":
    main()
