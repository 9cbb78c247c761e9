"""DLPack capsules: the C structures by which array libraries hand memory to each other.

References
----------
DLPack 1.0, dlpack.h: DLManagedTensor (the unversioned form, which every consumer still reads).
"""

from __future__ import annotations

import ctypes
from typing import Any

CUDA = 2  # kDLCUDA
_NAME = b"dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Prototypes of our own: other modules may declare the shared attributes of ctypes.pythonapi
# differently.
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor
)(("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# What consumers still hold, by the address of its structure.
_exported: dict[int, tuple[Any, ...]] = {}


@_Deleter
def _release(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


@_CapsuleDestructor
def _discard(unused: int) -> None:
    """Free what an unconsumed capsule holds; a consumer renames it, and calls the deleter."""
    if _is_valid(unused, _NAME):
        _exported.pop(_pointer_of(unused, _NAME), None)


def capsule(array: Any) -> Any:
    """Return a capsule that shares the memory of a device array and keeps it alive."""
    sizes = ctypes.c_int64 * max(array.ndim, 1)
    shape, strides = sizes(*array.shape), sizes(*(step // array.itemsize for step in array.strides))
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = array.pointer if array.size else None
    tensor.device = _Device(CUDA, array.runtime.index)
    tensor.ndim = array.ndim
    code = _BFLOAT if array.dtype.name == "bfloat16" else _CODES[array.dtype.kind]
    tensor.dtype = _DType(code, 8 * array.itemsize, 1)
    tensor.shape, tensor.strides = shape, strides
    managed.deleter = _release
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, array)
    return _new_capsule(address, _NAME, _discard)
