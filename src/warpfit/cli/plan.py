"""``warpfit plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import DEVICE_HELP, Printer
from warpfit.cli.options import OF_TRAINING, taking
from warpfit.training.settings import merged_settings

SETTINGS = (
    *("hidden", "activation", "dropout", "optimizer", "momentum", "clip_norm", "loss"),
    "batch_size",
)

if TYPE_CHECKING:
    from warpfit.training.on_cards import OnCards


@taking({name: OF_TRAINING[name] for name in SETTINGS})
def plan(
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Training rows.")] = 60_000,
    features: Annotated[int, typer.Option(metavar="N", min=1, help="Bytes of a row.")] = 784,
    outputs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Classes, or numbers to predict.")
    ] = 10,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="float16, bfloat16 or float32; auto is float16.")
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="NAME", help=DEVICE_HELP)] = "auto",
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
    settings = merged_settings({**flags, "precision": precision, "device": device})

    printer = Printer()

    from warpfit.training.paper import cards_on_paper, plan_on_paper
    from warpfit.training.place import widths_of

    of_data = {"num_rows": rows, "features": features, "outputs": outputs}
    if cards is not None:
        widths = "-".join(map(str, (features, *(settings.hidden or ()), outputs)))
        title = f"{widths}, {settings.optimizer}, batch {settings.batch_size}"
        printer.line(f"{title}, shared by {cards} H200s", style="bold")
        _show_cards(printer, cards_on_paper(settings, **of_data, cards=cards))
        return
    found, launch = plan_on_paper(settings, **of_data, card=card)
    widths = "-".join(map(str, widths_of(found.network) or ()))
    printer.line(
        f"{widths}, {found.optimizer.kind}, {found.loss.name}, batch {found.batch_size}",
        style="bold",
    )
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


def _show_cards(printer: Printer, found: OnCards) -> None:
    printer.pairs(
        (f"  {name}", value)
        for name, value in (
            ("a step on one card, of its rows", _microseconds(found.alone)),
            ("a step on all cards", _microseconds(found.seconds)),
            ("sums of gradients", _microseconds(found.sums)),
            ("of these hidden", f"{found.hidden:>14.0%}"),
            ("bytes that each card sends", f"{found.nbytes:>14,}"),
            ("efficiency", f"{found.efficiency:>14.0%}"),
        )
    )


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:>14,.0f} us"
