"""How long is a training step of PyTorch's MNIST example, on the GPU and on the CPU?

And of a residual network; how good is the example after some epochs, and how fast is each
convolution beside cuDNN's?

Two convolutions, a pool and two linear layers, with dropout and without, by SGD at batch 64 and
512: ours in float16 on the engine that `auto` chooses, PyTorch compiled in a CUDA graph, and
PyTorch eager, autocast to bfloat16. LeNet-5 likewise, and by the engine `graph`. Microseconds a
step are a whole epoch's wall time over its steps, as in one_launch.py; the programs take turns.
Then the test accuracy after each of some epochs with Adam at batch 64, ours and PyTorch eager. The
residual network (residual.py) trains by SGD with momentum on made-up images, convolutions.py
compares single convolutions.

Parts: `steps`, `lenet`, `residual`, `convolutions`, `accuracy`, and `cpu`, which needs no GPU.
Prints tables and writes results/cnn.json; other parts that the file holds stay, each with its own
environment.

    python benchmarks/cnn.py [--parts steps,residual] [--epochs 5]
"""

from __future__ import annotations

import argparse
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np

import convolutions
import residual
from harness import Options, environment, names, read_results, run_command, write_results
from layerwise import our_cnn
from one_launch import EPOCHS, Program, measured, mnist
from warpfit.backends.cuda.runtime import why_unavailable
from warpfit.errors import DeviceError

BATCHES = (64, 512)
LENET_BATCHES = (32, 64, 128, 256)
LENET_STEPS = 200
DROPOUTS = (0.5, 0.0)
STEPS = 100
CPU_STEPS = 5
LR = {"sgd": 0.01, "adam": 1e-3}
STEP_LABELS = {
    "warpfit float16": "warpfit, float16",
    "torch_graph float16": "PyTorch compile + CUDA graph, float16",
    "torch_eager bfloat16": "PyTorch eager, bfloat16",
}
LABELS = {
    **STEP_LABELS,
    "warpfit graph float16": "warpfit, engine graph, float16",
    "warpfit float32": "warpfit, float32",
    "torch_eager float32": "PyTorch eager, float32",
    "torch_eager_last float32": "PyTorch eager, channels last, float32",
}


class Ours:
    """Ours; a turn is a call of `fit`, whose first epoch does not count."""

    def __init__(
        self,
        model: Any,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        lr: float = LR["sgd"],
        momentum: float = 0.0,
        **settings: Any,
    ) -> None:
        self.model, self.x, self.y, self.batch_size = model, x, y, batch_size
        self.sgd = {"lr": lr, "momentum": momentum}
        self.settings = {"device": "cuda", "precision": "float16"} | settings
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

        optimizer = optim.SGD(self.model.parameters(), **self.sgd)
        history = wf.fit(
            self.model,
            self.x,
            self.y,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=self.batch_size,
            verbose=False,
            **self.settings,
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


def step_row(batch_size: int, dropout: float) -> dict[str, Any]:
    """Return microseconds a step of every program."""
    from peers import torch_cnn, torch_eager

    x, y = mnist("train")
    x, y = x[: STEPS * batch_size].reshape(-1, 28, 28), y[: STEPS * batch_size]
    theirs = {"batch_size": batch_size, "lr": LR["sgd"]}
    ours = Ours(our_cnn(dropout), x[..., None], y, batch_size)
    programs: dict[str, Program] = {
        "warpfit float16": ours,
        "torch_graph float16": Theirs(
            lambda: torch_cnn.Trainer(
                torch_eager.mnist_cnn(dropout), x[:, None], y, dtype="float16", **theirs
            )
        ),
        "torch_eager bfloat16": Theirs(
            lambda: torch_eager.Trainer(
                torch_eager.mnist_cnn(dropout), x[:, None], y, precision="bfloat16", **theirs
            )
        ),
    }
    cells = measured(programs, perf_counter() + 300)
    return {"programs": cells, "steps": len(x) // batch_size, "plan": ours.plan}


def our_lenet() -> Any:
    from warpfit import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2, seed=0), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5, seed=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120, seed=2), nn.ReLU(), nn.Linear(120, 84, seed=3), nn.ReLU()),
        nn.Linear(84, 10, seed=4),
    )


def their_lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, 10),
    )


