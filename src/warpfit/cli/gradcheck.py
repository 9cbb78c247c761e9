"""``warpfit gradcheck``."""

from __future__ import annotations

from typing import Annotated

import typer

from warpfit.cli.console import Device, Printer
from warpfit.errors import ConfigError

DTYPES = {"float64": ("float64",), "float32": ("float32",), "both": ("float64", "float32")}


def gradcheck(
    dtype: Annotated[str, typer.Option(help="float64, float32 or both.", metavar="NAME")] = "both",
    only: Annotated[
        str | None, typer.Option(help="Only checks whose names contain this.", metavar="TEXT")
    ] = None,
    device: Device = "auto",
) -> None:
    """Compare every derivative with central differences, and show the worst entry of each."""
    from warpfit.backends import resolve_device
    from warpfit.standard_checks import standard_checks

    if dtype not in DTYPES:
        raise ConfigError(f"expected dtype among {', '.join(DTYPES)}, got {dtype!r}")
    place = resolve_device(device)
    checks = [
        (name, check)
        for name, check in standard_checks(place)
        if name.endswith(DTYPES[dtype]) and (only is None or only.lower() in name.lower())
    ]
    if not checks:
        raise ConfigError(f"expected part of a check's name, got {only!r}, which is in none")
    results = [(name, check()) for name, check in checks]
    printer = Printer()
    printer.fallback(device, place)
    printer.table(
        ("check", "worst error", "tolerance", "at", "analytic", "numeric", ""),
        [
            (
                name,
                f"{result.worst_error:.1e}",
                f"{result.tolerance:.0e}",
                result.worst_entry,
                f"{result.worst.analytic:.6g}",
                f"{result.worst.numeric:.6g}",
                "ok" if result.passed else "FAILED",
            )
            for name, result in results
        ],
        right=("worst error", "tolerance", "analytic", "numeric"),
    )
    failed = [name for name, result in results if not result.passed]
    printer.line(f"{len(results) - len(failed)} of {len(results)} checks passed")
    if failed:
        raise typer.Exit(1)
