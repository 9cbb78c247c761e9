"""How long is a step of the one_launch engine, beside what its plan expects?

Microseconds a step are an epoch's wall time over its number of steps, order, gathering and record
included, the least of some epochs: what disturbs them is not the plan's to expect. Compiles all
kernels first, side by side. Prints a table, and writes results/launch_costs.json.

    python benchmarks/launch_costs.py
    python benchmarks/launch_costs.py --fit one_launch,one_launch_small_sm90    # writes prices

Prices lie in src/warpfit/backends/cuda/prices/, a file for each card: plans choose kernels by them.
Fit these two only, and one_launch_images, which has one layout of a network. Rows of the others are
of layouts that plans chose, and prices that follow from these alone have plans choose layouts that
nobody measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, Options, names, run_command, spread, write_results

EPOCHS, MOST_STEPS, MOST_BYTES = 12, 600, 200_000_000
WORKERS = 12
KERNELS = (
    "one_launch",
    "one_launch_layers",
    "one_launch_card",
    "one_launch_small_sm90",
    "one_launch_images",
)


@dataclass(frozen=True)
class Case:
    """A network, a batch and an optimizer; of small networks blocks and groups of warps, too, if
    not those that the plan chooses. Of images their height, width and channels, and before the
    linear layers convolutions: each one's kernel, padding, channels and pooling.
    """

    sizes: tuple[int, ...]
    batch: int
    optimizer: str = "sgd"
    layout: tuple[int, int] | None = None
    image: tuple[int, ...] = ()
    convolutions: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def name(self) -> str:
        own = f", blocks {self.layout[0]}, groups {self.layout[1]}" if self.layout else ""
        images = (self.image, *self.convolutions) if self.image else ()
        layers = [*("x".join(map(str, numbers)) for numbers in images), *map(str, self.sizes)]
        return f"{'-'.join(layers)}, {self.optimizer}, {self.batch}{own}"

    def layers(self) -> list[Any]:
        """Return the network's layers."""
        from warpfit import nn

        found: list[Any] = []
        channels = self.image[-1] if self.image else 0
        for kernel, padding, outputs, pool in self.convolutions:
            found += [nn.Conv2d(channels, outputs, kernel, padding=padding), nn.ReLU()]
            found += [nn.MaxPool2d(pool)] if pool > 1 else []
            channels = outputs
        found += [nn.Flatten()] if self.image else []
        for idx, size in enumerate(self.sizes[1:]):
            found += [nn.ReLU()] if idx else []
            found.append(nn.Linear(self.sizes[idx], size, seed=idx))
        return found


