"""A process among several that train the network of `scaling.py`'s checks: prints its losses as
JSON, then says after each epoch that it goes on, until it is killed.

    WARPFIT_RANK=0 WARPFIT_WORLD_SIZE=2 WARPFIT_MEETING=FILE python benchmarks/scaling_process.py \
        SETTINGS
"""

from __future__ import annotations

import json
import sys

import scaling
import warpfit as wf


class Telling(wf.Callback):
    """Says that an epoch is done."""

    def on_epoch_end(self, run: wf.Run) -> None:
        print("epoch", flush=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    x, y = scaling.rows_of(scaling.CHECKED_SIZES, scaling.CHECKED_ROWS)
    sizes, device = scaling.CHECKED_SIZES, "processes"
    _, history = scaling.trained(sizes, x, y, device, **asked)
    print(json.dumps(history.step_losses.tolist()), flush=True)
    scaling.trained(sizes, x, y, device, **{**asked, "epochs": 10**6}, callbacks=[Telling()])


if __name__ == "__main__":
    main()
