"""Device arrays: what they say of themselves, their views, and how other libraries read them."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conftest import NO_GPU, on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit import backends
from warpfit.backends.cuda import DeviceArray, backend_of, dlpack
from warpfit.backends.cuda.array import from_exporter
from warpfit.backends.cuda.dtypes import BFLOAT16, DEVICE_FLOATS, acc_dtype, dtype_of, host_dtype
from warpfit.errors import DeviceError, DTypeError, ShapeError

pytestmark = on_emulator

STREAM = 77
DTYPES = ["float16", "float32", "float64", "uint8", "int32", "int64", "bool"]


class StreamedRuntime(EmulatedRuntime):
    """An emulated device with what arrays ask of a real one: its number, its stream, and who waits
    for it.
    """

    name = "cuda:0"

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.stream = SimpleNamespace(handle=STREAM)
        self.waited: list[Any] = []

    def let_wait(self, stream: Any) -> None:
        self.waited.append(stream)


@pytest.fixture(scope="module")
def runtime() -> StreamedRuntime:
    return StreamedRuntime()


def upload(runtime: Any, values: Any, dtype: str | None = None) -> Any:
    return backend_of(runtime).asarray(values, dtype)


def grid(runtime: Any) -> tuple[DeviceArray, Any]:
    """Return an array of shape (3, 4, 5) on the device and on the host."""
    host = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    return upload(runtime, host), host


# -- what it is
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 4)])
def test_it_describes_itself_as_numpys_arrays_do(runtime: Any, shape: tuple[int, ...]) -> None:
    host = np.zeros(shape, np.float64)
    array = upload(runtime, host)
    for name in ("shape", "ndim", "size", "itemsize", "nbytes", "dtype"):
        assert getattr(array, name) == getattr(host, name), name
    assert array.is_contiguous
    if host.size:
        assert array.strides == host.strides
    assert repr(array) == f"DeviceArray(shape={shape}, dtype=float64, device='cuda:0')"


def test_len_is_the_first_axis(runtime: Any) -> None:
    assert len(upload(runtime, np.zeros((4, 2)))) == 4
    with pytest.raises(TypeError, match="without axes"):
        len(upload(runtime, np.float64(1)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_returns_a_copy(runtime: Any, dtype: str) -> None:
    host = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    array = upload(runtime, host)
    copies = array.numpy(), np.asarray(array)
    for copy in copies:
        assert copy.dtype == dtype
        np.testing.assert_array_equal(copy, host)
        copy[...] = 0
    np.testing.assert_array_equal(array.numpy(), host)


def test_numpy_converts_where_it_is_asked_to_and_never_without_a_copy(runtime: Any) -> None:
    array = upload(runtime, np.array([1.5, 2.5], np.float32))
    assert np.asarray(array, np.float64).tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(copy=False)


def test_item_is_a_python_number(runtime: Any) -> None:
    for host in (np.float32(2.5), np.array([[7]]), np.array([True])):
        value = upload(runtime, host).item()
        assert type(value) is type(host.item())
        assert value == host.item()
    assert float(upload(runtime, np.array([3]))) == 3.0
    with pytest.raises(
        ShapeError, match=r"item: expected an array of one element, got shape \(2,\)"
    ):
        upload(runtime, np.zeros(2)).item()


def test_it_has_no_arithmetic_not_even_numpys(runtime: Any) -> None:
    array = upload(runtime, np.ones(2))
    with pytest.raises(TypeError):
        np.ones(2) + array
    with pytest.raises(TypeError):
        array + 1


def test_the_memory_lives_as_long_as_a_view(runtime: Any) -> None:
    array, host = grid(runtime)
    view = array[1]
    del array
    gc.collect()
    np.testing.assert_array_equal(view.numpy(), host[1])


# -- views
# --------------------------------------------------------------------------------------------------

BASIC = [
    0,
    -1,
    np.int32(2),
    slice(1, None),
    slice(None, None, -1),
    slice(5, 2),
    slice(-2, None, 2),
    None,
    ...,
    (),
    (1, 2, 3),
    (slice(None), -1),
    (..., 0),
    (0, ..., None, slice(None, None, 2)),
    (None, slice(3, 0, -2), None, 1),
    (slice(0), 1),
]


@pytest.mark.parametrize("index", BASIC, ids=str)
def test_basic_indices_are_views(runtime: Any, index: Any) -> None:
    array, host = grid(runtime)
    view, expected = array[index], host[index]
    assert view.shape == expected.shape
    assert view.memory is array.memory
    np.testing.assert_array_equal(view.numpy(), expected)
    if expected.ndim and expected.size:
        assert view.pointer - array.pointer == expected.ctypes.data - host.ctypes.data
        assert view.strides == expected.strides
        assert view.is_contiguous == expected.flags.c_contiguous


def test_a_view_of_a_view(runtime: Any) -> None:
    array, host = grid(runtime)
    np.testing.assert_array_equal(
        array[::-1, 1:][:, ::2, 1:-1].numpy(), host[::-1, 1:][:, ::2, 1:-1]
    )


@pytest.mark.parametrize(
    "index", [3, -4, (0, 4), (0, 0, 0, 0), (..., 0, 0, 0, 0), (..., ...)], ids=str
)
def test_an_index_that_does_not_fit_is_refused(runtime: Any, index: Any) -> None:
    with pytest.raises(IndexError, match=r"expected an index into axis|expected at most"):
        grid(runtime)[0][index]


@pytest.mark.parametrize("index", [[0, 1], np.array([0, 1]), True, 1.0, "a", (0, True)], ids=str)
def test_other_indices_are_left_to_take(runtime: Any, index: Any) -> None:
    with pytest.raises(DTypeError, match="expected integers, slices, None or Ellipsis, got"):
        grid(runtime)[0][index]


def test_axes_of_one_entry_may_have_any_stride(runtime: Any) -> None:
    array = upload(runtime, np.zeros((3, 1, 4), np.float32))
    assert array.view((3, 1, 4), (16, 999, 4)).is_contiguous
    assert not array.view((3, 1, 4), (999, 16, 4)).is_contiguous
    assert array.view((0, 4), (999, 999)).is_contiguous


# -- bfloat16
# ------------------------------------------------------------------------------------------------


def test_bfloat16_is_equal_to_its_name() -> None:
    assert dtype_of("bfloat16") is dtype_of(BFLOAT16) is BFLOAT16
    assert BFLOAT16 == "bfloat16"
    assert BFLOAT16 != "float16"
    assert np.dtype(np.float16) != BFLOAT16
    assert len({BFLOAT16, "bfloat16"}) == 1
    assert (str(BFLOAT16), BFLOAT16.itemsize, BFLOAT16.kind) == ("bfloat16", 2, "f")
    assert host_dtype(BFLOAT16) == np.uint16


def test_half_precision_is_computed_in_float32() -> None:
    assert [str(acc_dtype(dtype_of(name))) for name in DEVICE_FLOATS] == [
        "float32",
        "float64",
        *["float32"] * 2,
    ]


@pytest.mark.parametrize("dtype", ["complex64", "longdouble", "M8[s]", "S3", object])
def test_other_dtypes_are_no_devices(dtype: Any) -> None:
    with pytest.raises(DTypeError, match="expected a dtype of numbers"):
        dtype_of(dtype)


def test_bfloat16_is_the_upper_half_of_float32_rounded_to_even(runtime: Any) -> None:
    words = np.array(
        [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xFF7FFFFF, 0x7F800000, 0], np.uint32
    )
    array = upload(runtime, words.view(np.float32), "bfloat16")
    assert (array.dtype, array.itemsize, array.nbytes) == (BFLOAT16, 2, 14)
    result = array.numpy()
    assert result.dtype == np.float32
    expected = [0x3F800000, 0x3F800000, 0x3F820000, 0x3F810000, 0xFF800000, 0x7F800000, 0]
    assert result.view(np.uint32).tolist() == expected
    assert np.isnan(upload(runtime, np.array([np.nan], np.float32), "bfloat16").numpy()).all()


def test_bfloat16_has_no_cuda_array_interface(runtime: Any) -> None:
    assert not hasattr(
        upload(runtime, np.zeros(2, np.float32), "bfloat16"), "__cuda_array_interface__"
    )


# -- __cuda_array_interface__
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_interface_names_memory_and_stream(runtime: Any, dtype: str) -> None:
    array = upload(runtime, np.zeros((3, 4), dtype))
    assert array.__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": np.dtype(dtype).str,
        "data": (array.pointer, False),
        "strides": None,
        "stream": STREAM,
        "version": 3,
    }


def test_the_default_stream_waits_for_what_the_interface_shows() -> None:
    # PyTorch reads there, whatever stream the interface names.
    runtime = StreamedRuntime()
    array = upload(runtime, np.zeros(3, np.float32))
    assert runtime.waited == []
    assert array.__cuda_array_interface__["stream"] == STREAM
    assert runtime.waited == [None]


def test_the_interface_of_a_view_has_strides(runtime: Any) -> None:
    array, _ = grid(runtime)
    interface = array[1:, ::2].__cuda_array_interface__
    assert interface["strides"] == (80, 40, 4)
    assert interface["data"] == (array.pointer + 80, False)


def test_the_interface_of_no_entries_has_no_address(runtime: Any) -> None:
    assert upload(runtime, np.zeros((0, 3))).__cuda_array_interface__["data"] == (0, False)


# -- DLPack
# --------------------------------------------------------------------------------------------------


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


class Consumed:
    """What a consumer reads from a capsule; `release` calls its deleter, as the last step of a
    consumer.
    """

    def __init__(self, capsule: Any) -> None:
        self._managed = dlpack._Managed.from_address(_pointer_of(capsule, b"dltensor"))
        _rename(capsule, b"used_dltensor")
        tensor = self._managed.tensor
        self.device = (tensor.device.device_type, tensor.device.device_id)
        self.dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.shape, self.strides = tensor.shape[: tensor.ndim], tensor.strides[: tensor.ndim]
        self.data, self.byte_offset = tensor.data, tensor.byte_offset

    def release(self) -> None:
        self._managed.deleter(ctypes.pointer(self._managed))


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        *(("float16", 2), ("float32", 2), ("float64", 2), ("bfloat16", 4)),
        *(("int32", 0), ("int64", 0), ("uint8", 1), ("bool", 6)),
    ],
)
def test_a_capsule_describes_the_array(runtime: Any, dtype: str, code: int) -> None:
    array = DeviceArray.allocate(runtime, (2, 3), dtype)
    consumed = Consumed(array.__dlpack__(stream=-1))
    assert consumed.dtype == (code, 8 * array.itemsize, 1)
    assert consumed.device == array.__dlpack_device__() == (2, 0)
    assert (consumed.shape, consumed.strides) == ([2, 3], [3, 1])
    assert (consumed.data, consumed.byte_offset) == (array.pointer, 0)
    consumed.release()


@pytest.mark.parametrize(
    "index", [slice(None, None, 2), (slice(None), 1), (..., slice(None, None, -1)), 0]
)
def test_a_capsules_strides_count_elements(runtime: Any, index: Any) -> None:
    array, host = grid(runtime)
    view = array[index]
    consumed = Consumed(view.__dlpack__(stream=-1))
    assert consumed.strides == [step // 4 for step in host[index].strides]
    assert consumed.data == view.pointer
    consumed.release()


def test_a_capsule_of_no_axes_and_of_no_entries(runtime: Any) -> None:
    for shape, data in (((), "pointer"), ((0, 2), None)):
        array = DeviceArray.allocate(runtime, shape, "float32")
        consumed = Consumed(array.__dlpack__(stream=-1))
        assert tuple(consumed.shape) == shape
        assert consumed.data == (array.pointer if data else None)
        consumed.release()


def test_a_capsule_keeps_the_memory_until_its_deleter_is_called(runtime: Any) -> None:
    before = len(dlpack._exported)
    array, host = grid(runtime)
    consumed = Consumed(array.__dlpack__(stream=-1))
    del array
    gc.collect()
    place = (ctypes.c_float * host.size).from_address(consumed.data)
    assert list(place) == host.ravel().tolist()
    assert len(dlpack._exported) == before + 1
    consumed.release()
    assert len(dlpack._exported) == before


def test_a_capsule_that_nobody_consumed_frees_its_array(runtime: Any) -> None:
    before = len(dlpack._exported)
    capsule = upload(runtime, np.zeros(3)).__dlpack__(stream=-1)
    assert len(dlpack._exported) == before + 1
    del capsule
    gc.collect()
    assert len(dlpack._exported) == before


def test_the_consumers_stream_waits_unless_it_asks_not_to(runtime: Any) -> None:
    array = upload(runtime, np.zeros(3))
    for stream in (None, 1, 12345, -1):
        array.__dlpack__(stream=stream)
    assert runtime.waited[-3:] == [None, 1, 12345]


def test_dlpack_on_request_copies(runtime: Any) -> None:
    array, host = grid(runtime)
    consumed = Consumed(array[:, ::2].__dlpack__(stream=-1, copy=True))
    assert consumed.strides == [10, 5, 1]
    assert list((ctypes.c_float * 30).from_address(consumed.data)) == host[:, ::2].ravel().tolist()
    consumed.release()


def test_dlpack_refuses_another_device(runtime: Any) -> None:
    array = upload(runtime, np.zeros(3))
    assert array.__dlpack__(dl_device=(2, 0), stream=-1)
    with pytest.raises(BufferError, match=r"expected DLPack device \(2, 0\), got \(1, 0\)"):
        array.__dlpack__(dl_device=(1, 0))


class Exporter:
    """Another library's array on a device, which shows its DLPack methods and nothing else."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array
        self.dtype = f"library.{array.dtype}"
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.streams.append(stream)
        return self._array.__dlpack__(stream=-1)


