"""Kernels that train whole networks: each network has its own, of which this is a choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, Activation
from warpfit.backends.cuda import (
    many_networks,
    many_networks_sm90,
    many_small_networks_sm90,
    one_launch,
    one_launch_card,
    one_launch_images,
    one_launch_layers,
    one_launch_small_sm90,
)
from warpfit.backends.cuda.cards import CARDS
from warpfit.backends.cuda.image_shapes import Convolution, shapes_of
from warpfit.backends.cuda.many_launch import ManyLaunch
from warpfit.backends.cuda.resident_launch import ResidentLaunch
from warpfit.backends.cuda.table_networks import TableShape, choose_table
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.errors import Obstacle, required

Launch = TypeVar("Launch", bound=ResidentLaunch)
Compiled = list[tuple[str, dict[str, str]]]

MOMENTUM: dict[str, Any] = {"slots": 1, "momentum": True}
ADAM: dict[str, Any] = {"optimizer": "adam", "slots": 2}


def network_of(*widths: int, batch: int = 32, **settings: Any) -> TrainedNetwork:
    """Return a network of ReLU units in float16 that SGD trains, but for its settings."""
    hidden = len(widths) - 2
    activations, drops = (Activation("relu"),) * hidden, (False,) * hidden
    base = TrainedNetwork("float16", widths, activations, drops, batch, "cross_entropy")
    return replace(base, **settings)


def with_each_dtype(network: TrainedNetwork) -> list[TrainedNetwork]:
    """Return the network in each dtype of products."""
    return [replace(network, dtype=dtype) for dtype in HALF_DTYPES]


def with_each_activation(network: TrainedNetwork) -> list[TrainedNetwork]:
    """Return the network with each activation behind its first layer."""
    _, *others = network.activations
    return [replace(network, activations=(Activation(own), *others)) for own in ACTIVATIONS]


def launched(
    choose: Callable[[TrainedNetwork, str, int, int], Launch | Obstacle],
    networks: Iterable[TrainedNetwork],
    card: str = "h100",
) -> list[Launch]:
    """Return how each network is launched on a card of `CARDS`."""
    of = CARDS[card]
    limits = of.arch, of.max_shared_bytes, of.num_multiprocessors
    return [required(choose(network, *limits)) for network in dict.fromkeys(networks)]


def compiled(launches: Iterable[ResidentLaunch]) -> Compiled:
    """Return the kernel of each launch, and its defines."""
    return [(launch.kernel, launch.config.settings()) for launch in launches]


def compiled_of_many(
    choose: Callable[[TrainedNetwork, str, int], ManyLaunch | Obstacle],
    networks: Sequence[TrainedNetwork],
    compared: Sequence[TrainedNetwork],
) -> Compiled:
    """Return the kernels that train many of each network, and their defines; `compared` networks
    are halved, and their best are kept.
    """
    card, found = CARDS["h100"], []
    for network in (*networks, *compared):
        launch = required(choose(network, card.arch, card.max_shared_bytes))
        is_compared = network in compared
        config = replace(launch.config, keeps_best=is_compared, halves=is_compared)
        found.append((launch.kernel, config.settings()))
    return found


def of_one_launch() -> Compiled:
    base, linear, mnist = network_of(64, 64, 10), network_of(784, 10), network_of(784, 256, 10)
    halves = with_each_dtype(base)
    networks = [
        *halves,
        *with_each_activation(base),
        replace(base, **ADAM),
        replace(base, **ADAM, decays=True, dtype="bfloat16", loss="mse"),
        replace(base, optimizer="rmsprop", **MOMENTUM),
        replace(linear, **ADAM, batch=64),
        replace(mnist, **ADAM, batch=64),
        replace(mnist, **ADAM, batch=96, decays=True),
        replace(base, **MOMENTUM),
        replace(base, **MOMENTUM, nesterov=True, loss="mse", widths=(64, 64, 1)),
        replace(base, smoothed=True),
        *(replace(base, loss=loss) for loss in ("absolute_error", "huber", "binary_cross_entropy")),
        replace(linear, batch=64),
        replace(linear, batch=64, dtype="bfloat16", **MOMENTUM),
        replace(linear, batch=128),
        replace(mnist, batch=64),
        replace(mnist, batch=128),
        network_of(480, 512, 10, batch=64),
        replace(mnist, batch=64, **MOMENTUM),
        replace(mnist, batch=8),
        replace(mnist, **MOMENTUM, nesterov=True),
        replace(mnist, batch=512),
        replace(mnist, batch=1024, **MOMENTUM),
        replace(linear, batch=1000),
    ]
    launches = launched(one_launch.choose, networks)
    launches += launched(
        one_launch.choose, [*halves, network_of(64, 10), replace(base, batch=512)], "a100"
    )
    gathered = [*halves, replace(linear, batch=64), replace(mnist, batch=64)]
    return [*compiled(launches), *gathering_of(launches, launched(one_launch.choose, gathered))]


def gathering_of(launches: Sequence[Any], gathered: Sequence[Any]) -> Compiled:
    """Return what finds the batches of launches of `one_launch`, and their Gram matrices."""
    batches = [("gram_batches", own.gram_defines) for own in launches if own.looks_ahead]
    batches += [
        ("gather_batches", own.gather_defines(source))
        for own in gathered
        for source in ("uint8", "float16", "float32", "float64")
    ]
    return [(name, {key: str(own) for key, own in found.items()}) for name, found in batches]


def several_layers(base: TrainedNetwork) -> list[TrainedNetwork]:
    """Return a network in each dtype, with each activation, and by each rule of an update."""
    return [
        *with_each_dtype(base),
        *with_each_activation(base),
        replace(base, **ADAM, decays=True, loss="mse", dtype="bfloat16"),
        replace(base, optimizer="rmsprop", **MOMENTUM),
        replace(base, **MOMENTUM, nesterov=True, decays=True, loss="huber"),
    ]


def of_one_launch_layers() -> Compiled:
    base, mnist = network_of(64, 32, 16, 10), network_of(784, 128, 128, 10)
    adamw = {**ADAM, "decays": True}
    penalized = {**MOMENTUM, "penalized": True, "decays": True}
    # Those that stop by themselves, too: of one block, of several, and of replicas, with dropout,
    # weights, penalties.
    stopping = [
        network_of(64, 10, batch=100),
        replace(base, drops=(True, True)),
        replace(base, weighted=True, class_weights=True, smoothed=True, clips=True),
        replace(base, **penalized, rate_in_velocity=True),
        replace(base, **adamw, batch=512, weighted=True, clips=True),
        replace(base, **penalized, batch=512, weighted=True, weighed_penalty=True),
    ]
    validating = [*stopping, replace(base, **adamw), mnist]
    networks = [
        *validating,
        *several_layers(base),
        replace(mnist, **adamw),
        replace(mnist, batch=64),
        replace(base, terms=2),
        replace(base, **adamw, batch=512, terms=2),
        replace(base, **adamw, batch=512, weighted=True, clips=True, cards=2),
        replace(base, **penalized, batch=512, terms=2, cards=8),
    ]
    launches = launched(one_launch_layers.choose_layers, networks)
    launches += [own.that_validates() for own in launches[: len(validating)]]
    launches += [replace(own, validates=True, stops=True) for own in launches[: len(stopping)]]
    single_blocks = [replace(base, batch=16), replace(base, batch=16, **adamw)]
    return compiled([*launches, *launched(one_launch_layers.choose_layers, single_blocks, "a100")])


def of_one_launch_card() -> Compiled:
    base, widest = network_of(64, 96, 300, 10), network_of(784, 2048, 2048, 2048, 10)
    # Those that stop by themselves, too: in clusters, with dropout, apart, and streamed.
    stopping = [
        base,
        replace(base, drops=(True, False)),
        widest,
        network_of(784, 4096, 4096, 4096, 10),
    ]
    networks = [
        *stopping,
        *several_layers(base),
        network_of(64, 300, 128, batch=100, smoothed=True),
        network_of(784, 1024, 1024, 1024, 10),
        network_of(784, 640, 640, 10, batch=128),
        replace(widest, dtype="bfloat16"),
        replace(widest, drops=(True, True, True)),
    ]
    launches = launched(one_launch_card.choose_card, networks)
    validating = [own.that_validates() for own in launches[: len(stopping)]]
    return compiled([*launches, *validating, *(replace(own, stops=True) for own in validating)])


def images_of(
    image: tuple[int, int, int],
    convolutions: Sequence[Convolution],
    *units: int,
    **settings: Any,
) -> TrainedNetwork:
    """Return a network of convolutions and linear layers of these units, as `network_of` does."""
    network = replace(network_of(1, *units), convolutions=tuple(convolutions), image=image)
    features = prod(shapes_of(image, convolutions)[-1].pooled)
    return replace(network, widths=(features, *units), **settings)


def lenet(**settings: Any) -> TrainedNetwork:
    """Return LeNet-5 on images of 28 by 28 pixels, with ReLU and max pooling."""
    relu = Activation("relu")
    convolutions = [
        Convolution((5, 5), (2, 2), 6, relu, 2),
        Convolution((5, 5), (0, 0), 16, relu, 2),
    ]
    return images_of((28, 28, 1), convolutions, 120, 84, 10, **{"batch": 64, **settings})


def of_one_launch_images() -> Compiled:
    convolutions = [
        Convolution((3, 3), (0, 0), 5, Activation("gelu"), 2),
        Convolution((3, 2), (0, 1), 12, Activation("tanh")),
    ]
    adamw = {**ADAM, "decays": True}
    small = images_of((12, 10, 3), convolutions, 20, 4, dtype="bfloat16", batch=200, **adamw)
    networks = [
        lenet(),
        lenet(batch=128, **MOMENTUM, nesterov=True),
        small,
        replace(small, loss="mse", dtype="float16", optimizer="rmsprop", slots=1, decays=False),
    ]
    return compiled(launched(one_launch_images.choose_images, networks))


def of_one_launch_small_sm90() -> Compiled:
    base = network_of(40, 50, 20, 10)
    networks = [
        *several_layers(base),
        network_of(64, 64, 1, batch=256, loss="mse"),
        network_of(37, 53, 17, 3, batch=48, **ADAM),
        network_of(64, 64, 64, 64, 1, batch=256, loss="mse", **ADAM, decays=True),
    ]
    return compiled(launched(one_launch_small_sm90.choose_small, networks))


def of_many_networks() -> Compiled:
    small = network_of(32, 64, 64, 2, batch=128)
    networks = [
        small,
        network_of(64, 64, 10, batch=64, **MOMENTUM, weighted=True, class_weights=True),
        network_of(20, 10, batch=128, loss="mse", decays=True, penalized=True),
    ]
    compared = replace(small, dtype="bfloat16", drops=(True, False), **ADAM)
    return compiled_of_many(many_networks.choose, networks, [compared])


def of_many_networks_sm90() -> Compiled:
    networks = [
        network_of(784, 128, 10, batch=64),
        network_of(100, 50, 3, loss="mse", **MOMENTUM, decays=True, penalized=True),
    ]
    compared = network_of(
        300, 64, 10, batch=64, dtype="bfloat16", drops=(True,), class_weights=True
    )
    return compiled_of_many(many_networks_sm90.choose_clusters, networks, [compared])


def of_many_small_networks_sm90() -> Compiled:
    tabular = network_of(32, 64, 64, 2, batch=128)
    compared = network_of(20, 48, 3, activations=(Activation("tanh"),), loss="mse")
    networks = [tabular, replace(tabular, dtype="bfloat16", **ADAM)]
    return compiled_of_many(many_small_networks_sm90.choose_small, networks, [compared])


def of_table_networks() -> Compiled:
    magic = TableShape(10, 0, (), 256, 3, 2, Activation("selu"), 0.1, 256)
    shapes = [
        magic,
        replace(magic, networks=8),
        replace(magic, hidden=64, hidden_layers=5, networks=8),
        TableShape(6, 20, (), 256, 3, 1, Activation("mish"), None, 256),
        TableShape(57, 3, (40, 12), 256, 3, 26, Activation("selu"), 0.0, 256),
        TableShape(0, 286, (), 256, 3, 3, Activation("selu"), 0.1, 256),
    ]
    card, found = CARDS["h100"], []
    for shape in shapes:
        launch = required(
            choose_table(shape, card.arch, card.max_shared_bytes, card.num_multiprocessors)
        )
        found += [replace(launch, dtype=dtype) for dtype in HALF_DTYPES]
    return [(launch.kernel, launch.config.settings()) for launch in found]
