"""Do all engines, in every precision, follow PyTorch's loss curve, step by step?

Networks on MNIST for some hundred steps by SGD, from the same initial values over the same batches:
PyTorch eager in float32, which is the reference, and in the other precisions that it has; NumPy;
and `layerwise`, `graph` and `one_launch` on the GPU in every precision. What does not run is told,
with the reason. Without a GPU the programs of the CPU run; without PyTorch the reference is NumPy.
Prints a table and the largest difference, and writes results/engine_curves.json after every
network.

    warpfit bench engine-curves [--networks 784-256-10,784-512-512-512-10] [--steps 400]
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from harness import Options, names, run_command, write_results
from one_launch import mnist, reason
from warpfit.errors import WarpfitError

ENGINES = ("layerwise", "graph", "one_launch")
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
PEER_PRECISIONS = ("float32", "tf32", "bfloat16")
NUMPY, PEER = "NumPy float32", "PyTorch float32"
SEED = 0
SMOOTHED = 50  # steps


@dataclass(frozen=True)
class Network:
    """What is trained: sizes, batch and rate; and of how many steps a loss in the file is the
    mean.
    """

    sizes: tuple[int, ...]
    batch: int
    lr: float
    steps_of_a_loss: int = 1

    @property
    def name(self) -> str:
        return "-".join(map(str, self.sizes))


NETWORKS = {
    network.name: network
    for network in (
        Network((784, 256, 10), 64, 0.1),
        Network((784, 512, 512, 512, 10), 32, 0.05, steps_of_a_loss=25),
        Network((784, 4096, 4096, 4096, 10), 32, 0.05, steps_of_a_loss=25),
    )
}


def rows_of(network: Network, steps: int) -> tuple[Any, Any]:
    x, y = mnist("train")
    return x[: steps * network.batch], y[: steps * network.batch]


def initial_model(network: Network) -> Any:
    """Return our network, which has the same initial values every time."""
    import warpfit as wf
    from warpfit import nn

    wf.manual_seed(SEED)
    layers: list[Any] = []
    for inputs, outputs in pairwise(network.sizes):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def our_losses(
    network: Network, steps: int, device: str, engine: str, precision: str
) -> list[float]:
    """Return the losses of all steps of one epoch."""
    import warpfit as wf
    from warpfit import optim

    model = initial_model(network)
    x, y = rows_of(network, steps)
    optimizer = optim.SGD(model.parameters(), lr=network.lr)
    settings: dict[str, Any] = {
        "device": device,
        "engine": engine,
        "precision": precision,
        "seed": SEED,
    }
    history = wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        batch_size=network.batch,
        epochs=1,
        verbose=False,
        **settings,
    )
    losses: list[float] = history.step_losses.tolist()
    return losses


def peer_losses(network: Network, steps: int, device: str, precision: str) -> list[float]:
    """Return PyTorch's, eager, from our initial values over our batches."""
    from peers import torch_eager
    from warpfit.data.order import epoch_order

    x, y = rows_of(network, steps)
    model = torch_eager.mlp(network.sizes)
    torch_eager.take_over(model, list(initial_model(network).state_dict().values()))
    settings: dict[str, Any] = {"batch_size": network.batch, "lr": network.lr}
    trainer = torch_eager.Trainer(model, x, y, precision=precision, device=device, **settings)
    losses: list[float] = trainer.step_losses(epoch_order(len(x), SEED, 0))
    return losses


def attempted(losses_of: Any, *what: Any) -> dict[str, Any]:
    """Return the losses of all steps, or the reason why there are none."""
    try:
        return {"losses": losses_of(*what)}
    except (WarpfitError, ImportError) as error:
        return {"reason": str(error) if isinstance(error, WarpfitError) else reason(error)}


def runs_of(network: Network, steps: int, has_gpu: bool) -> dict[str, Any]:
    """Return all runs of a network, the possible references first."""
    runs = {}
    if find_spec("torch") is None:
        runs[PEER] = {"reason": "PyTorch is not installed"}
    else:
        for precision in PEER_PRECISIONS if has_gpu else ("float32",):
            device = "cuda" if has_gpu else "cpu"
            runs[f"PyTorch {precision}"] = attempted(peer_losses, network, steps, device, precision)
    runs[NUMPY] = attempted(our_losses, network, steps, "cpu", "layerwise", "float32")
    for engine in ENGINES if has_gpu else ():
        for precision in PRECISIONS:
            runs[f"{engine} {precision}"] = attempted(
                our_losses, network, steps, "cuda", engine, precision
            )
    return runs


def compared(runs: dict[str, Any]) -> dict[str, Any]:
    """Return the runs with how far their curves are from the reference's, and its name."""
    reference = next(name for name in (PEER, NUMPY) if "losses" in runs[name])
    right = np.array(runs[reference]["losses"])
    for name, run in runs.items():
        if "losses" not in run:
            continue
        far = np.abs(np.array(run["losses"]) - right)
        window = min(SMOOTHED, len(far))
        run["largest_difference"] = float(far.max())
        smooth = np.convolve(far, np.ones(window) / window, "valid")
        run["largest_difference_of_50_steps"] = float(smooth.max())
        engine, _, precision = name.partition(" ")
        if engine == "graph":
            run["has_bits_of_layerwise"] = run["losses"] == runs[f"layerwise {precision}"].get(
                "losses"
            )
    return {"reference": reference, "runs": runs}


