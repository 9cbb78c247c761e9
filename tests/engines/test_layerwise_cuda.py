"""The layerwise engine on a CUDA device: the numbers of the CPU, the same bits twice, and nothing
left behind.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, assert_same_weights, blobs, mlp, relative_difference, sgd
from warpfit import backends, nn, optim
from warpfit.backends.cuda import CudaBackend, DeviceArray, runtime
from warpfit.errors import ConfigError, DeviceError, DivergedError
from warpfit.training.run import Run

NUM_ROWS, BATCH = 70, 16  # four batches of 16 and one of 6


def fit(model: nn.Module, x: Any, y: Any, optimizer: Any = None, **settings: Any) -> wf.History:
    asked = {"engine": "layerwise", "epochs": 2, "batch_size": BATCH, "seed": 5, "verbose": False}
    settings = {**asked, **settings}
    return wf.fit(model, x, y, optimizer=optimizer or sgd(model), **settings)


def cnn(dtype: str = "float32") -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, dtype=dtype, seed=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(36, 3, dtype=dtype, seed=2),
    )


OPTIMIZERS = {
    "sgd": sgd,
    "nesterov": lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": adam,
    "adamw": lambda model: optim.AdamW(model.parameters(), 0.01, clip_norm=0.5),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), 0.01, momentum=0.5),
    "l2": lambda model: sgd(model, l2=0.1),
}


# -- the numbers of the CPU
# --------------------------------------------------------------------------------


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_follows_the_cpu(cuda: str, name: str, dtype: str) -> None:
    x, y = blobs(NUM_ROWS, dtype=dtype)
    on_cpu, on_device = mlp(6, 8, 3, dtype=dtype), mlp(6, 8, 3, dtype=dtype)
    expected = fit(on_cpu, x, y, OPTIMIZERS[name](on_cpu), device="cpu", epochs=4)
    history = fit(on_device, x, y, OPTIMIZERS[name](on_device), device=cuda, epochs=4)
    limit = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(
        history.step_losses, expected.step_losses, rtol=10 * limit, atol=limit
    )
    assert relative_difference(on_device, on_cpu) < limit
    assert [r.accuracy for r in history.reports] == [r.accuracy for r in expected.reports]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("loss", ["mse", "absolute_error", "huber", "binary_cross_entropy"])
def test_every_loss_follows_the_cpu(cuda: str, loss: str) -> None:
    x, labels = blobs(NUM_ROWS)
    y = np.eye(3, dtype="f4")[labels]
    on_cpu, on_device = mlp(6, 8, 3, activation=nn.Tanh), mlp(6, 8, 3, activation=nn.Tanh)
    weights = np.linspace(0.5, 2, NUM_ROWS)
    expected = fit(on_cpu, x, y, loss=loss, device="cpu", sample_weight=weights)
    history = fit(on_device, x, y, loss=loss, device=cuda, sample_weight=weights)
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=1e-4, atol=1e-6)
    assert relative_difference(on_device, on_cpu) < 1e-4


def test_a_cnn_with_dropout_follows_the_cpu(cuda: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, 8, 8, 1)).astype(np.uint8), rng.integers(0, 3, 20)
    on_cpu, on_device = cnn(), cnn()
    expected = fit(on_cpu, x, y, device="cpu", batch_size=8)
    history = fit(on_device, x, y, device=cuda, batch_size=8)
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=1e-4)
    assert relative_difference(on_device, on_cpu) < 1e-4


def normed() -> nn.Sequential:
    layers = (nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8))
    return nn.Sequential(nn.Linear(6, 8, seed=1), *layers, nn.Linear(8, 3, seed=2))


def test_norms_follow_the_cpu(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [normed(), normed()]
    expected = fit(models[0], x, y, device="cpu")
    history = fit(models[1], x, y, device=cuda)
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=1e-4)
    assert relative_difference(models[1], models[0]) < 1e-4


def test_a_module_of_ones_own_runs_through_the_tape(cuda: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.inner = mlp(6, 8, 3)

        def forward(self, x: Any) -> Any:
            return self.inner(x * 2.0 - 0.5) + x[:, :3].exp()

    x, y = blobs(NUM_ROWS)
    on_cpu, on_device = Scaled(), Scaled()
    expected = fit(on_cpu, x, y, device="cpu")
    history = fit(on_device, x, y, device=cuda)
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=1e-4)
    assert relative_difference(on_device, on_cpu) < 1e-5


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("model", [lambda: mlp(6, 16, 3), cnn, normed])
def test_lower_precision_stays_near(cuda: str, precision: str, model: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = (
        (rng.random((40, 8, 8, 1), dtype="f4"), rng.integers(0, 3, 40))
        if model is cnn
        else blobs(40)
    )
    on_cpu, on_device = model(), model()
    expected = fit(on_cpu, x, y, device="cpu")
    history = fit(on_device, x, y, device=cuda, precision=precision)
    assert history.plan.precision == precision
    assert all(p.dtype == np.float32 for p in on_device.parameters())
    np.testing.assert_allclose(history.step_losses, expected.step_losses, rtol=3e-2)
    assert relative_difference(on_device, on_cpu) < 2e-2


def test_gradients_that_float16_cannot_hold_are_scaled(cuda: str) -> None:
    # Entries of dz are about 1e-9 here: without the scale they would all be zero in float16.
    x, y = blobs(64)
    on_cpu, on_device = mlp(6, 8, 3), mlp(6, 8, 3)
    tiny = np.full(64, 1.0)
    tiny[0] = 1e7
    fit(on_cpu, x, y, device="cpu", sample_weight=tiny, batch_size=64)
    fit(on_device, x, y, device=cuda, sample_weight=tiny, batch_size=64, precision="float16")
    assert relative_difference(on_device, on_cpu) < 2e-2


class Scales(wf.Callback):
    """Keeps the loss scale of each epoch's end."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_epoch_end(self, run: Any) -> None:
        self.values.append(run.state.loss_scale.value)


