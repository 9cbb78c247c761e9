"""Figures of matplotlib: how they are made and written; curves over epochs or learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError
from warpfit.extras import needs
from warpfit.files import atomic_path

NO_PICTURES = "matplotlib is not installed, so there are no pictures: pip install 'warpfit[plot]'"


def has_matplotlib() -> bool:
    """Return whether pictures can be drawn; `NO_PICTURES` says what is missing."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib Figure of a size in inches, or ConfigError without matplotlib."""
    with needs("plot", "pictures need"):
        from warpfit.figure import ShownFigure
    return ShownFigure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a matplotlib Figure to a file, whole or not at all, in the format that its name ends
    with.

    Raises
    ------
    ConfigError
        If the name ends otherwise, or the file cannot be written.
    """
    form = Path(path).suffix.lstrip(".") or "png"
    if form.lower() not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"expected a picture's name to end like .png, .svg or .pdf, got {path}")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=form, dpi=120)


def plot_history(columns: Mapping[str, Sequence[Any]], title: str = "") -> Any:
    """Return a matplotlib Figure with loss and, where known, accuracy over the epochs.

    Parameters
    ----------
    columns : mapping of str to sequence
        As `History.to_dict` returns them.
    title : str
        Above the picture.
    """
    panels = [name for name in ("loss", "accuracy") if name in columns or f"val_{name}" in columns]
    figure = new_figure(5.5 * max(1, len(panels)), 4.0)
    for axes, name in zip(np.ravel(figure.subplots(1, max(1, len(panels)))), panels, strict=False):
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            if column in columns:
                axes.plot(columns["epoch"], columns[column], marker="o", markersize=3, label=label)
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    return figure


def plot_rates(
    rates: npt.NDArray[Any],
    losses: npt.NDArray[Any],
    smoothed: npt.NDArray[Any],
    suggestion: float | None,
    title: str = "",
) -> Any:
    """Return a matplotlib Figure with the loss over the learning rate, and the suggested rate."""
    figure = new_figure(5.5, 4.0)
    axes = figure.subplots()
    axes.plot(rates, losses, color="0.75", label="of a batch")
    axes.plot(rates, smoothed, label="smoothed")
    if suggestion is not None:
        axes.axvline(suggestion, color="C1", linestyle="--", label=f"suggestion: {suggestion:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=title)
    if suggestion is not None:  # what explodes would hide the fall
        low, start = float(smoothed.min()), float(smoothed[0])
        axes.set_ylim(low - 0.2 * (start - low), start + (start - low))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