IN_ROLES = (
    *(Case((784, 256, 10), batch) for batch in (1, 8, 32, 64, 128, 256, 512, 1024)),
    Case((784, 256, 10), 64, "momentum"),
    *(Case((784, 10), batch) for batch in (64, 128, 512)),
    *(Case((64, 64, 1), batch) for batch in (32, 128, 256)),
    *(Case((64, 256, 10), batch) for batch in (64, 192, 512)),
    Case((784, 512, 10), 32),
    *(Case((784, 64, 10), batch) for batch in (64, 512)),
    Case((256, 256, 10), 64),
    *(Case((16, 32, 2), batch) for batch in (16, 128)),
    Case((64, 10), 64),
    *(Case((784, 256, 10), batch, "adam") for batch in (16, 32, 64)),
    Case((784, 256, 10), 64, "rmsprop"),
    Case((64, 64, 1), 128, "adam"),
    Case((784, 10), 64, "adam"),
    Case((8, 32, 1), 100, "adam"),
)
BY_LAYERS = (
    *(Case((784, 128, 128, 128, 10), batch) for batch in (8, 16, 32)),
    Case((784, 128, 128, 128, 10), 32, "momentum"),
    Case((784, 128, 128, 128, 10), 32, "adam"),
    *(Case((784, 256, 256, 256, 10), batch) for batch in (16, 32)),
    Case((784, 256, 128, 10), 64, "adam"),
    *(Case((64, 64, 64, 64, 1), batch, "adamw") for batch in (16, 32, 64, 96)),
    *(Case((32, 256, 256, 256, 8), batch, "adamw") for batch in (16, 32)),
    Case((32, 256, 256, 256, 8), 48),
    Case((100, 100, 50, 10), 64),
    Case((20, 40, 20, 3), 32),
    Case((20, 40, 20, 3), 128, "adam"),
    Case((300, 200, 100, 50, 10), 32),
    Case((16, 16, 16, 16, 16, 16, 4), 32, "adamw"),
    Case((784, 64, 64, 10), 64),
    Case((50, 400, 400, 5), 16),
    Case((784, 256, 10), 256, "adam"),
    Case((784, 100, 10), 200, "adam"),
    Case((784, 128, 128, 128, 10), 128),
    Case((784, 256, 256, 256, 10), 64, "adamw"),
    Case((64, 64, 64, 64, 1), 256, "adamw"),
    Case((32, 256, 256, 256, 8), 256, "adamw"),
    Case((20, 40, 20, 3), 1000, "adam"),
)
ON_CARD = (
    *(Case((784, width, width, width, 10), 32) for width in (384, 512, 768, 1024)),
    *(Case((784, width, width, width, 10), 32, "adam") for width in (256, 512, 1024)),
    Case((784, 512, 512, 512, 10), 16),
    Case((784, 512, 512, 512, 10), 64, "momentum"),
    Case((784, 768, 768, 10), 32),
    Case((784, 640, 640, 10), 128),
    Case((784, 1200, 1200, 10), 16),
    Case((784, 2000, 10), 32),
    Case((784, 512, 10), 32, "adam"),
    Case((64, 1024, 1024, 100), 32),
    Case((100, 512, 512, 512, 512, 512, 512, 10), 32, "adamw"),
    Case((784, 300, 300, 300, 300, 10), 48),
)
# Plans choose one layout of each, by which prices could not be told apart.
IN_GROUPS = tuple(
    Case(sizes, batch, optimizer, layout)
    for sizes, batch, optimizer, layouts in (
        ((37, 53, 17, 3), 48, "adam", ((1, 1), (1, 2), (2, 1), (2, 2))),
        ((64, 64, 64, 64, 1), 256, "adamw", ((4, 1), (4, 2))),
        ((64, 64, 64, 64, 1), 128, "adamw", ((4, 1), (4, 2))),
        ((64, 64, 1), 256, "sgd", ((2, 2), (2, 3), (4, 1), (4, 2), (4, 3))),
        ((64, 64, 1), 128, "sgd", ((1, 2), (1, 3), (2, 1), (2, 2), (4, 1), (4, 2))),
        ((64, 64, 1), 512, "sgd", ((4, 2), (4, 3))),
        ((20, 40, 20, 3), 32, "sgd", ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))),
        ((20, 40, 20, 3), 128, "adam", ((1, 2), (2, 1), (2, 2), (4, 1), (4, 2))),
        ((20, 40, 20, 3), 300, "adam", ((4, 2),)),
        ((30, 50, 20, 4), 80, "adam", ((1, 2), (2, 1), (2, 2), (4, 1), (4, 2))),
        ((12, 48, 48, 5), 192, "sgd", ((1, 3), (2, 2), (4, 1), (4, 2))),
        ((16,) * 6 + (4,), 32, "adamw", ((1, 1), (1, 2))),
        ((48, 64, 32, 10), 64, "sgd", ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1))),
        ((8, 32, 1), 100, "adam", ((1, 2), (2, 1), (2, 2), (4, 1))),
        ((16, 32, 2), 16, "sgd", ((1, 1), (1, 2))),
        ((16, 32, 2), 128, "sgd", ((1, 2), (2, 1), (4, 1))),
    )
    for layout in layouts
)
LENET = ((28, 28, 1), ((5, 2, 6, 2), (5, 0, 16, 2)))
OF_IMAGES = tuple(
    Case(sizes, batch, optimizer, None, image, convolutions)
    for sizes, optimizer, (image, convolutions), batches in (
        ((400, 120, 84, 10), "sgd", LENET, (16, 32, 64, 128)),
        ((400, 120, 84, 10), "adam", LENET, (32, 64)),
        ((400, 10), "sgd", LENET, (64, 128, 200, 400)),
        ((784, 10), "sgd", ((28, 28, 1), ((5, 2, 4, 2),)), (32, 128, 256)),
        ((256, 10), "sgd", ((8, 8, 3), ((3, 1, 16, 1), (3, 1, 16, 2))), (32, 128, 512)),
        ((144, 64, 10), "adam", ((12, 12, 1), ((3, 1, 8, 2), (3, 1, 16, 2))), (64, 256)),
        ((512, 10), "sgd", ((16, 16, 3), ((3, 1, 16, 2), (3, 1, 32, 2), (3, 1, 32, 1))), (64, 128)),
    )
    for batch in batches
)
CASES = (*IN_ROLES, *BY_LAYERS, *ON_CARD, *IN_GROUPS, *OF_IMAGES)


