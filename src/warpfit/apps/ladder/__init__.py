"""The ladder: the same network trained once per rung, from textbook kernels to one launch, each
timed.

>>> from warpfit.apps import ladder
>>> result = ladder.climb("mlp", on_rung=lambda record: print(record.title, record.ms_per_epoch))
>>> ladder.draw(result, "ladder.png")
"""

from __future__ import annotations

from warpfit.apps.ladder.chart import draw
from warpfit.apps.ladder.climbing import climb, parse_names, save
from warpfit.apps.ladder.results import Record, Result
from warpfit.apps.ladder.rungs import RUNGS, Rung
from warpfit.apps.ladder.table import bars
from warpfit.apps.ladder.task import NETWORKS, Network

__all__ = [
    "NETWORKS",
    "RUNGS",
    "Network",
    "Record",
    "Result",
    "Rung",
    "bars",
    "climb",
    "draw",
    "parse_names",
    "save",
]
