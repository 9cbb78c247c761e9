"""Short tables for README and the pages that explain: a few numbers of the results that report.py
shows whole.
"""

from __future__ import annotations

import json
from typing import Any

from harness import RESULTS, as_table
from one_launch import PEERS as ONE_LAUNCH_PEERS
from one_launch import elsewhere
from scaling_pages import most_of, step_on
from sweep import PEERS as SWEEP_PEERS

Results = dict[str, Any]

ROWS_OF_MNIST = 60_000
BATCHES = (1, 8, 32, 64, 128, 512)
EAGER_AND_OURS = ("torch_eager float32", "warpfit float16")
OF_TRAIN = ("torch_eager float32", "warpfit one_launch float16")


def widths_short(results: Results) -> str:
    """Return the table of 784-h-h-h-10 over the width h: the engine taken, and the quickest of the
    peers.
    """
    rows = []
    for name, row in results["rows"].items():
        if not name.startswith("h="):
            continue
        ours = next(key for key in row["programs"] if key.startswith("warpfit "))
        cells = [row["plan"].split()[0], _median(row, ours)]
        for peer in ("jax_scan_8", "torch_graph"):
            cells.append(
                _median(row, next((key for key in row["programs"] if key.startswith(peer)), None))
            )
        rows.append([name.removeprefix("h="), *cells, f"**{row['ratio'][ours.split()[1]]:.1f}**"])
    header = [
        "h",
        "engine",
        "warpfit, µs a step",
        "JAX scan",
        "PyTorch compile + CUDA graph",
        "speedup",
    ]
    return as_table(header, rows) + _card(results).rstrip() + elsewhere(results, "h=") + "\n"


def engines(results: Results) -> str:
    """Return the table of 784-256-10 by two engines, over the batch; of ``layerwise`` from its own
    results.
    """
    layerwise = _other("layerwise")
    rows = []
    for batch in BATCHES:
        one = results["rows"][f"784-256-10/{batch}"]["programs"]["warpfit float16"]["us"]["median"]
        many = layerwise["mlp"][str(batch)]["float16"]["median"]
        rows.append([str(batch), f"{one:.2f}", f"{many:.0f}", f"**{many / one:.0f}**"])
    header = ["784-256-10, batch", "one_launch, float16, µs a step", "layerwise, float16", "ratio"]
    return (
        as_table(header, rows)
        + _card(results, "`one_launch`: ")
        + _card(layerwise, "`layerwise`: ")
    )


