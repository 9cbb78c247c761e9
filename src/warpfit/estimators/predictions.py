"""Predictions of fitted estimators: their networks' outputs, in batches, and the mean of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from warpfit import backends
from warpfit.backends import Backend, first_device, resolve_device
from warpfit.backends.transfer import device_of
from warpfit.checks import Array
from warpfit.errors import DeviceError
from warpfit.estimators.fitted import networks_of
from warpfit.estimators.recipes import (
    OUTPUT_FUNCTIONS,
    dtype_on,
    hidden_activation,
    layer_widths,
    named_weights,
    network_of_widths,
)
from warpfit.estimators.rows import check_features, dense
from warpfit.nn import Module
from warpfit.nn.network import NetworkSpec
from warpfit.training.evaluate import counts_correct, predict_network, predict_rows, rows_at_once
from warpfit.training.inputs import as_rows, check_held
from warpfit.training.place import predicting_place

SPARSE_ROWS = 1 << 14
# Multiplications of a network, for all rows, that are done at once, without a model.
FEW_PRODUCTS = 1 << 20


class Among(NamedTuple):
    """Some of the rows x, checked, on any device."""

    x: Any
    indices: npt.NDArray[np.int64]


class PredictedRows:
    """Rows that estimators of the same features predict, one after the other, and their targets.

    They are checked once, and copied to a GPU once, in the dtype of the networks there. With
    `among`, checked rows, of which some are X, a function gives X if it is asked for.
    """

    def __init__(self, X: Any, y: Any = None, among: Among | None = None) -> None:
        self._given, self.y, self._among = X, y, among
        self._checked: Any = None
        self._on_devices: dict[tuple[str, str], Any] = {}
        self._labels: dict[tuple[str, bytes], Any] = {}
        self._ops: dict[str, Backend] = {}

    @property
    def X(self) -> Any:  # noqa: N802  (as scikit-learn has it)
        """The rows as they are given to the estimators' methods."""
        return self._given if self._among is None else self._given()

    def ops_on(self, device: str) -> Backend:
        """Return the backend whose buffers all predictions of these rows share."""
        if device not in self._ops:
            self._ops[device] = backends.create(device)
        return self._ops[device]

    def of(self, estimator: Any) -> Any:
        """Return the rows as the estimator's networks take them."""
        device = resolve_device(first_device(estimator.device))
        if device == "cpu":
            return self._checked_by(estimator)
        place = device, dtype_on(device, estimator, (estimator.coefs_, estimator.intercepts_))
        if place not in self._on_devices:
            found = self._gathered(*place)
            self._on_devices[place] = self._copied(estimator, *place) if found is None else found
        return self._on_devices[place]

    def _checked_by(self, estimator: Any) -> Any:
        if self._checked is None:
            self._checked = check_features(estimator, self.X)
        return self._checked

    def _gathered(self, device: str, dtype: str) -> Any:
        """Return the rows from among those on a device; None if not there, or if it lacks room."""
        if self._among is None or device_of(self._among.x) != device:
            return None
        ops = backends.get(device)
        with suppress(DeviceError):
            return ops.gather_rows(self._among.x, ops.asarray(self._among.indices), dtype)
        return None

    def _copied(self, estimator: Any, device: str, dtype: str) -> Any:
        """Return the rows on a device; on the host, to come in parts, if sparse or too many."""
        rows = self._checked_by(estimator)
        if issparse(rows):
            return rows
        check_held("X", rows, dtype)
        with suppress(DeviceError):
            return backends.get(device).asarray(rows, dtype)
        return rows

    def are_on_device(self, estimator: Any) -> bool:
        """Return whether the networks take the rows on a device; not if they are refused."""
        try:
            return backends.is_device_array(self.of(estimator))
        except Exception:  # which its predictions will raise
            return False

    def labels_on(self, device: str, classes: Array) -> Any:
        """Return each row's place among sorted classes on a device; None if some have none."""
        y, place = self.y, (device, classes.tobytes())
        if type(y) is not np.ndarray or y.dtype != classes.dtype or y.dtype.kind not in "iuU":
            return None
        if place not in self._labels:
            labels = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
            are_known = y.ndim == 1 and np.array_equal(classes[labels], y)
            self._labels[place] = backends.get(device).asarray(labels) if are_known else None
        return self._labels[place]


