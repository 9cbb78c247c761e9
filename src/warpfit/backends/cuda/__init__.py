"""The CUDA backend: every operation of the contract as kernels of our own."""

from __future__ import annotations

from typing import Any

from warpfit.backends.cuda.activation import ActivationOps
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.conv import ConvOps
from warpfit.backends.cuda.dense import DenseOps
from warpfit.backends.cuda.dropout import DropoutOps
from warpfit.backends.cuda.elementwise import ElementwiseOps
from warpfit.backends.cuda.narrow_step import NarrowOps
from warpfit.backends.cuda.norm import NormOps
from warpfit.backends.cuda.optim import OptimOps
from warpfit.backends.cuda.pool import PoolOps

__all__ = ["CudaBackend", "DeviceArray", "backend_of"]


class CudaBackend(
    DenseOps,
    ActivationOps,
    NarrowOps,
    OptimOps,
    ConvOps,
    PoolOps,
    NormOps,
    DropoutOps,
    ElementwiseOps,
    ArrayOps,
):
    """All operations over arrays on one device.

    Parameters
    ----------
    runtime : Runtime
        The device.
    reuse : bool
        Whether results live in buffers that the next `begin_step` takes back.
    precision : str
        ``'tf32'`` lets products of float32 numbers use tensor cores; every other is decided by the arrays' dtype.
    loss_scale : float
        See `Backend.loss_scale`.
    product_kernel : str, optional
        The kernel that computes all products, in place of the one that suits each best.
    """

    name = "cuda"
    synchronous = False


_backends: dict[Any, CudaBackend] = {}


def backend_of(runtime: Any) -> CudaBackend:
    """Return the shared backend of a device; its results belong to the caller."""
    if runtime not in _backends:
        _backends[runtime] = CudaBackend(runtime)
    return _backends[runtime]
