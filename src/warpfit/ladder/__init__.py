"""The ladder: the same network trained once per rung, from textbook kernels to one launch, each timed.

>>> from warpfit import ladder
>>> result = ladder.climb("mlp", on_rung=lambda record: print(record.title, record.ms_per_epoch))
>>> ladder.draw(result, "ladder.png")
"""

from __future__ import annotations

from warpfit.ladder.chart import draw
from warpfit.ladder.climbing import Record, Result, climb, parse_names
from warpfit.ladder.peers import PEERS, Peer
from warpfit.ladder.rungs import RUNGS, Rung
from warpfit.ladder.table import bars
from warpfit.ladder.task import NETWORKS, Network

__all__ = [
    "NETWORKS",
    "PEERS",
    "RUNGS",
    "Network",
    "Peer",
    "Record",
    "Result",
    "Rung",
    "bars",
    "climb",
    "draw",
    "parse_names",
]
