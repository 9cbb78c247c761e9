"""How a whole training run is launched as one kernel: sizes, tiles, shared memory, and what does not fit.

`kernels/one_launch.cu` is one block, or a cluster of them, that keeps a layer's weights in its registers; this module
says how blocks and warps share them, or what is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, Activation
from warpfit.backends.cuda.matmul import generation
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.errors import ConfigError

__all__ = ["OneLaunch", "TrainedNetwork", "choose", "variants"]

WARPS = 8
# Weights and velocities of a thread, of the 255 registers that it has.
MOST_HELD = 144
MOST_OUTPUTS = 128
CLUSTERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class TrainedNetwork:
    """What is trained, as far as the kernel depends on it.

    Attributes
    ----------
    dtype : str
        Of products: ``'float16'`` or ``'bfloat16'``.
    features, hidden, outputs : int
        Sizes; `hidden` is 0 for a network without a hidden layer.
    batch : int
        Rows of a step.
    activation : Activation
        Of the hidden layer.
    cross_entropy : bool
        Whether the loss is softmax cross-entropy, else the mean squared error.
    momentum, nesterov : bool
    """

    dtype: str
    features: int
    hidden: int
    outputs: int
    batch: int
    activation: Activation
    cross_entropy: bool
    momentum: bool
    nesterov: bool


@dataclass(frozen=True)
class OneLaunch:
    """A block's shape for a network; printable.

    Attributes
    ----------
    network : TrainedNetwork
    cluster : int
        Blocks, which share out the units of a hidden layer, or the features if there is none.
    warps_k, warps_u : int
        Groups of warps along a block's features, and along its units of the layer that takes them.
    stages : int
        Batches in shared memory at once; with two, one is fetched while the other is trained on.
    """

    network: TrainedNetwork
    cluster: int
    warps_k: int
    warps_u: int
    stages: int

    @property
    def block_features(self) -> int:
        """Features that a block multiplies by, a multiple of 16."""
        return _padded(
            self.network.features if self.network.hidden else -(-self.network.features // self.cluster)
        )

    @property
    def block_units(self) -> int:
        """Units of a block, a multiple of 16."""
        return _padded(
            -(-self.network.hidden // self.cluster) if self.network.hidden else self.network.outputs
        )

    @property
    def x_width(self) -> int:
        """Numbers of a row of x, zeros at its end included."""
        return self.block_features * (1 if self.network.hidden else self.cluster)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_k * self.warps_u

    @property
    def tiles_of_warp(self) -> int:
        """Tiles of 16 by 16 weights that a warp holds."""
        return -(-(self.block_features // 16) // self.warps_k) * (self.block_units // 16 // self.warps_u)

    @property
    def held(self) -> int:
        """Registers of a thread for weights, velocities, and the weights' copies in half precision."""
        return self.tiles_of_warp * (8 + 4 + 8 * self.network.momentum)

    @property
    def shared_bytes(self) -> int:
        """Shared memory, as ``struct Shared`` of the kernel has it."""
        network = self.network
        rows, units, outputs = _padded(network.batch), self.block_units, _padded(network.outputs)
        target_words = 1 if network.cross_entropy else network.outputs
        halves = self.stages * rows * (self.block_features + 8) + rows * (outputs + 8)
        words = rows * outputs if self.cluster > 1 else 0
        words += (
            self.warps_k * rows * (units + 8) + 2 * units + self.stages * rows * target_words + 4 * rows + 1
        )
        bytes_ = _padded(2 * halves + 4 * words)
        if network.hidden:
            halves = 2 * rows * (units + 8) + units * (outputs + 8)
            words = units * outputs + (units if network.momentum else 1) * outputs + 2 * outputs
            bytes_ += _padded(2 * halves + 4 * words)
        return bytes_

    @property
    def defines(self) -> dict[str, Any]:
        """The kernel's defines."""
        network = self.network
        return {
            "DTYPE": network.dtype,
            "FEATURES": network.features,
            "HIDDEN": network.hidden,
            "OUTPUTS": network.outputs,
            "BATCH": network.batch,
            "CLUSTER": self.cluster,
            "WARPS_K": self.warps_k,
            "WARPS_U": self.warps_u,
            "STAGES": self.stages,
            "ACTIVATION": network.activation.name,
            "NEEDS_INPUT": int(network.activation.needs_input),
            "CROSS_ENTROPY": int(network.cross_entropy),
            "MOMENTUM": int(network.momentum),
            "NESTEROV": int(network.nesterov),
            "SHARED_BYTES": self.shared_bytes,
        }

    def __str__(self) -> str:
        blocks = "one block" if self.cluster == 1 else f"a cluster of {self.cluster} blocks, in each"
        return (
            f"{blocks}, {self.warps_k}x{self.warps_u} warps over features and units, {self.stages} batches in "
            f"{self.shared_bytes} bytes of shared memory"
        )


