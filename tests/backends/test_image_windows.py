"""Windows of images at places that bits say, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import DTYPES, owned
from warpfit.backends import Backend
from warpfit.backends.base import ImageWindows
from warpfit.backends.cuda import CudaBackend
from warpfit.errors import DTypeError, ShapeError

CASES = {
    "inside": ((6, 5), (3, 4), (0, 0), False),
    "zeros": ((6, 5), (6, 5), (3, 2), False),
    "reflected": ((6, 5), (6, 5), (3, 2), True),
    "reflected, smaller": ((6, 5), (7, 3), (5, 4), True),
    "along one axis": ((6, 5), (6, 5), (0, 2), True),
    "the image": ((6, 5), (6, 5), (0, 0), False),
    "nothing": ((6, 5), (0, 5), (1, 1), False),
}


def images(shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """Return images (40, *shape, 3), and bits of which the first say the first window, the next the
    last.
    """
    rng = np.random.default_rng(0)
    bits = 2 * rng.integers(0, 2, (40, 2, 16)).astype("float32")
    bits[0], bits[1] = 0, 2
    return rng.standard_normal((40, *shape, 3)).astype(dtype), bits


def starts(bits: Any, num_windows: int) -> Any:
    numbers = [int("".join("1" if bit else "0" for bit in row), 2) for row in bits]
    return [number * num_windows >> 16 for number in numbers]


def shown(x: Any, bits: Any, size: Any, padding: Any, reflects: bool) -> Any:
    pads = [(0, 0), *((pad, pad) for pad in padding), (0, 0)]
    padded = np.pad(x, pads, "reflect" if reflects else "constant")
    tops = starts(bits[:, 0], padded.shape[1] - size[0] + 1)
    lefts = starts(bits[:, 1], padded.shape[2] - size[1] + 1)
    return np.array(
        [
            image[top : top + size[0], left : left + size[1]]
            for image, top, left in zip(padded, tops, lefts, strict=True)
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_windows_begin_where_bits_say(backend: Backend, name: str, dtype: str) -> None:
    shape, size, padding, reflects = CASES[name]
    x, bits = images(shape, dtype)
    on_device = owned(backend, [x, bits])
    y = backend.take_windows(*on_device, ImageWindows(size, padding, reflects))
    assert y.dtype == dtype
    np.testing.assert_array_equal(backend.to_numpy(y), shown(x, bits, size, padding, reflects))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_adjoint(backend: Backend, name: str, dtype: str) -> None:
    shape, size, padding, reflects = CASES[name]
    x, bits = images(shape, dtype)
    x = np.round(4 * x)
    dy = np.round(4 * np.random.default_rng(1).standard_normal((40, *size, 3))).astype(dtype)
    windows = ImageWindows(size, padding, reflects)
    dx = backend.take_windows_backward(*owned(backend, [dy, bits]), x.shape, windows)
    forth = (dy * shown(x, bits, size, padding, reflects)).sum(axis=(1, 2, 3))
    assert (dx.shape, dx.dtype) == (x.shape, dtype)
    np.testing.assert_array_equal((backend.to_numpy(dx) * x).sum(axis=(1, 2, 3)), forth)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(kernel_runtime: Any, dtype: str) -> None:
    ops = CudaBackend(kernel_runtime)
    x, bits = images((6, 5), "float32")
    x = np.round(4 * x)
    half, on_device = ops.asarray(x, dtype), ops.asarray(bits)
    windows = ImageWindows((6, 5), (3, 2), True)
    y = ops.take_windows(half, on_device, windows)
    expected = shown(x, bits, (6, 5), (3, 2), True)
    np.testing.assert_array_equal(ops.cast(y, "float32").numpy(), expected)
    dx = ops.take_windows_backward(y, on_device, x.shape, windows)
    assert dx.dtype.name == dtype
    back = (ops.cast(dx, "float32").numpy() * x).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(back, (expected**2).sum(axis=(1, 2, 3)), rtol=0.01)


def test_no_images(backend: Backend) -> None:
    x, bits = backend.zeros((0, 6, 5, 3), "float32"), backend.zeros((0, 2, 16), "float32")
    assert backend.take_windows(x, bits, ImageWindows((3, 4))).shape == (0, 3, 4, 3)
    dy = backend.zeros((0, 3, 4, 3), "float32")
    assert backend.take_windows_backward(dy, bits, (0, 6, 5, 3), ImageWindows((3, 4))).shape == (
        0,
        6,
        5,
        3,
    )


def test_refuses_what_does_not_fit(backend: Backend) -> None:
    x, bits = backend.zeros((2, 6, 5, 3), "float32"), backend.zeros((2, 2, 16), "float32")
    with pytest.raises(ShapeError, match=r"windows that padded images .* hold, got \(7, 5\)"):
        backend.take_windows(x, bits, ImageWindows((7, 5)))
    with pytest.raises(ShapeError, match="padding of fewer pixels than images have"):
        backend.take_windows(x, bits, ImageWindows((6, 5), (0, 5), True))
    with pytest.raises(ShapeError, match=r"expected bits of shape \(2, 2, 16\)"):
        backend.take_windows(x, bits[:1], ImageWindows((6, 5)))
    with pytest.raises(ShapeError, match="expected dy of shape"):
        backend.take_windows_backward(x, bits, (2, 6, 5, 4), ImageWindows((6, 5)))
    wide = backend.zeros((2, 2, 16), "float64")
    with pytest.raises(DTypeError, match="expected bits of dtype float32, got float64"):
        backend.take_windows(x, wide, ImageWindows((6, 5)))


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((1, 2**16, 2**15, 1), ImageWindows((4, 4))),
        ((1, 2**15, 2**15, 2), ImageWindows((4, 4))),
        ((1, 4, 4, 1), ImageWindows((2**16, 2**15), (2**15, 2**15))),
    ],
)
def test_refuses_what_places_of_32_bits_do_not_count(
    kernel_runtime: Any, shape: tuple[int, ...], windows: ImageWindows
) -> None:
    ops = CudaBackend(kernel_runtime)
    number, bits = ops.zeros((1, 1, 1, 1), "float32"), ops.zeros((1, 2, 16), "float32")
    x, dy = (number.view(size, (0,) * 4) for size in (shape, (1, *windows.size, shape[3])))
    with pytest.raises(ShapeError, match="expected images and windows of at most 2147483392"):
        ops.take_windows(x, bits, windows)
    with pytest.raises(ShapeError, match="expected images and windows of at most 2147483392"):
        ops.take_windows_backward(dy, bits, shape, windows)
