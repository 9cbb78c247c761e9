"""Losses as values: means over a batch, of a network's outputs and their targets.

A loss is a frozen, printable setting; engines read it and call the backend's operations. The same
object is callable on tensors, and offers ``forward_and_grad`` for the explicit style.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.autograd import Tensor, record
from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import FLOAT_DTYPES, LossTerms, Number
from warpfit.backends.transfer import moved, to_host
from warpfit.checks import as_tuple, brief, check_fields, register
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "Huber",
    "Loss",
    "MeanSquaredError",
    "Poisson",
    "SoftmaxCrossEntropy",
    "resolve",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__


# Losses of the distance of outputs from targets, which may have any unit and zero.
DISTANCES = ("mse", "absolute_error", "huber")

# Stands for 0 where there is a logarithm or a quotient; float32 has it.
_TINY = 1e-30
_SIGMOID = Activation("sigmoid")


class _OnClassOrInstance:
    """A method that, called on the class, runs on an instance with the default settings."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return self.function.__get__(owner() if instance is None else instance)


@dataclass(frozen=True)
class Loss:
    """Base of all losses.

    Subclasses set `name`, by which `fit` knows them, and `counts_correct` if they have an accuracy.
    They define `vjp`, and `prepare_targets` where targets are not floats of the outputs' shape.
    What outputs mean is said here too: a loss for classes defines `count_correct`, `probabilities`
    and `labels`, which have to agree; one for regression defines `values` if its outputs are not
    the predictions themselves.
    """

    name: ClassVar[str] = ""
    counts_correct: ClassVar[bool] = False
    by_name: ClassVar[dict[str, type[Loss]]] = {}

    def __post_init__(self) -> None:
        check_fields(type(self).__name__, self)

    def __init_subclass__(cls) -> None:
        register(cls, "name", Loss.by_name)
        # Whoever has another formula must not inherit the operation of this one.
        own = set(vars(cls))
        if own & {"vjp", "count_correct"} and not own & {"train_step", "operation"}:
            cls.train_step = Loss.train_step  # type: ignore[method-assign]

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        """Return the mean loss (), the total weight (), and the function that gives d loss / d
        outputs.

        Parameters
        ----------
        ops : Backend
            That the arrays belong to.
        outputs : array (M, ...)
            Of the network.
        targets : array
            As `prepare_targets` returns them, for these rows.
        class_weight : array (C,), optional
        sample_weight : array (M,), optional

        Raises
        ------
        ShapeError, DTypeError
            If arrays that belong together differ.
        """
        raise NotImplementedError

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
        """Write (loss, weight, rows that are right) to record[row], and return d loss / d outputs
        times `scale`.

        That is one operation, for outputs in half precision too; None, and nothing is written,
        where there is none.

        Parameters
        ----------
        ops : Backend
            That the arrays belong to.
        outputs : array (M, ...)
            Of the network.
        targets : array
            As `prepare_targets` returns them, for these rows.
        record : array (steps, 3) float64
        row : int or array ()
            Of the record.
        scale : float
            What the gradient is multiplied by: the loss scale.
        class_weight : array (C,), optional
        sample_weight : array (M,), optional

        Raises
        ------
        ShapeError, DTypeError
            If arrays that belong together differ.
        """
        return None

    @property
    def has_terms(self) -> bool:
        """Whether kernels of whole steps compute it: its class itself, and no base of it, has
        `terms`.
        """
        return "terms" in vars(type(self))

    def terms(self, outputs: int) -> LossTerms:
        """Return what kernels of whole steps compute it by, for so many outputs; only if it
        `has_terms`.
        """
        raise NotImplementedError

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        """Return the targets as this loss needs them, checked against the shape of one sample's
        output.

        They are checked on the host, wherever `y` lives.

        Parameters
        ----------
        y : array_like (N, ...)
        output_shape : tuple of int
            Of one sample.
        dtype : {'float32', 'float64'}
            Of the parameters.

        Raises
        ------
        ShapeError, DTypeError, DataError
            If their shape, dtype or values are not what this loss takes.
        """
        return _float_targets(self.name, y, output_shape, dtype)

    def class_weights(self) -> tuple[float, ...] | None:
        """Return the weight of each class, or None for a loss without."""
        return None

    def largest_derivative(self, distance: float) -> float:
        """Return the largest derivative of a row's loss where its outputs are this far off, at
        least 1.
        """
        return 1.0

    def count_correct(self, ops: Backend, outputs: Array, targets: Array) -> Array | None:
        """Return how many rows are right, (), or None unless `counts_correct`.

        Parameters
        ----------
        ops : Backend
            That the arrays belong to.
        outputs : array (M, ...)
            Of the network.
        targets : array
            As `prepare_targets` returns them, for these rows.

        Raises
        ------
        ShapeError, DTypeError
            If arrays that belong together differ.
        """
        return None

    def num_outputs(self, num_classes: int) -> int:
        """Return how many outputs a network needs to tell so many classes apart with this loss, or
        ConfigError.
        """
        raise ConfigError(f"expected a loss for labels of classes, got {self.name!r}")

    def probabilities(self, ops: Backend, outputs: Array) -> Array:
        """Return the probabilities that outputs (M, ...) stand for, of the same shape.

        Raises
        ------
        ConfigError
            If outputs stand for none, as in regression.
        """
        raise ConfigError(self._without("probabilities"))

    def labels(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the labels that outputs (M, ...), on the host, decide for, as `prepare_targets`
        takes them.

        Raises
        ------
        ConfigError
            If outputs decide for none, as in regression.
        """
        raise ConfigError(self._without("labels"))

    def values(self, ops: Backend, outputs: Array) -> Array:
        """Return the targets that outputs (M, ...) predict, of the same shape: in regression the
        outputs themselves.

        Raises
        ------
        ConfigError
            If outputs are logits of classes.
        """
        if self.counts_correct:
            raise ConfigError(
                f"the outputs of a model trained with {self.name} are logits of classes: expected "
                "kind='outputs', 'probabilities' or 'labels', got 'values'"
            )
        return outputs

    def _without(self, kind: str) -> str:
        return (
            f"the outputs of a model trained with {self.name} have no {kind}: expected "
            f"kind='outputs', or 'values' for the targets that they predict, got {kind!r}"
        )

    def __call__(self, outputs: Any, targets: Any, *, sample_weight: Any = None) -> Any:
        """Return the mean loss of outputs (M, ...): a tensor for a tensor, else a float."""
        tensor = outputs if isinstance(outputs, Tensor) else Tensor(outputs)
        ops, prepared = self._prepare(tensor.data, targets, sample_weight)
        loss, _, pullback = self.vjp(ops, tensor.data, **prepared)
        if not isinstance(outputs, Tensor):
            return float(ops.to_numpy(loss))
        return record(loss, (tensor,), lambda dy: (ops.binary("mul", pullback(), dy),))

    @_OnClassOrInstance
    def forward_and_grad(
        self, outputs: Array, targets: Any, *, sample_weight: Any = None
    ) -> tuple[float, Array]:
        """Return the mean loss of outputs (M, ...) as a float, and its gradient, of the outputs'
        shape.
        """
        ops, prepared = self._prepare(outputs, targets, sample_weight)
        loss, _, pullback = self.vjp(ops, outputs, **prepared)
        return float(ops.to_numpy(loss)), pullback()

    def _prepare(
        self, outputs: Array, targets: Any, sample_weight: Any
    ) -> tuple[Backend, dict[str, Array]]:
        ops, dtype = backends.of(outputs), str(outputs.dtype)
        host_dtype = dtype if dtype in FLOAT_DTYPES else "float32"
        on_host = self.prepare_targets(targets, tuple(outputs.shape[1:]), host_dtype)
        prepared = {"targets": ops.asarray(on_host, dtype if on_host.dtype.kind == "f" else None)}
        for name, weight in (
            ("class_weight", self.class_weights()),
            ("sample_weight", sample_weight),
        ):
            if weight is not None:
                prepared[name] = moved(weight, ops, dtype)
        return ops, prepared

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, from which `resolve` makes an equal loss."""
        return {"name": self.name, **asdict(self)}


def _float_targets(
    name: str, y: Any, output_shape: tuple[int, ...], dtype: str
) -> npt.NDArray[Any]:
    targets = to_host(y, "targets")
    if targets.shape[1:] == () and output_shape == (1,):
        targets = targets.reshape(-1, 1)
    if targets.ndim == 0 or targets.shape[1:] != output_shape:
        raise ShapeError(
            f"{name}: expected targets of shape (M, {', '.join(map(str, output_shape))}) for the "
            f"network's outputs, got {targets.shape}"
        )
    return np.ascontiguousarray(targets, dtype=dtype)


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
        if labels.ndim != 1:
            remedy = (
                "y.ravel()" if labels.shape[1:] == (1,) else "y.argmax(axis=1), of one-hot rows,"
            )
            raise ShapeError(
                f"{self.name}: expected labels of shape (M,), got {labels.shape}; {remedy} has it"
            )
        if labels.dtype.kind not in "iub":
            raise DTypeError(f"{self.name}: expected integer labels, got dtype {labels.dtype}")
        if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
            raise DataError(
                f"{self.name}: expected labels in [0, {num_classes}) for {num_classes} outputs, "
                f"got labels from {labels.min()} to {labels.max()}"
            )
        return labels.astype(np.int64)

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


@dataclass(frozen=True)
class _ElementLoss(Loss):
    """A loss of each element of outputs and targets, which backends have under one name.

    Subclasses set `operation`: `operation`_forward, `operation`_backward and `operation`_step
    compute it.
    """

    operation: ClassVar[str] = ""

    def _operation(self, ops: Backend, part: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(ops, f"{self.operation}_{part}", None)
        if found is None:
            raise ConfigError(
                f"{self.name}: expected an operation of the backend, got {self.operation!r}"
            )
        return found

    def _settings(self) -> dict[str, Any]:
        """Return the keywords that the operations take for this loss."""
        return {}

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        settings = {"sample_weight": sample_weight, **self._settings()}
        loss, total = self._operation(ops, "forward")(outputs, targets, **settings)
        backward = self._operation(ops, "backward")
        return loss, total, lambda: backward(outputs, targets, total, **settings)

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
        settings = {"sample_weight": sample_weight, **self._settings()}
        step = self._operation(ops, "step")
        gradient: Array | None = step(outputs, targets, record, row, scale=scale, **settings)
        return gradient


@dataclass(frozen=True)
class MeanSquaredError(_ElementLoss):
    """Mean of (prediction - target)² over rows and outputs.

    Parameters
    ----------
    half : bool
        scikit-learn's form: half of it, with gradient (prediction - target) / M.
    """

    name: ClassVar[str] = "mse"
    operation: ClassVar[str] = "mean_squared_error"
    half: bool = False

    def terms(self, outputs: int) -> LossTerms:
        # scikit-learn's form sums its derivatives over the outputs.
        factors = (0.5 / outputs, 1.0) if self.half else (1.0 / outputs, 2.0 / outputs)
        return LossTerms(self.name, 0.0, *factors)

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, distance if self.half else 2 * distance)

    def _settings(self) -> dict[str, Any]:
        return {"half": self.half}


@dataclass(frozen=True)
class AbsoluteError(_ElementLoss):
    """Mean of |prediction - target| over rows and outputs."""

    name: ClassVar[str] = "absolute_error"
    operation: ClassVar[str] = "absolute_error"

    def terms(self, outputs: int) -> LossTerms:
        return LossTerms(self.name, 0.0, 1.0 / outputs, 1.0 / outputs)


@dataclass(frozen=True)
class Huber(_ElementLoss):
    """Mean of d²/2 where |d| ≤ delta, else delta (|d| - delta/2), with d = prediction - target.

    References
    ----------
    Huber: Robust Estimation of a Location Parameter (1964); torch.nn.HuberLoss.
    """

    name: ClassVar[str] = "huber"
    operation: ClassVar[str] = "huber"
    delta: float = 1.0

    def terms(self, outputs: int) -> LossTerms:
        return LossTerms(self.name, self.delta, 1.0 / outputs, 1.0 / outputs)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delta < float("inf"):
            raise ConfigError(f"expected a Huber delta above 0, got {self.delta!r}")

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, min(self.delta, distance))

    def _settings(self) -> dict[str, Any]:
        return {"delta": self.delta}


