"""How RealMLP networks are trained as one kernel on a whole card, or what is in the way.

`table_networks.cu` takes a batch through a network in blocks of rows, and updates it by all warps
of the grid; this module says how large both are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import ClassVar

from warpfit.backends.base import Activation
from warpfit.backends.cuda.jit import generation
from warpfit.backends.cuda.table_config import TableConfig
from warpfit.errors import Obstacle

# As in kernels/tabular/table_shapes.cuh.
WARPS, WAVES, MADE, OF_CODE, MOST_SPLIT = 16, 16, 3, 8, 8
TILE, TILE_BYTES = 16, 512
MOST_LAYERS = 8
MOST_UNITS, MOST_OF_ONE, MOST_OUTPUTS = TILE * WARPS, 2 * TILE * WARPS, TILE * MOST_SPLIT
# What gradients of a row's loss are multiplied by, so that 16 bits hold them: those of logits are
# below 1, those of numbers some tens.
GRADIENT_SCALE = 64.0


def tiles_of(size: int) -> int:
    """Return how many tiles of 16 hold so many numbers."""
    return -(-size // TILE)


@dataclass(frozen=True)
class TableShape:
    """What networks are that train together, and how.

    Attributes
    ----------
    numbers, indicators : int
        Columns that become waves, and that are taken as they are.
    num_codes : tuple of int
        For each column of codes, how many there are.
    hidden, hidden_layers : int
        Units of each hidden layer, and how many layers.
    outputs : int
    activation : Activation
    smoothing : float or None
        Of labels; None if targets are numbers.
    batch : int
        Rows of a step.
    networks : int
    """

    numbers: int
    indicators: int
    num_codes: tuple[int, ...]
    hidden: int
    hidden_layers: int
    outputs: int
    activation: Activation
    smoothing: float | None
    batch: int
    networks: int = 1

    @property
    def inputs(self) -> int:
        """Of the first layer."""
        return (MADE + 1) * self.numbers + self.indicators + OF_CODE * len(self.num_codes)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the first layer's inputs, and of each layer's units."""
        return (self.inputs, *(self.hidden,) * self.hidden_layers, self.outputs)

    @property
    def columns(self) -> int:
        """Numbers of a row."""
        return self.numbers + self.indicators + len(self.num_codes)

    @property
    def num_vectors(self) -> int:
        """Parameters that are neither weights of layers nor embeddings of codes."""
        of_waves = self.numbers * ((2 + MADE) * WAVES + MADE)
        return of_waves + 2 * self.hidden * self.hidden_layers + self.outputs + self.inputs

    @property
    def num_parameters(self) -> int:
        """All of a network, with those that fill tiles and the last quarter of 16 bytes."""
        weights = TILE * TILE * sum(tiles_of(i) * tiles_of(j) for i, j in pairwise(self.widths))
        return -(-(weights + self.num_vectors + OF_CODE * sum(self.num_codes)) // 4) * 4


@dataclass(frozen=True)
class TableLaunch:
    """How blocks share the training; a frozen, printable value.

    Attributes
    ----------
    shape : TableShape
    row_tiles : int
        Of 8 rows, that a block takes at once.
    blocks : int
    dtype : str
        Of products.
    """

    shape: TableShape
    row_tiles: int
    blocks: int
    dtype: str = "float16"

    kernel: ClassVar[str] = "table_networks"
    threads: ClassVar[int] = 32 * WARPS

    @property
    def rows(self) -> int:
        """Rows that a block takes at once."""
        return 8 * self.row_tiles

    @property
    def row_blocks(self) -> int:
        """Blocks of so many rows in a batch."""
        return -(-self.shape.batch // self.rows)

    @property
    def memory_bytes(self) -> int:
        """Of ``TableMemory``, for each network."""
        shape, widths = self.shape, self.shape.widths
        weights = sum(tiles_of(inputs) * tiles_of(units) for inputs, units in pairwise(widths))
        rows = sum(map(tiles_of, widths)) * tiles_of(shape.batch)
        codes = max(1, len(shape.num_codes)) * shape.batch
        numbers = self.row_blocks * shape.num_vectors + codes * (OF_CODE + 1)
        of_tiles = TILE_BYTES * 2 * (weights + rows)  # weights lie there for both products
        return -(-(of_tiles + 4 * numbers) // TILE) * TILE

    @property
    def shared_bytes(self) -> int:
        """Of ``TableShared``, whose alignment takes some."""
        shape, widths = self.shape, self.shape.widths
        first, last = tiles_of(shape.inputs), tiles_of(shape.outputs)
        split = TILE * max(last, first if first <= MOST_SPLIT else 1)
        stride = TILE * max(map(tiles_of, widths)) + 8
        of_row = 4 * stride + 4 * WARPS * (split + 4) + 8 * shape.inputs
        of_row += 8 * TILE * tiles_of(shape.hidden) * shape.hidden_layers
        targets = 1 if shape.smoothing is not None else shape.outputs
        of_row += 4 * (shape.columns + targets + 1)
        return self.rows * of_row + 4 * shape.num_vectors + 9 * shape.networks + 128

    @property
    def config(self) -> TableConfig:
        """The kernel's settings."""
        shape = self.shape
        codes = shape.num_codes
        return TableConfig(
            dtype=self.dtype,
            networks=shape.networks,
            numbers=shape.numbers,
            indicators=shape.indicators,
            codes=len(codes),
            num_codes=sum(codes),
            code_starts=tuple(sum(codes[:idx]) for idx in range(len(codes))) or (0,),
            hidden=shape.hidden,
            hidden_layers=shape.hidden_layers,
            outputs=shape.outputs,
            first_root=1 / sqrt(shape.inputs),
            root=1 / sqrt(shape.hidden),
            activation=shape.activation.name,
            slope=shape.activation.slope,
            has_labels=shape.smoothing is not None,
            smoothing=shape.smoothing or 0.0,
            batch=shape.batch,
            row_tiles=self.row_tiles,
            gradient_scale=GRADIENT_SCALE,
            gradient_unscale=1 / (GRADIENT_SCALE * shape.batch),
            beta1=0.9,
            beta2=0.95,
            memory_bytes=self.memory_bytes,
            shared_bytes=self.shared_bytes,
        )


def choose_table(
    shape: TableShape, arch: str, max_shared_bytes: int, num_multiprocessors: int
) -> TableLaunch | Obstacle:
    """Return how to launch the training of networks of a shape, or what is in the way."""
    if generation(arch) < 80:
        return Obstacle(f"expected an architecture from sm_80 on, got {arch}")
    most = MOST_UNITS if shape.hidden_layers > 1 else MOST_OF_ONE
    if not shape.inputs or not 1 <= shape.hidden <= most:
        return Obstacle(
            f"expected layers of 1 to {MOST_UNITS} units, or one of at most {MOST_OF_ONE}, got "
            f"{shape.widths}"
        )
    if shape.hidden_layers > MOST_LAYERS:
        return Obstacle(f"expected at most {MOST_LAYERS} hidden layers, got {shape.hidden_layers}")
    if shape.outputs > MOST_OUTPUTS:
        return Obstacle(f"expected at most {MOST_OUTPUTS} outputs, got {shape.outputs}")
    narrow = TableLaunch(shape, 1, num_multiprocessors)
    wide = replace(narrow, row_tiles=2)
    is_crowded = shape.networks * narrow.row_blocks > num_multiprocessors
    launch = wide if is_crowded and wide.shared_bytes <= max_shared_bytes else narrow
    if launch.shared_bytes > max_shared_bytes:
        return Obstacle(
            f"expected at most {max_shared_bytes} bytes of shared memory for a block's rows, got "
            f"{launch.shared_bytes}"
        )
    return launch
