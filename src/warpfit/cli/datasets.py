"""``warpfit datasets``."""

from __future__ import annotations

from typing import Annotated

import typer

from warpfit.cli.console import Printer


def datasets(
    data_dir: Annotated[
        str | None, typer.Option(help="Folder to look in first.", metavar="DIR")
    ] = None,
) -> None:
    """List the known datasets, and where they were found."""
    from warpfit.data import available_datasets
    from warpfit.data.registry import DATASETS

    Printer().table(
        ("name", "samples", "classes", "found in", "source"),
        [
            (
                listing.name,
                listing.shape,
                str(len(DATASETS[listing.name].class_names)),
                listing.location or "not here",
                listing.source + ("" if listing.tried else " (download not yet tried)"),
            )
            for listing in available_datasets(data_dir)
        ],
        right=("classes",),
    )