def thinned(runs: dict[str, Any], steps_of_a_loss: int) -> dict[str, Any]:
    """Return the runs with the means of so many losses each, of seven digits after the point."""

    def means(losses: list[float]) -> list[float]:
        whole = len(losses) // steps_of_a_loss * steps_of_a_loss
        return [
            round(float(loss), 7)
            for loss in np.reshape(losses[:whole], (-1, steps_of_a_loss)).mean(axis=1)
        ]

    return {
        name: {**run, "losses": means(run["losses"])} if "losses" in run else run
        for name, run in runs.items()
    }


def largest_difference(results: dict[str, Any]) -> tuple[float, str, str]:
    """Return the largest difference of a step's loss among our runs, with the run and the
    network.
    """
    return max(
        (run["largest_difference"], name, network)
        for network, found in results["networks"].items()
        for name, run in found["runs"].items()
        if "largest_difference" in run and not name.startswith("PyTorch")
    )


def print_network(name: str, found: dict[str, Any]) -> None:
    print(
        f"{name}, batch {found['batch']}, lr {found['lr']}; distances from {found['reference']}'s "
        "losses"
    )
    for label, run in found["runs"].items():
        if "reason" in run:
            print(f"    {label:20} {run['reason']}")
            continue
        same = {True: ", layerwise's bits", False: ", not layerwise's bits"}
        bits = same.get(run.get("has_bits_of_layerwise", ""), "")
        print(
            f"    {label:20} at most {run['largest_difference']:.2g} (means of {SMOOTHED} steps: "
            f"{run['largest_difference_of_50_steps']:.2g}){bits}",
            flush=True,
        )


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of the curves, and of their distances from the reference's, a column for
    each network.
    """
    from matplotlib.figure import Figure

    networks = results["networks"]
    figure = Figure(figsize=(5.5 * len(networks), 6.5), layout="constrained")
    above, below = figure.subplots(
        2, len(networks), squeeze=False, sharex="col", height_ratios=(3, 2)
    )
    for curves, distances, (name, found) in zip(above, below, networks.items(), strict=False):
        draw_network(curves, distances, name, found)
    return figure


def draw_network(curves: Any, distances: Any, name: str, found: dict[str, Any]) -> None:
    runs = {label: run for label, run in found["runs"].items() if "losses" in run}
    reference = np.array(runs[found["reference"]]["losses"])
    between = found.get("steps_of_a_loss", 1)
    for label, run in runs.items():
        losses = np.array(run["losses"])
        steps = between * (1 + np.arange(len(losses)))
        if label == found["reference"]:
            curves.plot(steps, losses, label=label, linewidth=4, color="0.8", zorder=0)
            continue
        style: dict[str, Any] = {
            "linewidth": 0.9,
            "color": _color(label),
            "linestyle": _line(label),
        }
        curves.plot(steps, losses, label=label, **style)
        distances.plot(steps, np.maximum(np.abs(losses - reference), 1e-7), **style)
    every = "" if between == 1 else f", means of {between} steps"
    curves.set(
        title=f"{name}, batch {found['batch']}", ylabel=f"training loss{every}", yscale="log"
    )
    distances.set(xlabel="step", ylabel=f"distance from {found['reference']}", yscale="log")
    curves.legend(fontsize=7, ncols=2)
    for axes in (curves, distances):
        axes.grid(alpha=0.3)


def _color(label: str) -> str:
    return {"float32": "tab:blue", "tf32": "tab:green", "float16": "tab:orange"}.get(
        label.rpartition(" ")[2], "tab:red"
    )


def _line(label: str) -> Any:
    return {"graph": "--", "one_launch": "-", "layerwise": ":", "NumPy": "-."}.get(
        label.partition(" ")[0], (0, (5, 5))
    )


def main() -> None:
    from warpfit.backends.cuda.runtime import why_unavailable

    parser = Options(__doc__)
    why_no_gpu = why_unavailable()
    usual = list(NETWORKS) if why_no_gpu is None else list(NETWORKS)[:1]
    parser.add_argument("--networks", type=names(tuple(NETWORKS)), default=usual)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    if why_no_gpu is not None:
        print(f"CPU only: {why_no_gpu}")
    results: dict[str, Any] = {"networks": {}}
    for name in arguments.networks:
        network = NETWORKS[name]
        found = compared(runs_of(network, arguments.steps, why_no_gpu is None))
        settings = {
            "batch": network.batch,
            "lr": network.lr,
            "steps_of_a_loss": network.steps_of_a_loss,
        }
        print_network(name, settings | found)
        runs = thinned(found["runs"], network.steps_of_a_loss)
        results["networks"][name] = {**settings, **found, "runs": runs}
        path = write_results("engine_curves", results)
    far, run, name = largest_difference(results)
    print(f"largest difference of a step's loss: {far:.2g}, {run}, {name}\nwritten to {path}")


if __name__ == "__main__":
    run_command(main)
