"""Everything above the backend follows the device: tensors, modules, optimizers, losses, files."""

from __future__ import annotations

import pickle
import runpy
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.devices import no_gpu
from support.training import Taped, adam, assert_same_weights, blobs, mlp, relative_difference, sgd
from warpfit import backends, nn
from warpfit.autograd import Tensor, concatenate, maximum, stack, where
from warpfit.backends.cuda import DeviceArray
from warpfit.backends.cuda.runtime import why_unavailable
from warpfit.backends.transfer import home_of, moved, to_host
from warpfit.data import Dataset
from warpfit.errors import DataError, DeviceError, ShapeError
from warpfit.gradcheck import gradcheck, gradcheck_model
from warpfit.losses import BinaryCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from warpfit.standard_checks import standard_checks
from warpfit.training.inputs import as_rows

# In every run at least every other case of each test.
pytestmark = pytest.mark.in_turns(8)

EXAMPLE = Path(__file__).parents[3] / "examples" / "explicit_style.py"
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)
ROW = np.array([2.0, -3.0, 0.5], np.float32)


def on_device(values: Any) -> DeviceArray:
    return backends.get("cuda").asarray(values)


def close(result: Any, expected: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(
        np.asarray(result), np.asarray(expected), rtol=tolerance, atol=tolerance
    )


# -- tensors
# -------------------------------------------------------------------------------------------------


def test_a_tensor_lives_where_it_is_told_to(cuda: str) -> None:
    tensor = wf.tensor(X, device=cuda)
    assert tensor.device == "cuda:0"
    assert isinstance(tensor.data, DeviceArray)
    assert (tensor.shape, tensor.ndim, tensor.size, str(tensor.dtype)) == ((2, 3), 2, 6, "float32")
    for host in (tensor.numpy(), np.asarray(tensor), tensor.to("cpu").data):
        assert isinstance(host, np.ndarray)
        np.testing.assert_array_equal(host, X)
    assert wf.tensor(np.array([[255, 51]], np.uint8), device=cuda).numpy().tolist() == [
        [1.0, np.float32(0.2)]
    ]


def test_a_tensor_keeps_a_device_array(cuda: str) -> None:
    array = on_device(X)
    assert Tensor(array).data is array
    assert wf.tensor(array).data is array
    assert wf.tensor(Tensor(array)).data is array
    assert wf.tensor(array, device="cpu").device == "cpu"
    assert wf.tensor(array, dtype="float64").device == "cuda:0"


def test_one_element_becomes_a_number(cuda: str) -> None:
    one = wf.tensor([2.5], device=cuda)
    assert (one.item(), float(one), bool(one)) == (2.5, 2.5, True)
    with pytest.raises(ShapeError, match="expected a tensor of one element"):
        wf.tensor(X, device=cuda).item()


def test_the_text_of_a_tensor_names_its_device(cuda: str) -> None:
    tensor = wf.tensor([1.0, 2.0], device=cuda, requires_grad=True)
    assert repr(tensor) == "Tensor([1., 2.], dtype=float32, device='cuda:0', requires_grad=True)"
    assert "device" not in repr(tensor.to("cpu"))


MIXED: dict[str, Callable[[Any], Any]] = {
    "number": lambda x: 2 * x + 1,
    "power": lambda x: (x * x + 1) ** 1.5,
    "divide a number": lambda x: 1 / (x + 5),
    "integers": lambda x: x * np.array([1, 2, 3]),
    "array on the right": lambda x: x - ROW,
    "array on the left": lambda x: ROW / (x + 5),
    "float64 array": lambda x: x + ROW.astype("float64"),
    "list": lambda x: x * [1.0, 2.0, 3.0],
    "product": lambda x: x @ np.ones((3, 2), "float32"),
    "maximum": lambda x: maximum(x, ROW),
    "where": lambda x: where(X > 0, x, 0.0),
    "where on the device": lambda x: where(x > 0, x, ROW),
    "concatenate": lambda x: concatenate([x, X]),
    "stack": lambda x: stack([X, x], axis=1),
    "index": lambda x: x[:, [2, 0, 2]],
    "mask": lambda x: x[x > 0],
    "host mask": lambda x: x[X > 0],
    "largest": lambda x: x.max(axis=1),
    "functions": lambda x: (x.exp() + x.sin() + x.square() + abs(x)).mean(axis=0),
    "shapes": lambda x: x.T.reshape(2, 3).unsqueeze(0).expand(4, 2, 3),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_come_to_the_tensor_and_results_stay_there(cuda: str, name: str) -> None:
    results, gradients = [], []
    for device in ("cpu", cuda):
        x = wf.tensor(X, device=device, requires_grad=True)
        y = MIXED[name](x)
        y.backward(np.arange(1.0, y.size + 1).reshape(y.shape))
        assert y.device == x.device
        assert str(y.dtype) == "float32"
        assert backends.of(x.grad) is backends.of(x.data)
        results.append(y.numpy())
        gradients.append(np.asarray(x.grad))
    close(results[1], results[0])
    close(gradients[1], gradients[0])


def test_a_gradient_flows_from_one_device_to_another(cuda: str) -> None:
    x = wf.tensor(X, requires_grad=True)
    moved = x.to(cuda)
    assert moved.to(cuda) is moved
    ((moved * moved).to("cpu") * ROW + x).sum().backward()
    assert isinstance(x.grad, np.ndarray)
    close(x.grad, 2 * X * ROW + 1)


def test_a_gradient_may_come_from_anywhere(cuda: str) -> None:
    for gradient in (X, on_device(X), wf.tensor(X, device=cuda), wf.tensor(X), X.tolist()):
        x = wf.tensor(X, device=cuda, requires_grad=True)
        (x * 3).backward(gradient)
        close(x.grad, 3 * X)


def test_tensors_on_two_devices_do_not_mix(cuda: str) -> None:
    with pytest.raises(DeviceError, match="some on cpu and cuda:0"):
        wf.tensor(X) + wf.tensor(X, device=cuda)


def test_comparisons_stay_on_the_device(cuda: str) -> None:
    assert isinstance(wf.tensor(X, device=cuda) > 0, DeviceArray)


def test_a_copied_tensor_has_memory_of_its_own(cuda: str) -> None:
    x = wf.tensor(X, device=cuda, requires_grad=True)
    (x * x).sum().backward()
    copied = deepcopy(x)
    assert copied.requires_grad
    assert copied.data.pointer != x.data.pointer
    close(copied, X)
    close(copied.grad, 2 * X)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pickled_array_comes_back_to_its_device(cuda: str, dtype: str) -> None:
    x = backends.get(cuda).asarray(X, dtype)
    turned = x.view(x.shape[::-1], x.strides[::-1])
    for array in (x, turned, x[:0]):
        back = pickle.loads(pickle.dumps(array))
        assert (back.runtime, back.dtype, back.shape) == (array.runtime, array.dtype, array.shape)
        assert back.pointer != array.pointer or not array.size
        np.testing.assert_array_equal(back.numpy(), array.numpy())


# -- arrays of other libraries
# -------------------------------------------------------------------------------


class Exporter:
    """An array of another library: all one knows of it is where it lives, and how to get at it."""

    def __init__(self, array: DeviceArray, device: tuple[int, int]) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **settings: Any) -> Any:
        raise AssertionError("the test takes the array itself")


class Interface:
    """An array that only has ``__cuda_array_interface__``."""

    def __init__(self, array: DeviceArray) -> None:
        self.array, self.__cuda_array_interface__ = array, {"version": 3}


@pytest.fixture
def foreign(cuda: str, monkeypatch: pytest.MonkeyPatch) -> DeviceArray:
    """An array that exporters hand over."""
    monkeypatch.setattr(
        "warpfit.backends.cuda.arrays.from_exporter",
        lambda runtime, value: value.array,
    )
    return on_device(X)


@pytest.mark.parametrize(
    "export", [lambda array: Exporter(array, (2, 0)), Interface], ids=["dlpack", "interface"]
)
def test_arrays_of_other_libraries_stay_where_they_are(
    foreign: DeviceArray, export: Callable[..., Any]
) -> None:
    value = export(foreign)
    assert home_of(value) is backends.get("cuda")
    assert Tensor(value).data is foreign
    assert as_rows("x", value) is foreign
    np.testing.assert_array_equal(to_host(value), X)
    np.testing.assert_array_equal(moved(value, backends.get("cpu")), X)
    close(wf.tensor(X, device="cuda") + value, 2 * X)
    close(network("cuda").eval()(value), network().eval()(X))


def test_arrays_of_other_libraries_on_the_host(foreign: DeviceArray) -> None:
    assert home_of(Exporter(foreign, (1, 0))) is backends.get("cpu")


def test_arrays_of_a_gpu_that_is_not_there(
    foreign: DeviceArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(DeviceError, match="expected a CUDA device for 'cuda:1'"):
        Tensor(Exporter(foreign, (2, 1)))


@pytest.mark.gpu
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_pytorchs_arrays_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    x = torch.as_tensor(X, device="cuda")
    assert Tensor(x).data.pointer == x.data_ptr()
    assert as_rows("x", x).pointer == x.data_ptr()
    close(network("cuda").eval()(x), network().eval()(X))
    close(wf.predict(network("cuda"), x), wf.predict(network(), X))
    close(torch.as_tensor(network("cuda").eval()(X), device="cuda").cpu(), network().eval()(X))


@pytest.mark.gpu
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_pytorch_reads_what_is_still_being_computed() -> None:
    torch = pytest.importorskip("torch")
    x = Tensor(on_device(np.full((4096, 4096), 2.0**-12, np.float32)))
    product = x
    for _ in range(5):
        product = product @ x
    assert (torch.as_tensor(product.data, device="cuda").cpu() == 2.0**-12).all()


# -- modules
# -------------------------------------------------------------------------------------------------


def network(device: str = "cpu") -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 5, device, seed=0),
        nn.BatchNorm1d(5, device=device),
        nn.Tanh(),
        nn.Linear(5, 2, device, seed=1),
    )