@contextmanager
def predicting(estimator: Any, rows: PredictedRows) -> Iterator[None]:
    """Let an estimator's predictions of the same X, meanwhile, take these rows."""
    estimator._predicted_rows = rows
    try:
        yield
    finally:
        del estimator._predicted_rows


def predicted(estimator: Any, X: Any, *, for_labels: bool = False) -> Array:
    """Return predictions for rows X, (N, outputs): the networks' mean, after `out_activation_`.

    With `for_labels` it may be anything that is largest where that is.
    """
    check_is_fitted(estimator)
    shared = estimator._predicted_rows
    X = (
        shared.of(estimator)
        if shared is not None and shared.X is X
        else check_features(estimator, X)
    )
    activate = OUTPUT_FUNCTIONS[estimator.out_activation_]
    device = _device_for(estimator, X)
    first, *others = networks_of(estimator)
    if for_labels and not others and estimator.out_activation_ == "softmax":
        return _outputs(estimator, first, X, device)
    total = activate(_outputs(estimator, first, X, device))
    for network in others:
        total += activate(_outputs(estimator, network, X, device))
    return total / (1 + len(others)) if others else total


def share_of_right(estimator: Any, X: Any, y: Any) -> float | None:
    """Return the share of rows X that are right, if they are on a GPU; else None."""
    shared = estimator._predicted_rows
    if shared is None or shared.X is not X or shared.y is not y:
        return None
    counted = count_right(estimator, shared)
    return None if counted is None else shares_of([counted])[0]


class Counted(NamedTuple):
    """Rows that were found right on a device, batch by batch, and among how many."""

    device: str
    counts: list[Any]
    num_rows: int


def count_right(estimator: Any, shared: PredictedRows) -> Counted | None:
    """Have the rows counted whose share `share_of_right` returns."""
    network, *others = networks_of(estimator)
    if others or estimator.out_activation_ != "softmax" or not shared.are_on_device(estimator):
        return None
    device = resolve_device(first_device(estimator.device))
    labels = shared.labels_on(device, estimator.classes_)
    if labels is None:
        return None
    rows = shared.of(estimator)
    placed = _Placed.of(estimator, network, device)
    return Counted(device, placed.counts_correct(rows, labels), len(rows))


def count_ahead(estimator: Any, num_rows: int) -> None:
    """Begin to compile what `count_right` asks for, of an estimator with initial values."""
    device = resolve_device(first_device(estimator.device))
    if device == "cpu" or estimator.out_activation_ != "softmax":
        return
    widths = layer_widths((estimator.coefs_, estimator.intercepts_))
    network = network_of_widths(widths, estimator.activation)
    settings: Any = {"batch_size": rows_at_once(network, device), "dtype": "float32"}

    def count(ops: Any) -> None:
        arrays = {}
        for idx, fans in enumerate(pairwise(widths)):
            arrays[f"{idx}.weight"] = ops.empty(fans, "float32")
            arrays[f"{idx}.bias"] = ops.empty(fans[1:], "float32")
        rows, labels = ops.empty((num_rows, widths[0]), "float32"), ops.empty((num_rows,), "int64")
        list(counts_correct(ops, network, arrays, rows, labels, **settings))
        ops.reduce("sum", rows, 1)  # as of parameters, which are to be finite

    key = "counted", widths, estimator.activation, num_rows
    backends.get(device).rehearse(key, count)


def shares_of(counted: Sequence[Counted]) -> list[float]:
    """Return which share of the rows was right each time; a device's counts come at once."""
    found = {}
    for device in {each.device for each in counted}:
        counts = [one for each in counted if each.device == device for one in each.counts]
        ops = backends.get(device)
        together = ops.zeros((len(counts),), "int64")
        for place, count in enumerate(counts):
            ops.assign(together[place], count)
        found[device] = iter(ops.to_numpy(together).tolist())
    return [sum(islice(found[each.device], len(each.counts))) / each.num_rows for each in counted]


