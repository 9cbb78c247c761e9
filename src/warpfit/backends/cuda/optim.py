"""Optimizer updates in place: one launch for all tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.backends.base import Array, Number
from warpfit.backends.checks import check_velocities
from warpfit.backends.corrections import adam_corrected
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS
from warpfit.backends.cuda.joined_updates import UPDATES, rule_defines, rule_numbers
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.tensors import TENSOR_THREADS, TensorPlan, plan_of

__all__ = ["OptimOps", "variants"]

KERNELS = ("sum_squares", "clip_by_norm", "l2_penalty")


class OptimOps(ArrayOps):
    """w ← w - step, over lists of arrays."""

    def sgd_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        lr_in_velocity: bool = False,
    ) -> None:
        check_velocities("sgd_update", velocities, momentum)
        groups = (parameters, gradients) if velocities is None else (parameters, gradients, velocities)
        numbers = (lr, momentum, weight_decay, nesterov, lr_in_velocity)
        self._update("sgd_update", groups, numbers, num_slots=1 if momentum else 0)

    def adam_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        first_moments: Sequence[Array],
        second_moments: Sequence[Array],
        *,
        step: int,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps_before_correction: bool = False,
        corrected: Sequence[Number] | None = None,
    ) -> None:
        if corrected is None:
            corrected = adam_corrected(
                step, lr, beta1, beta2, eps, weight_decay, decoupled, eps_before_correction
            )
        rate, eps, shrink = corrected
        groups = (parameters, gradients, first_moments, second_moments)
        numbers = (rate, eps, shrink, beta1, beta2, 0.0 if decoupled else weight_decay)
        self._update("adam_update", groups, numbers, num_slots=2)

    def rmsprop_update(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        square_averages: Sequence[Array],
        velocities: Sequence[Array] | None,
        *,
        lr: Number,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        check_velocities("rmsprop_update", velocities, momentum)
        slots = (square_averages,) if velocities is None else (square_averages, velocities)
        groups = (parameters, gradients, *slots)
        numbers = (lr, alpha, eps, weight_decay, momentum)
        self._update("rmsprop_update", groups, numbers, num_slots=2 if momentum else 1)

    def _update(
        self,
        op: str,
        groups: Sequence[Sequence[Array]],
        numbers: Sequence[Number],
        *,
        num_slots: int,
    ) -> None:
        """Launch the kernel of an update over (parameters, gradients, slots ...), of which it uses so many."""
        joined = self.joined_updates
        if joined is not None:
            groups = joined.update(op, groups, numbers, num_slots)
        plan = plan_of(self, op, groups)
        for launch in plan.launches:
            kernel = self.kernel("update_parameters", **rule_defines(op, num_slots, launch.dtypes[0]))
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, *rule_numbers(numbers))
        self._copy_back(plan, unless=1)
        if joined is not None:
            joined.refresh(groups[0])

    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        plan = plan_of(self, "clip_by_norm", (gradients,))
        norm = self._summed("sum_squares", plan)
        for launch in plan.launches:
            kernel = self.kernel("clip_by_norm", DTYPE=launch.dtypes[0])
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, norm, max_norm)
        self._copy_back(plan)
        return norm

    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        plan = plan_of(self, "l2_penalty", (weights, gradients))
        penalty = self._summed("l2_penalty", plan, coefficient, *scalar(divisor))
        self._copy_back(plan, unless=0)
        return penalty

    def _summed(self, name: str, plan: TensorPlan, *settings: float) -> DeviceArray:
        """Launch a kernel that adds up over all tensors; return the () float64 that it writes."""
        total: DeviceArray = self.empty((), "float64")
        if not plan.launches:
            self.runtime.fill(total.pointer, total.nbytes)
            return total
        partials: Any = self.empty((plan.num_blocks,), "float64")
        arrivals = self.arrivals(1)
        for launch in plan.launches:
            sums = (partials, launch.first_block, plan.num_blocks, arrivals, total)
            kernel = self.kernel(name, DTYPE=launch.dtypes[0])
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, *settings, *sums)
        return total


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return every kernel of this file with every set of defines that it is asked for."""
    updates = [
        ("update_parameters", {name: str(value) for name, value in rule_defines(op, slots, dtype).items()})
        for op, slots in UPDATES
        for dtype in DEVICE_FLOATS
    ]
    return [*((name, {"DTYPE": dtype}) for name in KERNELS for dtype in DEVICE_FLOATS), *updates]
