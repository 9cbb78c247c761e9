"""The charts of README and docs, each drawn from a results file.

A chart's file carries the fingerprint of the results that it was drawn from, so that a chart that
no longer matches them is found without drawing it: images of two versions of matplotlib differ,
results do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import accuracy_gap
import curves
import engine_curves
import ladder
import layerwise
import one_launch
import report_run
import scaling_pages
import sweep
import table_pages
import train
import widths
from harness import RESULTS, ROOT
from warpfit.files import atomic_path

FINGERPRINT = "Results"  # the name of the text in the PNG file
DPI = 110


@dataclass(frozen=True)
class Chart:
    """A picture of a results file.

    Parameters
    ----------
    path : str
        Below the repository's folder.
    results : str
        The results file's name.
    draw : function
        Returns matplotlib's figure of the results.
    """

    path: str
    results: str
    draw: Callable[[dict[str, Any]], Any]


CHARTS = (
    Chart("docs/accuracy-gap.png", "accuracy_gap", accuracy_gap.draw),
    Chart("docs/images/curves.png", "curves", curves.draw),
    Chart("docs/images/engine_curves.png", "engine_curves", engine_curves.draw),
    Chart("docs/images/ladder.png", "ladder", ladder.draw),
    Chart("docs/images/layerwise.png", "layerwise", layerwise.draw),
    Chart("docs/images/one_launch.png", "one_launch", one_launch.draw),
    Chart("docs/images/report_run.png", "report_run", report_run.draw),
    Chart("docs/images/scaling.png", "scaling", scaling_pages.draw),
    Chart("docs/images/sweep.png", "sweep", sweep.draw),
    Chart("docs/images/train.png", "train", train.draw),
    Chart("docs/images/widths.png", "widths", widths.draw),
    Chart("docs/images/tables.png", "tables", table_pages.draw),
)


def fingerprint(results: Path) -> str:
    return sha256(results.read_bytes()).hexdigest()


def is_stale(chart: Chart) -> bool:
    """Return whether there are results that the chart is not drawn from."""
    from PIL import Image

    results, path = _places(chart)
    if not results.exists():
        return False
    if not path.exists():
        return True
    with Image.open(path) as image:
        return image.info.get(FINGERPRINT) != fingerprint(results)


def has_results(chart: Chart) -> bool:
    return _places(chart)[0].exists()


def write(chart: Chart) -> None:
    """Draw a chart into its file."""
    results, path = _places(chart)
    figure = chart.draw(json.loads(results.read_text(encoding="utf-8")))
    with atomic_path(path) as temporary:
        figure.savefig(
            temporary, format="png", dpi=DPI, metadata={FINGERPRINT: fingerprint(results)}
        )


def _places(chart: Chart) -> tuple[Path, Path]:
    return RESULTS / f"{chart.results}.json", ROOT / chart.path
