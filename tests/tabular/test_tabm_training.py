from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda.jit import generation
from warpfit.errors import DivergedError
from warpfit.losses import SoftmaxCrossEntropy
from warpfit.tabular import tabm_training
from warpfit.tabular.network import Columns
from warpfit.tabular.tabm_graphs import GraphEpochs
from warpfit.tabular.tabm_network import TabM, set_initial_values
from warpfit.tabular.tabm_steps import Settings, Steps
from warpfit.tabular.tabm_training import ThreadEpochs, outputs_of, train
from warpfit.tabular.training import Outcome, Rows

Array = np.ndarray


def table(num_rows: int = 40, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_rows, 3)).astype(np.float32)
    x[:, 2] = random.integers(0, 3, num_rows)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def begun(x: Array, **settings: Any) -> TabM:
    network = TabM(
        Columns(2, 0, (3,)),
        2,
        are_classes=True,
        **{"hidden": (8, 6), "num_members": 4, **settings},
    )
    set_initial_values(network, x, 1)
    return network


def trained(network: TabM, x: Array, y: Array, error: Any, **settings: Any) -> Outcome:
    ops = network.backend
    return train(
        network,
        Rows(ops.asarray(x), ops.asarray(y), settings.pop("weights", None)),
        ops.asarray(x),
        error,
        **{
            "loss": SoftmaxCrossEntropy(),
            "settings": Settings(lr=0.02),
            "n_epochs": 6,
            "batch_size": 16,
            "patience": 16,
            "seed": 3,
            "report": lambda outcome: None,
            **settings,
        },
    )


def share_of_wrong(y: Array) -> Any:
    return lambda outputs: float((outputs.argmax(axis=1) != y).mean())


def test_it_learns() -> None:
    x, y = table(200)
    outcome = trained(begun(x, hidden=(32, 32)), x, y, share_of_wrong(y), n_epochs=60)
    assert min(outcome.errors) < 0.05
    assert outcome.losses[-1] < outcome.losses[0] / 2


def test_every_member_sees_each_row_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Array] = []
    step = ThreadEpochs.step

    def noted(self: ThreadEpochs, rows: Array) -> float:
        seen.append(rows.copy())
        return step(self, rows)

    monkeypatch.setattr(ThreadEpochs, "step", noted)
    x, y = table(40)
    trained(begun(x), x, y, share_of_wrong(y), n_epochs=2)
    assert [rows.shape for rows in seen] == [(4, 16), (4, 16), (4, 8)] * 2
    for epoch in (seen[:3], seen[3:]):
        orders = np.hstack(epoch)
        np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(40), (4, 1)))
        assert len({tuple(order) for order in orders}) == 4
    assert (np.hstack(seen[:3]) != np.hstack(seen[3:])).any()


def test_the_first_of_the_best_epochs_remains_and_patience_ends() -> None:
    x, y = table()
    network, errors = begun(x), iter([3.0, np.nan, 1.0, 2.0, 1.0, 4.0, 0.5])
    weights: list[Array] = []

    def error(outputs: Array) -> float:
        weights.append(network.layers[0].weight.numpy().copy())
        return next(errors)

    outcome = trained(network, x, y, error, n_epochs=100, patience=2)
    assert outcome.best_epoch == 3
    assert len(outcome.losses) == len(outcome.errors) == 6
    np.testing.assert_array_equal(network.layers[0].weight.numpy(), weights[2])
    assert (weights[2] != weights[-1]).any()


def test_what_is_reported_may_end_the_training() -> None:
    x, y = table()
    outcome = trained(begun(x), x, y, share_of_wrong(y), report=lambda found: True)
    assert len(outcome.errors) == 1


def test_no_epoch_with_a_finite_error() -> None:
    x, y = table()
    with pytest.raises(DivergedError, match="a lower learning rate may help"):
        trained(begun(x), x, y, lambda outputs: float("nan"), n_epochs=2)


