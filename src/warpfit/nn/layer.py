"""Layer: a module that is one formula, its spec, and the spec's arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any, ClassVar

from warpfit import backends
from warpfit.autograd import Tensor, record
from warpfit.backends import Array
from warpfit.checks import check_choice
from warpfit.nn.init import INITIALIZERS, InitialValues, initial_values, memory_for
from warpfit.nn.module import Buffer, Module, Parameter, check_dtype
from warpfit.nn.spec import Call, LayerSpec, ParameterSpec, Pullback
from warpfit.random import check_seed, next_seed

_current_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Run every layer inside the ``with`` block as part of `call`, whatever its own mode is."""
    token = _current_call.set(call)
    try:
        yield
    finally:
        _current_call.reset(token)


class Layer(Module):
    """A spec and its arrays: parameters and buffers are attributes, by the names in the spec.

    Parameters
    ----------
    spec : LayerSpec
    device : str
        Where the arrays live: ``'cpu'``, ``'cuda'``, ``'cuda:1'``, ..., or ``'auto'``.
    dtype : str
        float32 or float64.
    init : str
        Initialiser of the weights, see `warpfit.nn.init`.
    seed : int, optional
        Fixes the initial values; drawn from `warpfit.manual_seed`'s sequence if None.

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    Examples
    --------
    >>> nn.Linear(2, 3).spec
    LinearSpec(in_features=2, out_features=3, ...)
    """

    spec: Any
    spec_type: ClassVar[type[LayerSpec]]
    by_spec: ClassVar[dict[type[LayerSpec], type[Layer]]] = {}

    def __init_subclass__(cls) -> None:
        if "spec_type" in vars(cls):
            Layer.by_spec[cls.spec_type] = cls

    def __init__(
        self,
        spec: LayerSpec,
        device: str = "cpu",
        *,
        dtype: str = "float32",
        init: str = "default",
        seed: int | None = None,
    ) -> None:
        check_dtype(dtype)
        self.spec = spec
        ops = backends.get(device)

        def made(name: str, part: ParameterSpec, seed: int, idx: int) -> Array:
            with memory_for(type(self).__name__, name, part.shape):
                return ops.asarray(initial_values(part, init, seed, idx), dtype)

        def parameter_of(name: str, part: ParameterSpec, seed: int, idx: int) -> Parameter:
            if ops is not backends.get("cpu"):  # there, when they are first asked for
                return Parameter(made(name, part, seed, idx))
            check_choice("an initialiser", init, INITIALIZERS)
            with memory_for(type(self).__name__, name, part.shape):  # for its error
                start = InitialValues(type(self).__name__, name, part, init, seed, idx, dtype)
                return Parameter.on_demand(start)

        for name, buffer in spec.buffers().items():
            setattr(self, name, Buffer(made(name, buffer, 0, 0)))
        if parameters := spec.parameters():
            seed = next_seed() if seed is None else check_seed(seed)
            for idx, (name, parameter) in enumerate(parameters.items()):
                setattr(self, name, parameter_of(name, parameter, seed, idx))

    @classmethod
    def from_spec(cls, spec: LayerSpec, **settings: Any) -> Layer:
        """Return the layer of a spec, with initial values."""
        layer = object.__new__(Layer.by_spec[type(spec)].class_for(spec))
        Layer.__init__(layer, spec, **settings)
        return layer

    @classmethod
    def holding(cls, spec: LayerSpec, arrays: Mapping[str, Array]) -> Layer:
        """Return the layer of a spec around arrays, by the spec's names; they are not copied."""
        layer = object.__new__(Layer.by_spec[type(spec)].class_for(spec))
        layer.spec = spec
        vars(layer).update({name: Parameter(arrays[name]) for name in spec.parameters()})
        vars(layer).update({name: Buffer(arrays[name]) for name in spec.buffers()})
        return layer

    @classmethod
    def class_for(cls, spec: LayerSpec) -> type[Layer]:
        """Return the class of the layer that has this spec, where several share a type of spec."""
        return cls

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of parameters and buffers, by the spec's names."""
        return {
            name: value.data
            for name, value in vars(self).items()
            if isinstance(value, (Parameter, Buffer))
        }

    def array_names(self) -> list[str]:
        """Return the names of `arrays`."""
        return [name for name, value in vars(self).items() if isinstance(value, Parameter | Buffer)]

    def call(self) -> Call:
        """Return the step this layer runs in: that of `calling`, or its own."""
        return _current_call.get() or self.own_call()

    def own_call(self) -> Call:
        """Return the step of a call outside of `calling`."""
        return Call(training=self.training)

    def vjp(self, x: Array) -> tuple[Array, Pullback]:
        """Return y and the function from dy to (dx, gradients by name), for arrays."""
        arrays = self.arrays()
        return self.spec.vjp(backends.of(x, *arrays.values()), arrays, x, self.call())

    def forward(self, x: Tensor) -> Tensor:
        parameters = {
            name: value for name, value in vars(self).items() if isinstance(value, Parameter)
        }
        arrays = self.arrays()
        ops = backends.of(x.data, *arrays.values())
        y, pullback = self.spec.vjp(ops, arrays, x.data, self.call(), needs_dx=x.requires_grad)

        def to_inputs(dy: Array) -> list[Array | None]:
            dx, gradients = pullback(dy)
            return [dx, *(gradients[name] for name in parameters)]

        return record(y, (x, *parameters.values()), to_inputs)

    def extra_repr(self) -> str:
        return ", ".join(
            f"{field.name}={getattr(self.spec, field.name)!r}" for field in fields(self.spec)
        )


class RandomLayer(Layer):
    """A layer whose random numbers `fit` decides, by the run's seed and step, and elsewhere its own
    seed and the number of calls in training. Its spec has a `layer_idx`.
    """

    seed = 0
    num_calls = 0

    def __init__(self, spec: LayerSpec, seed: int | None) -> None:
        super().__init__(spec)
        self.seed = next_seed() if seed is None else check_seed(seed)

    def own_call(self) -> Call:
        step = self.num_calls
        self.num_calls += self.training
        return Call(training=self.training, step=step, seed=self.seed)