@pytest.mark.parametrize(
    "index", [..., slice(None, None, 2), (slice(None), 1), (..., slice(None, None, -1)), slice(0)]
)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_another_librarys_array_is_taken_without_a_copy(
    runtime: Any, dtype: str, index: Any
) -> None:
    pytest.importorskip("cuda.core")
    source = DeviceArray.allocate(runtime, (3, 4, 5), dtype)[index]
    exporter = Exporter(source)
    array = backend_of(runtime).asarray(exporter)
    assert (array.shape, array.dtype) == (source.shape, source.dtype)
    assert array.is_contiguous == source.is_contiguous
    if source.size:
        assert (array.pointer, array.strides) == (source.pointer, source.strides)
    assert exporter.streams == [STREAM]


def test_another_librarys_memory_is_kept_and_given_back(runtime: Any) -> None:
    pytest.importorskip("cuda.core")
    before = len(dlpack._exported)
    source, host = grid(runtime)
    view = backend_of(runtime).asarray(Exporter(source))[:, 1:, ::2]
    del source
    gc.collect()
    np.testing.assert_array_equal(view.numpy(), host[:, 1:, ::2])
    del view
    gc.collect()
    assert len(dlpack._exported) == before


def test_an_array_of_another_device_is_refused(runtime: Any) -> None:
    pytest.importorskip("cuda.core")
    elsewhere = DeviceArray.allocate(StreamedRuntime(index=1), (3,), "float32")
    with pytest.raises(DeviceError, match="expected an array on cuda:0, got one on device 1"):
        from_exporter(runtime, Exporter(elsewhere))
    with pytest.raises(DeviceError, match="expected an array on cuda:0"):
        backend_of(runtime).asarray(elsewhere)


