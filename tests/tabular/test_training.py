from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.errors import DivergedError
from warpfit.losses import MeanSquaredError, SoftmaxCrossEntropy
from warpfit.tabular.layers import Factors
from warpfit.tabular.network import Columns, RealMLP, set_initial_values
from warpfit.tabular.schedules import coslog4, flat_cos
from warpfit.tabular.training import Outcome, Rows, Steps, outputs_of, train

Array = np.ndarray


def table(num_rows: int = 40, seed: int = 0) -> tuple[Array, Array]:
    x = np.random.default_rng(seed).normal(size=(num_rows, 3)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def begun(x: Array) -> RealMLP:
    network = RealMLP(Columns(x.shape[1]), 2, "selu", seed=1)
    set_initial_values(network, x, 1)
    return network


def trained(network: RealMLP, x: Array, y: Array, error: Any, **settings: Any) -> Outcome:
    ops = network.backend
    return train(
        network,
        Rows(ops.asarray(x), ops.asarray(y)),
        ops.asarray(x),
        error,
        **{
            "loss": SoftmaxCrossEntropy(label_smoothing=0.1),
            "lr": 0.04,
            "n_epochs": 6,
            "batch_size": 16,
            "seed": 3,
            "report": lambda outcome: None,
            **settings,
        },
    )


def share_of_wrong(y: Array) -> Any:
    return lambda outputs: float((outputs.argmax(axis=1) != y).mean())


def test_the_rate_has_four_waves_each_twice_as_long() -> None:
    lows = [0, 1 / 15, 3 / 15, 7 / 15, 1]
    np.testing.assert_allclose([coslog4(t) for t in lows], 0, atol=1e-15)
    highs = [(2 ** (wave + 0.5) - 1) / 15 for wave in range(4)]
    np.testing.assert_allclose([coslog4(t) for t in highs], 1)


def test_dropout_and_decay_are_flat_and_then_a_cosine() -> None:
    found = [flat_cos(t) for t in (0, 0.3, 0.5, 0.75, 1)]
    np.testing.assert_allclose(found, [1, 1, 1, 0.5, 0], atol=1e-15)


def test_decay_is_decoupled_with_both_factors_twice() -> None:
    """Where there is no gradient, what is left of a weight is decay's: Adam does not move it."""
    x, _ = table()
    network = begun(x)
    steps = Steps(network, MeanSquaredError(), 0.04, 100)
    for parameter in network.parameters():
        parameter.grad = np.zeros(parameter.shape, parameter.dtype)
    before = {name: each.numpy().copy() for name, each in network.named_parameters()}
    steps._update(0.04, 0.02)
    kept = {
        "scale.weight": 1 - 0.04 * 0.02 * 36,
        "linears.1.weight": 1 - 0.04 * 0.02,
        "linears.1.bias": 1.0,
        "activations.0.weight": 1 - 0.04 * 0.02 * 0.01,
        "numbers.frequency": 1 - 0.04 * 0.02 * 0.01,
    }
    after = dict(network.named_parameters())
    for name, share in kept.items():
        np.testing.assert_allclose(after[name].numpy(), share * before[name], rtol=1e-6)


def test_parameters_learn_in_groups() -> None:
    groups = dict(Steps(RealMLP(Columns(2, 0, (4,)), 1, "mish"), MeanSquaredError(), 1, 1).groups)
    counts = {factors: len(parameters) for factors, parameters in groups.items()}
    assert counts == {
        Factors(rate=0.1): 4 + 3,  # of the periodic embedding, and activations
        Factors(): 1 + 4,  # embeddings of codes, and weights
        Factors(rate=6.0): 1,
        Factors(rate=0.1, decay=0.0): 4,
    }


def test_a_last_short_batch_is_left_out_and_few_rows_are_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    step = Steps.step

    def counted(self: Steps, x: Array, y: Array) -> Array:
        seen.append(len(x))
        return step(self, x, y)

    monkeypatch.setattr(Steps, "step", counted)
    x, y = table(40)
    trained(begun(x), x, y, share_of_wrong(y), n_epochs=2)
    assert seen == [16, 16] * 2
    seen.clear()
    trained(begun(x), x[:10], y[:10], lambda outputs: 0.0, n_epochs=1)
    assert seen == [10]


def test_the_latest_of_the_best_epochs_remains() -> None:
    x, y = table()
    network, errors = begun(x), iter([3.0, 1.0, 2.0, 1.0, np.nan, 4.0])
    weights: list[Array] = []

    def error(outputs: Array) -> float:
        weights.append(network.linears[0].weight.numpy().copy())
        return next(errors)

    outcome = trained(network, x, y, error)
    assert outcome.best_epoch == 4
    assert len(outcome.losses) == len(outcome.errors) == 6
    np.testing.assert_array_equal(network.linears[0].weight.numpy(), weights[3])
    assert (weights[3] != weights[5]).any()
    assert not network.training


def test_no_epoch_with_a_finite_error() -> None:
    x, y = table()
    with pytest.raises(DivergedError, match="a lower learning rate may help"):
        trained(begun(x), x, y, lambda outputs: float("nan"))


def test_outputs_of_many_rows_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = table()
    whole = outputs_of(begun(x), x)
    monkeypatch.setattr("warpfit.tabular.training.PREDICTED_ROWS", 7)
    np.testing.assert_allclose(outputs_of(begun(x), x), whole, rtol=1e-5, atol=1e-6)


def test_a_device_trains_as_the_cpu_does(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpfit.tabular.network.HIDDEN", (16, 8))
    x, y = table(24)
    x = np.hstack([x, (np.arange(24) % 3).astype(np.float32)[:, None]])
    found = []
    for device in ("cpu", cuda):
        network = RealMLP(Columns(2, 1, (3,)), 2, "selu", seed=1)
        set_initial_values(network, x, 1)
        outcome = trained(network.to(device), x, y, share_of_wrong(y), n_epochs=3, batch_size=12)
        assert (network.device != "cpu") == (device != "cpu")
        found.append([*outcome.losses, *outputs_of(network, network.backend.asarray(x)).ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3)
