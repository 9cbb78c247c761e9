"""Cross-entropy of logits that each answer a question, and of one that tells two classes apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import LossTerms
from warpfit.errors import ConfigError, DataError
from warpfit.losses.base import float_targets
from warpfit.losses.elements import ElementLoss

SIGMOID = Activation("sigmoid")


@dataclass(frozen=True)
class BinaryCrossEntropy(ElementLoss):
    """-t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)) for logits z and targets t in [0, 1], of
    equal shape.

    One logit tells two classes apart: its labels are (M,), 1 where the probability sigmoid(z)
    exceeds 0.5. Several logits are as many questions with an answer of its own each: their labels
    are (M, K).

    Parameters
    ----------
    sum_outputs : bool
        scikit-learn's form: the sum over outputs instead of their mean.

    Examples
    --------
    >>> round(losses.BinaryCrossEntropy()(np.array([[0.0]]), np.array([[1.0]])), 3)
    0.693
    """

    name: ClassVar[str] = "binary_cross_entropy"
    counts_correct: ClassVar[bool] = True
    sum_outputs: bool = False

    def terms(self, outputs: int) -> LossTerms:
        factor = 1.0 if self.sum_outputs else 1.0 / outputs
        return LossTerms("binary_cross_entropy", 0.0, factor, factor)

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        targets = float_targets(self.name, y, output_shape, dtype)
        if targets.size and not (targets.min() >= 0 and targets.max() <= 1):
            raise DataError(
                f"{self.name}: expected targets in [0, 1], got values from {targets.min():g} to "
                f"{targets.max():g}"
            )
        return targets

    def count_correct(self, ops: Backend, outputs: Array, targets: Array) -> Array | None:
        return ops.count_correct_binary(outputs, targets)

    def num_outputs(self, num_classes: int) -> int:
        if num_classes != 2:
            raise ConfigError(
                f"{self.name}: expected labels of 2 classes, got {num_classes}; cross_entropy "
                "takes any number"
            )
        return 1

    def probabilities(self, ops: Backend, outputs: Array) -> Array:
        return ops.activation_forward(SIGMOID, outputs)

    def labels(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        labels = (outputs > 0).astype(np.int64)  # where sigmoid exceeds 0.5
        return labels[:, 0] if labels.shape[1:] == (1,) else labels
