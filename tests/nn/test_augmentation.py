"""Augmentation: an image is flipped, shifted or cropped by numbers that follow from its place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, adam, assert_same_weights
from warpfit import nn
from warpfit.backends import get
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.augmentation import (
    RandomCropSpec,
    RandomCutoutSpec,
    RandomFlipSpec,
    RandomShiftSpec,
)
from warpfit.nn.layer import calling
from warpfit.nn.spec import Call, LayerSpec
from warpfit.random import DROPOUT, philox_words, stream_key

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0.1, 1, (40, 6, 5, 2)).astype("float32")
CALL = Call(training=True, step=3, seed=4)
LAYERS = {
    "flip": lambda: nn.RandomFlip(0.3),
    "alternate": lambda: nn.RandomFlip(alternate=3),
    "shift": lambda: nn.RandomShift((3, 2)),
    "reflect": lambda: nn.RandomShift((3, 2), padding_mode="reflect"),
    "cutout": lambda: nn.RandomCutout((3, 2)),
    "crop": lambda: nn.RandomCrop((3, 4)),
}
MIDDLE = IMAGES[:, 1:4, :4]  # what `crop` shows in evaluation


def drawn(row: int, unit: int, layer_idx: int = 0) -> int:
    """Return the word of dropout's stream that decides a unit of a row in `CALL`."""
    words = philox_words((CALL.step, layer_idx, row, unit // 4), stream_key(CALL.seed, DROPOUT))
    return words[unit % 4]


def in_call(layer: Any, x: Any = IMAGES, call: Call = CALL) -> Any:
    with calling(call):
        return layer(x)


def start_of(row: int, axis: int, num_windows: int) -> int:
    """Return the first pixel of the window of an image."""
    bits = [drawn(row, 16 * axis + i) >> 31 for i in range(16)]
    number = sum(bit << (15 - i) for i, bit in enumerate(bits))
    return number * num_windows >> 16


def test_flips_follow_from_the_words_of_the_rows() -> None:
    expected = [
        x[:, ::-1] if drawn(row, 0) < round(0.3 * 2**32) else x for row, x in enumerate(IMAGES)
    ]
    np.testing.assert_array_equal(in_call(nn.RandomFlip(0.3)), expected)


@pytest.mark.parametrize("span", [1, 2, 25])
def test_all_are_mirrored_in_every_second_span(span: int) -> None:
    layer = nn.RandomFlip(alternate=span)
    for step in (0, span - 1, span, 2 * span - 1, 2 * span, 3 * span, 10_001 * span - 1):
        expected = IMAGES[:, :, ::-1] if step // span % 2 else IMAGES
        np.testing.assert_array_equal(in_call(layer, call=Call(True, step, 4)), expected)
        on_device = Call(True, np.float64(step).reshape(()), 4)
        y, _ = layer.spec.vjp(get("cpu"), {}, IMAGES, on_device)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("pixels", [(3, 2), (1, 1), (5, 4), (0, 2)])
def test_shifts_show_windows_of_padded_images(pixels: tuple[int, int], mode: str) -> None:
    pads = [(size, size) for size in pixels]
    expected = []
    for row, x in enumerate(IMAGES):
        top, left = (start_of(row, axis, 2 * size + 1) for axis, size in enumerate(pixels))
        padded = np.pad(x, [*pads, (0, 0)], "reflect" if mode == "reflect" else "constant")
        expected.append(padded[top : top + 6, left : left + 5])
    layer = nn.RandomShift(pixels, padding_mode=mode)
    np.testing.assert_array_equal(in_call(layer), expected)


@pytest.mark.parametrize("size", [(3, 4), (1, 1), (6, 5), (6, 2), (0, 2)])
def test_cutouts_cover_windows_of_images(size: tuple[int, int]) -> None:
    expected = IMAGES.copy()
    for row, x in enumerate(expected):
        less = 6 - size[0], 5 - size[1]
        top, left = (most - start_of(row, axis, most + 1) for axis, most in enumerate(less))
        x[top : top + size[0], left : left + size[1]] = 0
    np.testing.assert_array_equal(in_call(nn.RandomCutout(size)), expected)


@pytest.mark.parametrize("size", [(3, 4), (1, 1), (6, 5), (6, 2)])
def test_crops_show_windows_of_images(size: tuple[int, int]) -> None:
    expected = []
    for row, x in enumerate(IMAGES):
        top, left = start_of(row, 0, 7 - size[0]), start_of(row, 1, 6 - size[1])
        expected.append(x[top : top + size[0], left : left + size[1]])
    np.testing.assert_array_equal(in_call(nn.RandomCrop(size)), expected)


def test_all_shifts_are_equally_likely() -> None:
    dots = np.zeros((20_000, 7, 9, 1), "float32")
    dots[:, 3, 4] = 1
    counts = Counter(map(tuple, np.argwhere(nn.RandomShift((2, 3), seed=0)(dots))[:, 1:3].tolist()))
    assert set(counts) == {(i, j) for i in range(1, 6) for j in range(1, 8)}
    assert sum((n - 20_000 / 35) ** 2 / (20_000 / 35) for n in counts.values()) < 65  # of χ² 99.9 %


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradient_goes_back_where_the_pixels_came_from(name: str) -> None:
    other = RNG.integers(-9, 9, IMAGES.shape).astype("float32")
    x = wf.tensor(IMAGES, requires_grad=True)
    y = in_call(LAYERS[name](), x)
    dy = RNG.integers(-9, 9, y.shape).astype("float32")
    y.backward(dy)
    forth, back = dy * in_call(LAYERS[name](), other), x.grad * other
    np.testing.assert_array_equal(forth.sum(axis=(1, 2, 3)), back.sum(axis=(1, 2, 3)))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "alternate"])
