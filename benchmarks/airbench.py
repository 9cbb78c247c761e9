"""How long is a step of airbench94, the network that learns CIFAR-10 in seconds?

The recipe of `warpfit train --recipe airbench`, 200 steps of batch 2,000 on made-up images, beside
the same training in PyTorch as its authors run it: half precision, channels last, compiled, after
a whole training to warm up, in each mode of `torch.compile` that is asked for, of which the
quickest counts. Microseconds a step are a whole epoch's wall time over its 25 steps, augmentation
included; the programs take turns of eight epochs. In the last five of them PyTorch's has no
gradient of the first layer, ours in none. Accuracies are not measured: the images are made up.

Prints a line for each and writes results/airbench.json.

    python benchmarks/airbench.py [--modes max-autotune,reduce-overhead] [--rows 50000] [--turns 3]
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import warpfit as wf
from cnn import Theirs
from harness import Options, names, run_command, write_results
from one_launch import Program, measured, summarised
from warpfit import backends
from warpfit.training import airbench

OURS = "warpfit float16"
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


class Peer(Theirs):
    """PyTorch's; a turn is a training, and so is what it starts with."""

    def start(self) -> tuple[float, float]:
        found = super().start()
        self.turn()
        return found

    def turn(self) -> list[float]:
        seconds = []
        for _ in range(airbench.EPOCHS):
            start = perf_counter()
            self.trainer.epoch()  # type: ignore[attr-defined]
            seconds.append(perf_counter() - start)
        return seconds[1:]  # the same epochs of both


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--modes", type=names(MODES), default=MODES[:2], help="of torch.compile")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=airbench.BATCH_SIZE)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ours-alone", action="store_true")
    asked = parser.parse_args()
    x, y = made_up(asked.rows)
    ours = Ours(x, y, asked.batch_size, backends.resolve_device(asked.device))
    programs: dict[str, Program] = {OURS: ours}
    if not asked.ours_alone:
        from peers import torch_airbench

        settings = {"batch_size": asked.batch_size, "epochs": airbench.EPOCHS}
        for mode in asked.modes:
            make = partial(torch_airbench.Trainer, x, y, **settings, mode=mode)
            programs[f"torch {mode}"] = Peer(make)
    row = summarised({"programs": measured(programs, perf_counter() + SECONDS, asked.turns)})
    print(ours.plan)
    for name, cell in row["programs"].items():
        told = "{median:,.0f} µs a step ({min:,.0f} to {max:,.0f})"
        print(f"{name}: {told.format(**cell['us']) if 'us' in cell else cell['reason']}")
    for ratio in row["ratio"].values():
        print(f"ours takes {1 / ratio:.2f} of {row['best_peer']}")
    write_results("airbench", row | {"plan": ours.plan})


if __name__ == "__main__":
    run_command(main)
