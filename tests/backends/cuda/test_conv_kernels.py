"""Convolution kernels on the emulator: half precision, tensor cores, tiles, slices, vectors; and
their registers.

The operands are small whole numbers, so that every product and sum is exact in every type, and
results have to be equal to those of NumPy's backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from emulator.build import gxx_missing
from emulator.runtime import EmulatedRuntime
from kernel_variants import variants_of
from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.cuda import CudaBackend, conv_launch
from warpfit.backends.cuda.conv_launch import choose_tiling

# In every run at least every other case of each test.
pytestmark = pytest.mark.in_turns(8)

needs_gxx = pytest.mark.skipif(gxx_missing() is not None, reason=str(gxx_missing()))

MODES = ["float16", "bfloat16", "tf32", "float32", "float64"]


class Setting(NamedTuple):
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


SETTINGS = {
    "gray": Setting((2, 9, 8, 1), (3, 3, 1, 32)),
    "many_tiles": Setting((3, 11, 10, 8), (3, 3, 8, 72), padding=(1, 1)),
    "channels_in_chunks_outputs_not": Setting((2, 5, 6, 16), (2, 3, 16, 5), dilation=(1, 2)),
    "nothing_in_chunks": Setting((3, 7, 8, 3), (3, 3, 3, 35), (2, 3), (2, 1), (2, 1)),
    "strided": Setting((2, 9, 8, 8), (3, 3, 8, 8), stride=(2, 2), padding=(1, 1)),
    "many_slices": Setting((4, 18, 17, 4), (3, 3, 4, 8)),
    "no_images": Setting((0, 5, 5, 8), (3, 3, 8, 8)),
    "no_channels": Setting((2, 5, 5, 0), (3, 3, 0, 8)),
    "no_outputs": Setting((2, 5, 5, 8), (3, 3, 8, 0)),
}
CASES = [
    (name, mode)
    for name in SETTINGS
    for mode in MODES
    if mode in ("float16", "tf32") or name == "many_tiles"
]


def emulate(reverse: bool | None = None) -> EmulatedRuntime:
    return EmulatedRuntime(reverse=reverse)


def make_backend(runtime: Any, mode: str) -> CudaBackend:
    return CudaBackend(runtime, precision="tf32" if mode == "tf32" else "float32")


def dtype_of_mode(mode: str) -> str:
    return "float32" if mode == "tf32" else mode


def whole_numbers(setting: Setting) -> Iterator[Any]:
    """Yield x, w, b, dz, of numbers so small that sums are exact in bfloat16 too."""
    rng = np.random.default_rng(0)
    y, _ = NumpyBackend().conv2d_forward(
        np.zeros(setting.x), np.zeros(setting.w), None, **setting.pairs
    )
    for shape in (setting.x, setting.w, setting.w[3:], y.shape):
        yield rng.integers(-1, 2, shape).astype("float64")


def results(
    ops: Any, x: Any, w: Any, b: Any, dz: Any, setting: Setting, activation: Activation
) -> list[Any]:
    """Return y, dx, dw and db."""
    y, _ = ops.conv2d_forward(x, w, b, **setting.pairs, activation=activation)
    dx = ops.conv2d_backward_input(dz, w, x.shape, **setting.pairs)
    return [y, dx, *ops.conv2d_backward_weight(dz, x, setting.w[:2], **setting.pairs)]


@pytest.mark.in_turns(32)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_whole_numbers_give_exact_results(
    kernel_runtime_of_any_order: Any, name: str, mode: str
) -> None:
    setting, dtype, activation = SETTINGS[name], dtype_of_mode(mode), Activation("relu")
    arrays = list(whole_numbers(setting))
    expected = results(NumpyBackend(), *arrays, setting, activation)
    ops = make_backend(kernel_runtime_of_any_order, mode)
    found = results(ops, *(ops.asarray(array, dtype) for array in arrays), setting, activation)
    of_weights = "float64" if dtype == "float64" else "float32"
    assert [array.dtype for array in found] == [dtype, dtype, of_weights, of_weights]
    for array, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array.numpy(), value)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("mode", ["float16", "tf32", "float32"])
def test_arrays_that_begin_anywhere(kernel_runtime: Any, mode: str) -> None:
    """No pixel begins at a multiple of 16 bytes, although channels and outputs would allow it."""
    setting = SETTINGS["strided"]
    ops, arrays = make_backend(kernel_runtime, mode), list(whole_numbers(setting))
    expected = results(NumpyBackend(), *arrays, setting, Activation())
    moved = []
    for array in arrays:
        whole = ops.asarray(np.concatenate([[9.0], array.ravel()]), dtype_of_mode(mode))
        moved.append(whole[1:].view(array.shape, ops.asarray(array, dtype_of_mode(mode)).strides))
    for array, value in zip(results(ops, *moved, setting, Activation()), expected, strict=True):
        np.testing.assert_array_equal(array.numpy(), value)


@pytest.mark.parametrize("activation", ["identity", "gelu"])
def test_z_is_kept_if_the_activation_needs_it(kernel_runtime: Any, activation: str) -> None:
    setting, f = SETTINGS["gray"], Activation(activation)
    x, w, b, _ = (array.astype("float32") for array in whole_numbers(setting))
    ops = make_backend(kernel_runtime, "tf32")
    y, z = ops.conv2d_forward(*map(ops.asarray, (x, w, b)), activation=f)
    expected_y, expected_z = NumpyBackend().conv2d_forward(x, w, b, activation=f)
    np.testing.assert_allclose(y.numpy(), expected_y, rtol=1e-5, atol=1e-6)
    assert (z is None) == (expected_z is None)
    if z is not None:
        np.testing.assert_array_equal(z.numpy(), expected_z)


# -- precision
# ---------------------------------------------------------------------------------------------


def largest_errors(runtime: Any, mode: str) -> list[float]:
    """Return the largest error of y, dx, dw and db for numbers that no type but float64 holds."""
    setting, rng = SETTINGS["many_slices"], np.random.default_rng(1)
    arrays = [rng.standard_normal(array.shape) for array in whole_numbers(setting)]
    expected = results(NumpyBackend(), *arrays, setting, Activation())
    ops = make_backend(runtime, mode)
    on_device = [ops.asarray(array, dtype_of_mode(mode)) for array in arrays]
    found = results(ops, *on_device, setting, Activation())
    return [
        float((np.abs(array.numpy() - value) / np.maximum(1, np.abs(value))).max())
        for array, value in zip(found, expected, strict=True)
    ]


def test_float32_is_not_rounded_to_tf32(kernel_runtime: Any) -> None:
    assert max(largest_errors(kernel_runtime, "float32")) < 1e-5


def test_tf32_rounds_the_operands_of_products_only(kernel_runtime: Any) -> None:
    y, dx, dw, db = largest_errors(kernel_runtime, "tf32")
    assert 1e-5 < y < 1e-2
    assert 1e-5 < dx < 1e-2
    assert 1e-5 < dw < 1e-1
    assert db < 1e-5


# -- slices
# ------------------------------------------------------------------------------------------------


@needs_gxx
@pytest.mark.parametrize("mode", ["float32", "float16"])
def test_slices_are_summed_in_one_order(mode: str) -> None:
    """Equal bits whichever block comes last, and counters that are zero again."""
    setting, rng = SETTINGS["many_slices"], np.random.default_rng(2)
    x, _, _, dz = (rng.standard_normal(array.shape) for array in whole_numbers(setting))
    found = []
    for reverse in (False, True):
        ops = make_backend(emulate(reverse), mode)
        operands = [ops.asarray(array, dtype_of_mode(mode)) for array in (dz, x)]
        for _ in range(2):
            found.append(
                [array.numpy() for array in ops.conv2d_backward_weight(*operands, setting.w[:2])]
            )
        assert not ops.arrivals(1).numpy().any()
    for dw, db in found[1:]:
        np.testing.assert_array_equal(dw, found[0][0])
        np.testing.assert_array_equal(db, found[0][1])


@pytest.mark.parametrize("num_windows", [0, 1, 31, 1000, 36_864, 10**7])
@pytest.mark.parametrize("num_tiles", [1, 5, 400, 5000])
def test_slices_suit_the_device(num_windows: int, num_tiles: int) -> None:
    slices, group = conv_launch._slices(num_windows, num_tiles, 16, 132)
    assert 1 <= slices <= max(1, 3 * 132 // num_tiles)
    assert slices == 1 or num_windows / slices >= 4 * 16 - 16
    assert group >= 1
    assert -(-slices // group) <= group


def test_many_slices_have_groups() -> None:
    """What the tests above are to show: more than one group."""
    rows = SETTINGS["many_slices"].x[0] * 16 * 15
    for block_k in (8, 16, 32):
        slices, group = conv_launch._slices(rows, 1, block_k, emulate().num_multiprocessors)
        assert 1 < group < slices


# -- kernels
# -----------------------------------------------------------------------------------------------


def test_tensor_cores_only_where_they_know_the_type() -> None:
    assert (
        choose_tiling("conv2d_forward", "float16", 64, "sm_75", "float32").defines["TENSOR_CORES"]
        == 1
    )
    assert (
        choose_tiling("conv2d_forward", "bfloat16", 64, "sm_75", "float32").defines["TENSOR_CORES"]
        == 0
    )
    assert (
        choose_tiling("conv2d_forward", "float32", 64, "sm_75", "tf32").defines["TENSOR_CORES"] == 0
    )
    assert (
        choose_tiling("conv2d_forward", "float32", 64, "sm_90a", "tf32").defines["TENSOR_CORES"]
        == 1
    )
    assert (
        choose_tiling("conv2d_forward", "float32", 64, "sm_90a", "float32").defines["TENSOR_CORES"]
        == 0
    )
    assert (
        choose_tiling("conv2d_forward", "float64", 64, "sm_90a", "tf32").defines["TENSOR_CORES"]
        == 0
    )


@needs_gxx
def test_variants_are_what_the_wrapper_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def record(name: str, **defines: Any) -> Any:
        asked.append((name, {key: str(value) for key, value in defines.items()}))
        return lambda *args, **kwargs: None

    for setting in SETTINGS.values():
        for mode in MODES:
            ops = make_backend(emulate(), mode)
            monkeypatch.setattr(ops, "kernel", record)
            shapes = (array.shape for array in whole_numbers(setting))
            arrays = [ops.empty(shape, dtype_of_mode(mode)) for shape in shapes]
            results(ops, *arrays, setting, Activation("relu"))
    known = variants_of("conv_launch")
    assert asked
    own = {name for name, _ in known}  # others are other modules'
    assert all(variant in known for variant in asked if variant[0] in own)
