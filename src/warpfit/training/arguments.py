"""What `fit` takes besides rows: checked, and made objects of this package where names will do."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.backends.transfer import to_host
from warpfit.checks import brief, kind_of
from warpfit.data.dataset import split_rows
from warpfit.engines.base import Plan
from warpfit.errors import ConfigError, DataError
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.training.callbacks import checked_callbacks
from warpfit.training.evaluate import network_of
from warpfit.training.inputs import as_rows, as_sample_weight, check_indices, check_same_length
from warpfit.training.state import trained_names


def optimizer_of(optimizer: Any, model: Module) -> Optimizer:
    """Return an optimizer, or that of a name with its defaults, over all the model's parameters.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer in Optimizer.by_name:
        return Optimizer.by_name[optimizer](model.parameters())  # type: ignore[call-arg]
    close = str(optimizer).lower()
    hint = f"; write {close!r}" if close in Optimizer.by_name else ""
    raise ConfigError(
        "expected an optimizer of warpfit.optim, or its name among "
        f"{', '.join(Optimizer.by_name)}, got {kind_of(optimizer)}{hint}"
    )


def check_kinds(plan: Any, callbacks: Any) -> None:
    """Raise ConfigError unless these arguments are objects of this package's classes."""
    if not isinstance(plan, Plan | None):
        raise ConfigError(
            f"expected plan to be an earlier run's plan or None, got {type(plan).__name__}"
        )
    checked_callbacks(callbacks)


def check_scale(loss_scale: Any) -> None:
    """Raise ConfigError unless a loss scale is a word or a number."""
    if not isinstance(loss_scale, str | Real):
        raise ConfigError(
            f"expected loss_scale 'auto', 'dynamic' or a power of two, got {brief(loss_scale)}"
        )


def checked_plan(plan: Plan, model: Module, optimizer: Optimizer, rows: Any) -> Plan:
    """Return an earlier run's plan for checked rows, or ConfigError if it is for something else."""
    if (
        plan.network != network_of(model, rows.shape[1:])
        or plan.trained != trained_names(model, optimizer)
        or type(plan.optimizer) is not type(optimizer.spec)
    ):
        raise ConfigError(
            "expected a plan made for this model, optimizer and shape of x, got one for others"
        )
    if plan.optimizer.slot_names != optimizer.spec.slot_names:
        raise ConfigError(
            f"expected a plan whose optimizer keeps {optimizer.spec.slot_names}, "
            f"got one with {plan.optimizer.slot_names}"
        )
    check_indices("x", rows, plan.network)
    return replace(plan, num_rows=len(rows))


def validation_split_off(
    x: Any, y: Any, sample_weight: Any, share: Any, seed: int
) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """Return x, y and sample weights of the training rows, and (x, y) of those held out.

    Parameters
    ----------
    x : array (N, ...)
        Checked rows.
    y, sample_weight : array_like (N, ...)
        Or None for the latter.
    share : float
        Of the rows, in (0, 1); `split_rows` chooses which.
    seed : int

    Raises
    ------
    ConfigError, DataError, DTypeError, ShapeError
        If the share is something else or leaves no row for either, or an argument has other rows.
    """
    if not isinstance(share, Real) or not 0 < float(share) < 1:
        raise ConfigError(f"expected validation_split in [0, 1), got {brief(share)}")
    targets = as_rows("y", y, dtype=None)
    check_same_length("y", targets, len(x))
    weights = as_sample_weight(sample_weight, len(x), "float64")
    # Of what is no label there are no classes to take equal shares of.
    labels = to_host(targets) if targets.ndim == 1 else np.zeros(len(x))
    trained, held_out = split_rows(labels, float(share), seed)
    if not len(trained) or not len(held_out):
        raise DataError(
            f"expected validation_split to leave rows to train and to validate on, got "
            f"{len(trained)} and {len(held_out)} of {len(x)}"
        )
    return (
        _taken(x, trained),
        _taken(targets, trained),
        None if weights is None else weights[trained],
        (_taken(x, held_out), _taken(targets, held_out)),
    )


def _taken(rows: Any, numbers: Any) -> Any:
    return backends.of(rows).take(rows, numbers)
