"""What all losses are, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any, ClassVar, overload

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.autograd import Tensor, record
from warpfit.backends import Array, Backend
from warpfit.backends.base import FLOAT_DTYPES, LossTerms, Number
from warpfit.backends.transfer import moved, to_host
from warpfit.checks import brief, check_fields, kind_of, register
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.other_packages import instead_of

# Stands for 0 where there is a logarithm or a quotient; float32 has it.
TINY = 1e-30

LossFunction = Callable[[Tensor, Tensor], Tensor]


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

    A subclass defines `forward`, a formula of tensors whose derivative comes from the tape, or
    `vjp`, which engines call. It sets `name` if `fit` is to know it by that, and `counts_correct`
    if it has an accuracy; it defines `prepare_targets` where targets are not floats of the outputs'
    shape. What outputs mean is said here too: a loss for classes defines `count_correct`,
    `probabilities` and `labels`, which have to agree; one for regression defines `values` if its
    outputs are not the predictions themselves.

    Examples
    --------
    One with a setting, which is a frozen dataclass, as all losses with settings are:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Power(losses.Loss):
    ...     exponent: float = 4.0
    ...     def forward(self, outputs, targets):
    ...         return abs(outputs - targets) ** self.exponent
    >>> Power(3.0)(np.array([[2.0], [1.0]]), [0, 1])
    4.0
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
        if "forward" in own and "vjp" not in own:
            cls.vjp = Loss.vjp  # type: ignore[method-assign]
        if own & {"forward", "vjp", "count_correct"} and not own & {"train_step", "terms"}:
            cls.train_step = Loss.train_step  # type: ignore[method-assign]

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch's outputs (M, ...): of each row, (M,) or (M, ...), of which
        the mean is taken by sample weights, or their mean (), which has none.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither forward nor vjp")

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

        Those of `forward`, unless a subclass defines another.

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
            If arrays that belong together differ, or `forward` returns something else than losses.
        ConfigError
            If there are sample weights for a loss that is one number.
        """
        prediction, dtype = Tensor(outputs, requires_grad=True), str(outputs.dtype)
        found = self.forward(prediction, Tensor(targets))
        self._check_losses(found, len(outputs), sample_weight)
        weights = ops.full((len(outputs),), 1.0, dtype) if sample_weight is None else sample_weight
        total = ops.reduce("sum", weights)
        mean = found
        if found.ndim:
            rows = found.reshape(len(outputs), -1).mean(axis=1)
            # Over nothing the mean is 0.
            mean = (rows * ops.binary("div", weights, ops.binary("maximum", total, TINY))).sum()

        def gradient() -> Array:
            if not mean.requires_grad:
                raise ConfigError(
                    f"{self.name}: expected a loss computed from the outputs as tensors, got one "
                    "without a derivative"
                )
            prediction.grad = None
            mean.backward()
            return prediction.grad

        return mean.data, total, gradient

    def _check_losses(self, found: Any, num_rows: int, sample_weight: Any) -> None:
        """Raise an error unless `forward` has returned losses of so many rows, or their mean."""
        what = f"{self.name}: expected a tensor of shape (), or ({num_rows}, ...) of each row's"
        if not isinstance(found, Tensor):
            raise DTypeError(f"{what} loss, got {type(found).__name__}")
        if found.shape[:1] not in ((), (num_rows,)):
            raise ShapeError(f"{what} loss, got shape {found.shape}")
        if not found.ndim and sample_weight is not None:
            raise ConfigError(f"{what} loss, which sample weights need, got shape ()")

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
        """Whether kernels of whole steps compute it: its class, and no base of it, has `terms`."""
        return "terms" in vars(type(self))

    def terms(self, outputs: int) -> LossTerms:
        """Return what kernels of whole steps compute it by, for so many outputs (`has_terms`)."""
        raise NotImplementedError

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        """Return the targets as this loss needs them, checked on the host, wherever `y` lives.

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
        return float_targets(self.name, y, output_shape, dtype)

    def class_weights(self) -> tuple[float, ...] | None:
        """Return the weight of each class, or None for a loss without."""
        return None

    def largest_derivative(self, distance: float) -> float:
        """Return a row's largest derivative where outputs are this far off, at least 1."""
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
        """Return how many outputs a network needs to tell so many classes apart, or ConfigError."""
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
        """Return the labels that outputs (M, ...), on the host, decide for.

        Raises
        ------
        ConfigError
            If outputs decide for none, as in regression.
        """
        raise ConfigError(self._without("labels"))

    def values(self, ops: Backend, outputs: Array) -> Array:
        """Return the targets that outputs (M, ...) predict: in regression the outputs themselves.

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

    @overload
    def __call__(self, outputs: Tensor, targets: Any, *, sample_weight: Any = None) -> Tensor: ...
    @overload
    def __call__(self, outputs: Any, targets: Any, *, sample_weight: Any = None) -> float: ...
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
        """Return the mean loss of outputs (M, ...) as a float, and its gradient, of their shape."""
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


def float_targets(name: str, y: Any, output_shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return targets as floats of the outputs' shape, or raise; (M,) will do for one output."""
    targets = to_host(y, "targets")
    if targets.shape[1:] == () and output_shape == (1,):
        targets = targets.reshape(-1, 1)
    if targets.ndim == 0 or targets.shape[1:] != output_shape:
        are_labels = targets.ndim == 1 and targets.dtype.kind in "iub" and len(output_shape) == 1
        hint = "; labels of classes take 'cross_entropy'" if are_labels else ""
        raise ShapeError(
            f"{name}: expected targets of shape (M, {', '.join(map(str, output_shape))}) for the "
            f"network's outputs, got {targets.shape}{hint}"
        )
    return np.ascontiguousarray(targets, dtype=dtype)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A user's function of outputs and targets as a loss; files and messages have its name."""

    name: ClassVar[str] = ""
    # As `Loss.forward`. Targets come as they are, floats in the parameters' dtype; (N,) as (N, 1)
    # for one output, and integers that are not of the outputs' shape, such as labels, as int64.
    function: LossFunction

    def __post_init__(self) -> None:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        # With its module's, so that it is never that of a loss of the package.
        object.__setattr__(self, "name", f"{named.__module__}.{named.__qualname__}")
        try:
            known = signature(self.function, follow_wrapped=False)
        except (TypeError, ValueError):  # those of some built-in functions are not known
            return
        try:
            known.bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"expected a loss(outputs, targets), but of {self.name}: {error}"
            ) from error

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)

    def prepare_targets(
        self, y: Any, output_shape: tuple[int, ...], dtype: str
    ) -> npt.NDArray[Any]:
        targets = to_host(y, "targets")
        if targets.shape[1:] == () and output_shape == (1,):
            targets = targets.reshape(-1, 1)
        are_labels = targets.dtype.kind in "iub" and targets.shape[1:] != output_shape
        return np.ascontiguousarray(targets, dtype="int64" if are_labels else dtype)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


