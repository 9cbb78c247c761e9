"""How long does the demo notebook take when a slider is moved?

Each setting is trained once, which on a GPU may compile its kernel, and then some times more;
training is all of `Trainer.train`: initial values, fit with validation, predictions. The picture is
drawn apart. MNIST on a GPU, digits on the CPU. Writes this device's part of results/notebook.json.

    python benchmarks/notebook.py [--device cpu]
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from io import BytesIO
from time import perf_counter
from typing import Any

from harness import RESULTS, Options, environment, run_command, spread, write_results
from warpfit.apps.notebook import DemoSettings, Trainer, draw
from warpfit.apps.notebook.trainer import Choices
from warpfit.errors import DeviceWarning

TIMES = 5


def settings_of(choices: Choices) -> dict[str, DemoSettings]:
    """Return what is measured: the sliders' first position, each one's ends, and the slowest of
    all.
    """
    first, deepest = DemoSettings(), choices.largest_depth
    slowest = {"width": choices.widths[-1], "depth": deepest, "batch_size": choices.batch_sizes[0]}
    return {
        "as it opens": first,
        "no hidden layer": replace(first, depth=0),
        f"{deepest} hidden layers": replace(first, depth=deepest),
        f"width {choices.widths[0]}": replace(first, width=choices.widths[0]),
        f"width {choices.widths[-1]}": replace(first, width=choices.widths[-1]),
        f"batch {choices.batch_sizes[0]}": replace(first, batch_size=choices.batch_sizes[0]),
        f"batch {choices.batch_sizes[-1]}": replace(first, batch_size=choices.batch_sizes[-1]),
        "Adam, rate 0.003": replace(first, optimizer="Adam", lr=0.003),
        "widest, deepest, smallest batch, Adam": DemoSettings(
            **slowest, optimizer="Adam", lr=0.001
        ),
    }


def measure(trainer: Trainer, settings: DemoSettings) -> dict[str, Any]:
    """Return the seconds of the first training, of those after it, and of the picture."""
    seconds = []
    for _ in range(1 + TIMES):
        start = perf_counter()
        run = trainer.train(settings)
        seconds.append(perf_counter() - start)
    if run.error is not None:
        return {"reason": run.error}
    start = perf_counter()
    draw(run, trainer).savefig(BytesIO(), format="png", dpi=96)
    return {
        "network": "-".join(map(str, run.sizes)),
        "engine": run.history.plan.engine,
        "steps": sum(len(report.step_losses) for report in run.history),
        "first": seconds[0],
        "seconds": spread(seconds[1:]),
        "drawing": perf_counter() - start,
        "accuracy": run.accuracy,
    }


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "--device", default="auto", help="cpu or cuda (default: a GPU if there is one)"
    )
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeviceWarning)
        trainer = Trainer(device=arguments.device)
    trainer.train(DemoSettings())  # imports and opens what the first run needs
    rows = {}
    for name, settings in settings_of(trainer.choices).items():
        rows[name] = measure(trainer, settings)
        print(name, rows[name], flush=True)
    path = RESULTS / "notebook.json"
    devices = json.loads(path.read_text(encoding="utf-8"))["devices"] if path.exists() else {}
    part = {"environment": environment(), "data": trainer.dataset.name, "rows": rows}
    devices["cpu" if trainer.device == "cpu" else "gpu"] = part
    print(write_results("notebook", {"devices": devices}))


if __name__ == "__main__":
    run_command(main)
