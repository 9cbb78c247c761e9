from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import (
    DTYPES,
    LAYOUTS,
    assert_derivative,
    assert_within_tolerance,
    call,
    layouts,
    upload,
)
from warpfit.backends import Backend
from warpfit.errors import ConfigError, DTypeError, ShapeError

FORWARD = ("max_pool2d_forward", "avg_pool2d_forward")


class Setting(NamedTuple):
    x: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        return {"kernel": self.kernel, "stride": self.stride, "padding": self.padding}

    @property
    def output_shape(self) -> tuple[int, ...]:
        rows, columns = (
            (size + 2 * pad - taps) // stride + 1
            for size, taps, stride, pad in zip(self.x[1:3], *self.pairs.values(), strict=True)
        )
        return (self.x[0], rows, columns, self.x[3])


SETTINGS = {
    "halving": Setting((2, 6, 4, 3), (2, 2), (2, 2)),
    "halving_vectors": Setting((2, 7, 6, 8), (2, 2), (2, 2)),
    "thirds": Setting((2, 7, 8, 4), (3, 3), (3, 3)),
    "with_a_rest": Setting((2, 7, 5, 3), (2, 2), (2, 2)),
    "with_gaps": Setting((2, 7, 6, 2), (2, 1), (3, 2)),
    "overlapping": Setting((2, 6, 7, 2), (3, 3), (2, 1)),
    "padded": Setting((2, 4, 5, 2), (3, 2), (2, 2), (1, 1)),
    "padded_apart": Setting((2, 4, 4, 2), (2, 2), (2, 2), (1, 1)),
    "one_pixel": Setting((1, 1, 1, 1), (1, 1), (1, 1)),
    "all_of_the_image": Setting((2, 4, 3, 2), (4, 3), (1, 1)),
}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def naive_pool(x: Any, setting: Setting) -> tuple[Any, Any, Any]:
    """Return maxima, their places in the window, and means, window by window."""
    highest = np.empty(setting.output_shape)
    places = np.empty(setting.output_shape, int)
    means = np.empty(setting.output_shape)
    (pad_h, pad_w), kernel = setting.padding, setting.kernel
    padded = np.pad(x, ((0, 0), (pad_h, pad_h), (pad_w, pad_w), (0, 0)), constant_values=-np.inf)
    for m, i, j, c in np.ndindex(setting.output_shape):
        row, column = i * setting.stride[0], j * setting.stride[1]
        window = padded[m, row : row + kernel[0], column : column + kernel[1], c]
        highest[m, i, j, c] = window.max()
        places[m, i, j, c] = window.argmax()
        means[m, i, j, c] = window[np.isfinite(window)].sum() / window.size
    return highest, places, means


# -- forward
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETTINGS)
def test_forward(backend: Backend, name: str, dtype: str) -> None:
    setting = SETTINGS[name]
    x = normal(*setting.x).astype(dtype)
    highest, places, means = naive_pool(x.astype("float64"), setting)
    y, indices = call(backend.max_pool2d_forward, x, **setting.pairs)
    mean = call(backend.avg_pool2d_forward, x, **setting.pairs)
    assert (y.dtype, mean.dtype, indices.dtype.kind) == (dtype, dtype, "u")
    np.testing.assert_array_equal(y, highest)
    np.testing.assert_array_equal(indices, places)
    assert_within_tolerance(mean, means)


def test_of_equal_entries_the_first_counts(backend: Backend) -> None:
    x = np.array([[3.0, 1, 0, 0], [3, 3, 0, 0], [1, 2, 4, 5], [2, 2, 5, 5]]).reshape(1, 4, 4, 1)
    _, indices = call(backend.max_pool2d_forward, x, kernel=(2, 2), stride=(2, 2))
    np.testing.assert_array_equal(indices[0, :, :, 0], [[0, 0], [1, 1]])


@pytest.mark.parametrize("kernel", [(2, 2), (16, 16)])
def test_of_positive_others_have_no_place(backend: Backend, kernel: tuple[int, int]) -> None:
    x = normal(2, 32, 32, 3)
    x[:, : kernel[0]] -= 9
    x[0, :, : kernel[1], 1] = 0
    x[1, 16, 16] = np.nan
    settings = {"kernel": kernel, "stride": kernel}
    y, places = call(backend.max_pool2d_forward, x, **settings)
    found, indices = call(backend.max_pool2d_forward, x, **settings, of_positive=True)
    none = kernel[0] * kernel[1]
    np.testing.assert_array_equal(found, y)
    np.testing.assert_array_equal(indices, np.where(y > 0, places.astype(int), none))
    assert 0 < (indices == none).sum() < indices.size
    dx = call(backend.max_pool2d_backward, np.ones(y.shape), indices, x.shape, **settings)
    assert dx.sum() == (y > 0).sum()


