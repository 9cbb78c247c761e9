"""Write the tables of README and docs from the results files.

A table stands between ``<!-- results: NAME -->`` and ``<!-- end -->``; NAME is one of RENDERERS.

    python benchmarks/report.py            # rewrite the tables
    python benchmarks/report.py --check    # exit 1 if one does not match its results file
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT
from warpfit.files import atomic_path

PAGES = ("README.md", "docs/accuracy-gap.md", "docs/performance.md")
BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, Any]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _source(results: Results) -> str:
    env = results["environment"]
    packages = ", ".join(
        f"{name} {version}" for name, version in env["packages"].items() if name != "warpfit"
    )
    machine = f"{env['cores']} cores of an {env['cpu']} (shared machine), Python {env['python']}, {packages}"
    return f"\n{machine}; commit {env['commit']}, {env['date']}.\n"


def cpu_epoch(results: Results) -> str:
    rows = [
        [
            case,
            f"{row['warpfit_seconds']['median']:.2f} s",
            f"{row['sklearn_seconds']['median']:.2f} s",
            f"{row['ratio']['median']:.2f}",
            f"{row['ratio']['min']:.2f} to {row['ratio']['max']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f} MB",
        ]
        for case, row in results["rows"].items()
    ]
    header = [
        "784-256-10, batch 64, one epoch",
        "warpfit",
        "scikit-learn",
        "ratio",
        "spread",
        "warpfit's peak memory",
    ]
    return _table(header, rows) + _source(results)


INITS = ("kaiming_uniform", "lecun_uniform", "default")


def accuracy_gap(results: Results) -> str:
    rows = []
    for reduction in ("mean", "sum"):
        report, ours = results["report"][reduction], results["rows"][f"{reduction} float32"]
        double = results["rows"][f"{reduction} float64"]
        epochs = report["losses"]
        rows.append(
            [
                report["name"],
                ", ".join(f"{loss:.4f} ({epoch})" for epoch, loss in epochs.items()),
                _percent(report),
            ]
        )
        for name, run in (("float32", ours), ("float64", double)):
            losses = ", ".join(f"{run['losses'][int(epoch) - 1]:.4f} ({epoch})" for epoch in epochs)
            rows.append([f"warpfit, {reduction} over the batch, {name}", losses, _percent(run)])
        for init in INITS:
            run = results["other_inits"][f"{reduction} {init}"]
            losses = ", ".join(f"{run['losses'][int(epoch) - 1]:.4f} ({epoch})" for epoch in epochs)
            rows.append([f"the same in float32, {init} initial values", losses, _percent(run)])
    return _table(["run", "training loss (after epoch)", "test accuracy"], rows) + _source(results)


def _percent(run: Results) -> str:
    return f"{run['accuracy']:.2%}"


RENDERERS: dict[str, Callable[[Results], str]] = {"cpu_epoch": cpu_epoch, "accuracy_gap": accuracy_gap}


def render(text: str) -> str:
    """Return a page with every table made anew."""

    def table(match: re.Match[str]) -> str:
        results = json.loads((RESULTS / f"{match[2]}.json").read_text(encoding="utf-8"))
        return f"{match[1]}{RENDERERS[match[2]](results)}{match[3]}"

    return BLOCK.sub(table, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a table is stale")
    check = parser.parse_args().check
    stale = []
    for page in (ROOT / name for name in PAGES):
        text = page.read_text(encoding="utf-8")
        if (fresh := render(text)) != text:
            stale.append(page.name)
            if not check:
                _write(page, fresh)
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale) or 'none'}")
    sys.exit(bool(stale) and check)


def _write(page: Path, text: str) -> None:
    with atomic_path(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
