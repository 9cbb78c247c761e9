from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative
from warpfit import backends
from warpfit.gradcheck import distinct_values
from warpfit.tabular.network import Columns
from warpfit.tabular.tabm_network import Draw, Indicators, TabM, set_initial_values

DTYPE = "float64"
DRAW = Draw(0.3, seed=5, step=9)
MEMBERS, ROWS = 3, 4


def network(**settings: Any) -> TabM:
    """Return one of two numbers and two columns of codes, of which no two parameters are equal."""
    given: dict[str, Any] = {"are_classes": True, "hidden": (5, 4), "num_members": MEMBERS}
    found = TabM(Columns(2, 0, (3, 2)), 2, **(given | settings), dtype=DTYPE)
    set_initial_values(found, batches()[0], 1)
    parameters = found.parameters()
    values = distinct_values(*(each.shape for each in parameters), seed=2)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data[...] = value
    return found


def batches() -> Any:
    """Return rows of each member, (MEMBERS, ROWS, 4)."""
    random = np.random.default_rng(0)
    codes = np.stack([random.integers(0, size, (MEMBERS, ROWS)) for size in (3, 2)], axis=2)
    return np.concatenate([random.normal(size=(MEMBERS, ROWS, 2)), codes], axis=2)


def naive_outputs(found: TabM, x: Any, draw: Draw, member: int) -> Any:
    """Return a member's outputs for rows x (M, 4), as the paper has them."""
    ops = backends.get("cpu")
    parts = [x[:, :2]]
    if found.embedding is not None:
        parts = [np.asarray(found.embedding(x[:, :2]))]
    parts += [np.eye(size)[x[:, 2 + idx].astype(int)] for idx, size in enumerate((3, 2))]
    x = np.hstack(parts)
    for idx, layer in enumerate(found.layers):
        x = (x * layer.scale_in.data[member]) @ layer.weight.data * layer.scale_out.data[member]
        x = np.maximum(x + layer.bias.data[member], 0)
        ones = np.ones((1, x.shape[1]))
        mask, _ = ops.member_relu_forward(
            np.ones((1, *x.shape)),
            ones,
            0 * ones,
            ones,
            **draw._asdict(),
            layer_idx=idx,
            first_member=member,
        )
        x = x * mask[0]
    return x @ found.head.weight.data[member] + found.head.bias.data[member]


@pytest.mark.parametrize("num_bins", [0, 3])
def test_outputs_are_those_of_each_member_alone(num_bins: int) -> None:
    found, x = network(num_bins=num_bins), batches()
    outputs, _ = found.vjp(backends.get("cpu"), x, DRAW)
    assert outputs.shape == (MEMBERS, ROWS, 2)
    for member in range(MEMBERS):
        expected = naive_outputs(found, x[member], DRAW, member)
        np.testing.assert_allclose(outputs[member], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("are_classes", [True, False])
def test_together_members_say_the_mean_without_dropout(are_classes: bool) -> None:
    found, x = network(are_classes=are_classes), batches()[0]
    alone = np.array([naive_outputs(found, x, Draw(0.0, 0, 0), each) for each in range(MEMBERS)])
    if are_classes:
        powers = np.exp(alone)
        alone = powers / powers.sum(axis=2, keepdims=True)
    expected = alone.mean(axis=0)
    outputs = np.asarray(found(x))
    np.testing.assert_allclose(np.exp(outputs) if are_classes else outputs, expected, rtol=1e-12)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_bins", [0, 3])
def test_gradients(num_bins: int, shared: bool) -> None:
    ops, found = backends.get("cpu"), network(num_bins=num_bins)
    x = batches()[:1] if shared else batches()
    dy = np.random.default_rng(2).normal(size=(MEMBERS, ROWS, 2))
    gradients = found.vjp(ops, x, DRAW)[1](dy)
    assert gradients.keys() == dict(found.named_parameters()).keys()
    for name, parameter in found.named_parameters():
        value = parameter.data

        def loss(moved: Any, parameter: Any = parameter) -> float:
            parameter.data = moved
            return float((found.vjp(ops, x, DRAW)[0] * dy).sum())

        assert_derivative(gradients[name], loss, value.copy())
        parameter.data = value


@pytest.mark.parametrize("num_bins", [0, 3])
def test_some_members_are_those_of_all(num_bins: int) -> None:
    ops, found, x = backends.get("cpu"), network(num_bins=num_bins), batches()
    outputs, pullback = found.vjp(ops, x, DRAW)
    some, pullback_of_some = found.vjp(ops, x[1:], DRAW, slice(1, 3))
    np.testing.assert_allclose(some, outputs[1:], rtol=1e-13)
    dy = np.zeros_like(outputs)
    dy[1:] = np.random.default_rng(2).normal(size=some.shape)
    whole, part = pullback(dy), pullback_of_some(dy[1:])
    for name, gradient in whole.items():
        own = gradient[1:] if part[name].shape != gradient.shape else gradient
        np.testing.assert_allclose(part[name], own, rtol=1e-12, atol=1e-13)


def test_indicators() -> None:
    layer = Indicators((3, 2), DTYPE)
    found = layer.values(backends.get("cpu"), np.array([[2.0, 0], [0, 1]]))
    np.testing.assert_array_equal(found, [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])


def test_initial_values() -> None:
    found = TabM(Columns(3, 0, (40, 2)), 2, are_classes=True, num_members=16, hidden=(64, 32))
    x = np.hstack([np.random.default_rng(0).normal(size=(50, 3)), np.zeros((50, 2))])
    set_initial_values(found, x, 0)
    first, second = found.layers
    scales = first.scale_in.numpy()
    assert set(np.unique(scales)) == {-1, 1}
    assert (scales[:, 3:43] == scales[:, 3:4]).all()
    assert (scales[:, 43:] == scales[:, 43:44]).all()
    assert (scales[:, :1] != scales[:, 1:2]).any()
    assert all((each.numpy() == 1).all() for each in (first.scale_out, second.scale_in))
    assert (first.bias.numpy() == first.bias.numpy()[:1]).all()
    assert (found.head.weight.numpy()[0] != found.head.weight.numpy()[1]).any()
    for weight, bound in ((first.weight, 45**-0.5), (second.weight, 64**-0.5)):
        assert 0.95 * bound < np.abs(weight.numpy()).max() <= bound


def test_initial_values_with_embeddings_are_lines() -> None:
    found = TabM(Columns(3), 2, are_classes=True, num_bins=8)
    x = np.random.default_rng(0).normal(size=(50, 3))
    set_initial_values(found, x, 0)
    assert found.embedding is not None
    assert not found.embedding.pieces.numpy().any()
    assert 0.2 < np.abs(found.embedding.weight.numpy()).max() <= 0.25
    scales = found.layers[0].scale_in.numpy()
    assert (scales.reshape(32, 3, 16) == scales.reshape(32, 3, 16)[..., :1]).all()
    assert 0.8 < scales.std() < 1.2


def test_a_table_of_nothing() -> None:
    found = TabM(Columns(0), 2, are_classes=True, hidden=(4,), num_bins=8)
    set_initial_values(found, np.empty((5, 0)), 0)
    outputs = np.asarray(found(np.empty((3, 0), np.float32)))
    assert outputs.shape == (3, 2)
    assert (outputs == outputs[0]).all()
