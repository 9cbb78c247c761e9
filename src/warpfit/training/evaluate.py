"""Outputs of a trained network, and their loss and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, losses
from warpfit.backends import Array, Backend
from warpfit.backends.transfer import moved
from warpfit.checks import brief, check_choice, check_count, kind_of
from warpfit.errors import ConfigError, DataError
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.losses.base import LossLike
from warpfit.nn.module import Module
from warpfit.nn.network import NetworkSpec
from warpfit.nn.sequential import Sequential
from warpfit.nn.spec import Call
from warpfit.nn.taped import TapedNetwork
from warpfit.training.batches import (
    check_no_pairs,
    gives_batches,
    joined_batches,
    rows_of_batches,
)
from warpfit.training.inputs import (
    as_rows,
    as_sample_weight,
    check_indices,
    check_same_length,
    check_weight_left,
    warn_of_pixels,
)

PREDICTIONS = ("outputs", "probabilities", "labels", "values")
# Rows that pass through a network at once: on the host few, which stay in its caches; on a device
# as many as have so many numbers in all layers.
ROWS_ON_HOST, NUMBERS_ON_DEVICE = 1024, 1 << 26


def rows_at_once(network: NetworkSpec | TapedNetwork, device: str) -> int:
    """Return the rows of a batch that a network evaluates; of one whose layers nobody knows few."""
    if device == "cpu" or not isinstance(network, NetworkSpec):
        return ROWS_ON_HOST
    return max(ROWS_ON_HOST, NUMBERS_ON_DEVICE // sum(map(prod, network.fused.shapes)))


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` finds: mean loss, accuracy, and the number of rows.

    Attributes
    ----------
    loss : float
        The mean over all rows, or the mean weighted by sample and class weights.
    accuracy : float or None
        Share of rows that are right, in [0, 1]; None for losses without one.
    num_rows : int

    Examples
    --------
    >>> found = wf.evaluate(model, x, y, loss="cross_entropy")
    >>> found.num_rows, found.accuracy is not None
    (200, True)
    """

    loss: float
    accuracy: float | None
    num_rows: int


def network_of(model: Module, input_shape: tuple[int, ...]) -> NetworkSpec | TapedNetwork:
    """Return the network of a model for samples of a shape: a spec for chains of known layers, else
    the tape's.

    Raises
    ------
    ConfigError
        If `model` is no Module.
    ShapeError
        If a layer does not take such samples.
    """
    check_model(model)
    spec = model.spec(input_shape) if type(model) is Sequential else None
    return spec or TapedNetwork(model, input_shape)


def loss_of(model: Module, loss: LossLike | None = None) -> Loss | None:
    """Return the loss that says what a model's outputs mean: the one given, or the model's own;
    None if unknown.

    Raises
    ------
    ConfigError
        If there is no such loss, or ``model.loss`` is something else.
    """
    if loss is not None:
        return losses.resolve(loss)
    if not isinstance(model, Module) or model.loss is None:
        return None
    known = model.loss
    if callable(known) and not isinstance(known, Loss):
        known = brief(known)  # a method of this name is no loss
    try:
        return losses.resolve(known)
    except ConfigError as error:
        raise ConfigError(
            f"model.loss does not say what the outputs mean, give loss=: {error}"
        ) from error


def _meaning(
    model: Module, loss: LossLike | None, output_shape: tuple[int, ...], kind: str = "labels"
) -> Loss:
    """Return a model's loss; if none is known, outputs are logits of two or more classes."""
    known = loss_of(model, loss)
    if known is None and (kind == "values" or output_shape[-1:] in ((), (1,))):
        shape = "".join(f", {size}" for size in output_shape)
        raise ConfigError(
            f"expected to know what the model's outputs (N{shape}) mean, but no loss of it is "
            "known; set model.loss, "
            "or give loss=, such as 'binary_cross_entropy' for one logit or 'mse' for a regression"
        )
    return known or SoftmaxCrossEntropy()


def _batches(
    ops: Backend,
    network: NetworkSpec | TapedNetwork,
    arrays: Mapping[str, Array],
    x: Array,
    batch_size: int,
    dtype: str,
) -> Iterator[tuple[slice, Array]]:
    """Yield rows and outputs of each batch; rows are brought to the backend's device."""
    fused = network.fused
    for start in range(0, len(x), batch_size):
        ops.begin_step()
        rows = slice(start, min(start + batch_size, len(x)))
        batch = moved(x[rows], ops, dtype)
        # Weights near overflow give infinite outputs, which the result shows better than NumPy's
        # warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            outputs, _ = fused.vjp(ops, arrays, batch, Call())
        yield rows, outputs


