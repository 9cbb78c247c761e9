"""The explicit style: forward, backward and step written out, for a model or a plain list of
layers.

>>> for x, y in dataloader:
...     logits = forward(model, x)
...     loss, grad = SoftmaxCrossEntropy.forward_and_grad(logits, y)
...     backward(model, grad)
...     opt.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.backends import Array
from warpfit.checks import brief
from warpfit.errors import ConfigError
from warpfit.nn.module import Module, Parameter
from warpfit.nn.sequential import Sequential

Model = Module | Sequence[Module]


def _module(model: Model) -> Module:
    if isinstance(model, Module):
        return model
    if not isinstance(model, list | tuple):
        raise ConfigError(f"expected a model (a Module) or a list of layers, got {brief(model)}")
    return Sequential(*model)


def parameters(model: Model) -> list[Parameter]:
    """Return all parameters of a model or of a list of layers, each once.

    Examples
    --------
    >>> [parameter.shape for parameter in nn.parameters([nn.Linear(2, 3), nn.ReLU()])]
    [(2, 3), (3,)]
    """
    return _module(model).parameters()


def forward(model: Model, x: Any) -> Array:
    """Return the outputs for a batch x (M, ...), and keep on the model's parameters what `backward`
    needs.

    Examples
    --------
    >>> logits = nn.forward(model, x)
    >>> loss, grad = losses.SoftmaxCrossEntropy.forward_and_grad(logits, y)
    >>> nn.backward(model, grad)
    >>> opt.step()
    """
    module = _module(model)
    trained = module.parameters()
    if not trained:
        raise ConfigError(
            "forward: expected a model with parameters, got none; call the model itself instead"
        )
    output = module(module.input_tensor(x))
    for parameter in trained:
        parameter.last_output = output
    return output.data


def backward(model: Model, grad: Array) -> None:
    """Set ``grad`` of every parameter from the gradient of the last `forward`'s outputs.

    Gradients of an earlier step are replaced, not added to, so that no ``zero_grad`` is needed.

    Raises
    ------
    ConfigError
        If no `forward` came before.
    ShapeError
        If `grad` does not have the outputs' shape.

    Examples
    --------
    >>> logits = nn.forward(model, x)
    >>> nn.backward(model, np.ones_like(logits))
    >>> model.parameters()[0].grad.shape
    (64, 16)
    """
    trained = parameters(model)
    output = trained[0].last_output if trained else None
    if output is None:
        raise ConfigError("backward: expected a forward(model, x) before it, got none")
    for parameter in trained:
        parameter.grad = None
        parameter.last_output = None
    output.backward(grad)