def test_a_layer_starts_on_its_device_with_the_values_of_its_seed(cuda: str) -> None:
    layers = [nn.Linear(784, 256, device, seed=3) for device in ("cpu", cuda)]
    assert [layer.device for layer in layers] == ["cpu", "cuda:0"]
    assert_same_weights(*layers)
    assert nn.Sequential(nn.ReLU()).device == "cpu"


def test_a_model_moves_with_parameters_gradients_and_buffers(cuda: str) -> None:
    model = network()
    model(Tensor(X)).sum().backward()
    before = model.state_dict()
    assert model.to(cuda) is model
    assert model.device == "cuda:0"
    holders = model.named_arrays().values()
    assert all(isinstance(holder.data, DeviceArray) for holder in holders)
    assert all(isinstance(parameter.grad, DeviceArray) for parameter in model.parameters())
    assert [str(p.dtype) for p in model.to(dtype="float64").parameters()] == ["float64"] * 6
    model.to("cpu", dtype="float32")
    assert all(isinstance(holder.data, np.ndarray) for holder in holders)
    np.testing.assert_equal(model.state_dict(), before)


def test_state_dicts_are_on_the_host_and_fit_every_device(cuda: str) -> None:
    model, other = network(), network(cuda)
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data + np.float32(1)
    other.load_state_dict(model.state_dict())
    state = other.state_dict()
    assert all(isinstance(array, np.ndarray) for array in state.values())
    assert_same_weights(model, other)
    model.load_state_dict({name: on_device(array * 2) for name, array in state.items()})
    assert model.device == "cpu"
    np.testing.assert_array_equal(model.state_dict()["0.weight"], state["0.weight"] * 2)
    with pytest.raises(ShapeError, match=r"0.weight: expected shape \(3, 5\)"):
        other.load_state_dict({**state, "0.weight": np.zeros((3, 4))})


