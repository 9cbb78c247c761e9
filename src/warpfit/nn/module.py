"""Module: what holds parameters, and walks over them by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.autograd import Tensor, no_grad
from warpfit.backends import Array, Backend
from warpfit.backends.transfer import device_of, home_of, moved, to_host
from warpfit.checks import as_integers, brief, check_flag
from warpfit.errors import ConfigError, DTypeError, ShapeError
from warpfit.nn.init import InitialValues, memory_for
from warpfit.on_demand import Maker, OnDemand
from warpfit.other_packages import WithHints

# While `summary` runs: every module called so far with the shape of one sample of its output.
_trace: ContextVar[list[tuple[Module, tuple[int, ...]]] | None] = ContextVar("trace", default=None)


def check_dtype(dtype: Any) -> None:
    """Raise DTypeError unless `dtype` names what parameters can be."""
    if not isinstance(dtype, str) or dtype not in backends.base.FLOAT_DTYPES:
        raise DTypeError(f"expected dtype float32 or float64, got {brief(dtype)}")


_NOTHING = np.empty(0, np.float32)


class Parameter(OnDemand, Tensor):
    """A tensor that is trained.

    Attributes
    ----------
    requires_grad : bool
        False freezes the parameter: `fit` and `Optimizer.step` leave it as it is, and what the
        optimizer keeps of it. Set it before training starts.
    last_output : Tensor or None
        What the explicit style's ``forward`` made with this parameter, until ``backward`` takes it.

    Examples
    --------
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.factor = nn.Parameter(np.ones(1, np.float32))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> [parameter.shape for parameter in Scale().parameters()]
    [(1,)]
    """

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)
        self.last_output: Tensor | None = None

    @classmethod
    def on_demand(cls, start: Maker) -> Parameter:
        """Return a parameter whose data a function gives, once they are asked for."""
        parameter = cls(_NOTHING)
        parameter.promise(start, "data")
        return parameter

    @property
    def dtype(self) -> Any:
        start = self.promised("data")
        return np.dtype(start.dtype) if isinstance(start, InitialValues) else self.data.dtype


class Buffer(OnDemand):
    """An array that belongs to a module's state but has no gradient.

    Examples
    --------
    >>> nn.Buffer(np.zeros(3, np.float32)).data
    array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, data: Array) -> None:
        self.data = data


