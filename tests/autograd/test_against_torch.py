"""Values and gradients against PyTorch's, where it is installed; ties and infinite slopes
included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from warpfit import autograd
from warpfit.autograd import Tensor

torch = pytest.importorskip("torch")

A = np.array([[0.5, -1.5, 2.0, 2.0], [1.0, 0.0, -0.5, 3.0], [2.5, 0.25, -2.0, 0.75]])
B = np.array([[1.0, -1.5, 0.5, 2.0]])
POSITIVE = np.abs(A) + 0.25

# Each is written for both libraries: `lib` is warpfit.autograd or torch.
BOTH: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda lib, a, b: (a + b) * (a - 2.5 * b) / (3 - b) - (-a) / 2, (A, B)),
    "pow": (lambda lib, a, b: a**b, (POSITIVE, B)),
    "pow at 0": (lambda lib, a, b: a**b, (np.zeros(3), np.array([0.0, 1.0, 2.0]))),
    "pow of a number": (lambda lib, a: 2.0**a, (A,)),
    "whole pow": (lambda lib, a: a**3, (A,)),
    "functions": (lambda lib, a: (a.exp() + a.sin() * a.cos()).square(), (A,)),
    "positive functions": (lambda lib, a: a.log() * a.sqrt(), (POSITIVE,)),
    "activations": (lambda lib, a: lib.relu(a) + lib.tanh(a) * lib.sigmoid(a - 0.1), (A,)),
    "softmax": (lambda lib, a: lib.softmax(a, -1) * lib.log_softmax(a, 0), (A,)),
    "softmax inside": (lambda lib, a: lib.softmax(a.reshape(3, 2, 2), 1), (A,)),
    "abs": (lambda lib, a: abs(a), (A,)),
    "maximum": (lambda lib, a, b: lib.maximum(a, b) * 2, (A, B)),
    "minimum": (lambda lib, a, b: lib.minimum(a, b) * 2, (A, B)),
    "matmul": (lambda lib, a, b: a @ b.T, (A, B)),
    "vector products": (lambda lib, a, b: (a @ b[0]) @ a, (A, B)),
    "stacked matmul": (lambda lib, a, b: a.reshape(3, 2, 2) @ b.reshape(2, 2), (A, B)),
    "sum": (lambda lib, a: a.sum(0) * a.sum(1, True) / a.sum(), (A,)),
    "mean": (lambda lib, a: a.mean((0, 1)) * a.mean(-1), (A,)),
    "transpose": (lambda lib, a, b: a.T * b.T[:, 0].unsqueeze(1), (A, B)),
    "expand": (lambda lib, a, b: b.expand(3, 4) * a, (A, B)),
    "squeeze": (lambda lib, a, b: b.squeeze(0).unsqueeze(-1) * b, (A, B)),
    "index": (lambda lib, a: a[[0, 0, 2], [1, 1, 3]] * a[1:, ::2].sum(), (A,)),
    "bool index": (lambda lib, a: a[a > 0.3] ** 2, (A,)),
    "where": (lambda lib, a, b: lib.where(a > 0, a * b, b), (A, B)),
}
AXES = [0, 1, (0, 1)]


def torch_tensor(value: Any) -> Any:
    return torch.tensor(value, requires_grad=True)


def assert_same(
    ours: list[Tensor], our_result: Tensor, theirs: list[Any], their_result: Any
) -> None:
    """Compare results, and the gradients that flow from uneven weights of them."""
    np.testing.assert_allclose(
        our_result.data, their_result.detach().numpy(), rtol=1e-12, atol=1e-14
    )
    weights = np.cos(np.arange(our_result.size)).reshape(our_result.shape)
    our_result.backward(weights)
    their_result.backward(torch.tensor(weights))
    for mine, other in zip(ours, theirs, strict=True):
        if other.grad is not None:
            np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("function", "values"), BOTH.values(), ids=BOTH.keys())
def test_same_as_torch(function: Callable[..., Any], values: tuple[Any, ...]) -> None:
    ours = [Tensor(value, requires_grad=True) for value in values]
    theirs = [torch_tensor(value) for value in values]
    assert_same(ours, function(autograd, *ours), theirs, function(torch, *theirs))


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_max_and_min_are_amax_and_amin(name: str, axis: Any) -> None:
    values = np.round(A)
    ours, theirs = Tensor(values, requires_grad=True), torch_tensor(values)
    their_result = getattr(torch, f"a{name}")(theirs, dim=axis)
    assert_same([ours], getattr(ours, name)(axis), [theirs], their_result)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate_and_stack_are_cat_and_stack(axis: int) -> None:
    for our_name, their_name in (("concatenate", "cat"), ("stack", "stack")):
        ours, theirs = Tensor(A, requires_grad=True), torch_tensor(A)
        their_result = getattr(torch, their_name)([theirs, theirs * 2], dim=axis)
        assert_same(
            [ours], getattr(autograd, our_name)([ours, ours * 2], axis), [theirs], their_result
        )