def fitted(case: Case, epochs: int) -> Any:
    """Return the history of a run of the case."""
    import warpfit as wf
    from warpfit import nn, optim
    from warpfit.backends.cuda.one_launch_small_sm90 import SmallLaunch
    from warpfit.engines import launch_plan

    model, shape = nn.Sequential(*case.layers()), case.image or case.sizes[:1]
    make: dict[str, Any] = {
        "sgd": lambda parameters: optim.SGD(parameters, 0.01),
        "momentum": lambda parameters: optim.SGD(parameters, 0.01, momentum=0.9),
        "adam": optim.Adam,
        "adamw": optim.AdamW,
        "rmsprop": lambda parameters: optim.RMSprop(parameters, 1e-3),
    }
    rng, num_rows = (
        np.random.default_rng(0),
        min(case.batch * MOST_STEPS, MOST_BYTES // (4 * prod(shape))),
    )
    x = rng.random((num_rows, *shape), dtype=np.float32)
    has_classes = case.sizes[-1] > 1
    y = (
        rng.integers(0, case.sizes[-1], num_rows)
        if has_classes
        else rng.random((num_rows, 1), np.float32)
    )
    chosen = launch_plan._chosen
    if case.layout is not None:
        layout = case.layout
        launch_plan._chosen = lambda network, *_: SmallLaunch(network, *layout)
    try:
        return wf.fit(
            model,
            x,
            y,
            loss="cross_entropy" if has_classes else "mse",
            optimizer=make[case.optimizer](model.parameters()),
            epochs=epochs,
            batch_size=case.batch,
            device="cuda",
            engine="one_launch",
            verbose=False,
        )
    finally:
        launch_plan._chosen = chosen


def measured(case: Case) -> dict[str, Any]:
    """Return the case's microseconds a step, those that the plan expects, of which costs, and the
    layout.
    """
    history = fitted(case, EPOCHS)
    plan, steps = history.plan, len(history.step_losses) // EPOCHS
    launch = plan.prepared.launch
    return {
        "case": case.name,
        "microseconds": spread([seconds / steps * 1e6 for seconds in history["seconds"]]),
        "expected": launch.microseconds,
        "kernel": launch.kernel,
        "costs": {name: float(count) for name, count in launch.costs.items()},
        "layout": str(launch),
    }


def warm(case: Case) -> None:
    """Compile the case's kernel."""
    fitted(case, 1)


def prices_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the nanoseconds of each kernel's costs with the least relative errors; none is
    negative. Costs that no case has are left out.

    Raises
    ------
    ConfigError
        If the cases of a kernel do not tell the prices of its costs apart.
    """
    from scipy.optimize import nnls

    from warpfit.errors import ConfigError

    found: dict[str, dict[str, float]] = {}
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        own = [row for row in rows if row["kernel"] == kernel]
        costs = [name for name in own[0]["costs"] if any(row["costs"][name] for row in own)]
        least = np.array([row["microseconds"]["min"] for row in own])
        counts = np.array([[row["costs"][name] for name in costs] for row in own]) / least[:, None]
        rank = int(np.linalg.matrix_rank(counts / counts.max(axis=0)))
        if rank < len(costs):
            raise ConfigError(
                f"expected cases of {kernel} that tell {len(costs)} prices apart, got {len(own)} "
                f"that tell {rank}"
            )
        prices, _ = nnls(counts, np.ones(len(own)))
        found[kernel] = {
            name: round(1000 * price, 6) for name, price in zip(costs, prices, strict=True)
        }
        ratios = counts @ prices
        print(f"{kernel}: expected over measured {ratios.min():.2f} to {ratios.max():.2f}")
    return found


def write_prices(
    results: dict[str, Any], fitted_kernels: Sequence[str], path: Path | None = None
) -> Path:
    """Write the prices that results give of some kernels into the file of their card, with the
    date; others stay as they are.

    Raises
    ------
    ConfigError
        If the results have no rows of a kernel, or rows that do not tell its prices apart.
    """
    from warpfit.backends.cuda.prices import path_of
    from warpfit.errors import ConfigError

    measured_kernels = {row["kernel"] for row in results["rows"]}
    if missing := [kernel for kernel in fitted_kernels if kernel not in measured_kernels]:
        raise ConfigError(f"expected results of {', '.join(missing)}, got none")
    environment = results["environment"]
    path = path or path_of(environment["gpu"].split()[-1].lower())
    known = json.loads(path.read_text()) if path.exists() else {"kernels": {}}
    kernels = known["kernels"]
    rows = [row for row in results["rows"] if row["kernel"] in fitted_kernels]
    for kernel, prices in prices_of(rows).items():
        nanoseconds = {**kernels.get(kernel, {}).get("nanoseconds", {}), **prices}
        kernels[kernel] = {"date": environment["date"].split()[0], "nanoseconds": nanoseconds}
    script = "benchmarks/launch_costs.py --fit"
    found = {"card": environment["gpu"], "script": script, "kernels": kernels}
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--fit", type=names(KERNELS), default=[], help="kernels, with commas")
    if kernels := parser.parse_args().fit:
        print(write_prices(json.loads((RESULTS / "launch_costs.json").read_text()), kernels))
        return
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        list(pool.map(warm, CASES))
    rows = []
    for case in CASES:
        row = measured(case)
        rows.append(row)
        least = row["microseconds"]["min"]
        print(
            f"{case.name:40} {least:7.2f} {row['expected']:7.2f} {row['expected'] / least:5.2f}",
            flush=True,
        )
    print(write_results("launch_costs", {"rows": rows}))


if __name__ == "__main__":
    run_command(main)
