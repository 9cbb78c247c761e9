"""Optimizer updates in place, a block of elements at a time, which stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import check_float, check_matrix_update, check_update
from warpfit.backends.matrix_updates import (
    LEAST_NORM,
    MatrixNumbers,
    matrix_of,
    orthogonalised,
)
from warpfit.backends.update_rules import NUMBERS_OF_STEP, UpdateNumbers, rule_of

BLOCK = 1 << 18
# Elements of all arrays up to which joining them takes less than updating each.
FEW = 1 << 14
CLIP_EPS = 1e-6


def _blocks(op: str, *groups: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    """Yield matching blocks of the arrays of every group: flat views of up to BLOCK elements."""
    check_update(op, *groups)
    for arrays in zip(*groups, strict=True):
        if arrays[0].size <= BLOCK or not all(array.flags.c_contiguous for array in arrays):
            yield arrays
            continue
        flat = [array.reshape(-1) for array in arrays]
        for start in range(0, flat[0].size, BLOCK):
            yield tuple(array[start : start + BLOCK] for array in flat)


def _are_small(parameters: Sequence[Array]) -> bool:
    if len(parameters) < 2 or sum(w.size for w in parameters) > FEW:
        return False
    return all(w.dtype == parameters[0].dtype for w in parameters)


def _joined(op: str, *groups: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    """Yield the arrays of each group as one, which goes back into them but for the gradients."""
    check_update(op, *groups)
    joined = tuple(np.concatenate([array.ravel() for array in arrays]) for arrays in groups)
    yield joined
    for arrays, one in zip(groups, joined, strict=True):
        if arrays is groups[1]:
            continue
        start = 0
        for array in arrays:
            array[...] = one[start : start + array.size].reshape(array.shape)
            start += array.size


class OptimOps(Backend):
    """w ← w - step, over lists of arrays."""

    def update_parameters(
        self,
        rule: str,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        numbers: UpdateNumbers,
    ) -> None:
        apply = rule_of(rule, len(slots), numbers.momentum).apply
        of_step = numbers[:NUMBERS_OF_STEP]
        if any(type(number) is not float for number in of_step):  # arrays that a step finds
            numbers = UpdateNumbers._make((*map(float, of_step), *numbers[NUMBERS_OF_STEP:]))
        parts = _joined if _are_small(parameters) else _blocks
        for w, g, *kept in parts("update_parameters", parameters, gradients, *slots):
            apply(w, g, kept, numbers, self.empty)

    def update_matrices(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        averages: Sequence[Array],
        factors: Sequence[float],
        numbers: MatrixNumbers,
    ) -> None:
        check_matrix_update("update_matrices", factors, numbers, parameters, gradients, averages)
        rate, kept, momentum = float(numbers.rate), float(numbers.kept), numbers.momentum
        for w, g, v, factor in zip(parameters, gradients, averages, factors, strict=True):
            v *= momentum
            v += (1 - momentum) * g
            direction = (1 - momentum) * g + momentum * v if numbers.nesterov else v
            if numbers.normalizes:
                w *= sqrt(w.shape[-1]) / max(float(np.linalg.norm(w)), LEAST_NORM)
            w *= kept
            found = orthogonalised(direction.reshape(matrix_of(w.shape)), numbers.steps)
            w -= rate * factor * found.reshape(w.shape)

    def clip_by_norm(self, gradients: Sequence[Array], max_norm: float) -> Array:
        check_float("clip_by_norm", *gradients)
        # Summed in float64, so that the norm does not depend on how the sum is split.
        norm = sqrt(
            sum(float(np.add.reduce(np.square(g, dtype=np.float64), axis=None)) for g in gradients)
        )
        if norm > max_norm - CLIP_EPS:
            for g in gradients:
                g *= max_norm / (norm + CLIP_EPS)
        return np.float64(norm)

    def l2_penalty(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        coefficient: float,
        divisor: Number = 1.0,
    ) -> Array:
        check_update("l2_penalty", weights, gradients)
        num_rows = float(divisor)
        coefficient = coefficient / num_rows if num_rows else 0.0
        squares = 0.0
        for w, g in zip(weights, gradients, strict=True):
            g += np.multiply(w, coefficient, out=self.empty(w.shape, w.dtype))
            squares += float(np.vdot(w, w))
        return np.float64(coefficient / 2 * squares)
