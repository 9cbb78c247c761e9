"""Any module as a network that an engine can run: its derivative comes from the tape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpfit.autograd import Tensor, no_grad
from warpfit.backends import Array, Backend
from warpfit.nn.layer import calling
from warpfit.nn.module import Module
from warpfit.nn.sequential import number_random_layers
from warpfit.nn.spec import Call, GradientListener, NetworkPullback, Shape


@dataclass(frozen=True)
class TapedNetwork:
    """A module with the interface of `NetworkSpec`, for networks that are no chain of known layers.

    Its arrays are the module's own parameters and buffers; `vjp` points them to the arrays it is
    given.
    """

    module: Module
    input_shape: Shape

    def __post_init__(self) -> None:
        number_random_layers(self.module)

    @property
    def num_indices(self) -> None:
        """None: which columns are indices, if any, only the module's own code knows."""
        return None

    @property
    def fused(self) -> TapedNetwork:
        """The network itself: a module's own code decides what runs."""
        return self

    @property
    def output_shape(self) -> Shape:
        """Shape of one sample's output, found by running the module on two samples of zeros."""
        with no_grad(), calling(Call()):
            x = self.module.input_tensor(np.zeros((2, *self.input_shape)))
            return self.module(x).shape[1:]

    def vjp(
        self, ops: Backend, arrays: Mapping[str, Array], x: Array, call: Call
    ) -> tuple[Array, NetworkPullback]:
        """Return the outputs for a batch x (M, ...), and the function from dy to all gradients."""
        parameters = dict(self.module.named_parameters())
        for name, holder in self.module.named_arrays().items():
            holder.data = arrays[name]
        with calling(call):
            output = self.module(Tensor(x))

        def to_gradients(dy: Array, listener: GradientListener | None = None) -> dict[str, Array]:
            for parameter in parameters.values():
                parameter.grad = None
            output.backward(dy)
            gradients = {
                name: p.grad if p.grad is not None else ops.zeros(p.shape, p.dtype)
                for name, p in parameters.items()
            }
            if listener is not None:  # which may write to them, and some may be one array
                gradients = {name: ops.copy(each) for name, each in gradients.items()}
                for name, gradient in gradients.items():
                    listener(name, gradient)
            return gradients

        return output.data, to_gradients

    def to_dict(self) -> dict[str, Any]:
        """Return a description to compare runs by; it does not suffice to make the module again."""
        return {"input_shape": list(self.input_shape), "module": repr(self.module)}
