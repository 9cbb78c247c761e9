"""The one_launch engine on networks that go layer by layer: any depth, any optimizer, dropout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pytest

import warpfit as wf
from conftest import cases_on_a_gpu, on_emulator, on_gpu
from support.devices import open_in_both_orders
from support.one_launch import (
    ACTIVATIONS,
    ADAPTIVE,
    BATCH,
    LIMITS,
    LIONS,
    NUM_ROWS,
    MakeOptimizer,
    activated,
    assert_follows_numpy,
    data,
    fit,
    flat,
    lion,
)
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import one_launch_layers_layout
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.errors import ConfigError, DivergedError

pytestmark = [pytest.mark.usefixtures("by_layers"), pytest.mark.in_turns(12)]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.05),
    "decayed": lambda model: optim.SGD(model.parameters(), 0.05, weight_decay=0.01),
    "momentum": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
    **ADAPTIVE,
}


class Case(NamedTuple):
    """A network and how it is trained; the last batch of an epoch is a short one."""

    sizes: tuple[int, ...]
    batch_size: int
    cluster: int
    loss: str | losses.Loss = "cross_entropy"
    optimizer: str = "sgd"
    activations: tuple[str, ...] = ("tanh",)
    precision: str = "float16"
    dropout: float = 0.0

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    def make(self) -> nn.Sequential:
        """Return the network."""
        return activated(self.sizes, self.activations, self.dropout)

    @property
    def settings(self) -> dict[str, Any]:
        """What `assert_follows_numpy` takes."""
        return {
            "make": self.make,
            "batch_size": self.batch_size,
            "num_rows": 4 * self.batch_size + self.batch_size // 3 + 1,
            "loss": self.loss,
            "optimizer": OPTIMIZERS[self.optimizer],
            "precision": self.precision,
        }


CASES = [
    Case((17, 33, 20, 5), 33, 2, "cross_entropy", "adam", ("gelu", "tanh"), dropout=0.3),
    Case((6, 3), 16, 1, "mse", "rmsprop"),
    Case((20, 40, 70, 33, 18), 40, 4, "mse", "momentum", ("silu", "sigmoid", "tanh"), "bfloat16"),
    Case((9, 8, 3), 5, 1, "cross_entropy", "nesterov"),
    Case((1, 1, 1, 1), 1, 1, "mse", "sgd"),
    Case((5, 4, 3, 2, 3, 4, 5), 7, 1, "cross_entropy", "sgd", dropout=0.5),
    Case((40, 65, 130, 7), 64, 8, "cross_entropy", "decayed", ("sigmoid", "gelu")),
    Case((33, 250, 16, 256, 2), 17, 16, "binary_cross_entropy", "rmsprop, momentum"),
    Case((129, 100, 9), 48, 4, "huber", "adamw", ("silu",), "bfloat16", 0.1),
    Case((12, 24, 17, 24, 33), 100, 2, "cross_entropy", "adam, eps before", ("silu",)),
    Case((70, 16, 128, 128), 20, 16, "absolute_error", "decayed", ("gelu",)),
]

REPLICATED = [
    (2, Case((17, 33, 20, 5), 33, 2, "cross_entropy", "adam", ("gelu", "tanh"), dropout=0.3)),
    (4, Case((6, 3), 50, 1, "mse", "rmsprop")),
    (
        3,
        Case(
            (20, 40, 70, 33, 18), 40, 4, "mse", "momentum", ("silu", "sigmoid", "tanh"), "bfloat16"
        ),
    ),
    (5, Case((40, 65, 130, 7), 160, 8, "cross_entropy", "decayed", ("sigmoid", "gelu"))),
    (2, Case((16, 16, 32, 16), 64, 1, "binary_cross_entropy", "rmsprop, momentum")),
    (7, Case((129, 100, 9), 100, 4, "huber", "adamw", ("silu",), "bfloat16", 0.1)),
    (16, Case((1, 1, 1, 1), 250, 1, "mse", "nesterov")),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i >= 3 else ()) for i, case in enumerate(CASES)],
    ids=str,
)
def test_it_follows_numpy(
    cuda: str, only_cluster: Callable[..., None], only_replicas: Callable[[int], None], case: Case
) -> None:
    only_cluster(case.cluster)
    only_replicas(1)
    history = assert_follows_numpy(case.sizes, **case.settings)
    words = "one block" if case.cluster == 1 else f"a cluster of {case.cluster} blocks"
    assert f"{words} of 8 warps, layer by layer" in history.plan.reason


WIDE = [
    Case((784, 128, 128, 128, 10), 32, 8),
    Case((784, 128, 128, 128, 10), 32, 16, optimizer="momentum", dropout=0.2),
    Case((784, 256, 256, 256, 10), 32, 16, precision="bfloat16"),
    Case((784, 256, 10), 64, 16),
    Case((64, 64, 64, 64, 1), 48, 8, "mse", "adamw"),
]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_it_follows_numpy_with_wide_layers(
    only_cluster: Callable[..., None], only_replicas: Callable[[int], None], case: Case
) -> None:
    test_it_follows_numpy("cuda", only_cluster, only_replicas, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"precision": "bfloat16", "batch_size": 60, "num_rows": 130}], ids=str
)
def test_lion(cuda: str, settings: dict[str, Any]) -> None:
    assert_follows_numpy(
        (6, 20, 9, 3), activation=nn.Tanh, optimizer=lion, times_limit=LIONS, **settings
    )


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(cuda: str, name: str) -> None:
    assert_follows_numpy((6, 20, 9, 3), activation=nn.Tanh, optimizer=OPTIMIZERS[name], epochs=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(cuda: str, name: str) -> None:
    assert_follows_numpy((6, 20, 9, 3), activation=ACTIVATIONS[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        losses.SoftmaxCrossEntropy(0.1),
        losses.Huber(0.7),
        losses.BinaryCrossEntropy(sum_outputs=True),
    ],
    ids=lambda loss: loss.name,
)
def test_losses(cuda: str, loss: losses.Loss) -> None:
    assert_follows_numpy((6, 8, 9, 18), loss=loss, activation=nn.Tanh)


@pytest.mark.parametrize(
    "sizes",
    [pytest.param((6, 3), marks=pytest.mark.slow), (6, 20, 9, 3)],
    ids=str,
)
@pytest.mark.parametrize("of", [pytest.param("classes", marks=pytest.mark.slow), "both"])
@pytest.mark.parametrize("smoothing", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_weights_of_classes_and_samples(
    cuda: str, sizes: tuple[int, ...], of: str, smoothing: float
) -> None:
    loss = losses.SoftmaxCrossEntropy(smoothing, class_weight=(0.5, 2.0, 0.0))
    settings: dict[str, Any] = {"loss": loss}
    if of == "both":
        settings["sample_weight"] = np.random.default_rng(3).random(NUM_ROWS)
        settings["sample_weight"][::7] = 0.0
    assert_follows_numpy(sizes, activation=nn.Tanh, **settings)


@pytest.mark.slow
def test_weights_of_samples_whose_targets_are_numbers(cuda: str) -> None:
    weights = np.random.default_rng(3).random(NUM_ROWS)
    assert_follows_numpy((6, 20, 3), loss="mse", activation=nn.Tanh, sample_weight=weights)


@pytest.mark.slow
def test_a_batch_that_weighs_nothing_changes_nothing(cuda: str) -> None:
    x, y = data((6, 3), num_rows=2 * BATCH)
    models = [mlp(6, 20, 9, 3), mlp(6, 20, 9, 3)]
    settings: dict[str, Any] = {"epochs": 1, "shuffle": False}
    history = fit(models[0], x, y, sample_weight=np.repeat([0.0, 1.0], BATCH), **settings)
    assert history.step_losses[0] == 0 < history.step_losses[1]
    fit(models[1], x[BATCH:], y[BATCH:], sample_weight=np.ones(BATCH), **settings)
    assert_same_weights(*models)


@pytest.mark.parametrize(
    "cluster", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("clip_norm", [0.3, pytest.param(100.0, marks=pytest.mark.slow)])
def test_clipping(
    cuda: str, only_cluster: Callable[..., None], cluster: int, clip_norm: float
) -> None:
    only_cluster(cluster)
    settings: dict[str, Any] = {
        "activation": nn.Tanh,
        "optimizer": {"momentum": 0.9, "clip_norm": clip_norm},
    }
    assert_follows_numpy((6, 17 * cluster, 33, 3), **settings)


@pytest.mark.parametrize("cluster", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("nesterov", [pytest.param(True, marks=pytest.mark.slow), False])
def test_scikit_learns_forms(
    cuda: str, only_cluster: Callable[..., None], cluster: int, nesterov: bool
) -> None:
    """A penalty of weights that is divided among the rows of a batch, and velocities with the
    learning rate in them.
    """
    only_cluster(cluster)
    settings = {"momentum": 0.9, "nesterov": nesterov, "l2": 0.5, "lr_in_velocity": True}
    assert_follows_numpy((6, 17 * cluster, 33, 3), activation=nn.Tanh, optimizer=settings)


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_penalty_over_what_rows_weigh(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    replicas: int,
) -> None:
    only_cluster(2)
    only_replicas(replicas)
    weights = np.random.default_rng(1).random(NUM_ROWS)
    weights[:BATCH] = 0  # of a batch that weighs nothing, without shuffling
    assert_follows_numpy(
        (6, 20, 9, 3),
        activation=nn.Tanh,
        optimizer={"momentum": 0.9, "l2": 0.5, "l2_by_weight": True},
        sample_weight=weights,
        shuffle=False,
        batch_size=BATCH * replicas,
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_errors_in_the_hundreds(cuda: str, precision: str) -> None:
    """Of targets, and of outputs to begin with, as x is far from 0."""
    x, noise = data((6, 3), "mse")
    assert_follows_numpy(
        (6, 20, 9, 3),
        loss="mse",
        precision=precision,
        activation=nn.Tanh,
        rows=(100 + x, 200 * noise),
        optimizer={"lr": 1e-3},
        times_limit=4.0,  # of x itself, which float16 rounds
    )


@pytest.mark.slow
def test_a_penalty_of_weights_and_adam(cuda: str) -> None:
    assert_follows_numpy(
        (6, 20, 9, 3),
        activation=nn.Tanh,
        optimizer=lambda model: optim.Adam(model.parameters(), 0.01, eps=0.05, l2=0.5),
    )


@pytest.mark.parametrize(
    ("replicas", "case"),
    [
        pytest.param(*item, marks=pytest.mark.slow if i >= 1 else ())
        for i, item in enumerate([*REPLICATED, *((1, case) for case in CASES)])
    ],
    ids=str,
)
def test_float32(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    replicas: int,
    case: Case,
) -> None:
    only_cluster(case.cluster)
    only_replicas(replicas)
    history = assert_follows_numpy(case.sizes, **{**case.settings, "precision": "float32"})
    assert (history.plan.engine, history.plan.precision) == ("one_launch", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_1000_steps_in_float32(cuda: str, name: str) -> None:
    assert_follows_numpy(
        (16, 24, 24, 5),
        rows=blobs(320, 16, 5),
        activation=nn.Tanh,
        precision="float32",
        batch_size=32,
        epochs=100,
        optimizer=OPTIMIZERS[name],
    )


# Of x and the weights of the first layer; of its units and the second's; of targets and gradients.
SCALED = {"x": (1, -1, 0), "units": (0, 1, -1), "targets": (0, 0, 0)}


def scaled_run(name: str, exponent: int, device: str, dtype: str = "float32", **more: Any) -> Any:
    """Take a step with a network whose numbers are these powers of ten; return its loss, and how
    far each array went.
    """
    sizes = (20, 40, 24, 5)
    x, y = data(sizes, "mse", 40)
    of_x, of_first, of_second = (10.0 ** (exponent * own) for own in SCALED[name])
    of_targets = 10.0**exponent if name == "targets" else 1.0
    model = activated(sizes, ("leaky_relu",))
    first, second, *_ = (p for key, p in model.named_parameters() if key.endswith("weight"))
    first.data, second.data = first.data * np.float32(of_first), second.data * np.float32(of_second)
    for key, parameter in model.named_parameters():
        parameter.data = (parameter.data * key.endswith("weight")).astype(dtype)
    starts = {key: array.astype(float) for key, array in model.state_dict().items()}
    x, y = (x * np.float32(of_x)).astype(dtype), (y * np.float32(of_targets)).astype(dtype)
    # Where gradients are large, or weights, the rate lets these go as far as others would.
    power = {"x": -2 * exponent, "units": -2 * abs(exponent), "targets": -exponent}[name]
    optimizer = optim.SGD(model.parameters(), 0.02 * 10.0 ** min(max(power, -30), 35))
    history = fit(
        model, x, y, optimizer, loss="mse", device=device, epochs=1, batch_size=40, **more
    )
    moves = {key: array.astype(float) - starts[key] for key, array in model.state_dict().items()}
    return history["loss"][0], moves


EXPONENTS = (-30, -18, -10, -4, 4, 10, 18, 30)


@pytest.mark.filterwarnings("ignore:.*standardise")
@pytest.mark.in_turns(27)
@pytest.mark.parametrize(
    "exponent",
    [pytest.param(own, marks=() if own in (-30, 30, 4) else pytest.mark.slow) for own in EXPONENTS],
)
@pytest.mark.parametrize(("cluster", "replicas"), [(1, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("name", SCALED)
def test_float32_has_its_range(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    cluster: int,
    replicas: int,
    name: str,
    exponent: int,
) -> None:
    only_cluster(cluster)
    only_replicas(replicas)
    if name == "targets":
        exponent = exponent * 18 // 30  # their squares are in the range
    loss, moves = scaled_run(name, exponent, cuda, engine="one_launch", precision="float32")
    exact, own_moves = scaled_run(name, exponent, "cpu", "float64")
    _, of_single = scaled_run(name, exponent, "cpu")
    assert loss == pytest.approx(exact, rel=2e-5, abs=0)
    for key, move in own_moves.items():
        size = np.linalg.norm(move)
        # NumPy's float32 loses what lies below the last bit of a weight, and so do kernels.
        lost = np.linalg.norm(of_single[key] - move)
        assert np.linalg.norm(moves[key] - move) <= 2e-5 * size + 2 * lost, key


# Not finite are what float32 has no numbers for, and neither 0 nor anything else.
@pytest.mark.filterwarnings("ignore:.*standardise")
@pytest.mark.parametrize(("of_x", "of_weights"), [(1e30, 1e30), (1e37, 300.0), (1e3, 1e37)])
def test_float32_overflows_beyond_its_range(cuda: str, of_x: float, of_weights: float) -> None:
    x, labels = data((6, 3))
    model = mlp(6, 20, 9, 3)
    for parameter in model.parameters():
        parameter.data = parameter.data * np.float32(of_weights)
    with pytest.raises(DivergedError, match="epoch 1, step 1"):
        fit(model, x * np.float32(of_x), labels, precision="float32", epochs=1)


# Sums of two float16 had float16's range: a loss of thousands in the fourth step.
@pytest.mark.slow
def test_float32_follows_a_run_that_goes_far(cuda: str) -> None:
    sizes = (67, 65, 42, 64, 9)
    x, y = data(sizes, num_rows=12)

    def losses_of(**asked: Any) -> Any:
        model = activated(sizes, ("gelu", "gelu", "leaky_relu"))
        optimizer = optim.RMSprop(model.parameters(), 0.05, momentum=0.7)
        return fit(model, x, y, optimizer, batch_size=1, epochs=1, **asked).step_losses

    found = losses_of(precision="float32")
    expected = losses_of(device="cpu")
    assert expected.max() > 1e5
    np.testing.assert_allclose(found[:6], expected[:6], rtol=1e-3)
    assert np.isfinite(found).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", LIMITS)
def test_300_steps(cuda: str, precision: str) -> None:
    history = assert_follows_numpy(
        (16, 24, 24, 5),
        rows=blobs(320, 16, 5),
        activation=nn.Tanh,
        precision=precision,
        batch_size=32,
        epochs=30,
        optimizer=OPTIMIZERS["momentum"],
    )
    assert history["loss"][-1] < 0.5 * history["loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_dropout_is_that_of_the_step_and_not_of_the_launch(
    cuda: str, tmp_path: Any, only_replicas: Callable[[int], None], replicas: int
) -> None:
    only_replicas(replicas)
    x, y = blobs(NUM_ROWS, 17, 5)
    case = CASES[0]
    whole, first, second = (case.make() for _ in range(3))
    settings = {"batch_size": case.batch_size}
    make = OPTIMIZERS["adam"]
    fit(whole, x, y, make(whole), epochs=4, **settings)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, y, make(first), epochs=2, callbacks=[checkpoint], **settings)
    fit(second, x, y, make(second), epochs=4, resume_from=tmp_path / "run.ckpt", **settings)
    assert_same_weights(second, whole)


def test_a_second_run_of_an_optimizer_goes_on_with_its_steps_and_anew_with_dropouts(
    cuda: str,
) -> None:
    case, found = CASES[0], []
    x, y = data(case.sizes)
    for device in ("cpu", "cuda"):
        model = case.make()
        optimizer = OPTIMIZERS["adam"](model)
        for _ in range(2):
            fit(model, x, y, optimizer, device=device, batch_size=case.batch_size)
        model.to("cpu")
        found.append(flat(model))
    start = flat(case.make())
    assert np.linalg.norm(found[1] - found[0]) <= LIMITS["float16"] * np.linalg.norm(
        found[0] - start
    )


@pytest.mark.parametrize(
    ("replicas", "case"),
    [
        pytest.param(*item, marks=pytest.mark.slow if i >= 1 else ())
        for i, item in enumerate(REPLICATED)
    ],
    ids=str,
)
def test_replicas_follow_numpy(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    replicas: int,
    case: Case,
) -> None:
    only_cluster(case.cluster)
    only_replicas(replicas)
    history = assert_follows_numpy(case.sizes, **case.settings)
    blocks = "blocks" if case.cluster == 1 else f"clusters of {case.cluster} blocks"
    assert (f"{replicas} {blocks} that partition a batch" in history.plan.reason) == (replicas > 1)


@pytest.mark.parametrize("cluster", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "setting", [{"clip_norm": 0.3}, pytest.param({"l2": 0.5}, marks=pytest.mark.slow)], ids=str
)
def test_what_replicas_must_know_of_the_whole_batch(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    cluster: int,
    setting: dict[str, float],
) -> None:
    """Its weight, the norm of its gradients, and the share of a penalty of weights."""
    only_cluster(cluster)
    only_replicas(3)
    weights = np.random.default_rng(3).random(NUM_ROWS)
    loss = losses.SoftmaxCrossEntropy(0.2, class_weight=(0.5, 2.0, 0.0))
    assert_follows_numpy(
        (6, 17, 12, 3),
        activation=nn.Tanh,
        loss=loss,
        optimizer={"momentum": 0.9, **setting},
        sample_weight=weights,
        batch_size=44,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 4])
def test_two_runs_are_bit_identical(
    cuda: str, only_cluster: Callable[..., None], cluster: int
) -> None:
    only_cluster(cluster)
    x, y = data((17, 5))
    models = [mlp(17, 33, 20, 5) for _ in range(2)]
    found = [fit(model, x, y, OPTIMIZERS["adam"](model)).step_losses for model in models]
    np.testing.assert_array_equal(*found)
    assert_same_weights(*models)


@on_emulator
@pytest.mark.parametrize("cluster", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_order_of_threads_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    cluster: int,
    replicas: int,
) -> None:
    only_cluster(cluster)
    only_replicas(replicas)
    assert_any_order_of_threads(monkeypatch, CASES[0], OPTIMIZERS["adam"])


def assert_any_order_of_threads(
    monkeypatch: pytest.MonkeyPatch, case: Case, make_optimizer: MakeOptimizer
) -> None:
    x, y = data((case.sizes[0], case.sizes[-1]))
    models = [case.make() for _ in range(2)]
    for model, _ in zip(models, open_in_both_orders(monkeypatch), strict=True):
        fit(model, x, y, make_optimizer(model), batch_size=case.batch_size)
        model.to("cpu")
    assert_same_weights(*models)


@pytest.mark.slow
def test_batches_and_units_of_which_shared_memory_holds_one(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data((6, 3))
    models = [mlp(6, 20, 9, 3) for _ in range(2)]
    shapes = [fit(models[0], x, y).plan.prepared.launch]
    while shapes[-1].x_slots + shapes[-1].unit_copies > 2:
        limit = shapes[-1].shared_bytes - 1
        monkeypatch.setattr(backends.get(cuda).runtime, "max_shared_bytes", limit)
        history = fit(mlp(6, 20, 9, 3), x, y, epochs=0)
        shapes.append(history.plan.prepared.launch)
    fit(models[1], x, y)
    assert_same_weights(*models)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_where_the_optimizer_remembers_changes_no_bit(
    cuda: str, monkeypatch: pytest.MonkeyPatch, only_cluster: Callable[..., None], optimizer: str
) -> None:
    only_cluster(2)
    x, y = data((17, 5))
    models, places = [], []
    for registers, shared_bytes in ((96, None), (200, None), (255, 40_000)):
        monkeypatch.setattr(one_launch_layers_layout, "UPDATING_REGISTERS", registers)
        if shared_bytes:
            monkeypatch.setattr(backends.get(cuda).runtime, "max_shared_bytes", shared_bytes)
        choose_layers.cache_clear()
        models.append(mlp(17, 33, 20, 5))
        history = fit(models[-1], x, y, OPTIMIZERS[optimizer](models[-1]), epochs=3)
        shape = history.plan.prepared.launch
        places.append([shape.held_tiles > 0, shape.near_tiles > 0, shape.far_tiles > 0])
    assert places[0] == [True, False, False]
    assert places[1][1]
    assert places[2] == [False, True, True]
    for other in models[1:]:
        assert_same_weights(other, models[0])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(cuda: str) -> None:
    x, y = data((6, 3))
    x[20] = 1e6  # beyond float16
    model = mlp(6, 20, 9, 3)
    with pytest.raises(DivergedError, match=r"epoch 1, step 2"):
        fit(model, x, y, sgd(model, momentum=0.9), shuffle=False)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_debug_builds(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    replicas: int,
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    test_replicas_follow_numpy(cuda, only_cluster, only_replicas, replicas, REPLICATED[0][1])


# -- a pairwise design
# ----------------------------------------------------------------------------------------

# Kinks are left out: where rounding takes a unit across one, it takes two runs apart.
FACTORS: dict[str, tuple[Any, ...]] = {
    "depth": (1, 2, 3, 4, 5, 6),
    "width": (3, 8, 17, 33, 64, 100, 129),
    "features": (1, 7, 16, 50, 300),
    "outputs": (1, 2, 10, 17, 33),
    "batch": (1, 7, 16, 33, 64, 200),
    "cluster": (1, 2, 4, 8, 16),
    "replicas": (1, 2, 4, 7),
    "loss": ("cross_entropy", "smoothed", "mse", "binary_cross_entropy", "absolute_error", "huber"),
    "optimizer": tuple(OPTIMIZERS),
    "activation": ("tanh", "sigmoid", "gelu", "silu"),
    "dropout": (0.0, 0.2),
    "precision": ("float16", "bfloat16"),
    "clip_norm": (None, 0.5),
    "weighted": (False, True),
}
NUM_DESIGNED, NUM_CANDIDATES = 320, 10


def pairs_of(design: tuple[Any, ...]) -> set[Any]:
    """Return the pairs of levels of two factors that a case has."""
    return set(combinations(enumerate(design), 2))


def designed() -> list[dict[str, Any]]:
    """Return cases that have every level of each factor with every level of each other."""
    rng = np.random.default_rng(0)
    missing = set(combinations(enumerate(FACTORS.values()), 2))
    uncovered = {
        ((i, a), (j, b)) for (i, levels), (j, others) in missing for a in levels for b in others
    }
    found = []
    for _ in range(NUM_DESIGNED):
        candidates = [
            tuple(levels[rng.integers(len(levels))] for levels in FACTORS.values())
            for _ in range(NUM_CANDIDATES)
        ]
        best = max(candidates, key=lambda candidate: len(pairs_of(candidate) & uncovered))
        uncovered -= pairs_of(best)
        found.append(dict(zip(FACTORS, best, strict=True)))
    assert not uncovered
    return found


def case_of(design: dict[str, Any]) -> Case:
    """Return a case; its hidden layers are of the width and of the next ones in turns."""
    widths, first = FACTORS["width"], FACTORS["width"].index(design["width"])
    hidden = [widths[(first + 3 * idx) % len(widths)] for idx in range(design["depth"] - 1)]
    has_classes = design["loss"] in ("cross_entropy", "smoothed")  # one alone is always right
    return Case(
        (
            design["features"],
            *hidden,
            max(2, design["outputs"]) if has_classes else design["outputs"],
        ),
        design["batch"],
        design["cluster"],
        losses.SoftmaxCrossEntropy(0.1) if design["loss"] == "smoothed" else design["loss"],
        design["optimizer"],
        (design["activation"], "tanh"),
        design["precision"],
        design["dropout"],
    )


def clipped(make: MakeOptimizer, norm: float, model: nn.Module) -> optim.Optimizer:
    """Return an optimizer that clips."""
    optimizer = make(model)
    optimizer.spec = replace(optimizer.spec, clip_norm=norm)
    return optimizer


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "design", cases_on_a_gpu(designed()), ids=lambda design: "-".join(map(str, design.values()))
)
def test_designed_cases(
    only_cluster: Callable[..., None], only_replicas: Callable[[int], None], design: dict[str, Any]
) -> None:
    case = case_of(design)
    settings, num_rows = case.settings, case.settings.pop("num_rows")
    x, y = data(case.sizes, case.loss, num_rows)
    if (
        case.loss == "absolute_error"
    ):  # whose slope changes its sign where an output passes its target
        y += np.sign(y) * 3
    settings["rows"] = x / np.float32(np.sqrt(max(1, case.sizes[0] / 16))), y
    # What few numbers' rounding does is averaged over few others.
    settings["times_limit"] = (
        4.0 if 1 in case.sizes else max(1.0, 4.0 / min(case.sizes[1:-1], default=4))
    )
    if design["weighted"]:
        settings["sample_weight"] = np.random.default_rng(3).random(num_rows)
    if design["clip_norm"]:
        settings["optimizer"] = partial(clipped, settings["optimizer"], design["clip_norm"])
    # As many replicas, and no more blocks, than asked for, if they hold the network and its batch.
    numbers = sorted(FACTORS["replicas"], key=lambda replicas: replicas != design["replicas"])
    sizes = [size for size in FACTORS["cluster"] if size >= case.cluster]
    for replicas, most in product(numbers, sizes):
        only_cluster(*(size for size in FACTORS["cluster"] if size <= most))
        only_replicas(replicas)
        with suppress(ConfigError):
            assert_follows_numpy(case.sizes, **settings)
            return
    pytest.fail("no blocks hold the network")
