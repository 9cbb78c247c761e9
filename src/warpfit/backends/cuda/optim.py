"""Optimizer updates in place: one launch for all tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.backends.base import Array, Number
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.joined_updates import rule_defines, rule_numbers
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.tensors import TENSOR_THREADS, TensorPlan, plan_of
from warpfit.backends.update_rules import UpdateNumbers, rule_of


class OptimOps(ArrayOps):
    """w ← w - step, over lists of arrays."""

    def update_parameters(
        self,
        rule: str,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        numbers: UpdateNumbers,
    ) -> None:
        arguments = rule_numbers(rule_of(rule, len(slots), numbers.momentum), numbers)
        groups: Sequence[Sequence[Array]] = (parameters, gradients, *slots)
        joined = self.joined_updates
        if joined is not None:
            groups = joined.update(rule, groups, arguments)
        plan = plan_of(self, "update_parameters", groups)
        for launch in plan.launches:
            kernel = self.kernel(
                "update_parameters", **rule_defines(rule, len(slots), launch.dtypes[0])
            )
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, *arguments)
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
