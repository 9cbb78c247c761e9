"""How a small convolutional network is trained as one kernel on most of a card, or what is in the
way.

In `one_launch_images.cu` each block takes some images of a batch through all layers and back, with
all weights in its shared memory; then all warps of all blocks update. This module says how many
images and blocks these are; `image_shapes` has the sizes of the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from warpfit.backends.cuda.image_shapes import WARPS, ConvolutionShape, LinearShape, shapes_of
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.resident_arguments import ImagesArguments
from warpfit.backends.cuda.resident_config import ImagesConfig
from warpfit.backends.cuda.resident_launch import (
    LaunchedRun,
    LaunchedSteps,
    ResidentLaunch,
    arguments_of,
    too_heavy,
    too_large,
)
from warpfit.backends.cuda.sizes import padded
from warpfit.backends.cuda.trained_network import (
    TrainedNetwork,
    counted,
    lacking,
    unknown_settings,
    unsuited,
)
from warpfit.errors import Obstacle

MOST_IMAGES = 8
# Of a window: bits say which of its rows and columns lie in an image, and a byte which pixel is the
# largest.
MOST_TAPS, MOST_POOL = 32, 16
# Of a multiprocessor, and those that a thread needs beside parameters and their optimizer state.
REGISTERS, WORKING_REGISTERS = 65536, 48
MOST_ITEMS = 8  # of a warp


@dataclass(frozen=True)
class ImagesLaunch(ResidentLaunch):
    """How blocks share a convolutional network's training; printable.

    Attributes
    ----------
    network : TrainedNetwork
    images : int
        Of a batch, that a block takes.
    num_multiprocessors : int
        Of the card.
    """

    network: TrainedNetwork
    images: int
    num_multiprocessors: int

    kernel = "one_launch_images"
    cluster = replicas = 1
    looks_ahead = False
    warps = WARPS

    @property
    def is_cooperative(self) -> bool:
        return True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def image_blocks(self) -> int:
        """Blocks that take images."""
        return -(-self.network.batch // self.images)

    @property
    def blocks(self) -> int:
        """All of them: those with images, and as many as have an item for each warp."""
        return min(self.num_multiprocessors, max(self.image_blocks, -(-self.items // self.warps)))

    @cached_property
    def shapes(self) -> list[ConvolutionShape]:
        """What each convolution takes and gives."""
        return shapes_of(self.network.image, self.network.convolutions)

    @cached_property
    def layers(self) -> list[LinearShape]:
        """The linear layers."""
        return [LinearShape(*widths) for widths in pairwise(self.network.widths)]

    @property
    def all_layers(self) -> list[ConvolutionShape | LinearShape]:
        """Convolutions, then linear layers."""
        return [*self.shapes, *self.layers]

    @property
    def items(self) -> int:
        """Items of parameters, each of which a warp updates."""
        return sum(shape.items for shape in self.all_layers)

    @property
    def items_of_warp(self) -> int:
        """Those that a warp has at most."""
        return -(-self.items // (self.blocks * self.warps))

    @property
    def registers_of_thread(self) -> tuple[int, int]:
        """Registers that a thread may have, and those for weights and their optimizer state."""
        return REGISTERS // self.threads, self.registers_of_item * self.items_of_warp

    @property
    def registers_of_item(self) -> int:
        """Registers for an item: ``struct Held`` of the kernel."""
        return 8 * (1 + self.network.slots)

    @property
    def rounded_bytes(self) -> int:
        """Bytes of ``struct RoundedParameters`` of the kernel."""
        return sum(2 * shape.weights + 4 * shape.units for shape in self.all_layers)

    @cached_property
    def shared_parts(self) -> dict[str, int]:
        """Bytes of shared memory of each part of ``struct ImagesShared`` of the kernel."""
        network, images = self.network, self.images
        return {
            "weights": self.rounded_bytes,
            "images of convolutions": images * sum(shape.image_bytes for shape in self.shapes),
            "inputs and gradients of linear layers": images
            * sum(2 * (own.rows + 2 * own.units) for own in self.layers),
            "sums of linear layers": 4 * images * max(own.sums for own in self.layers),
            "next images": 2 * images * self.x_stride,
            "targets": 2 * 4 * images * network.target_words,
            "tables of windows": sum(shape.table_bytes for shape in self.shapes),
            "barriers": 2 * 8,
        }

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return padded(sum(self.shared_parts.values()))

    @property
    def exchange_bytes(self) -> int:
        """Bytes of ``struct ImagesExchange`` of the kernel."""
        rows = padded(self.network.batch)
        of_layers = sum(2 * rows * (own.rows + own.units) for own in self.layers)
        gradients = (shape.gradient_bytes(self.image_blocks) for shape in self.shapes)
        return padded(16 + self.rounded_bytes + of_layers + sum(gradients) + 8 * rows)

    @property
    def costs(self) -> dict[str, float]:
        """How often a step has each cost, as far as warps and blocks wait for each other."""
        products = sum(own.products(self.images) for own in self.shapes)
        return {
            "step": 1,
            "product": products + sum(own.products for own in self.layers),
            "slice of rows": self.items_of_warp * (padded(self.network.batch) // 16),
        }

    @property
    def convolution_settings(self) -> dict[str, Any]:
        """Those of `ImagesConfig` that say what convolutions are."""
        found = self.network.convolutions
        return {
            "image": self.network.image,
            "convolutions": len(found),
            "kernel_heights": tuple(own.kernel[0] for own in found),
            "kernel_widths": tuple(own.kernel[1] for own in found),
            "padding_heights": tuple(own.padding[0] for own in found),
            "padding_widths": tuple(own.padding[1] for own in found),
            "channels": tuple(own.channels for own in found),
            "pools": tuple(own.pool for own in found),
            "conv_activations": tuple(own.activation.name for own in found),
            "conv_slopes": tuple(float(own.activation.slope) for own in found),
        }

    @property
    def config(self) -> ImagesConfig:
        """The kernel's settings."""
        return ImagesConfig(
            **self.network.settings,
            **self.network.layer_settings,
            **self.convolution_settings,
            images=self.images,
            blocks=self.blocks,
            warps=self.warps,
            shared_bytes=self.shared_bytes,
            exchange_bytes=self.exchange_bytes,
        )

    def arguments(self, run: LaunchedRun, steps: LaunchedSteps) -> ImagesArguments:
        return ImagesArguments(**arguments_of(run, steps), exchange=run.zeros(self.exchange_bytes))

    def __str__(self) -> str:
        which = f"{self.image_blocks} take" if self.image_blocks > 1 else "one takes"
        each = " each" if self.image_blocks > 1 else ""
        return (
            f"{counted(self.blocks, 'block')} of {self.warps} warps, of which {which} "
            f"{counted(self.images, 'image')}{each} through all layers, "
            f"{self.shared_bytes} bytes of shared memory"
        )


