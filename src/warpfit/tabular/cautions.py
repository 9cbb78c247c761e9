"""Warnings of trainings that ended early, or badly."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from warpfit.callers import warn
from warpfit.errors import TrainingWarning
from warpfit.tabular.members import Trained


def warn_of_time_limit(
    trained: Sequence[Trained], num_networks: int, n_epochs: int, time_limit: float
) -> None:
    """Warn if networks are missing, or the last one lacks epochs, once the time is over."""
    num_epochs = len(trained[-1].losses)
    if len(trained) == num_networks and num_epochs == n_epochs:
        return
    warn(
        f"time_limit={time_limit:g} s was reached: {len(trained)} of {num_networks} networks were "
        f"trained, the last one for {num_epochs} of {n_epochs} epochs",
        TrainingWarning,
    )


def warn_of_divergence(trained: Sequence[Trained], n_epochs: int) -> None:
    """Warn of the first network whose last epoch has a validation error that is not finite."""
    diverged = [idx for idx, each in enumerate(trained) if not isfinite(each.errors[-1])]
    if diverged:
        warn(
            f"network {diverged[0] + 1} of {len(trained)} diverged: its epoch "
            f"{trained[diverged[0]].best_epoch} of {n_epochs} counts; a lower lr may help",
            TrainingWarning,
        )
