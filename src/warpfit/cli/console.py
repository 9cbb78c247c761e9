"""What all commands print with: plain lines and tables, coloured on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from warpfit.training.trained import Score

DEVICE_HELP = (
    "auto, cpu, cuda, cuda:1, ...; auto is the first GPU, or the CPU where there is none, and for "
    "short training."
)
Device = Annotated[str, typer.Option(help=DEVICE_HELP, metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WIDTH_OF_A_LOG = 400  # wide enough that no line of a log file is broken


class Printer:
    """Prints to standard output, unless it is quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        width = None if sys.stdout.isatty() else WIDTH_OF_A_LOG
        self.console = Console(quiet=quiet, width=width, highlight=False, markup=False, emoji=False)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line of text, which is not broken however long it is."""
        self.console.print(text, style=style, soft_wrap=True)

    def lines(self, texts: Iterable[str]) -> None:
        """Print lines of text."""
        for text in texts:
            self.line(text)

    def fallback(self, asked: str, used: str) -> None:
        """Say in one line why the work goes to the CPU, if that was not asked for."""
        from warpfit.backends import preferred_device

        if not asked == preferred_device() == "auto" or used != "cpu":
            return
        from warpfit.backends.cuda.runtime import why_unavailable

        if reason := why_unavailable():
            self.line(f"device 'auto' is the CPU: {reason}")

    def stand_in(self, asked: str | None, used: str) -> None:
        """Say in one line that MNIST could not be had, if no other data were asked for."""
        if asked is None and used != "mnist":
            self.line(
                f"MNIST was not found and could not be downloaded: training on {used} instead."
            )

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Print a table with a header; the columns named in `right` are aligned to the right."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(
                column, justify="right" if column in right else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values, one pair a line, the values aligned."""
        rows = list(rows)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.line(f"{name:<{width}}  {value}")


def percent(share: float | None) -> str:
    """Return a share as a percentage; ``-`` for None."""
    return "-" if share is None else f"{share:.2%}"


def r_squared(r2: float | None) -> str:
    """Return a share of explained variance as text; ``-`` for None."""
    return "-" if r2 is None else f"{r2:.4f}"


def score_rows(score: Score, prefix: str = "") -> list[tuple[str, str]]:
    """Return how a model does as names and values."""
    evaluation, regression = score.evaluation, score.regression
    rows = [("accuracy", percent(evaluation.accuracy))] if evaluation.accuracy is not None else []
    if regression is not None:
        rows += [("R²", r_squared(regression.r2)), ("mean absolute error", f"{regression.mae:.6g}")]
        rows += [("root mean square error", f"{regression.rmse:.6g}")]
    rows.append(
        (f"loss ({score.loss_unit})" if score.loss_unit else "loss", f"{evaluation.loss:.4f}")
    )
    return [(prefix + name, value) for name, value in rows]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