def batch_sizes(results: Results) -> str:
    """Return the table of what an epoch of MNIST takes over the batch size: in one launch, by
    operations, by NumPy.
    """
    layerwise = _other("layerwise")
    rows = []
    for batch in BATCHES:
        steps = -(-ROWS_OF_MNIST // batch)
        one = results["rows"][f"784-256-10/{batch}"]["programs"]["warpfit float16"]["us"]["median"]
        other = layerwise["mlp"][str(batch)]
        many, numpy = (
            other[name]["median"] if name in other else None for name in ("float16", "numpy")
        )
        cells = [f"{steps:,}", f"{one:.2f}", f"{one / batch * 1e3:.0f}"]
        cells += [_epoch(us, steps) for us in (one, many, numpy)]
        rows.append([str(batch), *cells])
    header = ["batch", "steps", "µs a step", "ns a row", "epoch, one_launch", "layerwise", "NumPy"]
    others = _card(layerwise, "`layerwise` and NumPy: ")
    return as_table(header, rows) + _card(results, "`one_launch`: ") + others


# Programs that train as many trees as they are told, with their makers' spelling.
BOOSTED_TREES = {
    "lightgbm": "LightGBM, 1,000 trees",
    "xgboost": "XGBoost, 1,000 trees",
    "catboost": "CatBoost, 1,000 trees",
    "scikit-learn hist": "scikit-learn's boosted trees",
}


def how_fast(results: Results) -> str:
    """Return README's table: what one does, each beside the quickest other program."""
    others = ("widths", "sweep", "estimators", "tables", "scaling", "prompt")
    widths, sweep, estimators, tables, scaling, prompt = (_other(name) for name in others)
    rows = [
        _a_step("small network", results["rows"]["784-256-10/64"], ONE_LAUNCH_PEERS),
        _a_step("wide network", widths["rows"]["h=4096"], ONE_LAUNCH_PEERS),
        _a_step("sweep", sweep["rows"]["784-128-10/64x1024"], SWEEP_PEERS),
        _ten_epochs(estimators["parts"]["gpu"]),
        _a_table(tables),
        _several_gpus(scaling),
        _to_a_model(prompt, results["rows"]["784-256-10/64"]),
    ]
    header = ["", "what", "warpfit", "best peer", "which", "speedup"]
    # Of estimators the part that a row has: others are of a machine without a GPU.
    of_rows = [results, widths, sweep, estimators["parts"]["gpu"], tables, scaling, prompt]
    days = sorted({file["environment"]["date"].split()[0] for file in of_rows})
    cards = " and ".join(sorted({file["environment"]["gpu"] for file in of_rows}))
    return as_table(header, rows) + f"\n{cards}, {days[0]} to {days[-1]}; medians.\n"


def _a_step(title: str, row: Results, peers: Results) -> list[str]:
    """Return the cells of a step of a network: for each of many, its share."""
    ours = next(name for name in row["programs"] if name.startswith("warpfit "))
    best = row["best_peer"]
    us = [_three_digits(row["programs"][name]["us"]["median"]) for name in (ours, best)]
    many = f"{row['networks']:,} times " if "networks" in row else ""
    what = f"{many}{row['network']}, batch {row['batch']}, a step"
    ratio = row["ratio"][ours.split()[1]]
    return [
        title,
        what,
        *(f"{number} µs" for number in us),
        _labelled(best, peers),
        f"**{ratio:.1f}**",
    ]


def _labelled(program: str, peers: Results) -> str:
    name, precision = program.split()
    return f"{peers[name].label}, {precision}"


def _ten_epochs(part: Results) -> list[str]:
    """Return the cells of the estimator's fit by Adam."""
    row = next(row for case, row in part["rows"].items() if "adam" in case)
    ours, theirs = row["warpfit_seconds"]["median"], row["sklearn_seconds"]["median"]
    what = f"`MLPClassifier`, Adam, {row['sklearn_epochs']} epochs of MNIST"
    peer = f"scikit-learn, {part['environment']['cores']} CPU cores"
    cells = [f"{_three_digits(ours)} s", f"{_three_digits(theirs)} s", peer]
    return ["estimators", what, *cells, f"**{row['speed']['median']:.0f}**"]


def _a_table(results: Results) -> list[str]:
    """Return the cells of a fit of RealMLP to magic, beside the quickest boosted trees."""
    rows, cores = results["tables"]["magic"], results["environment"]["cores"]
    seconds = {name: rows[name]["wall_s"]["median"] for name in ("warpfit realmlp", *BOOSTED_TREES)}
    ours, best = seconds.pop("warpfit realmlp"), min(seconds, key=lambda name: seconds[name])
    what = "RealMLP, 12,172 rows, 256 epochs"
    cells = [f"{_three_digits(each)} s" for each in (ours, seconds[best])]
    peer = f"{BOOSTED_TREES[best]}, {cores} CPU cores"
    return ["tables", what, *cells, peer, f"**{seconds[best] / ours:.1f}**"]


def _several_gpus(results: Results) -> list[str]:
    """Return the cells of a step that the most GPUs share, beside PyTorch's."""
    count = most_of(results)
    ours, theirs = step_on(results, count, "resnet/512")
    cells = [f"{us:,.0f} µs" for us in (ours, theirs)]
    what, peer = f"ResNet-18-like, {512 * int(count):,} images, a step", "PyTorch DDP"
    return [f"{count} GPUs", what, *cells, peer, f"**{theirs / ours:.1f}**"]


def _to_a_model(prompt: Results, row: Results) -> list[str]:
    """Return the cells of a whole process, or of one until its model is saved, beside what the
    quickest peer takes to compile and train alone.
    """
    arguments = prompt["command"].split()
    epochs, batch = (
        int(arguments[arguments.index(name) + 1]) for name in ("--epochs", "--batch-size")
    )
    steps = epochs * -(-ROWS_OF_MNIST // batch)
    least = {
        name: max(cell["first_call"], 0.0) + steps * cell["us"]["median"] / 1e6
        for name, cell in row["programs"].items()
        if "us" in cell and not name.startswith("warpfit ")
    }
    best = min(least, key=lambda name: least[name])
    ours, warm = (prompt["caches"][cache]["seconds"]["median"] for cache in ("empty", "warm"))
    accuracy = f"{prompt['accuracy']['median']:.2%}"
    what = f"MNIST, {accuracy}, cold (warm {_three_digits(warm)} s)"
    cells = [
        f"{_three_digits(ours)} s",
        f"over {_down(least[best])} s",
        _labelled(best, ONE_LAUNCH_PEERS),
    ]
    return [
        f"prompt to {prompt.get('until', 'model')}",
        what,
        *cells,
        f"**over {_down(least[best] / ours)}**",
    ]


def _down(number: float) -> str:
    """Return a number with one digit after the point, and never more than it is."""
    return f"{int(number * 10) / 10:.1f}"


def _three_digits(number: float) -> str:
    """Return a number with three significant digits, all of them shown."""
    return f"{number:#.3g}".rstrip(".")


def one_epoch(results: Results) -> str:
    """Return the table of one epoch of 784-256-10 at batch 64 as several suites measured it, in
    milliseconds.
    """
    files = {
        "report-run": results,
        **{name: _other(name) for name in ("train", "layerwise", "ladder")},
    }
    files["one-launch"] = _other("one_launch")
    steps = -(-ROWS_OF_MNIST // 64) / 1e3
    layerwise = files["layerwise"]["mlp"]["64"]
    ladder = {
        record["name"]: record["ms_per_epoch"]
        for record in files["ladder"]["networks"]["mlp"]["records"]
    }
    train = files["train"]["rows"]["64"]["programs"]
    one = files["one-launch"]["rows"]["784-256-10/64"]["programs"]
    report = {
        name: runs["mean"]["epoch_seconds"]["median"] * 1e3
        for name, runs in results["rows"].items()
    }
    found: dict[str, tuple[float | None, ...]] = {
        "layerwise": (
            *(layerwise[name]["median"] * steps for name in ("numpy", "torch_eager")),
            None,
        ),
        "one-launch": (None, *(one[name]["us"]["median"] * steps for name in EAGER_AND_OURS)),
        "report-run": (report["NumPy float32"], None, report["one_launch float16"]),
        "train": tuple(
            train[name]["epoch_seconds"] * 1e3 for name in ("warpfit NumPy float32", *OF_TRAIN)
        ),
        "ladder": tuple(ladder[name] for name in ("numpy", "torch-preloaded", "one-launch")),
    }
    rows = [
        [
            f"`warpfit bench {suite}`",
            files[suite]["environment"]["date"],
            *(
                "-" if ms is None else f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.2f} ms"
                for ms in times
            ),
            "-" if times[0] is None or times[2] is None else f"{times[0] / times[2]:.0f}",
        ]
        for suite, times in found.items()
    ]
    header = [
        "measured by",
        "when",
        "NumPy",
        "PyTorch eager",
        "one_launch, float16",
        "NumPy over one_launch",
    ]
    return as_table(header, rows)


def notebook(results: Results) -> str:
    """Return a table for each device of what the demo notebook takes when a slider is moved."""
    text = ""
    for part in results["devices"].values():
        rows = [
            [name, row["reason"], *["-"] * 5]
            if "reason" in row
            else [
                name,
                row["network"],
                row["engine"],
                f"{row['steps']:,}",
                "{median:.0f} ms ({min:.0f} to {max:.0f})".format(
                    **{key: seconds * 1e3 for key, seconds in row["seconds"].items()}
                ),
                f"{row['first'] * 1e3:.0f} ms",
                f"{row['drawing'] * 1e3:.0f} ms",
            ]
            for name, row in part["rows"].items()
        ]
        header = [
            f"sliders, on {part['data']}",
            "network",
            "engine",
            "steps",
            "trained in",
            "the first time",
            "picture",
        ]
        text += ("\n" if text else "") + as_table(header, rows) + _card(part)
    return text


def _epoch(us: float | None, steps: int) -> str:
    """Return what an epoch of so many steps takes."""
    if us is None:
        return "-"
    seconds = us * steps / 1e6
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def _median(row: Results, program: str | None) -> str:
    measured = row["programs"].get(program, {}).get("us")
    if measured is None:
        return "-"
    return f"{measured['median']:.{0 if measured['median'] >= 100 else 1}f}"


def _other(name: str) -> Results:
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def _card(results: Results, whose: str = "") -> str:
    """Return where results come from, in short: the file has the rest. `whose` says of which."""
    environment = results["environment"]
    machine = (
        environment.get("gpu")
        or f"{environment['cores']} cores of an {environment['cpu']} (shared machine)"
    )
    return f"\n{whose}{machine}, commit {environment['commit'][:12]}, {environment['date']}.\n"