def evaluate_network(
    ops: Backend,
    network: NetworkSpec | TapedNetwork,
    arrays: Mapping[str, Array],
    loss: Loss,
    x: Array,
    y: Array,
    *,
    batch_size: int,
    dtype: str,
    sample_weight: Array | None = None,
) -> Evaluation:
    """Return loss and accuracy over all rows, for arrays on the backend; see `evaluate`.

    Rows x, targets y and sample weights may live on the host, from where they come batch by batch.
    """
    weights = loss.class_weights()
    class_weight = None if weights is None else ops.asarray(np.array(weights), dtype)
    record = ops.zeros((-(-len(x) // batch_size), 3), "float64")
    for idx, (rows, outputs) in enumerate(_batches(ops, network, arrays, x, batch_size, dtype)):
        targets = moved(y[rows], ops)
        with np.errstate(over="ignore", invalid="ignore"):  # as for the outputs
            mean, weight, _ = loss.vjp(
                ops,
                outputs,
                targets,
                class_weight=class_weight,
                sample_weight=None if sample_weight is None else moved(sample_weight[rows], ops),
            )
        ops.record_step(record, idx, mean, weight, loss.count_correct(ops, outputs, targets), None)
    means, total_weights, correct = ops.to_numpy(record).T
    total = total_weights.sum()
    return Evaluation(
        float(means @ total_weights / total) if total else 0.0,
        float(correct.sum() / len(x)) if loss.counts_correct else None,
        len(x),
    )


def evaluate(
    model: Module,
    x: Any,
    y: Any = None,
    *,
    loss: LossLike | None = None,
    sample_weight: Any = None,
    batch_size: int = 1024,
) -> Evaluation:
    """Return a model's loss and accuracy on rows x with targets y, computed where the model lives.

    Parameters
    ----------
    model : Module
    x : array_like (N, ...)
        uint8 means x / 255. An array on the model's device, of this package or another, is taken as
        it is.
    y : array_like (N,) or (N, ...)
        As the loss takes them. Without y, x gives batches (x, y), as `fit` takes them, or is an
        iterator of such; they are read into memory.
    loss : str, Loss or function, optional
        By default the one that the model was trained with, ``model.loss``, class weights included;
        if none is known, cross_entropy for two or more outputs.
    sample_weight : array_like (N,), optional
    batch_size : int
        Rows at a time; bounds the memory, and does not change the result beyond rounding.

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError
        If an argument is not what is described here.

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=20)
    >>> wf.evaluate(model, x, y).accuracy > 0.9
    True
    """
    dtype = _dtype_of(model)
    if y is None:
        x, y = joined_batches(x)
        if sample_weight is not None:
            raise ConfigError(
                f"expected no sample_weight beside batches (x, y), got {brief(sample_weight)}"
            )
    rows = as_rows("x", x, dtype=dtype)
    warn_of_pixels(rows, network_of(model, rows.shape[1:]))
    return evaluate_rows(
        model, rows, y, loss=loss, sample_weight=sample_weight, batch_size=batch_size
    )


def evaluate_rows(
    model: Module,
    rows: Array,
    y: Any,
    *,
    loss: LossLike | None = None,
    sample_weight: Any = None,
    batch_size: int = 1024,
) -> Evaluation:
    """Return a model's loss and accuracy on checked rows, as `evaluate` does."""
    network = network_of(model, rows.shape[1:])
    check_indices("x", rows, network)
    loss = _meaning(model, loss, network.output_shape)
    targets = loss.prepare_targets(
        as_rows("y", y, dtype=model.dtype), network.output_shape, model.dtype
    )
    check_same_length("y", targets, len(rows))
    weights = as_sample_weight(sample_weight, len(rows), model.dtype)
    check_weight_left(loss, targets, weights)
    return evaluate_network(
        backends.create(model.device),
        network,
        {name: holder.data for name, holder in model.named_arrays().items()},
        loss,
        rows,
        targets,
        batch_size=check_count("batch_size", batch_size, 1),
        dtype=model.dtype,
        sample_weight=weights,
    )


def predict(
    model: Module,
    x: Any,
    *,
    kind: str = "outputs",
    loss: LossLike | None = None,
    batch_size: int = 1024,
) -> npt.NDArray[Any]:
    """Return a model's outputs for rows x, or what they mean, computed where the model lives.

    Parameters
    ----------
    model : Module
    x : array_like (N, ...)
        uint8 means x / 255. An array on the model's device, of this package or another, is taken as
        it is. Or batches of a loader or an iterator: of x, or (x, y) without use of y.
    kind : str
        ``'outputs'``: what the network gives, (N, ...). What else there is, the loss says. Of C
        classes (``'cross_entropy'``), ``'probabilities'``: the outputs' softmax, (N, C);
        ``'labels'``: the index of the largest output, (N,) int64. Of one logit
        (``'binary_cross_entropy'``), ``'probabilities'``: that of label 1, (N, 1); ``'labels'``: 1
        where it exceeds 0.5, else 0, (N,) int64; of K logits, each by itself, (N, K). In
        regression, ``'values'``: the targets that are predicted, which are the outputs, but for
        ``'poisson'`` their exponentials.
    loss : str, Loss or function, optional
        What the outputs mean. By default the loss that the model was trained with, ``model.loss``;
        if none is known, two or more outputs are logits of classes.
    batch_size : int
        Rows at a time; bounds the memory.

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError
        If an argument is not what is described here, or there is no such kind for the loss. For
        probabilities and labels DataError, too, if a row's largest output is not finite.

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=2)
    >>> wf.predict(model, x).shape, wf.predict(model, x, kind="labels").shape
    ((200, 10), (200,))
    """
    dtype = _dtype_of(model)
    if isinstance(x, Iterable) and gives_batches(x):
        asked: dict[str, Any] = {"kind": kind, "loss": loss, "batch_size": batch_size}
        parts = [predict(model, rows, **asked) for rows in rows_of_batches(x)]
        if not parts:
            raise DataError("expected batches of x, got none")
        return np.concatenate(parts)
    check_no_pairs(x)
    rows = as_rows("x", x, min_rows=0, dtype=dtype)
    warn_of_pixels(rows, network_of(model, rows.shape[1:]))
    return predict_rows(model, rows, kind=kind, loss=loss, batch_size=batch_size)


def predict_rows(
    model: Module,
    rows: Array,
    *,
    kind: str = "outputs",
    loss: LossLike | None = None,
    batch_size: int = 1024,
) -> npt.NDArray[Any]:
    """Return a model's outputs for checked rows, in the form that `predict` takes as `kind`."""
    check_choice("kind", kind, PREDICTIONS)
    network = network_of(model, rows.shape[1:])
    check_indices("x", rows, network)
    meaning = None if kind == "outputs" else _meaning(model, loss, network.output_shape, kind)
    result = predict_network(
        backends.create(model.device),
        network,
        {name: holder.data for name, holder in model.named_arrays().items()},
        rows,
        batch_size=check_count("batch_size", batch_size, 1),
        dtype=model.dtype,
        form=None if meaning is None or kind == "labels" else getattr(meaning, kind),
    )
    if kind in ("probabilities", "labels"):
        _check_outputs(result)
    return meaning.labels(result) if meaning is not None and kind == "labels" else result


def _dtype_of(model: Any) -> str:
    """Return the dtype that a model computes in, or raise ConfigError if it is none."""
    check_model(model)
    return str(model.dtype)


def check_model(model: Any) -> None:
    """Raise ConfigError unless it is a model."""
    if not isinstance(model, Module):
        raise ConfigError(f"expected a model (a Module), got {kind_of(model)}")


def _check_outputs(outputs: npt.NDArray[Any]) -> None:
    """Raise DataError if the largest output of a row is NaN or infinite, and so tells no class."""
    lost = np.flatnonzero(~np.isfinite(outputs.max(axis=-1)))
    if lost.size:
        raise DataError(
            f"expected outputs that tell a class, got NaN or infinity for {lost.size} of "
            f"{len(outputs)} rows, first "
            f"row {lost[0]}; its numbers, or the model's weights, are too large or not finite"
        )


def predict_network(
    ops: Backend,
    network: NetworkSpec | TapedNetwork,
    arrays: Mapping[str, Array],
    x: Array,
    *,
    batch_size: int = 1024,
    dtype: str,
    form: Callable[[Backend, Array], Array] | None = None,
) -> npt.NDArray[Any]:
    """Return the outputs for rows x, or what `form` makes of them; see `predict`."""
    result = np.empty((len(x), *network.output_shape), dtype)
    for part, outputs in _batches(ops, network, arrays, x, batch_size, dtype):
        with np.errstate(over="ignore", invalid="ignore"):  # as for the outputs
            result[part] = ops.to_numpy(outputs if form is None else form(ops, outputs))
    return result


def counts_correct(
    ops: Backend,
    network: NetworkSpec,
    arrays: Mapping[str, Array],
    x: Array,
    labels: Array,
    *,
    batch_size: int,
    dtype: str,
) -> Iterator[Array]:
    """Yield batch by batch how many rows x have their largest output at their label (N,), for
    arrays on the backend, on which the count stands until the next is asked for; see `predict`.
    """
    for rows, outputs in _batches(ops, network, arrays, x, batch_size, dtype):
        yield ops.count_correct(outputs, labels[rows])
