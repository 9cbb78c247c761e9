"""An emulated device for the emulator's own tests, which run planted kernels on it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime
from emulator.sanitized import is_sanitized

__all__ = ["ORDERS", "PLANTED", "Device", "Mapped"]

PLANTED = Path(__file__).parent / "planted"
ORDERS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


class Mapped(NamedTuple):
    """A matrix that a kernel takes as a tensor map: the first columns of an array."""

    array: np.ndarray
    columns: int
    box: tuple[int, int]


class Device:
    """An emulated device that takes arrays: they are uploaded before a launch and downloaded after
    it.
    """

    def __init__(self, **settings: Any) -> None:
        self.runtime = EmulatedRuntime(folder=PLANTED, **{"sanitize": is_sanitized(), **settings})

    def run(
        self,
        kernel: str,
        *arguments: Any,
        grid: int = 1,
        block: int = 32,
        shared: int = 0,
        cluster: int = 1,
        is_cooperative: bool = False,
        **defines: str,
    ) -> None:
        """Launch a planted kernel; integers are passed as int32."""
        function = self.runtime.load(kernel, tuple(defines.items()))
        memories = {}
        for i, argument in enumerate(arguments):
            array = argument.array if isinstance(argument, Mapped) else argument
            if isinstance(array, np.ndarray):
                memories[i] = array, self.runtime.allocate(array.nbytes)
                self.runtime.upload(memories[i][1].pointer, array)
        values = [
            self._value(argument, memories[i][1].pointer if i in memories else 0)
            for i, argument in enumerate(arguments)
        ]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (grid, 1, 1), (block, 1, 1), shared, ctypes.addressof(pointers)
        self.runtime.launch_cluster(function, *sizes, cluster, is_cooperative)
        for array, memory in memories.values():
            self.runtime.download(array, memory.pointer)

    def _value(self, argument: Any, pointer: int) -> Any:
        if isinstance(argument, Mapped):
            rows, leading_dimension = argument.array.shape
            dtype = argument.array.dtype.name
            sizes = rows, argument.columns, leading_dimension, *argument.box
            return ctypes.create_string_buffer(self.runtime.tensor_map(pointer, dtype, *sizes), 128)
        return ctypes.c_void_p(pointer) if pointer else ctypes.c_int(int(argument))
