"""What a network's training asks of a kernel that runs it whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from warpfit.backends.base import Activation
from warpfit.backends.cuda.dtypes import class_name
from warpfit.backends.cuda.image_shapes import Convolution
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.loss import COUNTING_LOSSES
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.backends.cuda.sizes import padded
from warpfit.backends.update_rules import UPDATE_RULES
from warpfit.errors import Obstacle

MOST_OUTPUTS = 128
# Blocks of a cluster.
CLUSTERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class TrainedNetwork:
    """What is trained, as far as a kernel depends on it."""

    dtype: str  # of products: 'float16' or 'bfloat16'
    # Of what the first linear layer takes, of each hidden layer, and of the outputs.
    widths: tuple[int, ...]
    activations: tuple[Activation, ...]  # of each hidden layer
    drops: tuple[bool, ...]  # whether dropout follows each hidden layer
    batch: int  # rows of a step
    loss: str  # by its name: 'cross_entropy', or one that is a sum over outputs
    smoothed: bool = False  # whether labels are smoothed
    optimizer: str = "sgd"  # its rule, a key of `UPDATE_RULES`
    slots: int = 0  # numbers of optimizer state a parameter
    momentum: bool = False
    nesterov: bool = False
    decays: bool = False  # whether a share of the parameters joins their gradients
    weighted: bool = False  # whether samples have weights
    class_weights: bool = False  # whether classes have
    clips: bool = False  # whether the norm of the gradients is limited
    penalized: bool = False  # whether the squares of weights join the loss
    # Whether they do so over the sum of the samples' weights, in place of their number.
    weighed_penalty: bool = False
    rate_in_velocity: bool = False  # whether velocities have the learning rate in them
    # Whether launches end within epochs, too. A kernel that looks ahead begins a launch as it
    # begins an epoch, and such a cut would change bits: it must not look ahead then.
    is_cut: bool = False
    # Numbers of `dtype` whose sum a number of a product is: two for products as of float32.
    terms: int = 1
    cards: int = 1  # that partition each batch
    # Convolutions before the linear layers; and height, width and channels of what they take.
    convolutions: tuple[Convolution, ...] = ()
    image: tuple[int, ...] = ()

    @property
    def features(self) -> int:
        """Numbers of a row of x."""
        return prod(self.image) if self.convolutions else self.widths[0]

    @property
    def is_plain(self) -> bool:
        """Whether all rows count alike and only once, without dropout, penalties and clipping."""
        has_weights = self.weighted or self.class_weights
        has_more = any(self.drops) or self.clips or self.penalized
        return not has_weights and not has_more and self.terms <= 1

    @property
    def is_for_sweeps(self) -> bool:
        """Whether the kernels that train many may: without clipping, and without a penalty where
        rows have weights.
        """
        is_weighed = self.weighted or self.class_weights
        return not self.clips and self.terms <= 1 and not (self.penalized and is_weighed)

    @property
    def outputs(self) -> int:
        """Numbers that a row becomes."""
        return self.widths[-1]

    @property
    def is_cross_entropy(self) -> bool:
        """Whether targets are labels."""
        return self.loss == "cross_entropy"

    @property
    def is_adaptive(self) -> bool:
        """Whether the optimizer needs a batch's whole gradient at once."""
        return not UPDATE_RULES[self.optimizer].is_linear

    @property
    def target_words(self) -> int:
        """Words of a row's target: its label, or its numbers, and its weight if it has one."""
        return (1 if self.is_cross_entropy else self.outputs) + self.weighted

    def batches(self, num_rows: int) -> int:
        """Return how many batches so many rows are."""
        return -(-num_rows // self.batch)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of `ResidentConfig`, which all kernels share."""
        return {
            "dtype": self.dtype,
            "batch": self.batch,
            "outputs": self.outputs,
            "loss": class_name(self.loss),
            "smoothed": self.smoothed,
            "counts_rows": self.loss in COUNTING_LOSSES,
            "optimizer": f"{class_name(self.optimizer)}Rule",
            "adaptive": self.is_adaptive,
            "slots": self.slots,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "decays": self.decays,
            "rate_in_velocity": self.rate_in_velocity,
        }

    @property
    def layer_settings(self) -> dict[str, Any]:
        """Those of `OfLayers`; no activation follows the last."""
        return settings_of_layers(self.widths, (*self.activations, Activation(slope=0.0)))

    @property
    def dropouts(self) -> tuple[bool, ...]:
        """Whether dropout follows each layer: none does the last."""
        return (*self.drops, False)

    @property
    def weight_settings(self) -> dict[str, Any]:
        """Those that say what rows weigh, and weights cost."""
        return {
            "penalized": self.penalized,
            "weighted": self.weighted,
            "class_weights": self.class_weights,
        }

    def gather_defines(
        self, source: str, parts: int, part_width: int, chunk_rows: int
    ) -> dict[str, Any]:
        """Return the defines of the kernel that gathers the batches, from x of dtype `source`."""
        return {
            "SOURCE": source,
            "DTYPE": self.dtype,
            "TERMS": self.terms,
            "FEATURES": self.features,
            "BATCH": self.batch,
            "PARTS": parts,
            "PART_WIDTH": part_width,
            "CHUNK_ROWS": chunk_rows,
            "TARGET_WORDS": self.target_words - self.weighted,
            "WEIGHTED": int(self.weighted),
            "TARGET_STRIDE": 2 if self.is_cross_entropy else self.outputs,
        }

    def gram_defines(self, parts: int, part_width: int, chunk_rows: int) -> dict[str, Any]:
        """Return the defines of the kernel that finds the Gram matrices of batches."""
        return {
            "DTYPE": self.dtype,
            "BATCH": self.batch,
            "PARTS": parts,
            "PART_WIDTH": part_width,
            "CHUNK_ROWS": chunk_rows,
        }

    @property
    def gram_threads(self) -> int:
        """Threads of a block of that kernel: a warp takes 16 to 64 rows, and up to 64 of the batch
        before.
        """
        row_tiles = padded(self.batch) // 16
        own = 1 if row_tiles < 4 or row_tiles % 2 else 2 if row_tiles == 4 or row_tiles % 4 else 4
        return 32 * (row_tiles // own) * -(-row_tiles // 4)

    @property
    def gram_bytes(self) -> int:
        """Bytes of the Gram matrix of a batch and the one before."""
        return 2 * padded(self.batch) ** 2


def settings_of_layers(widths: Sequence[int], activations: Sequence[Activation]) -> dict[str, Any]:
    """Return the settings of `OfLayers`, of the features' and each layer's width, and what follows
    each layer.
    """
    return {
        "layers": len(activations),
        "widths": tuple(widths),
        "activations": tuple(activation.name for activation in activations),
        "slopes": tuple(float(activation.slope) for activation in activations),
    }


def counted(count: int, noun: str) -> str:
    """Return in words how many there are."""
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def unsuited(network: TrainedNetwork, arch: str) -> Obstacle | None:
    """Return that tensor cores do not multiply a dtype, or that a warp has no room for the outputs,
    if so.
    """
    if not supports(arch, network.dtype):
        return Obstacle(
            f"expected an architecture whose tensor cores multiply {network.dtype}, got {arch}"
        )
    if network.outputs > MOST_OUTPUTS:
        return Obstacle(f"expected at most {MOST_OUTPUTS} outputs, got {network.outputs}")
    return None


def unknown_settings(network: TrainedNetwork) -> dict[str, bool]:
    """Return what kernels of few settings expect, each with whether a network lacks it."""
    return {
        "products in half precision": network.terms > 1,
        "no sample or class weights": network.weighted or network.class_weights,
        "no clipping": network.clips,
        "no penalty": network.penalized,
    }


def lacking(expected: Mapping[str, bool], of_what: str) -> Obstacle | None:
    """Return all that is expected of something and lacks, if anything does."""
    wanted = [what for what, is_lacking in expected.items() if is_lacking]
    return Obstacle(f"expected {' and '.join(wanted)} for {of_what}") if wanted else None


def most_blocks(arch: str) -> int:
    """Return how many blocks a cluster may have."""
    # 16 blocks are more than CUDA promises: these have been seen, or made, to run them.
    return 1 if generation(arch) < 90 else 16 if generation(arch) in (90, 100) else 8


def resident_clusters(cluster: int, num_multiprocessors: int) -> int:
    """Return how many clusters of so many blocks are resident at once, if a block fills a
    multiprocessor.
    """
    # Multiprocessors come in groups that no cluster crosses: 9 of them have room for 8 blocks, as a
    # rule.
    return max(1, num_multiprocessors * 8 // (9 * cluster))


def replicas_with_rows(batch: int, cluster: int, num_multiprocessors: int, wanted: int) -> int:
    """Return how many clusters of a card can partition its rows of a batch, of those wanted, so
    that all are resident and have rows.
    """
    resident, tiles = resident_clusters(cluster, num_multiprocessors), -(-batch // 16)
    tiles_of_replica = -(-tiles // min(wanted, resident, tiles))
    return -(-tiles // tiles_of_replica)