def _device_for(estimator: Any, X: Any) -> str:
    """Return where the estimator predicts rows: those on a device there, few on the CPU."""
    if backends.is_device_array(X):
        return resolve_device(first_device(estimator.device))
    weights, networks = (estimator.coefs_, estimator.intercepts_), networks_of(estimator)
    num_rows = X.shape[0] * len(networks)
    device = first_device(estimator.device)
    return resolve_device(predicting_place(device, layer_widths(weights), num_rows))


@dataclass(frozen=True)
class _Placed:
    """A network of an estimator on a device."""

    ops: Backend
    network: NetworkSpec
    arrays: dict[str, Any]
    dtype: str
    batch_size: int  # rows that pass through it at once

    @staticmethod
    def of(estimator: Any, network: Any, device: str) -> _Placed:
        weights = network.coefs_, network.intercepts_
        widths, dtype = layer_widths(weights), dtype_on(device, estimator, weights)
        here, rows = backends.get(device), estimator._predicted_rows
        layers = network_of_widths(widths, estimator.activation)
        return _Placed(
            backends.create(device) if rows is None else rows.ops_on(device),
            layers,
            {name: here.asarray(array) for name, array in named_weights(weights, dtype).items()},
            dtype,
            rows_at_once(layers, device),
        )

    def outputs(self, X: Any) -> Array:
        """Return the outputs (N, outputs) for checked rows X, before `out_activation_`."""
        rows = as_rows("X", X, min_rows=0, dtype=None)
        check_held("X", rows, self.dtype)
        found: Array = self._found_by(predict_network, rows)
        return found

    def counts_correct(self, X: Any, labels: Any) -> list[Any]:
        """Return how many rows X of each batch have their largest output at their label."""
        return [backends.of(one).copy(one) for one in self._found_by(counts_correct, X, labels)]

    def _found_by(self, function: Callable[..., Any], *rows: Any) -> Any:
        settings = {"batch_size": self.batch_size, "dtype": self.dtype}
        return function(self.ops, self.network, self.arrays, *rows, **settings)


def _outputs(estimator: Any, network: Any, X: Any, device: str) -> Array:
    """Return a network's outputs (N, outputs) for checked rows X, before `out_activation_`."""
    outputs: Callable[[Any], Array]
    if network._run is not None:  # to a callback that asks, as it is by then and where it is
        outputs = partial(_outputs_of_model, network._run.model)
    elif device == "cpu" and _is_quick(network, X):
        return _quick_outputs(estimator, network, X)
    else:
        outputs = _Placed.of(estimator, network, device).outputs
    if not issparse(X):
        return outputs(X)
    X = X.tocsr()
    starts = range(0, X.shape[0], SPARSE_ROWS)
    return np.concatenate([outputs(dense(X[start : start + SPARSE_ROWS])) for start in starts])


def _outputs_of_model(model: Module, X: Any) -> Array:
    return predict_rows(model, as_rows("X", X, min_rows=0, dtype=model.dtype))


def _is_quick(network: Any, X: Any) -> bool:
    """Return whether a network's products take less time than what comes before them."""
    coefs = network.coefs_
    return (
        type(X) is np.ndarray
        and X.dtype == coefs[0].dtype
        and len(X) * sum(coef.size for coef in coefs) <= FEW_PRODUCTS
    )


def _quick_outputs(estimator: Any, network: Any, X: Array) -> Array:
    """Return the outputs by the operations of NumPy's backend, to the same bits."""
    hidden, rows = hidden_activation(estimator.activation), X
    last = len(network.coefs_) - 1
    # Weights near overflow give infinite outputs, which the result shows.
    with np.errstate(over="ignore", invalid="ignore"):
        for idx, (coef, intercept) in enumerate(
            zip(network.coefs_, network.intercepts_, strict=True)
        ):
            rows = rows @ coef
            rows += intercept
            if idx < last:
                rows = hidden.formula.forward(rows, hidden.slope, rows)
    return rows
