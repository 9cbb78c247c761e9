"""All layers of an ensemble at once, on Hopper, against the operations one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from warpfit.backends import NumpyBackend
from warpfit.backends.contract.members import MemberHead, MemberLayer, MemberLayers
from warpfit.backends.cuda import CudaBackend

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
