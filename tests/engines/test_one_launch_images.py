"""The one_launch engine on convolutional networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from kernel_variants.runs import MOMENTUM, lenet
from support.devices import open_emulated
from support.one_launch import LIONS, OPTIMIZERS, Images, assert_follows_numpy, fit
from support.training import assert_same_weights, sgd
from warpfit import losses, nn, optim
from warpfit.backends.cuda.cards import CARDS
from warpfit.engines import launch_plan
from warpfit.engines.base import TrainingData
from warpfit.errors import ConfigError, DivergedError

SMOOTHED = losses.SoftmaxCrossEntropy(label_smoothing=0.1)
CASES = [
    Images("pooled", 4, (1, 4), 4),
    Images("pooled", 12, (3, 4), 3, "mse", "momentum", ("silu",), "bfloat16"),
    Images("padded", 3, (1, 4), 3, "huber", "nesterov", ("sigmoid",)),
    Images("padded", 10, (3, 4), 16, "binary_cross_entropy", "adam", ("gelu",)),
    Images("uneven", 5, (2, 4), 2, "absolute_error", "adamw", ("mish", "tanh")),
    Images("uneven", 17, (8, 4), 2, "cross_entropy", "adam, eps before", ("gelu_tanh",)),
    Images("pooled", 5, (3, 6), 4, SMOOTHED, "rmsprop", ("selu",)),
    Images("uneven", 8, (3, 3), 25, "mse", "rmsprop, momentum", ("tanh", "gelu"), "bfloat16"),
    Images("padded", 1, (1, 1), 2, "cross_entropy", "adagrad", ("silu",)),
    Images("padded", 16, (8, 2), 19, "cross_entropy", "nadam", ("sigmoid",)),
    Images("uneven", 4, (1, 9), 3, "mse", "adadelta", ("gelu",)),
    Images("pooled", 12, (3, 4), 16, activations=("relu",)),
    Images("pooled", 12, (3, 4), 1, activations=("leaky_relu",)),
    Images("pixel", 3, (2, 2), 1, "mse"),
    Images("pixel", 2, (1, 3), 1),  # the last batch has one image
    Images("wide", 2, (2, 12), 1, "cross_entropy", "momentum"),
    Images("globally pooled", 5, (2, 4), 2, "mse"),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_numpy(cuda: str, only_images: Callable[[int, int], None], case: Images) -> None:
    only_images(*case.blocks)
    case.assert_follows_numpy()


def test_lion(cuda: str, only_images: Callable[[int, int], None]) -> None:
    only_images(2, 4)
    Images("padded", 8, (2, 4), 1, optimizer="lion").assert_follows_numpy(LIONS)


@on_emulator
@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_cards_without_bulk_copies_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, only_images: Callable[[int, int], None], case: Images
) -> None:
    only_images(*case.blocks)
    models = {arch: case.make() for arch in ("sm_80", "sm_90a")}
    for arch, model in models.items():
        open_emulated(monkeypatch, arch=arch)
        fit(model, *case.rows, loss=case.loss, batch_size=case.batch_size)
    assert_same_weights(*models.values())


@pytest.mark.parametrize("blocks", [(1, 12), (3, 4)], ids=str)
def test_no_cut_changes_a_bit(
    cuda: str,
    only_images: Callable[[int, int], None],
    launches: list[int],
    tmp_path: Any,
    blocks: tuple[int, int],
) -> None:
    only_images(*blocks)
    case = Images("pooled", 12, blocks, 1)
    x, y = case.rows
    whole, cut, stopped, resumed = (case.make() for _ in range(4))

    def train(model: nn.Module, **settings: Any) -> wf.History:
        optimizer = OPTIMIZERS["adam"](model)
        return fit(model, x, y, optimizer, batch_size=case.batch_size, **settings)

    histories = [train(whole, epochs=6)]
    assert launches == [1, 5]
    launches.clear()
    checkpoints = [wf.Checkpoint(tmp_path / "run.ckpt", every=2)]
    histories.append(train(cut, epochs=6, callbacks=checkpoints))
    assert launches == [1, 1, 2, 2]
    np.testing.assert_array_equal(*(history.step_losses for history in histories))
    assert_same_weights(whole, cut)
    train(stopped, epochs=4, callbacks=checkpoints)
    train(resumed, epochs=6, resume_from=tmp_path / "run.ckpt")
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_images_of_any_dtype(
    cuda: str, only_images: Callable[[int, int], None], dtype: str
) -> None:
    only_images(1, 4)
    case = Images("padded", 4, (1, 4), 1)
    x, y = case.rows
    x = (np.abs(60 * x) if dtype == "uint8" else x).astype(dtype)
    models = [case.make(), case.make()]
    given = [x, (x / 255 if dtype == "uint8" else x).astype("float32")]
    histories = [
        fit(model, own, y, sgd(model), batch_size=4)
        for model, own in zip(models, given, strict=True)
    ]
    losses_of = [history.step_losses for history in histories]
    np.testing.assert_allclose(*losses_of, rtol=1e-3)


def test_pooling_hides_no_nan(cuda: str, only_images: Callable[[int, int], None]) -> None:
    only_images(2, 4)
    case = Images("globally pooled", 5, (2, 4), 2, activations=("relu",))
    model, (x, y) = case.make(), case.rows
    weight = model[0].weight
    weight.data = 4 * weight.numpy()
    x[3, 2, 1] = 6e4  # of the window's 64 pixels one becomes infinity less infinity
    with pytest.raises(DivergedError, match=r"in epoch 1, step 1, .* no earlier loss was finite"):
        fit(model, x[:5], y[:5], batch_size=5, epochs=1)


def test_rates_in_velocities(cuda: str, only_images: Callable[[int, int], None]) -> None:
    only_images(1, 4)
    case = Images("pooled", 4, (1, 4), 4)
    assert_follows_numpy(
        (),
        rows=case.rows,
        make=case.make,
        batch_size=4,
        optimizer={"momentum": 0.9, "lr_in_velocity": True},
    )


# -- who runs a network


def test_auto_runs_it_in_one_launch(cuda: str) -> None:
    case = Images("pooled", 4, (1, 4), 1)
    x, y = case.rows
    model = case.make()
    plan = wf.fit(
        model, x, y, optimizer=sgd(model), device=cuda, batch_size=4, epochs=0, verbose=False
    ).plan
    assert (plan.engine, plan.precision) == ("one_launch", "float16")
    assert "blocks of 16 warps, of which 4 take one image each through all layers" in plan.reason
    assert isinstance(plan.prepared, launch_plan.PreparedLaunch)
    found = launch_plan.describe(plan.prepared, TrainingData(x, y))
    assert sum(size for _, size in found.shared) <= plan.prepared.launch.shared_bytes
    assert "one_launch_images" in found.source


def network(*layers: nn.Module) -> Callable[[], nn.Sequential]:
    """Return what makes a network that ends in a linear layer after these."""
    return lambda: nn.Sequential(*layers)


FLAT = (nn.Flatten(), nn.Linear(8 * 8 * 2, 4))
IN_THE_WAY: list[tuple[Callable[[], nn.Sequential], dict[str, Any], str]] = [
    (
        network(nn.Conv2d(3, 2, 3, stride=2), nn.Flatten(), nn.Linear(32, 4)),
        {},
        r"convolutions of stride 1, got \(2, 2\) of layer 0",
    ),
    (
        network(nn.Conv2d(3, 2, 3, padding=2, dilation=2), nn.Flatten(), nn.Linear(162, 4)),
        {},
        r"convolutions of dilation 1, got \(2, 2\) of layer 0",
    ),
    (
        network(nn.Conv2d(3, 3, 3, groups=3), nn.Flatten(), nn.Linear(147, 4)),
        {},
        "convolutions of one group, got 3 groups of layer 0",
    ),
    (
        network(nn.Conv2d(3, 2, 2, bias=False), *FLAT),
        {},
        "layers with a bias, got layer 0 without one",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), *FLAT),
        {},
        "convolutions, max pooling, then Flatten and linear layers, got layer 1, batch_norm",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.Dropout(0.5), *FLAT),
        {},
        "no dropout beside convolutions, got layer 1 with p=0.5",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)),
        {},
        "one activation at most, right after a convolution or a linear layer, got layer 2, relu",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Tanh(), *FLAT),
        {},
        "one activation at most, right after a convolution or a linear layer, got layer 2, tanh",
    ),
    (
        network(
            nn.Conv2d(3, 2, 2), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)
        ),
        {},
        "max pooling after a convolution, got layer 2 after max_pool2d",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(128, 8), nn.Flatten(), nn.Linear(8, 4)),
        {},
        "max pooling, then Flatten and linear layers, got layer 3, flatten",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 4)),
        {},
        r"windows of max pooling that partition images, got \(3, 3\) by \(3, 3\) of \(8, 8\)",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(98, 4)),
        {},
        r"windows of max pooling that partition images, got \(2, 2\) by \(1, 1\) of \(8, 8\)",
    ),
    (
        network(nn.MaxPool2d(3), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(8, 4)),
        {},
        "max pooling after a convolution, got layer 0 after none",
    ),
    (
        network(nn.Conv2d(3, 2, 2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
        {},
        "max pooling, then Flatten and linear layers, got layer 1, avg_pool2d",
    ),
    (
        network(nn.Conv2d(3, 4, 9), nn.Flatten()),
        {},
        "a linear layer at the end, got flatten",
    ),
    (
        network(nn.Conv2d(3, 2, 2), *FLAT, nn.ReLU()),
        {},
        "no activation at the end, got relu",
    ),
    (
        network(nn.Conv2d(3, 2, (33, 2), padding=(12, 0)), nn.Flatten(), nn.Linear(16, 4)),
        {},
        "windows of at most 32 pixels a side for convolutions",
    ),
    (
        network(nn.Conv2d(3, 2, 2, padding=5), nn.MaxPool2d(18), nn.Flatten(), nn.Linear(2, 4)),
        {},
        "max pooling of at most 16 pixels a side for convolutions",
    ),
    (
        network(nn.Conv2d(3, 2, 2), *FLAT),
        {"precision": "float32"},
        "products in half precision for convolutions",
    ),
    (
        network(nn.Conv2d(3, 2, 2), *FLAT),
        {"class_weight": {0: 2.0, 1: 1.0, 2: 1.0, 3: 1.0}},
        "no sample or class weights for convolutions",
    ),
    (
        network(nn.Conv2d(3, 2, 2), *FLAT),
        {"batch_size": 33},
        "batches of at most 32 images, got 33",
    ),
    (
        network(nn.Conv2d(3, 128, 3, padding=1), nn.MaxPool2d(9), nn.Flatten(), nn.Linear(128, 4)),
        {"batch_size": 32},
        "bytes of shared memory for weights and the images of a block, got",
    ),
    (
        network(nn.Conv2d(3, 99, 9), nn.Flatten(), nn.Linear(99, 600), nn.Linear(600, 4)),
        {"batch_size": 4},
        "at most 131072 bytes of weights for the registers of a block, got",
    ),
]


@pytest.mark.parametrize(("make", "settings", "words"), IN_THE_WAY, ids=[w for *_, w in IN_THE_WAY])
def test_it_says_what_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], nn.Sequential],
    settings: dict[str, Any],
    words: str,
) -> None:
    open_emulated(monkeypatch, num_multiprocessors=4)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 9, 9, 3)).astype("float32"), np.arange(40) % 4
    with pytest.raises(ConfigError, match=words):
        fit(make(), x, y, epochs=0, **settings)
    model = make()
    plan = wf.fit(
        model,
        x,
        y,
        optimizer=sgd(model),
        device="cuda",
        epochs=0,
        verbose=False,
        **{"batch_size": 16, **settings},
    ).plan
    assert plan.engine == "graph"
    assert "one_launch: expected " in plan.reason


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: optim.SGD(model.parameters(), 0.1, clip_norm=1.0), "no clipping for conv"),
        (lambda model: optim.SGD(model.parameters(), 0.1, l2=1.0), "no penalty for convolutions"),
        (
            lambda model: optim.SGD(list(model.parameters())[1:], 0.1),
            "every parameter to be trained, got 3 of 4",
        ),
    ],
    ids=["clips", "penalized", "frozen"],
)
def test_it_says_what_optimizer_it_takes(cuda: str, make: Any, words: str) -> None:
    case = Images("padded", 4, (1, 4), 1)
    model, (x, y) = case.make(), case.rows
    with pytest.raises(ConfigError, match=words):
        fit(model, x, y, make(model), batch_size=4, epochs=0)


@on_emulator
def test_sequences_are_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    open_emulated(monkeypatch)
    x, y = np.ones((8, 9, 3), "float32"), np.arange(8) % 4
    layers = nn.Conv1d(3, 2, 2), nn.Flatten(), nn.Linear(16, 4)
    with pytest.raises(ConfigError, match="linear layers, activations and dropout, got conv1d"):
        fit(nn.Sequential(*layers), x, y)
    model = nn.Sequential(*layers)
    history = wf.fit(model, x, y, optimizer=sgd(model), device="cuda", epochs=1, verbose=False)
    assert history.plan.engine == "graph"


def test_sweeps_say_that_no_launch_takes_several(cuda: str) -> None:
    def build(candidate: dict[str, Any]) -> tuple[nn.Module, str]:
        layers = nn.Conv2d(3, 2, 2), nn.Dropout(0.0), nn.Flatten(), nn.Linear(128, 4)
        return nn.Sequential(*layers), "sgd"

    x, y = np.ones((8, 9, 9, 3), "float32"), np.arange(8) % 4
    found = wf.fit_many(
        build, x, y, grid={"seed": [0, 1]}, device=cuda, batch_size=8, epochs=1, verbose=False
    )
    assert "expected linear layers, activations and dropout, got convolutions" in found.plan.reason
    assert "one_launch in float16" in str(found.plan)


def test_who_runs_a_network() -> None:
    for net in (lenet(), lenet(**MOMENTUM, batch=128)):
        assert launch_plan._chosen(net, CARDS["h200"], False).kernel == "one_launch_images"
        assert "expected linear layers" in str(launch_plan._chosen(net, CARDS["h200"], True))
