"""How long is a whole run on the CPU, beside what `device='auto'` expects of it?

Seconds are those of `fit` in float32 with Adam, the least of some. Prints a table, and writes
results/run_costs.json.

    python benchmarks/run_costs.py
    python benchmarks/run_costs.py --fit    # writes the prices from the results

Prices lie in src/warpfit/training/run_prices.json: by them short runs stay on the CPU. Those of a
GPU's steps are fitted to results/launch_costs.json. What it takes to compile a kernel, and to call
one, are the differences of `waits.py`'s first and second fits, and its second fits; what processes
and the kernels of a search take is found of its searches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from harness import RESULTS, Options, run_command, write_results

REPEATS = 5
# Microseconds on an H100 beside 16 cores, of fits of breast cancer and digits.
OF_A_FIT = {"call": 20_000.0, "compilation": 1_000_000.0}
# Likewise, of the search over 20 architectures there: scikit-learn's first and second call, which
# differ by the start of processes; and ours with empty caches and with warm ones, a 20th of that.
OF_MANY = {"cpu": {"processes": 1_400_000.0}, "gpu": {"kernel": 250_000.0}}


@dataclass(frozen=True)
class Case:
    """A network, a batch, the rows and the epochs of a run."""

    sizes: tuple[int, ...]
    batch: int
    rows: int
    epochs: int

    @property
    def name(self) -> str:
        return f"{'-'.join(map(str, self.sizes))}, {self.batch}, {self.rows} × {self.epochs}"


CASES = (
    Case((4, 100, 3), 150, 150, 50),
    Case((4, 10, 3), 150, 150, 50),
    Case((30, 100, 2), 200, 569, 30),
    Case((30, 64, 32, 2), 200, 569, 30),
    Case((64, 100, 10), 200, 1797, 10),
    Case((64, 64, 32, 10), 200, 1797, 10),
    Case((784, 100, 10), 200, 4000, 2),
    Case((784, 256, 10), 64, 4000, 1),
    Case((784, 128, 128, 10), 128, 4000, 1),
    Case((20, 40, 20, 3), 32, 2000, 5),
    Case((16, 16, 16, 16, 4), 32, 2000, 4),
    Case((100, 512, 512, 10), 128, 2000, 2),
    Case((54, 256, 256, 256, 7), 256, 5000, 1),
    Case((8, 32, 2), 8, 2000, 2),
    Case((256, 1024, 10), 256, 2000, 1),
    Case((784, 10), 64, 6000, 1),
)


def seconds_of(case: Case) -> float:
    """Return the seconds of a run of the case."""
    import warpfit as wf
    from warpfit import nn, optim

    layers: list[Any] = []
    for idx, size in enumerate(case.sizes[1:]):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(case.sizes[idx], size, seed=idx))
    model, rng = nn.Sequential(*layers), np.random.default_rng(0)
    x = rng.standard_normal((case.rows, case.sizes[0])).astype(np.float32)
    y = rng.integers(0, case.sizes[-1], case.rows)
    settings: dict[str, Any] = {"epochs": case.epochs, "batch_size": case.batch, "device": "cpu"}
    optimizer, start = optim.Adam(model.parameters()), perf_counter()
    wf.fit(model, x, y, optimizer=optimizer, verbose=False, **settings)
    return perf_counter() - start


def measured(case: Case) -> dict[str, Any]:
    """Return the least seconds of the case, those that are expected, and the costs."""
    from warpfit.training.place import expected_seconds, run_costs

    costs = run_costs(case.sizes, case.rows, case.batch, case.epochs)
    least = min(seconds_of(case) for _ in range(REPEATS))
    expected = expected_seconds("cpu", costs)
    return {"case": case.name, "seconds": least, "expected": expected, "costs": costs}


def steps_of_launches() -> list[dict[str, Any]]:
    """Return the seconds and costs of the steps that were measured of `one_launch`."""
    from warpfit.training.place import run_costs

    rows = []
    for row in json.loads((RESULTS / "launch_costs.json").read_text())["rows"]:
        sizes, _, batch, *layout = row["case"].split(", ")
        # Not what a plan chooses; or images, for which device 'auto' takes the GPU anyway.
        if layout or row["kernel"] == "one_launch_images":
            continue
        costs = run_costs([int(size) for size in sizes.split("-")], int(batch), int(batch), 1)
        seconds = row["microseconds"]["min"] / 1e6
        rows.append({"seconds": seconds, "costs": {**costs, "epoch": 0.0}})
    return rows


def prices_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the microseconds of each cost with the least relative errors; none is negative."""
    from scipy.optimize import nnls

    names = list(rows[0]["costs"])
    seconds = np.array([row["seconds"] for row in rows])
    counts = np.array([[row["costs"][name] for name in names] for row in rows]) / seconds[:, None]
    prices, _ = nnls(counts, np.ones(len(rows)))
    ratios = counts @ prices
    print(f"expected over measured {ratios.min():.2f} to {ratios.max():.2f}")
    return {name: round(price * 1e6, 4) for name, price in zip(names, prices, strict=True)}


def write_prices(results: dict[str, Any]) -> None:
    """Write the prices that results give, with the date and the machines."""
    from warpfit.training.place import PRICES

    own = results["environment"]
    steps = json.loads((RESULTS / "launch_costs.json").read_text())["environment"]
    found = {
        "script": "benchmarks/run_costs.py --fit",
        "cpu": {
            "date": own["date"].split()[0],
            "of": own["cpu"],
            "microseconds": {**prices_of(results["rows"]), **OF_MANY["cpu"]},
        },
        "gpu": {
            "date": steps["date"].split()[0],
            "of": steps["gpu"],
            "microseconds": {
                **prices_of(steps_of_launches()),
                **OF_A_FIT,
                **OF_MANY["gpu"],
            },
        },
    }
    PRICES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--fit", action="store_true")
    if parser.parse_args().fit:
        write_prices(json.loads((RESULTS / "run_costs.json").read_text()))
        return
    rows = []
    for case in CASES:
        row = measured(case)
        rows.append(row)
        least, expected = row["seconds"], row["expected"]
        print(f"{case.name:36} {least:7.4f} {expected:7.4f} {expected / least:5.2f}", flush=True)
    print(write_results("run_costs", {"rows": rows}))


if __name__ == "__main__":
    run_command(main)
