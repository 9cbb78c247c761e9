"""How long is a training step of the layerwise engine on a GPU, beside PyTorch eager and our own
NumPy backend?

784-256-10 on MNIST over batch sizes, and the MNIST example's CNN; the programs take turns. Also the
time from the call of `fit` to the first trained step, in processes of their own, with an empty and
with a warm kernel cache. Prints tables and writes results/layerwise.json.

    python benchmarks/layerwise.py [--epochs 5] [--skip-cpu]
"""

from __future__ import annotations

import json
import os
import tempfile
from time import perf_counter
from typing import Any

import numpy as np

from harness import (
    Options,
    caches_in,
    names,
    run_command,
    run_worker,
    spread,
    whole_numbers,
    write_results,
)

BATCHES = (1, 8, 32, 64, 128, 512)
PARTS = ("mlp", "cnn", "first_step")
SIZES = (784, 256, 10)
LR = 0.1
# Rows of an epoch: enough steps for a steady pace, and no more, at small batches.
MOST_STEPS = 600
STARTS = 5
TURNS = 3
PRECISIONS = ("float32", "tf32", "float16")


def fit_seconds(
    model: Any, x: Any, y: Any, *, device: str, precision: str, batch_size: int, epochs: int
) -> list[float]:
    """Return the wall time of each epoch's steps, from the engine's own reports."""
    import warpfit as wf
    from warpfit import optim

    optimizer = optim.SGD(model.parameters(), lr=LR)
    settings: dict[str, Any] = {"device": device, "precision": precision, "batch_size": batch_size}
    history = wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        epochs=epochs,
        verbose=False,
        engine="layerwise",
        **settings,
    )
    return [report.seconds for report in history.reports]


def our_mlp() -> Any:
    from warpfit import nn

    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def our_cnn(dropout: float = 0.5) -> Any:
    """Return the network of ``warpfit train --model cnn``, which is PyTorch's MNIST example's."""
    from warpfit.training.recipes import make_model
    from warpfit.training.settings import TrainSettings

    return make_model(TrainSettings(model="cnn", hidden=(128,), dropout=dropout), (28, 28, 1), 10)


def step_us(seconds: list[float], steps: int) -> dict[str, float]:
    """Return microseconds a step."""
    return spread([second / steps * 1e6 for second in seconds])


