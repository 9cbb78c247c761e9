"""Pictures of a run, as SVG: curves over the epochs, and the confusion matrix.

They are written here: matplotlib takes longer to import, and to draw them, than many a training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# In pixels.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, RIGHT, BOTTOM = 400, 280, 64, 16, 44
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 18, 7, 12
CELL, MOST_CELLS = 36, 1080

COLORS = {"training": "#1f77b4", "validation": "#ff7f0e"}
WHITE, BLUE = np.array([247, 251, 255]), np.array([8, 48, 107])
MOST_NUMBERED, MOST_MARKED, LONGEST_NAME = 30, 100, 24

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Scale(NamedTuple):
    """A range of numbers, and the pixels that it is drawn on."""

    least: float
    most: float
    first: float
    last: float

    def __call__(self, number: float) -> float:
        share = (number - self.least) / (self.most - self.least)
        return self.first + share * (self.last - self.first)


def curves_svg(columns: Mapping[str, Sequence[Any]], title: str = "") -> str:
    """Return a picture of loss and, where known, accuracy over the epochs.

    Parameters
    ----------
    columns : mapping of str to sequence
        As `History.to_dict` returns them.
    title : str
        Lines above the picture.
    """
    panels = [name for name in ("loss", "accuracy") if name in columns or f"val_{name}" in columns]
    width, top = len(panels) * (LEFT + PANEL_WIDTH + RIGHT), _height_of(title) + LINE_HEIGHT
    parts = list(_title(title, width))
    for idx, name in enumerate(panels):
        parts += _panel(columns, name, idx * (LEFT + PANEL_WIDTH + RIGHT) + LEFT, top)
    return _svg(width, top + PANEL_HEIGHT + BOTTOM, parts)


def _panel(columns: Mapping[str, Sequence[Any]], name: str, left: int, top: int) -> Iterator[str]:
    right, bottom = left + PANEL_WIDTH, top + PANEL_HEIGHT
    curves = {
        label: [
            (epoch, value)
            for epoch, value in zip(columns["epoch"], columns[column], strict=True)
            if value is not None and isfinite(value)
        ]
        for column, label in ((name, "training"), (f"val_{name}", "validation"))
        if column in columns
    }
    x = _Scale(*_padded(columns["epoch"]), left, right)
    y = _Scale(*_padded([value for points in curves.values() for _, value in points]), bottom, top)
    for tick in _ticks(x, whole=True):
        yield _line(x(tick), top, x(tick), bottom)
        yield _text(x(tick), bottom + 16, f"{tick:g}")
    for tick in _ticks(y):
        yield _line(left, y(tick), right, y(tick))
        yield _text(left - 6, y(tick) + 4, f"{tick:.6g}", "end")
    yield _frame(left, top, PANEL_WIDTH, PANEL_HEIGHT)
    yield _text((left + right) / 2, bottom + 34, "epoch")
    yield _text(left - 48, (top + bottom) / 2, name, turn=-90)
    for place, (label, points) in enumerate(curves.items()):
        color = COLORS[label]
        pixels = [(x(epoch), y(value)) for epoch, value in points]
        drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in pixels)
        yield f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        if len(pixels) <= MOST_MARKED:
            for across, down in pixels:
                yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="2" fill="{color}"/>'
        yield _text(left + place * 80, top - 6, label, "start", color)


def confusion_svg(
    labels: npt.NDArray[Any],
    predicted: npt.NDArray[Any],
    class_names: Sequence[str],
    title: str = "",
) -> str:
    """Return a picture of the confusion matrix: true classes in rows, predicted ones in columns."""
    num_classes = len(class_names)
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    matrix = counts.reshape(num_classes, num_classes)

    cell = min(CELL, max(1, MOST_CELLS // num_classes))
    names = [n if len(n) <= LONGEST_NAME else f"{n[: LONGEST_NAME - 1]}…" for n in class_names]
    room = max(map(len, names)) * CHARACTER_WIDTH + 8
    size, left, top = cell * num_classes, room + LINE_HEIGHT + MARGIN, _height_of(title)
    below = top + size + max(room, LINE_HEIGHT) + LINE_HEIGHT
    longest_line = max(map(len, title.split("\n"))) * CHARACTER_WIDTH
    width = max(left + size, longest_line) + 2 * MARGIN

    parts = [*_title(title, width), *_cells(matrix, left, top, cell)]
    parts.append(_frame(left, top, size, size))
    are_long = max(map(len, names)) > 2
    for idx in range(0, num_classes, ceil(LINE_HEIGHT / cell)):
        middle = (idx + 0.5) * cell
        parts.append(_text(left - 6, top + middle + 4, names[idx], "end"))
        if are_long:
            parts.append(_text(left + middle + 4, top + size + 6, names[idx], "end", turn=-90))
        else:
            parts.append(_text(left + middle, top + size + 16, names[idx]))
    parts.append(_text(left + size / 2, below, "predicted"))
    parts.append(_text(MARGIN + 4, top + size / 2, "true", turn=-90))
    return _svg(width, below + MARGIN, parts)


def _cells(matrix: npt.NDArray[Any], left: int, top: int, cell: int) -> Iterator[str]:
    """Yield counts, shaded by the share of the true class on a root scale, which shows mistakes."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for row, column in zip(*np.nonzero(matrix), strict=True):
        x, y, share = left + column * cell, top + row * cell, shares[row, column]
        rgb = ",".join(f"{part:.0f}" for part in WHITE + (BLUE - WHITE) * np.sqrt(share))
        yield f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="rgb({rgb})"/>'
        if len(matrix) <= MOST_NUMBERED:
            color = "white" if share > 0.3 else "black"
            yield _text(x + cell / 2, y + cell / 2 + 4, str(matrix[row, column]), fill=color)


def _padded(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the range of numbers with a margin around it."""
    least, most = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    margin = 0.05 * (most - least) or 0.05 * abs(most) or 0.05
    return least - margin, most + margin


def _ticks(scale: _Scale, *, whole: bool = False) -> list[float]:
    """Return round numbers in the range of a scale, at most six."""
    rough = (scale.most - scale.least) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(1.0, step) if whole else step
    return [idx * step for idx in range(ceil(scale.least / step), floor(scale.most / step) + 1)]


def _height_of(title: str) -> int:
    return MARGIN + LINE_HEIGHT * (title.count("\n") + 1)


def _title(title: str, width: float) -> Iterator[str]:
    for idx, line in enumerate(title.split("\n")):
        yield _text(width / 2, MARGIN + 4 + idx * LINE_HEIGHT, line)


def _frame(x: int, y: int, width: int, height: int) -> str:
    size = f'width="{width}" height="{height}"'
    return f'<rect x="{x}" y="{y}" {size} fill="none" stroke="#333"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "middle", fill: str = "black", turn: int = 0
) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{turned}'
    return f"<text {place}>{escape(_NOT_IN_XML.sub('?', text))}</text>"


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" '
            'font-size="12">',
            f'<rect {size} fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )
