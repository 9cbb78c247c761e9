"""Our trainer with operations of libraries in place of our kernels: products by cuBLAS, the softmax
by cuDNN.

PyTorch brings both. Its tensors are made over our arrays (DLPack), once for each place in memory,
and its work goes to our stream. PyTorch has no function for cuDNN's softmax, so that is called in
the library that it loads.

References
----------
cuDNN API reference, cudnnSoftmaxForward; cudnn_ops.h for the constants.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from warpfit import backends
from warpfit.backends.cuda import CudaBackend

ACCURATE, OVER_CHANNELS, NCHW, FLOAT = 1, 1, 0, 0


class CublasOps(CudaBackend):
    """The CUDA backend, with float32 products by `torch.mm`."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime, reuse=True)
        # Tensors of the step before, and of this one: those of weights and buffers are made once.
        self._before: dict[Any, Any] = {}
        self._tensors: dict[Any, Any] = {}

    def begin_step(self) -> None:
        super().begin_step()
        self._before, self._tensors = self._tensors, {}

    def tensor(self, array: Any) -> Any:
        """Return PyTorch's view of an array, the same one as in the step before if it lay there."""
        key = array.pointer, array.shape
        found = self._tensors.get(key)
        if found is None:
            found = self._before.get(key)
            found = self._tensors[key] = self.shared(array) if found is None else found
        return found

    def shared(self, array: Any) -> Any:
        """Return a tensor over the memory of an array, which it keeps alive."""
        return torch.from_dlpack(array)

    def matmul(
        self, a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Any:
        out = self.empty((a.shape[transpose_a], b.shape[not transpose_b]), a.dtype)
        left, right = self.tensor(a), self.tensor(b)
        left, right = left.T if transpose_a else left, right.T if transpose_b else right
        torch.mm(left, right, out=self.tensor(out))
        return out


class CudnnOps(CublasOps):
    """Those, with softmax by cuDNN."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        if not torch.backends.cudnn.is_available():
            raise RuntimeError("expected a PyTorch with cuDNN, got one without")
        self.cudnn = Cudnn(int(runtime.stream.handle))

    def softmax_forward(self, z: Any) -> Any:
        out = self.empty(z.shape, z.dtype)
        self.cudnn.softmax(z.pointer, out.pointer, *z.shape)
        return out


class Cudnn:
    """cuDNN's softmax of rows, on a stream.

    Raises
    ------
    RuntimeError
        If the library cannot be loaded, or refuses.
    """

    def __init__(self, stream: int) -> None:
        version = torch.backends.cudnn.version()
        major = version // 10_000 or version // 1000
        # PyTorch has loaded it already; by its name it is found where it lies.
        self.library = _loaded(f"libcudnn.so.{major}")
        self.handle = ctypes.c_void_p()
        self._call("cudnnCreate", ctypes.byref(self.handle))
        self._call("cudnnSetStream", self.handle, ctypes.c_void_p(stream))
        self._shapes: dict[tuple[int, int], ctypes.c_void_p] = {}
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def softmax(self, z: int, out: int, rows: int, columns: int) -> None:
        """Write the softmax of each row of z (rows, columns) float32 to `out`; both are
        addresses.
        """
        shape = self._shape(rows, columns)
        self._call(
            "cudnnSoftmaxForward",
            self.handle,
            ACCURATE,
            OVER_CHANNELS,
            ctypes.byref(self._one),
            shape,
            ctypes.c_void_p(z),
            ctypes.byref(self._zero),
            shape,
            ctypes.c_void_p(out),
        )

    def _shape(self, rows: int, columns: int) -> ctypes.c_void_p:
        found = self._shapes.get((rows, columns))
        if found is None:
            found = self._shapes[rows, columns] = ctypes.c_void_p()
            self._call("cudnnCreateTensorDescriptor", ctypes.byref(found))
            self._call("cudnnSetTensor4dDescriptor", found, NCHW, FLOAT, rows, columns, 1, 1)
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} of cuDNN failed with status {status}")


def _loaded(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise RuntimeError(f"expected {name}, as PyTorch has loaded it, got: {error}") from error


def ops_of(device: str, name: str) -> tuple[CublasOps, Any]:
    """Return the operations for a rung, ``'cublas'``, or ``'cudnn'`` for both, and our stream as
    PyTorch's.
    """
    runtime = backends.get(device).runtime  # type: ignore[attr-defined]
    torch.cuda.set_device(runtime.index)
    torch.set_float32_matmul_precision("highest")
    stream = torch.cuda.ExternalStream(int(runtime.stream.handle))
    return (CudnnOps if name == "cudnn" else CublasOps)(runtime), stream
