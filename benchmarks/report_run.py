"""How does the run of a report do here: its own figures, NumPy on this machine, and the engines?

784-256-10 on MNIST, batch 64, ten epochs of SGD at rate 0.01, as a report on an MLP in CUDA trained
it on a CPU and on a Tesla T4. Its GPU run took the mean of a batch's gradients, its CPU run their
sum (docs/accuracy-gap.md), which is a mean with a rate 64 times as high; the last batch of an epoch
has 32 rows, and 32 times the rate. Both are trained here, from the same initial values over the
same batches, by NumPy and, where there is a GPU, by every engine.

Seconds of an epoch are the wall time of its steps, order, gathering and sums included, over all
epochs of all turns; kernels are compiled in a run before. Whole runs are calls of `fit`. Writes
results/report_run.json after every program.

    warpfit bench report-run [--epochs 10] [--turns 3]
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

from accuracy_gap import BATCH, EPOCHS, INITS, LR, SEED
from harness import Options, run_command, spread, write_results
from one_launch import mnist
from warpfit.backends.cuda.runtime import why_unavailable
from warpfit.errors import WarpfitError
from warpfit.optim.schedules import Progress, Schedule

# What the report prints (its section 2.5): times of ten epochs, and accuracies on the test set.
REPORT = {
    "the report's CPU": {
        "epoch_seconds": 29.86,
        "run_seconds": 298.62,
        "accuracy": 0.9793,
        "reduction": "sum",
    },
    "the report's Tesla T4": {
        "epoch_seconds": 0.225,
        "run_seconds": 2.25,
        "accuracy": 0.9386,
        "reduction": "mean",
    },
}
SIZES = (784, 256, 10)
LEAST_SPEED = 120  # over NumPy, hoped for
NUMPY = "NumPy float32"
# Device, engine and precision.
PROGRAMS = {
    NUMPY: ("cpu", "layerwise", "float32"),
    "one_launch float16": ("cuda", "one_launch", "float16"),
    "one_launch bfloat16": ("cuda", "one_launch", "bfloat16"),
    "one_launch float32": ("cuda", "one_launch", "float32"),
    "graph float16": ("cuda", "graph", "float16"),
    "graph float32": ("cuda", "graph", "float32"),
    "layerwise float32": ("cuda", "layerwise", "float32"),
}
REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class SumOverBatch(Schedule):
    """The rate at which a mean over the batch does what `lr` does with a sum: `lr` times the rows
    of a batch.
    """

    name: ClassVar[str] = ""
    lr: float
    batch: int
    last_batch: int

    def rate(self, progress: Progress) -> float:
        is_last = (progress.step + 1) % progress.steps_per_epoch == 0
        return self.lr * (self.last_batch if is_last else self.batch)

    @property
    def largest(self) -> float:
        return self.lr * self.batch


def rate_of(reduction: str, num_rows: int) -> float | SumOverBatch:
    if reduction == "mean":
        return LR
    return SumOverBatch(LR, BATCH, num_rows % BATCH or BATCH)


def initial_model() -> Any:
    """Return the network with the initial values of accuracy_gap.py."""
    import warpfit as wf
    from warpfit.nn import Linear, ReLU, Sequential

    wf.manual_seed(SEED)
    inputs, hidden, outputs = SIZES
    return Sequential(
        Linear(inputs, hidden, init=INITS[0]), ReLU(), Linear(hidden, outputs, init=INITS[0])
    )


def fitted(
    program: str, reduction: str, epochs: int, rows: tuple[Any, Any]
) -> tuple[Any, Any, float]:
    """Return a trained model, its history, and the wall time of the call of `fit`."""
    import warpfit as wf
    from warpfit import optim

    device, engine, precision = PROGRAMS[program]
    model = initial_model()
    optimizer = optim.SGD(model.parameters(), rate_of(reduction, len(rows[0])))
    settings: dict[str, Any] = {
        "device": device,
        "engine": engine,
        "precision": precision,
        "seed": SEED,
    }
    start = perf_counter()
    history = wf.fit(
        model,
        *rows,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=BATCH,
        verbose=False,
        **settings,
    )
    return model, history, perf_counter() - start


def measured(
    program: str, reduction: str, epochs: int, turns: int, data: dict[str, Any]
) -> dict[str, Any]:
    """Return seconds, losses and accuracy of a program, or the reason why there are none."""
    import warpfit as wf

    is_numpy = program == NUMPY
    epoch_seconds: list[float] = []
    run_seconds: list[float] = []
    try:
        if not is_numpy:
            fitted(program, reduction, 1, data["train"])
        for _ in range(1 if is_numpy else turns):
            model, history, seconds = fitted(program, reduction, epochs, data["train"])
            run_seconds.append(seconds)
            epoch_seconds += history["seconds"]
    except WarpfitError as error:
        return {"reason": str(error)}
    return {
        "epoch_seconds": spread(epoch_seconds),
        "run_seconds": spread(run_seconds),
        "losses": history["loss"],
        "accuracy": wf.evaluate(model, *data["test"]).accuracy,
    }


def speed_over_numpy(rows: dict[str, Any], name: str) -> float | None:
    """Return NumPy's time of an epoch over a program's, both of the mean; None where one is
    missing.
    """
    ours, numpy = (rows.get(key, {}).get("mean", {}).get("epoch_seconds") for key in (name, NUMPY))
    return None if ours is None or numpy is None else numpy["median"] / ours["median"]


def print_program(name: str, rows: dict[str, Any]) -> None:
    for reduction, run in rows[name].items():
        if "reason" in run:
            print(f"{name}, {reduction}: {run['reason']}", flush=True)
            continue
        seconds, speed = run["epoch_seconds"], speed_over_numpy(rows, name)
        over = "" if speed is None or reduction != "mean" else f", {speed:.1f} times NumPy's speed"
        print(
            f"{name:20} {reduction:4} {seconds['median'] * 1e3:9.2f} ms an epoch "
            f"({seconds['min'] * 1e3:.2f} to "
            f"{seconds['max'] * 1e3:.2f}), run {run['run_seconds']['median']:.3f} s, loss "
            f"{run['losses'][-1]:.4f}, {run['accuracy']:.2%} of the test set{over}",
            flush=True,
        )


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of seconds an epoch."""
    from matplotlib.figure import Figure

    bars = {name: run["epoch_seconds"] for name, run in results["report"].items()}
    for name, runs in results["rows"].items():
        if "epoch_seconds" in runs["mean"]:
            bars[name] = runs["mean"]["epoch_seconds"]["median"]
    figure = Figure(figsize=(8, 0.45 * len(bars) + 1.2), layout="constrained")
    axes = figure.subplots()
    colors = ["0.7" if name in results["report"] else "tab:blue" for name in bars]
    drawn = axes.barh(list(bars), list(bars.values()), color=colors)
    axes.bar_label(drawn, [_in_words(seconds) for seconds in bars.values()], padding=3)
    axes.invert_yaxis()
    axes.set(
        xscale="log",
        xlabel="seconds an epoch",
        xlim=(min(bars.values()) / 3, 10 * max(bars.values())),
    )
    env = results["environment"]
    axes.set_title(f"784-256-10 on MNIST, batch 64; warpfit on {env.get('gpu', env['cpu'])}")
    return figure


