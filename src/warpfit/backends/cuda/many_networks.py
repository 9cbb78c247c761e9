"""Whole training runs of many small networks of one shape in one launch: a network at a time in
each block.

`many_networks.cu` keeps a network's parameters in a block for its whole run; this module says how
warps partition them, and what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any

from warpfit.backends.base import Activation
from warpfit.backends.cuda.many_launch import ManyLaunch
from warpfit.backends.cuda.narrow_step import MOST_LAYERS, PIECES, SLACK, NarrowNetwork
from warpfit.backends.cuda.resident_arguments import ManyArguments
from warpfit.backends.cuda.resident_config import ManyConfig
from warpfit.backends.cuda.sizes import padded
from warpfit.backends.cuda.trained_network import TrainedNetwork, counted, unsuited
from warpfit.errors import Obstacle

WARPS = (8, 4, 2, 1)
# Registers of a multiprocessor, the most of a thread, and those that it needs beside parameters,
# sums and rows.
REGISTERS, MOST_REGISTERS, OTHER_REGISTERS = 65536, 255, 64
MOST_BLOCKS = 8


@dataclass(frozen=True)
class ManyNetworks(ManyLaunch):
    """How a block trains a network; printable."""

    network: TrainedNetwork  # what all of them are
    warps: int  # of a block; each has 16 rows of a tile
    blocks: int  # of a multiprocessor at once
    # Tiles of 16 inputs, and of 16 outputs, of which a warp has the parameters.
    piece: tuple[int, int]
    in_registers: bool  # whether parameters stay in registers, or in shared memory

    kernel = "many_networks"
    arguments = ManyArguments
    label_dtype = "int64"
    pads_rows = False
    cluster = 1

    def groups(self, num_multiprocessors: int) -> int:
        """Return how many networks train at once."""
        return self.blocks * num_multiprocessors

    def blocks_of(self, num_networks: int) -> int:
        """Return how many blocks train so many networks at once."""
        return num_networks

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def pieces_of_warp(self) -> int:
        """Pieces that the first warp has; no other has more."""
        rows, cols = (16 * tiles for tiles in self.piece)
        pieces = sum(ceil(inputs / rows) * ceil(outputs / cols) for inputs, outputs in self._layers)
        return ceil(pieces / self.warps)

    @property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.network.widths, self.network.widths[1:], strict=False))

    @property
    def held(self) -> int:
        """Numbers that a thread holds: parameters, and their optimizer state."""
        rows, cols = self.piece
        return (1 + self.network.slots) * self.pieces_of_warp * (8 * rows * cols + 2 * cols)

    @property
    def registers(self) -> int:
        """Registers of a thread, about: what it holds, sums, rows around the widest layer."""
        rows, cols = self.piece
        of_pieces = (
            8 * rows * cols + 4 * cols
        ) * self.pieces_of_warp + self.held * self.in_registers
        of_rows = max(
            padded(inputs) // 4 + padded(outputs) // 2 for inputs, outputs in self._layers
        )
        return of_pieces + of_rows + OTHER_REGISTERS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: weights, biases, rows, values, gradients, parameters."""
        strides = [padded(width) + 8 for width in self.network.widths]
        weights = sum(padded(inputs) * (padded(outputs) + 8) for inputs, outputs in self._layers)
        rows = 2 * strides[0] + sum(strides[1:-1]) + sum(strides[1:])
        biases = sum(map(padded, self.network.widths[1:]))
        held = 0 if self.in_registers else 4 * self.held * self.threads
        return padded(2 * (weights + biases + 16 * self.warps * rows) + held + SLACK)

    @property
    def x_width(self) -> int:
        return self.network.features

    @property
    def num_parameters(self) -> int:
        """Numbers of a network's parameters, padding included."""
        return self._as_narrow.first_gradients[-1]

    @property
    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Where layers' weights and biases begin among a network's parameters; their shapes."""
        found: list[tuple[int, tuple[int, ...]]] = []
        for (inputs, outputs), first in zip(
            self._layers, self._as_narrow.first_gradients, strict=False
        ):
            found += [(first, (inputs, outputs)), (first + inputs * outputs, (outputs,))]
        return found

    @property
    def _as_narrow(self) -> NarrowNetwork:
        activations = (*self.network.activations, Activation())
        return NarrowNetwork(
            self.network.dtype, self.network.widths, activations, self.network.loss
        )

    @property
    def config(self) -> ManyConfig:
        """The kernel's settings."""
        return ManyConfig(
            **self.network.settings,
            **self.network.layer_settings,
            **self.network.weight_settings,
            dropouts=self.network.dropouts,
            gathers=False,
            x_stages=2,
            warps=self.warps,
            blocks=self.blocks,
            piece_m=self.piece[0],
            piece_n=self.piece[1],
            in_registers=self.in_registers,
        )

    def __str__(self) -> str:
        where = "registers" if self.in_registers else "shared memory"
        return (
            f"a network in each block of {counted(self.warps, 'warp')}, its parameters in {where}, "
            f"{counted(self.blocks, 'block')} a multiprocessor"
        )


def suits(network: TrainedNetwork) -> bool:
    """Return whether a network is of the kind that this kernel is for."""
    return len(network.widths) - 1 <= MOST_LAYERS and network.is_for_sweeps


@lru_cache(maxsize=256)
def choose(network: TrainedNetwork, arch: str, max_shared_bytes: int) -> ManyNetworks | Obstacle:
    """Return how blocks train networks of this shape, or what is in the way."""
    if (obstacle := unsuited(network, arch)) is not None:
        return obstacle
    if not suits(network):
        return Obstacle(
            f"expected at most {MOST_LAYERS} layers, without clipping, or a penalty with weights, "
            f"got {network}"
        )
    shapes = list(_shapes(network, max_shared_bytes))
    if not shapes:
        return Obstacle(_too_large(network, max_shared_bytes))
    return max(shapes, key=_preference)


def _too_large(network: TrainedNetwork, max_shared_bytes: int) -> str:
    """Return what of a block a network has not enough of in any shape."""
    shapes = [
        ManyNetworks(network, warps, 1, piece, False) for warps, piece in product(WARPS, PIECES)
    ]
    fitting = [shape for shape in shapes if shape.shared_bytes <= max_shared_bytes]
    if fitting:
        most, unit, got = (
            MOST_REGISTERS,
            "registers of a thread",
            min(shape.registers for shape in fitting),
        )
    else:
        most, unit, got = (
            max_shared_bytes,
            "bytes of shared memory",
            min(s.shared_bytes for s in shapes),
        )
    return f"expected at most {most} {unit} for a network in a block, got {got}"


def _shapes(network: TrainedNetwork, max_shared_bytes: int) -> Iterator[ManyNetworks]:
    for warps, piece, in_registers in product(WARPS, PIECES, (True, False)):
        shape = ManyNetworks(network, warps, 1, piece, in_registers)
        if shape.shared_bytes > max_shared_bytes or shape.registers > MOST_REGISTERS:
            continue
        room = min((max_shared_bytes + 1024) // (shape.shared_bytes + 1024), MOST_BLOCKS)
        blocks = min(room, REGISTERS // (shape.threads * padded(shape.registers)))
        yield replace(shape, blocks=max(1, blocks))


def _preference(shape: ManyNetworks) -> Any:
    """Return what is larger for the better of two shapes, as measured: see docs/log/sweeps.md."""
    with_rows = min(shape.warps, ceil(shape.network.batch / 16))
    tiles = shape.pieces_of_warp * shape.piece[0] * shape.piece[1]
    return shape.blocks * with_rows, shape.in_registers, -tiles, -shape.warps, shape.piece
