"""Adam and RMSprop in the kernel of the one_launch engine whose warps have roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator, on_gpu
from support.devices import open_in_both_orders
from support.one_launch import (
    ADAPTIVE,
    LIMITS,
    LIONS,
    NUM_ROWS,
    assert_follows_numpy,
    data,
    fit,
    flat,
    lion,
)
from support.training import adam, assert_same_weights, blobs, mlp
from warpfit import nn, optim
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch import OneLaunch, choose

# In every run at least every third case of each test.
pytestmark = [pytest.mark.usefixtures("without_card"), pytest.mark.in_turns(6)]

IN_ROLES = "warps over features and units"


def assert_in_roles_follows_numpy(sizes: tuple[int, ...], **settings: Any) -> wf.History:
    history = assert_follows_numpy(sizes, **{"activation": nn.Tanh, **settings})
    assert IN_ROLES in history.plan.reason
    return history


# -- the numbers of NumPy
# ----------------------------------------------------------------------------------


@pytest.mark.in_turns(10)
@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_optimizers(cuda: str, sizes: tuple[int, ...], name: str) -> None:
    assert_in_roles_follows_numpy(sizes, optimizer=ADAPTIVE[name])


@pytest.mark.parametrize("sizes", [(6, 3), (40, 37, 10)], ids=str)
def test_lion(cuda: str, sizes: tuple[int, ...]) -> None:
    assert_in_roles_follows_numpy(sizes, optimizer=lion, times_limit=LIONS)


def test_nadam_whose_step_has_a_number_more(cuda: str) -> None:
    assert_in_roles_follows_numpy((6, 8, 3), optimizer=ADAPTIVE["nadam"])


@pytest.mark.parametrize("name", ["adam", pytest.param("rmsprop", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_bfloat16(cuda: str, sizes: tuple[int, ...], name: str) -> None:
    assert_in_roles_follows_numpy(sizes, precision="bfloat16", optimizer=ADAPTIVE[name])


@pytest.mark.parametrize(
    ("sizes", "cluster", "name", "settings"),
    [
        ((50, 9), 2, "rmsprop, momentum", {"batch_size": 48, "loss": "mse"}),
        ((40, 37, 10), 2, "adam", {"batch_size": 33}),
        ((20, 100, 10), 4, "adamw", {"batch_size": 64}),
        pytest.param((33, 250, 3), 16, "adam", {"batch_size": 1}, marks=pytest.mark.slow),
        pytest.param(
            (70, 60, 33), 2, "adamw", {"batch_size": 100, "loss": "huber"}, marks=pytest.mark.slow
        ),
        pytest.param((784, 256, 10), 16, "adam", {"batch_size": 64}, marks=pytest.mark.slow),
        pytest.param((784, 10), 16, "adamw", {"precision": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_clusters(
    cuda: str,
    only_specialized_cluster: Callable[[int], None],
    sizes: tuple[int, ...],
    cluster: int,
    name: str,
    settings: dict[str, Any],
) -> None:
    only_specialized_cluster(cluster)
    history = assert_in_roles_follows_numpy(sizes, optimizer=ADAPTIVE[name], **settings)
    assert f"a cluster of {cluster} blocks" in history.plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", ["adamw", "rmsprop, momentum"])
def test_300_steps(cuda: str, name: str, precision: str) -> None:
    history = assert_in_roles_follows_numpy(
        (64, 64, 10),
        rows=blobs(320, 64, 10),
        optimizer=ADAPTIVE[name],
        precision=precision,
        batch_size=32,
        epochs=30,
    )
    assert history["loss"][-1] < 0.5 * history["loss"][0]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("batch_size", [1, 32, 64, 96])
def test_the_network_for_mnist(precision: str, batch_size: int) -> None:
    assert_in_roles_follows_numpy(
        (784, 256, 10),
        rows=blobs(50 * batch_size, 784, 10),
        optimizer=ADAPTIVE["adamw"],
        precision=precision,
        batch_size=batch_size,
        epochs=2 if batch_size > 1 else 1,  # single rows turn small differences into large ones
    )


def test_weights_that_no_gradient_reaches_stay(cuda: str) -> None:
    """What two weights share must be a number where one of them, or both, have never had a
    gradient.
    """
    x, y = data((6, 3))
    x[:, 1:4] = 0
    model = mlp(6, 8, 3)
    before = flat(model)
    fit(model, x, y, adam(model, eps=1e-30))
    moved = model.to("cpu").state_dict()["0.weight"] - mlp(6, 8, 3).state_dict()["0.weight"]
    assert not moved[1:4].any()
    assert np.isfinite(flat(model)).all()
    assert np.linalg.norm(flat(model) - before) > 0.01


# -- optimizer state
# ---------------------------------------------------------------------------------------


def test_a_second_run_of_an_optimizer_goes_on_where_the_first_ended(cuda: str) -> None:
    x, y = data((6, 3))
    found = []
    for device in ("cpu", "cuda"):
        model = mlp(6, 8, 3, activation=nn.Tanh)
        optimizer = ADAPTIVE["adam"](model)
        for _ in range(2):
            fit(model, x, y, optimizer, device=device)
        model.to("cpu")
        slots = optimizer.state_dict()["slots"].values()
        states = [np.concatenate([np.ravel(array) for array in arrays]) for arrays in slots]
        found.append([flat(model), *states])
    assert len(found[0]) == 3
    for on_device, on_cpu in zip(found[1], found[0], strict=True):
        assert np.linalg.norm(on_device - on_cpu) <= LIMITS["float16"] * np.linalg.norm(on_cpu)


@pytest.mark.parametrize(
    "sizes", [(150, 16, 3), pytest.param((150, 32, 3), marks=pytest.mark.slow)], ids=str
)
def test_where_the_state_lies_changes_no_bit(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    only_specialized_cluster: Callable[[int], None],
    sizes: tuple[int, ...],
) -> None:
    x, y = data(sizes)
    models, near_tiles = [], []
    for near in (0, 1, 3):

        def held(shape: OneLaunch, near: int = near) -> OneLaunch:
            return replace(shape, near_k=min(near, shape.tiles_of_features))

        monkeypatch.setattr(one_launch, "_held", held)
        only_specialized_cluster(1)
        models.append(mlp(*sizes))
        plan = fit(models[-1], x, y, ADAPTIVE["adam"](models[-1])).plan
        near_tiles.append(plan.prepared.launch.near_tiles)
        assert_same_weights(models[-1], models[0])
    assert near_tiles[0] == 0 < near_tiles[1] < near_tiles[2] == 10


# -- the same bits
# -----------------------------------------------------------------------------------------


def test_two_runs_are_bit_identical(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    losses_of_steps = [
        fit(model, x, y, ADAPTIVE["adam"](model), batch_size=48).step_losses for model in models
    ]
    np.testing.assert_array_equal(*losses_of_steps)
    assert_same_weights(*models)


@on_emulator
@pytest.mark.parametrize(
    "name", ["adam", pytest.param("rmsprop, momentum", marks=pytest.mark.slow)]
)
def test_the_order_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    for model, _ in zip(models, open_in_both_orders(monkeypatch), strict=True):
        choose.cache_clear()
        fit(model, x, y, ADAPTIVE[name](model), batch_size=48)
        model.to("cpu")
    assert_same_weights(*models)


@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_how_a_run_is_cut_into_launches_changes_no_bit(
    cuda: str, launches: list[int], tmp_path: Any, sizes: tuple[int, ...]
) -> None:
    x, y = blobs(NUM_ROWS)
    found, cuts = [], []
    for callbacks in ([], [wf.Checkpoint(tmp_path / "run", every=2)]):
        model = mlp(*sizes)
        optimizer = optim.AdamW(
            model.parameters(), optim.Cosine(0.01, warmup_epochs=1), weight_decay=0.1
        )
        history = fit(model, x, y, optimizer, epochs=6, callbacks=callbacks)
        found.append((model.state_dict(), optimizer.state_dict(), history.step_losses))
        cuts.append(launches[:])
        launches.clear()
    assert cuts == [[1, 5], [1, 1, 2, 2]]
    np.testing.assert_equal(found[1], found[0])


def test_a_resumed_run_gives_the_bits_of_one_that_never_stopped(cuda: str, tmp_path: Any) -> None:
    x, y = blobs(NUM_ROWS)
    whole, first, second = (mlp(6, 8, 3, activation=nn.Tanh) for _ in range(3))
    fit(whole, x, y, ADAPTIVE["adam"](whole), epochs=4)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, y, ADAPTIVE["adam"](first), epochs=2, callbacks=[checkpoint])
    fit(second, x, y, ADAPTIVE["adam"](second), epochs=4, resume_from=tmp_path / "run.ckpt")
    assert_same_weights(second, whole)


# -- what goes layer by layer
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "optimizer", "sizes"),
    [
        ({"batch_size": 192}, {}, (6, 8, 3)),  # replicas partition nothing of it
        ({}, {"clip_norm": 1.0}, (6, 8, 3)),
        ({}, {"l2": 0.1}, (6, 8, 3)),
        ({"precision": "float32"}, {}, (6, 8, 3)),
        ({}, {}, (6, 8, 8, 3)),
    ],
    ids=["long batches", "clipping", "penalty", "float32", "depth"],
)
def test_what_goes_layer_by_layer(
    cuda: str, settings: dict[str, Any], optimizer: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(*sizes)
    plan = fit(model, x, y, adam(model, **optimizer), epochs=0, **settings).plan
    assert "layer by layer" in plan.reason