def test_decay_leaves_out_biases_and_lines_of_embeddings() -> None:
    """Where there is no gradient, what is left of a weight is decay's: Adam does not move it."""
    x, _ = table()
    network = begun(x, num_bins=3)
    for parameter in network.parameters():
        parameter.data[...] = np.float32(2)
    steps = Steps(network, SoftmaxCrossEntropy(), Settings(0.1, weight_decay=0.5), 0)
    gradients = {name: np.zeros_like(each) for name, each in steps.parameters.items()}
    steps.update(network.backend, gradients, steps.numbers(0, 0))
    for name, parameter in network.named_parameters():
        decays = not name.endswith("bias") and name != "embedding.weight"
        np.testing.assert_allclose(parameter.numpy(), 2 * 0.95 if decays else 2, rtol=1e-6)


def test_groups_of_members_change_roundings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table(33)
    weights = np.random.default_rng(0).random(33).astype(np.float32)
    found = []
    for members in (4, 3, 1):
        monkeypatch.setattr(tabm_training, "MEMBERS_OF_A_THREAD", members)
        network = begun(x, num_bins=3)
        outcome = trained(network, x, y, share_of_wrong(y), weights=weights, n_epochs=3)
        found.append([*outcome.losses, *outputs_of(network, x).ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3, atol=1e-4)


def test_rows_without_weight_do_not_count() -> None:
    x, y = table(40)
    network, other = begun(x), begun(x)
    weights = np.repeat([1.0, 0.0], 20).astype(np.float32)
    settings: dict[str, Any] = {"weights": weights, "batch_size": 40, "n_epochs": 2}
    trained(network, x, y, share_of_wrong(y), **settings)
    trained(other, x, np.where(weights > 0, y, 1 - y), share_of_wrong(y), **settings)
    np.testing.assert_array_equal(outputs_of(network, x), outputs_of(other, x))


def test_outputs_of_many_rows_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = table()
    network = begun(x)
    whole = outputs_of(network, x)
    monkeypatch.setattr(tabm_training, "ROWS_OF_A_THREAD", 7)
    np.testing.assert_allclose(outputs_of(network, x), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("num_bins", "precision", "hidden", "limit"),
    [
        (0, "float32", (8, 6), 1e-3),
        (3, "float32", (8, 6), 1e-3),
        (3, "bfloat16", (8, 6), 4e-2),
        # Layers at once, with embeddings and without.
        (3, "bfloat16", (128, 128), 4e-2),
        (0, "bfloat16", (128, 128), 4e-2),
    ],
)
def test_a_device_trains_as_the_cpu_does(
    cuda: str, num_bins: int, precision: str, hidden: tuple[int, ...], limit: float
) -> None:
    x, y = table(24)
    weights = np.linspace(0.5, 1.5, 24, dtype=np.float32)
    found = []
    for device in ("cpu", cuda):
        network = begun(x, num_bins=num_bins, hidden=hidden).to(device)
        ops = network.backend
        outcome = trained(
            network,
            x,
            y,
            share_of_wrong(y),
            settings=Settings(0.01, max_norm=1.0 if num_bins else None),
            n_epochs=3,  # the third one is launched as a graph alone
            weights=ops.asarray(weights),
            precision=precision,
        )
        assert (network.device != "cpu") == (device != "cpu")
        found.append([*outcome.losses, *outputs_of(network, ops.asarray(x)).ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=limit, atol=limit)


@pytest.mark.parametrize(
    ("hidden", "precision", "is_at_once"),
    [((128, 128), None, True), ((128, 128), "float32", False), ((128, 64), "bfloat16", False)],
)
def test_which_layers_kernels_take_at_once(
    cuda: str, hidden: tuple[int, ...], precision: str | None, is_at_once: bool
) -> None:
    x, y = table(8)
    network = begun(x, hidden=hidden).to(cuda)
    ops = network.backend
    steps = Steps(network, SoftmaxCrossEntropy(), Settings(), 0)
    rows = Rows(ops.asarray(x), ops.asarray(y), None)
    epochs = GraphEpochs(steps, rows, 8, 0, precision)
    expected = is_at_once and generation(ops.runtime.arch) == 90
    assert epochs.is_at_once == expected
