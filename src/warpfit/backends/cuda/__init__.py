"""The CUDA backend: every operation of the contract as kernels of our own.

A kernel that is to train a whole run is chosen, and begins to be compiled, before `backend` with
all operations is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand

if TYPE_CHECKING:
    from warpfit.backends.cuda.array import DeviceArray
    from warpfit.backends.cuda.backend import CudaBackend, backend_of

__all__ = ["CudaBackend", "DeviceArray", "backend_of"]

__getattr__, __dir__ = imports_on_demand(
    __name__, {"array": ("DeviceArray",), "backend": ("CudaBackend", "backend_of")}
)
