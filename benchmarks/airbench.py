"""How long is a step of airbench94, the network that learns CIFAR-10 in seconds?

The recipe of `warpfit train --recipe airbench`, 200 steps of batch 2,000 on made-up images, beside
the same training in PyTorch as its authors run it: half precision, channels last, compiled.
Microseconds a step are a whole epoch's wall time over its 25 steps, augmentation included; the
programs take turns. Accuracies are not measured: the images are made up.

Prints a line for each and writes results/airbench.json.

    python benchmarks/airbench.py [--mode max-autotune] [--rows 50000] [--turns 3]
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np

import warpfit as wf
from cnn import Theirs
from harness import run_command, write_results
from one_launch import Program, measured
from warpfit import backends
from warpfit.training import airbench

LABELS = {"warpfit float16": "warpfit, float16", "torch float16": "PyTorch compile, float16"}
MODES = ("max-autotune", "reduce-overhead", "default")
SECONDS = 900


def made_up(count: int) -> tuple[Any, Any]:
    """Return images (N, 32, 32, 3) uint8 and labels (N,) int64 of ten classes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, rng.integers(0, 10, count)


class Ours:
    """Ours; a turn is a call of `fit` for all epochs, whose first one does not count."""

    def __init__(self, x: Any, y: Any, batch_size: int, device: str) -> None:
        self.x, self.y, self.batch_size, self.device = x, y, batch_size, device
        self.steps = -(-len(x) // batch_size)
        self.model = airbench.network(3, 10, self.steps)
        airbench.whiten(self.model, x[: airbench.MOST_WHITENED] / np.float32(255))
        ops = backends.get(device)
        self.rows = ops.asarray(x), ops.asarray(y)
        self.plan = ""

    def start(self) -> tuple[float, float]:
        start = perf_counter()
        (report,) = self._fit(1)
        return perf_counter() - start, report.loss

    def turn(self) -> list[float]:
        return [report.seconds for report in self._fit(airbench.EPOCHS)[1:]]

    def _fit(self, epochs: int) -> list[Any]:
        optimizer = airbench.optimizer_of(self.model, self.batch_size)
        history = wf.fit(
            self.model,
            *self.rows,
            loss=airbench.LOSS,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=self.batch_size,
            device=self.device,
            verbose=False,
        )
        self.plan = f"{history.plan.engine}, {history.plan.precision}: {history.plan.reason}"
        return list(history.reports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="of torch.compile")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=airbench.BATCH_SIZE)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ours-alone", action="store_true")
    asked = parser.parse_args()
    x, y = made_up(asked.rows)
    ours = Ours(x, y, asked.batch_size, backends.resolve_device(asked.device))
    programs: dict[str, Program] = {"warpfit float16": ours}
    if not asked.ours_alone:
        from peers import torch_airbench

        programs["torch float16"] = Theirs(
            lambda: torch_airbench.Trainer(
                x, y, batch_size=asked.batch_size, epochs=airbench.EPOCHS, mode=asked.mode
            )
        )
    cells = measured(programs, perf_counter() + SECONDS, asked.turns)
    print(ours.plan)
    for name, cell in cells.items():
        text = f"{cell['us']['median']:,.0f} µs a step" if "us" in cell else cell["reason"]
        print(f"{LABELS[name]}: {text}", flush=True)
    write_results("airbench", {"programs": cells, "mode": asked.mode, "plan": ours.plan})


if __name__ == "__main__":
    run_command(main)