def test_the_call_decides(name: str) -> None:
    layer = LAYERS[name]()
    first = in_call(layer)
    np.testing.assert_array_equal(in_call(LAYERS[name]()), first)
    for call in (Call(True, 4, 4), Call(True, 3, 5)):
        assert (in_call(layer, call=call) != first).any()
    np.testing.assert_array_equal(in_call(layer, IMAGES[:7]), first[:7])


@pytest.mark.parametrize("name", LAYERS)
def test_evaluation_leaves_images_as_they_are_or_shows_their_middle(name: str) -> None:
    shown = MIDDLE if name == "crop" else IMAGES
    layer = LAYERS[name]()
    np.testing.assert_array_equal(in_call(layer, call=Call()), shown)
    x = wf.tensor(IMAGES, requires_grad=True)
    layer.eval()(x).backward(2 * shown)
    back = 2 * IMAGES if name != "crop" else np.pad(2 * MIDDLE, [(0, 0), (1, 2), (0, 1), (0, 0)])
    np.testing.assert_array_equal(x.grad, back)
    for idle in (nn.RandomFlip(0), nn.RandomShift(0), nn.RandomCutout(0)):
        np.testing.assert_array_equal(idle(IMAGES), IMAGES)


def test_layers_of_a_network_differ_from_each_other_and_from_dropout() -> None:
    model = nn.Sequential(nn.RandomShift(2), nn.RandomShift(2), nn.Dropout(), nn.RandomFlip())
    assert [layer.spec.layer_idx for layer in model] == [0, 1, 2, 3]
    assert (in_call(model[0]) != in_call(model[1])).any()


def test_calls_outside_of_a_run_differ() -> None:
    layer, again = nn.RandomShift(2, seed=1), nn.RandomShift(2, seed=1)
    first, second = layer(IMAGES), layer(IMAGES)
    assert (first != second).any()
    np.testing.assert_array_equal(again(IMAGES), first)
    np.testing.assert_array_equal(again(IMAGES), second)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_devices_agree_to_the_bit(cuda: str, name: str, dtype: str) -> None:
    images, spec = IMAGES.astype(dtype), LAYERS[name]().spec
    results = []
    for ops in (get("cpu"), get(cuda)):
        y, backward = spec.vjp(ops, {}, ops.asarray(images, dtype), CALL)
        dx, _ = backward(ops.asarray(ops.to_numpy(y)[::-1], dtype))
        assert dx.dtype == y.dtype == dtype
        results.append((ops.to_numpy(y), ops.to_numpy(dx)))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


# -- runs
# --------------------------------------------------------------------------------------------------


class Middle(nn.Module):
    """What `network` sees of images in evaluation."""

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return x[:, :5, :4]


def network() -> nn.Sequential:
    learning = (nn.Conv2d(2, 3, 3, seed=1), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2, seed=2))
    return nn.Sequential(nn.RandomFlip(), nn.RandomShift(1), nn.RandomCrop((5, 4)), *learning)


def fit(model: nn.Module, **settings: Any) -> wf.History:
    optimizer = adam(model)
    asked = {"epochs": 3, "batch_size": 16, "seed": 5, "device": "cpu", "verbose": False}
    labels = np.arange(40) % 2
    return wf.fit(model, IMAGES, labels, optimizer=optimizer, **{**asked, **settings})


def test_equal_seeds_give_equal_runs_and_augmentation_matters() -> None:
    models = [network(), network(), network(), nn.Sequential(Middle(), *list(network())[3:])]
    losses = [
        fit(model, seed=seed)["loss"] for model, seed in zip(models, (5, 5, 6, 5), strict=True)
    ]
    assert losses[0] == losses[1]
    assert losses[2] != losses[0] != losses[3]
    assert_same_weights(models[0], models[1])


def test_a_resumed_run_goes_on_with_what_it_would_have_drawn(tmp_path: Path) -> None:
    path, whole, parted, resumed = tmp_path / "run", network(), network(), network()
    fit(whole, epochs=4)
    fit(parted, epochs=2, callbacks=[wf.Checkpoint(path)])
    fit(resumed, epochs=4, resume_from=path)
    assert_same_weights(resumed, whole)


