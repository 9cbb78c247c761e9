"""``warpfit plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import Device, Printer
from warpfit.cli.options import MOST_ROWS, OF_LAUNCHES, taking
from warpfit.errors import ConfigError
from warpfit.training.settings import DEFAULT_BATCH, TrainSettings, merged_settings

if TYPE_CHECKING:
    from warpfit.training.on_cards import OnCards


@taking(OF_LAUNCHES)
def plan(
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_ROWS, help="Training rows.")
    ] = 60_000,
    features: Annotated[int, typer.Option(metavar="N", min=1, help="Bytes of a row.")] = 784,
    outputs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Classes, or numbers to predict.")
    ] = 10,
    device: Device = "auto",
    card: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A card in place of a device, such as h200; an unknown one is answered with all.",
        ),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the kernel's source as well.")
    ] = False,
    cards: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Show what is expected of so many H200s that share each batch, step by step.",
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Show how a network would be trained in one kernel launch, and what it takes."""
    given = {name: value for name, value in flags.items() if value is not None}
    default = {"hidden": "256", "batch_size": DEFAULT_BATCH, "device": device}
    settings, printer = merged_settings({**default, **given}), Printer()
    of_data = {"num_rows": rows, "features": features, "outputs": outputs}
    if cards is None:
        _show_launch(printer, settings, of_data, card, source=source)
        return
    if card is not None or source or device != "auto":
        raise ConfigError(
            "expected --cards alone, for H200s, got --card, --device or --source, too"
        )
    _show_cards(printer, settings, of_data, cards)


def _show_launch(
    printer: Printer,
    settings: TrainSettings,
    of_data: dict[str, int],
    card: str | None,
    *,
    source: bool,
) -> None:
    from warpfit.training.paper import plan_on_paper

    found, launch = plan_on_paper(settings, **of_data, card=card)
    network = f"{_widths(settings, of_data)}, {found.optimizer.name}, {found.loss.name}"
    printer.line(f"{network}, batch {settings.batch_size}", style="bold")
    printer.line(f"one_launch in {found.precision}: {found.reason}")
    for title, unit, sizes in (
        ("registers", "", launch.registers),
        ("shared memory of a block", " B", launch.shared),
        ("memory of the device", " B", launch.device),
    ):
        printer.line(title, style="bold")
        printer.pairs((f"  {name}", f"{size:>15,}{unit}") for name, size in sizes)
    if source:
        printer.line()
        printer.line(launch.source)


def _show_cards(
    printer: Printer, settings: TrainSettings, of_data: dict[str, int], cards: int
) -> None:
    from warpfit.training.paper import cards_on_paper, launch_on_paper

    on_paper = cards_on_paper(settings, **of_data, cards=cards)
    network = f"{_widths(settings, of_data)}, {settings.optimizer}"
    title = f"{network}, batch {settings.batch_size}, shared by {cards} H200s"
    printer.line(title, style="bold")
    _show_expected(printer, on_paper)
    printer.line("in one launch, a batch of all rows", style="bold")
    alone, shared = (launch_on_paper(settings, **of_data, cards=n) for n in (1, cards))
    printer.pairs((("  on one card", _launched(alone)), ("  on all cards", _launched(shared))))


def _widths(settings: TrainSettings, of_data: dict[str, int]) -> str:
    widths = (of_data["features"], *(settings.hidden or ()), of_data["outputs"])
    return "-".join(map(str, widths))


def _show_expected(printer: Printer, found: OnCards) -> None:
    printer.pairs(
        (f"  {name}", value)
        for name, value in (
            ("a step on one card, of its rows", _microseconds(found.alone)),
            ("a step on all cards", _microseconds(found.seconds)),
            ("sums of gradients", _microseconds(found.sums)),
            ("bytes that each card sends", f"{found.nbytes:>14,}"),
            ("efficiency", f"{found.efficiency:>14.0%}"),
        )
    )


def _launched(found: float | str) -> str:
    return f"not trained so: {found}" if isinstance(found, str) else f"{found:>14,.1f} us"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:>14,.0f} us"
