"""All operations of the contract as kernels of our own, in one class."""

from __future__ import annotations

import copyreg
from typing import Any

import numpy.typing as npt

from warpfit.backends.cuda.activation import ActivationOps
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps, rehearsing
from warpfit.backends.cuda.conv import ConvOps
from warpfit.backends.cuda.dense import DenseOps
from warpfit.backends.cuda.dropout import DropoutOps
from warpfit.backends.cuda.elementwise import ElementwiseOps
from warpfit.backends.cuda.image_windows import ImageWindowOps
from warpfit.backends.cuda.matrices import MatrixOps
from warpfit.backends.cuda.member_layers import MemberLayerOps
from warpfit.backends.cuda.members import MemberOps
from warpfit.backends.cuda.narrow_step import NarrowOps
from warpfit.backends.cuda.norm import NormOps
from warpfit.backends.cuda.optim import OptimOps
from warpfit.backends.cuda.piecewise_linear import PiecewiseLinearOps
from warpfit.backends.cuda.pool import PoolOps
from warpfit.backends.cuda.runtime import open_device


class CudaBackend(
    MemberLayerOps,
    DenseOps,
    ActivationOps,
    NarrowOps,
    OptimOps,
    MatrixOps,
    NormOps,
    ConvOps,
    PoolOps,
    DropoutOps,
    MemberOps,
    PiecewiseLinearOps,
    ImageWindowOps,
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
        ``'tf32'`` lets products of float32 numbers use tensor cores; every other is decided by the
        arrays' dtype.
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
    stand_in: CudaBackend | None = rehearsing.get()
    if stand_in is not None and stand_in.runtime is runtime:
        return stand_in
    if runtime not in _backends:
        _backends[runtime] = CudaBackend(runtime)
    return _backends[runtime]


# -- what an array does by its backend: it stands below, and cannot import it


def _copied(array: DeviceArray) -> DeviceArray:
    return backend_of(array.runtime).copy(array)


def _pickled(array: DeviceArray) -> tuple[Any, ...]:
    return _restored, (array.runtime.name, array.numpy(), str(array.dtype))


def _restored(device: str, values: npt.NDArray[Any], dtype: str) -> DeviceArray:
    """Return a pickled array on the device that it was on."""
    return backend_of(open_device(int(device.partition(":")[2]))).asarray(values, dtype)


DeviceArray.copied = _copied
copyreg.pickle(DeviceArray, _pickled)