def test_minus_infinity_in_a_padded_window_keeps_its_place(backend: Backend) -> None:
    setting = Setting((1, 2, 2, 1), (3, 3), (1, 1), (1, 1))
    x = np.full(setting.x, -np.inf)
    y, indices = call(backend.max_pool2d_forward, x, **setting.pairs)
    dx = call(backend.max_pool2d_backward, np.ones(y.shape), indices, x.shape, **setting.pairs)
    assert np.isneginf(y).all()
    assert dx.sum() == y.size


def test_nan_comes_through(backend: Backend) -> None:
    x = normal(1, 4, 4, 1)
    x[0, 1, 1, 0] = np.nan
    y, indices = call(backend.max_pool2d_forward, x, kernel=(2, 2), stride=(2, 2))
    assert np.isnan(y[0, :, :, 0]).tolist() == [[True, False], [False, False]]
    assert (indices < 4).all()


def test_windows_of_more_than_256_pixels(backend: Backend) -> None:
    x = np.arange(400.0).reshape(1, 20, 20, 1)
    y, indices = call(backend.max_pool2d_forward, x, kernel=(20, 20), stride=(20, 20))
    dx = call(
        backend.max_pool2d_backward,
        np.ones(y.shape),
        indices,
        x.shape,
        kernel=(20, 20),
        stride=(20, 20),
    )
    assert (y.item(), indices.item()) == (399, 399)
    assert (dx.sum(), dx[0, 19, 19, 0]) == (1, 1)


def test_against_torch(backend: Backend, torch: Any) -> None:
    setting = SETTINGS["padded"]
    x = np.round(normal(*setting.x), 0)
    for name, op in (
        ("max_pool2d", backend.max_pool2d_forward),
        ("avg_pool2d", backend.avg_pool2d_forward),
    ):
        tensor = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
        expected = getattr(torch.nn.functional, name)(tensor, *setting.pairs.values())
        expected.backward(torch.ones_like(expected))
        results = call(op, x, **setting.pairs)
        y, saved = results if isinstance(results, tuple) else (results, None)
        assert_within_tolerance(y.transpose(0, 3, 1, 2), expected.detach().numpy())
        backward = getattr(backend, f"{name}_backward")
        args = (np.ones_like(y), x.shape) if saved is None else (np.ones_like(y), saved, x.shape)
        dx = call(backward, *args, **setting.pairs)
        assert_within_tolerance(dx.transpose(0, 3, 1, 2), tensor.grad.numpy())


# -- backward
# ----------------------------------------------------------------------------------------------


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", SETTINGS)
def test_max_pool2d_backward(backend: Backend, name: str) -> None:
    setting = SETTINGS[name]
    x, dy = normal(*setting.x), normal(*setting.output_shape, seed=1)
    _, indices = call(backend.max_pool2d_forward, x, **setting.pairs)
    dx = call(backend.max_pool2d_backward, dy, indices, x.shape, **setting.pairs)
    assert_derivative(
        dx, lambda x: np.sum(dy * call(backend.max_pool2d_forward, x, **setting.pairs)[0]), x
    )


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", SETTINGS)
def test_avg_pool2d_backward(backend: Backend, name: str) -> None:
    setting = SETTINGS[name]
    x, dy = normal(*setting.x), normal(*setting.output_shape, seed=1)
    dx = call(backend.avg_pool2d_backward, dy, x.shape, **setting.pairs)
    assert_derivative(
        dx, lambda x: np.sum(dy * call(backend.avg_pool2d_forward, x, **setting.pairs)), x
    )


