"""The ladder as a picture: a bar for the time of each rung, on a logarithmic scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpfit.apps.ladder.results import Result
from warpfit.apps.ladder.table import milliseconds, times
from warpfit.plots import new_figure, save_figure

RUNG_COLOR, PEER_COLOR, DEVICE_COLOR = "#3b6fb6", "#b9bec6", "#f2a33a"


def draw(result: Result, path: str | Path | None = None) -> Any:
    """Return a matplotlib Figure of milliseconds per epoch; write it to `path` if given.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or the picture cannot be written.
    """
    records = [record for record in result if record.ran]
    gap = any(record.is_peer for record in records) and any(
        not record.is_peer for record in records
    )
    figure = new_figure(9.0, 1.6 + 0.34 * max(1, len(records) + gap))
    axes = figure.subplots()
    places = [idx + (gap and record.is_peer) for idx, record in enumerate(records)]
    found = [record.ms_per_epoch or 0.0 for record in records]
    colors = [PEER_COLOR if record.is_peer else RUNG_COLOR for record in records]
    axes.barh(places, found, color=colors, height=0.72)
    marked = [
        (place, record.device_ms)
        for place, record in zip(places, records, strict=True)
        if record.device_ms
    ]
    axes.plot(
        [found for _, found in marked],
        [place for place, _ in marked],
        "|",
        color=DEVICE_COLOR,
        ms=16,
        mew=2,
    )
    for place, record in zip(places, records, strict=True):
        text = milliseconds(record.ms_per_epoch) + ("*" if record.is_scaled else "")
        if record.gain_over_first is not None:
            text += f"  {times(record.gain_over_first)}"
        axes.text(record.ms_per_epoch, place, f" {text}", va="center", fontsize=8)
    axes.set_yticks(places, [record.title for record in records], fontsize=9)
    axes.invert_yaxis()
    if records:
        axes.set_xscale("log")
        least = min([*found, *(number for _, number in marked)])
        axes.set_xlim(least / 2, max(found) * (max(found) / min(found)) ** 0.25 * 1.5)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}" if max(found) < 10 * least else "")
    axes.set_title(result.title, fontsize=11)
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    notes = [f"×: as quick as {records[0].title}"] if records else []
    notes += ["grey: programs of others"] if any(record.is_peer for record in records) else []
    notes += ["orange: the device's work"] if marked else []
    notes += ["* fewer steps, scaled"] if any(record.is_scaled for record in records) else []
    axes.set_xlabel("milliseconds per epoch, logarithmic\n" + "; ".join(notes), fontsize=9)
    if path is not None:
        save_figure(figure, path)
    return figure
