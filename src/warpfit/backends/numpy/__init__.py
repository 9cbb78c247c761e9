"""The NumPy backend: the executable specification of every operation."""

from __future__ import annotations

from contextlib import AbstractContextManager

from warpfit.backends.numpy import parallel
from warpfit.backends.numpy.activation import ActivationOps
from warpfit.backends.numpy.arrays import ArrayOps
from warpfit.backends.numpy.conv import ConvOps
from warpfit.backends.numpy.dense import DenseOps
from warpfit.backends.numpy.dropout import DropoutOps
from warpfit.backends.numpy.elementwise import ElementwiseOps
from warpfit.backends.numpy.image_windows import WindowOps
from warpfit.backends.numpy.loss import LossOps
from warpfit.backends.numpy.members import MemberOps
from warpfit.backends.numpy.norm import NormOps
from warpfit.backends.numpy.optim import OptimOps
from warpfit.backends.numpy.piecewise_linear import PiecewiseLinearOps
from warpfit.backends.numpy.pool import PoolOps

__all__ = ["NumpyBackend"]


class NumpyBackend(
    DenseOps,
    ActivationOps,
    LossOps,
    OptimOps,
    ConvOps,
    PoolOps,
    NormOps,
    DropoutOps,
    MemberOps,
    PiecewiseLinearOps,
    WindowOps,
    ElementwiseOps,
    ArrayOps,
):
    """All operations over NumPy arrays, on the CPU.

    Parameters
    ----------
    reuse : bool
        Whether results live in buffers that the next `begin_step` takes back. A training loop wants
        that; everybody else wants results of their own, the default.
    """

    name = "numpy"
    synchronous = True

    def own_threads(self) -> AbstractContextManager[None]:
        return parallel.own_threads()
