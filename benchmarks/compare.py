"""Which figures of a results file are worse than an older file's?

Prints a line for every figure that both files have, the second's over the first's, and marks what
got worse: by more than the threshold, and so that its best measurement is worse than the first's
median, if spreads are known; an accuracy by more than half a percent of all rows. What peers take
is shown, and is no regression of ours; so are first calls, which are compilation, once. Figures
that follow from others (ratios, shares) are left out. Exit code 1 if anything is marked.

    warpfit bench compare A.json B.json [--threshold 0.05]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Options, run_command
from warpfit.errors import ConfigError

THRESHOLD = 0.05
OF_ACCURACY = 0.005  # absolute
REGRESSED = 1  # exit code

# What a figure's name, or one that it stands under, says: whether less of it is better, or more.
LESS = {
    "us", "ms", "microseconds", "seconds", "first_call", "peak_bytes", "float32", "tf32",
    "float16", "bfloat16",
    "numpy", "torch_eager", "empty_cache", "warm_cache", "resident", "streamed",
}  # fmt: skip
ACCURACIES = {"accuracy", "test_accuracy", "mean"}
MORE = {"tflops", "gb_per_second", "copy_gb_per_second", "samples_per_second", *ACCURACIES}
SHOWN_ONLY = "first_call"
# What follows from other figures, describes a run, or is as it comes.
LEFT_OUT = {
    "environment", "environments", "settings", "report", "ratio", "speed", "of_copy",
    "speed_over_cublas", "losses", "costs",
    "expected", "promised_ratio", "promised_peak_bytes", "largest_ratio", "least_speed",
    "first_loss", "curves",
}  # fmt: skip
PEERS = ("torch", "pytorch", "jax", "cublas", "cudnn", "sklearn", "scikit-learn")
# What tells the rows of a list apart.
NAMES = ("case", "level", "dtype", "shape", "name", "batch", "kernel", "cluster")


@dataclass(frozen=True)
class Figure:
    """A measured number: its median, and its least and largest where they are known."""

    median: float
    least: float
    largest: float
    more_is_better: bool


Path_ = tuple[str, ...]


def figures(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Figure]]:
    """Yield the figures of a results file, by their path in it."""
    if isinstance(value, dict):
        if {"median", "min", "max"} <= set(value):
            yield path, Figure(value["median"], value["min"], value["max"], is_more_better(path))
            return
        for key, inner in value.items():
            if key not in LEFT_OUT:
                yield from figures(inner, (*path, key))
    elif isinstance(value, list):
        if all(isinstance(item, dict) for item in value):
            for item in value:
                yield from figures(item, (*path, _name_of(item)))
    elif (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and _named(path) & (LESS | MORE)
    ):
        yield path, Figure(value, value, value, is_more_better(path))


def is_more_better(path: Path_) -> bool:
    """Return whether more of a figure is better; what is not known is a time."""
    return bool(_named(path) & MORE)


def _named(path: Path_) -> set[str]:
    """Return a figure's name without what it is of: ``{'seconds'}`` of ``warpfit_seconds``, for
    example.
    """
    last = path[-1] if path else ""
    return {last, last.rpartition("_")[2]}


def _name_of(row: dict[str, Any]) -> str:
    return ", ".join(str(row[name]) for name in NAMES if name in row)


def is_of_peer(path: Path_) -> bool:
    return any(part.lower().startswith(PEERS) for part in path)


@dataclass(frozen=True)
class Line:
    """A figure of two files."""

    path: Path_
    before: Figure
    after: Figure

    @property
    def ratio(self) -> float:
        """The second's median over the first's; of two zeros 1."""
        if not self.before.median:
            return 1.0 if not self.after.median else float("inf")
        return self.after.median / self.before.median

    def is_worse(self, threshold: float) -> bool:
        """Return whether it got worse by more than the threshold and the spread."""
        before, after = self.before, self.after
        if _named(self.path) & ACCURACIES:
            return after.median < before.median - OF_ACCURACY and after.largest < before.median
        if after.more_is_better:
            return after.median < before.median / (1 + threshold) and after.largest < before.median
        return after.median > before.median * (1 + threshold) and after.least > before.median

    def verdict(self, threshold: float) -> str:
        if is_of_peer(self.path):
            return "peer"
        if self.path[-1] == SHOWN_ONLY:
            return ""
        if self.is_worse(threshold):
            return "WORSE"
        swapped = Line(self.path, self.after, self.before)
        return "better" if swapped.is_worse(threshold) else ""


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[Line]:
    """Return a line for every figure that both have."""
    old = dict(figures(before))
    return [Line(path, old[path], figure) for path, figure in figures(after) if path in old]


def read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"expected {path} to be a results file, got no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"expected {path} to be a results file, got {type(found).__name__}")
    return found


def differences_of_machines(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what differs between the machines and versions of two files, the commit and the date
    left out.
    """
    old, new = before.get("environment", {}), after.get("environment", {})
    old, new = ({**env, **env.get("packages", {})} for env in (old, new))
    names = [name for name in (*old, *new) if name not in ("date", "commit", "packages", "warpfit")]
    return [
        f"{name}: {old.get(name, 'none')} and {new.get(name, 'none')}"
        for name in dict.fromkeys(names)
        if old.get(name) != new.get(name)
    ]


def number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def print_lines(lines: list[Line], threshold: float) -> None:
    names = [" / ".join(line.path) for line in lines]
    width = max(map(len, names))
    print(f"{'figure':<{width}} {'A':>10} {'B':>10} {'B / A':>7}")
    for name, line in zip(names, lines, strict=True):
        medians = f"{number(line.before.median):>10} {number(line.after.median):>10}"
        print(f"{name:<{width}} {medians} {line.ratio:7.2f}  {line.verdict(threshold)}".rstrip())


def main() -> int:
    parser = Options(__doc__, prog="warpfit bench compare")
    parser.add_argument("before", metavar="A.json")
    parser.add_argument("after", metavar="B.json")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="share by which a figure may be worse"
    )
    arguments = parser.parse_args()
    if not arguments.threshold >= 0:
        raise ConfigError(f"expected a threshold of at least 0, got {arguments.threshold}")
    before, after = read(arguments.before), read(arguments.after)
    lines = compared(before, after)
    if not lines:
        raise ConfigError(f"{arguments.before} and {arguments.after} have no figure in common")
    print_lines(lines, arguments.threshold)
    for difference in differences_of_machines(before, after):
        print(f"not the same machine or versions: {difference}")
    worse = [line for line in lines if line.verdict(arguments.threshold) == "WORSE"]
    print(f"{len(worse)} of {len(lines)} figures are worse by more than {arguments.threshold:.0%}")
    return REGRESSED if worse else 0


if __name__ == "__main__":
    run_command(main)
