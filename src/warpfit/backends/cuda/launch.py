"""The only place that launches: kernels by name, their arguments packed as the compiler checked."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

from warpfit.backends.cuda import jit
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.resident_arguments import ARGUMENTS
from warpfit.backends.cuda.signatures import SIGNATURES, formats_of
from warpfit.errors import CompileError, DTypeError, ShapeError

Size = int | tuple[int, ...]


@cache
def parameter_formats(name: str) -> tuple[str, ...]:
    """Return the `struct` format of each parameter of a kernel, `Arguments` being one."""
    if name in ARGUMENTS:
        return (ARGUMENTS[name].layout().format.removeprefix("@"),)
    if name in SIGNATURES:
        return formats_of(name)
    raise CompileError(f"kernel {name}: expected its parameters in signatures.py, got none")


def scalar(number: float | DeviceArray) -> tuple[int, float]:
    """Return the two arguments for a parameter of type ``Scalar``: a number, or its place, ()
    float64, on the device.

    Raises
    ------
    DTypeError
        If what lies on the device is not one float64.
    """
    if type(number) is not DeviceArray:
        return 0, number  # type: ignore[return-value]
    if number.shape or number.dtype != "float64":
        raise DTypeError(
            f"expected a number of shape () and float64, got {number.shape} and {number.dtype}"
        )
    return number.pointer, 0.0


class Kernel:
    """A compiled kernel: call it with grid, block and its `Arguments`, or as `SIGNATURES` has it.

    Arrays are passed as their address, None as a null pointer.
    """

    def __init__(self, runtime: Any, name: str, defines: jit.Defines) -> None:
        self.name, self.defines = name, defines
        self._runtime, self._launch = runtime, runtime.launch
        self._function = runtime.load(name, defines)
        self._takes_struct = name in ARGUMENTS
        formats = parameter_formats(name)
        layout = struct.Struct("@" + "".join(formats))
        self._pack_into = layout.pack_into
        self._buffer = ctypes.create_string_buffer(max(layout.size, 1))
        self._addresses = _addresses(ctypes.addressof(self._buffer), formats)
        self._parameters = ctypes.addressof(self._addresses)
        self._lock = threading.Lock()

    def __call__(
        self,
        grid: Size,
        block: Size,
        *arguments: Any,
        shared_bytes: int = 0,
        cluster: int = 1,
        is_cooperative: bool = False,
    ) -> None:
        """Start the kernel.

        Parameters
        ----------
        grid, block : int or tuple of up to three int
            Number of blocks, and of threads in a block, along x, y and z.
        *arguments : Arguments, or DeviceArray, int, float, bytes (a struct) and None
            For a ``Scalar`` the two that `scalar` returns.
        shared_bytes : int
            Dynamic shared memory of a block.
        cluster : int
            Blocks along x that form a cluster.
        is_cooperative : bool
            Whether all blocks are resident at once, so that they may wait for each other.
        """
        if self._takes_struct:
            values = self._values(arguments)
        else:
            values = [
                a.pointer if type(a) is DeviceArray else 0 if a is None else a for a in arguments
            ]
        with self._lock:
            try:
                self._pack_into(self._buffer, 0, *values)
            except struct.error as error:
                raise ShapeError(
                    f"{self.name}: expected arguments that fit its parameters, but {error}"
                ) from error
            # Most sizes are one number, and a call costs more than this.
            blocks = (grid, 1, 1) if type(grid) is int else _three(grid)
            threads = (block, 1, 1) if type(block) is int else _three(block)
            sizes = (blocks, threads, shared_bytes, self._parameters)
            watcher = self._runtime.watcher
            begun = None if watcher is None else watcher.begin(self.name)
            if cluster == 1 and not is_cooperative:
                self._launch(self._function, *sizes)
            else:
                self._runtime.launch_cluster(self._function, *sizes, cluster, is_cooperative)
            if begun is not None:
                watcher.end(begun)

    def _values(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Return the numbers of the one argument of a kernel that takes `Arguments`."""
        expected = ARGUMENTS[self.name]
        if len(arguments) != 1 or not isinstance(arguments[0], expected):
            given = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
            raise ShapeError(f"{self.name}: expected one {expected.__name__}, got {given}")
        return arguments[0].values()

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.defines)
        return f"Kernel({self.name}, {settings})"


def _addresses(base: int, formats: tuple[str, ...]) -> Any:
    """Return an array of the addresses that the parameters have in a buffer at `base`."""
    offsets = []
    for idx, own in enumerate(formats):
        with_own, size = struct.calcsize("@" + "".join(formats[: idx + 1])), struct.calcsize(own)
        offsets.append(with_own - size)
    return (ctypes.c_void_p * max(len(offsets), 1))(*(base + offset for offset in offsets))


def _three(size: Any) -> tuple[int, int, int]:
    return (*size, 1, 1)[:3]


class Kernels:
    """The kernels of one device, compiled when first asked for."""

    _of_runtime: ClassVar[dict[Any, Kernels]] = {}

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._loaded: dict[Any, Kernel] = {}
        self.rehearsed: set[Hashable] = set()  # see `Backend.rehearse`

    @classmethod
    def of(cls, runtime: Any) -> Kernels:
        """Return the device's kernels, which all of its backends share."""
        if runtime not in cls._of_runtime:
            cls._of_runtime[runtime] = cls(runtime)
        return cls._of_runtime[runtime]

    def get(self, name: str, **defines: Any) -> Kernel:
        """Return a kernel compiled with these defines, in the order given, as texts."""
        key = (name, *defines.items())
        kernel = self._loaded.get(key)
        if kernel is None:
            kernel = self._loaded[key] = Kernel(self._runtime, name, _settings(defines))
        return kernel

    def compile_ahead(self, wanted: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Begin to compile kernels that `get` will be asked for, all at once."""
        new = [
            (name, _settings(defines))
            for name, defines in wanted
            if (name, *defines.items()) not in self._loaded
        ]
        if new:
            self._runtime.compile_ahead(new)


def _settings(defines: Mapping[str, Any]) -> jit.Defines:
    return tuple((define, str(value)) for define, value in defines.items())
