"""Chains of narrow linear layers in long batches: forward, loss and backward as one kernel, all
updates as another.

`narrow_step.cu` takes tiles of rows through all layers in shared memory and leaves the sums of each
block; the optimizer's update adds these up, in `joined_updates.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any

from warpfit.backends.base import HALF_DTYPES, Activation, Array, LossTerms, Number
from warpfit.backends.checks import check_shape
from warpfit.backends.cuda.arrays import check_record
from warpfit.backends.cuda.dtypes import class_name, dtype_of
from warpfit.backends.cuda.joined_updates import JoinedUpdates, PartialGradient
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.loss import COUNTING_LOSSES
from warpfit.backends.cuda.loss_steps import LossStepOps
from warpfit.backends.cuda.next_batch import StepRows, order_arguments
from warpfit.backends.cuda.resident_config import NarrowStepConfig
from warpfit.backends.cuda.sizes import padded, up
from warpfit.backends.cuda.trained_network import settings_of_layers

# As in kernels/narrow/narrow_step.cu and narrow/narrow_layers.cuh.
MOST_LAYERS = 8
_NETWORK = struct.Struct(f"={2 * MOST_LAYERS}Q")

# Rows of a batch from which on products of narrow layers are cut into slices, which takes more
# kernels than this does.
LEAST_ROWS = 1024
WARPS = 8
# Tiles of 16 inputs, and of 16 outputs, of a piece of gradients, which is a warp's: the first read
# the least of rows again, the last leave the fewest registers unused.
PIECES = ((4, 2), (2, 2), (4, 1), (2, 1))
# Registers of a thread: the most, and those that it needs beside sums and rows.
MOST_REGISTERS, OTHER_REGISTERS = 255, 56
# Bytes that a piece, wider than its layer, may read behind two tiles of x and behind the last
# column.
SLACK = 3 * 32 * max(map(max, PIECES))


@dataclass(frozen=True)
class NarrowNetwork:
    """What is trained, as far as the kernel depends on it."""

    dtype: str  # of rows, weights and what passes between layers: one of half precision
    widths: tuple[int, ...]  # of the features, and of each layer's units
    activations: tuple[Activation, ...]  # of each layer
    loss: str  # as `LossTerms.name`
    is_smoothed: bool = False  # whether labels are smoothed

    @staticmethod
    def of(
        dtype: str, widths: tuple[int, ...], activations: tuple[Activation, ...], loss: LossTerms
    ) -> NarrowNetwork:
        """Return the network that has these layers, and this loss."""
        is_smoothed = loss.name == "cross_entropy" and loss.setting > 0
        return NarrowNetwork(dtype, widths, activations, loss.name, is_smoothed)

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer."""
        return tuple(zip(self.widths, self.widths[1:], strict=False))

    @property
    def first_gradients(self) -> tuple[int, ...]:
        """Where each layer's gradients begin among those of all, and where they end."""
        firsts = [0]
        for inputs, outputs in self.layers:
            firsts.append(firsts[-1] + up((inputs + 1) * outputs, 4))
        return tuple(firsts)


@dataclass(frozen=True)
class NarrowStep:
    """How blocks take a network's rows; printable."""

    network: NarrowNetwork
    warps: int = WARPS  # of a block; each has 16 rows of a tile
    blocks: int = 1  # of a multiprocessor at once
    x_stages: int = 2  # tiles of x at once: with two the next comes while one is computed with
    # Dtype of the data that rows are gathered from; '' for batches, in the network's.
    source: str = ""
    # Tiles of 16 inputs, and of 16 outputs, whose gradients a warp accumulates.
    piece: tuple[int, int] = PIECES[0]

    def __str__(self) -> str:
        tiles = f"tiles of {self.rows} rows, {self.blocks} of a multiprocessor"
        return f"{tiles}, {self.x_stages} stages"

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 16 * self.warps

    @property
    def num_pieces(self) -> int:
        """Pieces of the gradients of all layers."""
        rows, cols = (16 * tiles for tiles in self.piece)
        return sum(
            ceil(inputs / rows) * ceil(outputs / cols) for inputs, outputs in self.network.layers
        )

    @property
    def registers(self) -> int:
        """Registers of a thread, about: for sums, and rows before and after the widest layer."""
        rows, cols = self.piece
        of_pieces = (8 * rows * cols + 4 * cols) * ceil(self.num_pieces / self.warps)
        of_rows = max(
            padded(inputs) // 4 + padded(outputs) // 2 for inputs, outputs in self.network.layers
        )
        return of_pieces + of_rows + OTHER_REGISTERS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: weights and biases; values that layers take; gradients."""
        strides = [padded(width) + 8 for width in self.network.widths]
        weights = sum(
            padded(inputs) * (padded(outputs) + 8) for inputs, outputs in self.network.layers
        )
        rows = strides[0] + sum(strides[1:-1]) + sum(strides[1:])
        biases = sum(map(padded, self.network.widths[1:]))
        ahead = (
            self.network.widths[0] * dtype_of(self.source).itemsize
            if self.source
            else 2 * strides[0]
        )
        of_rows = 2 * rows + (self.x_stages - 1) * ahead
        return padded(2 * (weights + biases) + self.rows * of_rows + SLACK)

    def grid(self, num_rows: int, num_multiprocessors: int) -> int:
        """Return the number of blocks for a batch: one a tile, as far as there is room at once."""
        return max(1, min(-(-num_rows // self.rows), self.blocks * num_multiprocessors))

    @property
    def config(self) -> NarrowStepConfig:
        """The kernel's settings."""
        network = self.network
        return NarrowStepConfig(
            **settings_of_layers(network.widths, network.activations),
            dtype=network.dtype,
            outputs=network.widths[-1],
            loss=class_name(network.loss),
            smoothed=network.is_smoothed,
            counts_rows=network.loss in COUNTING_LOSSES,
            dropouts=(False,) * len(network.activations),
            source=self.source or network.dtype,
            gathers=bool(self.source),
            x_stages=self.x_stages,
            warps=self.warps,
            blocks=self.blocks,
            piece_m=self.piece[0],
            piece_n=self.piece[1],
        )


