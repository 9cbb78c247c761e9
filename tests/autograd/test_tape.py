"""backward: what flows where, how often, and what stays in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from warpfit import nn
from warpfit.autograd import Tensor, no_grad, record, tensor
from warpfit.errors import ConfigError, ShapeError
from warpfit.gradcheck import gradcheck

NUM_DEEP = 10_000


def leaf(*values: float) -> Tensor:
    return tensor(values, dtype="float64", requires_grad=True)


@pytest.fixture
def _without_collector() -> Iterator[None]:
    """Leave only reference counts to free what is no longer used."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_shared_subexpressions_add_up() -> None:
    x = leaf(2.0, 3.0)
    square = x * x
    (square + square * x).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * x.data + 3 * x.data**2)


def test_a_diamond_runs_each_pullback_once() -> None:
    x, calls = leaf(1.0), []
    middle = record(x.data * 2, (x,), lambda dy: calls.append(dy) or (dy * 2,))
    (middle * 3 + middle * 5).backward()
    assert len(calls) == 1
    np.testing.assert_array_equal(x.grad, [16])


def test_one_tensor_as_both_operands() -> None:
    x = leaf(3.0)
    (x @ x + x - x + x / x).sum().backward()
    np.testing.assert_allclose(x.grad, [6])


def test_gradients_accumulate_and_a_second_backward_works() -> None:
    x = leaf(2.0)
    y = x**2
    y.backward()
    y.backward()
    np.testing.assert_array_equal(x.grad, [8])
    (3 * x).backward()
    np.testing.assert_array_equal(x.grad, [11])


def test_gradients_of_two_tensors_share_no_memory() -> None:
    a, b, seed = leaf(1.0, 2.0), leaf(3.0, 4.0), np.ones(2)
    (a + b).backward(seed)
    a.grad *= 10
    np.testing.assert_array_equal(b.grad, [1, 1])
    np.testing.assert_array_equal(seed, [1, 1])


def test_gradients_can_be_written_to() -> None:
    x = leaf(1.0, 2.0)
    x.sum().backward()
    x.grad *= 2
    np.testing.assert_array_equal(x.grad, [2, 2])


def test_backward_of_a_leaf() -> None:
    x = leaf(5.0)
    x.backward()
    np.testing.assert_array_equal(x.grad, [1])


def test_backward_with_a_gradient() -> None:
    x = leaf(1.0, 2.0)
    (x * x).backward([1, 10])
    np.testing.assert_array_equal(x.grad, [2, 40])


def test_only_what_requires_a_gradient_gets_one() -> None:
    x, constant = leaf(1.0), Tensor(np.ones(1))
    y = x * constant
    y.backward()
    assert constant.grad is None
    assert y.grad is None
    assert x.grad.dtype == "float64"


def test_float32_stays_float32() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    (x * np.ones(2) + 1.5).mean().backward()
    assert x.grad.dtype == "float32"


def test_a_pullback_may_give_no_gradient() -> None:
    x = leaf(1.0)
    middle = x * 2
    record(middle.data, (middle,), lambda dy: (None,)).backward()
    assert x.grad is None


def test_detach_cuts_the_tape() -> None:
    x = leaf(2.0)
    (x * (x * 3).detach()).backward()
    np.testing.assert_array_equal(x.grad, [6])


def test_no_grad_records_nothing() -> None:
    x = leaf(2.0)
    with no_grad():
        y = x * 2
        with no_grad():
            pass
        z = y + x
    assert not y.requires_grad
    assert not z.requires_grad
    assert (x * 2).requires_grad


def test_no_grad_ends_with_an_error_and_decorates_functions() -> None:
    with pytest.raises(ZeroDivisionError), no_grad():
        1 / 0  # noqa: B018
    assert (leaf(1.0) * 2).requires_grad
    assert not no_grad()(lambda: leaf(1.0) * 2)().requires_grad


def test_backward_without_anything_to_differentiate() -> None:
    with pytest.raises(
        ConfigError, match="expected a tensor made from one that requires a gradient"
    ):
        Tensor(1.0).backward()


def test_backward_needs_a_gradient_of_the_shape() -> None:
    y = leaf(1.0, 2.0) * 2
    with pytest.raises(ShapeError, match=r"expected one element or a gradient, got shape \(2,\)"):
        y.backward()
    with pytest.raises(ShapeError, match=r"expected a gradient of shape \(2,\), got \(3,\)"):
        y.backward(np.ones(3))


def test_deep_graphs_do_not_recurse() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(NUM_DEEP):
        y = y + 1.0
    y.backward()
    np.testing.assert_array_equal(x.grad, [1])
    del y


def test_wide_and_deep_sharing_is_linear_in_time() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(200):
        y = (y + y) * 0.5
    y.backward()
    np.testing.assert_array_equal(x.grad, [1])


@pytest.mark.usefixtures("_without_collector")
def test_a_graph_is_freed_with_its_last_tensor() -> None:
    x = leaf(1.0, 2.0)
    model = nn.Sequential(nn.Linear(2, 3, seed=0, dtype="float64"), nn.Tanh())
    middle = model((x * 2).exp().unsqueeze(0))
    loss = (middle[:, [0, 0]].max() + middle.sum()) ** 2
    watched = [weakref.ref(middle), weakref.ref(loss), weakref.ref(loss._inputs[0])]
    loss.backward()
    del middle, loss
    assert [one() for one in watched] == [None, None, None]


class Residual(nn.Module):
    """x + W2 tanh(W1 x), scaled by a learned number."""

    def __init__(self, width: int) -> None:
        self.inner = nn.Sequential(
            nn.Linear(width, width, seed=0, dtype="float64"),
            nn.Tanh(),
            nn.Linear(width, width, seed=1, dtype="float64"),
        )
        self.scale = nn.Parameter(np.array(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inner(x)


def test_a_custom_module_learns() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 3))
    target = x + np.sin(x[:, ::-1])
    model = Residual(3)
    losses = []
    for _ in range(60):
        model.zero_grad()
        loss = (model(Tensor(x)) - target).square().mean()
        loss.backward()
        losses.append(loss.item())
        for parameter in model.parameters():
            parameter.data -= 0.3 * parameter.grad
    assert losses[-1] < 0.2 * losses[0]


def test_a_custom_module_has_the_right_gradients() -> None:
    model = Residual(3)
    rng = np.random.default_rng(0)
    assert gradcheck(model, [rng.standard_normal((4, 3))]).passed


def test_a_module_used_twice_adds_its_gradients() -> None:
    layer = nn.Linear(2, 2, seed=0, dtype="float64")
    x = np.random.default_rng(0).standard_normal((3, 2))
    layer(layer(Tensor(x))).sum().backward()
    once = layer(Tensor(x))
    w = layer.weight.data
    ones = np.ones((3, 2))
    np.testing.assert_allclose(layer.weight.grad, once.data.T @ ones + x.T @ (ones @ w.T))
