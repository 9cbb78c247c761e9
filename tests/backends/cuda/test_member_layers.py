"""All layers of an ensemble at once, on Hopper, against the operations one by one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import on_emulator
from support.devices import assert_bits_when_late
from warpfit.backends import NumpyBackend
from warpfit.backends.base import MemberHead, MemberLayer, MemberLayers, MemberUpdate
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.runtime import open_device
from warpfit.backends.update_rules import UpdateNumbers
from warpfit.errors import ShapeError

PLACE = {"p": 0.3, "seed": 7, "step": 3}
HALF = "bfloat16"
# Half the distance between a number and the next one, relative.
UNIT = 2.0**-8


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    if kernel_runtime_of_any_order.arch != "sm_90a":
        pytest.skip("wgmma is for sm_90a alone")
    return CudaBackend(kernel_runtime_of_any_order)


class Sizes(NamedTuple):
    members: int
    rows: int
    inputs: int
    units: int
    layers: int
    outputs: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


CASES = [
    Sizes(members=2, rows=70, inputs=10, units=128, layers=3, outputs=2),
    Sizes(members=1, rows=200, inputs=128, units=128, layers=1, outputs=5),
    Sizes(members=1, rows=20, inputs=70, units=256, layers=2, outputs=1),
    Sizes(members=1, rows=20, inputs=5, units=512, layers=2, outputs=2),
]


def rounded(x: Any) -> Any:
    """Return the nearest numbers of bfloat16."""
    words = np.asarray(x, np.float32).view(np.uint32)
    words = words + 0x7FFF + (words >> 16 & 1) & 0xFFFF0000
    return words.astype(np.uint32).view(np.float32).astype(np.float64)


def layers_of(sizes: Sizes, seed: int = 0) -> MemberLayers:
    """Return layers in float64, their shared weights numbers of bfloat16."""
    random = np.random.default_rng(seed)
    members, inputs, hidden = sizes.members, sizes.inputs, []
    for _ in range(sizes.layers):
        own = [random.normal(size=(members, each)) for each in (inputs, sizes.units, sizes.units)]
        weight = rounded(random.normal(size=(inputs, sizes.units)) / np.sqrt(inputs))
        hidden.append(MemberLayer(own[0], weight, own[1], own[2] / 4))
        inputs = sizes.units
    head = random.normal(size=(members, inputs, sizes.outputs)) / np.sqrt(inputs)
    return MemberLayers(hidden, MemberHead(head, random.normal(size=(members, sizes.outputs))))


def one_by_one(
    x: Any, layers: MemberLayers, dy: Any = None, *, p: float, seed: int, step: int
) -> tuple[Any, MemberLayers | None, Any]:
    """Return outputs, gradients and dx, in float64 but for what the kernels round to bfloat16."""
    ops, passed = NumpyBackend(), []
    x = np.broadcast_to(x, (len(layers.hidden[0].scale_in), *x.shape[1:]))
    h, scales = x * layers.hidden[0].scale_in[:, None], [each.scale_in for each in layers.hidden]
    scales.append(np.ones_like(layers.hidden[-1].bias))
    for idx, layer in enumerate(layers.hidden):
        h = rounded(h)
        z = h @ layer.weight
        vectors = (layer.scale_out, layer.bias, scales[idx + 1])
        y, kept = ops.member_relu_forward(z, *vectors, p=p, seed=seed, step=step, layer_idx=idx)
        passed.append((h, z, kept, vectors))
        h = y
    outputs = h @ layers.head.weight + layers.head.bias[:, None]
    if dy is None:
        return outputs, None, None
    head = MemberHead(h.transpose(0, 2, 1) @ dy, dy.sum(axis=1))
    found: list[MemberLayer] = []
    arrived = dy @ layers.head.weight.transpose(0, 2, 1)
    for idx in reversed(range(len(layers.hidden))):
        h, z, kept, vectors = passed[idx]
        dz, dscale, dbias, dscale_in = ops.member_relu_backward(
            arrived, rounded(z), kept, *vectors, p=p
        )
        dz = rounded(dz)
        if found:
            found[0] = found[0]._replace(scale_in=dscale_in)
        weight = layers.hidden[idx].weight
        found.insert(0, MemberLayer(None, np.einsum("emk,emn->kn", h, dz), dscale, dbias))
        arrived = dz @ weight.T
    found[0] = found[0]._replace(scale_in=(arrived * x).sum(axis=1))
    return outputs, MemberLayers(found, head), arrived * layers.hidden[0].scale_in[:, None]


def on_device(ops: CudaBackend, layers: MemberLayers) -> MemberLayers:
    def put(x: Any) -> Any:
        return ops.asarray(x.astype(np.float32))

    hidden = [
        MemberLayer(put(scale_in), ops.cast(put(weight), HALF), *map(put, others))
        for scale_in, weight, *others in layers.hidden
    ]
    return MemberLayers(hidden, MemberHead(*map(put, layers.head)))


def batches(sizes: Sizes, members: int, seed: int = 3) -> Any:
    random = np.random.default_rng(seed)
    return random.normal(size=(members, sizes.rows, sizes.inputs)).astype(np.float32)


def assert_close(found: Any, expected: Any) -> None:
    """Within what two roundings to bfloat16 on the way may change."""
    found = found.numpy()
    assert found.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * UNIT * scale)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_forward_and_backward(ops: CudaBackend, sizes: Sizes) -> None:
    layers, x = layers_of(sizes), batches(sizes, sizes.members)
    dy = np.random.default_rng(4).normal(size=(sizes.members, sizes.rows, sizes.outputs))
    dy = dy.astype(np.float32)
    expected, gradients, expected_dx = one_by_one(x.astype(float), layers, dy, **PLACE)
    found = ops.member_layers_forward(ops.asarray(x), on_device(ops, layers), **PLACE)
    assert found is not None
    outputs, kept = found
    assert_close(outputs, expected)
    of_device, dx = ops.member_layers_backward(ops.asarray(dy), kept, needs_dx=True)
    assert_close(dx, expected_dx)
    for mine, other in zip(of_device.hidden, gradients.hidden, strict=True):
        for name in MemberLayer._fields:
            assert_close(getattr(mine, name), getattr(other, name))
    for mine, other in zip(of_device.head, gradients.head, strict=True):
        assert_close(mine, other)


def test_no_rows(ops: CudaBackend) -> None:
    sizes = Sizes(members=2, rows=0, inputs=7, units=128, layers=2, outputs=2)
    layers, x = on_device(ops, layers_of(sizes)), ops.asarray(batches(sizes, sizes.members))
    y, kept = ops.member_layers_forward(x, layers, **PLACE)
    assert y.shape == (2, 0, 2)
    gradients, dx = ops.member_layers_backward(y, kept, needs_dx=True)
    assert dx.shape == x.shape
    for each in flat(gradients):
        np.testing.assert_array_equal(each.numpy(), 0)


def test_refuses_batches_of_other_members(ops: CudaBackend) -> None:
    sizes = Sizes(members=3, rows=4, inputs=7, units=128, layers=1, outputs=1)
    layers, dy = on_device(ops, layers_of(sizes)), ops.zeros((3, 4, 1), "float32")
    with pytest.raises(
        ShapeError, match=r"_forward: expected x of shape \(3, 4, 7\), got \(2, 4, 7\)"
    ):
        ops.member_layers_forward(ops.asarray(batches(sizes, 2)), layers, **PLACE)
    _, kept = ops.member_layers_forward(ops.asarray(batches(sizes, 1)), layers, **PLACE)
    with pytest.raises(
        ShapeError, match=r"_backward: expected x of shape \(3, 4, 7\), got \(1, 4, 7\)"
    ):
        ops.member_layers_backward(dy, kept, needs_dx=False)


@pytest.mark.parametrize("outputs", [2, 5])
def test_one_batch_of_all_members(ops: CudaBackend, outputs: int) -> None:
    sizes = Sizes(members=3, rows=70, inputs=7, units=128, layers=2, outputs=outputs)
    layers, x = layers_of(sizes), batches(sizes, 1)
    place = PLACE | {"p": 0.0}
    given = (ops.asarray(x), on_device(ops, layers))
    found, kept = ops.member_layers_forward(*given, **place, keeps=False)
    assert kept is None
    assert_close(found, one_by_one(x.astype(float), layers, **place)[0])


def test_adam_where_gradients_are_summed(ops: CudaBackend) -> None:
    sizes = Sizes(members=2, rows=70, inputs=10, units=128, layers=2, outputs=2)
    layers, x = on_device(ops, layers_of(sizes)), ops.asarray(batches(sizes, 2))
    dy = ops.asarray(np.random.default_rng(4).normal(size=(2, 70, 2)).astype(np.float32))
    _, kept = ops.member_layers_forward(x, layers, **PLACE)
    gradients, _ = ops.member_layers_backward(dy, kept, needs_dx=False)
    gradients = flat(gradients)

    weights = [ops.cast(own.weight, "float32") for own in layers.hidden]
    hidden = [own._replace(weight=each) for own, each in zip(layers.hidden, weights, strict=True)]
    parameters = MemberLayers(hidden, layers.head)
    before = [[0.1 * np.abs(each.numpy()) for each in gradients] for _ in range(2)]
    expected = [[each.numpy() for each in flat(parameters)], *deepcopy(before)]
    numbers = UpdateNumbers(rate=0.02, eps=1e-3, kept=0.9, of_mean=0.8, of_square=0.95)
    is_bias = [name == "bias" for own in (*hidden, layers.head) for name in own._fields]
    for idx, lasts in enumerate(is_bias):
        value, *slots = ([group[idx]] for group in expected)
        own = numbers._replace(kept=1.0) if lasts else numbers
        NumpyBackend().update_parameters("adam", value, [gradients[idx].numpy()], slots, own)

    moments = [regrouped([ops.asarray(each) for each in group], parameters) for group in before]
    copies = [own.weight for own in layers.hidden]
    _, kept = ops.member_layers_forward(x, layers, **PLACE)
    update = MemberUpdate(parameters, moments, copies, numbers)
    assert ops.member_layers_backward(dy, kept, needs_dx=False, update=update) == (None, None)
    for mine, wanted in zip((parameters, *moments), expected, strict=True):
        for found, other in zip(flat(mine), wanted, strict=True):
            np.testing.assert_allclose(found.numpy(), other, rtol=1e-5, atol=1e-6)
    for copy, weight in zip(copies, weights, strict=True):
        np.testing.assert_array_equal(ops.cast(copy, "float32").numpy(), rounded(weight.numpy()))


def flat(layers: MemberLayers) -> list[Any]:
    return [*(each for own in layers.hidden for each in own), *layers.head]


def regrouped(arrays: list[Any], like: MemberLayers) -> MemberLayers:
    hidden = [MemberLayer(*arrays[4 * idx : 4 * idx + 4]) for idx in range(len(like.hidden))]
    return MemberLayers(hidden, MemberHead(*arrays[-2:]))


@on_emulator
def test_no_warp_overwrites_what_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(members=1, rows=70, inputs=10, units=128, layers=3, outputs=2)
    layers, x = layers_of(sizes), batches(sizes, 1)
    dy = np.random.default_rng(4).normal(size=(1, sizes.rows, sizes.outputs)).astype(np.float32)

    def computed() -> list[Any]:
        ops = CudaBackend(open_device(0))
        y, kept = ops.member_layers_forward(ops.asarray(x), on_device(ops, layers), **PLACE)
        gradients, dx = ops.member_layers_backward(ops.asarray(dy), kept, needs_dx=True)
        found = [y, dx, *gradients.head, *(each for own in gradients.hidden for each in own)]
        return [each.numpy() for each in found]

    assert_bits_when_late(monkeypatch, computed, blocks=2, warps=12)
