"""Do all engines follow NumPy's loss curve where no cluster holds the network?

784-h-h-h-10 on MNIST at batch 32 for some hundred steps by SGD, h = 512 and 4096, from the same initial values over the
same batches: NumPy, then `layerwise` and `graph` on the GPU in float32, float16 and bfloat16. What an engine refuses is
told. Prints a table and writes results/engine_curves.json; with --draw it only makes docs/images/engine_curves.png.

    python benchmarks/engine_curves.py [--steps 400] [--draw]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from curves import compared, thinned
from harness import RESULTS, ROOT, write_results
from one_launch import mnist

WIDTHS = (512, 4096)
ENGINES = ("layerwise", "graph", "one_launch")
PRECISIONS = ("float32", "float16", "bfloat16")
BATCH, LR = 32, 0.05
PICTURE = ROOT / "docs" / "images" / "engine_curves.png"


def train(width: int, steps: int, device: str, engine: str, precision: str) -> dict[str, Any]:
    """Return the losses of all steps, or the reason why the engine does not run it."""
    import warpfit as wf
    from warpfit import nn, optim
    from warpfit.errors import WarpfitError

    wf.random.manual_seed(0)
    x, y = mnist("train")
    x, y = x[: steps * BATCH], y[: steps * BATCH]
    hidden = [layer for inputs in (784, width, width) for layer in (nn.Linear(inputs, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10))
    settings: dict[str, Any] = {"device": device, "engine": engine, "precision": precision}
    try:
        history = wf.fit(
            model,
            x,
            y,
            optimizer=optim.SGD(model.parameters(), lr=LR),
            batch_size=BATCH,
            epochs=1,
            verbose=False,
            **settings,
        )
    except WarpfitError as error:
        return {"reason": str(error)}
    return {"step_losses": history.step_losses.tolist()}


def runs_of(width: int, steps: int) -> dict[str, Any]:
    """Return all runs at a width, compared with NumPy's."""
    runs = {"NumPy": train(width, steps, "cpu", "layerwise", "float32")}
    for engine in ENGINES:
        for precision in PRECISIONS:
            runs[f"{engine} {precision}"] = train(width, steps, "cuda", engine, precision)
    ran = compared({name: run for name, run in runs.items() if "reason" not in run})
    for precision in PRECISIONS:
        pair = [runs[f"{engine} {precision}"].get("step_losses") for engine in ("layerwise", "graph")]
        runs[f"graph {precision}"]["has_bits_of_layerwise"] = pair[0] == pair[1]
    return {**runs, **thinned(ran)}


def print_results(widths: dict[str, Any]) -> None:
    for width, runs in widths.items():
        for name, run in runs.items():
            if "reason" in run:
                print(f"h = {width}, {name}: {run['reason']}")
                continue
            same = {True: ", layerwise's bits", False: ", not layerwise's bits"}
            print(
                f"h = {width}, {name}: from NumPy's curve at most {run['largest_difference']:.2g} "
                f"(means of 50 steps: {run['largest_difference_of_50_steps']:.2g})"
                f"{same.get(run.get('has_bits_of_layerwise', ''), '')}"
            )


def draw(widths: dict[str, Any]) -> None:
    """Write the picture of the curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (width, runs) in zip(figure.subplots(1, len(widths)), widths.items(), strict=True):
        for name, run in runs.items():
            if "reason" in run:
                continue
            steps = 25 * (1 + np.arange(len(run["losses_of_25_steps"])))
            is_graph = name.startswith("graph")
            style = {"linewidth": 5, "color": "0.8"} if name == "NumPy" else {"linewidth": 1.2}
            axes.plot(
                steps, run["losses_of_25_steps"], label=name, linestyle="--" if is_graph else "-", **style
            )
        axes.set(title=f"784-{width}-{width}-{width}-10, batch {BATCH}", xlabel="step")
        axes.set(ylabel="training loss, means of 25 steps", yscale="log")
        axes.legend()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--draw", action="store_true", help="only draw the picture from the results")
    arguments = parser.parse_args()
    if arguments.draw:
        results = json.loads((RESULTS / "engine_curves.json").read_text(encoding="utf-8"))
        draw(results["widths"])
        return
    widths = {str(width): runs_of(width, arguments.steps) for width in WIDTHS}
    print_results(widths)
    write_results("engine_curves", {"settings": {"batch": BATCH, "lr": LR}, "widths": widths})


if __name__ == "__main__":
    main()
