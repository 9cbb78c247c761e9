"""What `fit`, `evaluate` and `predict` take: arrays, checked once before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.backends.transfer import home_of, to_host
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError
from warpfit.losses import Loss, SoftmaxCrossEntropy

__all__ = ["as_rows", "as_sample_weight", "check_same_length", "resolve_class_weight"]

CHUNK_BYTES = 1 << 24


def as_rows(name: str, value: Any, *, min_rows: int = 1) -> Array:
    """Return `value` as an array of rows (N, ...) of finite numbers, without a copy if it is one in C order.

    What lives on a GPU, whichever library it is of, becomes a device array there; all else is NumPy's.

    Raises
    ------
    DTypeError, ShapeError, DataError
        If it holds something other than numbers, too few rows, or NaN or infinity.
    """
    home = home_of(value)
    try:
        # In C order, because taking a batch out of any other may copy the whole array.
        rows = np.asarray(value, order="C") if home.name == "numpy" else home.asarray(value)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"expected {name} to be an array of rows, but {error}") from None
    if rows.dtype.kind not in "fiub":
        raise DTypeError(f"expected {name} to hold numbers, got dtype {rows.dtype}")
    if rows.ndim == 0:
        raise ShapeError(f"expected {name} to be an array of rows, got a single number")
    if len(rows) < min_rows:
        raise DataError(f"expected {name} to have at least one row, got shape {rows.shape}")
    if rows.dtype.kind == "f" and not (home.name != "numpy" and home.to_numpy(home.all_finite([rows]))):
        _check_finite(name, to_host(rows))
    return rows


def _check_finite(name: str, rows: npt.NDArray[Any]) -> None:
    """Raise DataError naming the first row that holds NaN or infinity; a chunk at a time, to stay small."""
    if rows.dtype in (np.float32, np.float64):
        # Nearly always enough, and several times as quick: a sum of squares is finite only if all of them are.
        flat = rows.reshape(-1)
        if np.isfinite(np.vdot(flat, flat)):
            return
    chunk = max(1, CHUNK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), chunk):
        finite = np.isfinite(rows[start : start + chunk])
        if not finite.all():
            row = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            raise DataError(f"expected {name} to be finite, got NaN or infinity in row {row}")


def check_same_length(name: str, rows: Array, num_rows: int) -> None:
    """Raise ShapeError unless there are as many rows as x has."""
    if len(rows) != num_rows:
        raise ShapeError(f"expected as many rows in {name} as in x, got {len(rows)} and {num_rows}")


def as_sample_weight(value: Any, num_rows: int, dtype: str) -> npt.NDArray[Any] | None:
    """Return weights (N,) as `dtype`, None for None, or raise unless they are finite and at least 0."""
    if value is None:
        return None
    weights = to_host(as_rows("sample_weight", value))
    if weights.shape != (num_rows,):
        raise ShapeError(f"expected sample_weight of shape ({num_rows},), got {weights.shape}")
    if weights.min() < 0:
        raise DataError(f"expected sample weights of at least 0, got {weights.min():g}")
    return weights.astype(dtype)


def resolve_class_weight(
    loss: Loss, class_weight: str | Mapping[int, float] | Sequence[float] | None, y: Any, num_classes: int
) -> Loss:
    """Return the loss with class weights, given as 'balanced', {class: weight} or one weight a class.

    ``'balanced'`` is N / (C · rows of the class), as scikit-learn's; classes left out of a mapping weigh 1.
    """
    if class_weight is None:
        return loss
    if not isinstance(loss, SoftmaxCrossEntropy):
        raise ConfigError(f"expected no class_weight for the loss {loss.name!r}, got {class_weight!r}")
    weights: Any
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ConfigError(
                f"expected class_weight 'balanced', a mapping or a sequence, got {class_weight!r}"
            )
        counts = np.bincount(np.asarray(y, dtype=np.int64), minlength=num_classes)
        weights = counts.sum() / (num_classes * np.maximum(counts, 1))
    elif isinstance(class_weight, Mapping):
        foreign = [label for label in class_weight if label not in range(num_classes)]
        if foreign:
            raise ConfigError(f"expected class weights for classes in [0, {num_classes}), got {foreign}")
        weights = [class_weight.get(label, 1.0) for label in range(num_classes)]
    else:
        weights = class_weight
    checked = as_rows("class_weight", weights)
    if checked.shape != (num_classes,):
        raise ShapeError(f"expected {num_classes} class weights, one a class, got shape {checked.shape}")
    return replace(loss, class_weight=tuple(checked.tolist()))
