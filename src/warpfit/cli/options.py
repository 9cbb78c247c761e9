"""Options of commands that train: how they are declared, and those that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar

import typer

from warpfit.backends.base import PRECISIONS
from warpfit.cli.console import DEVICE_HELP
from warpfit.data.targets import TASKS
from warpfit.optim import Optimizer
from warpfit.training.plan import ENGINES
from warpfit.training.settings import (
    DEFAULT_BATCH,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    TrainSettings,
)

DATA, NETWORK, OPTIMIZER, RUN, RESULTS = "Data", "Network", "Optimizer", "Run", "Results"
# What a placeholder stands for; all others are texts.
KINDS = {"N": int, "X": float, "P": float, "S": float}

Command = TypeVar("Command", bound=Callable[..., None])


def option(panel: str, metavar: str, text: str, default: str | None = None) -> Any:
    """Return an option that is None if not given, so that a settings file can stand in for it."""
    words = text + (f" (default: {default})" if default else "")
    declared = typer.Option(help=words, metavar=metavar, rich_help_panel=panel)
    return Annotated[KINDS.get(metavar, str) | None, declared]


def switch(panel: str, flags: str, text: str) -> Any:
    """Return a pair of options, or one, that is None if not given."""
    return Annotated[bool | None, typer.Option(flags, help=text, rich_help_panel=panel)]


def several(declared: Any) -> Any:
    """Return an option that takes several values, separated by commas, as text."""
    told = declared.__metadata__[0]
    return option(told.rich_help_panel, f"{told.metavar},...", told.help)


def taking(options: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator for a command whose ``**flags``, after others, are these options."""

    def declare(command: Command) -> Command:
        *own, _ = signature(command, eval_str=True).parameters.values()
        flags = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=declared)
            for name, declared in options.items()
        ]
        command.__signature__ = Signature([*own, *flags])  # type: ignore[attr-defined]
        return command

    return declare


def _default(name: str) -> str:
    return str(getattr(TrainSettings, name))


def _suggested(setting: str) -> str:
    """Return what the optimizers suggest for a setting, as an option's default."""
    names: dict[float, list[str]] = {}
    for name, kind in Optimizer.by_name.items():
        if setting in kind.suggested:
            names.setdefault(kind.suggested[setting], []).append(name)
    return ", ".join(f"{value:g} for {' and '.join(of_value)}" for value, of_value in names.items())


