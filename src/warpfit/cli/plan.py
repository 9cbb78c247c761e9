"""``warpfit plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from warpfit.cli.console import DEVICE_HELP, Printer
from warpfit.errors import ConfigError
from warpfit.training.settings import LOSSES, OPTIMIZERS, merged_settings, optimizers_with

if TYPE_CHECKING:
    from warpfit.training.on_cards import OnCards


def plan(
    hidden: Annotated[
        str, typer.Option(metavar="N,N,...", help="Widths of the hidden layers, or none.")
    ] = "256",
    activation: Annotated[
        str, typer.Option(metavar="NAME", help="relu, gelu, silu, tanh, ...")
    ] = "relu",
    dropout: Annotated[
        float, typer.Option(metavar="P", help="Share of hidden units dropped while training.")
    ] = 0.0,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help=f"{', '.join(OPTIMIZERS)}.")
    ] = "sgd",
    momentum: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"For {' and '.join(optimizers_with('momentum'))}."),
    ] = None,
    clip_norm: Annotated[
        float, typer.Option(metavar="X", help="Largest norm of all gradients together; 0 for any.")
    ] = 0.0,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help=f"{', '.join(LOSSES)}; auto is cross_entropy.")
    ] = "auto",
    batch_size: Annotated[int, typer.Option(metavar="N", help="Rows a step.")] = 64,
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
) -> None:
    """Show how a network would be trained in one kernel launch, and what it takes."""
    given = {"hidden": hidden, "activation": activation, "dropout": dropout, "optimizer": optimizer}
    given |= {"momentum": momentum, "clip_norm": clip_norm, "loss": loss, "batch_size": batch_size}
    settings = merged_settings({**given, "precision": precision, "device": device})

    printer = Printer()
    widths = "-".join(map(str, (features, *(settings.hidden or ()), outputs)))

    from warpfit.training.paper import cards_on_paper, launch_on_paper, plan_on_paper

    of_data = {"num_rows": rows, "features": features, "outputs": outputs}
    if cards is not None:
        if card is not None or source:
            raise ConfigError("expected --cards alone, for H200s, got --card or --source, too")
        on_paper = cards_on_paper(settings, **of_data, cards=cards)
        title = f"{widths}, {optimizer}, batch {batch_size}, shared by {cards} H200s"
        printer.line(title, style="bold")
        _show_cards(printer, on_paper)
        printer.line("in one launch, a batch of all rows", style="bold")
        alone, shared = (launch_on_paper(settings, **of_data, cards=n) for n in (1, cards))
        printer.pairs((("  on one card", _launched(alone)), ("  on all cards", _launched(shared))))
        return
    found, launch = plan_on_paper(settings, **of_data, card=card)
    printer.line(
        f"{widths}, {found.optimizer.kind}, {found.loss.name}, batch {batch_size}", style="bold"
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
            ("bytes that each card sends", f"{found.nbytes:>14,}"),
            ("efficiency", f"{found.efficiency:>14.0%}"),
        )
    )


def _launched(found: float | str) -> str:
    return f"not trained so: {found}" if isinstance(found, str) else f"{found:>14,.1f} us"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:>14,.0f} us"