def test_a_dynamic_scale_leaves_out_the_steps_that_overflow(cuda: str) -> None:
    # Gradients of the outputs are near 2 · 100 / 48: with a scale of 2**16 float16 cannot hold
    # them.
    x, y = blobs(64)
    targets = np.eye(3)[y] + 100
    on_cpu, on_device = mlp(6, 8, 3), mlp(6, 8, 3)
    optimizer, scales = adam(on_device), Scales()
    settings: dict[str, Any] = {"loss": "mse", "shuffle": False, "epochs": 1}
    history = fit(
        on_device,
        x,
        targets,
        optimizer,
        **settings,
        device=cuda,
        precision="float16",
        loss_scale="dynamic",
        callbacks=[scales],
    )
    skipped = int(np.log2(2.0**16 / scales.values[0]))
    assert 0 < skipped < 4
    assert optimizer.step_count == 4 - skipped
    rows = slice(skipped * BATCH, None)
    expected = fit(on_cpu, x[rows], targets[rows], adam(on_cpu), **settings, device="cpu")
    np.testing.assert_allclose(history.step_losses[skipped:], expected.step_losses, rtol=1e-2)
    assert relative_difference(on_device, on_cpu) < 2e-2


def test_a_fixed_scale_that_overflows_says_what_helps(cuda: str) -> None:
    x, y = blobs(64)
    model = mlp(6, 8, 3)
    with pytest.raises(DivergedError, match="loss_scale='dynamic' may help"):
        fit(
            model,
            x,
            np.eye(3)[y] + 100,
            loss="mse",
            device=cuda,
            precision="float16",
            loss_scale=2.0**20,
        )


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_a_dynamic_scale_does_not_hide_a_loss_that_is_not_finite(cuda: str) -> None:
    x, y = blobs(64)
    x[3] = 1e5  # beyond float16
    model = mlp(6, 8, 3)
    with pytest.raises(
        DivergedError, match=r"epoch 1, step 1.* a lower learning rate or clip_norm may help"
    ):
        fit(
            model,
            x,
            y,
            device=cuda,
            precision="float16",
            loss_scale="dynamic",
            batch_size=64,
        )


def test_a_resumed_run_goes_on_with_the_dynamic_scale(cuda: str, tmp_path: Any) -> None:
    x, y = blobs(NUM_ROWS)
    targets = np.eye(3)[y] + 100
    settings: dict[str, Any] = {
        "loss": "mse",
        "device": cuda,
        "precision": "float16",
        "loss_scale": "dynamic",
    }
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    scales: list[list[Any]] = [[], []]

    class Scales(wf.Callback):
        def __init__(self, found: list[Any]) -> None:
            self.found = found

        def on_epoch_end(self, run: Run) -> None:
            self.found.append(run.state.loss_scale)

    fit(whole, x, targets, adam(whole), epochs=7, callbacks=[Scales(scales[0])], **settings)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, targets, adam(first), epochs=5, callbacks=[checkpoint], **settings)
    again: dict[str, Any] = {"resume_from": tmp_path / "run.ckpt", "callbacks": [Scales(scales[1])]}
    fit(second, x, targets, adam(second), epochs=7, **again, **settings)
    assert_same_weights(second, whole)
    assert scales[1] == scales[0][5:]
    assert scales[0][4].good_steps > 0


def test_half_precision_needs_known_layers(cuda: str) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            self.inner = mlp(6, 3)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    x, y = blobs(NUM_ROWS)
    with pytest.raises(ConfigError, match="no Sequential of known layers"):
        fit(Own(), x, y, device=cuda, precision="float16")


