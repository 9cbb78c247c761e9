"""Residual: the sum of two chains, as a module and as layers of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import nn
from warpfit.backends import Activation, NumpyBackend
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.junction import JunctionSpec
from warpfit.nn.spec import Call
from warpfit.nn.taped import TapedNetwork


def block(channels: int = 2, **settings: Any) -> nn.Residual:
    return nn.Residual(
        nn.Conv2d(2, channels, 3, padding=1, seed=1), nn.BatchNorm2d(channels), **settings
    )


def images(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_it_adds_what_it_is_given() -> None:
    x, layers = images(3, 4, 4, 2), block().layers
    found = nn.Residual(*layers)(x)
    np.testing.assert_array_equal(found, layers(x) + x)


def test_it_adds_what_a_shortcut_gives() -> None:
    x, one, other = images(3, 4), nn.Linear(4, 5, seed=1), nn.Linear(4, 5, seed=2)
    for shortcut in (other, nn.Sequential(other)):
        np.testing.assert_array_equal(nn.Residual(one, shortcut=shortcut)(x), one(x) + other(x))


def test_the_layers_of_a_network_have_junctions_around_them() -> None:
    network = nn.Sequential(block(3, shortcut=nn.Conv2d(2, 3, 1, seed=2))).spec((4, 4, 2))
    assert network is not None
    assert [name for name, _ in network.layers] == [
        "0.keep",
        "0.layers.0",
        "0.layers.1",
        "0.swap",
        "0.shortcut.0",
        "0.add",
    ]
    assert network.output_shape == (4, 4, 3)


def normed_blocks(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    down = nn.Sequential(nn.Conv2d(2, 3, 1, seed=2), nn.BatchNorm2d(3))
    layers = (*block(3).layers, activation(), nn.Conv2d(3, 3, 3, padding=1, seed=3))
    inner = nn.Residual(nn.Conv2d(3, 3, 1, seed=4), nn.BatchNorm2d(3))
    return nn.Sequential(
        nn.Residual(*layers, nn.BatchNorm2d(3), shortcut=down),
        activation(),
        inner,
        activation(),
        nn.Residual(nn.Conv2d(3, 3, 1, seed=5)),
        activation(),
    ).to(dtype="float64")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
def test_what_is_joined_in_a_block_computes_what_single_layers_do(activation: Any) -> None:
    model, x = normed_blocks(activation), images(3, 4, 4, 2).astype("float64")
    network = model.spec((4, 4, 2))
    assert network is not None
    fused = network.fused
    arrays = [{name: a.copy() for name, a in model.state_dict().items()} for _ in range(2)]
    call, dy = Call(training=True), images(3, 4, 4, 3).astype("float64")
    found, pullback = fused.vjp(NumpyBackend(), arrays[0], x, call)
    taped = TapedNetwork(model, (4, 4, 2))
    expected, tape = taped.vjp(NumpyBackend(), arrays[1], x, call)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    gradients = pullback(dy)
    for name, gradient in tape(dy).items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-12)


def test_batch_norms_take_over_activations_and_sums() -> None:
    network = normed_blocks().spec((4, 4, 2))
    assert network is not None
    fused = network.fused
    told = {
        name: (spec.kind, getattr(spec, "activation", None), joints)
        for (name, spec), joints in zip(fused.layers, fused._joints, strict=True)
    }
    assert told["0.layers.1"][1] == Activation("relu")
    assert told["0.shortcut.1"][2] == {"activation": Activation("relu")}
    assert told["0.add"][1:] == (Activation("relu"), {"is_done": True, "takes_dz": True})
    assert told["2.keep"][2] == {"is_done": True}
    assert told["2.layers.0"][2] == {"x_activation": Activation("relu"), "plus": True}
    assert told["4.add"][1:] == (Activation("relu"), {})
    assert "1" not in told


def test_files_keep_blocks(tmp_path: Path) -> None:
    model = nn.Sequential(block(), nn.ReLU(), block(3, shortcut=nn.Conv2d(2, 3, 1, seed=2)))
    wf.save(model, tmp_path / "model.safetensors")
    loaded, x = wf.load(tmp_path / "model.safetensors"), images(2, 4, 4, 2)
    assert type(loaded[0]) is nn.Residual
    np.testing.assert_array_equal(loaded.eval()(x), model.eval()(x))
    assert loaded.state_dict().keys() == model.state_dict().keys()


class Own(nn.Module):
    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return x * 2.0


def test_so_do_files_beside_modules_of_ones_own(tmp_path: Path) -> None:
    model, x = nn.Sequential(Own(), block(3, shortcut=nn.Conv2d(2, 3, 1))), images(2, 4, 4, 2)
    wf.save(model, tmp_path / "model.safetensors")
    loaded = wf.load(tmp_path / "model.safetensors", modules=[Own])
    np.testing.assert_array_equal(loaded.eval()(x), model.eval()(x))


def test_onnx_adds_too(tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference")
    blocks = block(), nn.ReLU(), block(3, shortcut=nn.Conv2d(2, 3, 1, seed=2))
    model, x = nn.Sequential(*blocks).eval(), images(2, 4, 4, 2)
    model.to_onnx(tmp_path / "model.onnx", (4, 4, 2))
    (found,) = reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"X": x})
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-5)


def test_training_goes_through_it() -> None:
    x = images(64, 8)
    y = (x[:, 0] > 0).astype(np.int64)
    model = nn.Sequential(nn.Residual(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    optimizer = wf.optim.SGD(model.parameters(), lr=0.5)
    history = wf.fit(model, x, y, optimizer=optimizer, epochs=40, verbose=False)
    assert history.reports[-1].loss < history.reports[0].loss / 2


def test_chains_that_do_not_fit_are_told() -> None:
    with pytest.raises(ConfigError, match=r"^Residual: expected layers, got none$"):
        nn.Residual()
    with pytest.raises(ConfigError, match="expected layers"):
        nn.Residual(nn.Linear(2, 2), shortcut=3)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Residual(nn.Linear(4, 3)))
    message = r"expected layers and shortcut to give one shape, got \(4,\), \(3,\)"
    with pytest.raises(ShapeError, match=message):
        model.spec((4,))
    with pytest.raises(ShapeError, match=message):
        model(images(2, 4))


@pytest.mark.parametrize("parts", [("add",), ("swap", "add"), ("keep",), ("keep", "swap", "swap")])
def test_connections_that_do_not_begin_or_end_are_refused(parts: tuple[str, ...]) -> None:
    layers = tuple((str(idx), JunctionSpec(part)) for idx, part in enumerate(parts))
    network = nn.NetworkSpec(layers, (4,))
    with pytest.raises(ConfigError, match=r"^expected "):
        _ = network.shapes
    with pytest.raises(ConfigError, match=r"^expected "):
        nn.Sequential.from_spec(network, {})
    with pytest.raises(ConfigError, match="expected a junction of keep, swap, add, got 'leave'"):
        JunctionSpec("leave")