def mlp_row(x: Any, y: Any, batch_size: int, epochs: int, skip_cpu: bool) -> dict[str, Any]:
    """Return microseconds a step of every program; they take turns, and the ratio is that of each
    turn.
    """
    from peers import torch_eager

    rows = min(len(x), MOST_STEPS * batch_size)
    x, y, steps = x[:rows], y[:rows], -(-rows // batch_size)
    times: dict[str, list[float]] = {name: [] for name in (*PRECISIONS, "torch_eager")}
    for _ in range(TURNS):
        for precision in PRECISIONS:
            times[precision] += fit_seconds(
                our_mlp(),
                x,
                y,
                device="cuda",
                precision=precision,
                batch_size=batch_size,
                epochs=epochs,
            )[1:]
        times["torch_eager"] += torch_eager.epoch_seconds(
            torch_eager.mlp(SIZES), x, y, batch_size=batch_size, lr=LR, epochs=epochs
        )[1:]
    if not skip_cpu:
        times["numpy"] = fit_seconds(
            our_mlp(), x, y, device="cpu", precision="float32", batch_size=batch_size, epochs=3
        )[1:]
    row: dict[str, Any] = {name: step_us(seconds, steps) for name, seconds in times.items()}
    row["ratio"] = row["torch_eager"]["median"] / row["float32"]["median"]
    row["steps_of_60000"] = -(-60_000 // batch_size)
    return row


def cnn_row(x: Any, y: Any, epochs: int) -> dict[str, Any]:
    from peers import torch_eager

    rows, batch_size = 64 * 300, 64
    images, y = np.ascontiguousarray(x[:rows].reshape(rows, 28, 28)), y[:rows]
    times: dict[str, list[float]] = {name: [] for name in (*PRECISIONS, "torch_eager")}
    for _ in range(TURNS):
        for precision in PRECISIONS:
            settings: dict[str, Any] = {
                "precision": precision,
                "batch_size": batch_size,
                "epochs": epochs,
            }
            times[precision] += fit_seconds(
                our_cnn(), images[..., None], y, device="cuda", **settings
            )[1:]
        times["torch_eager"] += torch_eager.epoch_seconds(
            torch_eager.mnist_cnn(), images[:, None], y, batch_size=batch_size, lr=LR, epochs=epochs
        )[1:]
    return {name: step_us(seconds, rows // batch_size) for name, seconds in times.items()}


def first_step(work_folder: str) -> None:
    """Print, as JSON, the seconds from the call of fit to its first trained step; for a process of
    its own.
    """
    import warpfit as wf
    from warpfit import optim
    from warpfit.training.callbacks import Callback

    x, y = np.load(f"{work_folder}/x.npy"), np.load(f"{work_folder}/y.npy")
    model = our_mlp()
    times: list[float] = []

    class Clock(Callback):
        def on_epoch_end(self, run: Any) -> None:
            times.append(perf_counter())

    start = perf_counter()
    # One step is one epoch here: its report waits until the device has trained it.
    optimizer = optim.SGD(model.parameters(), lr=LR)
    wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        epochs=1,
        batch_size=len(x),
        device="cuda",
        engine="layerwise",
        callbacks=[Clock()],
        verbose=False,
    )
    print(json.dumps({"seconds": times[0] - start}))


def first_steps(x: Any, y: Any) -> dict[str, Any]:
    """Return the seconds to the first trained step with an empty kernel cache, and with a warm
    one.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x[:64])
        np.save(f"{folder}/y.npy", y[:64])
        cold, warm = [], []
        for idx in range(STARTS):
            os.environ |= caches_in(f"{folder}/{idx}")
            cold.append(run_worker(__file__, "--first-step", folder)["seconds"])
            warm.append(run_worker(__file__, "--first-step", folder)["seconds"])
    return {"empty_cache": spread(cold), "warm_cache": spread(warm)}


def print_results(results: dict[str, Any]) -> None:
    columns = (*PRECISIONS, "torch_eager", "numpy")
    print(f"{'µs a step':>14} " + " ".join(f"{name:>12}" for name in columns) + "        ratio")
    for batch, row in results.get("mlp", {}).items():
        cells = [f"{row[name]['median']:12.1f}" if name in row else " " * 12 for name in columns]
        print(f"{batch:>14} " + " ".join(cells) + f" {row['ratio']:12.2f}")
    for name in ("cnn", "first_step"):
        if name in results:
            print(
                f"{name}: "
                + ", ".join(f"{key} {row['median']:.3f}" for key, row in results[name].items())
            )


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of microseconds a step over the batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    batches = list(results["mlp"])
    labels = {name: f"warpfit, {name}" for name in PRECISIONS} | {
        "torch_eager": "PyTorch eager",
        "numpy": "NumPy",
    }
    for name, label in labels.items():
        rows = [results["mlp"][batch].get(name) for batch in batches]
        if all(rows):
            axes.plot(batches, [row["median"] for row in rows], marker="o", label=label)
    axes.set(
        xlabel="batch",
        ylabel="µs a step",
        yscale="log",
        title=f"784-256-10, {results['environment']['gpu']}",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batches", type=whole_numbers, default=list(BATCHES))
    parser.add_argument("--skip-cpu", action="store_true")
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument("--first-step", metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.first_step:
        first_step(arguments.first_step)
        return
    from warpfit.data import load_dataset

    data = load_dataset("mnist", flat=True)
    x, y = np.ascontiguousarray(data.x_train, np.float32), data.y_train.astype(np.int64)
    results: dict[str, Any] = {"sizes": SIZES, "epochs": arguments.epochs}
    if "mlp" in arguments.parts:
        results["mlp"] = {
            str(batch): mlp_row(x, y, batch, arguments.epochs, arguments.skip_cpu)
            for batch in arguments.batches
        }
    if "cnn" in arguments.parts:
        results["cnn"] = cnn_row(x, y, arguments.epochs)
    if "first_step" in arguments.parts:
        results["first_step"] = first_steps(x, y)
    print_results(results)
    print(write_results("layerwise", results))


if __name__ == "__main__":
    run_command(main)