def _in_words(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"


def main() -> None:
    parser = Options(__doc__, prog="warpfit bench report-run")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument(
        "--turns", type=int, default=3, help="runs of each engine on the GPU; NumPy has one"
    )
    parser.add_argument("--limit", type=int, default=None, help="train on the first rows only")
    arguments = parser.parse_args()
    x, y = mnist("train")
    data = {"train": (x[: arguments.limit], y[: arguments.limit]), "test": mnist("test")}
    why_no_gpu = why_unavailable()
    if why_no_gpu is not None:
        print(f"CPU only: {why_no_gpu}")
    settings = {
        "network": "784-256-10",
        "batch_size": BATCH,
        "lr": LR,
        "epochs": arguments.epochs,
        "seed": SEED,
    }
    settings |= {"init": INITS[0], "rows": len(data["train"][0]), "turns": arguments.turns}
    rows: dict[str, Any] = {}
    for name in PROGRAMS if why_no_gpu is None else (NUMPY,):
        rows[name] = {
            reduction: measured(name, reduction, arguments.epochs, arguments.turns, data)
            for reduction in REDUCTIONS
        }
        print_program(name, rows)
        path = write_results("report_run", {"settings": settings, "report": REPORT, "rows": rows})
    print(f"written to {path}")


if __name__ == "__main__":
    run_command(main)
