"""How a whole training run is launched as one kernel: sizes, tiles, shared memory, and what does not fit.

`kernels/one_launch.cu` is one block that keeps a layer's weights in its registers; this module says how its warps
share them, or what is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES, Activation
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.errors import ConfigError

__all__ = ["OneLaunch", "TrainedNetwork", "choose", "variants"]

WARPS = 8
# Weights and velocities of a thread, of the 255 registers that it has.
MOST_HELD = 160
MOST_OUTPUTS = 128


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

    @property
    def units(self) -> int:
        """Outputs of the layer that takes the features."""
        return self.hidden or self.outputs


@dataclass(frozen=True)
class OneLaunch:
    """A block's shape for a network; printable.

    Attributes
    ----------
    network : TrainedNetwork
    warps_k, warps_u : int
        Groups of warps along the features, and along the units of the layer that takes them.
    stages : int
        Batches in shared memory at once; with two, one is fetched while the other is trained on.
    """

    network: TrainedNetwork
    warps_k: int
    warps_u: int
    stages: int

    @property
    def x_width(self) -> int:
        """Numbers of a row of x, zeros at its end included."""
        return _padded(self.network.features)

    @property
    def threads(self) -> int:
        return 32 * self.warps_k * self.warps_u

    @property
    def tiles_of_warp(self) -> int:
        """Tiles of 16 by 16 weights that a warp holds."""
        return -(-(self.x_width // 16) // self.warps_k) * (_padded(self.network.units) // 16 // self.warps_u)

    @property
    def held(self) -> int:
        """Registers of a thread for weights, velocities, and the weights' copies in half precision."""
        return self.tiles_of_warp * (8 + 4 + 8 * self.network.momentum)

    @property
    def shared_bytes(self) -> int:
        """Shared memory, as ``struct Shared`` of the kernel has it."""
        network = self.network
        rows, units, outputs = _padded(network.batch), _padded(network.units), _padded(network.outputs)
        target_words = 1 if network.cross_entropy else network.outputs
        halves = self.stages * rows * (self.x_width + 8) + rows * (outputs + 8)
        words = (
            self.warps_k * rows * (units + 8) + 2 * units + self.stages * rows * target_words + 4 * rows + 1
        )
        bytes_ = _aligned(2 * halves + 4 * words)
        if network.hidden:
            halves = 2 * rows * (units + 8) + units * (outputs + 8)
            words = units * outputs + (units if network.momentum else 1) * outputs + 2 * outputs
            bytes_ += _aligned(2 * halves + 4 * words)
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
        return (
            f"one block, {self.warps_k}x{self.warps_u} warps over features and units, {self.stages} batches in "
            f"{self.shared_bytes} bytes of shared memory"
        )


def _padded(size: int) -> int:
    return -(-size // 16) * 16


def _aligned(num_bytes: int) -> int:
    return _padded(num_bytes)


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
    tiles = _padded(network.units) // 16
    shapes = [
        OneLaunch(network, warps_k, warps_u, stages)
        for stages, warps_u in product((2, 1), (1, 2, 4, 8))
        for warps_k in (WARPS // warps_u,)
        if tiles % warps_u == 0
    ]
    # Batches fetched ahead first, then warps that have as little to do as possible, and few parts of sums.
    shapes.sort(key=lambda shape: (-shape.stages, shape.tiles_of_warp, shape.warps_k))
    fitting = [shape for shape in shapes if shape.held <= MOST_HELD]
    if not fitting:
        least = min(shapes, key=lambda shape: shape.held)
        raise ConfigError(
            f"expected at most {4 * MOST_HELD * 32 * WARPS} bytes of weights for the registers of a block, got "
            f"{4 * least.held * 32 * WARPS}"
        )
    for shape in fitting:
        if shape.shared_bytes <= max_shared_bytes:
            return shape
    least = min(fitting, key=lambda shape: shape.shared_bytes)
    raise ConfigError(
        f"expected at most {max_shared_bytes} bytes of shared memory for a batch and its units, got "
        f"{least.shared_bytes}"
    )


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
    ]
    found = [choose(network, "sm_90a", 227 << 10).defines for network in dict.fromkeys(networks)]
    return [("one_launch", {name: str(value) for name, value in defines.items()}) for defines in found]