# Of `warpfit train` and `warpfit sweep`, by the names of `TrainSettings`.
OF_TRAINING = {
    "data": option(
        DATA,
        "NAME|PATH",
        "A known dataset (see `warpfit datasets`), an .npz file, a .csv file, or a folder of "
        "images with a sub-folder a class.",
        "mnist; digits without MNIST and network",
    ),
    "data_dir": option(DATA, "DIR", "Folder to look for known datasets in first."),
    "label_column": option(
        DATA,
        "NAME",
        "Column of a .csv file that has the labels.",
        "label, target, class or y, else the last",
    ),
    "task": option(
        DATA,
        "NAME",
        f"{', '.join(TASKS)}: what the labels are. auto takes floats, and integers with many "
        "values, as a regression.",
        _default("task"),
    ),
    "image_size": option(
        DATA,
        "H,W|N",
        "Size that the images of a folder are resized to.",
        "their own; of mixed sizes their median, at most 64",
    ),
    "preprocess": switch(
        DATA,
        "--preprocess/--no-preprocess",
        "Standardise columns and float targets, encode text and few-valued columns, fill missing "
        "cells; or take numbers as they are. (default: preprocess)",
    ),
    "limit": option(DATA, "N", "Train on the first N rows only; 0 for all."),
    "model": option(NETWORK, "NAME", f"{' or '.join(MODELS)}.", _default("model")),
    "hidden": option(
        NETWORK, "N,N,...", "Widths of the hidden layers, or none.", "256; 128 for cnn"
    ),
    "activation": option(NETWORK, "NAME", "relu, gelu, silu, tanh, ...", _default("activation")),
    "dropout": option(
        NETWORK, "P", "Share of hidden units dropped while training.", "0; 0.5 for cnn"
    ),
    "optimizer": option(OPTIMIZER, "NAME", f"{', '.join(OPTIMIZERS)}.", _default("optimizer")),
    "lr": option(OPTIMIZER, "X", "Learning rate.", _suggested("lr")),
    "momentum": option(OPTIMIZER, "X", "Share of the last velocity kept.", _suggested("momentum")),
    "nesterov": switch(OPTIMIZER, "--nesterov/--no-nesterov", "Look ahead along the momentum."),
    "weight_decay": option(
        OPTIMIZER,
        "X",
        "Weight decay.",
        f"{_suggested('weight_decay')}, 10 / rows for tables, else 0",
    ),
    "clip_norm": option(OPTIMIZER, "X", "Largest norm of all gradients together; 0 for any."),
    "schedule": option(
        OPTIMIZER, "NAME", f"Of the learning rate: {', '.join(SCHEDULES)}.", _default("schedule")
    ),
    "loss": option(
        OPTIMIZER,
        "NAME",
        f"{', '.join(LOSSES)}; auto is cross_entropy for classes, mse for floats.",
    ),
    "label_smoothing": option(OPTIMIZER, "X", "For cross_entropy."),
    "epochs": option(
        RUN,
        "N",
        "Passes over the data.",
        "5, 10 for cnn; more for small data: 1,000 steps, at most 100",
    ),
    "batch_size": option(RUN, "N", "Rows a step.", f"{DEFAULT_BATCH}; 2000 with --recipe"),
    "precision": option(
        RUN,
        "NAME",
        f"auto, {', '.join(PRECISIONS)}; the last three on a GPU. auto is float16 or bfloat16 "
        "for the engines one_launch and graph, as the data needs, and float32 for layerwise.",
        _default("precision"),
    ),
    "device": option(
        RUN,
        "NAME,...",
        f"{DEVICE_HELP} Several train one network together, or those of a sweep in turn; cuda:all "
        "is every GPU.",
        _default("device"),
    ),
    "engine": option(
        RUN,
        "NAME",
        f"auto, {', '.join(ENGINES)}. auto is one_launch on a GPU where that can run the "
        "network, else graph, and layerwise on the CPU; what is printed says why.",
        _default("engine"),
    ),
    "seed": option(RUN, "N", "Of initial values, epoch order and dropout.", _default("seed")),
    "early_stopping": option(
        RUN,
        "N",
        "Stop after N epochs without a better validation loss, and keep the best weights. A "
        "tenth of the training rows is held out for it.",
    ),
    "out": option(RESULTS, "DIR", "Folder for the results, new or empty.", "runs/<time>"),
    "quiet": switch(RESULTS, "--quiet", "Print nothing but errors."),
}
# Of networks on paper, whose data need not be there.
MOST_ROWS = 10**12
# Of `warpfit plan` and `warpfit cache`, which have no data and no model to choose by: those that a
# launch depends on.
OF_LAUNCHES = {
    "hidden": option(NETWORK, "N,N,...", "Widths of the hidden layers, or none.", "256"),
    "activation": OF_TRAINING["activation"],
    "dropout": option(NETWORK, "P", "Share of hidden units dropped while training.", "0"),
    "optimizer": OF_TRAINING["optimizer"],
    "momentum": OF_TRAINING["momentum"],
    "clip_norm": OF_TRAINING["clip_norm"],
    "loss": option(OPTIMIZER, "NAME", f"{', '.join(LOSSES)}; auto is cross_entropy.", "auto"),
    "batch_size": option(RUN, "N", "Rows a step.", str(DEFAULT_BATCH)),
    "precision": option(RUN, "NAME", "float16, bfloat16 or float32; auto is float16.", "auto"),
}
