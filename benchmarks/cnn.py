"""How long is a training step of PyTorch's MNIST example, and how good is the network after some
epochs?

Two convolutions, a pool and two linear layers, with dropout, by SGD at batch 64 and 512: ours in
float16 on the engine that `auto` chooses, PyTorch compiled in a CUDA graph, and PyTorch eager,
autocast to bfloat16. Microseconds a step are a whole epoch's wall time over its steps, as in
one_launch.py; the programs take turns. Then the test accuracy after each of some epochs with Adam
at batch 64, ours and PyTorch eager.

Prints tables and writes results/cnn.json.

    python benchmarks/cnn.py [--epochs 5]
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np

from harness import run_command, write_results
from layerwise import our_cnn
from one_launch import EPOCHS, Program, measured, mnist

BATCHES = (64, 512)
STEPS = 100
LR = {"sgd": 0.01, "adam": 1e-3}
LABELS = {
    "warpfit float16": "warpfit, float16",
    "torch_graph float16": "PyTorch compile + CUDA graph, float16",
    "torch_eager bfloat16": "PyTorch eager, bfloat16",
}


class Ours:
    """Ours; a turn is a call of `fit`, whose first epoch does not count."""

    def __init__(self, x: Any, y: Any, batch_size: int) -> None:
        self.model, self.x, self.y, self.batch_size = our_cnn(), x[..., None], y, batch_size
        self.plan = ""

    @property
    def steps(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def start(self) -> tuple[float, float]:
        start = perf_counter()
        (report,) = self._fit(1)
        return perf_counter() - start, report.loss

    def turn(self) -> list[float]:
        return [report.seconds for report in self._fit(1 + EPOCHS)[1:]]

    def _fit(self, epochs: int) -> list[Any]:
        import warpfit as wf
        from warpfit import optim

        optimizer = optim.SGD(self.model.parameters(), lr=LR["sgd"])
        settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "device": "cuda",
            "precision": "float16",
        }
        history = wf.fit(
            self.model,
            self.x,
            self.y,
            optimizer=optimizer,
            epochs=epochs,
            verbose=False,
            **settings,
        )
        self.plan = history.plan.reason
        return list(history.reports)


class Theirs:
    """A program of `peers`."""

    def __init__(self, make: Any) -> None:
        self.make, self.trainer = make, None

    @property
    def steps(self) -> int:
        return int(self.trainer.steps)  # type: ignore[attr-defined]

    def start(self) -> tuple[float, float]:
        start = perf_counter()
        self.trainer = self.make()
        loss, _ = self.trainer.epoch()
        return perf_counter() - start, loss

    def turn(self) -> list[float]:
        seconds = []
        for _ in range(EPOCHS):
            start = perf_counter()
            self.trainer.epoch()  # type: ignore[attr-defined]
            seconds.append(perf_counter() - start)
        return seconds


def step_row(batch_size: int) -> dict[str, Any]:
    """Return microseconds a step of every program."""
    from peers import torch_cnn, torch_eager

    x, y = mnist("train")
    x, y = x[: STEPS * batch_size].reshape(-1, 28, 28), y[: STEPS * batch_size]
    theirs = {"batch_size": batch_size, "lr": LR["sgd"]}
    ours = Ours(x, y, batch_size)
    programs: dict[str, Program] = {
        "warpfit float16": ours,
        "torch_graph float16": Theirs(
            lambda: torch_cnn.Trainer(x[:, None], y, dtype="float16", **theirs)
        ),
        "torch_eager bfloat16": Theirs(
            lambda: torch_eager.Trainer(
                torch_eager.mnist_cnn(), x[:, None], y, precision="bfloat16", **theirs
            )
        ),
    }
    cells = measured(programs, perf_counter() + 300)
    return {"programs": cells, "steps": len(x) // batch_size, "plan": ours.plan}


def accuracies(epochs: int) -> dict[str, list[float]]:
    """Return the test accuracy after each epoch, by program."""
    import torch

    import warpfit as wf
    from peers import torch_eager
    from warpfit import optim

    (x, y), (x_test, y_test) = mnist("train"), mnist("test")
    images, test = x.reshape(-1, 28, 28), x_test.reshape(-1, 28, 28)
    model, ours = our_cnn(), []
    optimizer = optim.Adam(model.parameters(), lr=LR["adam"])
    for epoch in range(epochs):
        wf.fit(
            model,
            images[..., None],
            y,
            optimizer=optimizer,
            epochs=1,
            batch_size=64,
            seed=epoch,
            device="cuda",
            precision="float16",
            verbose=False,
        )
        ours.append(float(wf.evaluate(model, test[..., None], y_test).accuracy))
    trainer = torch_eager.Trainer(
        torch_eager.mnist_cnn(), images[:, None], y, batch_size=64, lr=LR["adam"], optimizer="adam"
    )
    theirs = []
    for _ in range(epochs):
        trainer.epoch()
        trainer.model.eval()
        with torch.no_grad():
            found = trainer.model(
                torch.from_numpy(np.ascontiguousarray(test[:, None])).cuda()
            ).argmax(1)
        theirs.append(float((found.cpu().numpy() == y_test).mean()))
        trainer.model.train()
    return {"warpfit float16": ours, "torch_eager float32": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="of the runs whose accuracy is told")
    arguments = parser.parse_args()
    rows = {}
    for batch_size in BATCHES:
        rows[str(batch_size)] = step_row(batch_size)
        for name, cell in rows[str(batch_size)]["programs"].items():
            text = f"{cell['us']['median']:.1f} µs a step" if "us" in cell else cell["reason"]
            print(f"batch {batch_size}, {LABELS[name]}: {text}", flush=True)
    found = accuracies(arguments.epochs)
    for name, values in found.items():
        print(f"test accuracy, {name}: {', '.join(f'{value:.4f}' for value in values)}")
    write_results("cnn", {"rows": rows, "accuracy": found, "lr": LR})


if __name__ == "__main__":
    run_command(main)