LossLike = str | Loss | LossFunction


def _is_torchs(loss: Any) -> bool:
    """Return whether a loss takes PyTorch's tensors, not this package's."""
    return str(getattr(loss, "__module__", "")).partition(".")[0] == "torch"


def resolve(loss: LossLike | Mapping[str, Any]) -> Loss:
    """Return a loss from its name, from `Loss.to_dict`'s description, from a function of tensors
    (outputs, targets), or itself.

    Raises
    ------
    ConfigError
        If there is no such loss, it has no such settings, or a function does not take these two.

    Examples
    --------
    >>> losses.resolve("mse")
    MeanSquaredError(half=False)
    """
    if isinstance(loss, Loss):
        return loss
    if callable(loss) and not isinstance(loss, type) and not _is_torchs(loss):
        return FunctionLoss(loss)
    settings = (
        {"name": loss} if isinstance(loss, str) else dict(loss) if isinstance(loss, Mapping) else {}
    )
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in Loss.by_name:
        called = getattr(loss, "__name__", type(loss).__name__) if name is None else str(name)
        raise ConfigError(
            f"expected a loss among {', '.join(Loss.by_name)}, a Loss or a function of outputs and "
            f"targets, got {brief(loss) if name or not callable(loss) else kind_of(loss)}"
            f"{instead_of('loss', called)}"
        )
    try:
        return Loss.by_name[name](**settings)
    except TypeError as error:
        raise ConfigError(f"expected the settings of the loss {name}, got {settings!r}") from error
