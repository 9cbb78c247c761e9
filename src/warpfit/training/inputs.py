"""What `fit`, `evaluate` and `predict` take: arrays, checked once before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Activation, Array
from warpfit.backends.transfer import home_of, to_host
from warpfit.callers import warn
from warpfit.checks import as_numbers, brief
from warpfit.errors import ConfigError, DataError, DataWarning, DTypeError, ShapeError
from warpfit.losses import DISTANCES, BinaryCrossEntropy, Loss, SoftmaxCrossEntropy
from warpfit.nn.activations import ActivationSpec, SoftmaxSpec
from warpfit.nn.embedding import as_indices
from warpfit.nn.network import NetworkSpec

CHUNK_BYTES = 1 << 24
# Rows that are looked at first to see whether x holds pixels as bytes have them.
GLIMPSE, WHITE = 256, 255
# Rows that are looked at for their scale; how far columns may reach at most, how far in any case,
# and how much further than others.
SAMPLE, FAR, NEAR, UNEVEN = 1000, 1e3, 20.0, 1e2


def as_rows(name: str, value: Any, *, min_rows: int = 1, dtype: str | None = "float64") -> Array:
    """Return `value` as an array of rows (N, ...) of finite numbers, without a copy if it is one in
    C order.

    What lives on a GPU, whichever library it is of, becomes a device array there; all else is
    NumPy's. `dtype` is what is computed in, which must be able to hold the numbers; None leaves
    them to `check_finite`.

    Raises
    ------
    DTypeError, ShapeError, DataError
        If it holds something other than numbers, too few rows, masked values, NaN or infinity, or
        numbers too large.
    """
    home = home_of(value)
    # In C order, because taking a batch out of any other may copy the whole array.
    rows = (
        np.asarray(as_numbers(value, name), order="C")
        if home.name == "numpy"
        else home.asarray(value)
    )
    if rows.dtype.kind not in "fiub":
        raise DTypeError(f"expected {name} to hold numbers, got dtype {rows.dtype}")
    if rows.ndim == 0:
        raise ShapeError(f"expected {name} to be an array of rows, got a single number")
    if len(rows) < min_rows:
        raise DataError(f"expected {name} to have at least one row, got shape {rows.shape}")
    if dtype is not None:
        check_finite(name, rows, dtype)
    return rows


def check_finite(name: str, rows: Array, dtype: str) -> None:
    """Raise DataError unless all numbers are finite, and in `dtype` still are."""
    if rows.dtype.kind != "f":
        return
    home = backends.of(rows)
    fits = rows.dtype.itemsize <= np.dtype(dtype).itemsize
    if home.name == "numpy" or not fits or not home.to_numpy(home.all_finite([rows])):
        _check_finite_on_host(name, to_host(rows), dtype)


def check_held(name: str, rows: Array, dtype: str) -> None:
    """Raise DataError unless finite rows stay so in `dtype`, which may be narrower."""
    if rows.dtype.itemsize > np.dtype(dtype).itemsize:
        check_finite(name, rows, dtype)


def _check_finite_on_host(name: str, rows: npt.NDArray[Any], dtype: str) -> None:
    """Raise DataError naming the first number not finite or too large, a chunk at a time."""
    largest = min(float(np.finfo(kind).max) for kind in (dtype, rows.dtype))
    if rows.dtype in (np.float32, np.float64):
        # Nearly always enough, and several times as quick: a sum of squares is finite only if all
        # of them are.
        flat = rows.reshape(-1)
        with np.errstate(over="ignore"):
            squares = np.vdot(flat, flat)
        if sqrt(squares) <= largest:
            return
    chunk = max(1, CHUNK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        wrong = ~(np.abs(part) <= largest)
        if wrong.any():
            place = np.unravel_index(int(np.argmax(wrong)), part.shape)
            raise DataError(_of_wrong_number(name, part[place], start, place, dtype))


def _of_wrong_number(name: str, number: Any, start: int, place: Sequence[Any], dtype: str) -> str:
    """Return what is wrong with a number of the rows from `start` on, and where."""
    column = f", column {', '.join(map(str, place[1:]))}" if len(place) > 1 else ""
    where = f"in row {start + int(place[0])}{column}"
    if np.isfinite(number):
        return f"expected {name} to hold numbers that {dtype} can hold, got {number:g} {where}"
    return f"expected {name} to be finite, got NaN or infinity {where}"


def check_indices(name: str, rows: Array, network: Any) -> None:
    """Raise unless rows hold indices that a network's first layer knows, if it takes indices."""
    if network.num_indices is not None:
        as_indices(name, to_host(rows), network.num_indices)


def check_same_length(name: str, rows: Array, num_rows: int) -> None:
    """Raise ShapeError unless there are as many rows as x has."""
    if len(rows) != num_rows:
        raise ShapeError(f"expected as many rows in {name} as in x, got {len(rows)} and {num_rows}")


def as_sample_weight(value: Any, num_rows: int, dtype: str) -> npt.NDArray[Any] | None:
    """Return weights (N,) as `dtype`, None for None, or raise unless finite and at least 0."""
    if value is None:
        return None
    weights = to_host(as_rows("sample_weight", value, dtype=dtype))
    if weights.shape != (num_rows,):
        raise ShapeError(f"expected sample_weight of shape ({num_rows},), got {weights.shape}")
    if weights.min() < 0:
        raise DataError(f"expected sample weights of at least 0, got {weights.min():g}")
    return some_above_0(weights.astype(dtype))


