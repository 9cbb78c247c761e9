"""What pages show of the results of tables.py."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple

from table_data import TABLES
from tables import AGAIN, PAIRS, VARIANTS, WHOLE, num_seeds

__all__ = [
    "draw",
    "points",
    "rows_of_pairs",
    "rows_of_programs",
    "rows_of_ratios",
    "rows_of_variants",
]

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
# Programs that fit the same networks to more splits, several or all at once: their scores count.
SCORED_BY = {
    WHOLE: WHOLE + AGAIN,
    "warpfit tabm": "warpfit tabm" + AGAIN,
    "pytabkit realmlp": "pytabkit realmlp at once",
}
SEEDS = 10  # that count, the first: their splits are the same for all programs
LEAST_SHARE = 0.5  # of the tables, that a program of the chart has run
SMALLEST_P = 0.001
SMALL_MARGIN = 0.0005  # of which four decimals leave one digit
HUNDREDTHS = 0.1  # from which on a share has two digits

Results = dict[str, Any]


class Shown(NamedTuple):
    """What pages show of a program on a table."""

    seconds: float  # of a fit
    is_first: bool  # whether that is the only one, the first
    error: float  # mean log loss, or RMSE
    seeds: int  # of which it is the mean


def shown(rows: Results, program: str) -> Shown:
    """Return what pages show of a program that has times."""
    row = rows[program]
    scored = max(row, rows.get(SCORED_BY.get(program, program), row), key=num_seeds)
    scores = scored["scores"]
    errors = scores["log_loss" if "log_loss" in scores else "rmse"][:SEEDS]
    seconds = float(row["wall_s"]["median"])
    return Shown(seconds, seconds == row["first_s"], mean(errors), len(errors))


def timed(results: Results) -> dict[str, dict[str, Shown]]:
    """Return, of each table, the programs that pages show and that have times."""
    found = {
        table: {each: shown(rows, each) for each in SHOWN if "wall_s" in rows.get(each, {})}
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
            geometric_mean([rows[program].seconds for rows in whole]),
            geometric_mean(
                [rows[program].error / min(rows[each].error for each in programs) for rows in whole]
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
    axes.margins(x=0.25)
    axes.grid(alpha=0.3)
    figure.suptitle(results["environment"].get("gpu", ""))
    return figure


Lines = tuple[list[str], list[list[str]]]


def rows_of_programs(results: Results) -> Lines:
    """Return a table's header and lines: of each program its seconds and its error on each
    table.
    """
    tables = timed(results)
    lines = []
    for program in SHOWN:
        if any(program in rows for rows in tables.values()):
            cells = [rows.get(program) for rows in tables.values()]
            lines.append([program, *(_cell(each) if each else "-" for each in cells)])
    return ["seconds, error", *(_headed(table) for table in tables)], lines


def _cell(found: Shown) -> str:
    """Return the seconds of a program, starred if the only fit is the first, and its error, with a
    dagger if few seeds count.
    """
    star, dagger = "\\*" * found.is_first, "†" * (found.seeds < SEEDS)
    return f"{_short(found.seconds)} s{star}, {found.error:.3f}{dagger}"


def _headed(table: str) -> str:
    return table if TABLES[table].has_classes else f"{table} (RMSE)"


def _short(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


def ratios(results: Results, ours: str, other: str) -> list[float]:
    """Return, of the tables that two programs ran, the first's time over the other's."""
    return [
        rows[ours].seconds / rows[other].seconds
        for rows in timed(results).values()
        if ours in rows and other in rows
    ]


def rows_of_ratios(results: Results) -> Lines:
    """Return a table's header and lines: what share of others' time RealMLP takes."""
    found = {
        other: ratios(results, WHOLE, other)
        for other in SHOWN
        if not other.startswith("warpfit") and ratios(results, WHOLE, other)
    }
    lines = [
        [other, *map(_share, (median(each), min(each), max(each))), str(len(each))]
        for other, each in found.items()
    ]
    return [f"time of {WHOLE}, as a share of", "median", "least", "largest", "tables"], lines


def _share(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < HUNDREDTHS else f"{ratio:.2f}"


def rows_of_pairs(results: Results) -> Lines:
    """Return a table's header and lines: of each pair and score, how far apart they are."""
    lines = [
        [
            table,
            f"{ours}, {PAIRS[ours]}",
            name.replace("_", " "),
            str(found["pairs"]),
            *_means(found, "ours", "theirs"),
            _difference(found),
            f"±{found['margin']:.{_digits(found)}f}",
            _p(found["p"]),
            _p(found["p_different"]),
        ]
        for table, ours, name, found in _in_order(results["equivalence"], PAIRS)
    ]
    header = ["table", "programs", "score", "pairs", "ours", "theirs", "difference", "margin"]
    return [*header, "p, equally good", "p, different"], lines


def rows_of_variants(results: Results) -> Lines:
    """Return a table's header and lines: of each variant and score, how far it is from the
    whole.
    """
    lines = [
        [
            table,
            variant.removeprefix(f"{WHOLE} "),
            name.replace("_", " "),
            str(found["pairs"]),
            *_means(found, "theirs", "ours"),
            _difference(found),
            _p(found["p"]),
            _p(found["p_different"]),
        ]
        for table, variant, name, found in _in_order(results["variants"], VARIANTS)
    ]
    header = ["table", "variant", "score", "pairs", "RealMLP", "variant's", "difference"]
    return [*header, "p, equally good", "p, different"], lines


def _in_order(compared: Results, names: Iterable[str]) -> list[tuple[str, str, str, Results]]:
    return [
        (table, each, score, found)
        for each in names
        for table in TABLES
        for score, found in compared.get(table, {}).get(each, {}).items()
    ]


def _digits(found: Results) -> int:
    """Return how many decimals numbers have: four, or five where the margin is smaller."""
    return 4 if found["margin"] >= SMALL_MARGIN else 5


def _means(found: Results, *names: str) -> list[str]:
    return [f"{found[name]:.{_digits(found)}f}" for name in names]


def _difference(found: Results) -> str:
    digits = _digits(found)
    return f"{found['difference']:+.{digits}f} ± {found['standard_error']:.{digits}f}"


def _p(value: float) -> str:
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"
