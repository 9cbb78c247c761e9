"""What targets and a network's outputs mean: classes, or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from warpfit.checks import brief
from warpfit.errors import DataError

Array = npt.NDArray[Any]

FARTHEST = float(np.sqrt(np.finfo(np.float32).max))  # from the mean, in standard deviations


@dataclass(frozen=True, eq=False)
class Classes:
    """A class for each row: outputs (N, classes) are logits."""

    labels: Array  # (classes,): ascending

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def encoded(self, y: Array) -> Array:
        """Return labels (N,) as places among the classes, int64."""
        return np.searchsorted(self.labels, y).astype(np.int64)

    def predicted(self, outputs: Array) -> Array:
        """Return probabilities (N, classes) of outputs."""
        return np.asarray(softmax(outputs.astype(np.float64), axis=1))

    def error(self, outputs: Array, encoded: Array, weights: Array | None) -> float:
        """Return the share of the rows whose most probable class is wrong."""
        if not np.isfinite(outputs).all():
            return float("nan")
        return _mean(outputs.argmax(axis=1) != encoded, weights)


@dataclass(frozen=True, eq=False)
class Numbers:
    """One number a row or several, standardised; none beyond those of the rows trained on."""

    # mean, std, low and high (outputs,): of the rows trained on; the latter two are standardised.
    mean: Array
    std: Array
    low: Array
    high: Array
    is_2d: bool  # whether predictions are (N, outputs), or (N,)

    @classmethod
    def of(cls, y: Array) -> Numbers:
        """Return those of the targets (N,) or (N, outputs) trained on, or raise DataError."""
        columns = y.reshape(len(y), -1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = columns.mean(axis=0), columns.std(axis=0)
        if not np.isfinite(std).all():
            raise DataError(
                "expected targets whose squares float64 holds, got some of "
                f"{np.abs(columns).max():g}; scale them first"
            )
        std = np.where(std > 0, std, 1.0)
        standard = (columns - mean) / std
        return cls(mean, std, standard.min(axis=0), standard.max(axis=0), y.ndim == 2)

    @property
    def num_outputs(self) -> int:
        return len(self.mean)

    def encoded(self, y: Array) -> Array:
        """Return numbers (N,) or (N, outputs) standardised, (N, outputs) float32, or raise
        DataError, which those trained on never do.
        """
        columns = y.reshape(len(y), -1)
        with np.errstate(over="ignore"):
            standard = (columns - self.mean) / self.std
        if (np.abs(standard) > FARTHEST).any():
            _, place = np.unravel_index(np.abs(standard).argmax(), standard.shape)
            raise DataError(
                f"expected validation targets within {FARTHEST:.1e} standard deviations of those "
                f"trained on, which are {self.mean[place]:g} ± {self.std[place]:g}, got "
                f"{brief(columns[np.abs(standard[:, place]).argmax(), place])}"
            )
        return standard.astype(np.float32)

    def predicted(self, outputs: Array) -> Array:
        """Return numbers in the units of the targets."""
        found = self._clamped(outputs) * self.std + self.mean
        return found if self.is_2d else found[:, 0]

    def error(self, outputs: Array, encoded: Array, weights: Array | None) -> float:
        """Return the root of the mean squared error."""
        squares = np.square(self._clamped(outputs) - encoded).mean(axis=1)
        return float(np.sqrt(_mean(squares, weights)))

    def _clamped(self, outputs: Array) -> Array:
        return np.clip(outputs.astype(np.float64), self.low, self.high)


Targets = Classes | Numbers


def _mean(values: Array, weights: Array | None) -> float:
    """Return the mean of values (N,); where all have weight 0, they count alike."""
    if weights is None or not weights.any():
        return float(values.mean())
    return float(values @ weights / weights.sum())