def _padded(size: int) -> int:
    """Return the next multiple of 16: of numbers for tensor cores, of bytes for copies."""
    return -(-size // 16) * 16


@lru_cache(maxsize=256)
def choose(network: TrainedNetwork, arch: str, max_shared_bytes: int) -> OneLaunch:
    """Return how to launch a network's training.

    Raises
    ------
    ConfigError
        If it does not fit; the message names what is in the way, with its bytes.
    """
    if not supports(arch, network.dtype):
        raise ConfigError(f"expected an architecture whose tensor cores multiply {network.dtype}, got {arch}")
    if network.outputs > MOST_OUTPUTS:
        raise ConfigError(f"expected at most {MOST_OUTPUTS} outputs, got {network.outputs}")
    shapes = [
        shape
        for cluster in _clusters(network, arch)
        for shape in _shapes(network, cluster)
        if shape.held <= MOST_HELD
    ]
    if not shapes:
        least = min(_shapes(network, _clusters(network, arch)[-1]), key=lambda shape: shape.held)
        raise ConfigError(
            f"expected at most {4 * MOST_HELD * least.threads} bytes of weights for the registers of a block, got "
            f"{4 * least.held * least.threads}"
        )
    fitting = [shape for shape in shapes if shape.shared_bytes <= max_shared_bytes]
    if fitting:
        return max(fitting, key=lambda shape: shape.stages)  # the first, which has the fewest blocks
    least = min(shapes, key=lambda shape: shape.shared_bytes)
    raise ConfigError(
        f"expected at most {max_shared_bytes} bytes of shared memory for a batch and its units, got "
        f"{least.shared_bytes}"
    )


def _clusters(network: TrainedNetwork, arch: str) -> list[int]:
    """Return the numbers of blocks that have 16 units or features each at least, fewest first."""
    parts = _padded(network.hidden or network.features) // 16
    has_clusters = generation(arch) >= 90
    return [size for size in CLUSTERS if size == 1 or (has_clusters and size <= parts)]


def _shapes(network: TrainedNetwork, cluster: int) -> list[OneLaunch]:
    """Return the ways to share a block's work out to warps, the best first."""
    shapes = [
        OneLaunch(network, cluster, WARPS // warps_u, warps_u, stages)
        for stages, warps_u in product((2, 1), (1, 2, 4, 8))
    ]
    shapes = [shape for shape in shapes if shape.block_units // 16 % shape.warps_u == 0]
    # Batches fetched ahead first, then warps that have as little to do as possible, and few parts of sums.
    return sorted(shapes, key=lambda shape: (-shape.stages, shape.tiles_of_warp, shape.warps_k))


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return a choice of what a run compiles: each network has its own kernel."""
    base = TrainedNetwork("float16", 64, 64, 10, 32, Activation("relu"), True, False, False)
    networks = [replace(base, dtype=dtype) for dtype in HALF_DTYPES]
    networks += [replace(base, activation=Activation(name)) for name in ACTIVATIONS]
    networks += [
        replace(base, momentum=True),
        replace(base, momentum=True, nesterov=True, cross_entropy=False, outputs=1),
        replace(base, features=784, hidden=0, batch=64),
        replace(base, features=784, hidden=0, batch=64, dtype="bfloat16", momentum=True),
        replace(base, features=784, hidden=0, batch=128),
        replace(base, features=784, hidden=256, batch=64),
        replace(base, features=784, hidden=256, batch=64, momentum=True),
    ]
    found = [choose(network, "sm_90a", 227 << 10).defines for network in dict.fromkeys(networks)]
    return [("one_launch", {name: str(value) for name, value in defines.items()}) for defines in found]
