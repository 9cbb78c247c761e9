"""Many networks at once: `fit_many` trains a network for every candidate and fold, and says which
is best.

Who calls what, in a sweep:

* `candidates` makes dicts of a grid, `folds` index sets over one copy of the data, `tasks` one
  network each;
* `groups` puts networks together that one kernel can train, and `planning` makes each group's plan,
  as `fit` would;
* a `runner.Runner` trains them: one after the other, in processes, or in shards on an executor's
  workers. `here.runner_here` is where an engine that trains many networks in one launch joins in;
* `halving` lets them pause and go on; `metric` says which is better, `records` what came out,
  `progress` how far it is.
"""

from __future__ import annotations

from warpfit.sweep.fit_many import fit_many
from warpfit.sweep.halving import Halving
from warpfit.sweep.records import Sweep

__all__ = ["Halving", "Sweep", "fit_many"]