class Module(WithHints):
    """Base of layers and of users' own networks.

    Parameters, buffers and modules kept as attributes are found by their names. A subclass defines
    ``forward(x)`` over tensors; calling the module on an array returns an array and records
    nothing.

    Attributes
    ----------
    loss : Loss, str or None
        The loss that the whole network was trained with, which says what its outputs mean to
        ``predict`` and ``evaluate``, and goes with the model into its file. Training functions set
        it; after a loop of one's own, set it oneself: ``model.loss = "binary_cross_entropy"``.
    training : bool
        Whether the module is in training; see `train`.

    Examples
    --------
    >>> class Residual(nn.Module):
    ...     def __init__(self, width):
    ...         self.inner = nn.Linear(width, width)
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    >>> Residual(64)(x).shape
    (200, 64)
    """

    training = True
    loss: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch x (M, ...)."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward(x)")

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Any) -> Any: ...
    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            y = self.forward(x)
            if (trace := _trace.get()) is not None:
                trace.append((self, y.shape[1:]))
            return y
        with no_grad():
            return self(self.input_tensor(x)).data

    def input_tensor(self, x: Any) -> Tensor:
        """Return a batch as a tensor where the parameters live, in their dtype."""
        arrays = [holder.data for holder in self.named_arrays().values()]
        return Tensor(moved(x, backends.of(*arrays) if arrays else home_of(x), self.dtype))

    # -- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) for the modules directly inside this one."""
        return iter([item for item in vars(self).items() if isinstance(item[1], Module)])

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (dotted name, module) for this module and all below, each module once."""
        found: dict[int, tuple[str, Module]] = {}
        self._collect(prefix, found)
        return iter(found.values())

    def _collect(self, name: str, found: dict[int, tuple[str, Module]]) -> None:
        if id(self) not in found:
            found[id(self)] = name, self
            start = f"{name}." if name else ""
            for child, module in self.named_children():
                module._collect(start + child, found)

    def _named(self, kind: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
        found: dict[int, tuple[str, Any]] = {}
        self._gather(kind, "", found, set())
        return iter(found.values())

    def _gather(
        self,
        kind: type | tuple[type, ...],
        start: str,
        found: dict[int, tuple[str, Any]],
        seen: set[int],
    ) -> None:
        """Note attributes of a kind here and below, in the order of `named_modules`."""
        seen.add(id(self))  # not by `named_modules`, which would make names for nothing
        for name, value in vars(self).items():
            if isinstance(value, kind) and id(value) not in found:
                found[id(value)] = start + name, value
        for child, module in self.named_children():
            if id(module) not in seen:
                module._gather(kind, f"{start}{child}.", found, seen)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), each parameter once."""
        return self._named(Parameter)

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        """Yield (dotted name, buffer), each buffer once."""
        return self._named(Buffer)

    def parameters(self) -> list[Parameter]:
        """Return all parameters, each once."""
        return [parameter for _, parameter in self.named_parameters()]

    # -- state

    def named_arrays(self) -> dict[str, Parameter | Buffer]:
        """Return all parameters and buffers, by dotted name."""
        found = dict(self._named((Parameter, Buffer)))
        parameters = {name: each for name, each in found.items() if isinstance(each, Parameter)}
        return {**parameters, **found}

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all parameters and buffers on the host, by name."""
        return {
            name: np.array(to_host(holder.data)) for name, holder in self.named_arrays().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the values in `state`; nothing changes if any name or shape differs.

        Raises
        ------
        ConfigError
            If a name is missing or foreign.
        ShapeError
            If an array has another shape.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"expected a state as a mapping of names to arrays, got {brief(state)}"
            )
        holders, ops = self.named_arrays(), self.backend
        missing = sorted(holders.keys() - state.keys())
        foreign = sorted(map(str, state.keys() - holders.keys()))
        if missing or foreign:
            raise ConfigError(
                f"expected a state with the names of this model, got one with missing {missing} "
                f"and foreign {foreign}"
            )
        values = {
            name: moved(state[name], ops, str(holder.data.dtype))
            for name, holder in holders.items()
        }
        for name, holder in holders.items():
            if values[name].shape != holder.data.shape:
                expected, got = tuple(holder.data.shape), tuple(values[name].shape)
                turned = sorted(got) == sorted(expected)
                hint = "; PyTorch's are transposed: see docs/from-pytorch.md" if turned else ""
                raise ShapeError(f"{name}: expected shape {expected}, got {got}{hint}")
        for name, holder in holders.items():
            ops.assign(holder.data, values[name])

    def train(self, training: bool = True) -> Self:
        """Switch this module and all below to training (or evaluation)."""
        check_flag("training", training)
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self) -> Self:
        """Switch this module and all below to evaluation: no dropout, running statistics."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let the parameters here and below be trained, or freeze them; before training starts."""
        check_flag("requires_grad", requires_grad)
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    if not TYPE_CHECKING:

        def _refuse(self, value: Any) -> None:
            self.__getattr__("trainable")

        trainable = property(
            fset=_refuse, doc="Not here, where it would change nothing: see `requires_grad_`."
        )

    def to(self, device: str | None = None, *, dtype: str | None = None) -> Self:
        """Move parameters, their gradients and buffers to a device or a float dtype, in place."""
        if dtype is not None:
            check_dtype(dtype)
        target = self.backend if device is None else backends.get(device)
        for holder in self.named_arrays().values():
            holder.data = moved(holder.data, target, dtype)
            if isinstance(holder, Parameter) and holder.grad is not None:
                holder.grad = moved(holder.grad, target, dtype)
        return self

    @property
    def device(self) -> str:
        """Where the parameters live: ``'cpu'``, ``'cuda:0'``, ...; ``'cpu'`` if there are none."""
        return next((_device_of(holder) for holder in self.named_arrays().values()), "cpu")

    @property
    def backend(self) -> Backend:
        """The backend that the parameters live on; the CPU's if there are none."""
        arrays = [holder.data for holder in self.named_arrays().values()]
        return backends.of(*arrays)

    @property
    def dtype(self) -> str:
        """The float dtype of the parameters; float32 if there are none."""
        return next((str(parameter.dtype) for _, parameter in self.named_parameters()), "float32")

    @property
    def num_parameters(self) -> int:
        """How many numbers all parameters hold, frozen ones included."""
        return sum(int(parameter.data.size) for parameter in self.parameters())

    # -- text

    def summary(self, input_shape: Sequence[int]) -> str:
        """Return a table for samples of a shape: output shape and number of parameters by layer."""
        shape = as_integers("input_shape", input_shape, 0)
        trace = self._trace_of(shape)
        rows = [("input", "", str(shape), "")]
        for name, module in self.named_modules():
            shapes = [shape for called, shape in trace if called is module]
            if shapes and not list(module.named_children()):
                rows.append(
                    (name, type(module).__name__, str(shapes[0]), f"{module.num_parameters:,}")
                )
        rows.append(("total", "", "", f"{self.num_parameters:,}"))
        a, b, c, d = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{n:<{a}}  {k:<{b}}  {s:<{c}}  {num:>{d}}" for n, k, s, num in rows)

    def _trace_of(self, input_shape: tuple[int, ...]) -> list[tuple[Module, tuple[int, ...]]]:
        modes = [(module, module.training) for _, module in self.named_modules()]
        trace: list[tuple[Module, tuple[int, ...]]] = []
        token = _trace.set(trace)
        try:
            with memory_for("summary", "sample", (1, *input_shape)):
                self.eval()(np.zeros((1, *input_shape)))
        finally:
            _trace.reset(token)
            for module, training in modes:
                module.training = training
        return trace

    def extra_repr(self) -> str:
        """Return what stands between the parentheses of a layer's repr."""
        return ""

    def __repr__(self) -> str:
        children = list(self.named_children())
        count = f"{self.num_parameters:,} parameters" if self.num_parameters else ""
        if not children:
            settings = ", ".join(part for part in (self.extra_repr(), count) if part)
            return f"{type(self).__name__}({settings})"
        lines = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in children]
        return "\n".join([f"{type(self).__name__}(", *lines, f")  # {count or 'no parameters'}"])


def _device_of(holder: Parameter | Buffer) -> str:
    """Return where its array is, or will be once it is asked for."""
    if isinstance(holder.promised("data"), InitialValues):
        return "cpu"
    return device_of(holder.data)