def lenet_row(batch_size: int) -> dict[str, Any]:
    """Return microseconds a step of LeNet-5, ours on two engines and PyTorch's."""
    from peers import torch_cnn

    x, y = mnist("train")
    x, y = x[: LENET_STEPS * batch_size].reshape(-1, 28, 28), y[: LENET_STEPS * batch_size]
    ours = Ours(our_lenet(), x[..., None], y, batch_size)
    theirs = {"batch_size": batch_size, "lr": LR["sgd"], "dtype": "float16"}
    programs: dict[str, Program] = {
        "warpfit float16": ours,
        "warpfit graph float16": Ours(our_lenet(), x[..., None], y, batch_size, engine="graph"),
        "torch_graph float16": Theirs(
            lambda: torch_cnn.Trainer(their_lenet(), x[:, None], y, **theirs)
        ),
    }
    cells = measured(programs, perf_counter() + 300)
    return {"programs": cells, "steps": len(x) // batch_size, "plan": ours.plan}


def residual_row() -> dict[str, Any]:
    """Return microseconds a step of the residual network, ours and PyTorch's."""
    from peers import torch_cnn

    x, y = residual.made_up_images(residual.STEPS * residual.BATCH)
    ours = Ours(residual.our_resnet(), x, y, residual.BATCH, **residual.SGD)
    theirs = {"batch_size": residual.BATCH, "dtype": "float16", **residual.SGD}
    programs: dict[str, Program] = {
        "warpfit float16": ours,
        "torch_graph float16": Theirs(
            lambda: torch_cnn.Trainer(residual.their_resnet(), x.transpose(0, 3, 1, 2), y, **theirs)
        ),
    }
    cells = measured(programs, perf_counter() + 300)
    return {"programs": cells, "batch": residual.BATCH, "plan": ours.plan}


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


def told_steps(what: str, cells: dict[str, Any]) -> None:
    """Print the microseconds of every program."""
    for name, cell in cells.items():
        text = f"{cell['us']['median']:.1f} µs a step" if "us" in cell else cell["reason"]
        print(f"{what}, {LABELS[name]}: {text}", flush=True)


def part_steps(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = {}
    for dropout, batch_size in product(DROPOUTS, BATCHES):
        name = str(batch_size) if dropout else f"{batch_size}, without dropout"
        rows[name] = step_row(batch_size, dropout)
        told_steps(f"batch {name}", rows[name]["programs"])
    return {"rows": rows, "lr": LR}


def part_lenet(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = {}
    for batch_size in LENET_BATCHES:
        rows[str(batch_size)] = lenet_row(batch_size)
        told_steps(f"LeNet-5, batch {batch_size}", rows[str(batch_size)]["programs"])
    return {"lenet": rows}


def part_residual(arguments: argparse.Namespace) -> dict[str, Any]:
    row = residual_row()
    told_steps("residual network", row["programs"])
    return {"residual": row}


def part_convolutions(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"convolutions": convolutions.rows()}


def part_accuracy(arguments: argparse.Namespace) -> dict[str, Any]:
    found = accuracies(arguments.epochs)
    for name, values in found.items():
        print(f"test accuracy, {name}: {', '.join(f'{value:.4f}' for value in values)}")
    return {"accuracy": found}


def part_cpu(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the MNIST example's step without a GPU, on as many threads as there are cores."""
    import torch

    from peers import torch_eager

    def last() -> Any:
        return torch_eager.mnist_cnn().to(memory_format=torch.channels_last)

    rng, num_rows = np.random.default_rng(0), CPU_STEPS * BATCHES[0]
    x, y = rng.random((num_rows, 28, 28), np.float32), rng.integers(0, 10, num_rows)
    ours = Ours(our_cnn(), x[..., None], y, BATCHES[0], device="cpu", precision="float32")
    settings = {"batch_size": BATCHES[0], "lr": LR["sgd"], "device": "cpu"}
    programs: dict[str, Program] = {
        "warpfit float32": ours,
        "torch_eager float32": Theirs(
            lambda: torch_eager.Trainer(torch_eager.mnist_cnn(), x[:, None], y, **settings)
        ),
        "torch_eager_last float32": Theirs(
            lambda: torch_eager.Trainer(last(), x[:, None], y, **settings)
        ),
    }
    cells = measured(programs, perf_counter() + 300)
    told_steps("on the CPU, batch 64", cells)
    return {"cpu": {"programs": cells, "batch": BATCHES[0]}}


PARTS = {
    "steps": part_steps,
    "lenet": part_lenet,
    "residual": part_residual,
    "convolutions": part_convolutions,
    "accuracy": part_accuracy,
    "cpu": part_cpu,
}


def parts_of(given: list[str] | None) -> list[str]:
    """Return the parts that are measured: the given ones, or all that this machine can.

    Raises
    ------
    DeviceError
        If a given one needs a GPU, and there is none.
    """
    reason = why_unavailable()
    if given is None:
        return ["cpu"] if reason else list(PARTS)
    for name in given:
        if reason and name != "cpu":
            raise DeviceError(f"part {name!r} needs an NVIDIA GPU, only 'cpu' needs none: {reason}")
    return given


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--epochs", type=int, default=5, help="of the runs whose accuracy is told")
    arguments = parser.parse_args()
    for name in parts_of(arguments.parts):
        found = PARTS[name](arguments)
        old = read_results("cnn")
        of_old = dict.fromkeys(PARTS, old.pop("environment")) if old else {}
        environments = {**of_old, **old.get("environments", {}), name: environment()}
        write_results("cnn", {**old, **found, "environments": environments})


if __name__ == "__main__":
    run_command(main)
