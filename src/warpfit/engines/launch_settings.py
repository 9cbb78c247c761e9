"""What kernels of the engine one_launch take of an optimizer, a loss, and dropout."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends.launch_structs import DROPOUT_FIELDS, NETWORK_DROPOUT_FIELDS, STOPPING_FIELDS
from warpfit.backends.update_rules import UPDATE_RULES
from warpfit.engines.base import Plan, Stopping
from warpfit.errors import ConfigError
from warpfit.losses import (
    Loss,
)
from warpfit.nn.dropout import DropoutSpec
from warpfit.optim.base import OptimizerSpec
from warpfit.random import DROPOUT, stream_key

LARGEST_SCALE = 2.0**60
# Of an eps: what two denominators share is the reciprocal of their product, which must not be 0.
LEAST_EPS = 2.0**-60
# Columns of a step's settings; that of the penalty is also `ahead`'s.
RATE, EPS, KEPT, PENALTY = 0, 1, 2, 3


def unknown_loss(loss: Loss) -> tuple[str, object] | None:
    """Return what is expected, and the loss, if no kernel of whole steps knows it."""
    if loss.has_terms:
        return None
    known = (name for name, kind in Loss.by_name.items() if "terms" in vars(kind))
    return f"a loss among {', '.join(known)}", loss


def unknown_optimizer(optimizer: OptimizerSpec) -> tuple[str, object] | None:
    """Return what is expected, and the optimizer, if no kernel of whole steps knows it."""
    if not optimizer.follows_its_rule:
        return f"an optimizer among {', '.join(UPDATE_RULES)}", optimizer.name
    if optimizer.groups:
        expected = "one learning rate and weight decay for all parameters"
        return expected, f"{len(optimizer.groups)} groups"
    if optimizer.l2 and _looks_ahead(optimizer):  # both have one place in `StepSettings`
        return f"no l2 of {optimizer.name}", optimizer.l2
    return None


def _looks_ahead(optimizer: OptimizerSpec) -> bool:
    return "ahead" in UPDATE_RULES[optimizer.rule].numbers


def _check(unknown: tuple[str, object] | None) -> None:
    if unknown is not None:
        raise ConfigError("expected {}, got {}".format(*unknown))


def loss_settings(loss: Loss, outputs: int) -> tuple[float, float, float]:
    """Return a loss's setting, and the factors of its terms and gradients: see `LossSettings`."""
    _check(unknown_loss(loss))
    terms = loss.terms(outputs)
    return terms.setting, terms.of_term, terms.of_derivative


def stopping_settings(rule: Stopping) -> npt.NDArray[Any]:
    """Return ``Stopping`` (1,) of a rule as it stands."""
    found = np.zeros(1, STOPPING_FIELDS)
    found["min_delta"], found["patience"], found["keeps_best"] = (
        rule.min_delta,
        rule.patience,
        rule.keeps_best,
    )
    found["of_validation"] = rule.monitor.startswith("val")
    found["of_accuracy"] = rule.monitor.endswith("accuracy")
    found["any_gain_is_best"] = rule.any_gain_is_best
    found["bad_epochs"], found["has_best"] = rule.bad_epochs, rule.best is not None
    if rule.best is not None:
        found["best"] = rule.best
    return found


def step_settings(
    optimizer: OptimizerSpec, rates: npt.NDArray[np.float64], first_step: int
) -> npt.NDArray[np.float32]:
    """Return ``StepSettings`` (steps, 4) of steps from one on, from 0, at rates (steps,)."""
    _check(unknown_optimizer(optimizer))
    settings = np.zeros((len(rates), 4))
    numbers = optimizer.update_numbers(first_step + 1 + np.arange(len(rates)), rates)
    settings[:, RATE], settings[:, KEPT] = numbers.rate, numbers.kept
    settings[:, PENALTY] = numbers.ahead if _looks_ahead(optimizer) else optimizer.l2
    settings[:, EPS] = np.maximum(numbers.eps, LEAST_EPS)
    return settings.astype(np.float32)


def rule_settings(optimizer: OptimizerSpec) -> tuple[float, float, float, float]:
    """Return ``RuleSettings``: the decay that joins gradients, momentum, and what averages keep."""
    _check(unknown_optimizer(optimizer))
    numbers = optimizer.update_numbers(1, 0.0)
    return numbers.decay, numbers.momentum, numbers.of_mean, numbers.of_square


def scale_of_weights(plan: Plan) -> float:
    """Return the power of two that weights are held times in SGD by warp-specialized kernels, one
    for the whole run.

    Gradients are then near the plan's loss scale times their mean over the batch, whether they come
    times the learning rate, without momentum, or not.
    """
    scale, largest_rate = float(plan.loss_scale), plan.optimizer.lr.largest
    if plan.optimizer.slot_names or not largest_rate:
        return scale
    return float(min(LARGEST_SCALE, 2.0 ** floor(log2(scale / largest_rate))))


def dropout_settings(specs: Iterable[DropoutSpec]) -> npt.NDArray[Any]:
    """Return ``Dropout`` (layers,) of each layer."""
    return np.array(
        [(round(spec.p * 2**32), 1 / (1 - spec.p), spec.layer_idx) for spec in specs],
        DROPOUT_FIELDS,
    )


def network_dropout_settings(
    specs: Iterable[DropoutSpec], seed: int, first_step: int
) -> npt.NDArray[Any]:
    """Return ``NetworkDropout`` (layers,) of a network whose run goes on with a step."""
    of_layers = dropout_settings(specs)
    found = np.zeros(of_layers.shape, NETWORK_DROPOUT_FIELDS)
    found["of_layer"], found["key"], found["first_step"] = (
        of_layers,
        stream_key(seed, DROPOUT),
        first_step,
    )
    return found
