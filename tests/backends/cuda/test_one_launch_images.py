"""How a convolutional network's training is launched as one kernel: what the kernel asks of it, and
what does not fit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kernel_variants.runs import ADAM, MOMENTUM, images_of, lenet
from warpfit.backends import Activation
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.image_shapes import Convolution
from warpfit.backends.cuda.one_launch_images import ImagesLaunch, choose_images
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import ConfigError, Obstacle, required

SHARED_BYTES = shared_bytes_of("sm_90a")
RELU, TANH = Activation("relu"), Activation("tanh")
SMALL = images_of(
    (12, 10, 3),
    [Convolution((3, 3), (0, 0), 5, RELU, 2), Convolution((3, 2), (0, 1), 12, TANH)],
    *(20, 4),
)
NETWORKS = {
    "LeNet-5": lenet(),
    "small": SMALL,
    "many channels": images_of((5, 7, 40), [Convolution((2, 4), (2, 3), 17, RELU)], 17),
    "one pixel": images_of((1, 1, 1), [Convolution((1, 1), (0, 0), 1, TANH)], 1, loss="mse"),
}
OBSTACLES = (
    r"of shared memory for weights and the images of a block, got|"
    r"bytes of weights for the registers of a block, got|batches of at most \d+ images, got"
)


def chosen(network: TrainedNetwork, number: int = 132, arch: str = "sm_90a") -> ImagesLaunch:
    return required(choose_images(network, arch, SHARED_BYTES, number))


def assert_can_be_launched(launch: ImagesLaunch, number: int) -> None:
    """Assert what the kernel and the device ask of a shape, and that parameters have a place."""
    assert launch.shared_bytes <= SHARED_BYTES
    assert launch.image_blocks <= launch.blocks <= number
    assert 1 <= launch.images <= 8
    assert (launch.image_blocks - 1) * launch.images < launch.network.batch
    assert launch.image_blocks * launch.images >= launch.network.batch
    assert launch.items_of_warp * launch.blocks * launch.warps >= launch.items
    assert launch.images == 1 or -(-launch.network.batch // (launch.images - 1)) > number
    most, held = launch.registers_of_thread
    assert held < most <= 255


@pytest.mark.parametrize("name", NETWORKS)
def test_every_shape_can_be_launched_or_says_what_is_in_the_way(name: str) -> None:
    fitting = 0
    for batch, rule, number in product((1, 16, 64, 132, 400), ({}, MOMENTUM, ADAM), (132, 78, 4)):
        network = replace(NETWORKS[name], batch=batch, **rule)
        launch = choose_images(network, "sm_90a", SHARED_BYTES, number)
        if isinstance(launch, Obstacle):
            assert re.search(OBSTACLES, str(launch))
            continue
        assert_can_be_launched(launch, number)
        fitting += 1
    assert fitting >= 15


# The kernel asserts that its structs have the bytes that the launch has counted.
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("number", [132, 21])
def test_bytes_are_those_of_the_kernels_structs(name: str, number: int) -> None:
    pytest.importorskip("cuda")
    launch = chosen(replace(NETWORKS[name], batch=40), number)
    code, _ = jit.compile_kernel(launch.kernel, tuple(launch.config.settings().items()), "sm_90a")
    assert code.startswith(b"\x7fELF")


def test_lenet() -> None:
    launch = chosen(lenet())
    assert (launch.images, launch.image_blocks, launch.blocks) == (1, 64, 64)
    first, second = launch.shapes
    assert (first.output, first.pooled, first.is_spread, first.taps) == (
        (28, 28),
        (14, 14, 6),
        True,
        5,
    )
    assert (second.output, second.pooled, second.is_spread) == ((10, 10), (5, 5, 16), False)
    assert [layer.rows for layer in launch.layers] == [400, 128, 96]
    assert launch.items == 26 + 151 * 2 + 26 * 8 + 9 * 6 + 7
    assert launch.network.features == 784
    assert chosen(lenet(batch=20)).blocks == -(-launch.items // 16)
    assert str(launch) == (
        "64 blocks of 16 warps, of which 64 take one image each through all layers, "
        f"{launch.shared_bytes} bytes of shared memory"
    )


def test_one_block_takes_images() -> None:
    words = "38 blocks of 16 warps, of which one takes one image through all layers, "
    assert str(chosen(lenet(batch=1))).startswith(words)


def test_blocks_take_as_few_images_as_multiprocessors_allow() -> None:
    shapes = [chosen(replace(SMALL, batch=batch)) for batch in (1, 132, 133, 264, 265, 1056)]
    assert [shape.images for shape in shapes] == [1, 1, 2, 2, 3, 8]
    assert [shape.image_blocks for shape in shapes] == [1, 132, 67, 132, 89, 132]
    times = [shape.microseconds for shape in shapes]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weighted": True}, "no sample or class weights for convolutions"),
        ({"class_weights": True}, "no sample or class weights"),
        ({"clips": True}, "no clipping"),
        ({"penalized": True, "terms": 2}, "products in half precision and no penalty"),
        ({"cards": 2}, "one card"),
        ({"batch": 1057}, "batches of at most 1056 images, got 1057"),
        ({"widths": (180, 200, 129)}, "at most 128 outputs"),
        ({"widths": (180, 2000, 4)}, r"at most 232448 bytes of shared memory .*, got \d+"),
    ],
    ids=str,
)
def test_what_is_not_run_says_so(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        chosen(replace(SMALL, **changes))


@pytest.mark.parametrize(("arch", "dtype"), [("sm_75", "float16"), ("sm_75", "bfloat16")])
def test_older_architectures_do_not_take_it(arch: str, dtype: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected sm_80 or later|tensor cores multiply bfloat16"
    ):
        chosen(replace(SMALL, dtype=dtype), arch=arch)
    assert chosen(replace(SMALL, dtype=dtype), arch="sm_80").images == 1
