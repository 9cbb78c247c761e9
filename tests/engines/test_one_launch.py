"""The one_launch engine: the numbers of NumPy, the same bits twice, and words for what it does not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator, on_gpu
from emulator.runtime import EmulatedRuntime
from support.training import adam, assert_same_weights, blobs, mlp, sgd
from warpfit import losses, nn, optim
from warpfit.backends import Activation
from warpfit.backends.cuda import one_launch, runtime
from warpfit.backends.cuda.one_launch import TrainedNetwork, choose
from warpfit.errors import ConfigError, DeviceError, DivergedError

NUM_ROWS, BATCH = 70, 16  # four batches of 16 and one of 6
# How far weights may be from NumPy's in float32, relative to how far they went.
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2}
ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decayed": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


def fit(model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 2, "batch_size": BATCH, "seed": 5, "verbose": False, **settings}
    if settings.get("device") != "cpu":
        settings = {"device": "cuda", "engine": "one_launch", "precision": "float16", **settings}
    return wf.fit(model, x, y, optimizer=optimizer or sgd(model), **settings)


def data(sizes: tuple[int, ...], loss: str = "cross_entropy", num_rows: int = NUM_ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, sizes[0])).astype("float32")
    if loss == "mse":
        return x, rng.standard_normal((num_rows, sizes[-1])).astype("float32")
    return x, rng.integers(0, sizes[-1], num_rows)


def flat(model: nn.Module) -> Any:
    return np.concatenate([array.ravel() for array in model.state_dict().values()]).astype(float)


def assert_follows_numpy(
    sizes: tuple[int, ...],
    *,
    loss: str = "cross_entropy",
    precision: str = "float16",
    activation: Any = nn.ReLU,
    optimizer: dict[str, Any] | None = None,
    **settings: Any,
) -> wf.History:
    """Train on both, and compare losses and counts of all steps, and how far the weights went."""
    x, y = data(sizes, loss)
    on_cpu, on_device = mlp(*sizes, activation=activation), mlp(*sizes, activation=activation)
    start = flat(on_cpu)
    settings = {"loss": loss, **settings}
    expected = fit(on_cpu, x, y, sgd(on_cpu, **optimizer or {}), device="cpu", **settings)
    history = fit(on_device, x, y, sgd(on_device, **optimizer or {}), precision=precision, **settings)
    limit = LIMITS[precision]
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=limit, atol=limit)
    moved = np.linalg.norm(flat(on_cpu) - start)
    assert np.linalg.norm(flat(on_device) - flat(on_cpu)) <= limit * moved
    return history


# -- the numbers of NumPy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize(
    "sizes", [(1, 1), (6, 3), (17, 5, 2), (1, 1, 1), (33, 16, 17), (40, 37, 10)], ids=str
)
def test_shapes(cuda: str, sizes: tuple[int, ...], loss: str) -> None:
    assert_follows_numpy(sizes, loss=loss)


@pytest.mark.parametrize("batch_size", [1, 15, 33, 100])
def test_batches(cuda: str, batch_size: int) -> None:
    assert_follows_numpy((6, 8, 3), batch_size=batch_size)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_optimizers(cuda: str, sizes: tuple[int, ...], name: str) -> None:
    # Not ReLU: where rounding takes a unit across 0, it takes the two runs apart.
    assert_follows_numpy(sizes, optimizer=OPTIMIZERS[name], activation=nn.Tanh)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(cuda: str, name: str) -> None:
    assert_follows_numpy((6, 8, 3), activation=ACTIVATIONS[name])


@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_bfloat16(cuda: str, sizes: tuple[int, ...]) -> None:
    assert_follows_numpy(sizes, precision="bfloat16")
    assert_follows_numpy(sizes, precision="bfloat16", optimizer=OPTIMIZERS["momentum"])


def test_rows_in_their_own_order_and_a_schedule(cuda: str) -> None:
    history = assert_follows_numpy((6, 8, 3), shuffle=False)
    assert history.plan.engine == "one_launch"
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 3), mlp(6, 3)]
    for model, device in zip(models, ("cpu", "cuda"), strict=True):
        fit(model, x, y, sgd(model, optim.Cosine(0.2)), device=device)
    assert np.linalg.norm(flat(models[1]) - flat(models[0])) < 1e-3


def test_accuracy_is_counted_as_elsewhere(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    reports = [fit(m, x, y, device=device).reports for m, device in zip(models, ("cpu", "cuda"), strict=True)]
    assert [r.accuracy for r in reports[0]] == [r.accuracy for r in reports[1]]
    assert [r.lr for r in reports[0]] == [r.lr for r in reports[1]]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_data_of_other_dtypes(cuda: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (NUM_ROWS, 6)).astype(dtype), rng.integers(0, 3, NUM_ROWS)
    x = x if dtype == "uint8" else x / np.asarray(255, dtype)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    for model, device in zip(models, ("cpu", "cuda"), strict=True):
        fit(model, x, y, device=device)
    assert np.linalg.norm(flat(models[1]) - flat(models[0])) < 1e-3


# -- the same bits -----------------------------------------------------------------------------------------


def test_two_runs_are_bit_identical(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    losses_of_steps = [fit(m, x, y, sgd(m, momentum=0.9)).step_losses for m in models]
    np.testing.assert_array_equal(*losses_of_steps)
    assert_same_weights(*models)


@on_emulator
def test_the_order_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 20, 3) for _ in range(2)]
    for model, reverse in zip(models, (False, True), strict=True):
        device: Any = EmulatedRuntime(reverse=reverse)
        device.name = "cuda:0"
        monkeypatch.setitem(runtime._OPEN, 0, device)
        fit(model, x, y, sgd(model, momentum=0.9))
        model.to("cpu")
    assert_same_weights(*models)


def test_a_resumed_run_gives_the_bits_of_one_that_never_stopped(cuda: str, tmp_path: Any) -> None:
    x, y = blobs(NUM_ROWS)
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    fit(whole, x, y, sgd(whole, momentum=0.9), epochs=4)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, y, sgd(first, momentum=0.9), epochs=2, callbacks=[checkpoint])
    fit(second, x, y, sgd(second, momentum=0.9), epochs=4, resume_from=tmp_path / "run.ckpt")
    assert_same_weights(second, whole)


# -- what it does not run ----------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(cuda: str) -> None:
    x, y = data((6, 3))
    x[20] = 1e6  # beyond float16
    model = mlp(6, 3)
    with pytest.raises(DivergedError, match=r"epoch 1, step 2"):
        fit(model, x, y, shuffle=False)


class Own(nn.Module):
    def __init__(self) -> None:
        self.inner = mlp(6, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: mlp(6, 3), {"precision": "float32"}, "precision 'float16' or 'bfloat16', got 'float32'"),
        (lambda: mlp(6, 5, 5, 3), {}, "one linear layer or two, got 3"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), {}, "no activation at the end, got relu"),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), {}, "linear layers and .*, got dropout"),
        (lambda: nn.Sequential(nn.Linear(6, 3, bias=False)), {}, "layers with a bias, got 0 without"),
        (lambda: mlp(6, 3), {"loss": losses.SoftmaxCrossEntropy(0.1)}, "cross_entropy without weights"),
        (lambda: mlp(6, 3), {"sample_weight": np.ones(NUM_ROWS)}, "no sample_weight"),
        (lambda: mlp(6, 3), {"loss_scale": "dynamic"}, "a fixed loss_scale, got dynamic"),
        (lambda: mlp(6, 200), {}, "at most 128 outputs, got 200"),
    ],
)
def test_it_says_what_is_in_the_way(cuda: str, make: Any, settings: dict[str, Any], words: str) -> None:
    x, y = blobs(NUM_ROWS)
    with pytest.raises(ConfigError, match=words):
        fit(make(), x, y, **settings)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (adam, "optimizer SGD, got adam"),
        (lambda model: sgd(model, clip_norm=1.0), "SGD without clip_norm"),
        (lambda model: optim.SGD(list(model.parameters())[:1], 0.1), "an optimizer over all parameters"),
    ],
)
def test_it_says_what_optimizer_it_takes(cuda: str, make: Any, words: str) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match=words):
        fit(model, x, y, make(model))


@on_emulator
def test_the_emulator_refuses_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = EmulatedRuntime()
    device.name = "cuda:0"
    monkeypatch.setitem(runtime._OPEN, 0, device)
    x, y = data((784, 10))
    model = mlp(784, 10)
    with pytest.raises(DeviceError, match="without clusters on the emulator, got clusters of 4"):
        fit(model, x, y, batch_size=128)


def test_it_needs_a_gpu() -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match="engine 'one_launch': expected a CUDA device, got cpu"):
        wf.fit(model, x, y, optimizer=sgd(model), device="cpu", engine="one_launch", verbose=False)


# -- clusters, on a GPU only -------------------------------------------------------------------------------


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    ("sizes", "cluster", "settings"),
    [
        ((40, 37, 10), 2, {"batch_size": 33}),
        ((40, 100, 10), 4, {"batch_size": 64, "optimizer": OPTIMIZERS["momentum"]}),
        ((40, 250, 3), 16, {"loss": "mse", "optimizer": OPTIMIZERS["nesterov"]}),
        ((50, 256, 3), 16, {"batch_size": 1, "optimizer": {"lr": 0.01, "weight_decay": 0.01}}),
        ((784, 256, 10), 16, {"batch_size": 64}),
        ((784, 10), 16, {"batch_size": 48}),
        ((784, 10), 8, {"batch_size": 128, "precision": "bfloat16"}),
        ((100, 7), 4, {"loss": "mse", "optimizer": OPTIMIZERS["momentum"]}),
    ],
)
def test_clusters(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], cluster: int, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(one_launch, "CLUSTERS", (cluster,))
    choose.cache_clear()
    history = assert_follows_numpy(sizes, activation=nn.Tanh, **settings)
    choose.cache_clear()
    assert f"a cluster of {cluster} blocks" in history.plan.reason


@pytest.mark.gpu
@on_gpu
def test_clusters_give_the_same_bits_and_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_launch, "CLUSTERS", (4,))
    choose.cache_clear()
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 100, 3) for _ in range(2)]
    for model in models:
        fit(model, x, y, sgd(model, momentum=0.9))
    assert_same_weights(*models)
    x[20] = 1e6  # beyond float16
    with pytest.raises(DivergedError, match=r"epoch 1, step 2"):
        fit(mlp(6, 100, 3), x, y, shuffle=False)
    choose.cache_clear()


def test_bytes_count_the_rows_in_half_precision(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    plans = [fit(mlp(6, 3), x, y, engine=name, epochs=0).plan for name in ("one_launch", "layerwise")]
    # layerwise keeps x in half precision, and the labels, in the order of the epoch.
    assert plans[0].bytes - plans[1].bytes == NUM_ROWS * (2 * 16 - 2 * 6 - 8)


# -- the choice --------------------------------------------------------------------------------------------


def settings(**changes: Any) -> TrainedNetwork:
    known = {"features": 64, "hidden": 64, "outputs": 10, "batch": 64}
    return TrainedNetwork(
        **{
            "dtype": "float16",
            "activation": Activation("relu"),
            "cross_entropy": True,
            "momentum": False,
            "nesterov": False,
            **known,
            **changes,
        }
    )


def test_warps_are_shared_out_evenly() -> None:
    launch = choose(settings(), "sm_90a", 227 << 10)
    assert (launch.warps_k, launch.warps_u, launch.stages) == (2, 4, 2)
    assert str(launch) == (
        f"one block, 2x4 warps over features and units, 2 batches in {launch.shared_bytes} bytes of shared memory"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"features": 784, "hidden": 1024},
            "at most 147456 bytes of weights for the registers .*, got 307200",
        ),
        ({"batch": 1024}, "at most 232448 bytes of shared memory .*, got"),
        ({"dtype": "bfloat16"}, "tensor cores multiply bfloat16, got sm_75"),
    ],
)
def test_what_does_not_fit_names_its_bytes(changes: dict[str, Any], words: str) -> None:
    arch = "sm_75" if "dtype" in changes else "sm_90a"
    with pytest.raises(ConfigError, match=words):
        choose(settings(**changes), arch, 227 << 10)
