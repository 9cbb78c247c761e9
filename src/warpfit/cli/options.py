"""Options of commands that train: how they are declared, and those that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from warpfit.cli.console import DEVICE_HELP
from warpfit.data.targets import TASKS
from warpfit.optim import Optimizer
from warpfit.training.settings import LOSSES, MODELS, TrainSettings

__all__ = [
    "DATA",
    "NETWORK",
    "OPTIMIZER",
    "RESULTS",
    "RUN",
    "DataDir",
    "Device",
    "ImageSize",
    "Integer",
    "LabelColumn",
    "LabelSmoothing",
    "LossName",
    "Model",
    "Nesterov",
    "Number",
    "Out",
    "Preprocess",
    "Quiet",
    "Seed",
    "Task",
    "Text",
    "default_of",
    "option",
    "suggested",
    "switch",
]

DATA, NETWORK, OPTIMIZER, RUN, RESULTS = "Data", "Network", "Optimizer", "Run", "Results"


def option(panel: str, metavar: str, text: str, default: str | None = None) -> Any:
    """Return an option that is None if not given, so that a settings file can stand in for it."""
    return typer.Option(
        help=text + (f" (default: {default})" if default else ""),
        metavar=metavar,
        rich_help_panel=panel,
    )


def switch(panel: str, flags: str, text: str) -> Any:
    """Return a pair of options, or one, that is None if not given."""
    return typer.Option(flags, help=text, rich_help_panel=panel)


def default_of(name: str) -> str:
    """Return the default of a setting, as text."""
    return str(getattr(TrainSettings, name))


Text = str | None
Integer = int | None
Number = float | None

# Of `warpfit train` and `warpfit sweep`.
DataDir = Annotated[Text, option(DATA, "DIR", "Folder to look for known datasets in first.")]
LabelColumn = Annotated[
    Text,
    option(
        DATA,
        "NAME",
        "Column of a .csv file that has the labels.",
        "label, target, class or y, else the last",
    ),
]
Task = Annotated[
    Text,
    option(
        DATA,
        "NAME",
        f"{', '.join(TASKS)}: what the labels are. auto takes floats, and integers with many "
        "values, as a regression.",
        default_of("task"),
    ),
]
ImageSize = Annotated[
    Text,
    option(
        DATA,
        "H,W|N",
        "Size that the images of a folder are resized to.",
        "their own; of mixed sizes their median, at most 64",
    ),
]
Preprocess = Annotated[
    bool | None,
    switch(
        DATA,
        "--preprocess/--no-preprocess",
        "Standardise columns and float targets, encode text and few-valued columns, fill missing "
        "cells; or take numbers as they are. (default: preprocess)",
    ),
]
Model = Annotated[Text, option(NETWORK, "NAME", f"{' or '.join(MODELS)}.", default_of("model"))]
Nesterov = Annotated[
    bool | None, switch(OPTIMIZER, "--nesterov/--no-nesterov", "Look ahead along the momentum.")
]
LossName = Annotated[
    Text,
    option(
        OPTIMIZER,
        "NAME",
        f"{', '.join(LOSSES)}; auto is cross_entropy for classes, mse for floats.",
    ),
]
LabelSmoothing = Annotated[Number, option(OPTIMIZER, "X", "For cross_entropy.")]
Device = Annotated[
    Text, option(RUN, "NAME", f"{DEVICE_HELP} cuda:all is every GPU.", default_of("device"))
]
Seed = Annotated[
    Integer, option(RUN, "N", "Of initial values, epoch order and dropout.", default_of("seed"))
]
Out = Annotated[Text, option(RESULTS, "DIR", "Folder for the results.", "runs/<time>")]
Quiet = Annotated[bool | None, switch(RESULTS, "--quiet", "Print nothing but errors.")]


def suggested(setting: str) -> str:
    """Return what the optimizers suggest for a setting, as an option's default."""
    names: dict[float, list[str]] = {}
    for name, kind in Optimizer.by_name.items():
        if setting in kind.suggested:
            names.setdefault(kind.suggested[setting], []).append(name)
    return ", ".join(f"{value:g} for {' and '.join(of_value)}" for value, of_value in names.items())
