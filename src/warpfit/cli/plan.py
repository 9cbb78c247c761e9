"""``warpfit plan``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from warpfit.cli.console import DEVICE_HELP, Printer
from warpfit.cli.options import OF_TRAINING, taking
from warpfit.training.settings import merged_settings

SETTINGS = (
    *("hidden", "activation", "dropout", "optimizer", "momentum", "clip_norm", "loss"),
    "batch_size",
)


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
    **flags: Any,
) -> None:
    """Show how a network would be trained in one kernel launch, and what it takes."""
    settings = merged_settings({**flags, "precision": precision, "device": device})

    from warpfit.training.paper import plan_on_paper
    from warpfit.training.place import widths_of

    found, launch = plan_on_paper(
        settings, num_rows=rows, features=features, outputs=outputs, card=card
    )
    printer = Printer()
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