@lru_cache(maxsize=256)
def choose(
    network: NarrowNetwork, num_rows: int, max_shared_bytes: int, source: str = ""
) -> NarrowStep | None:
    """Return how to take batches of so many rows through a network; None if other kernels have to,
    or better do.

    What it says of tiles, and so of bits, is the same for every source.
    """
    if num_rows < LEAST_ROWS or network.dtype not in HALF_DTYPES or min(network.widths) < 1:
        return None
    if not 1 <= len(network.activations) <= MOST_LAYERS:
        return None
    for piece, x_stages in product(PIECES, (2, 1)):
        step = NarrowStep(network, x_stages=x_stages, source=source, piece=piece)
        if step.shared_bytes <= max_shared_bytes and step.registers <= MOST_REGISTERS:
            return step
    return None


def choose_on(
    runtime: Any, network: NarrowNetwork, num_rows: int, source: str = ""
) -> NarrowStep | None:
    """Return so for a device; None, too, if it does not join updates."""
    if not JoinedUpdates.are_possible(runtime, network.dtype):
        return None
    return choose(network, num_rows, runtime.max_shared_bytes, source)


class NarrowOps(LossStepOps):
    """A whole step but for its update."""

    def narrow_step(
        self,
        x: Array,
        layers: Sequence[tuple[Array, Array | None, Activation]],
        targets: Array,
        loss: LossTerms,
        record: Array,
        row: Number,
        rows: StepRows | None = None,
    ) -> list[tuple[Any, Any]] | None:
        widths = (x.shape[1], *(w.shape[1] for w, _, _ in layers))
        activations = tuple(activation for _, _, activation in layers)
        network = NarrowNetwork.of(layers[0][0].dtype.name, widths, activations, loss)
        num_rows, source = (len(x), "") if rows is None else (rows.num_rows, x.dtype.name)
        joined, step = self.joined_updates, choose_on(self.runtime, network, num_rows, source)
        if joined is None or step is None or not joined.has_copies([w for w, _, _ in layers]):
            return None
        return self.start_narrow_step(step, x, layers, targets, loss, record, row, rows)

    def start_narrow_step(
        self,
        step: NarrowStep,
        x: Array,
        layers: Sequence[tuple[Array, Array | None, Activation]],
        targets: Array,
        loss: LossTerms,
        record: Array,
        row: Number,
        rows: StepRows | None = None,
    ) -> list[tuple[PartialGradient, PartialGradient | None]]:
        """Do so as `step` says, whatever the number of rows."""
        network, num_rows = step.network, len(x) if rows is None else rows.num_rows
        is_of_labels = network.loss == "cross_entropy"
        expected = (len(x),) if is_of_labels else (len(x), network.widths[-1])
        check_shape("narrow_step", "targets", targets, expected)
        check_record("narrow_step", record, row)
        grid = step.grid(num_rows, self.runtime.num_multiprocessors)
        gradients = self.empty((grid, network.first_gradients[-1]), "float32")
        weights = [w.pointer for w, _, _ in layers]
        biases = [0 if b is None else b.pointer for _, b, _ in layers]
        missing = [0] * (MOST_LAYERS - len(layers))
        self.kernel("narrow_step", **step.config.settings())(
            grid,
            32 * step.warps,
            self.contiguous(x),
            *order_arguments(rows),
            _NETWORK.pack(*weights, *missing, *biases, *missing),
            self._labels(targets) if is_of_labels else self.contiguous(targets),
            gradients,
            record,
            *scalar(row),
            *self._partials(grid, 2),
            loss.setting,
            loss.of_term,
            loss.of_derivative * self.loss_scale,
            num_rows,
            shared_bytes=step.shared_bytes,
        )
        found: list[tuple[PartialGradient, PartialGradient | None]] = []
        for (inputs, outputs), (_, b, _), first in zip(
            network.layers, layers, network.first_gradients, strict=False
        ):
            of_weights = PartialGradient(gradients, first, 1 / self.loss_scale)
            of_bias = replace(of_weights, first=first + inputs * outputs)
            found.append((of_weights, None if b is None else of_bias))
        return found
