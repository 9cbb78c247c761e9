from __future__ import annotations

import numpy as np
import pytest

from support import small_table
from warpfit import backends
from warpfit.autograd import Tensor, no_grad
from warpfit.tabular import network as networks
from warpfit.tabular.network import Columns, RealMLP, set_initial_values


@pytest.fixture(scope="module")
def begun() -> tuple[np.ndarray, RealMLP]:
    x, network = small_table.rows_and_network(small_table.task_of("classes"))
    return x[: small_table.NUM_TRAINED], network


def test_outputs_of_each_unit_begin_with_deviation_1_and_a_kink_among_the_data(
    begun: tuple[np.ndarray, RealMLP],
) -> None:
    x, network = begun
    with no_grad():
        hidden = network.embedded(Tensor(x))
        for linear, activation in zip(network.linears, [*network.activations, None], strict=True):
            y = linear(hidden)
            outputs = y.numpy() - linear.bias.numpy()
            np.testing.assert_allclose(outputs.std(axis=0), 1, rtol=1e-12)
            kinks = -linear.bias.numpy()
            assert ((outputs.min(axis=0) < kinks) & (kinks < outputs.max(axis=0))).all()
            if activation is not None:
                hidden = activation(y)


def test_initial_values_of_embeddings(begun: tuple[np.ndarray, RealMLP]) -> None:
    numbers, codes = begun[1].numbers, begun[1].codes.weight.numpy()
    assert 0.07 < numbers.frequency.numpy().std() < 0.13
    phases = numbers.phase.numpy()
    assert -np.pi <= phases.min() < -2.5
    assert 2.5 < phases.max() < np.pi
    for made in (numbers.weight.numpy(), numbers.bias.numpy()):
        assert 0.2 < np.abs(made).max() <= 0.25
    assert abs(codes.mean()) < 0.2
    assert 0.9 < codes.std() < 1.1
    assert (begun[1].scale.weight.numpy() == 1).all()
    assert all((each.weight.numpy() == 1).all() for each in begun[1].activations)


def test_initial_values_are_those_of_the_seed() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    weights = []
    for seed in (0, 0, 1):
        network = RealMLP(Columns(3), 2, "selu")
        set_initial_values(network, x, seed)
        weights.append(network.linears[1].weight.numpy())
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_some_rows_of_many_decide_initial_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "MOST_ROWS", 10)
    x = np.random.default_rng(0).normal(size=(20, 3))
    first, all_rows = (RealMLP(Columns(3), 2, "selu") for _ in range(2))
    set_initial_values(first, x[::2], 0)
    set_initial_values(all_rows, x, 0)
    np.testing.assert_array_equal(
        first.linears[0].weight.numpy(), all_rows.linears[0].weight.numpy()
    )


def test_rows_that_are_all_alike_leave_weights_finite() -> None:
    network = RealMLP(Columns(2), 3, "mish")
    set_initial_values(network, np.zeros((5, 2)), 0)
    assert np.isfinite(network(np.zeros((4, 2)))).all()


def test_dropout_is_the_contracts_and_only_in_training() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3))
    network = RealMLP(Columns(3), 2, "selu", seed=5, dtype="float64")
    set_initial_values(network, x, 0)
    network.p, network.step = 0.5, 9
    plain = network.eval()(x)
    with no_grad():
        hidden = network.embedded(Tensor(x))
        for idx, activation in enumerate(network.activations):
            hidden = activation(network.linears[idx](hidden))
            dropped, _ = backends.get("cpu").dropout_forward(
                hidden.data, p=0.5, seed=5, step=9, layer_idx=idx
            )
            hidden = Tensor(dropped)
        expected = network.linears[3](hidden).numpy()
    np.testing.assert_allclose(network.train()(x), expected, rtol=1e-12)
    assert (network.eval()(x) == plain).all()
    assert (plain != expected).all()