@dataclass(frozen=True)
class BinaryCrossEntropy(_ElementLoss):
    """-t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)) for logits z and targets t in [0, 1], of
    equal shape.

    One logit tells two classes apart: its labels are (M,), 1 where the probability sigmoid(z)
    exceeds 0.5. Several logits are as many questions with an answer of its own each: their labels
    are (M, K).

    Parameters
    ----------
    sum_outputs : bool
        scikit-learn's form: the sum over outputs instead of their mean.
    """

    name: ClassVar[str] = "binary_cross_entropy"
    operation: ClassVar[str] = "binary_cross_entropy"
    counts_correct: ClassVar[bool] = True
    sum_outputs: bool = False

    def terms(self, outputs: int) -> LossTerms:
        factor = 1.0 if self.sum_outputs else 1.0 / outputs
        return LossTerms(self.name, 0.0, factor, factor)

    def _settings(self) -> dict[str, Any]:
        return {"sum_outputs": self.sum_outputs}

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        targets = _float_targets(self.name, y, output_shape, dtype)
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
        return ops.activation_forward(_SIGMOID, outputs)

    def labels(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        labels = (outputs > 0).astype(np.int64)  # where sigmoid exceeds 0.5
        return labels[:, 0] if labels.shape[1:] == (1,) else labels


@dataclass(frozen=True)
class Poisson(Loss):
    """exp(z) - t z + t log t - t for logarithms z of a rate and counts t of at least 0, summed over
    outputs.

    Half the Poisson deviance, as scikit-learn's. No engine has an operation of its own for it: it
    is put together from those that every backend has.
    """

    name: ClassVar[str] = "poisson"

    def largest_derivative(self, distance: float) -> float:
        return max(1.0, distance)

    def vjp(
        self,
        ops: Backend,
        outputs: Array,
        targets: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array, Callable[[], Array]]:
        dtype = str(outputs.dtype)
        weights = ops.full((len(outputs),), 1.0, dtype) if sample_weight is None else sample_weight
        total = ops.reduce("sum", weights)
        rates = ops.unary("exp", outputs)
        log_targets = ops.unary("log", ops.binary("maximum", targets, _TINY))
        excess = ops.binary("sub", rates, targets)
        terms = ops.binary(
            "add", excess, ops.binary("mul", targets, ops.binary("sub", log_targets, outputs))
        )
        # Over nothing the mean is 0.
        shares = ops.reshape(
            ops.binary("div", weights, ops.binary("maximum", total, _TINY)), (-1, 1)
        )
        loss = ops.reduce("sum", ops.binary("mul", terms, shares))
        return loss, total, lambda: ops.binary("mul", excess, shares)

    def values(self, ops: Backend, outputs: Array) -> Array:
        """Return the rates, exp(outputs)."""
        return ops.unary("exp", outputs)

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        targets = _float_targets(self.name, y, output_shape, dtype)
        if targets.size and targets.min() < 0:
            raise DataError(f"{self.name}: expected targets of at least 0, got {targets.min():g}")
        return targets


def resolve(loss: str | Loss | Mapping[str, Any]) -> Loss:
    """Return a loss from its name, from `Loss.to_dict`'s description, or itself.

    Raises
    ------
    ConfigError
        If there is no such loss, or it has no such settings.
    """
    if isinstance(loss, Loss):
        return loss
    settings = (
        {"name": loss} if isinstance(loss, str) else dict(loss) if isinstance(loss, Mapping) else {}
    )
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in Loss.by_name:
        raise ConfigError(f"expected a loss among {', '.join(Loss.by_name)}, got {loss!r}")
    try:
        return Loss.by_name[name](**settings)
    except TypeError as error:
        raise ConfigError(f"expected the settings of the loss {name}, got {settings!r}") from error
