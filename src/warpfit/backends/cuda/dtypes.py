"""The dtypes of device arrays: NumPy's, and bfloat16, which NumPy does not have."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.errors import DTypeError

# Float dtypes that kernels take: the half ones are stored as such and computed in float32.
DEVICE_FLOATS = ("float32", "float64", "float16", "bfloat16")


class _BFloat16:
    """The upper half of a float32. Equal to its name, as NumPy's dtypes are."""

    name, kind, itemsize = "bfloat16", "f", 2

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dtype('{self.name}')"


BFLOAT16 = _BFloat16()

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def dtype_of(dtype: Any) -> Any:
    """Return the dtype object that `dtype`, a name or a dtype, stands for.

    Raises
    ------
    DTypeError
        If it is none that a device array can have.
    """
    if dtype is BFLOAT16 or dtype == BFLOAT16.name:
        return BFLOAT16
    found = np.dtype(dtype)
    if found.kind not in "fiub" or found.itemsize > 8:
        raise DTypeError(f"expected a dtype of numbers of at most 8 bytes, got {found}")
    return found


def host_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype of the same bytes: uint16 for bfloat16."""
    return np.dtype(np.uint16) if dtype is BFLOAT16 else dtype


def class_name(name: str) -> str:
    """Return what kernels call the class of a name: ``'CrossEntropy'`` for ``'cross_entropy'``."""
    return "".join(part.capitalize() for part in name.split("_"))


def acc_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype that kernels compute in: float64 for itself, float32 for other floats."""
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32