def test_host_arrays_of_any_byte_order_become_native(runtime: Any) -> None:
    array = upload(runtime, np.array([1.5, -2.0], ">f8"))
    assert array.dtype.isnative
    assert array.numpy().tolist() == [1.5, -2.0]


# -- with other libraries, on a GPU
# --------------------------------------------------------------------------

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))]
LIBRARIES = [pytest.param(name, marks=on_gpu) for name in ("torch", "cupy")]
VIEWS = [..., slice(None, None, 2), (slice(None), 1), (..., slice(1, 4))]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


def made_by(library: Any, host: Any) -> Any:
    return library.asarray(host) if library.__name__ == "cupy" else library.from_numpy(host).cuda()


def as_viewed(library: Any, ours: DeviceArray) -> Any:
    return (
        library.asarray(ours)
        if library.__name__ == "cupy"
        else library.as_tensor(ours, device="cuda")
    )


def on_host(theirs: Any) -> Any:
    return theirs.get() if hasattr(theirs, "get") else theirs.cpu().numpy()


def address(theirs: Any) -> int:
    return int(theirs.data.ptr if hasattr(theirs.data, "ptr") else theirs.data_ptr())


@pytest.mark.parametrize("index", VIEWS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
def test_others_read_our_memory(library: Any, dtype: str, index: Any) -> None:
    backend = backends.get("cuda")
    host = np.arange(60).astype(dtype).reshape(3, 4, 5)
    ours = backend.asarray(host)[index]
    theirs = library.from_dlpack(ours)
    assert address(theirs) == ours.pointer
    np.testing.assert_array_equal(on_host(theirs), host[index])
    # Not every consumer waits for the stream that the interface names.
    backend.runtime.synchronize()
    through_interface = as_viewed(library, ours)
    assert address(through_interface) == ours.pointer
    np.testing.assert_array_equal(on_host(through_interface), host[index])


@pytest.mark.parametrize("index", VIEWS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
def test_we_read_others_memory(library: Any, dtype: str, index: Any) -> None:
    host = np.arange(60).astype(dtype).reshape(3, 4, 5)
    theirs = made_by(library, host)[index]
    ours = backends.get("cuda").asarray(theirs)
    assert ours.pointer == address(theirs)
    np.testing.assert_array_equal(ours.numpy(), host[index])
    theirs[...] = 1
    np.testing.assert_array_equal(
        backends.get("cuda").asarray(theirs).numpy(), np.ones_like(host[index])
    )


@pytest.mark.parametrize("library", [pytest.param("torch", marks=on_gpu)], indirect=True)
def test_bfloat16_goes_both_ways(library: Any) -> None:
    backend = backends.get("cuda")
    host = np.array([1.0, -2.5, 3.0e38], np.float32)
    ours = backend.asarray(host, "bfloat16")
    theirs = library.from_dlpack(ours)
    assert theirs.dtype == library.bfloat16
    assert theirs.data_ptr() == ours.pointer
    np.testing.assert_array_equal(theirs.float().cpu().numpy(), ours.numpy())
    back = backend.asarray(theirs)
    assert back.dtype == "bfloat16"
    np.testing.assert_array_equal(back.numpy(), ours.numpy())
