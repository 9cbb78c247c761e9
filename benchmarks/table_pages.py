"""What pages show of the results of tables.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, mean, median
from typing import Any

from table_data import TABLES
from tables import PAIRS

__all__ = ["draw", "points", "shown"]

SHOWN = (
    "warpfit realmlp",
    "warpfit realmlp cpu",
    "warpfit realmlp bag of 8",
    "warpfit tabm",
    "pytabkit realmlp",
    "pytabkit realmlp cpu",
    "pytabkit tabm",
    "lightgbm",
    "xgboost",
    "catboost",
    "catboost gpu",
    "scikit-learn hist",
)
LEAST_SHARE = 0.5  # of the tables, that a program of the chart has run
SMALLEST_P = 0.001

Results = dict[str, Any]


def error_of(row: Results) -> float:
    """Return the mean log loss, or RMSE, of a program on a table."""
    scores = row["scores"]
    return mean(scores["log_loss"] if "log_loss" in scores else scores["rmse"])


def seconds_of(row: Results) -> float:
    """Return what a fit takes, or the only one."""
    return float(row["wall_s"]["median"])


def timed(results: Results) -> dict[str, dict[str, Any]]:
    """Return, of each table, the rows of programs that pages show and that have times."""
    found = {
        table: {each: rows[each] for each in SHOWN if "wall_s" in rows.get(each, {})}
        for table, rows in results["tables"].items()
    }
    return {table: found[table] for table in TABLES if found.get(table)}


def points(results: Results) -> dict[str, tuple[float, float]]:
    """Return each program's time, a geometric mean, and its error, the geometric mean of multiples
    of the least. Tables are those that all programs ran, but for programs that ran few.
    """
    tables = timed(results)
    programs = [
        each
        for each in SHOWN
        if sum(each in rows for rows in tables.values()) > LEAST_SHARE * len(tables)
    ]
    whole = [rows for rows in tables.values() if set(programs) <= set(rows)]
    return {
        program: (
            geometric_mean([seconds_of(rows[program]) for rows in whole]),
            geometric_mean(
                [
                    error_of(rows[program]) / min(error_of(rows[each]) for each in programs)
                    for rows in whole
                ]
            ),
        )
        for program in programs
        if whole
    }


def draw(results: Results) -> Any:
    """Return the figure of error over time, a point for each program."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for program, (seconds, error) in points(results).items():
        axes.scatter(seconds, error, color="C0" if program.startswith("warpfit") else "C7")
        axes.annotate(
            program, (seconds, error), xytext=(4, 4), textcoords="offset points", fontsize=8
        )
    axes.set(xscale="log", xlabel="seconds a fit", ylabel="error, least of all programs = 1")
    axes.margins(x=0.15)
    axes.grid(alpha=0.3)
    figure.suptitle(results["environment"].get("gpu", ""))
    return figure


Lines = tuple[list[str], list[list[str]]]


def shown(results: Results) -> tuple[Lines, str, Lines, Lines]:
    """Return what a page shows: times and errors, a sentence about them, how equal programs are,
    and what parts are worth.
    """
    return (
        rows_of_programs(results),
        sentence_of_ratios(results),
        rows_of_pairs(results["equivalence"], PAIRS),
        rows_of_variants(results["variants"]),
    )


def rows_of_programs(results: Results) -> Lines:
    """Return a table's header and lines: of each program its seconds and its error on each
    table.
    """
    tables = timed(results)
    lines = []
    for program in SHOWN:
        if any(program in rows for rows in tables.values()):
            cells = [
                f"{_short(seconds_of(rows[program]))} s, {error_of(rows[program]):.3f}"
                if program in rows
                else "-"
                for rows in tables.values()
            ]
            lines.append([program, *cells])
    return ["seconds, error", *(_headed(table) for table in tables)], lines


def _headed(table: str) -> str:
    return table if TABLES[table].has_classes else f"{table} (RMSE)"


def _short(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


def ratios(results: Results, ours: str, other: str) -> list[float]:
    """Return, of the tables that two programs ran, the first's time over the other's."""
    return [
        seconds_of(rows[ours]) / seconds_of(rows[other])
        for rows in timed(results).values()
        if ours in rows and other in rows
    ]


def sentence_of_ratios(results: Results) -> str:
    """Return, in a sentence, how long RealMLP takes beside others, in the median over tables."""
    parts = [
        f"{median(found):.2g} times {other}'s ({len(found)} tables, {min(found):.2g} to "
        f"{max(found):.2g})"
        for other in SHOWN
        if not other.startswith("warpfit") and (found := ratios(results, SHOWN[0], other))
    ]
    return f"The time of {SHOWN[0]} is, in the median over tables, {', '.join(parts)}."


def rows_of_pairs(equivalence: Results, pairs: Mapping[str, str]) -> Lines:
    """Return a table's header and lines: of each pair and score, how far apart they are."""
    lines = [
        [
            table,
            f"{ours}, {pairs[ours]}",
            name.replace("_", " "),
            str(found["pairs"]),
            f"{found['ours']:.4f}",
            f"{found['theirs']:.4f}",
            _difference(found),
            f"±{found['margin']:.4f}",
            _p(found["p"]),
            _p(found["p_different"]),
        ]
        for table, ours, name, found in _in_order(equivalence, pairs)
    ]
    header = ["table", "programs", "score", "pairs", "ours", "theirs", "difference", "margin"]
    return [*header, "p, equally good", "p, different"], lines


def rows_of_variants(variants: Results) -> Lines:
    """Return a table's header and lines: of each variant and score, how far it is from the
    whole.
    """
    names = list(dict.fromkeys(name for rows in variants.values() for name in rows))
    lines = [
        [
            table,
            variant,
            name.replace("_", " "),
            str(found["pairs"]),
            f"{found['theirs']:.4f}",
            f"{found['ours']:.4f}",
            _difference(found),
            _p(found["p"]),
            _p(found["p_different"]),
        ]
        for table, variant, name, found in _in_order(variants, names)
    ]
    header = ["table", "variant", "score", "pairs", "RealMLP", "variant's", "difference"]
    return [*header, "p, equally good", "p, different"], lines


def _in_order(
    compared: Results, names: Mapping[str, str] | Sequence[str]
) -> list[tuple[str, str, str, Results]]:
    return [
        (table, each, score, found)
        for each in names
        for table in TABLES
        for score, found in compared.get(table, {}).get(each, {}).items()
    ]


def _difference(found: Results) -> str:
    return f"{found['difference']:+.4f} ± {found['standard_error']:.4f}"


def _p(value: float) -> str:
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"
