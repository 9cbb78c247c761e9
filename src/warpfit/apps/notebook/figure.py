"""Draws what came out of a training: curves, mistakes, samples, weights."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np

from warpfit.apps.notebook.trainer import DemoRun, Trainer
from warpfit.checks import Array
from warpfit.plots import new_figure

TRAINING, TEST, RIGHT, WRONG, QUIET = "#4269d0", "#ff725c", "#2a9d5c", "#d1344b", "#6b7280"
SMOOTHED_OVER = 25  # parts that the steps of a run are averaged in


def draw(run: DemoRun, trainer: Trainer) -> Any:
    """Return a matplotlib Figure of a run; of one without a result, a Figure that says why."""
    figure = new_figure(12.5, 7.6)
    if run.error is not None:
        figure.text(0.5, 0.55, "no result", ha="center", fontsize=20, color=WRONG, weight="bold")
        figure.text(0.5, 0.5, fill(run.error, 90), ha="center", va="top", fontsize=12, color=QUIET)
        return figure
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.08, 1.0))
    loss, accuracy, confusion = top.subplots(1, 3, width_ratios=(1.15, 1.15, 1.0))
    samples, weights = bottom.subfigures(1, 2, width_ratios=(1.45, 1.0))
    _title(figure, run, trainer)
    _draw_loss(loss, run)
    _draw_accuracy(accuracy, run)
    _draw_confusion(confusion, run, trainer.dataset.class_names)
    _draw_samples(samples, run, trainer)
    _draw_weights(weights, run)
    return figure


def _title(figure: Any, run: DemoRun, trainer: Trainer) -> None:
    settings, plan = run.settings, run.history.plan
    steps = sum(len(report.step_losses) for report in run.history)
    figure.suptitle(
        f"{run.accuracy:.2%} of {len(trainer.dataset.y_test):,} test digits right, after "
        f"{_duration(run.seconds)}\n",
        fontsize=17,
        weight="bold",
    )
    network = "-".join(map(str, run.sizes))
    words = (
        f"{network} ({run.num_parameters:,} parameters), {settings.optimizer}, rate "
        f"{settings.lr:.3g}, batch {settings.batch_size}: {len(run.history)} epochs, {steps:,} "
        f"steps on {trainer.device_name}, {plan.precision}, engine {plan.engine}"
    )
    figure.text(0.5, 0.945, words, ha="center", va="center", fontsize=10.5, color=QUIET)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _draw_loss(axes: Any, run: DemoRun) -> None:
    epochs, losses = run.history["epoch"], run.history.step_losses
    place = np.arange(1, len(losses) + 1) / len(losses) * len(epochs)
    axes.plot(place, losses, color=TRAINING, alpha=0.22, linewidth=0.8)
    parts = np.array_split(np.arange(len(losses)), min(SMOOTHED_OVER, len(losses)))
    axes.plot(
        [place[part].mean() for part in parts],
        [losses[part].mean() for part in parts],
        color=TRAINING,
        linewidth=2,
        label="training",
    )
    axes.plot(epochs, run.history["val_loss"], "o-", color=TEST, markersize=3.5, label="test")
    axes.set(title="loss", xlabel="epoch", yscale="log")
    _finish(axes, "upper right")


def _draw_accuracy(axes: Any, run: DemoRun) -> None:
    epochs = run.history["epoch"]
    for column, color, label in (
        ("accuracy", TRAINING, "training"),
        ("val_accuracy", TEST, "test"),
    ):
        axes.plot(
            epochs, run.history[column], "o-", color=color, markersize=3.5, linewidth=2, label=label
        )
    axes.set(title="accuracy", xlabel="epoch", xlim=(0, len(epochs) + 0.4))
    axes.yaxis.set_major_formatter(
        lambda value, _: f"{value:.4g}" if value > 1 else f"{100 * value:.4g} %"
    )
    _finish(axes, "lower right")


def _finish(axes: Any, place: str) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc=place, frameon=False)


def _draw_confusion(axes: Any, run: DemoRun, class_names: tuple[str, ...]) -> None:
    # Shaded by the share of the true class, on a root scale that lets the few mistakes be seen.
    share = run.confusion / np.maximum(run.confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(np.sqrt(share), cmap="Blues", vmin=0, vmax=1)
    ticks = np.arange(len(class_names))
    axes.set_xticks(ticks, class_names)
    axes.set_yticks(ticks, class_names)
    axes.set(title="test digits: true and predicted", xlabel="predicted", ylabel="true")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in zip(*np.nonzero(run.confusion), strict=True):
        color = "white" if share[row, column] > 0.3 else "black"
        count = str(run.confusion[row, column])
        axes.text(column, row, count, ha="center", va="center", color=color, fontsize=7)


def _draw_samples(figure: Any, run: DemoRun, trainer: Trainer) -> None:
    """Draw the samples in a row, and what the network says of each in the column below."""
    labels, names = trainer.dataset.y_test[run.samples], trainer.dataset.class_names
    predicted, count = run.probabilities.argmax(axis=1), len(run.samples)
    figure.suptitle(
        "the first of each class, and the worst mistakes: probabilities, %", fontsize=12
    )
    pictures, table = figure.subplots(
        2, 1, sharex=True, height_ratios=(1.9, len(names)), gridspec_kw={"hspace": 0}
    )
    tiles = [_framed(trainer.image(row)) for row in run.samples]
    pictures.imshow(
        np.hstack(tiles), cmap="gray_r", extent=(-0.5, count - 0.5, 0, 1), aspect="auto"
    )
    pictures.axis("off")
    table.imshow(_shaded(run.probabilities, labels), aspect="auto")
    for column, (label, guess) in enumerate(zip(labels, predicted, strict=True)):
        for name in {label, guess}:
            share = run.probabilities[column, name]
            color = "white" if share > 0.45 else "black"
            table.text(
                column,
                name,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color=color,
            )
    table.axvline(len(names) - 0.5, color=QUIET, linewidth=1)
    table.set_yticks(np.arange(len(names)), names)
    table.set_xticks(np.arange(count), [names[label] for label in labels])
    table.set(xlabel="true", ylabel="predicted")
    table.tick_params(length=0)
    table.spines[:].set_visible(False)
    table.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    table.set_xticks(np.arange(count - 1) + 0.5, minor=True)
    table.grid(which="minor", color="#e5e7eb", linewidth=0.6)
    table.tick_params(which="minor", length=0)


def _shaded(probabilities: Array, labels: Array) -> Array:
    """Return a picture (C, S, 3) of probabilities, that of the true class in another colour."""
    is_true = labels[:, None] == np.arange(probabilities.shape[1])
    color = np.where(is_true[..., None], _rgb(RIGHT), _rgb(WRONG))
    return np.asarray(1 - probabilities[..., None] * (1 - color)).transpose(1, 0, 2)


def _rgb(color: str) -> Array:
    return np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])


def _framed(image: Array) -> Array:
    """Return an image from 0 to 1 with a margin of zeros, so that neighbours do not touch."""
    margin = max(1, len(image) // 14)
    return np.pad(image / max(float(image.max()), 1e-9), margin)


def _draw_weights(figure: Any, run: DemoRun) -> None:
    units = len(run.weights)
    of = run.sizes[1]
    figure.suptitle(
        f"first-layer weights of {'all' if units == of else 'the first'} {units} units", fontsize=12
    )
    axes = figure.subplots()
    axes.imshow(_mosaic(run.weights), cmap="RdBu", vmin=-1, vmax=1)
    axes.axis("off")


def _mosaic(images: Array) -> Array:
    """Return images side by side, each scaled by its largest magnitude; NaN is between them."""
    columns = 5 if len(images) == 10 else min(8, len(images))
    rows, side = -(-len(images) // columns), images.shape[1]
    gap = max(1, side // 14)
    pitch = side + gap
    mosaic = np.full((rows * pitch - gap, columns * pitch - gap), np.nan, np.float32)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        place = mosaic[row * pitch :, column * pitch :]
        place[:side, :side] = image / max(float(np.abs(image).max()), 1e-9)
    return mosaic
