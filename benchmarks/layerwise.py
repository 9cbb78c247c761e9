"""How long is a training step of the layerwise engine on a GPU, beside PyTorch eager and our own NumPy backend?

784-256-10 on MNIST over batch sizes, and the MNIST example's CNN; the programs take turns. Also the time from the
call of `fit` to the first trained step, in processes of their own, with an empty and with a warm kernel cache.
Prints tables and writes results/layerwise.json.

    python benchmarks/layerwise.py [--epochs 5] [--skip-cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from time import perf_counter
from typing import Any

import numpy as np

from harness import run_worker, spread, write_results

BATCHES = (1, 8, 32, 64, 128, 512)
SIZES = (784, 256, 10)
LR = 0.1
# Rows of an epoch: enough steps for a steady pace, and no more, at small batches.
MOST_STEPS = 1000
STARTS = 5


def fit_seconds(
    model: Any, x: Any, y: Any, *, device: str, precision: str, batch_size: int, epochs: int
) -> list[float]:
    """Return the wall time of each epoch's steps, from the engine's own reports."""
    import warpfit as wf
    from warpfit import optim

    optimizer = optim.SGD(model.parameters(), lr=LR)
    settings: dict[str, Any] = {"device": device, "precision": precision, "batch_size": batch_size}
    history = wf.fit(
        model, x, y, optimizer=optimizer, epochs=epochs, verbose=False, engine="layerwise", **settings
    )
    return [report.seconds for report in history.reports]


def our_mlp() -> Any:
    from warpfit import nn

    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def our_cnn() -> Any:
    from warpfit import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def step_us(seconds: list[float], steps: int) -> dict[str, float]:
    """Return microseconds a step, leaving out the first epoch, which warms up."""
    return spread([second / steps * 1e6 for second in seconds[1:]])


def mlp_row(x: Any, y: Any, batch_size: int, epochs: int, skip_cpu: bool) -> dict[str, Any]:
    from peers import torch_eager

    rows = min(len(x), MOST_STEPS * batch_size)
    x, y, steps = x[:rows], y[:rows], -(-rows // batch_size)
    ours: dict[str, list[float]] = {"float32": [], "tf32": [], "float16": []}
    for precision, seconds in ours.items():
        seconds += fit_seconds(
            our_mlp(), x, y, device="cuda", precision=precision, batch_size=batch_size, epochs=epochs
        )
    peer = torch_eager.epoch_seconds(
        torch_eager.mlp(SIZES), x, y, batch_size=batch_size, lr=LR, epochs=epochs
    )
    row: dict[str, Any] = {name: step_us(seconds, steps) for name, seconds in ours.items()}
    row["torch_eager"] = step_us(peer, steps)
    row["ratio"] = row["torch_eager"]["median"] / row["float32"]["median"]
    if not skip_cpu:
        numpy = fit_seconds(
            our_mlp(), x, y, device="cpu", precision="float32", batch_size=batch_size, epochs=3
        )
        row["numpy"] = step_us(numpy, steps)
    return row


def cnn_row(x: Any, y: Any, epochs: int) -> dict[str, Any]:
    from peers import torch_eager

    rows, batch_size = 64 * 300, 64
    images, y = np.ascontiguousarray(x[:rows].reshape(rows, 28, 28)), y[:rows]
    steps = rows // batch_size
    row: dict[str, Any] = {}
    for precision in ("float32", "tf32", "float16"):
        seconds = fit_seconds(
            our_cnn(),
            images[..., None],
            y,
            device="cuda",
            precision=precision,
            batch_size=batch_size,
            epochs=epochs,
        )
        row[precision] = step_us(seconds, steps)
    peer = torch_eager.epoch_seconds(
        torch_eager.mnist_cnn(), images[:, None], y, batch_size=batch_size, lr=LR, epochs=epochs
    )
    row["torch_eager"] = step_us(peer, steps)
    return row


def first_step(work_folder: str) -> None:
    """Print, as JSON, the seconds from the call of fit to its first trained step; for a process of its own."""
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
        callbacks=[Clock()],
        verbose=False,
    )
    print(json.dumps({"seconds": times[0] - start}))


def first_steps(x: Any, y: Any) -> dict[str, Any]:
    """Return the seconds to the first trained step with an empty kernel cache, and with a warm one."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x[:64])
        np.save(f"{folder}/y.npy", y[:64])
        cold, warm = [], []
        for idx in range(STARTS):
            os.environ["WARPFIT_CACHE_DIR"] = f"{folder}/cache{idx}"
            cold.append(run_worker(__file__, "--first-step", folder)["seconds"])
            warm.append(run_worker(__file__, "--first-step", folder)["seconds"])
    return {"empty_cache": spread(cold), "warm_cache": spread(warm)}


def print_results(results: dict[str, Any]) -> None:
    print(
        f"{'µs a step':>14} "
        + " ".join(f"{name:>12}" for name in ("float32", "tf32", "float16", "torch", "ratio", "NumPy"))
    )
    for batch, row in results["mlp"].items():
        values = [row[name]["median"] for name in ("float32", "tf32", "float16", "torch_eager")]
        numpy = f"{row['numpy']['median']:12.1f}" if "numpy" in row else ""
        print(
            f"{batch:>14} "
            + " ".join(f"{value:12.1f}" for value in values)
            + f" {row['ratio']:12.2f} {numpy}"
        )
    if "cnn" in results:
        print(
            "cnn, batch 64: "
            + ", ".join(f"{name} {row['median']:.1f}" for name, row in results["cnn"].items())
        )
    if "first_step" in results:
        print(
            "first step: "
            + ", ".join(f"{name} {row['median']:.3f} s" for name, row in results["first_step"].items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--skip-cpu", action="store_true")
    parser.add_argument("--parts", default="mlp,cnn,first_step")
    parser.add_argument("--first-step", metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.first_step:
        first_step(arguments.first_step)
        return
    from warpfit.data import load_dataset

    data = load_dataset("mnist", flat=True)
    x, y = np.ascontiguousarray(data.x_train).astype(np.float32) / 255, data.y_train.astype(np.int64)
    results: dict[str, Any] = {"sizes": SIZES, "epochs": arguments.epochs}
    parts = arguments.parts.split(",")
    if "mlp" in parts:
        results["mlp"] = {
            batch: mlp_row(x, y, int(batch), arguments.epochs, arguments.skip_cpu)
            for batch in arguments.batches.split(",")
        }
    if "cnn" in parts:
        results["cnn"] = cnn_row(x, y, arguments.epochs)
    if "first_step" in parts:
        results["first_step"] = first_steps(x, y)
    print_results(results)
    print(write_results("layerwise", results))


if __name__ == "__main__":
    sys.exit(main())
