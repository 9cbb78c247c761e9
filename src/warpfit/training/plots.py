"""Pictures of a run: curves over the epochs, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.extras import needs

__all__ = ["new_figure", "plot_confusion_matrix", "plot_history"]


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib Figure of a size in inches, or raise ConfigError if matplotlib is not installed."""
    with needs("plot", "pictures need"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


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


def plot_confusion_matrix(
    labels: npt.NDArray[Any], predicted: npt.NDArray[Any], class_names: Sequence[str], title: str = ""
) -> Any:
    """Return a matplotlib Figure of the confusion matrix: true classes in rows, predicted ones in columns."""
    num_classes = len(class_names)
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    matrix = counts.reshape(num_classes, num_classes)
    size = min(12.0, 3.0 + 0.5 * num_classes)
    figure = new_figure(size, size)
    axes = figure.subplots()
    # Shaded by the share of the true class, on a root scale that lets the few mistakes be seen.
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(np.sqrt(share), cmap="Blues", vmin=0, vmax=1)
    ticks = np.arange(num_classes)
    axes.set_xticks(ticks, class_names, rotation=45 if max(map(len, class_names)) > 2 else 0)
    axes.set_yticks(ticks, class_names)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    if num_classes <= 30:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            color = "white" if share[row, column] > 0.3 else "black"
            axes.text(
                column, row, str(matrix[row, column]), ha="center", va="center", color=color, fontsize=8
            )
    return figure