@pytest.mark.parametrize(
    "give", [lambda x: x, lambda x: x.tolist(), on_device], ids=["host", "list", "device"]
)
def test_a_model_is_called_with_rows_from_anywhere(cuda: str, give: Callable[[Any], Any]) -> None:
    model, there = network().eval(), network(cuda).eval()
    y = there(give(X))
    assert isinstance(y, DeviceArray)
    close(y, model(X))
    close(model(give(X)), model(X))


def test_a_layer_without_arrays_works_where_its_input_lives(cuda: str) -> None:
    assert isinstance(nn.ReLU()(on_device(X)), DeviceArray)
    assert isinstance(nn.ReLU()(X), np.ndarray)


def test_rows_on_another_device_than_the_layer_are_refused_if_they_are_tensors(cuda: str) -> None:
    with pytest.raises(DeviceError, match="some on cpu and cuda:0"):
        nn.Linear(3, 2, cuda)(Tensor(X))


def test_a_copied_model_has_memory_of_its_own(cuda: str) -> None:
    model = network(cuda)
    copied = deepcopy(model)
    before = copied.state_dict()
    for holder in model.named_arrays().values():
        backends.get(cuda).assign(
            holder.data, backends.get(cuda).zeros(holder.data.shape, "float32")
        )
    np.testing.assert_equal(copied.state_dict(), before)