# -- where things live
# -------------------------------------------------------------------------------------


def test_the_model_lives_on_the_device_afterwards_and_comes_back(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 8, 3)
    fit(model, x, y, device=cuda)
    assert all(isinstance(p.data, DeviceArray) for p in model.parameters())
    outputs = wf.predict(model, x)
    model.to("cpu")
    assert all(isinstance(p.data, np.ndarray) for p in model.parameters())
    np.testing.assert_allclose(wf.predict(model, x), outputs, rtol=1e-5, atol=1e-6)


def test_buffers_grow_for_a_larger_batch_and_serve_smaller_ones(cuda: str) -> None:
    x, y = blobs(300)
    model, twin = mlp(6, 8, 3), mlp(6, 8, 3)
    for batch_size in (64, 256, 16):
        fit(model, x, y, sgd(model), device=cuda, batch_size=batch_size, validation_data=(x, y))
        fit(twin, x, y, sgd(twin), device="cpu", batch_size=batch_size)
    assert relative_difference(model, twin) < 1e-4


def test_data_on_the_device_is_taken_as_it_is(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    ops = backends.get(cuda)
    model, twin = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(model, ops.asarray(x), ops.asarray(y), device=cuda)
    fit(twin, x, y, device=cuda)
    assert_same_weights(model, twin)


# -- the same bits, whole runs, failures
# -------------------------------------------------------------------


def test_two_runs_are_bit_identical(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    losses = [fit(model, x, y, adam(model), device=cuda).step_losses for model in models]
    np.testing.assert_array_equal(*losses)
    assert_same_weights(*models)


def test_a_resumed_run_gives_the_bits_of_one_that_never_stopped(cuda: str, tmp_path: Any) -> None:
    x, y = blobs(NUM_ROWS)
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    fit(whole, x, y, adam(whole), device=cuda, epochs=4)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, y, adam(first), device=cuda, epochs=2, callbacks=[checkpoint])
    fit(second, x, y, adam(second), device=cuda, epochs=4, resume_from=tmp_path / "run.ckpt")
    assert_same_weights(second, whole)


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_divergence_is_found_after_the_epoch(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 8, 3)
    with pytest.raises(DivergedError, match="epoch 1"):
        fit(model, x * 1e6, np.eye(3)[y], sgd(model, lr=1e6), loss="mse", device=cuda)


# -- on a real device only
# ---------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Any:
    reason = runtime.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return runtime.open_device(0)


@pytest.mark.gpu
def test_a_hundred_mnist_sized_steps_within_1e_4(gpu: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((6400, 784), dtype="f4"), rng.integers(0, 10, 6400)
    on_cpu, on_device = mlp(784, 256, 10), mlp(784, 256, 10)
    # Not every order will do: where rounding takes a unit across 0, ReLU takes the two runs apart.
    fit(on_cpu, x, y, device="cpu", epochs=1, batch_size=64, seed=0)
    fit(on_device, x, y, device="cuda", epochs=1, batch_size=64, seed=0)
    assert relative_difference(on_device, on_cpu) < 1e-4


@pytest.mark.gpu
def test_ten_thousand_steps_take_no_more_memory(gpu: Any) -> None:
    x, y = blobs(2000)
    model = mlp(6, 8, 3)
    optimizer = sgd(model)
    used = []

    class Memory(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            gc.collect()
            gpu.synchronize()
            used.append(gpu.memory_in_use())

    fit(model, x, y, optimizer, device="cuda", epochs=5, batch_size=1, callbacks=[Memory()])
    assert used[-1] <= used[0]


@pytest.mark.gpu
def test_out_of_memory_names_the_sizes_and_leaves_the_device_usable(gpu: Any) -> None:
    ops = backends.get("cuda")
    with pytest.raises(DeviceError, match=r"out of memory on cuda:0: asked for .* of .* free"):
        ops.zeros((1 << 45,), "float32")
    assert ops.zeros((3,), "float32").numpy().tolist() == [0, 0, 0]


@pytest.mark.gpu
def test_two_streams_at_once_give_the_numbers_of_one(gpu: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((300, 400), dtype="f4"), rng.random((400, 200), dtype="f4")
    expected = CudaBackend(gpu).matmul(*map(CudaBackend(gpu).asarray, (a, b))).numpy()
    results: list[Any] = []

    def work() -> None:
        ops = CudaBackend(runtime.Runtime(0), reuse=True)
        x, y = ops.asarray(a), ops.asarray(b)
        for _ in range(200):
            ops.begin_step()
            result = ops.matmul(x, y)
        results.append(result.numpy())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for result in results:
        np.testing.assert_array_equal(result, expected)
