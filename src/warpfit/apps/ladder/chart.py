"""The ladder as a picture: a bar for the time of each rung, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from warpfit.apps.ladder.results import Record, Result
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
    has_peers = any(record.is_peer for record in records)
    gap = has_peers and any(not record.is_peer for record in records)
    figure = new_figure(9.0, 1.6 + 0.34 * max(1, len(records) + gap))
    axes = figure.subplots()
    places = [idx + (gap and record.is_peer) for idx, record in enumerate(records)]
    _draw_bars(axes, places, records)
    axes.set_title(result.title, fontsize=11)
    notes = [f"×: as quick as {records[0].title}"] if records else []
    notes += ["grey: programs of others"] if has_peers else []
    notes += ["orange: the device's work"] if any(record.device_ms for record in records) else []
    notes += ["* fewer steps, scaled"] if any(record.is_scaled for record in records) else []
    axes.set_xlabel("milliseconds per epoch, logarithmic\n" + "; ".join(notes), fontsize=9)
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_bars(axes: Any, places: Sequence[int], records: Sequence[Record]) -> None:
    """Draw a bar with its numbers for each record, and a mark for the device's work."""
    colors = [PEER_COLOR if record.is_peer else RUNG_COLOR for record in records]
    found = [record.ms_per_epoch or 0.0 for record in records]
    axes.barh(places, found, color=colors, height=0.72)
    on_device = [record.device_ms or nan for record in records]
    axes.plot(on_device, places, "|", color=DEVICE_COLOR, ms=16, mew=2)
    for place, record in zip(places, records, strict=True):
        text = milliseconds(record.ms_per_epoch) + ("*" if record.is_scaled else "")
        if record.gain_over_first is not None:
            text += f"  {times(record.gain_over_first)}"
        axes.text(record.ms_per_epoch, place, f" {text}", va="center", fontsize=8)
    axes.set_yticks(places, [record.title for record in records], fontsize=9)
    axes.invert_yaxis()
    if records:
        _scale(
            axes, found, min(found + [record.device_ms for record in records if record.device_ms])
        )
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(axes: Any, found: Sequence[float], least: float) -> None:
    """Make the axis of times logarithmic, with room for the numbers beside the longest bar."""
    most = max(found)
    axes.set_xscale("log")
    axes.set_xlim(least / 2, most * (most / min(found)) ** 0.25 * 1.5)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}" if most < 10 * least else "")
