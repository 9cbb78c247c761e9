"""``warpfit playground``."""

from __future__ import annotations

from typing import Annotated

import typer

from warpfit.cli.console import Device, Printer

DEFAULT_PORT = 8421


def playground(
    port: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=65535, help="Port of 127.0.0.1; 0 for any that is free."
        ),
    ] = DEFAULT_PORT,
    device: Device = "auto",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page.")] = False,
) -> None:
    """Open a page to draw digits on, change a network and watch it train."""
    from warpfit.apps.playground import open_playground

    found = open_playground(port=port, device=device)
    printer = Printer()
    printer.fallback(device, found.device)
    printer.line(f"{found.url}  ({found.device_label}, {found.digits.data.name}; Ctrl-C ends it)")
    found.serve(browser=not no_browser)
    printer.line("ended")
