"""What the kernel that trains networks of tables is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from warpfit.backends.cuda.config import ActivationName, Config, Flag, Ints, Number, Real, TypeName


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    """Of ``table_networks``.

    Attributes
    ----------
    dtype : str
        Of products: ``'float16'`` or ``'bfloat16'``.
    networks : int
        That are trained together.
    numbers, indicators, codes, num_codes : int
        Columns of each kind, and the codes of all columns.
    code_starts : tuple of int
        The first code of each column among them.
    hidden, hidden_layers, outputs : int
        Units of each hidden layer, how many of these, and units of the last.
    first_root, root : float
        What products of the first layer, and of the others, are multiplied by.
    activation : str
    slope : float
        Its.
    has_labels : bool
        Whether targets are classes, or numbers.
    smoothing : float
        Of labels.
    batch : int
        Rows of a step.
    row_tiles : int
        Of 8 rows, that a block takes at once: 1 or 2.
    gradient_scale, gradient_unscale : float
        What gradients of a row's loss are multiplied by, and sums of them over a batch.
    beta1, beta2 : float
        Adam's.
    memory_bytes, shared_bytes : int
    """

    dtype: TypeName
    networks: Number
    numbers: Number
    indicators: Number
    codes: Number
    num_codes: Number
    code_starts: Ints
    hidden: Number
    hidden_layers: Number
    outputs: Number
    first_root: Real
    root: Real
    activation: ActivationName
    slope: Real
    has_labels: Flag
    smoothing: Real
    batch: Number
    row_tiles: Number
    gradient_scale: Real
    gradient_unscale: Real
    beta1: Real
    beta2: Real
    memory_bytes: Number
    shared_bytes: Number
