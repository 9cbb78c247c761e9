"""Cross-entropy of logits, one a class, and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array, Backend
from warpfit.backends.base import LaterLogits, LossTerms, Number
from warpfit.backends.transfer import to_host
from warpfit.checks import as_tuple, brief
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError
from warpfit.losses.base import Loss


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """-log softmax(logits)[label], for logits (M, C) and integer labels (M,) in [0, C).

    Parameters
    ----------
    label_smoothing : float
        Share ε of the target spread evenly over all classes, in [0, 1].
    class_weight : sequence of float, optional
        Weight of each class; the mean is then Σ w l / Σ w.

    References
    ----------
    torch.nn.CrossEntropyLoss, whose formula this is.

    Examples
    --------
    >>> round(losses.SoftmaxCrossEntropy()(np.array([[0.0, 0.0]]), np.array([1])), 3)
    0.693
    """

    name: ClassVar[str] = "cross_entropy"
    counts_correct: ClassVar[bool] = True
    label_smoothing: float = 0.0
    class_weight: tuple[float, ...] | None = None

    def terms(self, outputs: int) -> LossTerms:
        return LossTerms(self.name, self.label_smoothing)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise ConfigError(f"expected label_smoothing in [0, 1], got {self.label_smoothing!r}")
        if self.class_weight is not None:
            given = as_tuple(self.class_weight, Real)
            weights = None if given is None else tuple(map(float, given))
            if weights is None or not all(0 <= weight < float("inf") for weight in weights):
                raise ConfigError(
                    "expected class weights that are finite and at least 0, got "
                    f"{brief(self.class_weight)}"
                )
            object.__setattr__(self, "class_weight", weights)

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        settings: dict[str, Any] = {
            "class_weight": class_weight,
            "sample_weight": sample_weight,
            "label_smoothing": self.label_smoothing,
        }
        loss, total, probabilities = ops.softmax_cross_entropy_forward(outputs, targets, **settings)
        return (
            loss,
            total,
            lambda: ops.softmax_cross_entropy_backward(probabilities, targets, total, **settings),
        )

    def train_step(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Array | None:
        if isinstance(outputs, LaterLogits):
            settings: dict[str, float] = {"scale": scale, "label_smoothing": self.label_smoothing}
            found = ops.linear_cross_entropy_step(outputs, targets, record, row, **settings)
            if found is not None:
                return found
            outputs, _ = ops.linear_forward(outputs.x, outputs.w, outputs.b)
        return ops.softmax_cross_entropy_step(
            outputs,
            targets,
            record,
            row,
            scale=scale,
            class_weight=class_weight,
            sample_weight=sample_weight,
            label_smoothing=self.label_smoothing,
        )

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        labels = to_host(y, "targets")
        num_classes = self._num_classes(output_shape)
        if labels.ndim != 1:
            remedy = (
                "y.ravel()" if labels.shape[1:] == (1,) else "y.argmax(axis=1), of one-hot rows,"
            )
            raise ShapeError(
                f"{self.name}: expected labels of shape (M,), got {labels.shape}; {remedy} has it"
            )
        if labels.dtype.kind not in "iub":
            whole = labels.dtype.kind == "f" and (labels == np.floor(labels)).all()
            remedy = "y.astype(int) has them" if whole else "a regression takes loss='mse'"
            raise DTypeError(
                f"{self.name}: expected integer labels, got dtype {labels.dtype}; {remedy}"
            )
        if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
            raise DataError(
                f"{self.name}: expected labels in [0, {num_classes}) for {num_classes} outputs, "
                f"got labels from {labels.min()} to {labels.max()}"
            )
        return labels.astype(np.int64)

    def _num_classes(self, output_shape: tuple[int, ...]) -> int:
        """Return how many classes outputs of a shape tell apart, or raise ShapeError."""
        if len(output_shape) != 1:
            raise ShapeError(
                f"{self.name}: expected outputs of shape (M, C), got samples of shape "
                f"{output_shape}"
            )
        (num_classes,) = output_shape
        if num_classes < 2:
            raise ShapeError(
                f"{self.name}: expected at least two outputs, one a class, got {num_classes}, "
                "which is always right; binary_cross_entropy tells two classes by one output"
            )
        if self.class_weight is not None and len(self.class_weight) != num_classes:
            raise ShapeError(
                f"expected {num_classes} class weights, one a class, got {len(self.class_weight)}"
            )
        return num_classes

    def class_weights(self) -> tuple[float, ...] | None:
        return self.class_weight

    def count_correct(self, ops: Backend, outputs: Array, targets: Array) -> Array | None:
        return ops.count_correct(outputs, targets)

    def num_outputs(self, num_classes: int) -> int:
        return num_classes

    def probabilities(self, ops: Backend, outputs: Array) -> Array:
        return ops.softmax_forward(outputs)

    def labels(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return outputs.argmax(axis=-1)