def test_the_summary_of_a_model_on_a_device(cuda: str) -> None:
    assert network(cuda).summary((3,)) == network().summary((3,))


def test_two_uses_of_a_layer_add_their_gradients(cuda: str) -> None:
    gradients = []
    for device in ("cpu", cuda):
        layer = nn.Linear(3, 3, device, seed=0)
        spec = nn.Sequential(layer, nn.Tanh(), layer).spec((3,))
        assert spec is not None
        ops = backends.get(device)
        arrays = {f"0.{name}": array for name, array in layer.arrays().items()}
        y, pullback = spec.vjp(ops, arrays, ops.asarray(X), nn.spec.Call(training=True))
        gradients.append({name: np.asarray(g) for name, g in pullback(y).items()})
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient, 1e-5)


# -- optimizers and losses
# -----------------------------------------------------------------------------------


def train_step(model: nn.Module, optimizer: Any) -> None:
    model.zero_grad()
    (model(model.input_tensor(X)) ** 2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [adam, lambda model: sgd(model, momentum=0.9, nesterov=True)])
def test_an_optimizer_keeps_its_slots_with_the_parameters(
    cuda: str, make: Callable[..., Any]
) -> None:
    here, there = mlp(3, 5, 2), mlp(3, 5, 2).to(cuda)
    optimizers = make(here), make(there)
    for _ in range(3):
        train_step(here, optimizers[0])
        train_step(there, optimizers[1])
    assert all(
        isinstance(array, DeviceArray) for slot in optimizers[1].slots.values() for array in slot
    )
    assert relative_difference(there, here) < 1e-5
    states = [optimizer.state_dict() for optimizer in optimizers]
    for name, arrays in states[0]["slots"].items():
        for one, other in zip(arrays, states[1]["slots"][name], strict=True):
            assert isinstance(other, np.ndarray)
            close(other, one, 1e-4)
    optimizers[0].load_state_dict(states[1])
    optimizers[1].load_state_dict(states[0])


def test_slots_follow_a_model_that_moves(cuda: str) -> None:
    model, stays = mlp(3, 5, 2), mlp(3, 5, 2)
    optimizers = adam(model), adam(stays)
    for device in ("cpu", cuda, "cpu"):
        train_step(model.to(device), optimizers[0])
        train_step(stays, optimizers[1])
        assert {backends.of(array).name for array in optimizers[0].slots["first_moment"]} == {
            model.backend.name
        }
    assert relative_difference(model, stays) < 1e-5


LOSSES: list[tuple[Loss, Any]] = [
    (SoftmaxCrossEntropy(label_smoothing=0.1, class_weight=(1.0, 2.0, 0.5)), np.array([2, 0])),
    (MeanSquaredError(), X[::-1]),
    (BinaryCrossEntropy(), np.array([[0, 1, 0.5], [1, 0, 0]], np.float32)),
]


@pytest.mark.parametrize(("loss", "targets"), LOSSES, ids=lambda value: getattr(value, "name", ""))
def test_losses_on_the_device(cuda: str, loss: Loss, targets: Any) -> None:
    weights = [0.5, 2.0]
    mean, gradient = loss.forward_and_grad(X, targets, sample_weight=weights)
    for given_targets in (targets, on_device(targets)):
        value, there = loss.forward_and_grad(on_device(X), given_targets, sample_weight=weights)
        assert isinstance(there, DeviceArray)
        close(value, mean)
        close(there, gradient)
    outputs = wf.tensor(X, device=cuda, requires_grad=True)
    (loss(outputs, targets, sample_weight=on_device(np.array(weights, "float32"))) * 2).backward()
    close(outputs.grad, 2 * gradient)
    close(loss(X, on_device(targets), sample_weight=weights), mean)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_losses_of_tensors_in_half_precision(cuda: str, dtype: str) -> None:
    values = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)  # exact in both
    outputs = wf.tensor(values, dtype=dtype, device=cuda, requires_grad=True)
    expected, gradient = MeanSquaredError.forward_and_grad(values, values[::-1])
    loss = MeanSquaredError()(outputs, values[::-1])
    loss.backward()
    close(loss.item(), expected, 1e-3)
    assert str(outputs.grad.dtype) == dtype
    close(outputs.grad, gradient, 1e-2)


