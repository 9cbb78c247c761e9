"""Scales of float16 gradients: what they are multiplied by, so that small ones do not become zero.

A scale is a power of two, so it costs no rounding. `layerwise` and the engines after it share these
rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, frexp, isfinite, log2
from typing import Any

from warpfit import backends
from warpfit.backends import Array
from warpfit.errors import ConfigError

AUTO, DYNAMIC = "auto", "dynamic"
LARGEST, SMALLEST = 2.0**24, 2.0**-24
# Of an array on the host that are looked at together.
PIECE_BYTES = 1 << 25


def resolve_loss_scale(
    loss_scale: Any, precision: str, batch_size: int, num_rows: int, largest_derivative: float = 1.0
) -> float | str:
    """Return the loss scale of a plan, also for one that has it: a power of two, or ``'dynamic'``.

    ``'auto'`` is a power of two near 1024 times the rows of the smallest batch, an epoch's last,
    over `largest_derivative`. The gradient of a mean over a batch has entries of at most that
    derivative over the rows at the outputs. So this puts them below 1024, with six bits of room
    above, and everything down to 2**-34 of the largest above underflow.

    Parameters
    ----------
    loss_scale : float or str
    precision : str
        That of gradients between layers.
    batch_size, num_rows : int
    largest_derivative : float
        The largest derivative that a row's loss may have to begin with, at least 1.

    Raises
    ------
    ConfigError
        If it is neither of the two words nor a power of two from 2**-24 to 2**24, or the precision
        needs none.
    """
    if precision != "float16" and loss_scale == 1.0:
        return 1.0
    if loss_scale == AUTO:
        least = num_rows % batch_size or batch_size
        power = 10 + least.bit_length() - 1 - ceil(log2(largest_derivative))
        return max(SMALLEST, min(LARGEST, 2.0**power)) if precision == "float16" else 1.0
    is_number = isinstance(loss_scale, (int, float)) and isfinite(loss_scale)
    is_power = is_number and SMALLEST <= loss_scale <= LARGEST and frexp(loss_scale)[0] == 0.5
    if loss_scale != DYNAMIC and not is_power:
        raise ConfigError(
            "expected loss_scale 'auto', 'dynamic' or a power of two from 2**-24 to 2**24, got "
            f"{loss_scale!r}"
        )
    if precision != "float16":
        raise ConfigError(
            f"expected loss_scale 'auto' for precision {precision!r}, which needs none, got "
            f"{loss_scale!r}"
        )
    return DYNAMIC if loss_scale == DYNAMIC else float(loss_scale)


@dataclass(frozen=True)
class LossScale:
    """A dynamic scale: halved when a step's gradients overflow, doubled after 2,000 steps in which
    none did.

    References
    ----------
    Micikevicius et al., Mixed Precision Training, 2018, section 3.2; the numbers are PyTorch's
    GradScaler's.
    """

    value: float = 2.0**16
    good_steps: int = 0  # steps without overflow since it last changed

    def after(self, is_finite: bool) -> LossScale:
        """Return the scale of the next step.

        Raises
        ------
        OverflowError
            If no scale keeps the gradients finite.
        """
        if not is_finite:
            if self.value <= SMALLEST:
                raise OverflowError(f"gradients overflow at the smallest scale, {self.value}")
            return LossScale(self.value / 2)
        if self.good_steps + 1 < 2000:
            return LossScale(self.value, self.good_steps + 1)
        return LossScale(min(LARGEST, self.value * 2))


def magnitude(array: Array) -> float:
    """Return the largest magnitude of an array's numbers, as training takes them."""
    if not array.size or str(array.dtype) in ("uint8", "bool"):
        return 1.0  # uint8 means x / 255
    if not backends.is_device_array(array):  # may be larger than the memory that is left for a copy
        at_once = max(1, PIECE_BYTES * len(array) // array.nbytes)
        pieces = (array[first : first + at_once] for first in range(0, len(array), at_once))
        return max(map(_magnitude_of_piece, pieces))
    return _magnitude_of_piece(array)


def _magnitude_of_piece(array: Array) -> float:
    ops = backends.of(array)
    ops.compile_ahead(("reduce", {"OP": op, "DTYPE": "float32"}) for op in ("Min", "Max"))
    numbers = ops.asarray(array, "float32")
    least, most = (float(ops.to_numpy(ops.reduce(name, numbers))) for name in ("min", "max"))
    return max(-least, most)
