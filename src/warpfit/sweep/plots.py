"""A picture of a sweep: an axis for every value that varies, a line for every candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log10
from typing import Any

import numpy as np

from warpfit.plots import new_figure
from warpfit.sweep.candidates import value_text
from warpfit.sweep.metric import Metric

# Of a candidate; see `Sweep.candidates`.
Summary = dict[str, Any]

LOGARITHMIC_FROM = 10.0  # largest over smallest value
LEAST_ALPHA, MOST_CANDIDATES_OPAQUE = 0.3, 40
GREY = "0.75"
MOST_TICKS = 8
SPREAD = 0.06  # of an axis, which candidates of equal values take


def plot_sweep(candidates: Sequence[Summary], metric: Metric, title: str = "") -> Any:
    """Return a matplotlib Figure in parallel coordinates: candidates by their values, coloured by
    their scores.

    Candidates without a score are grey, and end at the bottom of the last axis; the best one is
    drawn thick.
    """
    names = _varied(candidates)
    scored = [summary for summary in candidates if summary["score"] is not None]
    figure = new_figure(max(6.0, 1.6 * (len(names) + 2)), 4.5)
    axes = figure.subplots()
    scales = [_scale([summary["candidate"].get(name) for summary in candidates]) for name in names]
    last = _numbers([summary["score"] for summary in scored] or [0.0, 1.0], is_logarithmic=False)
    colours = _colours(metric, scored)
    alpha = max(LEAST_ALPHA, min(0.9, MOST_CANDIDATES_OPAQUE / max(1, len(candidates))))
    ranked = _best_first(candidates)
    columns = [
        _spread([scale.height(summary["candidate"].get(name)) for summary in ranked])
        for name, scale in zip(names, scales, strict=True)
    ]
    lines = list(zip(*columns, strict=True)) or [()] * len(ranked)
    for summary, heights in reversed(list(zip(ranked, lines, strict=True))):
        is_scored, is_best = summary["score"] is not None, summary["rank"] == 1
        end = last.height(summary["score"]) if is_scored else -0.05
        axes.plot(
            *_smooth([*heights, end]),
            color=colours(summary["score"]) if is_scored else GREY,
            alpha=1.0 if is_best else alpha,
            linewidth=3.0 if is_best else 1.2,
            zorder=3 if is_best else 2 if is_scored else 1,
            marker="" if names else "o",
        )
    _draw_axes(axes, [*names, str(metric)], [*scales, last])
    axes.set_title(title)
    return figure


def _varied(candidates: Sequence[Summary]) -> list[str]:
    """Return the names of values that are not the same for all candidates."""
    names = dict.fromkeys(name for summary in candidates for name in summary["candidate"])
    return [name for name in names if len({repr(s["candidate"].get(name)) for s in candidates}) > 1]


def _best_first(candidates: Sequence[Summary]) -> list[Summary]:
    lowest = len(candidates) + 1
    return sorted(candidates, key=lambda summary: summary["rank"] or lowest)


def _colours(metric: Metric, scored: Sequence[Summary]) -> Callable[[float], Any]:
    """Return the function from a score to its colour, the best bright."""
    from matplotlib import colormaps

    scores = [summary["score"] for summary in scored] or [0.0]
    low, high = min(scores), max(scores)
    bright = colormaps["viridis"]

    def colour(score: float) -> Any:
        share = (score - low) / (high - low) if high > low else 1.0
        return bright(0.95 * (share if metric.is_greater_better else 1 - share))

    return colour


class _Scale:
    """From a value to its height on an axis, in [0, 1], and the values that the axis names."""

    def __init__(self, height: Callable[[Any], float], ticks: Sequence[tuple[float, str]]) -> None:
        self.height, self.ticks = height, ticks


def _scale(values: Sequence[Any]) -> _Scale:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        low, high = min(numbers), max(numbers)
        return _numbers(numbers, is_logarithmic=low > 0 and high / low >= LOGARITHMIC_FROM)
    texts = list(dict.fromkeys(map(value_text, values)))
    places = {text: idx / max(1, len(texts) - 1) for idx, text in enumerate(texts)}
    return _Scale(
        lambda value: places[value_text(value)], [(place, text) for text, place in places.items()]
    )


def _numbers(values: Sequence[float], *, is_logarithmic: bool) -> _Scale:
    if is_logarithmic:
        inner = _numbers([log10(value) for value in values], is_logarithmic=False)
        ticks = [(inner.height(log10(value)), f"{value:g}") for value in _few(values)]
        return _Scale(lambda value: inner.height(log10(value)), ticks)
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    shown = _few(values) if len(set(values)) <= MOST_TICKS else _round_numbers(low, high)
    return _Scale(
        lambda value: (value - low) / width,
        [((value - low) / width, f"{value:.4g}") for value in shown],
    )


def _few(values: Sequence[float]) -> list[float]:
    """Return some of the values, the least and the largest among them."""
    found = sorted(set(values))
    if len(found) <= MOST_TICKS:
        return found
    return [found[round(idx * (len(found) - 1) / (MOST_TICKS - 1))] for idx in range(MOST_TICKS)]


def _round_numbers(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(MOST_TICKS).tick_values(low, high)
    return [float(value) for value in found if low <= value <= high]


def _spread(heights: Sequence[float]) -> list[float]:
    """Return heights of the candidates on an axis, in their order of rank, with those that are
    equal side by side.
    """
    counts = {height: heights.count(height) for height in set(heights)}
    if max(counts.values()) == 1:
        return list(heights)
    step = SPREAD / max(counts.values())
    seen = dict.fromkeys(counts, 0)
    found = []
    for height in heights:
        found.append(height + step * ((counts[height] - 1) / 2 - seen[height]))
        seen[height] += 1
    return found


def _smooth(heights: Sequence[float]) -> tuple[Any, Any]:
    """Return points of a curve through the heights, level at each axis, so that lines can be
    followed.
    """
    steps = np.linspace(0, 1, 24, endpoint=False)
    ease = steps * steps * (3 - 2 * steps)
    x = [idx + steps for idx in range(len(heights) - 1)]
    y = [a + (b - a) * ease for a, b in pairwise(heights)]
    return np.concatenate([*x, [len(heights) - 1]]), np.concatenate([*y, [heights[-1]]])


def _draw_axes(axes: Any, names: Sequence[str], scales: Sequence[_Scale]) -> None:
    for idx, scale in enumerate(scales):
        axes.axvline(idx, color="0.3", linewidth=1, zorder=4)
        for height, text in scale.ticks:
            axes.annotate(
                text,
                (idx, height),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                zorder=5,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75},
            )
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_xlim(-0.1, len(names) - 0.6)
    axes.set_ylim(-0.08, 1.06)
    axes.tick_params(length=0)
    axes.yaxis.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
