"""Optuna's studies by batches of trials: `optimize` asks for a batch, trains its networks by one
`fit_many`, and tells what came out.

`optimizing` has the loop, `trials` what is asked, built and told of one trial, `pruning` the rules
by which trials end early.
"""

from __future__ import annotations

from warpfit.optuna.optimizing import Optimized, optimize

__all__ = ["Optimized", "optimize"]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__