def test_targets_on_the_device_are_checked(cuda: str) -> None:
    with pytest.raises(DataError, match="expected labels in"):
        SoftmaxCrossEntropy.forward_and_grad(on_device(X), on_device(np.array([0, 3])))


def test_the_explicit_style(cuda: str) -> None:
    models = [mlp(6, 5, 3), mlp(6, 5, 3).to(cuda)]
    x, y = blobs(24)
    losses: list[list[float]] = []
    for model in models:
        optimizer = sgd(model, momentum=0.9)
        losses.append([])
        for batch in (slice(0, 16), slice(16, 24)):
            logits = nn.forward(model, x[batch])
            loss, gradient = SoftmaxCrossEntropy.forward_and_grad(logits, y[batch])
            nn.backward(model, gradient)
            optimizer.step()
            losses[-1].append(loss)
    close(losses[1], losses[0], 1e-5)
    assert relative_difference(models[1], models[0]) < 1e-5


def test_the_example(
    cuda: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    x, y = blobs(48)
    names = ("a", "b", "c")
    data = Dataset("blobs", x[:32], y[:32], x[32:], y[32:], names)
    main = example["main"]
    monkeypatch.setitem(main.__globals__, "load_dataset", lambda name, flat: data)
    monkeypatch.setitem(main.__globals__, "EPOCHS", 2)
    printed = []
    for device in ("cpu", cuda):
        main("blobs", device)
        printed.append(capsys.readouterr().out)
    assert printed[1] == printed[0]
    assert "epoch  2  loss" in printed[1]


# -- evaluating
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_rows_are_evaluated_where_the_model_lives(cuda: str, dtype: str) -> None:
    x, y = blobs(50)
    x = (x * 255).astype(dtype) if dtype == "uint8" else x.astype(dtype)
    model, there = mlp(6, 5, 3), mlp(6, 5, 3).to(cuda)
    expected = wf.evaluate(model, x, y, sample_weight=x[:, 0], batch_size=50)
    probabilities = wf.predict(model, x, kind="probabilities")
    for rows, targets in ((x, y), (on_device(x), on_device(y)), (x, on_device(y))):
        result = wf.evaluate(there, rows, targets, sample_weight=x[:, 0], batch_size=16)
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
        assert (result.accuracy, result.num_rows) == (expected.accuracy, 50)
        predicted = wf.predict(there, rows, kind="probabilities", batch_size=16)
        assert isinstance(predicted, np.ndarray)
        close(predicted, probabilities, 1e-5)
    np.testing.assert_array_equal(
        wf.predict(there, x, kind="labels"), wf.predict(model, x, kind="labels")
    )
    close(wf.predict(model, on_device(x)), wf.predict(model, x))


def test_rows_on_the_device_are_checked_too(cuda: str) -> None:
    x = blobs(8)[0]
    x[5, 2] = np.nan
    with pytest.raises(DataError, match="expected x to be finite, got NaN or infinity in row 5"):
        wf.predict(mlp(6, 3).to(cuda), on_device(x))
    with pytest.raises(ShapeError, match="expected as many rows in y as in x"):
        wf.evaluate(mlp(6, 3).to(cuda), on_device(blobs(8)[0]), on_device(np.zeros(7, "int64")))


def test_a_users_own_module_on_the_device(cuda: str) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(6, 6, seed=0)
            self.shift = np.arange(6, dtype=np.float32)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x) * self.shift

    x, y = blobs(20)
    expected = wf.evaluate(Residual(), x, y)
    assert wf.evaluate(Residual().to(cuda), x, y).loss == pytest.approx(expected.loss, rel=1e-5)


# -- training, and what is left of it
# ------------------------------------------------------------------------