def _in_the_way(network: TrainedNetwork, arch: str) -> Obstacle | None:
    """Return what the kernel does not do."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if generation(arch) < 80:
        return Obstacle(f"expected sm_80 or later for convolutions, got {arch}")
    convolutions = network.convolutions
    expected = {
        f"windows of at most {MOST_TAPS} pixels a side": any(
            max(own.kernel) > MOST_TAPS for own in convolutions
        ),
        f"max pooling of at most {MOST_POOL} pixels a side": any(
            own.pool > MOST_POOL for own in convolutions
        ),
        "one card": network.cards > 1,
        **unknown_settings(network),
    }
    return lacking(expected, "convolutions")


@lru_cache(maxsize=256)
def choose_images(
    network: TrainedNetwork, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> ImagesLaunch | Obstacle:
    """Return how to launch a convolutional network's training, or what is in the way."""
    if (obstacle := _in_the_way(network, arch)) is not None:
        return obstacle
    images = -(-network.batch // num_multiprocessors)
    if images > MOST_IMAGES:
        most = MOST_IMAGES * num_multiprocessors
        return Obstacle(f"expected batches of at most {most} images, got {network.batch}")
    launch = ImagesLaunch(network, images, num_multiprocessors)
    registers, held = launch.registers_of_thread
    most = min(registers - WORKING_REGISTERS, MOST_ITEMS * launch.registers_of_item)
    if held > most:
        return too_heavy(4 * most * launch.threads, 4 * held * launch.threads)
    if launch.shared_bytes > max_shared_bytes:
        return too_large([launch], max_shared_bytes, "weights and the images of a block")
    return launch