def some_above_0(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return sample weights, or raise DataError if they leave no row to train on."""
    if not weights.any():
        raise DataError("expected sample weights that sum to more than 0, got none above 0")
    return weights


def check_weight_left(
    loss: Loss, targets: Any, sample_weight: npt.NDArray[Any] | None = None
) -> None:
    """Raise DataError if class and sample weights are 0 for every row: the loss would be 0 / 0."""
    by_class = loss.class_weights()
    if by_class is not None and min(by_class) == 0:
        weights = np.array(by_class)[to_host(targets)]
        sample_weight = weights if sample_weight is None else weights * sample_weight
    if sample_weight is not None and not sample_weight.any():
        classes = "" if by_class is None else f", class weights {by_class}"
        raise DataError(
            f"expected weights that leave a row to train or test on, got none above 0{classes}"
        )


def warn_of_data(x: Array, y: Array, loss: Loss, network: Any) -> None:
    """Warn of training rows and targets that are probably not as intended."""
    warn_of_pixels(x, network)
    _warn_of_scales(x, y, loss)
    _warn_of_one_class(y, loss)


def _warn_of_one_class(targets: Any, loss: Loss) -> None:
    """Warn if all training rows, of several, have one class: there is nothing to learn."""
    on_host = to_host(targets)
    if loss.counts_correct and len(on_host) > 1 and (on_host == on_host[0]).all():
        warn(
            f"expected rows of at least two classes in y, got {len(on_host)} rows of one, "
            f"{brief(on_host[0])}: the network learns to answer it whatever x is",
            DataWarning,
        )


def warn_of_probabilities(network: Any, loss: Loss) -> None:
    """Warn if a network ends in probabilities before a loss that takes logits."""
    if not isinstance(loss, SoftmaxCrossEntropy | BinaryCrossEntropy) or not isinstance(
        network, NetworkSpec
    ):
        return
    last = network.layers[-1][1] if network.layers else None
    if last in (SoftmaxSpec(), ActivationSpec(Activation("sigmoid"))):
        name = "Softmax" if isinstance(last, SoftmaxSpec) else "Sigmoid"
        warn(
            f"the network ends in {name}, but {loss.name} takes logits and makes probabilities of "
            f"them itself; leave {name} out, and ask predict for kind='probabilities'",
            DataWarning,
        )


def resolve_class_weight(
    loss: Loss,
    class_weight: str | Mapping[int, float] | Sequence[float] | None,
    y: Any,
    num_classes: int,
) -> Loss:
    """Return the loss with class weights, given as 'balanced', {class: weight} or one weight a
    class.

    ``'balanced'`` is N / (C · rows of the class), as scikit-learn's; classes left out of a mapping
    weigh 1.
    """
    if class_weight is None:
        return loss
    if not isinstance(loss, SoftmaxCrossEntropy):
        raise ConfigError(
            f"expected no class_weight for the loss {loss.name!r}, got {class_weight!r}"
        )
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
            raise ConfigError(
                f"expected class weights for classes in [0, {num_classes}), got {foreign}"
            )
        weights = [class_weight.get(label, 1.0) for label in range(num_classes)]
    else:
        weights = class_weight
    checked = as_rows("class_weight", weights)
    if checked.shape != (num_classes,):
        raise ShapeError(
            f"expected {num_classes} class weights, one a class, got shape {checked.shape}"
        )
    return replace(loss, class_weight=tuple(checked.tolist()))


def _warn_of_scales(x: Array, y: Array, loss: Loss) -> None:
    """Warn if x reaches beyond 1000, or beyond 20 in one column and 100 times as far as in another;
    and of large y.

    A sample of rows is looked at; pixels, and rows of more than one dimension, have one scale.
    """
    if x.ndim == 2 and x.dtype.kind == "f":
        reach = np.abs(_sample(x)).max(axis=0, initial=0)
        known = reach[reach > 0]
        most = int(reach.argmax()) if known.size else 0
        if known.size and reach[most] > min(FAR, max(NEAR, UNEVEN * float(known.min()))):
            least = int(np.flatnonzero(reach == known.min())[0])
            other = f", column {least} {reach[least]:.3g}" if least != most else ""
            warn(
                f"x has columns of very different or large scale: column {most} reaches "
                f"{reach[most]:.3g}{other}; standardise them, as wf.data.TablePreprocessor does",
                DataWarning,
            )
    if loss.name in DISTANCES and (reach_of_y := np.abs(_sample(y)).max(initial=0)) > FAR:
        warn(
            f"y reaches {reach_of_y:.3g}, which makes gradients of {loss.name!r} as large; "
            "standardise targets, as wf.data.TablePreprocessor does",
            DataWarning,
        )


def _sample(rows: Array) -> npt.NDArray[Any]:
    """Return some rows on the host: spread over all, or the first of a device array."""
    if backends.is_device_array(rows):
        return to_host(rows[:SAMPLE])
    return np.asarray(rows[:: max(1, len(rows) // SAMPLE)])


def warn_of_pixels(x: Array, network: Any) -> None:
    """Warn if rows hold 0 to 255 in another dtype than uint8, like pixels, which is not scaled."""
    if network.num_indices is not None:
        return
    if x.dtype == np.uint8 or x.ndim < 2 or backends.is_device_array(x):
        return
    glimpse = x[:GLIMPSE]
    if not glimpse.size or glimpse.min() < 0 or not WHITE / 2 < glimpse.max() <= WHITE:
        return
    if x.min() == 0 and x.max() == WHITE:
        warn(
            f"x holds {x.dtype} numbers from 0 to 255, like pixels, and they are taken as they "
            "are; make them uint8, which means x / 255, or divide x by 255",
            DataWarning,
        )