def fitted(device: str, **settings: Any) -> tuple[nn.Sequential, Any]:
    model = mlp(6, 5, 3)
    optimizer = sgd(model, 0.5, momentum=0.9)
    x, y = blobs(40)
    wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        batch_size=16,
        device=device,
        engine="layerwise",
        verbose=False,
        **{"epochs": 2, **settings},
    )
    return model, optimizer


def test_after_fit_the_model_lives_on_the_device(cuda: str) -> None:
    model, optimizer = fitted(cuda)
    assert model.device == "cuda:0"
    assert all(isinstance(array, DeviceArray) for array in optimizer.slots["velocity"])
    reference, _ = fitted("cpu")
    assert relative_difference(model, reference) < 1e-5
    bits = model.state_dict()
    np.testing.assert_equal(model.to("cpu").state_dict(), bits)
    wf.fit(model, *blobs(40), optimizer=optimizer, epochs=1, device="cpu", verbose=False)
    assert model.device == "cpu"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_may_be_on_the_device_already(cuda: str, device: str) -> None:
    x, y = blobs(40)
    models = [mlp(6, 5, 3), mlp(6, 5, 3)]
    weights = np.linspace(0, 1, 40, dtype=np.float32)
    for model, give in zip(models, (lambda value: value, on_device), strict=True):
        wf.fit(
            model,
            give(x),
            give(y),
            optimizer=sgd(model),
            sample_weight=give(weights),
            class_weight="balanced",
            validation_data=(give(x), give(y)),
            epochs=2,
            device=device,
            verbose=False,
        )
    assert_same_weights(*models)


def test_a_users_own_module_is_trained_on_the_device(cuda: str) -> None:
    models = [Taped(mlp(6, 5, 3)), Taped(mlp(6, 5, 3))]
    for model, device in zip(models, ("cpu", cuda), strict=True):
        optimizer = adam(model)
        wf.fit(model, *blobs(40), optimizer=optimizer, epochs=2, device=device, verbose=False)
    assert models[1].device == "cuda:0"
    assert relative_difference(models[1], models[0]) < 1e-4


def test_a_model_saved_on_a_gpu_loads_without_one(
    cuda: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = fitted(cuda)
    x = blobs(8)[0]
    outputs = wf.predict(model, x)
    bits = model.state_dict()
    wf.save(model, tmp_path / "model.safetensors")
    no_gpu(monkeypatch)
    loaded = wf.load(tmp_path / "model.safetensors")
    assert loaded.device == "cpu"
    np.testing.assert_equal(loaded.state_dict(), bits)
    close(wf.predict(loaded, x), outputs, 1e-5)


def test_a_resumed_run_gives_the_same_bits(cuda: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    validation = blobs(16, seed=1)
    whole, _ = fitted(
        cuda, epochs=4, callbacks=[wf.EarlyStopping(patience=3)], validation_data=validation
    )
    settings = {
        "callbacks": [wf.EarlyStopping(patience=3), wf.Checkpoint(path)],
        "validation_data": validation,
    }
    fitted(cuda, epochs=2, **settings)
    resumed, _ = fitted(cuda, epochs=4, resume_from=path, **settings)
    assert_same_weights(resumed, whole)


# -- the gradient check
# --------------------------------------------------------------------------------------


def test_gradcheck_runs_on_the_device(cuda: str) -> None:
    devices = []

    def function(a: Tensor, b: Tensor) -> Tensor:
        devices.append((a.device, b.device))
        return (a * b).exp().sum(axis=0)

    assert gradcheck(function, [X.astype("float64"), ROW.astype("float64")], device=cuda).passed
    assert set(devices) == {("cuda:0", "cuda:0")}
    assert gradcheck(lambda x: x * x, [wf.tensor(X, device=cuda)]).passed


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradcheck_of_a_model_on_the_device(cuda: str, dtype: str) -> None:
    model = mlp(3, 3, 2, dtype=dtype, activation=nn.Tanh).to(cuda)
    assert gradcheck_model(model, X, np.array([1, 0]), "cross_entropy").passed
    assert model.device == "cuda:0"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in standard_checks()])
def test_every_derivative_on_the_device(cuda: str, name: str) -> None:
    assert dict(standard_checks(cuda))[name]().passed
