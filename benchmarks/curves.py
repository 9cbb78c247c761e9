"""Does training on a GPU follow NumPy's loss curve, and how good is the result?

The networks of `warpfit train` with their defaults, from the same initial values over the same
batches: the mlp on MNIST in full on both, the cnn for its first 200 steps on both and in full on
the GPU. Prints a table, writes results/curves.json.

    python benchmarks/curves.py [--cpu-steps 200]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from harness import Options, run_command, write_results

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def train(model: str, device: str, precision: str = "auto", **settings: Any) -> dict[str, Any]:
    """Return losses of all steps, test accuracy, and the seconds of all epochs' steps."""
    from warpfit.training.jobs import prepare
    from warpfit.training.settings import TrainSettings

    chosen = TrainSettings(
        data="mnist",
        model=model,
        device=device,
        engine="layerwise",
        precision=precision,
        **settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = prepare(chosen).run(Path(folder) / "run", verbose=False)
    history = outcome.history
    return {
        "step_losses": history.step_losses.tolist(),
        "test_accuracy": outcome.test.evaluation.accuracy if outcome.test else None,
        "train_seconds": sum(report.seconds for report in history.reports),
        "epochs": len(history),
        "precision": history.plan.precision,
    }


def compared(runs: dict[str, dict[str, Any]], steps: int | None = None) -> dict[str, Any]:
    """Add to each run how far its curve is from NumPy's, over the first steps or all."""
    reference = np.array(runs["NumPy"]["step_losses"][:steps])
    for run in runs.values():
        curve = np.array(run["step_losses"][: len(reference)])
        smooth = np.convolve(np.abs(curve - reference), np.ones(50) / 50, "valid")
        run["largest_difference"] = float(np.abs(curve - reference).max())
        run["largest_difference_of_50_steps"] = float(smooth.max())
    return runs


def mlp_runs() -> dict[str, Any]:
    runs = {"NumPy": train("mlp", "cpu")}
    runs |= {f"CUDA {precision}": train("mlp", "cuda", precision) for precision in PRECISIONS}
    return compared(runs)


def cnn_runs(cpu_steps: int) -> dict[str, Any]:
    limit = 64 * cpu_steps
    runs = {"NumPy": train("cnn", "cpu", limit=limit, epochs=1)}
    runs |= {
        f"CUDA {precision}": train("cnn", "cuda", precision, limit=limit, epochs=1)
        for precision in PRECISIONS
    }
    return compared(runs, cpu_steps)


def thinned(runs: dict[str, Any]) -> dict[str, Any]:
    """Replace the losses of single steps by means over 25 steps, to keep the file small."""
    for run in runs.values():
        losses = np.array(run.pop("step_losses"))
        losses = losses[: len(losses) // 25 * 25].reshape(-1, 25).mean(axis=1)
        run["losses_of_25_steps"] = [round(float(loss), 6) for loss in losses]
    return runs


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of the curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("mlp", "cnn"), strict=True):
        for label, run in results[name].items():
            steps = 25 * (1 + np.arange(len(run["losses_of_25_steps"])))
            style = {"linewidth": 4, "color": "0.75"} if label == "NumPy" else {"linewidth": 1}
            axes.plot(steps, run["losses_of_25_steps"], label=label, **style)
        axes.set(
            title=f"{name} on MNIST",
            xlabel="step",
            ylabel="training loss, means of 25 steps",
            yscale="log",
        )
        axes.legend()
    return figure


def print_results(results: dict[str, Any]) -> None:
    for name in ("mlp", "cnn"):
        for label, run in results[name].items():
            accuracy = f"{run['test_accuracy']:.4f}" if run["test_accuracy"] is not None else "-"
            print(
                f"{name} {label:14} accuracy {accuracy}, {run['train_seconds']:.2f} s, from "
                f"NumPy's curve at most {run['largest_difference']:.2g} (means of 50 steps: "
                f"{run['largest_difference_of_50_steps']:.2g})"
            )
    for label, run in results["cnn_whole"].items():
        print(
            f"cnn in full, {label}: accuracy {run['test_accuracy']:.4f}, "
            f"{run['train_seconds']:.2f} s"
        )


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--cpu-steps", type=int, default=200)
    arguments = parser.parse_args()
    whole = {precision: train("cnn", "cuda", precision) for precision in ("float32", "float16")}
    results = {
        "mlp": thinned(mlp_runs()),
        "cnn": thinned(cnn_runs(arguments.cpu_steps)),
        "cnn_whole": thinned(whole),
    }
    print_results(results)
    print(write_results("curves", results))


if __name__ == "__main__":
    run_command(main)
