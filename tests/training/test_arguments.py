"""Arguments of fit that stand for others: names of optimizers, shares of validation rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, assert_same_weights, blobs, mlp, same_weights
from warpfit import backends, optim
from warpfit.training.arguments import validation_split_off

X, LABELS = blobs(60)


def trained(optimizer: Any = "adam", **settings: Any) -> tuple[wf.nn.Module, wf.History]:
    model = settings.pop("model", None) or mlp(6, 3)
    optimizer = optimizer(model) if callable(optimizer) else optimizer
    settings = {"epochs": 2, "batch_size": 16, "verbose": False, **settings}
    return model, wf.fit(model, X, LABELS, optimizer=optimizer, **settings)


@pytest.mark.parametrize("name", optim.Optimizer.by_name)
def test_an_optimizers_name_is_that_with_its_defaults(name: str) -> None:
    kind: Any = optim.Optimizer.by_name[name]
    named, history = trained(name)
    assert_same_weights(named, trained(lambda model: kind(model.parameters()))[0])
    assert history.plan.optimizer == kind(named.parameters()).spec


def test_a_named_optimizer_leaves_frozen_parameters_alone() -> None:
    model = mlp(6, 4, 3)
    model[0].weight.requires_grad = False
    before = model.state_dict()
    trained("adam", model=model)
    np.testing.assert_array_equal(model.state_dict()["0.weight"], before["0.weight"])
    assert not np.array_equal(model.state_dict()["2.weight"], before["2.weight"])


@pytest.mark.parametrize("kind", [np.ndarray, list, "device"])
def test_the_split_has_every_row_once_and_each_class_its_share(kind: Any, cuda: str) -> None:
    x = np.arange(100, dtype="f4")[:, None]
    y = np.repeat([0, 1], [60, 40])
    weights = np.arange(1, 101)
    rows = backends.get(cuda).asarray(x) if kind == "device" else x
    targets = y.tolist() if kind is list else y
    kept, labels, kept_weights, held_out = validation_split_off(rows, targets, weights, 0.2, seed=3)
    kept, x_val = (np.asarray(backends.of(part).to_numpy(part)) for part in (kept, held_out[0]))
    assert sorted([*kept[:, 0], *x_val[:, 0]]) == list(range(100))
    np.testing.assert_array_equal(np.bincount(held_out[1]), [12, 8])
    np.testing.assert_array_equal(labels, y[kept[:, 0].astype(int)])
    np.testing.assert_array_equal(held_out[1], y[x_val[:, 0].astype(int)])
    np.testing.assert_array_equal(kept_weights, kept[:, 0] + 1)
    assert (np.diff(kept[:, 0]) > 0).all()  # for fit(shuffle=False)
    assert not np.array_equal(x_val[:, 0], np.arange(80, 100))


def test_the_split_follows_from_the_seed() -> None:
    y = np.eye(2)[np.repeat([0, 1], 10)]

    def held_out(seed: int) -> Any:
        return validation_split_off(np.arange(20.0), y, None, 0.25, seed)[3][0]

    np.testing.assert_array_equal(held_out(1), held_out(1))
    assert not np.array_equal(held_out(1), held_out(2))


def test_a_split_is_a_run_with_these_rows_to_validate_on() -> None:
    weights = np.linspace(1, 2, 60)
    model, history = trained(adam, validation_split=0.25, sample_weight=weights, seed=4)
    x, y, kept, validation = validation_split_off(X, LABELS, weights, 0.25, seed=4)
    same = mlp(6, 3)
    expected = wf.fit(
        same,
        x,
        y,
        optimizer=adam(same),
        epochs=2,
        batch_size=16,
        sample_weight=kept,
        validation_data=validation,
        seed=4,
        verbose=False,
    )
    assert_same_weights(model, same)
    assert history["val_loss"] == expected["val_loss"]
    assert history["num_rows"] == [45, 45]
    assert not same_weights(model, trained(adam, sample_weight=weights, seed=4)[0])
    assert_same_weights(trained()[0], trained(validation_split=0)[0])