def test_a_module_of_ones_own_draws_as_a_chain_does() -> None:
    chain, taped = network(), Taped(network())
    assert fit(chain)["loss"] == fit(taped)["loss"]


def test_whole_runs_on_a_device(cuda: str) -> None:
    on_host, on_device = network(), network()
    expected = fit(on_host)["loss"]
    history = fit(on_device, device=cuda, engine="layerwise", precision="float32")
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)


def test_one_launch_says_what_it_takes(cuda: str) -> None:
    with pytest.raises(ConfigError, match=r"max pooling.*got layer 0, random_flip"):
        fit(network(), device=cuda, engine="one_launch")
    history = fit(network(), device=cuda, epochs=1)
    assert history.plan.engine == "graph"
    assert "random_flip" in history.plan.reason


# -- descriptions
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        RandomFlipSpec(0.25, 3),
        RandomFlipSpec(layer_idx=3, alternate=1),
        RandomShiftSpec((1, 2), 3),
        RandomShiftSpec((1, 2), 3, "reflect"),
        RandomCropSpec((5, 3), 3),
        RandomCutoutSpec((5, 3), 3),
    ],
)
def test_specs(spec: LayerSpec) -> None:
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    layer = nn.Layer.from_spec(spec)
    assert type(layer).spec_type is type(spec)
    assert (layer(IMAGES) != layer(IMAGES)).any()
    assert (spec.parameters(), spec.buffers()) == ({}, {})


def test_repr_and_empty_batches() -> None:
    assert repr(nn.RandomFlip(0.2)) == "RandomFlip(p=0.2)"
    assert repr(nn.RandomFlip(alternate=25)) == "RandomFlip(alternate=25)"
    assert repr(nn.RandomShift(2)) == "RandomShift(pixels=(2, 2))"
    reflecting = nn.RandomShift(2, padding_mode="reflect")
    assert repr(reflecting) == "RandomShift(pixels=(2, 2), padding_mode='reflect')"
    assert repr(nn.RandomCutout(2)) == "RandomCutout(size=(2, 2))"
    assert repr(nn.RandomCrop(2)) == "RandomCrop(size=(2, 2))"
    for name, make in LAYERS.items():
        assert make()(IMAGES[:0]).shape == (0, *((3, 4) if name == "crop" else (6, 5)), 2)


@pytest.mark.parametrize("p", [-0.1, 1, float("nan"), "half"])
def test_refuses_probabilities(p: Any) -> None:
    with pytest.raises(ConfigError, match="RandomFlip: expected p"):
        nn.RandomFlip(p)


@pytest.mark.parametrize("pixels", [-1, 1.5, (1, 2, 3), "1"])
def test_refuses_pixels(pixels: Any) -> None:
    with pytest.raises(ConfigError, match="RandomShift: expected pixels"):
        nn.RandomShift(pixels)


@pytest.mark.parametrize("size", [0, 1.5, (1, 2, 3), "1"])
def test_refuses_sizes(size: Any) -> None:
    with pytest.raises(ConfigError, match="RandomCrop: expected size"):
        nn.RandomCrop(size)


def test_refuses_other_settings() -> None:
    with pytest.raises(ConfigError, match="RandomFlip: expected alternate of at least one step"):
        nn.RandomFlip(alternate=0)
    with pytest.raises(ConfigError, match="RandomFlip: expected alternate to be an integer"):
        nn.RandomFlip(alternate=2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="RandomShift: padding_mode among zeros, reflect"):
        nn.RandomShift(1, padding_mode="edge")
    with pytest.raises(ConfigError, match="RandomCutout: expected size"):
        nn.RandomCutout(1.5)  # type: ignore[arg-type]


def test_refuses_what_are_no_images_or_too_small() -> None:
    for layer in (nn.RandomFlip(), nn.RandomShift(1), nn.RandomCrop(1), nn.RandomCutout(1)):
        with pytest.raises(
            ShapeError, match=r"expected samples of shape \(H, W, C\), got \(6, 5\)"
        ):
            layer(IMAGES[..., 0])
    with pytest.raises(ShapeError, match=r"images of more than \(1, 5\) pixels.*\(6, 5, 2\)"):
        nn.RandomShift((1, 5))(IMAGES)
    with pytest.raises(ShapeError, match=r"images of at least \(2, 6\) pixels.*\(6, 5, 2\)"):
        nn.RandomCrop((2, 6))(IMAGES)
    with pytest.raises(ShapeError, match=r"images of at least \(2, 6\) pixels.*\(6, 5, 2\)"):
        nn.RandomCutout((2, 6))(IMAGES)
    with pytest.raises(ShapeError, match="layer 1: RandomShift"):
        nn.Sequential(nn.ReLU(), nn.RandomShift(6)).spec((6, 5, 2))