@pytest.mark.in_turns(2)
@given(
    rows=st.integers(0, 3),
    channels=st.integers(0, 4),
    image=st.tuples(st.integers(3, 8), st.integers(3, 8)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padded=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
)
@settings(deadline=None, max_examples=100)
def test_any_setting(
    backend: Backend,
    rows: int,
    channels: int,
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padded: tuple[bool, bool],
    dtype: str,
    layout: str,
) -> None:
    padding = (kernel[0] // 2 * padded[0], kernel[1] // 2 * padded[1])
    setting = Setting((rows, *image, channels), kernel, stride, padding)
    x, dy = normal(*setting.x).astype(dtype), normal(*setting.output_shape, seed=1).astype(dtype)
    laid_x, laid_dy = (dict(layouts(a))[layout] for a in (x, dy))
    highest, places, means = naive_pool(x.astype("float64"), setting)
    y, indices = call(backend.max_pool2d_forward, laid_x, **setting.pairs)
    np.testing.assert_array_equal(y, highest)
    np.testing.assert_array_equal(indices, places)
    assert_within_tolerance(call(backend.avg_pool2d_forward, laid_x, **setting.pairs), means, dtype)

    dx_max = call(backend.max_pool2d_backward, laid_dy, indices, x.shape, **setting.pairs)
    dx_mean = call(backend.avg_pool2d_backward, laid_dy, x.shape, **setting.pairs)
    assert dx_max.shape == dx_mean.shape == x.shape
    # Both are linear in what they add up, so inner products judge the adjoints.
    np.testing.assert_allclose(np.vdot(dx_max, x), np.vdot(dy, y), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(np.vdot(dx_mean, x), np.vdot(dy, means), rtol=1e-5, atol=1e-4)


def test_inputs_are_never_modified(backend: Backend) -> None:
    setting = SETTINGS["overlapping"]
    x, dy = normal(*setting.x), normal(*setting.output_shape, seed=1)
    on_device = upload(backend, x.copy()), upload(backend, dy.copy())
    _, indices = backend.max_pool2d_forward(on_device[0], **setting.pairs)
    backend.max_pool2d_backward(on_device[1], indices, x.shape, **setting.pairs)
    backend.avg_pool2d_forward(on_device[0], **setting.pairs)
    backend.avg_pool2d_backward(on_device[1], x.shape, **setting.pairs)
    np.testing.assert_array_equal(backend.to_numpy(on_device[0]), x)
    np.testing.assert_array_equal(backend.to_numpy(on_device[1]), dy)


# -- refusals
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("shape", [(), (4,), (2, 4, 4), (1, 2, 4, 4, 1)])
def test_pooling_refuses_what_is_no_image(
    backend: Backend, op: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError, match=rf"{op}: expected x of shape \(M, H, W, C\), got"):
        call(getattr(backend, op), np.zeros(shape), kernel=(2, 2), stride=(2, 2))


@pytest.mark.parametrize("op", FORWARD)
def test_pooling_refuses_windows_larger_than_the_image(backend: Backend, op: str) -> None:
    with pytest.raises(ShapeError, match=f"{op}: expected images of at least 3x2 .* got 2x5"):
        call(getattr(backend, op), np.zeros((1, 2, 5, 1)), kernel=(3, 2), stride=(1, 1))


@pytest.mark.parametrize("op", FORWARD)
def test_pooling_refuses_padding_of_more_than_half_the_kernel(backend: Backend, op: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{op}: expected padding of at most half the kernel \(3, 2\)"
    ):
        call(
            getattr(backend, op),
            np.zeros((1, 5, 5, 1)),
            kernel=(3, 2),
            stride=(1, 1),
            padding=(2, 1),
        )


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("name", ["kernel", "stride", "padding"])
def test_pooling_refuses_pairs(backend: Backend, op: str, name: str) -> None:
    pairs = {"kernel": (2, 2), "stride": (2, 2), name: 2}
    with pytest.raises(ConfigError, match=f"{op}: expected {name} to be two integers"):
        call(getattr(backend, op), np.zeros((1, 5, 5, 1)), **pairs)


def test_pooling_refuses_dtypes(backend: Backend) -> None:
    pairs = {"kernel": (2, 2), "stride": (2, 2)}
    x, dy = np.zeros((1, 4, 4, 1)), np.zeros((1, 2, 2, 1))
    for op in FORWARD:
        with pytest.raises(DTypeError, match=f"{op}: expected float32 or float64.*, got uint8"):
            call(getattr(backend, op), x.astype("uint8"), **pairs)
    with pytest.raises(
        DTypeError, match=r"avg_pool2d_backward: expected float32 or float64.*, got int64"
    ):
        call(backend.avg_pool2d_backward, dy.astype("int64"), x.shape, **pairs)
    with pytest.raises(
        DTypeError, match="max_pool2d_backward: expected unsigned indices, got float64"
    ):
        call(backend.max_pool2d_backward, dy, dy, x.shape, **pairs)


def test_pooling_backward_refuses_shapes(backend: Backend) -> None:
    pairs = {"kernel": (2, 2), "stride": (2, 2)}
    dy, indices = np.zeros((1, 2, 2, 1)), np.zeros((1, 2, 2, 1), "uint8")
    with pytest.raises(ShapeError, match="max_pool2d_backward: expected dy of shape"):
        call(backend.max_pool2d_backward, dy, indices, (1, 6, 4, 1), **pairs)
    with pytest.raises(ShapeError, match="max_pool2d_backward: expected indices of shape"):
        call(backend.max_pool2d_backward, dy, indices[:, :1], (1, 4, 4, 1), **pairs)
    with pytest.raises(ShapeError, match="avg_pool2d_backward: expected dy of shape"):
        call(backend.avg_pool2d_backward, dy, (1, 6, 4, 1), **pairs)


def test_taps_outside_small_images(backend: Backend) -> None:
    """Some taps of a padded window meet no pixel of any window at all."""
    setting = Setting((1, 1, 1, 1), (2, 2), (2, 2), (1, 1))
    x = np.array([[[[5.0]]]])
    y, indices = call(backend.max_pool2d_forward, x, **setting.pairs)
    assert (y.item(), indices.item()) == (5, 3)
    for op, args in (("max", (indices,)), ("avg", ())):
        dx = call(
            getattr(backend, f"{op}_pool2d_backward"),
            np.ones_like(y),
            *args,
            x.shape,
            **setting.pairs,
        )
        assert dx.item() == (1 if op == "max" else 0.25)
    assert call(backend.avg_pool2d_forward, x, **setting.pairs).item() == 5 / 4
