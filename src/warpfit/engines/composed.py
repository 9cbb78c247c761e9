"""Whether losses and optimizers of a user's own run without the host, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.engines.base import Plan, TrainingData
from warpfit.optim.base import OptimizerSpec

# The shapes of parameters on which an optimizer is tried.
SHAPES = ((3, 2), (2,))
# Steps of the trial, and their learning rates.
TRIED = ((1, 0.5), (2, 0.25))


def needs_host(plan: Plan, data: TrainingData, value: Any) -> str | None:
    """Return why a step with this loss or optimizer needs the host; None if it does not.

    It is called as a step does, and then captured, which only operations of the backend's contract
    can be. An optimizer must also come to the same by numbers that lie on the device.
    """
    try:
        ops: Any = backends.create(plan.device, precision=plan.dtype)
        if isinstance(value, OptimizerSpec):
            return _why_not(ops, value)
        _capture(ops, _loss_call(ops, plan, data))
    except Exception as error:  # whatever a user's class raises
        return str(error) or type(error).__name__
    return None


def _capture(ops: Any, call: Callable[[], Any]) -> None:
    for _ in range(2):  # buffers are made in the first
        ops.begin_step()
        call()
    ops.begin_step()
    with ops.runtime.capture():
        call()


def _loss_call(ops: Any, plan: Plan, data: TrainingData) -> Callable[[], Any]:
    count = min(plan.batch_size, len(data))
    outputs = ops.zeros((count, *plan.network.output_shape), plan.dtype)
    weights = {"class_weight": data.class_weight}
    if data.sample_weight is not None:
        weights["sample_weight"] = ops.asarray(data.sample_weight[:count], plan.dtype)
    targets = ops.asarray(data.y[:count], str(data.y.dtype))

    def call() -> None:
        _, _, gradient = plan.loss.vjp(ops, outputs, targets, **weights)
        plan.loss.count_correct(ops, outputs, targets)
        gradient()

    return call


def _why_not(ops: Any, spec: OptimizerSpec) -> str | None:
    found = [_updated(ops, spec, is_on_device) for is_on_device in (False, True)]
    if any(
        not np.array_equal(one, other, equal_nan=True) for one, other in zip(*found, strict=True)
    ):
        return "its update does not follow `numbers`"
    return None


def _updated(ops: Any, spec: OptimizerSpec, is_on_device: bool) -> list[Any]:
    """Return parameters and slots after some steps, by numbers of the host or of the device."""
    parameters, gradients = (
        [ops.asarray(_numbers(shape, seed)) for shape in SHAPES] for seed in (0, 1)
    )
    slots = {name: [ops.zeros(shape, "float32") for shape in SHAPES] for name in spec.slot_names}
    numbers = ops.asarray(np.full(len(spec.numbers(*TRIED[0])), np.nan))

    def update(step: int, lr: float, numbers: Any) -> None:
        spec.apply(ops, parameters, gradients, slots, step=step, lr=lr, numbers=numbers)

    for step, lr in TRIED:
        ops.assign(numbers, ops.asarray(np.asarray(spec.numbers(step, lr), np.float64)))
        ops.begin_step()
        if is_on_device:
            update(0, float("nan"), numbers)
        else:
            update(step, lr, None)
    arrays = [ops.to_numpy(array) for group in (parameters, *slots.values()) for array in group]
    if is_on_device:
        ops.begin_step()
        with ops.runtime.capture():
            update(0, float("nan"), numbers)
    return arrays


def _numbers(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
