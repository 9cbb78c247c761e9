"""Short tables for README and the pages that explain: a few numbers of the results that report.py shows whole."""

from __future__ import annotations

import json
from typing import Any

from harness import RESULTS

Results = dict[str, Any]

ROWS_OF_MNIST = 60_000
BATCHES = (1, 8, 32, 64, 128, 512)


def widths_short(results: Results) -> str:
    """Return the table of 784-h-h-h-10 over the width h: the engine taken, and the quickest of the peers."""
    rows = []
    for name, row in results["rows"].items():
        if not name.startswith("h="):
            continue
        ours = next(key for key in row["programs"] if key.startswith("warpfit "))
        cells = [row["plan"].split()[0], _median(row, ours)]
        for peer in ("jax_scan_8", "torch_graph"):
            cells.append(_median(row, next((key for key in row["programs"] if key.startswith(peer)), None)))
        rows.append([name.removeprefix("h="), *cells, f"**{row['ratio'][ours.split()[1]]:.1f}**"])
    header = [
        "h",
        "engine",
        "warpfit, µs a step",
        "JAX scan",
        "PyTorch compile + CUDA graph",
        "best peer over ours",
    ]
    return _table(header, rows) + _card(results)


def engines(results: Results) -> str:
    """Return the table of 784-256-10 by two engines, over the batch; of ``layerwise`` from its own results."""
    layerwise = _other("layerwise")
    rows = []
    for batch in BATCHES:
        one = results["rows"][f"784-256-10/{batch}"]["programs"]["warpfit float16"]["us"]["median"]
        many = layerwise["mlp"][str(batch)]["float16"]["median"]
        rows.append([str(batch), f"{one:.2f}", f"{many:.0f}", f"**{many / one:.0f}**"])
    header = ["784-256-10, batch", "one_launch, float16, µs a step", "layerwise, float16", "ratio"]
    return _table(header, rows) + _card(results) + _card(layerwise)


def batch_sizes(results: Results) -> str:
    """Return the table of what an epoch of MNIST takes over the batch size: in one launch, by operations, by NumPy."""
    layerwise = _other("layerwise")
    rows = []
    for batch in BATCHES:
        steps = -(-ROWS_OF_MNIST // batch)
        one = results["rows"][f"784-256-10/{batch}"]["programs"]["warpfit float16"]["us"]["median"]
        other = layerwise["mlp"][str(batch)]
        many, numpy = (other[name]["median"] if name in other else None for name in ("float16", "numpy"))
        cells = [f"{steps:,}", f"{one:.2f}", f"{one / batch * 1e3:.0f}"]
        cells += [_epoch(us, steps) for us in (one, many, numpy)]
        rows.append([str(batch), *cells])
    header = ["batch", "steps", "µs a step", "ns a row", "epoch, one_launch", "layerwise", "NumPy"]
    return _table(header, rows) + _card(results) + _card(layerwise)


def ladder_short(results: Results) -> str:
    """Return the picture of the ladder, and the table of one network: rungs first, then peers."""
    from warpfit.ladder.words import milliseconds, times

    found = results["networks"].get("mlp") or next(iter(results["networks"].values()))
    rows = [
        [
            f"*{record['title']}*" if record["is_peer"] else record["title"],
            milliseconds(record["ms_per_epoch"]) + ("*" if record["is_scaled"] else ""),
            "" if record["device_ms"] is None else milliseconds(record["device_ms"]),
            times(record["gain"]),
            times(record["gain_over_first"]),
        ]
        for record in found["records"]
        if not record["reason"]
    ]
    header = [f"{found['network']}, batch {found['batch']}, {found['data']}", "an epoch", "the device's part"]
    header += ["gain", "in all"]
    picture = "![Milliseconds an epoch, rung by rung](docs/images/ladder.png)\n\n"
    return picture + _table(header, rows) + _card(results)


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
        text += ("\n" if text else "") + _table(header, rows) + _card(part)
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


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _card(results: Results) -> str:
    """Return where results come from, in short: the file has the rest."""
    environment = results["environment"]
    machine = (
        environment.get("gpu") or f"{environment['cores']} cores of an {environment['cpu']} (shared machine)"
    )
    return f"\n{machine}, commit {environment['commit'][:12]}, {environment['date']}.\n"
