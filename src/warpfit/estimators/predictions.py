"""Predictions of fitted estimators: their networks' outputs, in batches, and the mean of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from warpfit import backends
from warpfit.backends import resolve_device
from warpfit.errors import DeviceError
from warpfit.estimators.fitted import networks_of
from warpfit.estimators.recipes import (
    OUTPUT_FUNCTIONS,
    hidden_activation,
    layer_widths,
    make_model,
)
from warpfit.estimators.rows import check_features, dense
from warpfit.nn import Module
from warpfit.training.evaluate import predict_rows
from warpfit.training.inputs import as_rows
from warpfit.training.place import predicting_place

__all__ = ["PredictedRows", "predicted", "predicting"]

Array = npt.NDArray[Any]

SPARSE_ROWS = 1 << 14
# Multiplications of a network, for all rows, that are done at once, without a model.
FEW_PRODUCTS = 1 << 20
# Rows that pass through a network at once: on the host few, which stay in its caches; on a device
# as many as have so many numbers in a layer.
ROWS_ON_HOST, NUMBERS_ON_DEVICE = 1024, 1 << 25


class PredictedRows:
    """Rows that estimators of the same features predict, one after the other.

    They are checked once, and copied to a GPU once.
    """

    def __init__(self, X: Any) -> None:
        self.X = X
        self._checked: Any = None
        self._on_devices: dict[str, Any] = {}

    def of(self, estimator: Any) -> Any:
        """Return the rows as the estimator's networks take them."""
        if self._checked is None:
            self._checked = check_features(estimator, self.X)
        device = resolve_device(estimator.device)
        if device == "cpu" or issparse(self._checked):
            return self._checked
        if device not in self._on_devices:
            self._on_devices[device] = self._copied(device)
        return self._on_devices[device]

    def _copied(self, device: str) -> Any:
        """Return the rows on a device, or on the host, from which they come in parts, if it lacks
        the room.
        """
        with suppress(DeviceError):
            return backends.get(device).asarray(self._checked)
        return self._checked


@contextmanager
def predicting(estimator: Any, rows: PredictedRows) -> Iterator[None]:
    """Let an estimator's predictions of the same X, meanwhile, take these rows."""
    estimator._predicted_rows = rows
    try:
        yield
    finally:
        del estimator._predicted_rows


def predicted(estimator: Any, X: Any, *, for_labels: bool = False) -> Array:
    """Return what is predicted for rows X, (N, outputs): the mean over the networks, after
    `out_activation_`.

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


def _device_for(estimator: Any, X: Any) -> str:
    """Return where the estimator predicts rows: those on a device there, few on the CPU."""
    if backends.is_device_array(X):
        return resolve_device(estimator.device)
    weights, networks = (estimator.coefs_, estimator.intercepts_), networks_of(estimator)
    num_rows = X.shape[0] * len(networks)
    return resolve_device(predicting_place(estimator.device, layer_widths(weights), num_rows))


def _model(estimator: Any, network: Any, device: str) -> Module:
    """Return a network on a device; to a callback that asks, as it is by then and where it is."""
    model: Module
    if network._run is not None:
        model = network._run.model
        return model
    return make_model(estimator, (network.coefs_, network.intercepts_), device=device).to(device)


def _outputs(estimator: Any, network: Any, X: Any, device: str) -> Array:
    """Return a network's outputs (N, outputs) for checked rows X, before `out_activation_`."""
    if device == "cpu" and _is_quick(network, X):
        return _quick_outputs(estimator, network, X)
    return _outputs_of(_model(estimator, network, device), X)


def _is_quick(network: Any, X: Any) -> bool:
    """Return whether a network's products take less time than what comes before them."""
    coefs = network.coefs_
    return (
        type(X) is np.ndarray
        and network._run is None
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


def _rows_at_once(model: Module, features: int) -> int:
    if model.device == "cpu":
        return ROWS_ON_HOST
    widest = max(features, *(parameter.data.shape[-1] for parameter in model.parameters()))
    return max(ROWS_ON_HOST, NUMBERS_ON_DEVICE // widest)


def _outputs_of(model: Module, X: Any) -> Array:
    """Return a network's outputs (N, outputs) for checked rows X, before `out_activation_`."""

    def outputs(rows: Array) -> Array:
        rows = as_rows("X", rows, min_rows=0, dtype=model.dtype)
        return predict_rows(model, rows, batch_size=_rows_at_once(model, rows.shape[1]))

    if not issparse(X):
        return outputs(X)
    X = X.tocsr()
    starts = range(0, X.shape[0], SPARSE_ROWS)
    return np.concatenate([outputs(dense(X[start : start + SPARSE_ROWS])) for start in starts])
